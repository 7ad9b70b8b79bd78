"""Which bins to shed, where to put them, how to even out loads: the inner loops of `free` for any number of bins.

All of them see one choice of workers as four arrays. Bin j weighs load[j] > 0, costs state[j] bytes to move and lives
at home[j]: a slot, or NOWHERE where its owner leaves, and then it costs nothing here. Slot k holds at most room[k].
An assignment is `at`, a slot for each bin, with `free` the room that is left.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from meander.kernel import kernel
from meander.planning.free_case import NOWHERE, SAME, Floats, Ints

Flags = NDArray[np.bool_]

COVER_STEPS, RESETTLE_STEPS = np.int64(2000), np.int64(100)
"""Steps of searches that are only part of a larger one. For plain numbers Numba would compile one more variant."""


def by_bytes_per_load(load: Floats, state: Floats) -> Ints:
    """The bins, those that free the most load per byte first."""
    return np.argsort(state / load, kind="stable")


def descending(values: Floats) -> Ints:
    """The bins by these values, the highest first."""
    return np.argsort(-values, kind="stable")


@kernel
def _taken(values: Floats, which: Ints) -> Floats:
    some = np.empty(which.size)
    for i in range(which.size):
        some[i] = values[which[i]]
    return some


@kernel
def _sort(values: Floats) -> None:
    """Sort in place, ascending."""
    gap = 1
    while gap < values.size // 3:
        gap = 3 * gap + 1
    while gap > 0:
        for i in range(gap, values.size):
            value, at = values[i], i
            while at >= gap and values[at - gap] > value:
                values[at] = values[at - gap]
                at -= gap
            values[at] = value
        gap //= 3


@kernel
def cheapest_cover(load: Floats, state: Floats, need: float, steps: int | np.int64) -> tuple[Flags, float]:
    """Return bins of few bytes that weigh `need` or more, and a lower bound of the bytes of any such bins.

    The bins come by ascending bytes per load and weigh enough together. The search is depth first with Martello and
    Toth's bound: the first bin that covers the rest of the need goes whole, or stays whole. If it ends within
    `steps`, the answer is the cheapest.
    """
    m = load.size
    floor = _floor_by_count(load, state, need)
    weight, bytes_ = np.zeros(m + 1), np.zeros(m + 1)
    for i in range(m):
        weight[i + 1] = weight[i] + load[i]
        bytes_[i + 1] = bytes_[i] + state[i]
    rest, cost = np.empty(m + 1), np.empty(m + 1)
    taken, best, all_taken = np.zeros(m, np.bool_), np.empty(m, np.bool_), np.empty(m + 1, np.bool_)
    for i in range(m + 1):
        all_taken[i] = True
        if i < m:
            best[i] = True
    best_cost = np.inf
    rest[0], cost[0] = need, 0.0
    i, step = 0, 0
    while True:
        step += 1
        covered = rest[i] <= 0 or (i == m and all_taken[m])
        if covered and cost[i] < best_cost:
            best_cost = cost[i]
            for k in range(m):
                best[k] = k < i and taken[k]
        hopeless = covered or weight[m] - weight[i] < rest[i] * SAME
        if not hopeless:
            low, high = i, m - 1
            while low < high:
                middle = (low + high) // 2
                if weight[middle + 1] - weight[i] >= rest[i]:
                    high = middle
                else:
                    low = middle + 1
            sure = cost[i] + bytes_[low] - bytes_[i]
            left = rest[i] - (weight[low] - weight[i])
            bound = sure + state[low]
            if low > i:
                bound -= (load[low] - left) * (state[low - 1] / load[low - 1])
            if low + 1 < m:
                bound = min(bound, sure + left * (state[low + 1] / load[low + 1]))
            if step == 1:
                floor = max(floor, bound)
            hopeless = bound >= best_cost * SAME
        if best_cost * SAME <= floor or (step >= steps and best_cost < np.inf):
            return best, min(floor, best_cost)
        if hopeless:
            i -= 1
            while i >= 0 and not taken[i]:
                i -= 1
            if i < 0:
                return best, best_cost
            taken[i], all_taken[i + 1] = False, False
            rest[i + 1], cost[i + 1] = rest[i], cost[i]
        else:
            taken[i], all_taken[i + 1] = True, all_taken[i]
            rest[i + 1], cost[i + 1] = rest[i] - load[i], cost[i] + state[i]
        i += 1


@kernel
def _floor_by_count(load: Floats, state: Floats, need: float) -> float:
    """The bytes of the smallest bins, as many as are needed even of the heaviest: sharp where all weigh the same."""
    bytes_, weights = state.copy(), load.copy()
    _sort(bytes_)
    _sort(weights)
    cost, nothing = 0.0, need * (1 - SAME)
    for i in range(load.size):
        if need <= nothing:
            break
        need -= weights[load.size - 1 - i]
        cost += bytes_[i]
    return cost


@kernel
def shed(load: Floats, state: Floats, home: Ints, room: Floats, order: Ints, steps: int) -> tuple[Ints, Floats, Floats]:
    """Leave at home what fits, at the least bytes shed: (at, free, the bytes each worker must shed at least).

    What is shed is NOWHERE yet. `steps` bounds the search of each worker.
    """
    m, n = load.size, room.size
    at, free, floor = home.copy(), room.copy(), np.zeros(n)
    start = np.zeros(n + 1, dtype=np.int64)
    for j in range(m):
        if home[j] >= 0:
            free[home[j]] -= load[j]
            start[home[j] + 1] += 1
    for k in range(n):
        start[k + 1] += start[k]
    own, fill = np.empty(start[n], dtype=np.int64), start[:n].copy()
    for j in order:
        if home[j] >= 0:
            own[fill[home[j]]] = j
            fill[home[j]] += 1
    for k in range(n):
        if free[k] < 0:
            mine = own[start[k] : start[k + 1]]
            out, floor[k] = cheapest_cover(_taken(load, mine), _taken(state, mine), -free[k], steps)
            # Summed anew: the difference of large sums would be too coarse for a slow worker's small room.
            stays = 0.0
            for i in range(mine.size):
                if out[i]:
                    at[mine[i]] = NOWHERE
                else:
                    stays += load[mine[i]]
            free[k] = room[k] - stays
    return at, free, floor


@kernel
def settle(
    load: Floats, state: Floats, home: Ints, order: Ints, at: Ints, free: Floats, ceiling: float, steps: int | np.int64
) -> float:
    """Place every bin that is NOWHERE, in place, and return the bytes moved then; infinity if it fails.

    The heaviest comes first and goes home if it fits, else where it fits best. Where it fits nowhere it ejects
    lighter bins, at the worker where that costs the fewest bytes, and those have to be placed in turn. It fails
    where that does not help, or costs `ceiling` or more, or takes more than `steps` bins.
    """
    m, n = load.size, free.size
    cost, size = 0.0, 0
    pool = np.empty(m, dtype=np.int64)
    for j in range(m):
        if at[j] == NOWHERE:
            pool[size] = j
            size += 1
        elif home[j] >= 0 and at[j] != home[j]:
            cost += state[j]
    step = 0
    while size:
        step += 1
        if step > steps or cost >= ceiling:
            return np.inf
        top = 0
        for i in range(1, size):
            if load[pool[i]] > load[pool[top]] or (load[pool[i]] == load[pool[top]] and pool[i] < pool[top]):
                top = i
        j = pool[top]
        size -= 1
        pool[top] = pool[size]
        h, target = home[j], NOWHERE
        if h >= 0 and free[h] >= load[j]:
            target = h
        else:
            for k in range(n):
                if free[k] >= load[j] and (target < 0 or free[k] < free[target]):
                    target = k
        if target < 0:
            target = _where_to_eject(j, load, state, home, order, at, free)
            if target < 0:
                return np.inf
            for i in _ejected(j, target, load, state, home, order, at, free):
                if home[i] >= 0 and home[i] != target:
                    cost -= state[i]
                pool[size] = i
                size += 1
        at[j] = target
        free[target] -= load[j]
        if h >= 0 and target != h:
            cost += state[j]
    return cost if cost < ceiling else np.inf


@kernel
def _where_to_eject(j: int, load: Floats, state: Floats, home: Ints, order: Ints, at: Ints, free: Floats) -> int:
    """The worker where making room for bin j costs the fewest bytes, by a quick estimate; NOWHERE if there is none."""
    n = free.size
    weight, greedy, single = np.zeros(n), np.zeros(n), np.empty(n)
    for k in range(n):
        single[k] = np.inf
    for strangers in (True, False):
        for i in order:
            k = at[i]
            if k < 0 or load[i] >= load[j] or (home[i] != k) != strangers:
                continue
            need, price = load[j] - free[k], 0.0 if strangers else state[i]
            if load[i] >= need:
                single[k] = min(single[k], price)
            if weight[k] < need:
                weight[k] += load[i]
                greedy[k] += price
    target, best = NOWHERE, np.inf
    for k in range(n):
        if weight[k] >= load[j] - free[k]:
            price = min(single[k], greedy[k])
            if home[j] >= 0 and home[j] != k:
                price += state[j]
            if price < best:
                target, best = k, price
    return target


@kernel
def _ejected(j: int, target: int, load: Floats, state: Floats, home: Ints, order: Ints, at: Ints, free: Floats) -> Ints:
    """Take away the cheapest bins lighter than bin j whose load it needs at `target`, in place; none if too few."""
    some, size, weight = np.empty(load.size, dtype=np.int64), 0, 0.0
    for strangers in (True, False):
        for i in order:
            if at[i] == target and load[i] < load[j] and (home[i] != target) == strangers:
                some[size] = i
                size += 1
                weight += load[i]
    some = some[:size]
    need = load[j] - free[target]
    if weight < need:
        return some[:0]
    price = _taken(state, some)
    for x in range(size):
        if home[some[x]] != target:
            price[x] = 0.0
    out, _ = cheapest_cover(_taken(load, some), price, need, COVER_STEPS)
    count = 0
    for x in range(size):
        if out[x]:
            i = some[x]
            some[count] = i
            count += 1
            at[i] = NOWHERE
            free[target] += load[i]
    return some[:count]


@kernel
def improve(
    load: Floats, state: Floats, home: Ints, order: Ints, dearest: Ints, at: Ints, free: Floats, cost: float, tries: int
) -> float:
    """Bring moved bins home, the `dearest` first, as long as that saves bytes, in place; return the bytes moved then.

    Where there is no room at home, cheaper bins are ejected there and settled elsewhere; that is tried `tries` times.
    """
    while True:
        before = cost
        for j in dearest:
            h = home[j]
            if h < 0 or at[j] == h:
                continue
            if free[h] >= load[j]:
                free[at[j]] += load[j]
                free[h] -= load[j]
                at[j] = h
                cost -= state[j]
                continue
            if state[j] <= 0 or tries == 0:
                continue
            tries -= 1
            kept_at, kept_free = at.copy(), free.copy()
            free[at[j]] += load[j]
            at[j] = NOWHERE
            price = np.inf
            if _ejected(j, h, load, state, home, order, at, free).size:
                at[j] = h
                free[h] -= load[j]
                price = settle(load, state, home, order, at, free, cost * SAME, RESETTLE_STEPS)
            if price < np.inf:
                cost = price
            else:
                for i in range(at.size):
                    at[i] = kept_at[i]
                for k in range(free.size):
                    free[k] = kept_free[k]
        if cost >= before * SAME or tries == 0:
            return cost


@kernel
def flatten(
    load: Floats, state: Floats, home: Ints, heaviest: Ints, at: Ints, used: Floats, speed: Floats, enough: float,
    steps: int,
) -> float:  # fmt: skip
    """Even out an assignment, in place, until no load per speed exceeds `enough`; return the highest then.

    First every bin that is NOWHERE goes where it weighs least, the `heaviest` first. Then the worst off gives a bin to
    someone, or swaps one, so that the worse of the two is as well off as can be, and at equal merit for the fewest
    bytes. It ends early where that does not help, or after looking at `steps` pairs of bins. `used` is the load of
    each slot.
    """
    m, n = load.size, speed.size
    for j in heaviest:
        if at[j] == NOWHERE:
            target = 0
            for l in range(1, n):
                if (used[l] + load[j]) / speed[l] < (used[target] + load[j]) / speed[target]:
                    target = l
            at[j] = target
            used[target] += load[j]
    own = np.empty(m, dtype=np.int64)
    step = 0
    while True:
        k, worst = np.int64(0), float(used[0] / speed[0])
        for l in range(1, n):
            if used[l] / speed[l] > worst:
                k, worst = np.int64(l), float(used[l] / speed[l])
        if worst <= enough or step > steps:
            return worst
        size = 0
        for i in range(m):
            if at[i] == k:
                own[size] = i
                size += 1
        best, best_price = worst * SAME, np.inf
        give, take, to = NOWHERE, NOWHERE, NOWHERE
        for x in range(size):
            i = own[x]
            out = _price(i, k, state, home)
            for j in range(-n, m):
                # Below 0: nothing in return, from slot -1 - j.
                l = at[j] if j >= 0 else -1 - j
                back = load[j] if j >= 0 else 0.0
                if l == k or back >= load[i]:
                    continue
                mine = (used[k] - load[i] + back) / speed[k]
                theirs = (used[l] + load[i] - back) / speed[l]
                merit = max(mine, theirs, enough)
                if merit > best:
                    continue
                price = _price(i, l, state, home) - out
                if j >= 0:
                    price += _price(j, k, state, home) - _price(j, l, state, home)
                if merit < best or price < best_price:
                    best, best_price = merit, price
                    give, take, to = i, j, l
        step += size * (m + n)
        if give < 0:
            return worst
        at[give] = to
        used[k] -= load[give]
        used[to] += load[give]
        if take >= 0:
            at[take] = k
            used[k] += load[take]
            used[to] -= load[take]


@kernel
def _price(j: int, k: int | np.int64, state: Floats, home: Ints) -> float:
    """The bytes it costs that bin j is at slot k."""
    return float(state[j]) if home[j] >= 0 and home[j] != k else 0.0
