"""All ways to cut the bins into intervals within a load cap, and what it costs to go from one to another.

A partitioning is its sorted inner boundaries, without who owns what: for sequences of migrations only the boundaries
matter, since owners can be renamed without changing a cost (Ding et al., Lemma 4.1).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from meander.errors import TooLarge
from meander.kernel import kernel
from meander.pictures import many
from meander.planning.intervals import least_intervals
from meander.planning.problem import ROUNDING

Cuts = tuple[int, ...]
"""Ends of the intervals, ascending, the last one the number of bins. No interval is empty."""

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


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
        raise TooLarge(
            f"more than {limit} partitionings of {many(bins, 'bin')} into {many(workers, 'interval')} keep the cap"
        )
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
    """Partitionings as rows of equal length for `cheapest`; short ones repeat their last end."""
    width = max(map(len, cuts))
    return np.array([[*c, *[c[-1]] * (width - len(c))] for c in cuts], dtype=np.int64)


@kernel
def kept(state: Floats, a: Ints, b: Ints) -> float:
    """Return the most state that can stay between two partitionings; `state` is a prefix sum.

    Each interval of the one may be matched with one of the other. Walking along the bins, neighbouring overlaps share
    an interval of one side or none, so it is enough to know which of the two current intervals is matched already.
    """
    m = state.size - 1
    i, j, at = 0, 0, 0
    # Best total with (neither, the interval of a, the interval of b, both) matched.
    none, left, right, both = 0.0, -np.inf, -np.inf, -np.inf
    while at < m:
        end = min(a[i], b[j])
        both = max(both, none + state[end] - state[at])
        at = end
        next_a, next_b = a[i] == end, b[j] == end
        if next_a:
            i += 1
            none, right = max(none, left), max(right, both)
            left, both = -np.inf, -np.inf
        if next_b:
            j += 1
            none, left = max(none, right), max(left, both)
            right, both = -np.inf, -np.inf
    return max(none, left, right, both)


@kernel
def cheapest(state: Floats, froms: Ints, tos: Ints, onward: Floats) -> tuple[Floats, Ints]:
    """For each partitioning in `froms`, the least cost to any in `tos` plus its onward cost, and which one it is."""
    total = state[state.size - 1]
    cost = np.full(froms.shape[0], np.inf)
    choice = np.zeros(froms.shape[0], dtype=np.int64)
    for p in range(froms.shape[0]):
        for q in range(tos.shape[0]):
            if onward[q] >= cost[p]:
                continue
            through = total - kept(state, froms[p], tos[q]) + onward[q]
            if through < cost[p]:
                cost[p], choice[p] = through, q
    return cost, choice
