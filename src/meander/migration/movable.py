"""The port between what decides about moves and what moves, the same for both engines. Data only, and events."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from meander.errors import MeanderError
from meander.migration.events import Listener
from meander.migration.ledger import Ledger
from meander.migration.orders import Outcome, Phase
from meander.migration.steps import Budget, Step
from meander.types import Bytes, WorkerId

if TYPE_CHECKING:
    from meander.migration.request import Mode, Proposal, Request


@dataclass(frozen=True)
class MigrationState:
    """How far a migration is: the phase of each step, and how, why and after which version it ended."""

    phases: Mapping[int, Phase]
    outcome: Outcome | None = None
    reason: str = ""
    last_version: int | None = None
    remarks: tuple[str, ...] = ()
    """What did not go as it should, a sentence each."""
    arrived: tuple[int, Bytes] | None = None
    """Bins and bytes that have moved, where steps do not flip as a whole."""
    activity: str = ""
    """What is being done now, where that is more than the phase of a step."""

    def entered(self, step: int, phase: Phase) -> MigrationState:
        """A step is in another phase."""
        return replace(self, phases={**self.phases, step: phase})

    def finished(self, outcome: Outcome, reason: str, version: int) -> MigrationState:
        """It is over."""
        return replace(self, outcome=outcome, reason=reason, last_version=version)

    def is_flipped(self, step: int) -> bool:
        """Whether the targets of a step own its bins."""
        return self.phases.get(step) in (Phase.FLIPPED, Phase.RELEASED)


@dataclass(frozen=True)
class VersionTime:
    """How long a version took: a batch, for the native engine."""

    version: int
    took_ms: float


@dataclass(frozen=True)
class EngineStatus:
    """What an engine is and does now.

    Args:
        version: the last committed version, or the last batch that ended.
        is_active: whether the query runs.
        workers: who owns bins.
        processes: the executors' processes that workers are on, by host.
        misrouted: rows that came to a worker that does not own their bin, so far.
        times: how long the last versions took.
    """

    version: int
    is_active: bool
    workers: tuple[WorkerId, ...]
    processes: tuple[str, ...] = ()
    misrouted: int = 0
    times: tuple[VersionTime, ...] = ()


@dataclass(frozen=True)
class Recruits:
    """Executors that were asked for, and which have come."""

    requested: int = 0
    arrived: tuple[str, ...] = ()


class StaleLedger(MeanderError):
    """Owners have changed since the plan was made; plan again."""


class Movable(Protocol):
    """An engine whose bins can be moved while it runs."""

    unit: str
    """What bins are called: "bins", or "partitions"."""
    mode: Mode
    """How bins are moved where a request does not say otherwise."""
    remainder: str
    """What becomes of the rest of a migration when the query ends."""

    @property
    def name(self) -> str | None:
        """What the query is called in logs: its name, or its id."""

    @property
    def operators(self) -> Mapping[int, str]:
        """The name of each operator, by number."""

    @property
    def bins(self) -> int:
        """How many bins each operator has."""

    def check_active(self, what: str) -> None:
        """Raise `QueryFailed` where the query does not run, so that this cannot be done."""

    def status(self) -> EngineStatus:
        """What the engine is and does now."""

    def ledger(self) -> Ledger:
        """Who owns what now; a plan is made from it."""

    def propose(self, request: Request) -> Proposal:
        """Plan what a request asks for, from the assignment as it is now."""

    def draft(self, request: Request) -> Proposal:
        """The plan to begin with; one without steps where that has to wait for executors, and is then made again."""

    def submit(self, revision: int, steps: Sequence[Step], budget: Budget) -> int:
        """Carry out a plan, in place of the one under way, and return its number.

        Raises `StaleLedger` where owners have changed since the revision of the ledger that the plan was made from.
        """

    def state(self, migration: int) -> MigrationState:
        """How far a migration is."""

    def cancel(self, migration: int, reason: str) -> None:
        """Flip nothing more of a migration."""

    def subscribe(self, listener: Listener) -> None:
        """Call a listener with every event from here on, in a thread that holds no lock of the engine."""

    def unsubscribe(self, listener: Listener) -> None:
        """Do not call a listener any more."""

    def emit(self, event: str, **facts: object) -> None:
        """Add an event."""

    def recruit(self, request: Request, workers: Collection[WorkerId], given_up: threading.Event) -> Recruits:
        """See that there are executors for these workers; raises `MigrationFailed` where they do not come in time."""

    def still_held(self, request: Request, proposal: Proposal) -> set[str]:
        """The executors that shall hold nothing after this migration and still do."""

    def let_go(
        self, request: Request, proposal: Proposal, recruits: Recruits, outcome: str
    ) -> tuple[int, tuple[str, ...]]:
        """Dismiss workers and executors that the query needs no more; how many executors went, and remarks."""
