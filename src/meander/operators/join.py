"""Pairs of rows of two streams that have the same key and are near each other in event time, each once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from meander.errors import InvalidOption
from meander.operators.conform import are_like
from meander.operators.custom import SIDE, SIDES, paired
from meander.operators.durations import microseconds
from meander.operators.join_kernel import count_pairs, fill_pairs
from meander.operators.operator import Now, Output, Stage, key_of, listing
from meander.operators.ordering import Flags, Words
from meander.operators.times import newest_of, time_type, times_of
from meander.operators.window import Duration
from meander.route.columns import whole_column
from meander.route.keys import Keys
from meander.state.multimap import ranges
from meander.state.spans import Found, Spans
from meander.values import kind

if TYPE_CHECKING:
    from meander.state.table import Table

Where: TypeAlias = Callable[[pa.Table], Any] | pc.Expression

HOWS = {"inner": "inner", "left": "left", "leftouter": "left", "left_outer": "left"}

MATCHED = "__matched"
"""Whether a row of the left side has had a partner; kept where rows without one come out too."""

AGAIN = "_right"
"""What is put behind the name of a right column where the left one has it too."""

SPANS = 2
"""Into how many spans the time is cut in which partners can come: fewer are faster to look up, more are forgotten
sooner."""

MOST_PAIRS = 1 << 21
"""So many pairs are looked at in one go: a hot key has more of them than fit into memory."""


@dataclass(frozen=True)
class Bounds:
    """When rows match: the right one at most `before` us earlier and `after` us later, or both in one `window` (us)."""

    before: int
    after: int
    window: int | None = None

    @classmethod
    def of(cls, within: Duration | tuple[Duration, Duration] | None, window: Duration | None) -> Bounds:
        """Read what a user has written."""
        if (within is None) == (window is None):
            raise InvalidOption(
                'a join needs within="10 minutes" (rows at most so far apart) or window="10 minutes" (rows of one '
                "window); give one of them"
            )
        if window is not None:
            return cls(0, 0, microseconds("window", window, least=1))
        if isinstance(within, tuple | list):
            if len(within) != 2:
                raise InvalidOption(
                    f"within is {within!r}; a pair says how much earlier and how much later a right row may be"
                )
            return cls(microseconds("within", within[0]), microseconds("within", within[1]))
        either = microseconds("within", within)
        return cls(either, either)

    @property
    def span(self) -> int:
        """How long a span is, in microseconds."""
        return self.window or max(1, -(-(self.before + self.after) // SPANS))

    def closed(self, frontier: int, side: int) -> int:
        """Spans of this side that begin before this hold nothing that a row from the frontier on could match."""
        return frontier - (self.after, self.before)[side] - self.span + 1

    def is_late(self, times: Words, frontier: int) -> Flags:
        """Whether rows are before the frontier: in a closed window, or where others may have been forgotten."""
        if self.window is None:
            return times < frontier
        return times - times % self.window + self.window <= frontier

    def partners(self, side: int) -> tuple[int, int]:
        """How much later the partners of a row of this side may be, at least and at most."""
        return (-self.before, self.after) if side == 0 else (-self.after, self.before)


class Join(Stage):
    """Every pair of a left and a right row with the same key that are near in event time, once, in whatever order.

    A row pairs with the rows of the other side that came before it or with it. The frontier stays `lateness` behind
    the newest time of the input that is behind: rows before it are late, and what no row after it can match is
    forgotten. With `how="left"`, a left row without a partner comes out then, with nulls for the right columns.

    The columns are those of the key, of the left rows and of the right ones, which have `_right` behind their name
    where the left has it too. `where` is a function of a table of such pairs that returns which of them count, or an
    expression of `pyarrow.compute`.
    """

    name = "join"
    stores = SIDES

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
        self.how = _how(how)
        self.time = _times(input, time)
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
        values = [
            tuple((name, schema.field(name).type) for name in names)
            for schema, names in zip(input, self.columns, strict=True)
        ]
        if self.how == "left":
            values[0] += ((MATCHED, pa.bool_()),)
        self.tables = (Spans.spec("left", self.key, values[0]), Spans.spec("right", self.key, values[1]))
        self.output = self._output(input)
        self.where = where
        self._check_where()

    @property
    def options(self) -> dict[str, Any]:
        """When rows match, and which come out."""
        bounds = self.bounds
        return {
            "before_us": bounds.before, "after_us": bounds.after, "window_us": bounds.window,
            "span_us": bounds.span, "how": self.how, "time": list(self.time),
        }  # fmt: skip

    def run(self, rows: pa.Table, keys: Keys, tables: Mapping[str, Table], now: Now) -> Output:
        """Forget what is over, pair the rows with those that are stored and with each other, and store them."""
        stored = [Spans(tables[side]) for side in SIDES]
        found = self._evict(stored, now.frontier)
        if not rows.num_rows:
            return Output(_joined(found))
        sides = [self._side(rows, keys, at, now.frontier) for at in range(2)]
        left, right = sides
        # Right rows meet the left ones of earlier batches; left rows meet all right ones: each pair once.
        for pairs, at in self._pairs(right, stored[0], 1):
            found.append(pairs)
            self._note_matched(stored[0].table, at)
        right.store(stored[1], self.bounds)
        for pairs, at in self._pairs(left, stored[1], 0):
            found.append(pairs)
            left.matched[at] = True
        left.store(stored[0], self.bounds, MATCHED if self.how == "left" else None)
        late = [np.asarray(side.late) for side in sides]
        behind = np.sort(np.concatenate(late))
        return Output(
            _joined(found),
            rows.take(pa.array(behind)) if behind.size else None,
            newest_by_input=(left.newest, right.newest),
        )

    def _evict(self, stored: list[Spans], frontier: int | None) -> list[pa.Table]:
        if frontier is None:
            return []
        left, right = (each.before(self.bounds.closed(frontier, at)) for at, each in enumerate(stored))
        table = stored[0].table
        alone = []
        if self.how == "left" and left.size:
            rows = left[~table.column(MATCHED)[left]]
            columns = [*table.keys(rows)[: len(self.key.fields)], *(table.get(name, rows) for name in self.columns[0])]
            nothing = [pa.nulls(rows.size, each.type) for each in list(self.output)[len(columns) :]]
            alone = [pa.Table.from_arrays([*columns, *nothing], schema=self.output)] if rows.size else []
        table.discard(left)
        stored[1].table.discard(right)
        return alone

    def _side(self, rows: pa.Table, keys: Keys, side: int, frontier: int | None) -> _Side:
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
        named = mine.select(names[1:]).rename_columns(self.columns[side]).combine_chunks()
        return _Side(columns, times, named, at[~good], newest, np.zeros(times.size, np.bool_))

    def _pairs(self, mine: _Side, others: Spans, side: int) -> Iterator[tuple[pa.Table, Words]]:
        """Pairs of these rows with those stored of the other side, and for each the left row's place.

        The place is that of a row of `mine` for the left side and that in the stored table for the right.
        """
        if not mine.times.size:
            return
        low, high = self.bounds.partners(side)
        which, spans = self._spans(mine.times, low, high)
        found = others.find([each.take(pa.array(which)) for each in mine.columns], spans)
        for lookups, at in self._near(found, mine.times[which], others.table, 1 - side, low, high):
            rows, partners = which[lookups], found.rows[at]
            both = (rows, partners) if side == 0 else (partners, rows)
            pairs = self._told(mine, others.table, rows, partners, side)
            if self.where is not None:
                kept = self._kept(pairs)
                pairs, both = pairs.filter(pa.array(kept)), (both[0][kept], both[1][kept])
            if pairs.num_rows:
                yield pairs, both[0]

    def _spans(self, times: Words, low: int, high: int) -> tuple[Words, Words]:
        """For each row the spans its partners may be in, by row number and start of the span."""
        span = self.bounds.span
        if self.bounds.window is not None:
            return np.arange(times.size), times - times % span
        first, last = (times + low) // span, (times + high) // span
        which, numbers = ranges(first, last + 1)
        return which, numbers * span

    def _near(
        self, found: Found, times: Words, table: Table, side: int, low: int, high: int
    ) -> Iterator[tuple[Words, Words]]:
        """Look-ups and found rows that are near enough in time, in parts of at most `MOST_PAIRS` or of one look-up."""
        stored = np.zeros(found.rows.size, np.int64)
        if self.bounds.window is None:
            stored = table.column(self.time[side])[found.rows].astype(np.int64, copy=False)
        else:
            times = np.zeros_like(times)
        counts = np.empty(found.starts.size, np.int64)
        count_pairs(found.starts, found.stops, times, stored, low, high, counts)
        ends = np.cumsum(counts)
        first = 0
        while first < counts.size:
            before = int(ends[first - 1]) if first else 0
            last = max(first + 1, int(np.searchsorted(ends, before + MOST_PAIRS, side="right")))
            size = int(ends[last - 1]) - before
            if size:
                lookups, rows = np.empty(size, np.int64), np.empty(size, np.int64)
                fill_pairs(found.starts, found.stops, times, stored, low, high, first, last, lookups, rows)
                yield lookups, rows
            first = last

    def _told(self, mine: _Side, table: Table, rows: Words, partners: Words, side: int) -> pa.Table:
        """The columns of the output for pairs of my rows and stored ones."""
        at = pa.array(rows)
        key = [each.take(at) for each in mine.columns]
        own = [whole_column(mine.rows[name]).take(at) for name in self.columns[side]]
        other = [table.get(name, partners) for name in self.columns[1 - side]]
        return pa.Table.from_arrays([*key, *own, *other] if side == 0 else [*key, *other, *own], schema=self.output)

    def _kept(self, pairs: pa.Table) -> Flags:
        """Which pairs the user's condition lets through; null is no."""
        if isinstance(self.where, pc.Expression):
            number = pa.array(np.arange(pairs.num_rows))
            left = pairs.append_column("__pair", number).filter(self.where)["__pair"].to_numpy()
            kept = np.zeros(pairs.num_rows, np.bool_)
            kept[left] = True
            return kept
        assert self.where is not None
        answer = self.where(pairs)
        if isinstance(answer, pa.Array | pa.ChunkedArray):
            answer = whole_column(answer).fill_null(False).to_numpy(zero_copy_only=False)
        kept = np.asarray(answer)
        if kept.dtype != np.bool_ or kept.shape != (pairs.num_rows,):
            raise InvalidOption(
                f"where returned {kept.dtype} of shape {kept.shape} for {pairs.num_rows} pairs; return one boolean each"
            )
        return kept

    def _note_matched(self, table: Table, rows: Words) -> None:
        if self.how == "left":
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

    def _check_where(self) -> None:
        if self.where is None or callable(self.where):
            return
        if not isinstance(self.where, pc.Expression):
            raise InvalidOption(
                f"where is {kind(self.where)}; give a function of a table of pairs, or an expression of pyarrow.compute"
            )
        try:
            self.output.empty_table().filter(self.where)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowKeyError) as error:
            reason = str(error).partition("\n")[0]
            raise InvalidOption(
                f"where cannot be used: {reason}; the columns are {listing(self.output.names)}"
            ) from None


@dataclass
class _Side:
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


def _how(how: object) -> str:
    if isinstance(how, str) and how in HOWS:
        return HOWS[how]
    hint = "; swap the streams" if how in ("right", "rightouter", "right_outer") else ""
    raise InvalidOption(f"how is {how!r}; a join is inner or left{hint}")


def _times(input: tuple[pa.Schema, pa.Schema], time: object) -> tuple[str, str]:
    """The column of event time of each side: as named, or the only timestamp there is."""
    named = tuple(time) if isinstance(time, tuple | list) else (time, time)
    if len(named) != 2:
        raise InvalidOption(f"time is {time!r}; name one column, or one for each side")
    found = []
    for side, schema, name in zip(SIDES, input, named, strict=True):
        if name is None:
            stamps = [field.name for field in schema if pa.types.is_timestamp(field.type)]
            if len(stamps) != 1:
                raise InvalidOption(
                    f"the {side} stream has {len(stamps)} timestamp columns ({listing(stamps)}); say with time= "
                    "which of them is event time"
                )
            name = stamps[0]
        time_type(schema, name, f"time of the {side} stream")
        found.append(str(name))
    return found[0], found[1]
