"""Intervals with a price each: the best assignment under learned prices, and practice that prices are learned from.

A learned outlook rates a partitioning by adding up one price for each of its intervals. So the best assignment is
found by the table of `ssm_kernel`, with prices: reading from left to right, at a boundary x only one owner can be in
doubt, the one whose run lies on both sides of x. With prices a window's maximum is no longer the maximum of known
values, so this takes O(m w n') for windows of w bins, not O(m n'): well below a millisecond for 64 bins.

The price of bins l..r-1 for n workers is linear in four groups of features, in this order:

    share   how much of its cap the interval carries, in KNOTS steps, linear between them
    held    the same, times the interval's part of all state
    place   where in the work of all bins the interval ends, in PLACES steps, linear between them
    end     which bin it ends at, one for each bin; or only the last of all, which every partitioning has: the constant
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from meander.kernel import kernel

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

KNOTS = 10
PLACES = 48
HELD = KNOTS + 1
PLACE = 2 * (KNOTS + 1)
END = PLACE + PLACES + 1
"""Where each group begins; share begins at 0."""

ROUNDING = 1e-9
TINY = 5e-324
"""The smallest float: shares of nothing are 0."""

NOBODY = -1
NEVER = -np.inf
RARE = 0.05
"""Next numbers of workers are not looked at if they are so much less likely than the likeliest."""

ASTRAY = 0.08
"""How much random prices add to those of a candidate in `look`, as a part of a worker's fair share of the state."""


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
def needed(left: Ints) -> Ints:
    """For each x, how many intervals the bins from x on take; more than there are bins where none suffice."""
    m = left.size - 1
    need = np.full(m + 1, m + 1)
    need[m] = 0
    x, intervals = m, 0
    while x > 0 and left[x] < x:
        intervals += 1
        need[left[x] : x] = intervals
        x = left[x]
    return need


@kernel
def cap_for(load: Floats, workers: int, tau: float) -> float:
    """The load cap of each of so many workers; where tau is too small for intervals, the smallest they can keep."""
    m = load.size - 1
    # More intervals than bins cannot all be filled.
    intervals = min(workers, m)
    cap: float = (1 + tau) * load[m] / workers * (1 + ROUNDING)
    if needed(left_ends(load, cap))[0] <= intervals:
        return cap
    low: float = cap
    high: float = max(cap, load[m])
    for _ in range(40):
        middle = (low + high) / 2
        if needed(left_ends(load, middle))[0] <= intervals:
            high = middle
        else:
            low = middle
    return high


@kernel
def prices(load: Floats, state: Floats, left: Ints, cap: float, weights: Floats) -> Floats:
    """The price of bins l..r-1 at [r, l - left[r]], for each interval within the cap; `load` and `state` are sums."""
    m = load.size - 1
    width = 1
    for r in range(m + 1):
        width = max(width, r - left[r])
    price = np.zeros((m + 1, width))
    ends = weights.size - END
    for r in range(1, m + 1):
        there = 0.0
        if r < m:
            x = load[r] / max(load[m], TINY) * PLACES
            i = min(int(x), PLACES - 1)
            there = (i + 1 - x) * weights[PLACE + i] + (x - i) * weights[PLACE + i + 1]
        if ends == m:
            there += weights[END + r - 1]
        elif r == m:
            there += weights[END]
        for l in range(left[r], r):
            x = min((load[r] - load[l]) / max(cap, TINY), 1.0) * KNOTS
            i = min(int(x), KNOTS - 1)
            near, far = i + 1 - x, x - i
            held = (state[r] - state[l]) / max(state[m], TINY)
            price[r, l - left[r]] = (
                there
                + near * (weights[i] + held * weights[HELD + i])
                + far * (weights[i + 1] + held * weights[HELD + i + 1])
            )
    return price


@kernel
def features(load: Floats, state: Floats, ends: Ints, workers: int, cap: float, values: Floats) -> None:
    """Write the features into `values`; times the weights they are the price of all intervals, also the empty ones."""
    m = load.size - 1
    values[:] = 0.0
    l = 0
    for k in range(ends.size):
        r = ends[k]
        x = min((load[r] - load[l]) / max(cap, TINY), 1.0) * KNOTS
        i = min(int(x), KNOTS - 1)
        near, far = i + 1 - x, x - i
        held = (state[r] - state[l]) / max(state[m], TINY)
        values[i] += near
        values[i + 1] += far
        values[HELD + i] += held * near
        values[HELD + i + 1] += held * far
        if r < m:
            x = load[r] / max(load[m], TINY) * PLACES
            i = min(int(x), PLACES - 1)
            values[PLACE + i] += i + 1 - x
            values[PLACE + i + 1] += x - i
        if values.size - END == m:
            values[END + r - 1] += 1.0
        elif r == m:
            values[END] += 1.0
        l = r
    values[0] += workers - ends.size


@kernel
def best(
    load: Floats, state: Floats, edge: Ints, keeps: Flags, cap: float, workers: int, weights: Floats
) -> tuple[Ints, Ints, float]:
    """Return ends and keeping runs (or NOBODY) of the intervals with the least of bytes moved plus price, and that sum.

    `load` and `state` are prefix sums, run y has bins edge[y]..edge[y + 1] - 1, and keeps[y] says whether its owner may
    stay. Workers beyond the intervals stay empty, at the price of an empty one. Nothing where the cap cannot be kept.
    """
    m = load.size - 1
    left = left_ends(load, cap)
    need = needed(left)
    none = np.zeros(0, dtype=np.int64)
    n = min(workers, m)
    if need[0] > n:
        return none, none, np.inf
    price = prices(load, state, left, cap, weights)
    run_of = np.zeros(m, dtype=np.int64)
    for y in range(edge.size - 1):
        run_of[edge[y] : edge[y + 1]] = y
    # value[k, x, u]: the best of bytes kept less prices for bins 0..x-1 in k intervals, the owner around x used if u.
    value = np.full((n + 1, m + 1, 2), NEVER)
    start = np.zeros((n + 1, m + 1, 2), dtype=np.int64)
    keeper = np.full((n + 1, m + 1, 2), NOBODY)
    before = np.zeros((n + 1, m + 1, 2), dtype=np.int64)
    value[0, 0, 0] = 0.0
    for k in range(n):
        for r in range(k + 1, m + 1):
            if need[r] > n - k - 1:
                continue
            y = run_of[r - 1]
            a, b = edge[y], edge[y + 1]
            z, whole, whole_run = y, NEVER, NOBODY
            free, free_start, free_keeper, free_before = NEVER, 0, NOBODY, 0
            used, used_start, used_keeper, used_before = NEVER, 0, NOBODY, 0
            for l in range(r - 1, max(left[r], k) - 1, -1):
                if l < edge[z]:
                    # Run z lies wholly behind l now; the run of r itself is treated apart.
                    if z != y and keeps[z] and state[edge[z + 1]] - state[edge[z]] > whole:
                        whole, whole_run = state[edge[z + 1]] - state[edge[z]], z
                    z -= 1
                old_free, old_used = value[k, l, 0], value[k, l, 1]
                if old_free == NEVER and old_used == NEVER:
                    continue
                paid = price[r, l - left[r]]
                if l >= a:
                    if old_free - paid > free:
                        free, free_start, free_keeper, free_before = old_free - paid, l, NOBODY, 0
                    if old_used - paid > used:
                        used, used_start, used_keeper, used_before = old_used - paid, l, NOBODY, 1
                    kept = old_free + (state[r] - state[l]) - paid
                    if keeps[y] and kept > used:
                        used, used_start, used_keeper, used_before = kept, l, y, 0
                    continue
                u = 1 if old_used > old_free else 0
                either = max(old_free, old_used) - paid
                if either > free:
                    free, free_start, free_keeper, free_before = either, l, NOBODY, u
                if keeps[y] and either + (state[r] - state[a]) > used:
                    used, used_start, used_keeper, used_before = either + (state[r] - state[a]), l, y, u
                rest = old_free + (state[edge[z + 1]] - state[l]) - paid
                if keeps[z] and rest > free:
                    free, free_start, free_keeper, free_before = rest, l, z, 0
                if either + whole > free:
                    free, free_start, free_keeper, free_before = either + whole, l, whole_run, u
            if r == b:
                if used > free:
                    free, free_start, free_keeper, free_before = used, used_start, used_keeper, used_before
                used = NEVER
            value[k + 1, r, 0], value[k + 1, r, 1] = free, used
            start[k + 1, r, 0], start[k + 1, r, 1] = free_start, used_start
            keeper[k + 1, r, 0], keeper[k + 1, r, 1] = free_keeper, used_keeper
            before[k + 1, r, 0], before[k + 1, r, 1] = free_before, used_before
    most, intervals = NEVER, 0
    for k in range(1, n + 1):
        if value[k, m, 0] - (workers - k) * weights[0] > most:
            most, intervals = value[k, m, 0] - (workers - k) * weights[0], k
    ends, keepers = np.zeros(intervals, dtype=np.int64), np.zeros(intervals, dtype=np.int64)
    r, u = m, 0
    for k in range(intervals, 0, -1):
        ends[k - 1], keepers[k - 1] = r, keeper[k, r, u]
        r, u = start[k, r, u], before[k, r, u]
    return ends, keepers, state[m] - most


@kernel
def moved(state: Floats, edge: Ints, ends: Ints, keepers: Ints) -> float:
    """The state that does not stay; `state` is a prefix sum."""
    moves: float = state[state.size - 1]
    l = 0
    for k in range(ends.size):
        y = keepers[k]
        if y != NOBODY:
            moves -= max(0.0, state[min(ends[k], edge[y + 1])] - state[max(l, edge[y])])
        l = ends[k]
    return moves


@kernel
def edges_of(ends: Ints) -> Ints:
    """The ends of intervals with 0 before them."""
    edge = np.zeros(ends.size + 1, dtype=np.int64)
    edge[1:] = ends
    return edge


@kernel
def onward(load: Floats, state: Floats, ends: Ints, caps: Floats, lo: int, row: Floats, weights: Floats) -> float:
    """The mean, over the next number of workers, of the bytes moved then and the price of what that leaves behind."""
    everyone = np.ones(ends.size, dtype=np.bool_)
    edge = edges_of(ends)
    likeliest = row.max()
    total = 0.0
    for j in range(row.size):
        if row[j] > 0 and row[j] >= RARE * likeliest:
            total += row[j] * best(load, state, edge, everyone, caps[j], lo + j, weights[j])[2]
    return total


@kernel
def look(
    load: Floats, state: Floats, edge: Ints, keeps: Flags, caps: Floats, workers: int, lo: int, row: Floats,
    weights: Floats, gamma: float, strengths: Floats, noise: Floats,
) -> tuple[Ints, Ints, float]:  # fmt: skip
    """As `best`, but the prices only propose: what they propose is rated by looking one migration further.

    Proposals are the best assignments under the prices times each strength, plus noise. A strength of 0 without noise
    is what ssm would do. One that moves more by itself than another costs in all is passed over. `caps`, `row` and
    `weights` are for lo, lo + 1, ... workers.
    """
    at = workers - lo
    size = weights.shape[1]
    prices = np.zeros(size)
    least = np.inf
    ends, keepers = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)
    for c in range(strengths.size):
        for i in range(size):
            prices[i] = strengths[c] * weights[at, i] + noise[c, i] * state[state.size - 1] / workers
        some_ends, some_keepers, _ = best(load, state, edge, keeps, caps[at], workers, prices)
        if not some_ends.size:
            break
        total = moved(state, edge, some_ends, some_keepers)
        if total < least:
            total += gamma * onward(load, state, some_ends, caps, lo, row, weights)
        if total < least:
            least, ends, keepers = total, some_ends, some_keepers
    return ends, keepers, least


@kernel
def shaken(shares: Floats, by: float) -> Floats:
    """Each value times a random factor with the standard deviation `by` of its logarithm, summing to 1 again."""
    values = np.empty(shares.size)
    for j in range(shares.size):
        values[j] = shares[j] * np.exp(by * np.random.randn())
    values /= values.sum()
    return values


@kernel
def drawn(row: Floats) -> int:
    """A random index with these probabilities."""
    chance = np.random.random()
    for j in range(row.size):
        chance -= row[j]
        if chance < 0:
            return j
    return row.size - 1


@kernel
def practise(
    loads: Floats, states: Floats, matrix: Floats, lo: int, tau: float, weights: Floats, drift: float, afar: float,
    steps: int, restart: int, daring: float, seed: int,
) -> tuple[Ints, NDArray[np.float32], NDArray[np.float32], Floats]:  # fmt: skip
    """Migrate `steps` times by these weights, and return what each step teaches.

    Before each migration every bin's load changes by a random factor of size `drift`. Every `restart` steps it starts
    again, from loads that have changed by `afar`, at a random partitioning; and with the probability `daring` a step
    goes astray a little: what is not tried is not learned.

    Returns for each step: which number of workers it left, the features of the partitioning it left, the features of
    the one chosen for each next number of workers, times its probability, and the mean share of state that moves.
    """
    np.random.seed(seed)
    sizes, m = matrix.shape[0], loads.size
    d = weights.shape[1]
    left = np.zeros(steps, dtype=np.int64)
    before = np.zeros((steps, d), dtype=np.float32)
    after = np.zeros((steps, sizes * d), dtype=np.float32)
    cost = np.zeros(steps)
    values, astray = np.zeros(d), np.zeros(d)
    everyone = np.ones(lo + sizes, dtype=np.bool_)
    load, state = loads / loads.sum(), states / states.sum()
    load_sums, state_sums = prefix_sums(load), prefix_sums(state)
    at, ends = 0, np.full(1, m)
    for t in range(steps):
        if t % restart == 0:
            load, state = shaken(loads, afar), shaken(states, afar / 2)
            load_sums, state_sums = prefix_sums(load), prefix_sums(state)
            at = np.random.randint(sizes)
            for i in range(d):
                astray[i] = 0.2 * np.random.random() / (lo + at)
            cap = cap_for(load_sums, lo + at, tau)
            nothing = np.zeros(2, dtype=np.int64)
            nothing[1] = m
            ends, keepers, _ = best(load_sums, state_sums, nothing, everyone[:1], cap, lo + at, astray)
        left[t] = at
        features(load_sums, state_sums, ends, lo + at, cap_for(load_sums, lo + at, tau), values)
        before[t] = values
        if drift > 0:
            load, state = shaken(load, drift), shaken(state, drift / 2)
            load_sums, state_sums = prefix_sums(load), prefix_sums(state)
        edge, then = edges_of(ends), drawn(matrix[at])
        next_ends = ends
        for j in range(sizes):
            chance = matrix[at, j]
            if chance <= 0 or (chance < RARE * matrix[at].max() and j != then):
                continue
            cap = cap_for(load_sums, lo + j, tau)
            new_ends, keepers, _ = best(load_sums, state_sums, edge, everyone[: ends.size], cap, lo + j, weights[j])
            cost[t] += chance * moved(state_sums, edge, new_ends, keepers)
            features(load_sums, state_sums, new_ends, lo + j, cap, values)
            for i in range(d):
                after[t, j * d + i] = chance * values[i]
            if j == then:
                next_ends = new_ends
        if np.random.random() < daring:
            for i in range(d):
                astray[i] = weights[then, i] + 0.1 * np.random.random() / (lo + then)
            cap = cap_for(load_sums, lo + then, tau)
            next_ends, keepers, _ = best(load_sums, state_sums, edge, everyone[: ends.size], cap, lo + then, astray)
        ends, at = next_ends, then
    return left, before, after, cost


@kernel
def rehearse(
    loads: Floats, states: Floats, matrix: Floats, lo: int, tau: float, weights: Floats, drift: float, afar: float,
    steps: int, restart: int, seed: int,
) -> float:  # fmt: skip
    """Migrate `steps` times by these weights and return the mean share of state that moves.

    What happens does not depend on the weights: with the same seed, all weights face the same loads and numbers.
    """
    np.random.seed(seed)
    sizes, m = matrix.shape[0], loads.size
    everyone = np.ones(lo + sizes, dtype=np.bool_)
    load, state = loads / loads.sum(), states / states.sum()
    load_sums, state_sums = prefix_sums(load), prefix_sums(state)
    at, ends, cost = 0, np.full(1, m), 0.0
    none = np.zeros(weights.shape[1])
    for t in range(steps):
        if t % restart == 0:
            load, state = shaken(loads, afar), shaken(states, afar / 2)
            load_sums, state_sums = prefix_sums(load), prefix_sums(state)
            at = np.random.randint(sizes)
            cap = cap_for(load_sums, lo + at, 0.0)
            nothing = np.zeros(2, dtype=np.int64)
            nothing[1] = m
            ends, keepers, _ = best(load_sums, state_sums, nothing, everyone[:1], cap, lo + at, none)
        at = drawn(matrix[at])
        if drift > 0:
            load, state = shaken(load, drift), shaken(state, drift / 2)
            load_sums, state_sums = prefix_sums(load), prefix_sums(state)
        edge = edges_of(ends)
        cap = cap_for(load_sums, lo + at, tau)
        new_ends, keepers, _ = best(load_sums, state_sums, edge, everyone[: ends.size], cap, lo + at, weights[at])
        cost += moved(state_sums, edge, new_ends, keepers)
        ends = new_ends
    return cost / steps
