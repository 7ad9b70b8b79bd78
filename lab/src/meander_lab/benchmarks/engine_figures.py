"""The arithmetic of `./dev bench engine`: a logarithmic histogram, quantiles, targets. No Spark may enter."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

STEPS = 32
"""Buckets of a histogram to a factor of two: a quantile is at most 2.2 % too high."""


class Histogram:
    """How many values lie in each of logarithmic buckets, and the largest value itself."""

    def __init__(self, least: float = 0.01, most: float = 1e7) -> None:
        self.least = least
        self.counts = np.zeros(math.ceil(math.log2(most / least) * STEPS) + 1, np.int64)
        self.largest = 0.0

    @property
    def total(self) -> int:
        """How many values there are."""
        return int(self.counts.sum())

    @property
    def edges(self) -> NDArray[np.float64]:
        """The upper edge of every bucket; a value on an edge is in the bucket below it."""
        return self.least * 2.0 ** (np.arange(len(self.counts)) / STEPS)

    def add(self, values: ArrayLike) -> None:
        """Put in these values; those below the least or above the most count in the outermost buckets."""
        latencies = np.asarray(values, np.float64)
        if not latencies.size:
            return
        at = np.searchsorted(self.edges, latencies, side="left")
        self.counts += np.bincount(np.minimum(at, len(self.counts) - 1), minlength=len(self.counts))
        self.largest = max(self.largest, float(latencies.max()))

    def quantile(self, share: float) -> float:
        """The smallest bucket edge, or the largest value, that at least this share of the values does not exceed."""
        if not self.total:
            return math.nan
        need = max(1, math.ceil(share * self.total - 1e-9))
        at = int(np.searchsorted(np.cumsum(self.counts), need))
        return min(float(self.edges[at]), self.largest)

    def ccdf(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The edges from the first bucket that is used to the last, and the share of the values above each."""
        used = np.flatnonzero(self.counts)
        if not used.size:
            return np.empty(0), np.empty(0)
        above = 1.0 - np.cumsum(self.counts) / self.total
        span = slice(max(0, used[0] - 1), used[-1] + 1)
        return self.edges[span], np.maximum(above[span], 0.0)


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest of the values that at least this share of them does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered) - 1e-9) - 1)]


def ratio_in_turn(left: Sequence[float], right: Sequence[float]) -> float:
    """The median of left / right over rounds that were run in turn, so that noise hits both."""
    return statistics.median(a / b for a, b in zip(left, right, strict=True))


def medians(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The median of every name over the rows that have it, in the order of their first sight."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: statistics.median(row[name] for row in rows if name in row) for name in names}


@dataclass(frozen=True)
class BenchTarget:
    """A measured figure beside what it should be at least, or at most."""

    what: str
    measured: float
    limit: float
    at_least: bool = False

    @property
    def met(self) -> bool:
        """Whether the figure is on the right side; one that was not measured is not."""
        return self.measured >= self.limit if self.at_least else self.measured <= self.limit

    @property
    def wanted(self) -> str:
        """The target in words."""
        return f">= {self.limit:g}" if self.at_least else f"<= {self.limit:g}"
