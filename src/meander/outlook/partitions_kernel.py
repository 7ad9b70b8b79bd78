"""What stays between two partitionings: the compiled half of `partitions`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from meander.kernel import kernel

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


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
