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

The rooms, inner ones first; each may use only those above it:

    errors, types     what can go wrong; bins, workers, moves, assignments
    values, named,    reading what users give; functions chosen by name;
    kernel, telling   compiled inner loops; how far long work is
    measure           load imbalance, waiting time, how often n workers become n'
    planning          what to move           scheduling    in which steps
    migration         how: copy, flip, release, as a state machine
    control           when: rules that say whether it is worth it, with a reason
    route             key -> hash -> bin, the same as in Spark's JVM
    state             the rows of a worker's bins: mapped files, and this batch's own changes over them
    checkpoint        state files, the log of manifests, which file holds which bin
    operators         what a stream computes, one file per operator
    history           arrivals and worker counts of the past, from files
    replay            a history once more, with planners to compare
    spark             the engine on Spark    native        Spark's own state, seen and steered
    query             the user's way in
    nexmark           the field's benchmark: events and queries
    apps              word count, frequent patterns
    experiments       the papers' figures, ours beside theirs
    cli               the command `meander`

Only the rooms from `spark` on import Spark. `import meander` alone loads neither Spark nor Arrow, Numba or SciPy: they
come with the first name that needs them.
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
    from meander.measure.transitions import Transitions
    from meander.native.attached import attach
    from meander.operators.operator import Operator
    from meander.query import Query, stream
    from meander.spark import sinks
    from meander.spark.pmc import pmc
    from meander.spark.session import session
    from meander.state.declare import KeyedTable, Multimap, Timers

__version__ = "0.1.0"

_LATER = {
    "KeyedTable": "meander.state.declare",
    "Multimap": "meander.state.declare",
    "Operator": "meander.operators.operator",
    "Query": "meander.query",
    "Timers": "meander.state.declare",
    "Transitions": "meander.measure.transitions",
    "attach": "meander.native.attached",
    "pmc": "meander.spark.pmc",
    "session": "meander.spark.session",
    "sinks": "meander.spark",
    "stream": "meander.query",
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
]


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'meander' has no attribute {name!r}")
    home = _LATER[name]
    found = import_module(f"{home}.sinks") if name == "sinks" else getattr(import_module(home), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER})
