"""What to move: from a `Problem` to a `Plan`, by one of several planners. Pure functions; Spark may not enter.

Reading order: `problem` (the question), `planner` (what a planner is, and its answer: a plan), `check` (the same,
recomputed), then one file per planner:

    ssm                       the optimal contiguous assignment (Ding et al.); with intervals, ssm_kernel, and
                              ssm_general for pins, unequal workers and present maps that are scattered
    free                      any bin to any worker: never dearer than ssm; its own docstring lists free_*
    annealing                 Ls-Stream: from the straggler to the least loaded, by migration impact; with workload,
                              and handover (one step: which bins)

Files that end in _kernel hold compiled inner loops. Other packages add planners through the entry points
`meander.planners`: `outlook` those that look further than one migration, the lab its baselines and oracles.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from meander.options import Plugins, chosen
from meander.planning.annealing import annealing
from meander.planning.check import check
from meander.planning.free import free
from meander.planning.planner import Plan, Planner
from meander.planning.problem import Problem
from meander.planning.ssm import ssm

__all__ = ["Plan", "Planner", "Problem", "check", "plan", "planners"]

ENTRY_POINTS = "meander.planners"


@functools.cache
def planners() -> Mapping[str, Planner[...]]:
    """All planners by name, our own and those of installed packages; each turns a problem into a plan.

    Returns:
        The planners, in the order in which they are listed.

    Example:
        >>> "free" in planners()
        True
    """
    return Plugins(ENTRY_POINTS, {each.name: each for each in (ssm, free, annealing)})


def plan(problem: Problem, planner: str | Planner[...] = "ssm", **options: Any) -> Plan:
    """Return a planner's answer to a problem: the target assignment and the moves that lead to it.

    Args:
        problem: bins, owners, the workers wanted and the load cap.
        planner: one of `planners()`, or its name.
        options: what that planner takes beyond the problem, such as `seed=7` for annealing.

    Returns:
        The plan.

    Raises:
        InvalidOption: there is no such planner, or it has no such option.
        Infeasible: no assignment of the planner's kind keeps the cap.

    Example:
        >>> problem = Problem(load=[4, 1, 1, 1, 1], state=[9, 1, 1, 1, 1], owner=[0] * 5, workers=2)
        >>> plan(problem).moves[0]
        Move(bin=1, source=0, target=1, bytes=1)
    """
    if not isinstance(planner, Planner):
        planner = chosen("planner", planner, planners())
    return planner(problem, **options)
