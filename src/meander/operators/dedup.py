"""The first row of every key, once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from meander.errors import InvalidOption
from meander.operators.operator import BinnedOperator, Now, Output, key_of
from meander.operators.ordering import Groups, ascending, first_of_groups
from meander.operators.times import Duration, chosen, microseconds, newest_of, time_type, times_of
from meander.route.keys import Keys
from meander.state.spec import TableSpec
from meander.state.table import Table
from meander.store.evolution import OptionRule


class Dedup(BinnedOperator):
    """The first row of every key, all columns of it; later rows of the key are dropped.

    The first batch that has a key decides; of its rows the one of the smallest `time` is the first, then the smallest
    by all columns. With `within`, keys are forgotten: a duplicate is dropped for sure if it is at most `within` later
    in event time than the row that came out; one still later may come out again. Then rows older than the frontier,
    which stays `within` behind the newest event time, and rows without a time are not looked up but go to `late`.
    """

    name = "dedup"
    rules: ClassVar = {
        "within_us": OptionRule(
            "keys that are known stay known for as long as it was",
            lambda then, now: then is not None and now is not None and now < then,
            "keys that are forgotten already would come out again",
        )
    }

    def __init__(
        self,
        input: pa.Schema,
        key: Sequence[str],
        time: str | None = None,
        within: Duration | None = None,
    ) -> None:
        self.input = self.output = input
        self.key = key_of(input, key)
        self.time = time
        self.within = None if within is None else microseconds("within", within, least=1)
        if time is not None:
            time_type(input, time)
        values: tuple[tuple[str, pa.DataType], ...] = ()
        if self.within is not None:
            if time is None:
                raise InvalidOption("within needs the column of event time; name it as time=")
            self.lateness, self.late = self.within, input
            values = (("seen.until", pa.int64()),)
        self.tables = (TableSpec("seen", self.key, values, order="seen.until" if values else None),)
        first = [] if time is None else [time]
        self.order = [*first, *(name for name in input.names if name not in {*first, *self.key.names})]

    @property
    def options(self) -> dict[str, Any]:
        """The time by which keys are forgotten."""
        return {"time": self.time, "within_us": self.within}

    def run(self, rows: pa.Table, keys: Keys, tables: Mapping[str, Table], now: Now) -> Output:
        """Forget what is old, and let the first row of each new key through."""
        table = tables["seen"]
        if self.within is not None and now.frontier is not None:
            table.discard(table.due(now.frontier))
        if not len(keys):
            return Output(None)
        newest = None if self.time is None else newest_of(rows, self.time)
        late = None
        if self.time is not None and self.within is not None:
            times, has = times_of(rows, self.time)
            if now.frontier is not None:
                has = has & (times >= now.frontier)
            if not has.all():
                late = rows.take(pa.array(np.flatnonzero(~has)))
                kept = np.flatnonzero(has)
                rows, keys = rows.take(pa.array(kept)), keys.take(kept)
        return Output(self._first(rows, keys, table), late, newest)

    def _first(self, rows: pa.Table, keys: Keys, table: Table) -> pa.Table | None:
        at = table.touch(keys)
        new = np.flatnonzero(~table.present[at])
        if not new.size:
            return None
        fresh = chosen(rows, new)
        groups = Groups.of_rows(at[new], table.size)
        first = first_of_groups(groups.of, len(groups), ascending(fresh, self.order))
        answer = fresh.take(pa.array(first))
        if self.time is not None and self.within is not None:
            table.column("seen.until")[groups.rows] = times_of(answer, self.time)[0] + self.within
            table.valid("seen.until")[groups.rows] = True
        table.mark(groups.rows)
        return answer
