"""Storm's default: the same number of consecutive bins for everyone, whatever they weigh."""

from __future__ import annotations

import math

from meander.planning.planner import Target, planner
from meander.planning.problem import Problem
from meander.types import WorkerId


@planner(keeps_cap=False)
def even(problem: Problem) -> Target:
    """Give each worker the same number of consecutive bins, by ascending id (Storm's default).

    Load and state are not looked at, so neither the load cap nor a low cost is promised. Counts differ by at
    most one, and lower ids get the larger ones. With capacities the counts are in proportion to them, by
    largest remainder.

    Pinned bins stay where they are, also inside another worker's interval; only without them is every answer
    contiguous. Where fewer workers are wanted, `Problem.default_targets` says who stays.

    >>> even(Problem(load=[9, 1, 1, 1, 1], state=[1] * 5, owner=[0] * 5, workers=2)).owner
    (0, 0, 0, 1, 1)
    """
    workers = list(problem.default_targets)
    owner = [w for w, count in zip(workers, _counts(problem, workers), strict=True) for _ in range(count)]
    for j in problem.pinned:
        owner[j] = problem.owner[j]
    return Target(owner, workers)


def _counts(problem: Problem, workers: list[WorkerId]) -> list[int]:
    """Return how many bins each worker gets: whole numbers in proportion to the capacities."""
    fastest = max(problem.capacity(w) for w in workers)
    speed = [problem.capacity(w) / fastest for w in workers]
    total = math.fsum(speed)
    fair = [problem.bins * x / total for x in speed]
    counts = [int(x) for x in fair]
    by_remainder = sorted(range(len(workers)), key=lambda i: (counts[i] - fair[i], i))
    for i in by_remainder[: problem.bins - sum(counts)]:
        counts[i] += 1
    return counts
