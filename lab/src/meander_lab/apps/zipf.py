"""Two streams with keys as skewed as Zipf's law says: what Ls-Stream's synthetic data are (section VI).

Row i of a side is the same in every process, at any time, and whichever rows are made with it: every choice is a hash
of the seed, the side and i. Nothing here knows of Spark; `pairs` makes streams of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from meander.options import amount, positive, whole

Numbers = NDArray[np.uint64]
Whole = NDArray[np.int64]
Floats = NDArray[np.float64]

TIME = pa.timestamp("us", "UTC")
LAST_ROW = 2**53
"""Times are exact up to here, and nobody reads as far."""

STEP = 0x9E3779B97F4A7C15
KEY, X, RANK = 0, 2, 4
"""What a random number is for; with the side added."""

CUT = 1 << 14
"""Rows that are made at once: what is worked on stays in a core's cache."""


@dataclass(frozen=True)
class ZipfStreams:
    """Two streams of rows with a key, both by the same law.

    Side 0 is the left one, side 1 the right one. A row has `key`, from 0 to `keys` - 1; `ts`, its time; `id`, its
    number on its side; and `x`, evenly from 0 to below 1 and drawn for itself, for a residual predicate:
    `abs(left.x - right.x) < d` leaves about 2 d of the pairs. Which key has which rank is shuffled by the seed, and is
    the same on both sides, so a key that is hot on the left meets itself on the right.

    Args:
        coefficient: the key of rank r comes 1 / r ** coefficient as often as the first one. 0 makes all keys alike;
            Ls-Stream has 0.2, 0.4, 0.6, 0.8 and 1.0.
        keys: how many keys there are.
        seed: which rows.
    """

    coefficient: float
    keys: int = 10_000
    seed: int = 0

    def __post_init__(self) -> None:
        amount("coefficient", self.coefficient)
        whole("keys", self.keys, 1, 10_000_000)
        whole("seed", self.seed, 0, 2**63 - 1)

    @property
    def shares(self) -> Floats:
        """How much of a stream each key has, by rank: the most frequent one first. They sum to 1."""
        weights = np.arange(1, self.keys + 1, dtype=np.float64) ** -float(self.coefficient)
        return np.asarray(weights / weights.sum())

    @property
    def ranking(self) -> Whole:
        """The keys by rank."""
        return _law(self.coefficient, self.keys, self.seed)[1].copy()

    @property
    def meeting(self) -> float:
        """How likely a row of one side has the key of a row of the other.

        A row meets about rate * width * meeting rows of a window that is so wide: with `within`, twice as wide as that.
        """
        return float((self.shares**2).sum())

    def schema(self, side: int) -> pa.Schema:
        """The columns of a side."""
        whole("side", side, 0, 1)
        return pa.schema([("key", pa.int64()), ("ts", TIME), ("id", pa.int64()), ("x", pa.float64())])

    def rows(self, side: int, first: int, count: int, rate: float, since_us: int = 0) -> pa.Table:
        """The rows first to first + count - 1 of a side.

        Args:
            side: 0 for the left one, 1 for the right one.
            first: the number of the first row.
            count: how many.
            rate: rows of this side in a second: row i comes i / rate seconds after the beginning.
            since_us: when row 0 comes, in microseconds since 1970.

        >>> streams = ZipfStreams(1.0)
        >>> streams.rows(0, 0, 100, 50.0).slice(40, 2) == streams.rows(0, 40, 2, 50.0)
        True
        """
        number = numbers(first, count)
        below, ranking = _law(self.coefficient, self.keys, self.seed)
        key, x = np.empty(count, np.int64), np.empty(count, np.float64)
        for at in range(0, count, CUT):
            part = slice(at, at + CUT)
            key[part] = ranking[np.searchsorted(below, chance(dice(self.seed, KEY + side, number[part])), "right")]
            x[part] = chance(dice(self.seed, X + side, number[part]))
        ts = stamped(self.times(side, number, rate), since_us)
        return pa.table([pa.array(key), ts, pa.array(number), pa.array(x)], schema=self.schema(side))

    def times(self, side: int, number: Whole, rate: float) -> Whole:
        """When the rows of these numbers come, in microseconds after the beginning."""
        return np.floor(evenly(number, rate)).astype(np.int64)


def numbers(first: int, count: int) -> Whole:
    """The numbers of rows from `first` on."""
    whole("first", first, 0, LAST_ROW)
    return np.arange(first, first + whole("count", count, 0, LAST_ROW - first), dtype=np.int64)


def evenly(number: Whole, rate: float) -> Floats:
    """When rows come at a constant rate, in microseconds after the beginning."""
    return number.astype(np.float64) * 1e6 / float(positive("rate", rate))


def stamped(after_us: Whole, since_us: int) -> pa.Array:
    """Times as a column, from microseconds after a beginning."""
    return pa.array(after_us + since_us).cast(TIME)


def dice(seed: int, what: int, number: Whole) -> Numbers:
    """64 random bits for each number: SplitMix64, at the number's place in a sequence that the seed and `what` begin.

    Steele, Lea and Flood, Fast Splittable Pseudorandom Number Generators, 2014.
    """
    begin = _mixed(_mixed(np.array([seed], np.uint64)) + np.uint64(what))
    return _mixed(number.astype(np.uint64) * np.uint64(STEP) + begin)


def chance(bits: Numbers) -> Floats:
    """Random bits as a number from 0 to below 1."""
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mixed(number: Numbers) -> Numbers:
    """The finalizer of SplitMix64, in place."""
    number += np.uint64(STEP)
    number ^= number >> np.uint64(30)
    number *= np.uint64(0xBF58476D1CE4E5B9)
    number ^= number >> np.uint64(27)
    number *= np.uint64(0x94D049BB133111EB)
    number ^= number >> np.uint64(31)
    return number


@lru_cache(maxsize=8)
def _law(coefficient: float, keys: int, seed: int) -> tuple[Floats, Whole]:
    """The shares of this rank and those before it, and the keys by rank."""
    below = np.cumsum(ZipfStreams(coefficient, keys, seed).shares)
    below[-1] = 1.0  # rounding must not leave a chance for which there is no key
    return below, np.argsort(dice(seed, RANK, np.arange(keys)), kind="stable")
