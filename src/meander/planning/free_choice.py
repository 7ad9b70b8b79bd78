"""Who leaves: the choices of workers that `free` looks at, where it has one."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable

import numpy as np

from meander.planning import free_kernel
from meander.planning.free_case import NOWHERE, FreeCase
from meander.planning.free_search import SHED_STEPS
from meander.planning.problem import Problem
from meander.types import WorkerId

MANY = 1000
"""Choices that are all listed; where there are more, those near the most promising one are."""

FEW = 16
"""Choices whose most even assignment is looked for."""

Workers = tuple[WorkerId, ...]


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
    *_, floors = free_kernel.shed(case.load, case.state, case.home, np.maximum(case.room, 0), order, SHED_STEPS)
    slot = {w: k for k, w in enumerate(problem.survivors)}
    bytes_ = np.zeros(len(slot) + 1)
    np.add.at(bytes_, [slot.get(w, NOWHERE) for w in problem.owner], problem.state_array)
    return {w: float(bytes_[k] - floors[k]) for w, k in slot.items() if w not in problem.holders}


def _around(group: Workers, others: Workers, few: int) -> list[Workers]:
    """The group, and those in which one of its last `few` members changes with one of the first `few` others."""
    swaps = itertools.product(range(max(0, len(group) - few), len(group)), others[:few])
    return [group, *((*group[:i], w, *group[i + 1 :]) for i, w in swaps)]
