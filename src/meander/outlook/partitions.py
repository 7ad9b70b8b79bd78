"""All ways to cut the bins into intervals within a load cap, and what it costs to go from one to another.

A partitioning is its sorted inner boundaries, without who owns what: for sequences of migrations only the boundaries
matter, since owners can be renamed without changing a cost (Ding et al., Lemma 4.1).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from meander.errors import TooLarge
from meander.planning.intervals import least_intervals
from meander.planning.problem import ROUNDING

Cuts = tuple[int, ...]
"""Ends of the intervals, ascending, the last one the number of bins. No interval is empty."""


def partitions(load: NDArray[np.float64], workers: int, cap: float, limit: int) -> list[Cuts]:
    """Return every cut into at most `workers` intervals of at most `cap`, in lexical order; `load` is a prefix sum.

    Raises:
        TooLarge: there are more than `limit`.

    >>> len(partitions(np.arange(101.0), 3, 1.2 * 100 / 3, limit=1000))
    231
    """
    bins = load.size - 1
    room = cap * (1 + ROUNDING)
    if count(load, workers, cap, limit) > limit:
        raise TooLarge(f"more than {limit} partitionings of {bins} bins into {workers} intervals keep the cap")
    reach = np.searchsorted(load, load + room, side="right") - 1
    need = least_intervals(load, room)
    partitionings: list[Cuts] = []
    open_: list[Cuts] = [()]
    while open_:
        cuts = open_.pop()
        at = cuts[-1] if cuts else 0
        if at == bins:
            partitionings.append(cuts)
            continue
        ends = range(int(reach[at]), at, -1)  # the last one is looked at first
        # What cannot end in time is never begun.
        open_ += [(*cuts, end) for end in ends if need[end] <= workers - len(cuts) - 1]
    return partitionings


def count(load: NDArray[np.float64], workers: int, cap: float, limit: int) -> int:
    """How many cuts `partitions` would return, without making them; any number above `limit` stands for more."""
    everywhere = np.arange(load.size)
    # An interval that ends at x begins at left[x] or behind, and before x.
    left = np.minimum(np.searchsorted(load, load - cap * (1 + ROUNDING), side="left"), everywhere)
    ways = np.zeros(load.size, dtype=np.int64)
    ways[0] = 1
    ended = 0
    for _ in range(min(workers, load.size - 1)):
        sums = np.concatenate(([0], np.cumsum(ways)))
        ways = np.minimum(sums[everywhere] - sums[left], limit + 1)
        ended += int(ways[-1])
        if ended > limit:
            break
    return ended


def as_table(cuts: Sequence[Cuts]) -> NDArray[np.int64]:
    """Partitionings as rows of equal length for `partitions_kernel.kept`; short ones repeat their last end."""
    width = max(map(len, cuts))
    return np.array([[*c, *[c[-1]] * (width - len(c))] for c in cuts], dtype=np.int64)
