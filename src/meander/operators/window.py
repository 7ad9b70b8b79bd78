"""Aggregates of each key over windows of event time: tumbling and sliding here, sessions in `sessions`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from meander.errors import InvalidOption
from meander.operators import aggregate
from meander.operators.aggregate import Aggregation, Named
from meander.operators.operator import BinnedOperator, Now, Output, key_of, output_of
from meander.operators.ordering import Groups, Words
from meander.operators.times import Duration, microseconds, newest_of, stamps, time_type, times_of
from meander.route.keys import Keys
from meander.state.spec import TableSpec
from meander.state.table import Table
from meander.store.evolution import OptionRule

START, END = "window_start", "window_end"

MOST_WINDOWS = 10_000

EMITS = ("update", "final")

RULES = {
    "lateness_us": OptionRule("what has closed stays closed"),
    "emit": OptionRule(
        "what is open comes out once more, when it closes",
        lambda then, now: then == "update",
        "windows that have had all their rows would never come out",
    ),
    **aggregate.RULES,
}


def window(
    input: pa.Schema,
    key: Sequence[str],
    *,
    time: str,
    size: Duration | None = None,
    slide: Duration | None = None,
    gap: Duration | None = None,
    lateness: Duration = "0s",
    named: Named | None = None,
    by: str | None = None,
    emit: str | None = None,
) -> BinnedOperator:
    """The operator of a window: tumbling (`size`), sliding (`size` and `slide`) or of sessions (`gap`)."""
    from meander.operators.sessions import Sessions

    if (size is None) == (gap is None) or (gap is not None and slide is not None):
        raise InvalidOption("a window has a size, or a size and a slide, or (for sessions) a gap; give one of these")
    if gap is not None:
        return Sessions(input, key, time=time, gap=gap, lateness=lateness, named=named, by=by, emit=emit or "final")
    if size is None:
        raise InvalidOption("a window needs a size")
    return Window(
        input, key, time=time, size=size, slide=slide, lateness=lateness, named=named, by=by, emit=emit or "update"
    )


class Windowed(BinnedOperator):
    """What windows of every kind share: event time, lateness, what is aggregated and when it comes out."""

    rules = RULES

    def __init__(
        self,
        input: pa.Schema,
        key: Sequence[str],
        time: str,
        lateness: Duration,
        named: Named | None,
        by: str | None,
        emit: str,
    ) -> None:
        self.input = self.late = input
        self.key = key_of(input, key)
        self.time, self.kind = time, time_type(input, time)
        self.lateness = microseconds("lateness", lateness)
        self.aggregation = Aggregation(input, {"count": "count"} if named is None else named, by)
        if emit not in EMITS:
            raise InvalidOption(f"emit is {emit!r}; it is update (windows that changed) or final (windows that closed)")
        self.emit = emit
        self.output = output_of(self.key, (START, self.kind), (END, self.kind), *self.aggregation.results)

    @property
    def options(self) -> dict[str, Any]:
        """The shape of the windows and what is aggregated in them."""
        return {"time": self.time, "lateness_us": self.lateness, "emit": self.emit, **self.aggregation.options}


class Window(Windowed):
    """The key's columns, window_start, window_end and the aggregates over the rows of that window.

    As in Spark: windows are aligned to the epoch, hold their start and not their end, and `slide` is at most `size`.
    The frontier stays `lateness` behind the newest event time; a window is closed when its end is not after the
    frontier. Then its state is dropped, and a row all of whose windows are closed goes to `late`, as does a row
    without a time. `emit="update"` gives the windows that changed in this batch, `emit="final"` each window once,
    when it closes.
    """

    name = "window"

    def __init__(
        self,
        input: pa.Schema,
        key: Sequence[str],
        *,
        time: str,
        size: Duration,
        slide: Duration | None = None,
        lateness: Duration = "0s",
        named: Named | None = None,
        by: str | None = None,
        emit: str = "update",
    ) -> None:
        super().__init__(input, key, time, lateness, named, by, emit)
        self.size = microseconds("size", size, least=1)
        self.slide = self.size if slide is None else microseconds("slide", slide, least=1)
        if self.slide > self.size:
            raise InvalidOption(f"slide is {slide!r}, longer than size {size!r}: rows between windows would be lost")
        if self.size > MOST_WINDOWS * self.slide:
            raise InvalidOption(
                f"slide {slide!r} puts a row into more than {MOST_WINDOWS} windows of {size!r}; make it longer"
            )
        by_start = self.key.extended((START, self.kind))
        self.tables = (TableSpec("windows", by_start, self.aggregation.values, order=START),)

    @property
    def options(self) -> dict[str, Any]:
        """The shape of the windows and what is aggregated in them."""
        return {**super().options, "size_us": self.size, "slide_us": self.slide}

    def run(self, rows: pa.Table, keys: Keys, tables: Mapping[str, Table], now: Now) -> Output:
        """Close the windows that are before the frontier and add the rows to those that are not."""
        table = tables["windows"]
        final = None
        if now.frontier is not None:
            closed = table.due(now.frontier - self.size + 1)
            final = self._answer(table, closed) if self.emit == "final" and closed.size else None
            table.discard(closed)
        if not rows.num_rows:
            return Output(final)
        row, start = self._windows(rows, now.frontier)
        changed = self._add(table, rows, row, start)
        has_window = np.zeros(rows.num_rows, dtype=np.bool_)
        has_window[row] = True
        late = None if has_window.all() else rows.take(pa.array(np.flatnonzero(~has_window)))
        return Output(final if self.emit == "final" else changed, late, newest_of(rows, self.time))

    def _windows(self, rows: pa.Table, frontier: int | None) -> tuple[Words, Words]:
        """The row and the window's start of each time that a row is in a window that is not closed."""
        times, has = times_of(rows, self.time)
        newest_start = times - times % self.slide
        row, start = [], []
        for back in range(-(-self.size // self.slide)):
            candidate = newest_start - back * self.slide
            inside = has & (times < candidate + self.size)
            if frontier is not None:
                inside &= candidate + self.size > frontier
            at = np.flatnonzero(inside)
            row.append(at)
            start.append(candidate[at])
        return np.concatenate(row), np.concatenate(start)

    def _add(self, table: Table, rows: pa.Table, row: Words, start: Words) -> pa.Table | None:
        if not row.size:
            return None
        taken = rows if np.array_equal(row, np.arange(rows.num_rows)) else rows.take(pa.array(row))
        columns = [taken[name] for name in self.key.names]
        at = table.touch(self.tables[0].key.encode([*columns, stamps(start, self.kind)]))
        groups = Groups.of_rows(at, table.size)
        table.mark(groups.rows)
        self.aggregation.add(table, groups, taken)
        return self._answer(table, groups.rows) if self.emit == "update" else None

    def _answer(self, table: Table, rows: Words) -> pa.Table:
        *key, start = table.keys(rows)
        end = stamps(start.cast(pa.int64()).to_numpy() + self.size, self.kind)
        return pa.Table.from_arrays([*key, start, end, *self.aggregation.answer(table, rows)], schema=self.output)
