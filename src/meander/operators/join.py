"""Pairs of rows of two streams that have the same key and are near each other in event time, each once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from meander.errors import InvalidOption
from meander.operators.conform import are_like
from meander.operators.custom import SIDE, SIDES, paired
from meander.operators.operator import BinnedOperator, Now, Output, key_of, listing
from meander.operators.ordering import Flags, Words
from meander.operators.pairs import (
    OUTER,
    Bounds,
    Pairs,
    Reader,
    Where,
    check_where,
    count_pairs,
    fill_pairs,
    how_of,
    kept_by,
    times_of_sides,
)
from meander.operators.times import Duration, microseconds, newest_of, times_of
from meander.route.columns import whole_column
from meander.route.keys import Keys
from meander.state.spans import Lookups, Spans, ranges
from meander.state.table import Table
from meander.store.evolution import OptionRule

MATCHED = "__matched"
"""Whether a row has had a partner; kept for the sides whose rows come out without one too."""

AGAIN = "_right"
"""What is put behind the name of a right column where the left one has it too."""

MOST_PAIRS = 1 << 21
"""So many pairs are looked at in one go: a hot key has more of them than fit into memory."""


class Join(BinnedOperator):
    """Every pair of a left and a right row with the same key that are near in event time, once, in whatever order.

    A row pairs with the rows of the other side that came before it or with it. The frontier stays `lateness` behind
    the newest time of the input that is behind: rows before it are late, and what no row after it can match is
    forgotten. With `how="left"`, a left row without a partner comes out then, with nulls for the right columns; with
    `how="right"` a right one with nulls for the left columns, with `how="full"` both.

    The columns are those of the key, of the left rows and of the right ones, which have `_right` behind their name
    where the left has it too. `where` is a function of such `Pairs` that returns which of them count, or an expression
    of `pyarrow.compute`.
    """

    name = "join"
    stores = SIDES
    rules: ClassVar = {"lateness_us": OptionRule("what is forgotten stays forgotten")}

    def __init__(
        self,
        input: tuple[pa.Schema, pa.Schema],
        key: tuple[Sequence[str], Sequence[str]],
        *,
        within: Duration | tuple[Duration, Duration] | None = None,
        window: Duration | None = None,
        how: str = "inner",
        where: Where | None = None,
        time: str | tuple[str, str] | None = None,
        lateness: Duration = "0s",
    ) -> None:
        self.input = self.late = paired(*input)
        self.bounds = Bounds.of(within, window)
        self.lateness = microseconds("lateness", lateness)
        self.how = how_of(how)
        self.time = times_of_sides(input, time)
        keys = [key_of(schema, names) for schema, names in zip(input, key, strict=True)]
        if not are_like(keys[0].types, keys[1].types):
            raise InvalidOption(
                f"the keys to join on are ({listing(map(str, keys[0].types))}) and "
                f"({listing(map(str, keys[1].types))}); cast them to the same types"
            )
        for name, names in zip(self.time, key, strict=True):
            if name in names:
                raise InvalidOption(
                    f"{name!r} is event time and cannot be joined on; window=... pairs rows of one window"
                )
        self.key = keys[0]
        self.columns = tuple(
            tuple(name for name in schema.names if name not in names) for schema, names in zip(input, key, strict=True)
        )
        self.output = self._output(input)
        # What is stored is called as in the output, where no name stands twice: a column of one side may be called as
        # the other side's key.
        own = self.output.names[len(self.key.fields) :]
        self.kept = (tuple(own[: len(self.columns[0])]), tuple(own[len(self.columns[0]) :]))
        values = [tuple((name, self.output.field(name).type) for name in names) for names in self.kept]
        for side in OUTER[self.how]:
            values[side] += ((MATCHED, pa.bool_()),)
        self.tables = (Spans.spec("left", self.key, values[0]), Spans.spec("right", self.key, values[1]))
        self.where = where
        check_where(where, self.output)

    @property
    def options(self) -> dict[str, Any]:
        """When rows match, and which come out."""
        bounds = self.bounds
        return {
            "before_us": bounds.before, "after_us": bounds.after, "window_us": bounds.window,
            "span_us": bounds.span, "how": self.how, "time": list(self.time),
            "lateness_us": self.lateness,
        }  # fmt: skip

    def run(self, rows: pa.Table, keys: Keys, tables: Mapping[str, Table], now: Now) -> Output:
        """Forget what is over, pair the rows with those that are stored and with each other, and store them."""
        stored = [Spans(tables[side]) for side in SIDES]
        outputs = self._evict(stored, now.frontier)
        if not rows.num_rows:
            return Output(_joined(outputs))
        sides = [self._side(rows, keys, at, now.frontier) for at in range(2)]
        left, right = sides
        # Right rows meet the left ones of earlier batches; left rows meet all right ones: each pair once.
        for side, other in ((1, 0), (0, 1)):
            mine = sides[side]
            for pairs in self._pairs(mine, stored[other], side):
                outputs.append(pairs.table())
                mine.matched[pairs.rows[0]] = True
                self._note_matched(stored[other].table, other, pairs.rows[1])
            mine.store(stored[side], self.bounds, MATCHED if side in OUTER[self.how] else None)
        late = [np.asarray(side.late) for side in sides]
        behind = np.sort(np.concatenate(late))
        return Output(
            _joined(outputs),
            rows.take(pa.array(behind)) if behind.size else None,
            newest_by_input=(left.newest, right.newest),
        )

    def _evict(self, stored: list[Spans], frontier: int | None) -> list[pa.Table]:
        if frontier is None:
            return []
        over = [each.before(self.bounds.closed(frontier, side)) for side, each in enumerate(stored)]
        alone = [self._alone(stored[side].table, over[side], side) for side in OUTER[self.how]]
        for each, rows in zip(stored, over, strict=True):
            each.table.discard(rows)
        return [each for each in alone if each.num_rows]

    def _alone(self, table: Table, rows: Words, side: int) -> pa.Table:
        """Those of these rows of one side that have had no partner, with nulls for the other side."""
        rows = rows[~table.column(MATCHED)[rows]]
        columns = dict(zip(self.key.names, table.keys(rows), strict=False))
        columns |= {name: table.get(name, rows) for name in self.kept[side]}
        nothing = {field.name: pa.nulls(rows.size, field.type) for field in self.output if field.name not in columns}
        return pa.Table.from_arrays([(columns | nothing)[name] for name in self.output.names], schema=self.output)

    def _side(self, rows: pa.Table, keys: Keys, side: int, frontier: int | None) -> JoinSide:
        """The rows of one input that are in time, without the prefix of their names."""
        at = np.flatnonzero(rows[SIDE].to_numpy() == side)
        names = [f"{SIDES[side]}.{name}" for name in (self.time[side], *self.columns[side])]
        mine = rows.select(dict.fromkeys(names)).take(pa.array(at))
        times, has = times_of(mine, names[0])
        good = has if frontier is None else has & ~self.bounds.is_late(times, frontier)
        newest = newest_of(mine, names[0]) if at.size else None
        kept = np.flatnonzero(good)
        if kept.size < at.size:
            mine, times = mine.take(pa.array(kept)), times[kept]
        columns = self.key.decode(keys.take(at[kept]))
        named = mine.select(names[1:]).rename_columns(self.kept[side]).combine_chunks()
        return JoinSide(columns, times, named, at[~good], newest, np.zeros(times.size, np.bool_))

    def _pairs(self, mine: JoinSide, others: Spans, side: int) -> Iterator[Pairs]:
        """Pairs of these rows, `rows[0]`, with those stored of the other side, `rows[1]`."""
        if not mine.times.size:
            return
        low, high = self.bounds.partners(side)
        which, spans = self._spans(mine.times, low, high)
        lookup = others.find([each.take(pa.array(which)) for each in mine.columns], spans)
        readers = self._readers(mine, others.table, lookup.rows, side)
        for rows in self._near(lookup, which, mine.times[which], others.table, 1 - side):
            pairs = Pairs(self.output, readers, rows)
            if self.where is not None:
                pairs = pairs.only(kept_by(self.where, pairs))
            if pairs.num_rows:
                yield pairs

    def _spans(self, times: Words, low: int, high: int) -> tuple[Words, Words]:
        """For each row the spans its partners may be in, by row number and start of the span."""
        span = self.bounds.span
        if self.bounds.window is not None:
            return np.arange(times.size), times - times % span
        first, last = (times + low) // span, (times + high) // span
        which, numbers = ranges(first, last + 1)
        return which, numbers * span

    def _near(
        self, lookup: Lookups, which: Words, times: Words, table: Table, side: int
    ) -> Iterator[tuple[Words, Words]]:
        """Looking and stored rows that are near enough in time, in parts of at most `MOST_PAIRS` or of one look-up."""
        stored = np.zeros(lookup.rows.size, np.int64)
        if self.bounds.window is None:
            time = self.kept[side][self.columns[side].index(self.time[side])]
            stored = table.column(time)[lookup.rows].astype(np.int64, copy=False)
        else:
            times = np.zeros_like(times)
        near = (lookup.starts, lookup.stops, times, stored, *self.bounds.partners(1 - side))
        counts = np.empty(lookup.starts.size, np.int64)
        count_pairs(*near, counts)
        ends = np.cumsum(counts)
        first = 0
        while first < counts.size:
            before = int(ends[first - 1]) if first else 0
            last = max(first + 1, int(np.searchsorted(ends, before + MOST_PAIRS, side="right")))
            size = int(ends[last - 1]) - before
            if size:
                rows, partners = np.empty(size, np.int64), np.empty(size, np.int64)
                fill_pairs(*near, first, last, which, lookup.rows, rows, partners)
                yield rows, partners
            first = last

    def _readers(self, mine: JoinSide, stored: Table, among: Words, side: int) -> dict[str, tuple[Reader, int]]:
        """The reader of each output column, and whether it reads these rows (0) or the stored ones (1)."""
        readers = {name: (_taking(column), 0) for name, column in zip(self.key.names, mine.columns, strict=True)}
        readers |= {name: (_taking(whole_column(mine.rows[name])), 0) for name in self.kept[side]}
        return readers | {name: (stored.reader(name, among), 1) for name in self.kept[1 - side]}

    def _note_matched(self, table: Table, side: int, rows: Words) -> None:
        if side in OUTER[self.how]:
            rows = np.unique(rows)
            new = rows[~table.column(MATCHED)[rows]]
            table.column(MATCHED)[new] = True
            table.mark(new)

    def _output(self, input: tuple[pa.Schema, pa.Schema]) -> pa.Schema:
        fields = [pa.field(name, type_) for name, type_ in self.key.fields]
        fields += [pa.field(name, input[0].field(name).type) for name in self.columns[0]]
        taken = {field.name for field in fields}
        for name in self.columns[1]:
            called = f"{name}{AGAIN}" if name in taken else name
            if called in taken or (called != name and called in self.columns[1]):
                raise InvalidOption(
                    f"the right column {name!r} would be called {called!r}, which is there already; rename it"
                )
            fields.append(pa.field(called, input[1].field(name).type))
        return pa.schema(fields)


@dataclass
class JoinSide:
    """The rows of one input that are in time: key, times, other columns; and which came late, and the newest time."""

    columns: list[pa.Array]
    times: Words
    rows: pa.Table
    late: Words
    newest: int | None
    matched: Flags

    def store(self, spans: Spans, bounds: Bounds, matched: str | None = None) -> None:
        """Remember the rows, and whether they had a partner."""
        if self.times.size:
            rows = self.rows if matched is None else self.rows.append_column(matched, pa.array(self.matched))
            spans.append(self.columns, self.times - self.times % bounds.span, rows)


def _joined(tables: list[pa.Table]) -> pa.Table | None:
    return pa.concat_tables(tables) if tables else None


def _taking(column: pa.Array) -> Reader:
    return lambda rows: column.take(pa.array(rows))
