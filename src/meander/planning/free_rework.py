"""Branch and bound on a few workers at a time: what brings `free` near the optimum where there are many bins."""

from __future__ import annotations

import numpy as np

from meander.kernel import kernel
from meander.planning.free_branch import branch
from meander.planning.free_case import NOWHERE, SAME, Floats, Ints

TEAM = 5
"""Workers looked at together."""

STRANGERS, NATIVES = 24, 6
"""Bins looked at together: moved ones of the whole team, and of each of the team those cheapest to move."""

NODES = 1000
"""Nodes of one search."""

LOTS = 2**31 - 1


@kernel
def rework(
    load: Floats, state: Floats, home: Ints, order: Ints, at: Ints, free: Floats, cost: float, nodes: int
) -> tuple[float, int]:
    """Search anew around each moved bin, in place; return the bytes moved then and the nodes visited.

    A team is the bin's home, the place where it is now and others drawn by lot. Of the team's bins, the moved
    ones and those cheapest to move may go anywhere within the team; the others stay. It ends when `nodes` are spent.
    """
    m, n = load.size, free.size
    dearest = np.argsort(-state, kind="mergesort")
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
            member[:] = NOWHERE
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
            natives[:] = 0
            for i in order:
                k = at[i]
                if member[k] >= 0 and home[i] == k and natives[k] < NATIVES:
                    natives[k] += 1
                    core[size] = i
                    size += 1
            some = core[:size]
            lodging, room, old = np.empty(size, dtype=np.int64), free[team], 0.0
            for x in range(size):
                i = some[x]
                lodging[x] = member[home[i]] if home[i] >= 0 else NOWHERE
                room[member[at[i]]] += load[i]
                if lodging[x] >= 0 and home[i] != at[i]:
                    old += state[i]
            to, new, looked = branch(load[some], state[some], lodging, room, old, NODES)
            visited += looked + size + m // 64  # what it takes to find them counts too
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
