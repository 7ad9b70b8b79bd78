"""The cheapest intervals between those before and those after: the inner loops of `lookahead`.

Three partitionings follow one another, and the middle one is sought: of those within its cap the one that keeps the
most, of what comes from the one before and of what goes on to the one after. As in `planning.ssm_kernel`, reading the
bins from left to right only one interval of each neighbour can be in doubt at a boundary, the one on both sides of it:

    best[k, x, u, v]  the most that stays of bins 0..x-1 in k intervals, where u and v say whether the interval around x
                      of the one before and of the one after is matched already
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from meander.kernel import kernel

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

NEVER = -np.inf


@kernel
def stays(state: Floats, ends: Ints, left: Ints) -> Floats:
    """Return what stays of bins i..r-1 if they become one interval, as [i, r, u, v], NEVER where it cannot be.

    `state` is a prefix sum, `ends` are the intervals of the neighbour, and left[r] is the smallest i that is asked for.
    u and v say whether the neighbour's interval around i and around r is matched, before and after.
    """
    m = state.size - 1
    run_of = np.zeros(m, dtype=np.int64)
    start = np.zeros(ends.size, dtype=np.int64)
    begin = 0
    for y in range(ends.size):
        start[y] = begin
        run_of[begin : ends[y]] = y
        begin = ends[y]
    table = np.full((m + 1, m + 1, 2, 2), NEVER)
    for i in range(m):
        y = run_of[i]
        whole = 0.0  # the largest interval of the neighbour that lies wholly behind that of i and before that of r
        for r in range(i + 1, m + 1):
            if left[r] > i:
                break
            z = run_of[r - 1]
            if z > y + 1 and r - 1 == start[z]:
                whole = max(whole, state[ends[z - 1]] - state[start[z - 1]])
            inside = 1 if r < ends[z] else 0
            for u in range(2 if i > start[y] else 1):
                cell = table[i, r, u]
                cell[u if z == y and inside else 0] = 0.0
                if u == 0:
                    after = inside if z == y else 0
                    cell[after] = max(cell[after], state[min(r, ends[y])] - state[i])
                if z > y:
                    cell[inside] = max(cell[inside], state[r] - state[start[z]])
                    cell[0] = max(cell[0], whole)
    return table


@kernel
def between(before: Floats, after: Floats, left: Ints, n: int) -> Ints:
    """Return the ends of at most n intervals that keep the most towards both neighbours, as tables of `stays`.

    left[r] is the smallest i such that bins i..r-1 are within the cap; empty where that is infeasible.
    """
    m = left.size - 1
    best = np.full((n + 1, m + 1, 2, 2), NEVER)
    back = np.zeros((n + 1, m + 1, 2, 2), dtype=np.int64)
    best[0, 0, 0, 0] = 0.0
    for k in range(n):
        for r in range(1, m + 1):
            for i in range(left[r], r):
                for u in range(2):
                    for v in range(2):
                        so_far = best[k, i, u, v]
                        if so_far == NEVER:
                            continue
                        for x in range(2):
                            gain = so_far + before[i, r, u, x]
                            for y in range(2):
                                value = gain + after[i, r, v, y]
                                if value > best[k + 1, r, x, y]:
                                    best[k + 1, r, x, y] = value
                                    back[k + 1, r, x, y] = 4 * i + 2 * u + v
    k = 0
    for fewer in range(1, n + 1):
        if best[fewer, m, 0, 0] > best[k, m, 0, 0]:
            k = fewer
    ends = np.zeros(k, dtype=np.int64)
    r, u, v = m, 0, 0
    while k > 0:
        ends[k - 1] = r
        code = back[k, r, u, v]
        r, u, v = code // 4, code // 2 % 2, code % 2
        k -= 1
    return ends
