"""Which rows of two streams pair: bounds and columns of event time, the kind of join, and pairs as `where` sees them.

Candidate pairs have columns that are read on demand.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from meander.errors import InvalidOption
from meander.kernel import kernel
from meander.operators.custom import SIDES
from meander.operators.operator import listing
from meander.operators.ordering import Flags, Words
from meander.operators.times import Duration, microseconds, time_type
from meander.options import kind
from meander.route.columns import whole_column

HOWS = {
    "inner": "inner",
    "left": "left", "leftouter": "left", "left_outer": "left",
    "right": "right", "rightouter": "right", "right_outer": "right",
    "full": "full", "fullouter": "full", "full_outer": "full", "outer": "full",
}  # fmt: skip
"""The kinds of join, by all of Spark's names for them."""

OUTER = {"inner": (), "left": (0,), "right": (1,), "full": (0, 1)}
"""The sides whose rows come out without a partner too: 0 is the left one, 1 the right."""

SPANS = 2
"""Into how many spans the time is cut in which partners can come: fewer are faster to look up, more are forgotten
sooner."""


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


def how_of(how: object) -> str:
    """Which rows come out: "inner", "left", "right" or "full"."""
    if isinstance(how, str) and how in HOWS:
        return HOWS[how]
    raise InvalidOption(f"how is {how!r}; a join is inner, left, right or full")


def columns_of_sides(on: object) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The columns to join on, of the left side and of the right."""
    if isinstance(on, Mapping):
        pairs = [*on.items()]
    else:
        names = [on] if isinstance(on, str) else [*on] if isinstance(on, Sequence) else []
        pairs = [(name, name) for name in names]
    if not pairs or not all(isinstance(name, str) for pair in pairs for name in pair):
        raise InvalidOption(f'on is {on!r}; name columns as in on="key", on=["a", "b"] or on={{"left": "right"}}')
    return tuple(left for left, _ in pairs), tuple(right for _, right in pairs)


def times_of_sides(input: tuple[pa.Schema, pa.Schema], time: object) -> tuple[str, str]:
    """The column of event time of each side: as named, or the only timestamp there is."""
    named = tuple(time) if isinstance(time, tuple | list) else (time, time)
    if len(named) != 2:
        raise InvalidOption(f"time is {time!r}; name one column, or one for each side")
    names = []
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
        names.append(str(name))
    return names[0], names[1]


Where: TypeAlias = "Callable[[Pairs], Any] | pc.Expression"

Reader: TypeAlias = Callable[[Words], pa.Array]


class Pairs:
    """Pairs of rows, with the columns of the join's output: `pairs["x"]` is one of them.

    A column is built when it is first read: a condition mostly reads few of the columns, and keeps few of the pairs.
    """

    def __init__(self, schema: pa.Schema, readers: Mapping[str, tuple[Reader, int]], rows: tuple[Words, Words]) -> None:
        self.schema, self.rows = schema, rows
        self._readers = readers
        self._read: dict[str, pa.Array] = {}

    @property
    def num_rows(self) -> int:
        """How many pairs there are."""
        return self.rows[0].size

    @property
    def column_names(self) -> list[str]:
        """The names of the columns."""
        return list(self.schema.names)

    def __getitem__(self, name: str) -> pa.Array:
        """A column, by its name."""
        if name not in self._readers:
            raise KeyError(f"there is no column {name!r} in the pairs; there are: {listing(self.schema.names)}")
        if name not in self._read:
            read, side = self._readers[name]
            self._read[name] = read(self.rows[side])
        return self._read[name]

    column = __getitem__

    def table(self) -> pa.Table:
        """All columns."""
        return pa.Table.from_arrays([self[name] for name in self.schema.names], schema=self.schema)

    def only(self, kept: Flags) -> Pairs:
        """The marked pairs."""
        at = np.flatnonzero(kept)
        if at.size == kept.size:
            return self
        return Pairs(self.schema, self._readers, (self.rows[0][at], self.rows[1][at]))


def check_where(where: object, output: pa.Schema) -> None:
    """Refuse a condition that is neither a function nor an expression over these columns."""
    if where is None or callable(where):
        return
    if not isinstance(where, pc.Expression):
        raise InvalidOption(f"where is {kind(where)}; give a function of pairs, or an expression of pyarrow.compute")
    try:
        output.empty_table().filter(where)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowKeyError, pa.ArrowTypeError) as error:
        reason = str(error).partition("\n")[0]
        raise InvalidOption(f"where cannot be used: {reason}; the columns are {listing(output.names)}") from None


def kept_by(where: Where, pairs: Pairs) -> Flags:
    """Which pairs a condition lets through; null is no."""
    if isinstance(where, pc.Expression):
        return _kept_by_expression(where, pairs)
    answer = where(pairs)
    if isinstance(answer, pa.Array | pa.ChunkedArray):
        answer = whole_column(answer)
        answer = (answer.fill_null(False) if pa.types.is_boolean(answer.type) else answer).to_numpy(
            zero_copy_only=False
        )
    kept = np.asarray(answer)
    if kept.dtype != np.bool_ or kept.shape != (pairs.num_rows,):
        raise InvalidOption(
            f"where returned {kept.dtype} of shape {kept.shape} for {pairs.num_rows} pairs; return one boolean each"
        )
    return kept


def _kept_by_expression(where: pc.Expression, pairs: Pairs) -> Flags:
    # The text of an expression has the names of all its fields, and one too many only costs time; a field may also be
    # meant by its place among all.
    text = str(where)
    names = [name for name in pairs.column_names if name in text or "FieldPath" in text]
    number = "_".join(["", *pairs.column_names])
    table = pa.table([pairs[name] for name in names] + [pa.array(np.arange(pairs.num_rows))], [*names, number])
    kept = np.zeros(pairs.num_rows, np.bool_)
    kept[table.filter(where)[number].to_numpy()] = True
    return kept


@kernel
def count_pairs(starts: Words, stops: Words, times: Words, stored: Words, low: int, high: int, counts: Words) -> None:
    """Count for each look-up the stored rows from starts to stops whose time less its own lies in low .. high."""
    for k in range(starts.size):
        count, time = 0, times[k]
        for at in range(starts[k], stops[k]):
            count += low <= stored[at] - time <= high
        counts[k] = count


@kernel
def fill_pairs(
    starts: Words, stops: Words, times: Words, stored: Words, low: int, high: int, first: int, last: int,
    rows_of_lookups: Words, rows_of_stored: Words, rows: Words, partners: Words,
) -> None:  # fmt: skip
    """Write the pairs of look-ups first .. last - 1 that `count_pairs` has counted: looking row and stored row."""
    n = 0
    for k in range(first, last):
        time, row = times[k], rows_of_lookups[k]
        for at in range(starts[k], stops[k]):
            if low <= stored[at] - time <= high:
                rows[n] = row
                partners[n] = rows_of_stored[at]
                n += 1
