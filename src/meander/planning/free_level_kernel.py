"""Evening out loads by moves and swaps: the inner loop of `free_level`, and of `free` where room is tight."""

from __future__ import annotations

import numpy as np

from meander.kernel import kernel
from meander.planning.free_case import NOWHERE, SAME, Floats, Ints


@kernel
def flatten(
    load: Floats, state: Floats, home: Ints, at: Ints, used: Floats, speed: Floats, enough: float, steps: int
) -> float:
    """Even out an assignment, in place, until no load per speed exceeds `enough`; return the highest then.

    First every bin that is NOWHERE goes where it weighs least, the heaviest first. Then the worst off gives a bin to
    someone, or swaps one, so that the worse of the two is as well off as can be, and at equal merit for the fewest
    bytes. It ends early where that does not help, or after looking at `steps` pairs of bins. `used` is the load of
    each slot.
    """
    m, n = load.size, speed.size
    for j in np.argsort(-load, kind="mergesort"):
        if at[j] == NOWHERE:
            target = 0
            for k in range(1, n):
                if (used[k] + load[j]) / speed[k] < (used[target] + load[j]) / speed[target]:
                    target = k
            at[j] = target
            used[target] += load[j]
    own = np.empty(m, dtype=np.int64)
    step = 0
    while True:
        k = int(np.argmax(used / speed))
        worst = float(used[k] / speed[k])
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
def _price(j: int, k: int, state: Floats, home: Ints) -> float:
    """The bytes it costs that bin j is at slot k."""
    return float(state[j]) if home[j] >= 0 and home[j] != k else 0.0
