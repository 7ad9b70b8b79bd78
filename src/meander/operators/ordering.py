"""Orders that do not depend on arrival: columns as words that sort as their values do, and the first row of groups.

As in Spark, NaN is larger than every number and texts compare by their bytes. A row without a value comes last,
whichever way the order runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from meander.route.columns import is_narrow, is_word, whole_column, words_of

Words = NDArray[np.int64]
Flags = NDArray[np.bool_]

LARGEST = np.iinfo(np.int64).max


@dataclass(frozen=True)
class Groups:
    """Which of a table's rows a batch concerns, and which of those each row of the batch belongs to.

    `rows` are row numbers of the table, each once; `of[i]` is the place in `rows` of the batch's row i.
    """

    rows: Words
    of: Words

    @classmethod
    def of_rows(cls, at: Words, size: int) -> Groups:
        """Return the groups of batch rows that stand at these rows of a table of so many."""
        rows = np.flatnonzero(np.bincount(at, minlength=size))
        if rows.size == size:
            return cls(rows, at)
        place = np.empty(size, dtype=np.int64)
        place[rows] = np.arange(rows.size)
        return cls(rows, place[at])

    def __len__(self) -> int:
        return self.rows.size


def words(column: pa.Array) -> Words:
    """A word for each value, in the order of the values within this column; anything where a value is null."""
    kind = column.type
    if is_narrow(kind) or is_word(kind):
        return words_of(column)
    if pa.types.is_floating(kind):
        return float_words(column.cast(pa.float64()).fill_null(0.0).to_numpy(zero_copy_only=False))
    if pa.types.is_null(kind):
        return np.zeros(len(column), dtype=np.int64)
    if pa.types.is_nested(kind):
        # A nested column alone hardly ever decides between rows; the order of its text is as good as any.
        column = pa.array([repr(each) for each in column.to_pylist()], pa.string())
    ranks = pc.rank(column, sort_keys="ascending", tiebreaker="dense")
    return np.asarray(ranks.to_numpy(zero_copy_only=False), dtype=np.int64)


def float_words(values: NDArray[np.float64]) -> Words:
    """Floats as words in the same order, all NaNs alike and largest."""
    bits = np.where(np.isnan(values), np.nan, values).view(np.int64)
    return bits ^ ((bits >> 63) & LARGEST)


def refinements(column: pa.Array, descending: bool = False) -> Iterator[Words]:
    """The arrays to compare rows by, the first one first: where a value is missing, then the value."""
    if column.null_count:
        missing = _missing(column)
        yield missing.astype(np.int64)
        yield np.where(missing, 0, _directed(words(column), descending))
    else:
        yield _directed(words(column), descending)


def first_of_groups(of: Words, groups: int, columns: Iterable[tuple[pa.Array, bool]]) -> Words:
    """The first row of each group in the order of these columns, each with whether it descends.

    A column is looked at only where earlier ones are equal. Every group must have a row. Rows that are equal in all
    columns are interchangeable.
    """
    rows = np.arange(of.size)
    for column, descending in columns:
        if rows.size == groups:
            break
        left = column if rows.size == of.size else column.take(pa.array(rows))
        every = np.arange(rows.size)
        for key in refinements(left, descending):
            group = of[rows[every]]
            least = np.full(groups, LARGEST)
            np.minimum.at(least, group, key[every])
            every = every[key[every] == least[group]]
        rows = rows[every]
    first = np.empty(groups, dtype=np.int64)
    first[of[rows][::-1]] = rows[::-1]
    return first


def sorted_rows(columns: Iterable[tuple[pa.Array, bool]]) -> Words:
    """The rows in the order of these columns, the first one first; each column with whether it descends.

    A column is looked at only for the rows that earlier columns leave equal.
    """
    order, equal = np.empty(0, dtype=np.int64), np.empty(0, dtype=np.bool_)
    for position, (column, descending) in enumerate(columns):
        if position == 0:
            order, equal = np.arange(len(column)), np.arange(len(column)) > 0
        tied = np.flatnonzero(equal | np.append(equal[1:], False)) if position else np.arange(len(column))
        if not tied.size:
            break
        rows, run = order[tied], np.cumsum(~equal)[tied]
        keys = list(refinements(column.take(pa.array(rows)) if position else column, descending))
        within = np.lexsort([*keys[::-1], run])
        order[tied] = rows[within]
        for key in keys:
            ordered = key[within]
            equal[tied[1:]] &= ordered[1:] == ordered[:-1]
    return order


def ascending(rows: pa.Table, names: Iterable[str]) -> Iterator[tuple[pa.Array, bool]]:
    """These columns of a table, each as one array, to be in ascending order."""
    for name in names:
        yield whole_column(rows[name]), False


def joined(first: pa.Array, second: pa.Array) -> pa.Array:
    """Two arrays of one type, one behind the other."""
    return pa.concat_arrays([first, second]) if len(first) else second


def same(first: pa.Array, second: pa.Array) -> Flags:
    """Where two arrays of one type are alike: both null, both NaN, or equal."""
    if pa.types.is_floating(first.type):
        first, second = (pa.array(words(each), mask=_missing(each)) for each in (first, second))
    alike = pc.or_kleene(pc.equal(first, second), pc.and_(first.is_null(), second.is_null()))
    return np.asarray(alike.fill_null(False).to_numpy(zero_copy_only=False), dtype=np.bool_)


def _missing(column: pa.Array) -> Flags:
    return np.asarray(column.is_null().to_numpy(zero_copy_only=False), dtype=np.bool_)


def _directed(keys: Words, descending: bool) -> Words:
    return ~keys if descending else keys
