"""A user's operator class, checked when it is declared, called with Arrow batches and views of its state."""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from meander.errors import InvalidOption
from meander.operators.conform import are_like, conform, is_like
from meander.operators.functions import ARROW, PANDAS, form_of
from meander.operators.operator import BinnedOperator, DueTimers, Now, Operator, Output, key_of, listing
from meander.operators.ordering import ascending, sorted_rows
from meander.operators.times import microseconds, newest_of, time_type
from meander.options import kind
from meander.pictures import many
from meander.route.columns import whole_column
from meander.route.keys import Keys, KeyType
from meander.route.schema import schema
from meander.state.declare import KeyedTable, Multimap, Timers
from meander.state.frames import frame_of
from meander.state.spec import TableSpec
from meander.state.table import Table, among
from meander.state.views import TimersView
from meander.store.evolution import OptionRule

SIDE = "__input"
"""The column that says which of two inputs a row is of: 0 left, 1 right."""

SIDES = ("left", "right")

_WIDER = {
    pa.int8(): (pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64()),
    pa.int16(): (pa.int32(), pa.int64(), pa.float32(), pa.float64()),
    pa.int32(): (pa.int64(), pa.float64()),
    pa.float32(): (pa.float64(),),
    pa.large_string(): (pa.string(),),
    pa.large_binary(): (pa.binary(),),
}


class StateViews(dict[str, Any]):
    """The views of an operator's state by name; a name that is not there is answered with those that are."""

    def __init__(self, who: str, views: Mapping[str, Any]) -> None:
        super().__init__(views)
        self.who = who

    def __missing__(self, name: object) -> NoReturn:
        raise InvalidOption(f"{self.who} has no state {name!r}; it declares: {listing(self)}")


class Custom(BinnedOperator):
    """What the `on_batch` and `on_time` of a user's operator return.

    In every call the timers that are due come first, then the rows: what a timer was set for happened before the
    frontier, and most rows come after it. A timer that is set for a time before the frontier fires in the next call.

    With two inputs the schema and the key are pairs, and the rows of both come as one table: `__input` is 0 or 1, the
    columns are called `left.x` and `right.x`, and those of the other side are null.
    """

    rules: ClassVar = {"lateness_us": OptionRule("timers that have fired stay so")}

    def __init__(
        self,
        operator: type[Operator] | Operator,
        input: pa.Schema | tuple[pa.Schema, pa.Schema],
        key: Sequence[str] | tuple[Sequence[str], Sequence[str]],
    ) -> None:
        self.operator = _instance(operator)
        self.who = type(self.operator).__name__
        self.name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", self.who).lower()
        self.declared = self._declared(input)
        inputs = input if isinstance(input, tuple) else (input,)
        self.input = paired(*inputs) if len(inputs) == 2 else inputs[0]
        self.keyed: tuple[Sequence[Any], ...] = self._keyed(key) if len(inputs) == 2 else (key,)
        self.key = self._key(inputs)
        self.output = self._schema("output")
        self.state = self._state()
        self.tables = self._tables()
        self.time = self._time()
        self.lateness = microseconds(f"{self.who}.lateness", self.operator.lateness)
        self._check_methods()
        self.form = form_of(self.operator.on_batch, self.operator.rows, self.who, 0, (ARROW, PANDAS), ARROW)
        self.only_keys: Keys | None = None

    @property
    def options(self) -> dict[str, Any]:
        """The columns of event time, which timers are times of, and when they are due."""
        return {"time": list(self.time), "lateness_us": self.lateness}

    def run(self, rows: pa.Table, keys: Keys, tables: Mapping[str, Table], now: Now) -> Output:
        """Call `on_time` with the timers that are due, then `on_batch` with the rows."""
        operator = copy.copy(self.operator)
        state = StateViews(self.who, {name: each.view(name, tables) for name, each in self.state.items()})
        answers = []
        if self._timers and now.frontier is not None:
            due = {name: self._taken(name, tables, now.frontier) for name in self._timers}
            if any(each.num_rows for each in due.values()):
                shown = {name: self._shown(each) for name, each in due.items()}
                answers.append(("on_time", operator.on_time(shown, state, now)))
        inputs, newest = self._inputs(rows)
        if rows.num_rows:
            answers.append(("on_batch", operator.on_batch(*map(self._shown, inputs), state, now)))
        outputs = [conform(f"{self.who}.{method}", each, self.output) for method, each in answers if each is not None]
        outputs = [each for each in outputs if each.num_rows]
        emitted = pa.concat_tables(outputs) if outputs else None
        if len(newest) > 1:
            return Output(emitted, newest_by_input=newest)
        return Output(emitted, None, newest[0] if newest else None)

    def due(self, tables: Mapping[str, Table], now: Now) -> list[DueTimers]:
        """The timers that are due, by the name of their state."""
        if now.frontier is None:
            return []
        taken = {name: self._taken(name, tables, now.frontier) for name in self._timers}
        return [
            DueTimers(self._keys_of(rows), pa.Table.from_batches([rows]).add_column(0, "timer", [[name] * len(rows)]))
            for name, rows in taken.items()
            if rows.num_rows
        ]

    def only(self, keys: Keys) -> BinnedOperator:
        """The operator that sees the timers of these keys alone."""
        narrow = copy.copy(self)
        narrow.only_keys = keys
        return narrow

    @property
    def _timers(self) -> list[str]:
        return [name for name, declaration in self.state.items() if isinstance(declaration, Timers)]

    def _taken(self, name: str, tables: Mapping[str, Table], frontier: int) -> pa.RecordBatch:
        """The timers that are due, each for the last time."""
        due = TimersView(tables[name]).take(frontier)
        if self.only_keys is None or not due.num_rows:
            return due
        return due.take(pa.array(np.flatnonzero(among(self._keys_of(due), self.only_keys))))

    def _keys_of(self, timers: pa.RecordBatch) -> Keys:
        """The key of the stream that each timer is of."""
        return self.key.encode(timers.columns[: len(self.key.fields)])

    def _shown(self, rows: pa.RecordBatch) -> Any:
        """The rows in the form that the operator takes."""
        return rows if self.form == ARROW else frame_of(rows)

    def _inputs(self, rows: pa.Table) -> tuple[list[pa.RecordBatch], tuple[int | None, ...]]:
        """The rows of each input, with the columns and types it declares, in order; of those with time, the newest."""
        inputs: list[pa.RecordBatch] = []
        newest: list[int | None] = []
        for at, (declared, time) in enumerate(zip(self.declared, self.time, strict=True)):
            if len(self.declared) == 1:
                mine = rows.select(declared.names)
            else:
                mine = rows.filter(pc.equal(rows[SIDE], at))
                mine = mine.select([f"{SIDES[at]}.{name}" for name in declared.names]).rename_columns(declared.names)
            mine = pa.table([whole_column(mine[field.name].cast(field.type)) for field in declared], schema=declared)
            if self.operator.ordered and mine.num_rows:
                first = [] if time is None else [time]
                others = [name for name in declared.names if name not in first]
                mine = mine.take(pa.array(sorted_rows(ascending(mine, [*first, *others]))))
            if time is not None:
                newest.append(newest_of(mine, time) if mine.num_rows else None)
            columns = [whole_column(column) for column in mine.columns]
            inputs.append(pa.RecordBatch.from_arrays(columns, schema=declared))
        return inputs, tuple(newest)

    def _declared(self, input: pa.Schema | tuple[pa.Schema, pa.Schema]) -> tuple[pa.Schema, ...]:
        inputs = input if isinstance(input, tuple) else (input,)
        texts = getattr(self.operator, "input", None)
        texts = tuple(texts) if isinstance(texts, tuple | list) else (texts,)
        if len(texts) > 2 or not all(isinstance(text, str) for text in texts):
            raise InvalidOption(
                f'{self.who}.input is {texts[0] if len(texts) == 1 else texts!r}; write columns as in "user string, '
                'ts timestamp", or a pair of such texts'
            )
        if len(texts) != len(inputs):
            raise InvalidOption(f"{self.who}.input declares {many(len(texts), 'input')} but is given {len(inputs)}")
        return tuple(self._matched(self._schema("input", text), each) for text, each in zip(texts, inputs, strict=True))

    def _matched(self, declared: pa.Schema, stream: pa.Schema) -> pa.Schema:
        for field in declared:
            if stream.names.count(field.name) != 1:
                names = listing(stream.names)
                raise InvalidOption(
                    f"{self.who}.input declares {field.name!r}, but the columns of the stream are {names}"
                )
            type_ = stream.field(field.name).type
            if not is_like(type_, field.type) and field.type not in _WIDER.get(type_, ()):
                raise InvalidOption(
                    f"{self.who}.input declares {field.name!r} as {field.type}, but the stream has it as {type_}; "
                    "declare that, or cast the column"
                )
        return pa.schema([field.with_nullable(True) for field in declared])

    def _keyed(self, key: Sequence[Any]) -> tuple[Sequence[Any], ...]:
        if isinstance(key, str) or len(key) != 2 or any(isinstance(each, str) for each in key):
            raise InvalidOption(f"{self.who} has two inputs; give the key of each, as a pair of lists of columns")
        return tuple(key)

    def _key(self, inputs: Sequence[pa.Schema]) -> KeyType:
        keys = [key_of(schema, key) for schema, key in zip(inputs, self.keyed, strict=True)]
        if len(keys) == 2 and not are_like(keys[0].types, keys[1].types):
            raise InvalidOption(
                f"the keys of the two inputs of {self.who} are ({listing(map(str, keys[0].types))}) and "
                f"({listing(map(str, keys[1].types))}); they must have the same types"
            )
        return keys[0]

    def _schema(self, attribute: str, text: object = None) -> pa.Schema:
        ddl = getattr(self.operator, attribute, None) if text is None else text
        if not isinstance(ddl, str):
            raise InvalidOption(f'{self.who}.{attribute} is {kind(ddl)}; write columns as in "user string, n bigint"')
        try:
            return schema(ddl)
        except InvalidOption as error:
            raise InvalidOption(f"{self.who}.{attribute}: {error}") from None

    def _state(self) -> dict[str, KeyedTable | Multimap | Timers]:
        state = self.operator.state
        if not isinstance(state, Mapping):
            raise InvalidOption(f"{self.who}.state is {kind(state)}; write a dictionary of names and declarations")
        for name, declaration in state.items():
            if not isinstance(declaration, KeyedTable | Multimap | Timers):
                raise InvalidOption(
                    f"{self.who}.state[{name!r}] is {kind(declaration)}; declare a KeyedTable, a Multimap or Timers"
                )
        return dict(state)

    def _tables(self) -> tuple[TableSpec, ...]:
        specs: list[TableSpec] = []
        mine, leading = self.key.types, len(self.key.types)
        for name, declaration in self.state.items():
            declared = schema(declaration.key)
            types = tuple(declared.types)
            named = any(list(declared.names[:leading]) == list(names) for names in self.keyed)
            if not named or not are_like(types[:leading], mine):
                streams = listing(f"{column} {kind}" for column, kind in self.key.fields)
                raise InvalidOption(
                    f"{self.who}.state[{name!r}] has the key ({declaration.key}), but the stream is keyed by "
                    f"({streams}); a state's key begins with the columns that the stream is keyed by"
                )
            try:
                specs += declaration.specs(name, leading)
            except InvalidOption as error:
                raise InvalidOption(f"{self.who}.state[{name!r}]: {error}") from None
        return tuple(specs)

    def _time(self) -> tuple[str | None, ...]:
        time = self.operator.time
        names: tuple[Any, ...] = tuple(time) if isinstance(time, tuple | list) else (time,) * len(self.declared)
        if len(names) != len(self.declared):
            raise InvalidOption(f"{self.who}.time is {time!r}; name one column for each input, or None")
        for declared, name in zip(self.declared, names, strict=True):
            if name is not None:
                time_type(declared, name, f"{self.who}.time")
        return names

    def _check_methods(self) -> None:
        wanted = len(self.declared) + 2
        self._check_method("on_batch", wanted, "rows, state, now" if wanted == 3 else "left, right, state, now")
        has_on_time = type(self.operator).on_time is not Operator.on_time
        if self._timers:
            self._check_method("on_time", 3, "due, state, now")
        elif has_on_time:
            raise InvalidOption(f"{self.who} has on_time but declares no Timers in its state; declare them or drop it")

    def _check_method(self, name: str, wanted: int, example: str) -> None:
        method = getattr(self.operator, name)
        if getattr(type(self.operator), name, None) is getattr(Operator, name):
            raise InvalidOption(f"{self.who} has no {name}; write {name}(self, {example})")
        try:
            inspect.signature(method).bind(*range(wanted))
        except TypeError:
            raise InvalidOption(
                f"{self.who}.{name} takes {inspect.signature(method)}; write {name}(self, {example})"
            ) from None


def paired(left: pa.Schema, right: pa.Schema) -> pa.Schema:
    """The schema in which the rows of two inputs come as one table."""
    sides = zip(SIDES, (left, right), strict=True)
    fields = [pa.field(f"{side}.{field.name}", field.type) for side, schema in sides for field in schema]
    return pa.schema([pa.field(SIDE, pa.int32()), *fields])


def _instance(operator: object) -> Operator:
    if isinstance(operator, type) and issubclass(operator, Operator):
        name = operator.__name__
        try:
            operator = operator()
        except TypeError as error:
            raise InvalidOption(f"{name} cannot be made: {error}; give an instance of it") from None
    if not isinstance(operator, Operator):
        raise InvalidOption(f"{kind(operator)} is no operator; give a subclass of me.Operator, or an instance of one")
    return operator
