"""The cheapest assignment to given workers: first a good one, then a better one, then a proof.

Where the planner chooses who leaves, `choices` says which sets of workers are looked at. Where nothing keeps the cap,
`level` spreads bins as evenly as can be, whatever it costs. It does not use tau, so a plan at the smallest tau found
finds the same assignment again.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable
from typing import NamedTuple, ParamSpec, TypeVar

import numpy as np

from meander.kernel import Kernel
from meander.planning import free_branch, free_kernel
from meander.planning.free_case import NOWHERE, SAME, Floats, FreeCase, Ints, whole_grains
from meander.planning.problem import ROUNDING, Problem
from meander.types import WorkerId

SHED_STEPS = 20_000
"""Steps of the search for what one worker sheds."""

WHOLE = 64
"""Bins and workers up to which branch and bound looks at all of them at once."""

EVEN_STEPS = 50_000_000
"""Pairs of bins looked at while evening out loads: less than a tenth of a second."""

LOOSE = (0.05, 0.1, 0.2, 0.4)
"""Parts of all bins, the lightest ones, that are spread anew where room is tight."""

NEAR = 0.98
"""How near the bounds come by halving."""

MANY = 1000
"""Choices that are all listed; where there are more, those near the most promising one are."""

FEW = 16
"""Choices whose most even assignment is looked for."""

LIGHT = 2048
"""Bins times workers up to which the first plans of a process do without compiled kernels where they can."""

Workers = tuple[WorkerId, ...]
Args = ParamSpec("Args")
Result = TypeVar("Result")


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
    at, free, floors = _light(free_kernel.shed, case)(load, state, home, case.room, order, SHED_STEPS)
    floor = case.forced + float(floors.sum())
    if floor >= ceiling * SAME:
        return Candidate(case, None, math.inf, floor)
    cost = _light(free_kernel.settle, case)(load, state, home, order, at, free, math.inf, 4 * load.size + 100)
    if math.isinf(cost):
        return even_out(case, at, floor)
    dearest = free_kernel.descending(state)
    _light(free_kernel.improve, case)(load, state, home, order, dearest, at, free, cost, _tries(case))
    return Candidate(case, at, case.cost(at), floor)


def even_out(case: FreeCase, at: Ints, floor: float) -> Candidate:
    """Make an assignment of this one, in which bins may be NOWHERE or loads too high, by moves and swaps."""
    at = at.copy()
    used = case.held + np.bincount(at[at != NOWHERE], case.load[at != NOWHERE], minlength=case.speed.size)
    heaviest = free_kernel.descending(case.load)
    free_kernel.flatten(case.load, case.state, case.home, heaviest, at, used, case.speed, case.limit, EVEN_STEPS)
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
    load, state, home, free = case.load, case.state, case.home, _free(case, at)
    order, dearest = free_kernel.by_bytes_per_load(load, state), free_kernel.descending(state)
    improve = _light(free_kernel.improve, case)
    improve(load, state, home, order, dearest, at, free, case.chosen(at), _tries(case))
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
        dearest, bytes_ = free_kernel.descending(state), case.chosen(at)
        _, visits = free_branch.rework(load, state, home, order, dearest, at, _free(case, at), bytes_, nodes - visited)
        visited += visits
        candidate = better(case, at, candidate.floor)
    return candidate, visited


def _light(step: Kernel[Args, Result], case: FreeCase) -> Callable[Args, Result]:
    """The step by the interpreter in the first plans of a process, where that takes less than compiling it."""
    return step.lightly if case.load.size * case.room.size <= LIGHT else step


def _free(case: FreeCase, at: Ints) -> Floats:
    return case.room - np.bincount(at, case.load, minlength=case.room.size)


def _tries(case: FreeCase) -> int:
    """How often a bin without room at home is tried there: a few tenths of a second, however many bins there are."""
    return max(200, 2_000_000 // max(1, case.load.size))


class Level(NamedTuple):
    """An even assignment, its highest load per unit of capacity, and whether there is provably none more even."""

    case: FreeCase
    at: Ints
    height: float
    is_proven: bool

    @property
    def tau(self) -> float:
        """The tau that allows this assignment."""
        total = float(self.case.load.sum() + self.case.held.sum())
        return self.height * float(self.case.speed.sum()) / total - 1


def level(case: FreeCase, nodes: int) -> Level:
    """Spread the bins as evenly as can be found: the heaviest first, then moves and swaps, then branch and bound.

    The last only for few bins. It searches below ever lower heights until there is nothing to be found, or until
    `nodes` nodes are spent.
    """
    load, speed = case.load, case.speed
    at = np.full(load.size, NOWHERE, dtype=np.int64)
    heaviest = free_kernel.descending(load)
    free_kernel.flatten(load, case.state, case.home, heaviest, at, case.held.copy(), speed, 0.0, EVEN_STEPS)
    height, low = _height(case, at), _floor(case)
    while low < height * (1 - ROUNDING):
        # Halve what is in doubt, but not without end: that nothing lies just below `height` has to be proven only once.
        goal = (low + height) / 2 if low < NEAR * height else height * (1 - ROUNDING)
        room = whole_grains(goal * speed - case.held, case.grain)
        if room.sum() < load.sum() * (1 - ROUNDING):
            low = goal
            continue
        if max(load.size, speed.size) > WHOLE or nodes <= 0:
            break
        spread, _, visits = free_branch.branch(load, np.zeros(load.size), case.home, room, np.inf, nodes)
        if (spread != NOWHERE).all():
            at, height = spread, _height(case, spread)
        elif visits < nodes:
            low = goal
        nodes -= visits
    return Level(case, at, height, low >= height * (1 - ROUNDING))


def _height(case: FreeCase, at: Ints) -> float:
    return float((case.loads(at) / case.speed).max())


def _floor(case: FreeCase) -> float:
    """No assignment is more even than this."""
    evenly = (case.held.sum() + case.load.sum()) / case.speed.sum()
    heaviest = ((case.held + case.load.max(initial=0.0)) / case.speed).min()
    return float(max(evenly, heaviest, (case.held / case.speed).max()))


def choices(problem: Problem, about: int) -> tuple[list[Workers], bool]:
    """Return sets of workers that may be there afterwards, most promising first, and whether these are all.

    Where there are very many, it returns `about` so many around the most promising one.

    A worker that stays has to shed some bytes at least, one that leaves sheds all: those for whom the difference is
    small should leave. With equal capacities the sum of it is a lower bound and its order that of the bounds.
    """
    if not problem.planner_chooses:
        return [problem.default_targets], True
    price = _price_of_leaving(problem)
    leaving = len(problem.survivors) - problem.wanted
    every = math.comb(len(price), leaving) <= MANY
    groups: Iterable[Workers]
    if every:
        groups = itertools.combinations(price, leaving)
    else:
        cheapest = tuple(sorted(price, key=lambda w: (price[w], -w)))
        groups = _around(cheapest[:leaving], cheapest[leaving:], math.isqrt(about) + 1)
    ranked = []
    for group in groups:
        gone = set(group)
        ranked.append((math.fsum(price[w] for w in group), tuple(w for w in problem.survivors if w not in gone)))
    return [workers for _, workers in sorted(ranked)], every


def even_choices(problem: Problem) -> tuple[list[Workers], bool]:
    """Return sets of workers that differ in how evenly bins can be spread over them, and whether these are all.

    Only their capacities matter for that, and tau does not. Sets of fast workers come first.
    """
    if not problem.planner_chooses:
        return [problem.default_targets], True
    others = [w for w in problem.survivors if w not in problem.holders]
    staying = problem.wanted - len(problem.holders)
    by_speed = sorted(others, key=lambda w: (-problem.capacity(w), w))
    groups = itertools.combinations(by_speed, staying)
    if problem.has_equal_capacities:
        return [tuple(sorted((*problem.holders, *next(groups))))], True
    different: dict[tuple[float, ...], Workers] = {}
    for group in itertools.islice(groups, MANY):
        different.setdefault(tuple(problem.capacity(w) for w in group), tuple(sorted((*problem.holders, *group))))
    sets = list(different.values())
    return sets[:FEW], len(sets) <= FEW and math.comb(len(by_speed), staying) <= MANY


def largest_caps(problem: Problem) -> dict[WorkerId, float]:
    """Return for everyone who may be there the most load they could carry beside the slowest possible others."""
    everyone = problem.candidates
    slowest = sorted(problem.capacity(w) for w in everyone)
    beside = math.fsum(slowest[: problem.wanted - 1])
    last = slowest[problem.wanted - 1]
    unit = (1 + problem.tau) * problem.total_load
    return {w: unit * problem.capacity(w) / (beside + max(last, problem.capacity(w))) for w in everyone}


def _price_of_leaving(problem: Problem) -> dict[WorkerId, float]:
    """Return for each worker that may leave the bytes it sheds then, less those it would have to shed anyway."""
    speed = math.fsum(problem.capacity(w) for w in problem.survivors) * problem.wanted / len(problem.survivors)
    case = FreeCase.of(problem, problem.survivors, capacity=speed)
    order = free_kernel.by_bytes_per_load(case.load, case.state)
    room = np.maximum(case.room, 0)
    *_, floors = _light(free_kernel.shed, case)(case.load, case.state, case.home, room, order, SHED_STEPS)
    slot = {w: k for k, w in enumerate(problem.survivors)}
    bytes_ = np.zeros(len(slot) + 1)
    np.add.at(bytes_, [slot.get(w, NOWHERE) for w in problem.owner], problem.state_array)
    return {w: float(bytes_[k] - floors[k]) for w, k in slot.items() if w not in problem.holders}


def _around(group: Workers, others: Workers, few: int) -> list[Workers]:
    """The group, and those in which one of its last `few` members changes with one of the first `few` others."""
    swaps = itertools.product(range(max(0, len(group) - few), len(group)), others[:few])
    return [group, *((*group[:i], w, *group[i + 1 :]) for i, w in swaps)]
