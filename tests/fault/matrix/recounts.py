"""Recounts that take one batch after the other, in plain Python; what can no longer change anything is forgotten."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

import pyarrow as pa

from fault.matrix.rows import MIDNIGHT, at, newest_second, seconds_of

Batch = tuple[pa.Table, ...]
Rows = Counter[tuple[Any, ...]]


class WindowCounts:
    """How many rows each key has had in each sliding window that is open."""

    def __init__(self, size_s: int, slide_s: int) -> None:
        self.size_s, self.slide_s = size_s, slide_s
        self.late = 0
        """How many rows have come when all of their windows were over."""
        self._counts: Counter[tuple[int, int]] = Counter()
        self._frontier: int | None = None

    def add(self, batch: Batch) -> Rows:
        """Count one batch more, and return what must be emitted with it."""
        (rows,) = batch
        changed = set()
        for key, second in seconds_of(rows):
            newest = second // self.slide_s * self.slide_s
            starts = range(newest - self.size_s + self.slide_s, newest + 1, self.slide_s)
            is_open = [start for start in starts if self._frontier is None or start + self.size_s > self._frontier]
            self.late += not is_open
            for start in is_open:
                self._counts[key, start] += 1
                changed.add((key, start))
        emitted = Counter((key, at(s), at(s + self.size_s), self._counts[key, s]) for key, s in changed)
        self._frontier = newest_second(rows, self._frontier)
        for key, start in [each for each in self._counts if each[1] + self.size_s <= self._frontier]:
            del self._counts[key, start]
        return emitted

    @property
    def kept(self) -> Rows:
        """The counts of the windows that are open."""
        return Counter((key, at(start), count) for (key, start), count in self._counts.items())


class JoinedPairs:
    """The pairs of rows of two sides with the same key that are near in time; rows are (key, time, number)."""

    def __init__(self, within_s: int, keep_s: int | None = None) -> None:
        self.within_s, self.keep_s = within_s, keep_s
        """Rows so much older than the newest of the side that is behind are forgotten; None: none is."""
        self.late = 0
        self._sides: tuple[dict[int, list[tuple[int, int]]], ...] = (defaultdict(list), defaultdict(list))
        self._newest = [0, 0]

    def add(self, batch: Batch) -> Rows:
        """Take one batch more, and return the pairs that its rows make with each other and with those before."""
        pairs: Rows = Counter()
        for side, rows in enumerate(batch):
            for key, time, number in zip(*(column.to_pylist() for column in rows.columns), strict=True):
                second = int((time - MIDNIGHT).total_seconds())
                for other, partner in self._sides[1 - side][key]:
                    if abs(other - second) <= self.within_s:
                        pairs[(key, number, partner) if side == 0 else (key, partner, number)] += 1
                self._sides[side][key].append((second, number))
                self._newest[side] = max(self._newest[side], second)
        if self.keep_s is not None:
            for side in self._sides:
                for key, known in side.items():
                    side[key] = [each for each in known if each[0] >= self.newest - self.keep_s]
        return pairs

    @property
    def newest(self) -> int:
        """The newest second of the side that is behind."""
        return min(self._newest)

    def since(self, second: int, side: int) -> Rows:
        """The rows of a side from a second on, without their times."""
        known = self._sides[side]
        return Counter((key, number) for key in known for time, number in known[key] if time >= second)
