"""Many values of one key in one binary: the state of aggregates that keep values, as one column of a table.

count (4 bytes) | a word for each value (8 bytes each), where values are in order of something | the values

Values of fixed width are words of 8 bytes; texts and binaries are their lengths (4 bytes each), then their bytes. All
numbers are little endian. Equal values in equal order are equal bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from meander.operators.ordering import Words, refinements, sorted_rows
from meander.route.columns import Octets, column_of_octets, column_of_words, is_octets, octets_of, words_of
from meander.state.spans import positions


@dataclass(frozen=True)
class Bags:
    """Values of several groups, by group: whose each is, the word it is in order of, and the value.

    `of` ascends; `by` is None where values are in order of themselves. No value is null.
    """

    of: Words
    by: Words | None
    values: pa.Array

    @classmethod
    def of_rows(cls, of: Words, by: Words | None, values: pa.Array) -> Bags:
        """The values of rows that are in any order, each in the group that `of` says; nulls are left out."""
        if values.null_count:
            valid = values.is_valid().to_numpy(zero_copy_only=False)
            of, by, values = of[valid], None if by is None else by[valid], values.drop_null()
        columns = [(pa.array(of), False), *([] if by is None else [(pa.array(by), False)]), (values, False)]
        order = sorted_rows(columns)
        return cls(of[order], None if by is None else by[order], values.take(pa.array(order)))

    def distinct(self) -> Bags:
        """Each value of a group once."""
        new = np.zeros(self.of.size, np.bool_)
        new[:1] = True
        for key in (self.of, *refinements(self.values)):
            new[1:] |= key[1:] != key[:-1]
        return self._take(np.flatnonzero(new))

    def first(self, count: int) -> Bags:
        """The first so many values of each group."""
        return self._take(np.flatnonzero(positions(self.of) < count))

    def counts(self, groups: int) -> Words:
        """How many values each of so many groups has."""
        return np.bincount(self.of, minlength=groups).astype(np.int64)

    def encode(self, groups: int) -> pa.Array:
        """A binary for each of so many groups."""
        counts = self.counts(groups)
        pieces: list[tuple[Words, Octets]] = [(np.full(groups, 4), counts.astype("<i4").view(np.uint8))]
        if self.by is not None:
            pieces.append((8 * counts, self.by.astype("<i8").view(np.uint8)))
        if not is_octets(self.values.type):
            pieces.append((8 * counts, _as_words(self.values).astype("<i8").view(np.uint8)))
            return _woven(pieces)
        offsets, data = octets_of(self.values)
        lengths = np.diff(offsets)
        sizes = np.bincount(self.of, weights=lengths, minlength=groups).astype(np.int64)
        pieces += [(4 * counts, lengths.astype("<i4").view(np.uint8)), (sizes, data)]
        return _woven(pieces)

    @classmethod
    def decode(cls, binaries: pa.Array, kind: pa.DataType, has_by: bool) -> Bags:
        """The values in these binaries, each one a group; a null holds nothing."""
        groups = len(binaries)
        offsets, data = octets_of(binaries.fill_null(b"") if binaries.null_count else binaries)
        sizes, some = np.diff(offsets), np.diff(offsets) > 0
        counts = np.zeros(groups, np.int64)
        heads = offsets[:-1][some, None] + np.arange(4)
        counts[some] = data[heads].reshape(-1).view("<i4")
        lengths = [np.where(some, 4, 0), 8 * counts if has_by else 0 * counts, (4 if is_octets(kind) else 8) * counts]
        pieces = _unwoven(data, [*lengths, sizes - sum(lengths)])
        of = np.repeat(np.arange(groups), counts)
        by = pieces[1].view("<i8").astype(np.int64) if has_by else None
        if is_octets(kind):
            ends = np.append(0, np.cumsum(pieces[2].view("<i4"), dtype=np.int64))
            return cls(of, by, column_of_octets(ends, pieces[3], kind))
        return cls(of, by, _from_words(pieces[2].view("<i8").astype(np.int64), kind))

    def lists(self, groups: int) -> pa.Array:
        """The values of each of so many groups as a list, in order."""
        ends = np.append(0, np.cumsum(self.counts(groups))).astype(np.int32)
        return pa.ListArray.from_arrays(pa.array(ends), self.values, type=list_of(self.values.type))

    def _take(self, at: Words) -> Bags:
        return Bags(self.of[at], None if self.by is None else self.by[at], self.values.take(pa.array(at)))


def list_of(kind: pa.DataType) -> pa.DataType:
    """The type of a list of such values, as Spark calls its elements."""
    return pa.list_(pa.field("element", kind))


def _as_words(values: pa.Array) -> Words:
    if not pa.types.is_floating(values.type):
        return words_of(values)
    doubles = values.cast(pa.float64()).to_numpy()
    return np.where(np.isnan(doubles), np.nan, doubles).view(np.int64)


def _from_words(words: Words, kind: pa.DataType) -> pa.Array:
    if not pa.types.is_floating(kind):
        return column_of_words(words, kind)
    return pa.array(words.view(np.float64)).cast(kind)


def _woven(pieces: list[tuple[Words, Octets]]) -> pa.Array:
    """A binary for each group of its part of every piece, one behind the other."""
    lengths = np.column_stack([sizes for sizes, _ in pieces])
    which = _which(lengths)
    data = np.empty(which.size, np.uint8)
    for at, (_, content) in enumerate(pieces):
        data[which == at] = content
    return column_of_octets(np.append(0, np.cumsum(lengths.sum(axis=1))), data, pa.binary())


def _unwoven(data: Octets, lengths: list[Words]) -> list[Octets]:
    """The pieces that binaries were woven of, each in one."""
    which = _which(np.column_stack(lengths))
    return [np.ascontiguousarray(data[which == at]) for at in range(len(lengths))]


def _which(lengths: NDArray[np.int64]) -> NDArray[np.int8]:
    """For each byte of all binaries, which piece it is of."""
    return np.repeat(np.tile(np.arange(lengths.shape[1], dtype=np.int8), len(lengths)), lengths.reshape(-1))
