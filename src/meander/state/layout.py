"""The layout of a bin: the fields of the directory, and the steps in which extents grow.

A bin has two extents. The first holds, one after the other, for `capacity` rows:

    index     capacity * 4/3 + 1 entries: 32 bits of the key's hash << 32 | row + 1, or 0; linear probing, in order of
              the highest bits that do not choose the bin: keys that come by hash go through it from left to right
    rows      `width` words each: the key's word or reference, and one word or reference for each value
    order     one word each, and the lowest word of each 32 rows (only in tables that have an order)
    marks     `marks` bytes each: bit 0 says that the row is there, bit c + 1 that value c is not null

The second is the heap: the records that references of this bin point to. A row that is deleted leaves a gap that the
next new row fills; the gaps are chained by the word where a key would be.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from meander.route.hashing import bits_of
from meander.state.extents import GRANULE
from meander.state.spec import TableSpec, is_record

Words = NDArray[np.int64]

HELD, ROWS, HIGH, GAP, CAPACITY, START, WORDS, HEAP, HEAP_WORDS, USED, GARBAGE, LOWEST = range(12)
"""A bin in the directory: whether it is held; its rows, the row behind the last, the first gap + 1 and the
capacity in rows; its extent and its words; its heap, its words, the words in use and those without a reference; and
the lowest value of the order column."""

FIELDS = 12
BLOCK = 32
NEVER = np.iinfo(np.int64).max

FIRST_ROWS, FIRST_HEAP = 4.0, 8.0
GROWTH = 1.5
GOLDEN = 0.6180339887498949


@dataclass(frozen=True)
class Layout:
    """The shape of a table's rows."""

    width: int
    marks: int
    ordered: bool
    wide: bool
    shift: int
    records: tuple[int, ...]

    @classmethod
    def of(cls, spec: TableSpec, bins: int) -> Layout:
        """The layout of a table in so many bins."""
        records = tuple(at for at, (_, type_) in enumerate(spec.values) if is_record(type_))
        values = len(spec.values)
        # The hash of a key with trailing columns says nothing about its bin.
        shift = bits_of(bins) if spec.key.leading is None else 0
        return cls(1 + values, (values + 8) // 8, spec.order is not None, spec.key.wide, shift, records)

    @property
    def shape(self) -> Words:
        """Width, bytes of marks, whether there is an order, whether keys are records, the hash's bits to skip."""
        return np.array([self.width, self.marks, self.ordered, self.wide, self.shift], dtype=np.int64)

    def extent_words(self, capacity: Words) -> Words:
        """The words of an extent for so many rows; none for no rows."""
        index = capacity + capacity // 3 + 1
        order = capacity + -(-capacity // BLOCK) if self.ordered else 0
        words = index + capacity * self.width + order + -(-capacity * self.marks // 8)
        return np.where(capacity > 0, granules(words), 0)


def granules(words: Words) -> Words:
    """Round up to whole granules."""
    return -(-words // GRANULE) * GRANULE


def room(bins: Words, wanted: Words, first: float) -> Words:
    """The smallest step of each bin's ladder that holds the wanted size; 0 where that is 0.

    A ladder's steps are a factor apart, and each bin's begins elsewhere, so that bins of equal size do not all grow in
    the same batch.
    """
    phase = bins * GOLDEN % 1.0
    base = first * GROWTH**phase
    step = np.ceil(np.log(np.maximum(wanted / base, 1.0)) / np.log(GROWTH))
    size = np.ceil(base * GROWTH**step).astype(np.int64)
    short = size < wanted
    size[short] = np.ceil(base[short] * GROWTH ** (step[short] + 1)).astype(np.int64)
    return np.where(wanted > 0, size, 0)
