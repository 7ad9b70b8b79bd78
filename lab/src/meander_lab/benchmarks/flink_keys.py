"""The keys of `./dev bench flink`, in three languages, and counting them again from first principles.

A key is a function of its row's number alone. Flink computes it in Java (`flink_job/Keys.java`), ours as a Spark
expression, and the recount with NumPy, so that neither system has to be believed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from pyspark.sql import Column

CHUNK = 4_000_000
EDGE = 1e-14
"""Relative distance from a whole number within which two correct `exp` may differ in the number below."""

P1, P2, P3 = (np.uint64(each) for each in (0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9))
P4, P5 = np.uint64(0x85EBCA77C2B2AE63), np.uint64(0x27D4EB2F165667C5)


def scale_of(keys: int) -> float:
    """What the upper 53 bits of a hash are multiplied by before `exp` makes a key of them, for Zipf's law."""
    return math.log(keys) * 2.0**-53


def hashes(numbers: NDArray[np.int64]) -> NDArray[np.uint64]:
    """XXH64 of eight bytes with seed 42, as Spark's `xxhash64` of a bigint."""
    word = numbers.astype(np.uint64)
    mixed = (np.uint64(50) + P5) ^ (_rotated(word * P2, 31) * P1)
    mixed = _rotated(mixed, 27) * P1 + P4
    mixed = (mixed ^ (mixed >> np.uint64(33))) * P2
    mixed = (mixed ^ (mixed >> np.uint64(29))) * P3
    return mixed ^ (mixed >> np.uint64(32))


def _rotated(words: NDArray[np.uint64], bits: int) -> NDArray[np.uint64]:
    return (words << np.uint64(bits)) | (words >> np.uint64(64 - bits))


def keys_of(rows: NDArray[np.int64], law: str, keys: int) -> tuple[NDArray[np.int64], int]:
    """The number of each row's key, and of how many rows it is too close to call."""
    if law != "zipf":
        return hashes(rows).view(np.int64) % keys, 0
    exact = np.exp(((hashes(rows) >> np.uint64(11)).astype(np.float64) + 0.5) * scale_of(keys))
    close = np.abs(exact - np.rint(exact)) <= EDGE * exact
    return exact.astype(np.int64), int(close.sum())


def expected_counts(positions: Sequence[int], law: str, keys: int, fill: int) -> tuple[NDArray[np.int64], int]:
    """How often each key has to be counted, and how many rows are too close to call.

    Args:
        positions: how many rows of each lane.
        law: how keys are chosen.
        keys: out of how many.
        fill: the first rows, which have the keys 0, 1, 2, ...
    """
    counts, close = np.zeros(keys + 1, np.int64), 0
    for lane, end in enumerate(positions):
        for start in range(0, end, CHUNK):
            rows = np.arange(start, min(start + CHUNK, end), dtype=np.int64) * len(positions) + lane
            load, more = keys_of(rows[rows >= fill] - fill, law, keys)
            counts += np.bincount(np.concatenate([rows[rows < fill], load]), minlength=keys + 1)
            close += more
    return counts, close


def difference(
    numbers: NDArray[np.int64], counts: NDArray[np.int64], wanted: NDArray[np.int64], close: int
) -> str | None:
    """What is wrong with counts by key, in words; None where nothing is.

    Args:
        numbers: the keys of a system, each at most once.
        counts: how often it has counted each of them.
        wanted: how often each key has to be counted, by its number.
        close: how many rows may have been counted for the key next to it.
    """
    if numbers.size and not 0 <= int(numbers.min()) <= int(numbers.max()) < wanted.size:
        return f"there is a key outside 0..{wanted.size - 1}"
    if np.unique(numbers).size != numbers.size:
        return "a key was counted in two places"
    given = np.zeros_like(wanted)
    given[numbers] = counts
    total = int(given.sum() - wanted.sum())
    if total:
        return f"{given.sum():,} rows were counted instead of {wanted.sum():,}"
    wrong = np.abs(given - wanted)
    if int(wrong.sum()) > 2 * close:
        return f"{np.count_nonzero(wrong):,} of {np.count_nonzero(wanted):,} keys have a wrong count"
    return None


def spark_key(law: str, keys: int, row: Column) -> Column:
    """The key of a row of the load as a Spark expression over the row's number."""
    from pyspark.sql import functions as F

    if law == "zipf":
        upper = F.shiftrightunsigned(F.xxhash64(row), 11)
        return F.exp((upper + F.lit(0.5)) * F.lit(scale_of(keys))).cast("bigint")
    number = F.pmod(F.xxhash64(row), F.lit(keys)).cast("bigint")
    return F.concat(F.lit("k"), number.cast("string")) if law == "texts" else number
