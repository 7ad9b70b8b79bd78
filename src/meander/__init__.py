"""Meander: elastic stateful streams for PySpark.

Two questions have to be answered before state can move in a running stream, and both answers are pure functions:

    *what* should move?        plan(problem, planner="ssm")            -> Plan
    *in which steps?*          schedule(plan.before, plan.owner, ...)  -> list of steps

    >>> import meander as me
    >>> problem = me.Problem(load=[4, 1, 1, 1, 1], state=[90, 10, 10, 10, 10], owner=[0] * 5, workers=2, tau=0.2)
    >>> plan = me.plan(problem, planner="ssm")
    >>> plan.owner, plan.cost
    ((0, 1, 1, 1, 1), 40)
    >>> len(me.schedule(plan.before, plan.owner, "fluid", state=problem.state))
    4

The rooms, inner ones first; each may use only those above it:

    errors, types     what can go wrong; bins, workers, moves, assignments
    values, named,    reading what users give; functions chosen by name;
    kernel            compiled inner loops
    measure           load imbalance and waiting time, from loads and rates
    planning          what to move           scheduling    in which steps
    cli               the command `meander`

Nothing here imports Spark; Numba and SciPy are loaded when a planner first needs them. The engine that carries plans
out on Spark is the next room to be built.
"""

from __future__ import annotations

from meander.errors import Infeasible, InvalidOption, InvalidPlan, InvalidProblem, MeanderError, TooLarge
from meander.planning import Plan, Problem, check, plan, planners
from meander.scheduling import schedule, schedules
from meander.types import Assignment, BinId, Move, WorkerId

__version__ = "0.1.0"

__all__ = [
    "Assignment",
    "BinId",
    "Infeasible",
    "InvalidOption",
    "InvalidPlan",
    "InvalidProblem",
    "MeanderError",
    "Move",
    "Plan",
    "Problem",
    "TooLarge",
    "WorkerId",
    "check",
    "plan",
    "planners",
    "schedule",
    "schedules",
]
