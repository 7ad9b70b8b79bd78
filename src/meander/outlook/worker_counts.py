"""From how much arrives to how many workers that takes: Ding section 6."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from meander.errors import InvalidOption
from meander.options import whole

MOST = 1 << 15
"""The most workers there may be."""

WIDEST = 1023
"""How far apart `lo` and `hi` may be: a matrix over them has the square of that."""


def worker_counts(hourly: ArrayLike, lo: int, hi: int) -> NDArray[np.int64]:
    """Return how many workers each hour asks for, from `lo` at the quietest to `hi` at the busiest.

    Args:
        hourly: how much arrives in each hour, in any unit.
        lo: the fewest workers.
        hi: the most workers.

    The series is clipped at its 1st and 99th percentile, so that one burst does not flatten all the rest, scaled
    linearly to [lo, hi] and rounded, halves up. A series that is always the same asks for `lo`.

    >>> worker_counts([0, 10, 20, 30, 40], 2, 4).tolist()
    [2, 2, 3, 4, 4]
    """
    check_range(lo, hi)
    amounts = np.asarray(hourly, dtype=np.float64)
    if amounts.ndim != 1 or not amounts.size or not np.isfinite(amounts).all():
        raise InvalidOption("a series of arrivals is a list of finite numbers, one for each hour, and not empty")
    least, most = np.percentile(amounts, [1, 99])
    if not most > least:
        return np.full(amounts.shape, lo, dtype=np.int64)
    share = (np.clip(amounts, least, most) - least) / (most - least)
    wanted: NDArray[np.int64] = np.floor(lo + share * (hi - lo) + 0.5).astype(np.int64)
    return wanted


def migrations(counts: ArrayLike) -> NDArray[np.int64]:
    """Return the worker counts without equal neighbours: each one but the first is a migration from the one before.

    >>> migrations([8, 8, 9, 9, 8]).tolist()
    [8, 9, 8]
    """
    values = as_counts(counts)
    changes: NDArray[np.int64] = values[np.diff(values, prepend=-1) != 0]
    return changes


def as_counts(counts: ArrayLike) -> NDArray[np.int64]:
    """Return worker counts as whole numbers; `InvalidOption` where one is no number of workers."""
    try:
        values = np.asarray(counts, dtype=np.float64)
    except (TypeError, ValueError):
        raise InvalidOption("worker counts must be a list of whole numbers") from None
    strange = values[~((values >= 0) & (values <= MOST) & (values == np.floor(values)))]
    if values.ndim != 1 or strange.size:
        what = f"; {strange.flat[0]:g} is none" if strange.size else ""
        raise InvalidOption(f"worker counts must be a list of whole numbers{what}")
    return values.astype(np.int64)


def check_range(lo: object, hi: object) -> None:
    """Raise `InvalidOption` unless there are at least two numbers of workers from `lo` to `hi`, and not too many."""
    least = whole("lo", lo, 1, MOST)
    whole("hi", hi, least + 1, least + WIDEST)
