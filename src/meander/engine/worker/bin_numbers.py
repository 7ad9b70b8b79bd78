"""A whole number for each bin, as reports carry it: of a worker's many bins most have none, and that costs nothing.

On the way it is text: where the numbers are, as the way from one to the next, and the numbers, each in as few bytes as
the largest needs.
"""

from __future__ import annotations

from binascii import a2b_base64, b2a_base64
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Numbers = NDArray[np.int64]
NOTHING: Numbers = np.zeros(0, np.int64)
WIDTHS = (1, 2, 4)
"""Bytes of a number that is not negative; 8 where they are too few."""


class BinNumbers:
    """Numbers of bins, 0 for those that are not there. Of a report they are read when somebody asks for one.

    >>> BinNumbers.of([0, 7, 0, 9])
    BinNumbers(4, [1, 3], [7, 9])
    """

    def __init__(self, size: int, bins: Numbers = NOTHING, values: Numbers = NOTHING) -> None:
        """Numbers of these bins, which ascend."""
        self.size = size
        self.total = int(values.sum()) if values.size else 0
        self._fields: Sequence[int | str] | None = None
        self._pair = bins, values

    @classmethod
    def of(cls, numbers: ArrayLike) -> BinNumbers:
        """The same numbers, from an array with one for each bin."""
        everything = np.asarray(numbers, np.int64)
        bins = everything.nonzero()[0]
        return cls(everything.size, bins, everything[bins])

    @classmethod
    def at(cls, size: int, bins: Numbers, values: Numbers) -> BinNumbers:
        """The numbers of these bins, which ascend; those that are 0 are left out."""
        there = values != 0
        return cls(size, bins, values) if there.all() else cls(size, bins[there], values[there])

    @classmethod
    def count(cls, bins: NDArray[Any], size: int) -> BinNumbers:
        """How often each bin is there."""
        if bins.size * 8 < size:
            there, counts = np.unique(bins, return_counts=True)
            return cls(size, there.astype(np.int64), counts.astype(np.int64))
        return cls.of(np.bincount(bins, minlength=size))

    @property
    def bins(self) -> Numbers:
        """The bins that have a number, ascending."""
        return self._read[0]

    @property
    def values(self) -> Numbers:
        """The numbers of these."""
        return self._read[1]

    def __repr__(self) -> str:
        return f"BinNumbers({self.size}, {self.bins.tolist()}, {self.values.tolist()})"

    def to_json(self) -> list[int | str]:
        """The numbers as they travel."""
        bins, values = self._read
        if not bins.size:
            return [self.size]
        first, last = int(bins[0]), int(bins[-1])
        is_run = last - first + 1 == bins.size
        where = first if is_run else _to_text(np.diff(bins, prepend=0))
        return [self.size, self.total, where, _to_text(values)]

    @classmethod
    def from_json(cls, fields: Sequence[int | str]) -> BinNumbers:
        """What `to_json` wrote."""
        numbers = cls(int(fields[0]))
        if len(fields) > 1:
            numbers.total, numbers._fields = int(fields[1]), fields[2:]
        return numbers

    @property
    def _read(self) -> tuple[Numbers, Numbers]:
        fields = self._fields  # another thread may be reading them too
        if fields is not None:
            where, values = fields[0], _from_text(str(fields[1]))
            bins = np.arange(where, where + values.size) if isinstance(where, int) else np.cumsum(_from_text(where))
            self._pair, self._fields = (bins, values), None
        return self._pair


def summed(numbers: Sequence[BinNumbers], size: int) -> Numbers:
    """The sum by bin, as an array with a number for each."""
    total = np.zeros(size, np.int64)
    for each in numbers:
        total[each.bins] += each.values  # no bin is there twice
    return total


def highest(numbers: Sequence[BinNumbers], size: int) -> Numbers:
    """The highest number by bin, of numbers that are not negative, as an array."""
    most = np.zeros(size, np.int64)
    for each in numbers:
        most[each.bins] = np.maximum(most[each.bins], each.values)
    return most


def _to_text(values: Numbers) -> str:
    least, most = int(values.min()), int(values.max())
    width = next((each for each in WIDTHS if least >= 0 and most < 1 << 8 * each), 8)
    return f"{width}{b2a_base64(values.astype(_kind(width)).tobytes(), newline=False).decode()}"


def _from_text(text: str) -> Numbers:
    return np.frombuffer(a2b_base64(text[1:]), _kind(int(text[0]))).astype(np.int64)


def _kind(width: int) -> str:
    return "<i8" if width == 8 else f"<u{width}"
