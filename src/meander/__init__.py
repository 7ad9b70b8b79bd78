"""Meander: elastic stateful streams for PySpark.

A stateful query whose state is cut into bins, each owned by a worker that is pinned to an executor:

    query = me.stream(words).key_by("word").count().start(checkpoint="...", sink=me.sinks.memory("counts"))

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

The packages, inner ones first; each may use only those above it:

    errors, types, options,   what can go wrong; bins, workers, moves; reading what users give; time;
    clock, kernel, progress   compiled inner loops; how far long work is
    measure                   load imbalance, waiting time
    planning                  what to move           scheduling    in which steps
    route                     key -> hash -> bin, the same as in Spark's JVM
    state                     the rows of a worker's bins: mapped files, and this batch's own changes over them
    checkpoint                state files, the log of manifests, which file holds which bin
    operators                 what a stream computes, one file per operator
    engine.worker             what runs in an executor's Python process
    migration                 how bins change hands: the protocol, requests, handles; for both engines
    control                   when: policies that decide with a reason, and the balancer
    engine.driver             what makes versions: batch loop, attempts, commit, placement
    outlook                   the past, and what migrations to come will cost
    engine.spark              the driver's ports on Spark        native        Spark's own state, seen and steered
    query, streams, attached, sinks, sessions                    what users hold; with sources, foresight and prepared
    testing                   the whole engine in one process, without Spark
    cli                       the command `meander`

Spark is imported by `engine.spark`, `native`, the top level, the Spark form of `outlook.pmc` and `cli` alone. `import
meander` loads neither Spark nor Arrow, Numba or SciPy: they come with the first name that needs them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from meander.errors import (
    CheckpointError,
    Infeasible,
    InvalidOption,
    InvalidPlan,
    InvalidProblem,
    MeanderError,
    MigrationFailed,
    QueryFailed,
    TooLarge,
)
from meander.planning import Plan, Problem, check, plan, planners
from meander.scheduling import schedule, schedules
from meander.types import Assignment, BinId, Move, WorkerId

if TYPE_CHECKING:
    from meander import sinks
    from meander.attached import attach
    from meander.operators.key_state import KeyState
    from meander.operators.operator import Operator
    from meander.outlook.pmc import pmc
    from meander.outlook.transitions import Transitions
    from meander.query import Query
    from meander.sessions import session
    from meander.state.declare import KeyedTable, Multimap, Timers
    from meander.streams import stream

__version__ = "0.1.0"

_LATER = {
    "KeyState": "meander.operators.key_state",
    "KeyedTable": "meander.state.declare",
    "Multimap": "meander.state.declare",
    "Operator": "meander.operators.operator",
    "Query": "meander.query",
    "Timers": "meander.state.declare",
    "Transitions": "meander.outlook.transitions",
    "attach": "meander.attached",
    "pmc": "meander.outlook.pmc",
    "session": "meander.sessions",
    "sinks": "meander.sinks",
    "stream": "meander.streams",
    "testing": "meander.testing",
}
"""Names that bring Arrow or Spark with them, and where they live: loaded when first asked for."""

__all__ = [
    "Assignment",
    "BinId",
    "CheckpointError",
    "Infeasible",
    "InvalidOption",
    "InvalidPlan",
    "InvalidProblem",
    "KeyState",
    "KeyedTable",
    "MeanderError",
    "MigrationFailed",
    "Move",
    "Multimap",
    "Operator",
    "Plan",
    "Problem",
    "Query",
    "QueryFailed",
    "Timers",
    "TooLarge",
    "Transitions",
    "WorkerId",
    "attach",
    "check",
    "plan",
    "planners",
    "pmc",
    "schedule",
    "schedules",
    "session",
    "sinks",
    "stream",
    "testing",
]


_MODULES = ("sinks", "testing")
"""Names that are modules themselves."""


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'meander' has no attribute {name!r}")
    module = import_module(_LATER[name])
    value = module if name in _MODULES else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER})
