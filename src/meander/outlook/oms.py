"""OMS: the cheapest way through a known sequence of migrations (Ding et al., section 4.1)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from meander.errors import InvalidOption, InvalidProblem, TooLarge
from meander.outlook.partitions import Cuts, as_table, cheapest, partitions
from meander.planning.intervals import Piece, no_intervals, prefix_sums, target_of
from meander.planning.planner import Plan, Target, planner
from meander.planning.problem import Problem

MOST_PARTITIONINGS = 50_000
MOST_PAIRS = 100_000_000
"""Pairs of neighbouring partitionings that are compared: about ten seconds."""


class PlanSequence(tuple[Plan, ...]):
    """One plan for each migration, in order. `cost` is what they move together."""

    @property
    def cost(self) -> float:
        """Bytes moved by all plans together."""
        return sum(plan.cost for plan in self)


def oms(problem: Problem, steps: Sequence[tuple[int, float]] = ()) -> PlanSequence:
    """Return the plans that move the fewest bytes over all steps together, one for each step.

    Args:
        problem: where things stand.
        steps: the number of workers and the tau of each migration, in order; without any, the problem's own.

    Raises:
        TooLarge: there are too many partitionings to look at all of them.
        Infeasible: a step has no contiguous assignment within its cap.

    Example:
        >>> start = Problem(load=[1] * 20, state=[1] * 20, owner=[0] * 13 + [1] * 7, workers=3, tau=0.4)
        >>> oms(start, [(3, 0.4), (4, 0.4)]).cost
        6
    """
    wanted = _pairs("steps", steps) or [(problem.wanted, problem.tau)]
    if problem.pinned or not problem.has_equal_capacities:
        raise InvalidProblem("oms plans for equal workers, without pinned bins; use planner 'ssm', one step at a time")
    if (problem.wanted, problem.tau) != wanted[0]:
        problem = replace(problem, workers=wanted[0][0], tau=wanted[0][1], capacities={})
    load, state = prefix_sums(problem.load_array), prefix_sums(problem.state_array)
    stages = [
        _partitionings(replace(problem, workers=n, tau=tau, must_leave=(), capacities={}), load) for n, tau in wanted
    ]
    pairs = sum(len(a) * len(b) for a, b in pairwise(stages))
    if pairs > MOST_PAIRS:
        raise TooLarge(
            f"oms would compare {pairs} pairs of partitionings, the limit is {MOST_PAIRS}; "
            "use fewer bins, a smaller tau or planner 'ssm' step by step"
        )
    onward, choices = _backwards(state, stages)
    now = np.array([_match(problem, cuts)[0] for cuts in stages[0]])
    best = int(np.argmin(state[-1] - now + onward))
    plans: list[Plan] = []
    for step, stage in enumerate(stages):
        if plans:
            before = plans[-1]
            workers, tau = wanted[step]
            idle = sorted(set(before.workers) - set(before.owner))
            problem = Problem(problem.load, problem.state, before.owner, workers, tau, idle=idle)
            best = int(choices[step - 1][best])
        target = target_of(problem, _match(problem, stage[best])[1])
        plans.append(Plan.of(problem, target.owner, target.workers, planner="oms"))
    return PlanSequence(plans)


@planner(name="oms", keeps_cap=True, contiguous=True)
def first_of_sequence(problem: Problem, then: Sequence[tuple[int, float]] = ()) -> Target:
    """The first step of the cheapest way through a known sequence of migrations; small problems only.

    Args:
        problem: the migration to plan now, to problem.workers at problem.tau.
        then: the migrations that will follow it, as (workers, tau) each.
    """
    plan = oms(problem, [(problem.wanted, problem.tau), *_pairs("then", then)])[0]
    return Target(list(plan.owner), list(plan.workers))


def _pairs(name: str, steps: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    try:
        return [(workers, tau) for workers, tau in steps]
    except (TypeError, ValueError):
        raise InvalidOption(f"{name} must be a list of (workers, tau), such as [[3, 0.4], [4, 0.4]]") from None


def _partitionings(step: Problem, load: NDArray[np.float64]) -> list[Cuts]:
    cap = (1 + step.tau) * step.total_load / step.wanted
    try:
        partitionings = partitions(load, step.wanted, cap, MOST_PARTITIONINGS)
    except TooLarge as error:
        raise TooLarge(f"{error}; oms looks at all of them: use fewer bins, a smaller tau or planner 'ssm'") from None
    if not partitionings:
        raise no_intervals(step)
    return partitionings


def _backwards(
    state: NDArray[np.float64], stages: list[list[Cuts]]
) -> tuple[NDArray[np.float64], list[NDArray[np.int64]]]:
    """Return the cost from each partitioning of the first stage to the end, and each stage's best successors."""
    tables = [as_table(stage) for stage in stages]
    onward = np.zeros(len(stages[-1]))
    choices: list[NDArray[np.int64]] = []
    for froms, tos in zip(reversed(tables[:-1]), reversed(tables[1:]), strict=True):
        onward, choice = cheapest(state, froms, tos, onward)
        choices.insert(0, choice)
    return onward, choices


def _match(problem: Problem, cuts: Cuts) -> tuple[float, list[Piece]]:
    """Give a fixed partitioning to the workers so that the most state stays: (bytes that stay, pieces)."""
    from scipy.optimize import linear_sum_assignment  # slow to import, and rarely needed

    stays = problem.survivors
    begins = (0, *cuts[:-1])
    overlap = np.zeros((len(stays), len(cuts)))
    index = {w: i for i, w in enumerate(stays)}
    for p, (begin, end) in enumerate(zip(begins, cuts, strict=True)):
        for j in range(begin, end):
            if problem.owner[j] in index:
                overlap[index[problem.owner[j]], p] += problem.state[j]
    rows, columns = linear_sum_assignment(overlap, maximize=True)
    keeper = {int(p): stays[w] for w, p in zip(rows, columns, strict=True) if overlap[w, p] > 0}
    speed = problem.capacity(problem.candidates[0])
    pieces = [Piece(b, e, keeper.get(p), speed) for p, (b, e) in enumerate(zip(begins, cuts, strict=True))]
    return math.fsum(overlap[rows, columns]), pieces
