"""The cheapest assignment to given workers: first a good one, then a better one, then a proof."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from meander.planning import free_branch, free_kernel, free_level_kernel
from meander.planning.free_case import NOWHERE, SAME, Case, Floats, Ints

SHED_STEPS = 20_000
"""Steps of the search for what one worker sheds."""

WHOLE = 64
"""Bins and workers up to which branch and bound looks at all of them at once."""

EVEN_STEPS = 50_000_000
"""Pairs of bins looked at while evening out loads: less than a tenth of a second."""

LOOSE = (0.05, 0.1, 0.2, 0.4)
"""Parts of all bins, the lightest ones, that are spread anew where room is tight."""


class Found(NamedTuple):
    """An assignment to a case's workers (None if there is none yet), its cost, and what no assignment can beat."""

    case: Case
    at: Ints | None
    cost: float
    floor: float

    @property
    def is_proven(self) -> bool:
        """Whether no assignment to these workers costs less."""
        return self.cost * SAME <= self.floor


def first(case: Case, ceiling: float) -> Found:
    """Shed the cheapest bins of whoever has too much, and settle them where there is room.

    Only the floor is found where it says that nothing costs less than `ceiling`.
    """
    if case.is_hopeless:
        return Found(case, None, math.inf, math.inf)
    load, state, home = case.load, case.state, case.home
    order = free_kernel.by_bytes_per_load(load, state)
    at, free, floors = free_kernel.shed(load, state, home, case.room, order, SHED_STEPS)
    floor = case.forced + float(floors.sum())
    if floor >= ceiling * SAME:
        return Found(case, None, math.inf, floor)
    cost = free_kernel.settle(load, state, home, order, at, free, math.inf, 4 * load.size + 100)
    if math.isinf(cost):
        return even_out(case, at, floor)
    free_kernel.improve(load, state, home, order, at, free, cost, _tries(case))
    return Found(case, at, case.cost(at), floor)


def even_out(case: Case, at: Ints, floor: float) -> Found:
    """Make an assignment of this one, in which bins may be NOWHERE or loads too high, by shifts and swaps."""
    at = at.copy()
    used = case.held + np.bincount(at[at != NOWHERE], case.load[at != NOWHERE], minlength=case.speed.size)
    free_level_kernel.flatten(case.load, case.state, case.home, at, used, case.speed, case.limit, EVEN_STEPS)
    return better(case, at, floor) if case.keeps_cap(at) else Found(case, None, math.inf, floor)


def loosened(case: Case, floor: float) -> Found:
    """Leave the heavy bins where they are and spread ever more of the light ones anew, until the cap is kept."""
    by_load = np.argsort(case.load, kind="stable")
    for part in LOOSE:
        at = case.home.copy()
        at[by_load[: int(part * at.size)]] = NOWHERE
        found = even_out(case, at, floor)
        if found.at is not None:
            return found
    return Found(case, None, math.inf, floor)


def better(case: Case, at: Ints, floor: float) -> Found:
    """Bring moved bins home as long as that saves bytes."""
    at = at.copy()
    order = free_kernel.by_bytes_per_load(case.load, case.state)
    free_kernel.improve(case.load, case.state, case.home, order, at, _free(case, at), case.chosen(at), _tries(case))
    return Found(case, at, case.cost(at), floor)


def best(found: Found, ceiling: float, nodes: int) -> tuple[Found, int]:
    """Search for an assignment cheaper than `found` and than `ceiling`; return the best, and the nodes visited."""
    case, visited = found.case, 0
    load, state, home = case.load, case.state, case.home
    if max(load.size, case.room.size) <= WHOLE:
        most = nodes if found.at is None else nodes // 2 + 1
        start = min(found.cost, ceiling) - case.forced
        at, _, visited = free_branch.branch(load, state, home, case.room, start, most)
        if (at != NOWHERE).all():
            found = better(case, at, found.floor)
        if visited < most:
            return found._replace(floor=max(found.floor, min(found.cost, ceiling))), visited
    if found.at is not None:
        at = found.at.copy()
        order = free_kernel.by_bytes_per_load(load, state)
        bytes_ = case.chosen(at)
        _, looked = free_branch.rework(load, state, home, order, at, _free(case, at), bytes_, nodes - visited)
        visited += looked
        found = better(case, at, found.floor)
    return found, visited


def _free(case: Case, at: Ints) -> Floats:
    return case.room - np.bincount(at, case.load, minlength=case.room.size)


def _tries(case: Case) -> int:
    """How often a bin without room at home is tried there: a few tenths of a second, however many bins there are."""
    return max(200, 2_000_000 // max(1, case.load.size))
