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
    clock, kernel, progress   compiled inner loops; how far long work is;
    kernel_cache, warmth      those loops on disk, compiled by one process at a time; whether they are there
    pictures, logs            what notebooks show of a value; what records of the log are about
    measure                   load imbalance, waiting time
    planning                  what to move           scheduling    in which steps
    route                     key -> hash -> bin, the same as in Spark's JVM
    state                     the rows of a worker's bins: mapped files, and this batch's own changes over them
    store                     state files, the log of manifests, which file holds which bin
    operators                 what a stream computes, one file per operator
    engine.worker             what runs in an executor's Python process
    migration                 how bins change hands: the protocol, requests, handles; for both engines
    control                   when: policies that decide with a reason, and the balancer
    engine.driver             what makes versions: batch loop, attempts, commit, placement
    outlook                   the past, and what migrations to come will cost
    engine.spark              the driver's ports on Spark        native        Spark's own state, seen and steered
    query, streams, keyed, attached, sinks, sessions, checkpoints       what users hold
    moves, sources, wiring, expressions, foresight, prepared, datasource        what those stand on
    testing                   the whole engine in one process, without Spark
    cli                       the command `meander`

Spark is imported by `engine.spark`, `native`, the top level, the Spark form of `outlook.pmc` and `cli` alone. `import
meander` loads neither Spark nor Arrow, Numba or SciPy: they come with the first name that needs them.
"""

import importlib as _importlib
import typing as _typing

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
from meander.types import Assignment, BinId, Move, OperatorId, WorkerId

if _typing.TYPE_CHECKING:
    from meander import sinks, testing
    from meander.attached import Attached, attach
    from meander.checkpoints import checkpoint
    from meander.control.policies import Decision
    from meander.engine.driver.monitor import Loads
    from meander.engine.driver.version_progress import VersionProgress
    from meander.keyed import KeyedStream
    from meander.migration.events import Event
    from meander.migration.handle import Migration
    from meander.migration.move_options import MoveOptions
    from meander.migration.report import Progress, Report
    from meander.migration.request import Proposal
    from meander.native.observation import Observation
    from meander.operators.key_state import KeyState
    from meander.operators.operator import Operator
    from meander.outlook.pmc import pmc
    from meander.outlook.transitions import Transitions
    from meander.query import Query
    from meander.sessions import session
    from meander.state.declare import KeyedTable, Multimap, Timers
    from meander.streams import Stream, stream

__version__ = "0.1.0"

_LATER = {
    "Attached": "meander.attached",
    "Decision": "meander.control.policies",
    "Event": "meander.migration.events",
    "KeyState": "meander.operators.key_state",
    "KeyedStream": "meander.keyed",
    "KeyedTable": "meander.state.declare",
    "Loads": "meander.engine.driver.monitor",
    "Migration": "meander.migration.handle",
    "MoveOptions": "meander.migration.move_options",
    "Multimap": "meander.state.declare",
    "Observation": "meander.native.observation",
    "Operator": "meander.operators.operator",
    "Progress": "meander.migration.report",
    "Proposal": "meander.migration.request",
    "Query": "meander.query",
    "Report": "meander.migration.report",
    "Stream": "meander.streams",
    "Timers": "meander.state.declare",
    "Transitions": "meander.outlook.transitions",
    "VersionProgress": "meander.engine.driver.version_progress",
    "attach": "meander.attached",
    "checkpoint": "meander.checkpoints",
    "pmc": "meander.outlook.pmc",
    "session": "meander.sessions",
    "sinks": "meander.sinks",
    "stream": "meander.streams",
    "testing": "meander.testing",
}
"""Names that bring Arrow or Spark with them, and where they live: loaded when first asked for."""

__all__ = [
    "Assignment",
    "Attached",
    "BinId",
    "CheckpointError",
    "Decision",
    "Event",
    "Infeasible",
    "InvalidOption",
    "InvalidPlan",
    "InvalidProblem",
    "KeyState",
    "KeyedStream",
    "KeyedTable",
    "Loads",
    "MeanderError",
    "Migration",
    "MigrationFailed",
    "Move",
    "MoveOptions",
    "Multimap",
    "Observation",
    "Operator",
    "OperatorId",
    "Plan",
    "Problem",
    "Progress",
    "Proposal",
    "Query",
    "QueryFailed",
    "Report",
    "Stream",
    "Timers",
    "TooLarge",
    "Transitions",
    "VersionProgress",
    "WorkerId",
    "attach",
    "check",
    "checkpoint",
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


if not _typing.TYPE_CHECKING:  # a type checker shall find a slip itself

    def __getattr__(name: str) -> object:
        if name not in _LATER:
            raise AttributeError(f"module 'meander' has no attribute {name!r}")
        module = _importlib.import_module(_LATER[name])
        value = module if name in _MODULES else getattr(module, name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted(__all__)
