"""Trust the checker, not the planner: everything a plan claims, recomputed from the problem alone.

Nothing here is shared with the planners or with `Plan.of`.
"""

from __future__ import annotations

import math
import sys
from fractions import Fraction

from meander.errors import InvalidPlan
from meander.pictures import many
from meander.planning.planner import Plan
from meander.planning.problem import ROUNDING, Problem


def check(problem: Problem, plan: Plan, *, cap: bool = True) -> None:
    """Raise `InvalidPlan` unless every figure of the plan follows from the problem.

    Args:
        problem: the question.
        plan: the answer.
        cap: whether the load cap has to hold. The baselines `even`, `consistent_hash` and `redist` do not
            promise it, and `annealing` promises its own measure of balance instead; see `Planner.keeps_cap`.

    Raises:
        InvalidPlan: with the figure or the bin that is wrong.

    Example:
        >>> import meander as me
        >>> problem = me.Problem(load=[4, 1], state=[9, 1], owner=[0, 0], workers=2, tau=0.7)
        >>> me.check(problem, me.plan(problem))
    """
    _check_workers(problem, plan)
    _check_owners(problem, plan)
    _check_moves(problem, plan)
    _check_loads(problem, plan, cap)


def _check_workers(problem: Problem, plan: Plan) -> None:
    workers = set(plan.workers)
    if list(plan.workers) != sorted(workers):
        raise InvalidPlan(f"the workers {plan.workers} are not in ascending order without repetition")
    there = set(problem.owner) | set(problem.idle)
    if isinstance(problem.workers, int):
        if len(workers) != problem.workers:
            raise InvalidPlan(f"the plan has {many(len(workers), 'worker')}, but {problem.workers} are wanted")
        may_stay = there - set(problem.must_leave)
        added = workers - there
        if added and not may_stay <= workers:
            raise InvalidPlan(
                f"worker {min(added)} is added although worker {min(may_stay - workers)} could have stayed"
            )
        if added and min(added) <= max(there):
            raise InvalidPlan(f"the new worker {min(added)} must have an id above all present ones")
    elif workers != set(problem.workers):
        raise InvalidPlan(f"the plan has the workers {plan.workers}, but {problem.workers} are wanted")
    leaving = workers & set(problem.must_leave)
    if leaving:
        raise InvalidPlan(f"worker {min(leaving)} has to leave but is still there")


def _check_owners(problem: Problem, plan: Plan) -> None:
    if plan.before != problem.owner:
        raise InvalidPlan("the plan starts from another assignment than the problem")
    if len(plan.owner) != len(problem.load):
        raise InvalidPlan(f"the plan has {many(len(plan.owner), 'bin')}, the problem {len(problem.load)}")
    for j, worker in enumerate(plan.owner):
        if worker not in plan.workers:
            raise InvalidPlan(f"bin {j} goes to worker {worker}, which is not among the plan's workers")
    for j in problem.pinned:
        if plan.owner[j] != problem.owner[j]:
            raise InvalidPlan(f"bin {j} is pinned to worker {problem.owner[j]} but goes to worker {plan.owner[j]}")


def _check_moves(problem: Problem, plan: Plan) -> None:
    moved = [
        (j, problem.owner[j], plan.owner[j], problem.state[j])
        for j in range(len(problem.owner))
        if problem.owner[j] != plan.owner[j]
    ]
    if [tuple(move) for move in plan.moves] != moved:
        raise InvalidPlan("the plan's moves are not the difference between its two assignments")
    cost = sum((Fraction(size) for _, _, _, size in moved), Fraction(0))
    gain = sum(map(Fraction, problem.state), Fraction(0)) - cost
    for name, claimed, true in (("cost", plan.cost, cost), ("gain", plan.gain, gain)):
        if not _close(claimed, true, scale=cost + gain):
            raise InvalidPlan(f"the plan's {name} is {claimed}, recomputed it is {float(true)}")


def _check_loads(problem: Problem, plan: Plan, cap: bool) -> None:
    if set(plan.loads) != set(plan.workers) or set(plan.caps) != set(plan.workers):
        raise InvalidPlan("the plan's loads and caps must name each of its workers, and nobody else")
    total = sum(map(Fraction, problem.load), Fraction(0))
    capacity = {w: Fraction(problem.capacities.get(w, 1.0)) for w in plan.workers}
    all_capacity = sum(capacity.values())
    loads = dict.fromkeys(plan.workers, Fraction(0))
    for j in range(len(problem.load)):
        loads[plan.owner[j]] += Fraction(problem.load[j])
    over = []
    for w, load in loads.items():
        limit = (1 + Fraction(problem.tau)) * total * capacity[w] / all_capacity
        if not _close(plan.loads[w], load, scale=total):
            raise InvalidPlan(f"the plan's load of worker {w} is {plan.loads[w]}, recomputed it is {float(load)}")
        if not _close(plan.caps[w], limit, scale=limit):
            raise InvalidPlan(f"the plan's cap of worker {w} is {plan.caps[w]}, recomputed it is {float(limit)}")
        if load > limit * (1 + 2 * Fraction(ROUNDING)) + Fraction(sys.float_info.min):
            over.append((w, load, limit))
    if cap and over:
        worker, load, limit = over[0]
        raise InvalidPlan(f"worker {worker} carries {float(load):g}, its cap is {float(limit):g}")


def _close(claimed: float, true: Fraction, scale: Fraction) -> bool:
    """Whether a float sum is right up to rounding, relative to the size of what was added."""
    return math.isfinite(claimed) and abs(Fraction(claimed) - true) <= scale * Fraction(ROUNDING) + Fraction(
        sys.float_info.min
    )
