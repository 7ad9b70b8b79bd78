"""The optimal contiguous assignment in O(m n'): the inner loops of `ssm`.

The old owners' intervals cut the bins into *runs*. A target is at most n' intervals, each either *kept* by one old
owner (its gain is the state of that owner's run inside the interval) or *blank* (someone else takes it, gain 0).
Reading from left to right, at a boundary x only one owner can be in doubt: the one whose run lies on both sides of x,
since owners to the left can gain no more and owners to the right cannot have been used (Ding, Lemma 3.3). So

    free[k, x]  the best gain for bins 0..x-1 in k intervals, the owner around x not used yet
    used[k, x]  the same with that owner used

Loads are prefix sums and the cap is the same for all, so the left ends that may go with the right end x form a window
whose ends only move right. Within the window a step takes one of

    blank                                     free[l], used[l]
    kept by the run r - 1 lies in             free[l] + S[r] - S[max(l, a)],  a the start of that run
    kept by a run that ends before that run   free[l] + the rest of l's own run, or the whole of a run behind l

Each is a maximum over the window of a value known at l, or over pairs (l, run behind l). Both kinds have an associative
merge, so a window whose ends move right is kept as a suffix table of its older part and one running value of
its newer part: constant time per move, on average.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from meander.kernel import kernel

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

NOBODY = -1
NEVER = -np.inf


@kernel
def prefix_sums(values: Floats) -> Floats:
    """Return 0, v0, v0 + v1, ...: bins l..r-1 weigh p[r] - p[l]."""
    sums = np.zeros(values.size + 1)
    for j in range(values.size):
        sums[j + 1] = sums[j] + values[j]
    return sums


@kernel
def left_ends(load: Floats, cap: float) -> Ints:
    """For each right end r, the smallest l such that bins l..r-1 weigh at most `cap`; `load` is a prefix sum."""
    left = np.zeros(load.size, dtype=np.int64)
    l = 0
    for r in range(load.size):
        while load[r] - load[l] > cap:
            l += 1
        left[r] = l
    return left


@kernel
def bands(left: Ints, n: int) -> tuple[Ints, Ints]:
    """For k = 0..n, the boundaries worth looking at after k intervals, as (first, last).

    `last` is as far as k intervals reach; `first` is where n - k further ones still reach the end. Infeasible if
    last[n] is not the end.
    """
    m = left.size - 1
    first = np.zeros(n + 1, dtype=np.int64)
    last = np.zeros(n + 1, dtype=np.int64)
    r = 0
    for k in range(1, n + 1):
        reached = last[k - 1]
        while r < m and left[r + 1] <= reached:
            r += 1
        last[k] = r
    first[n] = m
    for k in range(n - 1, -1, -1):
        first[k] = left[first[k + 1]]
    return first, last


@kernel
def gains(
    state: Floats, edge: Ints, keeps: NDArray[np.bool_], left: Ints, first: Ints, last: Ints
) -> tuple[Floats, Floats]:
    """Return the tables `free` and `used`.

    `state` is a prefix sum, run y has bins edge[y]..edge[y + 1] - 1, and keeps[y] says whether its owner may stay.
    """
    m = state.size - 1
    n = first.size - 1
    free = np.full((n + 1, m + 1), NEVER)
    used = np.full((n + 1, m + 1), NEVER)
    run_of = np.zeros(m + 1, dtype=np.int64)
    for y in range(edge.size - 1):
        run_of[edge[y] : edge[y + 1]] = y
    run_of[m] = edge.size - 2
    # Suffix tables: of the current run, and of the runs before it.
    tail_free, tail_used, tail_own = np.empty(m + 1), np.empty(m + 1), np.empty(m + 1)
    tail_any, tail_whole, tail_pair = np.empty(m + 1), np.empty(m + 1), np.empty(m + 1)
    free[0, 0] = 0.0
    for k in range(n):
        old_free, old_used, new_free, new_used = free[k], used[k], free[k + 1], used[k + 1]
        begin = first[k]
        if first[k + 1] == begin:  # an empty interval
            new_free[begin], new_used[begin] = old_free[begin], old_used[begin]
        past_mid, past_any, past_whole, past_pair = begin, NEVER, NEVER, NEVER
        y = run_of[begin]
        while y < edge.size - 1 and edge[y] < last[k + 1]:
            a, b = edge[y], edge[y + 1]
            start = max(a, begin)
            mid, head_free, head_used, head_own = start, NEVER, NEVER, NEVER
            for r in range(start + 1, min(b, last[k + 1]) + 1):
                l = r - 1
                head_free = max(head_free, old_free[l])
                head_used = max(head_used, old_used[l])
                head_own = max(head_own, old_free[l] - state[l])
                if r < first[k + 1]:
                    continue
                lo = max(left[r], begin)
                # The part of the window in this run.
                q = max(lo, start)
                best_free, best_used, best_own = NEVER, NEVER, NEVER
                if q < r:
                    if q >= mid:
                        s_free, s_used, s_own = NEVER, NEVER, NEVER
                        for x in range(r - 1, q - 1, -1):
                            s_free = max(s_free, old_free[x])
                            s_used = max(s_used, old_used[x])
                            s_own = max(s_own, old_free[x] - state[x])
                            tail_free[x], tail_used[x], tail_own[x] = s_free, s_used, s_own
                        mid, head_free, head_used, head_own = r, NEVER, NEVER, NEVER
                    best_free = max(tail_free[q], head_free)
                    best_used = max(tail_used[q], head_used)
                    best_own = max(tail_own[q], head_own)
                # The part of the window in the runs before: positions lo..start-1, `start` being the end of the last.
                best_any, best_pair = NEVER, NEVER
                if lo < start:
                    if lo >= past_mid:
                        s_any, s_whole, s_pair = NEVER, NEVER, NEVER
                        z = run_of[start - 1]
                        for x in range(start - 1, lo - 1, -1):
                            if x < edge[z]:
                                z -= 1
                            rest = old_free[x] + (state[edge[z + 1]] - state[x]) if keeps[z] else NEVER
                            value = max(old_free[x], old_used[x])
                            s_pair = max(s_pair, rest, value + s_whole)
                            s_any = max(s_any, value)
                            if x == edge[z] and keeps[z]:
                                s_whole = max(s_whole, state[edge[z + 1]] - state[x])
                            tail_any[x], tail_whole[x], tail_pair[x] = s_any, s_whole, s_pair
                        past_mid, past_any, past_whole, past_pair = start, NEVER, NEVER, NEVER
                    best_any = max(tail_any[lo], past_any)
                    best_pair = max(tail_pair[lo], past_pair, tail_any[lo] + past_whole)
                unkept = max(best_free, best_any, best_pair, old_free[r])
                kept = max(best_used, old_used[r])
                if keeps[y]:
                    kept = max(kept, best_own + state[r], best_any + (state[r] - state[a]))
                if r < b:
                    new_free[r], new_used[r] = unkept, kept
                else:
                    new_free[r] = max(unkept, kept)
            if b <= last[k + 1]:  # this run now lies behind: append its positions
                for x in range(start, b):
                    rest = old_free[x] + (state[b] - state[x]) if keeps[y] else NEVER
                    value = max(old_free[x], old_used[x])
                    if x == a and keeps[y]:
                        whole = state[b] - state[a]
                        past_pair = max(past_pair, past_any + whole)
                        past_whole = max(past_whole, whole)
                    past_pair = max(past_pair, rest)
                    past_any = max(past_any, value)
            y += 1
    return free, used


@kernel
def trace(
    load: Floats,
    state: Floats,
    edge: Ints,
    keeps: NDArray[np.bool_],
    left: Ints,
    first: Ints,
    free: Floats,
    used: Floats,
) -> tuple[Ints, Ints]:
    """Return the start and the keeping run (or NOBODY) of each of the n intervals, from left to right.

    Among choices of equal gain it takes the interval whose load is nearest to the fair share, then the longer one.
    """
    n, m = free.shape[0] - 1, free.shape[1] - 1
    share = load[m] / n
    start = np.zeros(n, dtype=np.int64)
    keeper = np.full(n, NOBODY, dtype=np.int64)
    r, was_used = m, False
    for k in range(n, 0, -1):
        y = np.searchsorted(edge, r) - 1 if r > 0 else 0
        a, b = edge[y], edge[y + 1]
        old_free, old_used = free[k - 1], used[k - 1]
        best, best_l, best_keeper, best_used, best_off = NEVER, r, NOBODY, was_used, np.inf
        z, whole, whole_run = y, NEVER, NOBODY
        for l in range(r, max(left[r], first[k - 1]) - 1, -1):
            off = abs(load[r] - load[l] - share)
            if l < edge[z]:
                # Run z lies wholly behind l now; the run of r itself is treated apart.
                if z != y and keeps[z] and state[edge[z + 1]] - state[edge[z]] > whole:
                    whole, whole_run = state[edge[z + 1]] - state[edge[z]], z
                z -= 1
            for choice in range(6):
                value, who, before = NEVER, NOBODY, False
                if l >= a:
                    if choice == 0 and (r == b or not was_used):
                        value = old_free[l]
                    elif choice == 1 and (r == b or was_used):
                        value, before = old_used[l], True
                    elif choice == 2 and l < r and (r == b or was_used) and keeps[y]:
                        value, who = old_free[l] - state[l] + state[r], y
                else:
                    before = old_used[l] > old_free[l]
                    either = max(old_free[l], old_used[l])
                    if choice == 0 and (r == b or not was_used):
                        value = either
                    elif choice == 3 and (r == b or was_used) and keeps[y]:
                        value, who = either + (state[r] - state[a]), y
                    elif choice == 4 and (r == b or not was_used) and keeps[z]:
                        value, who, before = old_free[l] + (state[edge[z + 1]] - state[l]), z, False
                    elif choice == 5 and (r == b or not was_used):
                        value, who = either + whole, whole_run
                if value > best or (value == best and value > NEVER and off <= best_off):
                    best, best_l, best_keeper, best_used, best_off = value, l, who, before, off
        start[k - 1], keeper[k - 1] = best_l, best_keeper
        r, was_used = best_l, best_used
    return start, keeper


@kernel
def best_intervals(
    loads: Floats, states: Floats, edge: Ints, keeps: NDArray[np.bool_], cap: float, n: int
) -> tuple[Ints, Ints]:
    """Return start and keeping run (or NOBODY) of at most n intervals of the largest gain; empty where infeasible."""
    load, state = prefix_sums(loads), prefix_sums(states)
    left = left_ends(load, cap)
    first, last = bands(left, n)
    if last[n] < loads.size:
        return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    free, used = gains(state, edge, keeps, left, first, last)
    return trace(load, state, edge, keeps, left, first, free, used)
