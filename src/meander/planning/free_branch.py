"""Branch and bound: the exact part of `free`, over all assignments of few bins, or over parts of those of many.

Bins are placed one after the other, the heaviest first. Three things keep the tree small. A *bound*: a worker whose
own bins do not all fit any more must shed some, and at least as many bytes as the cheapest of them, taken in fractions,
would cost. A *memory*: after the same number of bins, the same loads are never looked at twice, nor are they when
only workers without bins of their own still to come have changed places. And *waste*: room too small for any bin.
"""

from __future__ import annotations

import numpy as np

from meander.kernel import kernel
from meander.planning.free_case import NOWHERE, SAME, Floats, Ints

TEAM = 5
"""Workers looked at together."""

STRANGERS, NATIVES = 24, 6
"""Bins looked at together: moved ones of the whole team, and of each of the team those cheapest to move."""

NODES = np.int64(1000)
"""Nodes of one search; for a plain number Numba would compile one more variant of it."""

LOTS = 2**31 - 1


@kernel
def branch(
    load: Floats, state: Floats, home: Ints, room: Floats, ceiling: float, nodes: int | np.int64
) -> tuple[Ints, float, int]:
    """Return the cheapest assignment below `ceiling` bytes, its cost, and the nodes visited.

    Where there is none the assignment is NOWHERE for all bins and the cost is `ceiling`. The answer is proven as long
    as fewer than `nodes` nodes were visited. `home` is NOWHERE for bins whose owner leaves: they cost nothing here.
    """
    m, n = load.size, room.size
    order = _ascending(-load)
    place = np.empty(m, dtype=np.int64)
    for i in range(m):
        place[order[i]] = i
    rest = np.zeros(m + 1)
    for i in range(m - 1, -1, -1):
        rest[i] = rest[i + 1] + load[order[i]]
    lightest = load[order[m - 1]] if m else 0.0
    # Each worker's own bins, the cheapest per load first, and the place of the last of them.
    ratio = np.empty(m)
    for j in range(m):
        ratio[j] = state[j] / load[j]
    own, start = _own_bins(ratio, home, n)
    last = np.empty(n, dtype=np.int64)
    for k in range(n):
        last[k] = -1
    waiting = np.zeros(n)
    for j in range(m):
        if home[j] >= 0:
            last[home[j]] = max(last[home[j]], place[j])
            waiting[home[j]] += load[j]
    alike = np.empty(n, dtype=np.int64)
    for k in range(n):
        alike[k] = k
        for i in range(k):
            if room[i] == room[k]:
                alike[k] = i
                break
    grain = np.empty(n)
    for k in range(n):
        grain[k] = 1099511627776.0 / max(room[k], 1e-300)  # 2**40
    slots = 1024
    while slots < nodes and slots < 1 << 17:
        slots *= 2
    seen = np.zeros(slots, dtype=np.int64)
    seen_cost = np.empty(slots)

    used, bound = np.zeros(n), np.zeros(n)
    for k in range(n):
        bound[k] = _shed(k, used[k], waiting[k], np.int64(-1), room, load, state, ratio, own, start, place)
    cost = np.zeros(m + 1)
    total = np.zeros(m + 1)
    for k in range(n):
        total[0] += bound[k]
    child, child_bound = np.empty((m + 1, n), dtype=np.int64), np.empty((m + 1, n))
    count, turn = np.zeros(m + 1, dtype=np.int64), np.zeros(m + 1, dtype=np.int64)
    kept_used, kept_home, kept_target = np.empty(m + 1), np.empty(m + 1), np.empty(m + 1)
    slot, best_at = np.empty(m + 1, dtype=np.int64), np.empty(m, dtype=np.int64)
    for i in range(m):
        slot[i] = best_at[i] = NOWHERE
    best = ceiling

    visited, d, fresh = 0, np.int64(0), True  # a plain 0 would have two variants of what it is given to compiled
    while d >= 0:
        if fresh:
            fresh = False
            visited += 1
            count[d] = turn[d] = 0
            if visited >= nodes:
                break
            if d == m:
                if cost[d] < best * SAME or best == np.inf:
                    best = cost[d]
                    for i in range(m):
                        best_at[order[i]] = slot[i]
            elif not _wasted(used, room, lightest, rest[d]) and not _known(
                d, cost[d], used, grain, last, alike, seen, seen_cost
            ):
                b = order[d]
                h = home[b]
                home_bound = 0.0
                if h >= 0:
                    left = waiting[h] - load[b]
                    home_bound = _shed(h, used[h], left, d, room, load, state, ratio, own, start, place)
                for t in range(n):
                    if used[t] + load[b] > room[t]:
                        continue
                    twin = False
                    if last[t] < d:
                        for i in range(t):
                            if last[i] < d and alike[i] == alike[t] and used[i] == used[t]:
                                twin = True
                                break
                    if twin:
                        continue
                    filled = used[t] + load[b]
                    if t == h:
                        new = _shed(t, filled, waiting[t] - load[b], d, room, load, state, ratio, own, start, place)
                        value = total[d] - bound[t] + new
                    else:
                        new = _shed(t, filled, waiting[t], d, room, load, state, ratio, own, start, place)
                        value = total[d] - bound[t] + new
                        if h >= 0:
                            value += state[b] - bound[h] + home_bound
                    if value >= best * SAME and best < np.inf:
                        continue
                    # The most promising first; among equals home, then where the least room is left.
                    i = count[d]
                    key = room[t] - filled if t != h else -1.0
                    while i > 0:
                        o = child[d, i - 1]
                        other = room[o] - used[o] - load[b] if o != h else -1.0
                        if child_bound[d, i - 1] < value or (child_bound[d, i - 1] == value and other <= key):
                            break
                        child[d, i], child_bound[d, i] = o, child_bound[d, i - 1]
                        i -= 1
                    child[d, i], child_bound[d, i] = t, value
                    count[d] += 1
        if turn[d] < count[d] and (best == np.inf or child_bound[d, turn[d]] < best * SAME):
            b = order[d]
            t, h = child[d, turn[d]], home[b]
            turn[d] += 1
            slot[d] = t
            kept_used[d], kept_target[d] = used[t], bound[t]
            used[t] += load[b]
            if h >= 0:
                kept_home[d] = bound[h]
                waiting[h] -= load[b]
                bound[h] = _shed(h, used[h], waiting[h], d, room, load, state, ratio, own, start, place)
            if t != h:
                bound[t] = _shed(t, used[t], waiting[t], d, room, load, state, ratio, own, start, place)
            cost[d + 1] = cost[d] + (state[b] if t != h and h >= 0 else 0.0)
            sum_ = 0.0
            for k in range(n):
                sum_ += bound[k]
            total[d + 1] = cost[d + 1] + sum_
            d += 1
            fresh = True
        else:
            d -= 1
            if d >= 0:
                b = order[d]
                t, h = slot[d], home[b]
                used[t], bound[t] = kept_used[d], kept_target[d]
                if h >= 0:
                    bound[h] = kept_home[d]
                    waiting[h] += load[b]
    return best_at, best, visited


@kernel
def _ascending(values: Floats) -> Ints:
    """The places of the values, the lowest first, equal ones as they come. For few values, as one search has."""
    order = np.empty(values.size, dtype=np.int64)
    for i in range(values.size):
        at = i
        while at > 0 and values[order[at - 1]] > values[i]:
            order[at] = order[at - 1]
            at -= 1
        order[at] = i
    return order


@kernel
def _own_bins(ratio: Floats, home: Ints, n: int) -> tuple[Ints, Ints]:
    """Each worker's own bins, the cheapest per load first, as one list and where each worker's part starts."""
    start = np.zeros(n + 1, dtype=np.int64)
    for h in home:
        if h >= 0:
            start[h + 1] += 1
    for k in range(n):
        start[k + 1] += start[k]
    own = np.empty(start[n], dtype=np.int64)
    fill = start[:n].copy()
    for j in _ascending(ratio):
        if home[j] >= 0:
            own[fill[home[j]]] = j
            fill[home[j]] += 1
    return own, start


@kernel
def _shed(
    k: int,
    used: float,
    waiting: float,
    d: int | np.int64,
    room: Floats,
    load: Floats,
    state: Floats,
    ratio: Floats,
    own: Ints,
    start: Ints,
    place: Ints,
) -> float:
    """The bytes worker k must shed at least of its own bins placed after d, so that the others fit.

    Martello and Toth's bound: the first bin that covers the rest of the need goes whole, or stays whole.
    """
    need = used + waiting - room[k]
    if need <= 0:
        return 0.0
    bytes_, before = 0.0, -1
    for i in range(start[k], start[k + 1]):
        j = own[i]
        if place[j] <= d:
            continue
        if load[j] < need:
            need -= load[j]
            bytes_ += state[j]
            before = j
            continue
        with_it = bytes_ + state[j]
        if before >= 0:
            with_it -= (load[j] - need) * ratio[before]
        without = np.inf
        for o in range(i + 1, start[k + 1]):
            if place[own[o]] > d:
                without = bytes_ + need * ratio[own[o]]
                break
        return float(min(with_it, without))
    return bytes_


@kernel
def _wasted(used: Floats, room: Floats, lightest: float, rest: float) -> bool:
    """Whether what is left cannot fit, because room too small for any bin does not count."""
    usable = 0.0
    for k in range(room.size):
        if room[k] - used[k] >= lightest:
            usable += room[k] - used[k]
    return usable < rest * SAME


@kernel
def _known(
    d: int | np.int64, cost: float, used: Floats, grain: Floats, last: Ints, alike: Ints, seen: Ints, seen_cost: Floats
) -> bool:
    """Whether the same loads were reached before at no higher cost; else remember them."""
    n = used.size
    key = np.int64(d + 1) * np.int64(0x9E3779B97F4A7C1)
    for k in range(n):
        who = k if last[k] >= d else n + alike[k]
        part = np.int64(round(used[k] * grain[k])) + np.int64(who) * np.int64(0x632BE59BD9B4E01)
        part = (part ^ (part >> 29)) * np.int64(0x3F58476D1CE4E5B9)
        part = (part ^ (part >> 32)) * np.int64(0x14D049BB133111EB)
        key += part ^ (part >> 31)
    key = (key ^ (key >> 30)) * np.int64(0x3F58476D1CE4E5B9)
    key |= 1
    slot = (key >> 5) & (seen.size - 1)
    if seen[slot] == key and seen_cost[slot] <= cost:
        return True
    seen[slot], seen_cost[slot] = key, cost
    return False


@kernel
def rework(
    load: Floats, state: Floats, home: Ints, order: Ints, dearest: Ints, at: Ints, free: Floats, cost: float, nodes: int
) -> tuple[float, int]:
    """Search anew around each moved bin, the `dearest` first, in place; return the bytes moved then and nodes visited.

    A team is the bin's home, the place where it is now and others drawn by lot. Of the team's bins, the moved
    ones and those cheapest to move may go anywhere within the team; the others stay. It ends when `nodes` are spent.
    """
    m, n = load.size, free.size
    core, natives = np.empty(m, dtype=np.int64), np.empty(n, dtype=np.int64)
    team, member = np.empty(min(TEAM, n), dtype=np.int64), np.empty(n, dtype=np.int64)
    lot, visited, before = np.int64(1), 0, -1
    while before < visited < nodes:
        before = visited
        for j in dearest:
            if home[j] < 0 or at[j] == home[j] or state[j] <= 0:
                continue
            if visited >= nodes:
                break
            for w in range(n):
                member[w] = NOWHERE
            team[0], team[1] = home[j], at[j]
            member[home[j]], member[at[j]] = 0, 1
            lot = _next(lot)
            start = (lot >> 33) & LOTS
            for x in range(2, team.size):
                lot = _next(lot)
                k = ((lot >> 33) & LOTS) % n
                while member[k] >= 0:
                    k = (k + 1) % n
                member[k], team[x] = x, k
            size = 0
            for x in range(m):
                i = (start + x) % m
                if member[at[i]] >= 0 and at[i] != home[i] and (size < STRANGERS or i == j):
                    core[size] = i
                    size += 1
            for w in range(n):
                natives[w] = 0
            for i in order:
                k = at[i]
                if member[k] >= 0 and home[i] == k and natives[k] < NATIVES:
                    natives[k] += 1
                    core[size] = i
                    size += 1
            some = core[:size]
            lodging, room, old = np.empty(size, dtype=np.int64), np.empty(team.size), 0.0
            weights, bytes_ = np.empty(size), np.empty(size)
            for x in range(team.size):
                room[x] = free[team[x]]
            for x in range(size):
                i = some[x]
                weights[x], bytes_[x] = load[i], state[i]
                lodging[x] = member[home[i]] if home[i] >= 0 else NOWHERE
                room[member[at[i]]] += load[i]
                if lodging[x] >= 0 and home[i] != at[i]:
                    old += state[i]
            to, new, visits = branch(weights, bytes_, lodging, room, old, NODES)
            visited += visits + size + m // 64  # what it takes to find them counts too
            if new < old * SAME:
                cost += new - old
                for x in range(size):
                    free[at[some[x]]] += load[some[x]]
                for x in range(size):
                    at[some[x]] = team[to[x]]
                    free[at[some[x]]] -= load[some[x]]
    return cost, visited


@kernel
def _next(lot: np.int64) -> np.int64:
    """The next of a fixed sequence of lots (Knuth's multiplier); its high bits are random enough."""
    return lot * np.int64(6364136223846793005) + np.int64(1442695040888963407)
