"""What every operator is: an operator that turns one batch of rows and the state beside it into the rows that changed.

    rows, keys, tables, now  ->  BinnedOperator.run  ->  Output(rows, late, newest)

An operator is built once, on the driver, from the schema of its input; it is small, holds no state and no open files,
and travels to the workers. All state is in the tables it names. The module depends on no Spark.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar, NamedTuple

import pyarrow as pa

from meander.errors import InvalidOption, MeanderError
from meander.route.keys import Keys, KeyType
from meander.state.spec import TableSpec
from meander.state.table import Table
from meander.store.evolution import OptionRule

ALL = "__all"
"""The key column of a stream without a key; neither a sink nor a function over keys sees it."""


@dataclass(frozen=True)
class Now:
    """Where the stream stands in this batch.

    `frontier` is an event time in microseconds: rows and windows before it are final. `previous` is the frontier of
    the version before. Both are None until an operator with event time has seen a row.
    """

    version: int
    frontier: int | None = None
    previous: int | None = None


@dataclass
class Output:
    """The result of one call of an operator: changed rows, rows that came too late, the newest event time seen (us).

    An operator that waits for its slowest input sets the newest time of each input instead.
    """

    rows: pa.Table | None
    late: pa.Table | None = None
    newest: int | None = None
    newest_by_input: tuple[int | None, ...] = ()


class UnusableRows(MeanderError):
    """Rows of some keys that an operator cannot take: they become dead letters, and the batch goes on without them.

    `keys` are the columns of these keys, `reasons` says of each what is wrong.
    """

    def __init__(self, keys: list[pa.Array], reasons: Sequence[str]) -> None:
        super().__init__(reasons[0])
        self.keys, self.reasons = keys, reasons


class DueTimers(NamedTuple):
    """Timers of one kind that are due: the key of each, and what people see of it."""

    keys: Keys
    rows: pa.Table


class BinnedOperator(ABC):
    """The inner form of every operator.

    `run` may be called several times in one batch, each time with rows of other bins, and without rows when the
    stream is idle. The order of the rows differs between attempts of one batch; the answer must not.
    """

    name: str
    input: pa.Schema
    output: pa.Schema
    key: KeyType
    tables: tuple[TableSpec, ...]
    late: pa.Schema | None = None
    """The schema of rows that come too late; None where no row can."""
    lateness: int = 0
    """How far the frontier stays behind the newest event time, in microseconds."""
    stores: tuple[str, ...] = ()
    """The tables that keep the rows of each input, where there is more than one."""
    rules: ClassVar[Mapping[str, OptionRule]] = {}
    """Which options may be others at the next start; all others stay as they are for good."""
    converters: Mapping[str, Callable[[pa.Table], Any]] = {}
    """What brings the rows of a table to its newest layout, where a function of the user's does."""

    @abstractmethod
    def run(self, rows: pa.Table, keys: Keys, tables: Mapping[str, Table], now: Now) -> Output:
        """Take the rows of one batch into the tables and return what changed."""

    def due(self, tables: Mapping[str, Table], now: Now) -> list[DueTimers]:
        """The timers for which user code is to be called at this time, also without rows."""
        return []

    def only(self, keys: Keys) -> BinnedOperator:
        """The operator that calls user code for timers of these keys alone; others that are due are forgotten."""
        return self

    @property
    def options(self) -> dict[str, Any]:
        """The options that a checkpoint knows, in JSON's types: those of `rules`, and those that are for good."""
        return {}

    @property
    def fingerprint(self) -> dict[str, Any]:
        """What the operator is to a checkpoint, in JSON's types; see `meander.store.evolution.judge`."""
        return {
            "operator": self.name,
            "key": [[name, str(kind)] for name, kind in self.key.fields],
            "tables": {
                spec.name: {
                    "key": [[name, str(kind)] for name, kind in spec.key.fields],
                    "values": [[name, str(kind)] for name, kind in spec.values],
                }
                for spec in self.tables
            },
            "options": self.options,
            "output": [[field.name, str(field.type)] for field in self.output],
        }


class Operator:
    """An operator of your own: declare what goes in, what comes out and what is kept, and write `on_batch`.

        class LastSeen(me.Operator):
            input = "user string, ts timestamp, page string"
            output = "user string, page string, since timestamp"
            state = {"last": me.KeyedTable(key="user string", value="ts timestamp, page string")}
            time = "ts"

            def on_batch(self, rows, state, now):
                before = state["last"].get(rows["user"])
                state["last"].put(rows["user"], rows)
                return pa.table({"user": rows["user"], "page": rows["page"], "since": before["ts"]})

    `input` is a list of columns, or a pair of lists for an operator with two inputs, whose `on_batch` takes
    `left, right, state, now`. Rows are RecordBatches, in order of `time` and then of all columns, the same in every
    attempt; set `ordered = False` if the order does not matter, to save the sorting. `time` names the column of event
    time (a pair for two inputs; None for none): the frontier follows it, `lateness` behind. With two times it follows
    the input that is behind, and stands still while either is silent. Every key in `state` begins with the columns that
    the stream is keyed by, and only keys of the rows at hand may be used.

    `on_time` gets the timers before the frontier, each once, before the rows of that batch: `due` maps the name of
    every Timers in `state` to a RecordBatch of key, time and payload, in order of time. A timer set for a time before
    the frontier fires in the next batch. Both methods return a RecordBatch, Table or DataFrame with the columns of
    `output`, or None. With `rows = "pandas"`, or where `on_batch` annotates its first input with `pd.DataFrame`, rows
    and timers come as DataFrames; the tables of the state take Series and DataFrames as keys and values. Keep nothing
    on `self` that has to last; that is what `state` is for.
    """

    input: ClassVar[str | tuple[str, str]]
    output: ClassVar[str]
    state: ClassVar[Mapping[str, Any]] = {}
    time: ClassVar[str | tuple[str | None, str | None] | None] = None
    lateness: ClassVar[str | float | timedelta] = "0s"
    ordered: ClassVar[bool] = True
    rows: ClassVar[str | None] = None

    def on_batch(self, *inputs_state_now: Any) -> Any:
        """Take the rows of a batch into the state and return the rows to emit.

        Args:
            inputs_state_now: the rows of each input, the state by name, and what time it is.

        Returns:
            The rows to emit, as Arrow or pandas, or None.

        Raises:
            NotImplementedError: an operator of your own does not say what is to be done.

        Example:
            >>> import meander as me
            >>> class Doubled(me.Operator):
            ...     input, output = "n bigint", "n bigint"
            ...     def on_batch(self, rows, state, now):
            ...         return {"n": [2 * n for n in rows["n"].to_pylist()]}
            >>> numbers = me.stream(me.testing.source("n bigint")).key_by("n").process(Doubled)
            >>> with me.testing.harness(numbers) as h:
            ...     h.batch([{"n": 3}])
            [{'n': 6}]
        """
        raise NotImplementedError(f"{type(self).__name__} has no on_batch")

    def on_time(self, due: Mapping[str, Any], state: Mapping[str, Any], now: Now) -> Any:
        """Answer the timers that are due.

        Args:
            due: for every Timers of the state a RecordBatch of key, time and payload, in order of time.
            state: the state by name.
            now: what time it is.

        Returns:
            The rows to emit, as Arrow or pandas, or None.

        Raises:
            NotImplementedError: an operator of your own has timers, and does not say what is to be done.
        """
        raise NotImplementedError(f"{type(self).__name__} has no on_time")


def listing(names: Iterable[str]) -> str:
    """The names of columns, for messages."""
    return ", ".join(names) or "none"


def field_of(input: pa.Schema, column: object, what: str) -> pa.Field:
    """The field of a column that an option names; InvalidOption says which columns there are."""
    if not isinstance(column, str) or input.names.count(column) != 1:
        raise InvalidOption(f"{what} names the column {column!r}; the columns are {listing(input.names)}")
    return input.field(column)


def key_of(input: pa.Schema, key: Sequence[str]) -> KeyType:
    """The type of the key with these columns."""
    if isinstance(key, str) or not key:
        raise InvalidOption(f"the key is {key!r}; name at least one column of {listing(input.names)}")
    if len(set(key)) < len(key):
        raise InvalidOption(f"the key names a column twice: {listing(key)}; name each once")
    return KeyType.of([field_of(input, column, "the key") for column in key])


def output_of(key: KeyType, *fields: tuple[str, pa.DataType]) -> pa.Schema:
    """The schema of an output: the key's columns, then these; no name may stand twice."""
    every = [*key.fields, *fields]
    names = [name for name, _ in every]
    for name in names:
        if not isinstance(name, str) or not name:
            raise InvalidOption(f"an output column is called {name!r}; give it a name")
        if names.count(name) > 1:
            raise InvalidOption(f"two output columns are called {name!r}; give one another name")
    return pa.schema([pa.field(name, kind) for name, kind in every])
