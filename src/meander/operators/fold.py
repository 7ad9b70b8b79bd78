"""A function of the user's over the rows of a batch and the state of their keys."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from meander.errors import InvalidOption, MeanderError
from meander.operators.conform import conform
from meander.operators.functions import ARROW, PANDAS, check_function, form_of, who_of
from meander.operators.operator import BinnedOperator, Now, Output, key_of
from meander.operators.ordering import ascending, sorted_rows
from meander.operators.times import newest_of, time_type
from meander.options import kind
from meander.route.keys import Keys
from meander.route.schema import schema
from meander.state.frames import frame_of
from meander.state.spec import TableSpec
from meander.state.table import Table
from meander.store.evolution import OptionRule

GROUP = "__group"

Function = Callable[[pa.Table, pa.Table], Any]


class Fold(BinnedOperator):
    """What `function(rows, state)` returns, called once with all rows of a batch.

    `rows` is a pyarrow Table of the input's columns and `__group`, the number of the row's key; it is in order of the
    key, then of `time` if that is given, then of all other columns. `state` is a Table with one row for each key, row
    g for group g: the key's columns, then the state's, all null where the key is new. The function returns a pair:
    the new state, with the state's columns and as many rows, and the rows to emit, with the columns of `output`, or
    None. A row of the new state that is all null forgets its key; None instead of a state leaves all as it was.

    With `rows="pandas"`, or where the function annotates `rows` with `pd.DataFrame`, both are DataFrames. What it
    returns may be DataFrames in any case.

        def spent(rows, state):
            totals = np.bincount(rows["__group"], weights=rows["price"], minlength=state.num_rows)
            totals += state["total"].fill_null(0.0).to_numpy()
            new = pa.table({"total": totals})
            return new, pa.table({"user": state["user"], "total": totals}).filter(pc.field("total") > 100)

        Fold(input, ["user"], spent, state="total double", output="user string, total double")
    """

    name = "fold"
    rules: ClassVar = {"time": OptionRule("rows come in its order from now on")}

    def __init__(
        self,
        input: pa.Schema,
        key: Sequence[str],
        function: Function,
        state: str | pa.Schema,
        output: str | pa.Schema,
        time: str | None = None,
        rows: str | None = None,
    ) -> None:
        check_function(function, self.name, ("rows", "state"))
        if GROUP in input.names:
            raise InvalidOption(f"a column of the input is called {GROUP!r}, the name of the keys' numbers; rename it")
        self.input, self.function, self.time = input, function, time
        self.key = key_of(input, key)
        declared = schema(state) if isinstance(state, str) else state
        self.state = pa.schema([field.with_nullable(True) for field in declared])
        if not self.state.names:
            raise InvalidOption('state declares no columns; write them as in state="total double"')
        self.output = schema(output) if isinstance(output, str) else output
        if time is not None:
            time_type(input, time)
        self.tables = (TableSpec("fold", self.key, tuple((field.name, field.type) for field in self.state)),)
        first = [*self.key.names, *([] if time is None else [time])]
        self.order = [*first, *(name for name in input.names if name not in first)]
        self.who = who_of(function, self.name)
        self.form = form_of(function, rows, self.name, 0, (ARROW, PANDAS), ARROW)

    @property
    def options(self) -> dict[str, Any]:
        """The column that rows are in order of."""
        return {"time": self.time}

    def run(self, rows: pa.Table, keys: Keys, tables: Mapping[str, Table], now: Now) -> Output:
        """Call the function with the rows in order and the state of their keys, and keep what it returns."""
        if not len(keys):
            return Output(None)
        newest = None if self.time is None else newest_of(rows, self.time)
        order = sorted_rows(list(ascending(rows, self.order)))
        rows = rows.take(pa.array(order)).combine_chunks()
        table = tables["fold"]
        at = table.touch(keys.take(order))
        starts = np.append(True, at[1:] != at[:-1])
        at = at[starts]
        values = {name: table.get(name, at) for name in self.state.names}
        state = pa.table({**dict(zip(self.key.names, table.keys(at), strict=True)), **values})
        rows = rows.append_column(GROUP, pa.array(np.cumsum(starts) - 1))
        given = (rows, state) if self.form == ARROW else (frame_of(rows), frame_of(state))
        answer = self.function(*given)
        if not isinstance(answer, tuple) or len(answer) != 2:
            raise MeanderError(f"{self.who} returned {kind(answer)}; return a pair: the new state, and rows or None")
        later, emitted = answer
        if later is not None:
            self._keep(table, at, later)
        result = None if emitted is None else conform(self.who, emitted, self.output)
        return Output(result if result is not None and result.num_rows else None, None, newest)

    def _keep(self, table: Table, at: np.ndarray[Any, np.dtype[np.int64]], later: object) -> None:
        state = conform(f"{self.who}, as its state,", later, self.state, at.size, frozenset(self.key.names))
        absent = np.ones(at.size, dtype=np.bool_)
        for name in state.column_names:
            column = state[name].combine_chunks()
            table.set(name, at, column)
            absent &= column.is_null().to_numpy(zero_copy_only=False)
        table.mark(at[~absent])
        table.discard(at[absent])
