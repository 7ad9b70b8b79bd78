"""SSM: the contiguous assignment that moves the fewest bytes under the load cap (Ding et al., section 3).

The paper's algorithm takes O(m^2 n'). Where the present map is a list of intervals and all workers are equally fast,
`ssm_kernel` does it in O(m n'). Pinned bins, unequal workers and present maps that are not intervals make the problem
harder (in general it is NP-hard); `ssm_general` answers those exactly as well, for as long as its tables fit.
"""

from __future__ import annotations

import numpy as np

from meander.planning import ssm_general, ssm_kernel
from meander.planning.intervals import Piece, no_intervals, target_of
from meander.planning.planner import Target, planner
from meander.planning.problem import ROUNDING, Problem
from meander.types import runs

LIGHT = 2048
"""Bins times workers up to which a new process is answered without waiting for Numba."""


@planner(keeps_cap=True, contiguous=True)
def ssm(problem: Problem) -> Target:
    """The optimal contiguous assignment: fewest bytes moved under the load cap.

    Every worker gets one interval of neighbouring bins, possibly empty. No contiguous assignment within the cap
    moves fewer bytes. Among equally good ones it prefers intervals near the fair share of the load.

    Raises:
        Infeasible: no contiguous assignment keeps the cap; `smallest_tau` says which one would do.
        TooLarge: pinned bins, many different capacities or a scattered present map make an exact answer too long.

    Example:
        >>> from meander.planning.problem import Problem
        >>> plan = ssm(Problem(load=[1] * 20, state=[1] * 20, owner=[0] * 13 + [1] * 7, workers=3, tau=0.4))
        >>> plan.cost
        4
    """
    if _may_stay(problem):
        idle = [w for w in problem.candidates if w not in problem.owner]
        owners = sorted(set(problem.owner))
        return Target(list(problem.owner), sorted([*owners, *idle[: problem.wanted - len(owners)]]))
    if problem.is_contiguous and problem.has_equal_capacities and not problem.pinned:
        return _ssm_of_intervals(problem)
    return target_of(problem, ssm_general.solve(problem))


def _may_stay(problem: Problem) -> bool:
    """Whether the present assignment is an answer as it is. None moves fewer bytes."""
    if not problem.is_contiguous or (problem.planner_chooses and not problem.has_equal_capacities):
        return False
    loads = dict.fromkeys(problem.owner, 0.0)
    if len(loads) > problem.wanted or not loads.keys() <= set(problem.survivors):
        return False
    for worker, load in zip(problem.owner, problem.load, strict=True):
        loads[worker] += load
    caps = problem.caps(problem.candidates[: problem.wanted])
    if problem.has_equal_capacities:
        return max(loads.values()) <= min(caps.values()) * (1 + ROUNDING)
    return all(load <= caps[worker] * (1 + ROUNDING) for worker, load in loads.items())


def _ssm_of_intervals(problem: Problem) -> Target:
    # More intervals than bins cannot all be filled.
    intervals = min(problem.wanted, problem.bins)
    cap = (1 + problem.tau) * problem.total_load / problem.wanted
    present = runs(problem.owner)
    stays = set(problem.survivors)
    edge = np.array([run.start for run in present] + [problem.bins])
    keeps = np.array([run.worker in stays for run in present])
    solve = ssm_kernel.best_intervals
    starts, keepers = (solve.lightly if problem.bins * intervals <= LIGHT else solve)(
        problem.load_array, problem.state_array, edge, keeps, cap * (1 + ROUNDING), intervals
    )
    if not starts.size:
        raise no_intervals(problem)
    speed = problem.capacity(problem.candidates[0])
    begins = [*starts.tolist(), problem.bins]
    return target_of(
        problem,
        [
            Piece(begin, end, present[run].worker if run != ssm_kernel.NOBODY else None, speed)
            for begin, end, run in zip(begins[:-1], begins[1:], keepers.tolist(), strict=True)
        ],
    )
