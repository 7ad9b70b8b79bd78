"""The cheapest assignment to given workers: first a good one, then a better one, then a proof."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from meander.planning import free_branch, free_kernel, free_level_kernel
from meander.planning.free_case import NOWHERE, SAME, Floats, FreeCase, Ints

SHED_STEPS = 20_000
"""Steps of the search for what one worker sheds."""

WHOLE = 64
"""Bins and workers up to which branch and bound looks at all of them at once."""

EVEN_STEPS = 50_000_000
"""Pairs of bins looked at while evening out loads: less than a tenth of a second."""

LOOSE = (0.05, 0.1, 0.2, 0.4)
"""Parts of all bins, the lightest ones, that are spread anew where room is tight."""


class Candidate(NamedTuple):
    """An assignment to a case's workers (None if there is none yet), its cost, and what no assignment can beat."""

    case: FreeCase
    at: Ints | None
    cost: float
    floor: float

    @property
    def is_proven(self) -> bool:
        """Whether no assignment to these workers costs less."""
        return self.cost * SAME <= self.floor


def first(case: FreeCase, ceiling: float) -> Candidate:
    """Shed the cheapest bins of workers with too much, and settle them where there is room.

    Return only the floor where it shows that nothing costs less than `ceiling`.
    """
    if case.is_hopeless:
        return Candidate(case, None, math.inf, math.inf)
    load, state, home = case.load, case.state, case.home
    order = free_kernel.by_bytes_per_load(load, state)
    at, free, floors = free_kernel.shed(load, state, home, case.room, order, SHED_STEPS)
    floor = case.forced + float(floors.sum())
    if floor >= ceiling * SAME:
        return Candidate(case, None, math.inf, floor)
    cost = free_kernel.settle(load, state, home, order, at, free, math.inf, 4 * load.size + 100)
    if math.isinf(cost):
        return even_out(case, at, floor)
    free_kernel.improve(load, state, home, order, at, free, cost, _tries(case))
    return Candidate(case, at, case.cost(at), floor)


def even_out(case: FreeCase, at: Ints, floor: float) -> Candidate:
    """Make an assignment of this one, in which bins may be NOWHERE or loads too high, by moves and swaps."""
    at = at.copy()
    used = case.held + np.bincount(at[at != NOWHERE], case.load[at != NOWHERE], minlength=case.speed.size)
    free_level_kernel.flatten(case.load, case.state, case.home, at, used, case.speed, case.limit, EVEN_STEPS)
    return better(case, at, floor) if case.keeps_cap(at) else Candidate(case, None, math.inf, floor)


def loosened(case: FreeCase, floor: float) -> Candidate:
    """Leave the heavy bins where they are and spread ever more of the light ones anew, until the cap is kept."""
    by_load = np.argsort(case.load, kind="stable")
    for part in LOOSE:
        at = case.home.copy()
        at[by_load[: int(part * at.size)]] = NOWHERE
        candidate = even_out(case, at, floor)
        if candidate.at is not None:
            return candidate
    return Candidate(case, None, math.inf, floor)


def better(case: FreeCase, at: Ints, floor: float) -> Candidate:
    """Bring moved bins home as long as that saves bytes."""
    at = at.copy()
    order = free_kernel.by_bytes_per_load(case.load, case.state)
    free_kernel.improve(case.load, case.state, case.home, order, at, _free(case, at), case.chosen(at), _tries(case))
    return Candidate(case, at, case.cost(at), floor)


def best(candidate: Candidate, ceiling: float, nodes: int) -> tuple[Candidate, int]:
    """Search for an assignment cheaper than `candidate` and than `ceiling`; return the best, and the nodes visited."""
    case, visited = candidate.case, 0
    load, state, home = case.load, case.state, case.home
    if max(load.size, case.room.size) <= WHOLE:
        most = nodes if candidate.at is None else nodes // 2 + 1
        start = min(candidate.cost, ceiling) - case.forced
        at, _, visited = free_branch.branch(load, state, home, case.room, start, most)
        if (at != NOWHERE).all():
            candidate = better(case, at, candidate.floor)
        if visited < most:
            return candidate._replace(floor=max(candidate.floor, min(candidate.cost, ceiling))), visited
    if candidate.at is not None:
        at = candidate.at.copy()
        order = free_kernel.by_bytes_per_load(load, state)
        bytes_ = case.chosen(at)
        _, visits = free_branch.rework(load, state, home, order, at, _free(case, at), bytes_, nodes - visited)
        visited += visits
        candidate = better(case, at, candidate.floor)
    return candidate, visited


def _free(case: FreeCase, at: Ints) -> Floats:
    return case.room - np.bincount(at, case.load, minlength=case.room.size)


def _tries(case: FreeCase) -> int:
    """How often a bin without room at home is tried there: a few tenths of a second, however many bins there are."""
    return max(200, 2_000_000 // max(1, case.load.size))
