"""A running query as those see it who move its bins: a driver, its stream, and the way to start both anew."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from meander.clock import Clock, SystemClock
from meander.control.policies import View
from meander.engine.driver.driver import Driver
from meander.engine.driver.placement import recruit
from meander.engine.driver.ports import BatchStream
from meander.errors import QueryFailed
from meander.migration.events import Listener
from meander.migration.ledger import Ledger
from meander.migration.movable import EngineStatus, MigrationState, Recruits, StaleLedger
from meander.migration.request import Live, Mode, Proposal, Request, propose
from meander.migration.steps import Budget, CopyBudget, Step
from meander.types import WorkerId

_RUNS: weakref.WeakSet[QueryRun] = weakref.WeakSet()
"""The queries that were started in this process."""


def runs_here(root: str) -> bool:
    """Whether a query of this process runs on the checkpoint in a folder."""
    return any(run.is_active and run.driver.log.location.root == root for run in list(_RUNS))


class Launch(Protocol):
    """Everything a query is started with, so that it can be started more than once."""

    def start(self, moved: Sequence[Step] = (), before: Driver | None = None) -> tuple[Driver, BatchStream]:
        """Check everything, claim the checkpoint and start; with bins moved to others than those who have them."""


class QueryRun:
    """One query while it runs: the `Movable` of the binned engine."""

    unit = "bins"
    mode: Mode = Live()
    remainder = "started again, it goes on with the rest"

    def __init__(self, launch: Launch, clock: Clock | None = None) -> None:
        self._launch, self._clock = launch, clock or SystemClock()
        self._is_relaunching = False
        self.is_stopping = False
        """Whether it was told to stop."""
        self._failure: Exception | None = None
        self._life = threading.Lock()
        """Held by who starts or stops a driver."""
        self.driver, self.stream = launch.start()
        _RUNS.add(self)

    # --- life --------------------------------------------------------------------------------

    @property
    def is_active(self) -> bool:
        """Whether the query runs."""
        return self._is_relaunching or self.stream.is_active

    def relaunch(self, moved: Sequence[Step] = ()) -> int:
        """Stop, and start again from the checkpoint with bins moved to others; the number of that migration.

        Where it does not start again, the query has failed of that.
        """
        with self._life:
            if self.is_stopping:
                raise QueryFailed("the query is being stopped")
            self._is_relaunching = True
            try:
                before = self.driver
                self._halt()
                driver, stream = self._launch.start(moved, before)
                number = driver.coordinator.count  # before anybody can begin another one
                self.driver, self.stream = driver, stream
            except Exception as problem:
                self._failure = None if self.is_stopping else problem
                raise
            finally:
                self._is_relaunching = False
            return number

    def begin_stop(self) -> None:
        """Begin no further version; `stop` is to follow."""
        self.is_stopping = True
        self.driver.stop()

    def stop(self) -> None:
        """Let the batch that runs end, then stop; one that is just being started again is stopped then."""
        self.begin_stop()
        with self._life:
            self._halt()

    def _halt(self) -> None:
        driver = self.driver
        driver.stop()
        with driver.loop.lock:
            self.stream.stop()
        driver.close()

    def exception(self) -> Exception | None:
        """Why the query has failed, or None."""
        loop = self.driver.loop
        failure = self._failure or loop.failure
        if failure is not None or loop.stopping:
            return failure
        of_stream = self.stream.failure()
        if of_stream is None:
            return None
        with loop.lock:
            return loop.fail(of_stream)

    def check_active(self, what: str) -> None:
        """Raise `QueryFailed` where the query does not run."""
        if not self.is_active:
            raise QueryFailed(f"the query does not run; start it, and then {what}") from self.exception()

    # --- Movable -----------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """What the query is called in logs: its name, or its id."""
        return self.driver.settings.name or self.stream.id

    @property
    def operators(self) -> Mapping[int, str]:
        """The name of each operator, by its number in the chain."""
        return {at: f"{at}:{operator.name}" for at, operator in enumerate(self.driver.operators)}

    @property
    def bins(self) -> int:
        """How many bins each operator has."""
        return self.driver.settings.bins

    def status(self) -> EngineStatus:
        """What the engine is and does now."""
        driver = self.driver
        return EngineStatus(
            driver.loop.version, self.is_active, tuple(driver.record.workers), driver.placement.processes,
            driver.loop.misrouted, tuple(driver.loop.times),
        )  # fmt: skip

    def ledger(self) -> Ledger:
        """Who owns what now."""
        return self.driver.record.ledger()

    def view(self, operator: int) -> View:
        """What a policy sees of an operator."""
        times = self.driver.loop.times
        batch_ms = times[-1].took_ms if times else 0.0
        workers = tuple(self.ledger().workers_of(operator))
        return View(self.driver.monitor.samples(operator), workers, batch_ms=batch_ms)

    def propose(self, request: Request) -> Proposal:
        """Plan what a request asks for, from the assignment as it is now."""
        return propose(request, self.ledger(), self.operators, self.driver.coordinator.participants)

    def draft(self, request: Request) -> Proposal:
        """The plan itself: new workers can be planned with before they are there."""
        return self.propose(request)

    def submit(self, revision: int, steps: Sequence[Step], budget: Budget) -> int:
        """Carry out a plan, in place of the one under way; before the first version it takes effect at once."""
        assert isinstance(budget, CopyBudget)
        driver = self.driver
        with driver.loop.lock:
            if driver.record.revision != revision:
                raise StaleLedger("owners have changed since the plan was made; plan again")
            if driver.loop.version < 0:  # there is no state to copy, and perhaps no row for a long time
                return driver.coordinator.take_over(steps)
            return driver.coordinator.begin(steps, budget)

    def state(self, migration: int) -> MigrationState:
        """How far a migration is."""
        return self.driver.coordinator.state(migration)

    def cancel(self, migration: int, reason: str) -> None:
        """Flip nothing more of a migration."""
        with self.driver.loop.lock:
            self.driver.coordinator.cancel(migration, reason)

    def subscribe(self, listener: Listener) -> None:
        """Call a listener with every event from here on."""
        self.driver.events.subscribe(listener)

    def unsubscribe(self, listener: Listener) -> None:
        """Do not call a listener any more."""
        self.driver.events.unsubscribe(listener)

    def emit(self, event: str, **facts: object) -> None:
        """Add an event."""
        self.driver.events.emit(event, **facts)

    # --- executors ---------------------------------------------------------------------------

    def recruit(self, request: Request, workers: Collection[WorkerId], given_up: threading.Event) -> Recruits:
        """See that there is a core for each of these workers, and that new executors are warm."""
        driver, cluster = self.driver, self.driver.cluster
        needed = {*workers, *driver.coordinator.participants}
        recruits = recruit(cluster, len(needed), request.executors_within_s, given_up, self._clock)
        if recruits.requested:
            self.emit("executors", asked=recruits.requested, came=list(recruits.arrived))
        if not cluster.is_local:
            used = {place.executor for place in driver.placement.places.values()}
            new = needed - set(driver.placement.places)
            fresh = [place for place in cluster.executors() if place.executor not in used][: len(new)]
            if fresh:
                driver.jobs.rehearse(fresh, driver.settings.bins)
        return recruits

    def still_held(self, request: Request, proposal: Proposal) -> set[str]:
        """None: who owns nothing holds nothing."""
        return set()

    def let_go(
        self, request: Request, proposal: Proposal, recruits: Recruits, outcome: str
    ) -> tuple[int, tuple[str, ...]]:
        """Dismiss workers that have nothing to do any more, and let executors go on which nobody is."""
        driver = self.driver
        with driver.loop.lock:
            idle = set(driver.placement.places) - set(driver.coordinator.participants)
            left = driver.placement.dismiss(idle)
            if left:
                self.emit("dismissed", version=driver.loop.version, workers=sorted(map(int, idle)))
        driver.cluster.clear(left.keys(), left.values())
        if driver.cluster.is_local or request.keep_executors:
            return 0, ()
        in_vain = () if outcome == "done" else recruits.arrived
        free = driver.placement.unused([*left.values(), *in_vain])
        if not free or self.stream.is_shared:
            return 0, ()
        driver.cluster.release(free)
        driver.cluster.forget(free)
        self.emit("executors", let_go=free)
        return len(free), ()
