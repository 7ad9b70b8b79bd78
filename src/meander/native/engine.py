"""A query of Spark's own, as what moves partitions and what users hold see it: the `Movable` of the native engine."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np

from meander.clock import Clock, SystemClock
from meander.control.policies import View
from meander.errors import InvalidOption, QueryFailed
from meander.migration.events import EventLog, Listener
from meander.migration.handle import Migration
from meander.migration.ledger import Ledger, Owners
from meander.migration.movable import (
    EngineStatus,
    MigrationState,
    Recruits,
    StaleLedger,
    VersionTime,
)
from meander.migration.request import Live, Mode, Proposal, Request, propose
from meander.migration.steps import Budget, SteeringPatience, Step
from meander.native.batches import Sampler
from meander.native.moving import SteeringRun
from meander.native.placement import StatePlacement, executor_of
from meander.native.staffing import Staffing
from meander.native.stores import Partition
from meander.types import WorkerId

MAX_RUNS = 100


class Steered(Live):
    """Let Spark do it, batch by batch, by telling it where partitions are."""

    name = "native"

    def ended(self, migration: Migration) -> None:
        """Say so among the events."""
        outcome, reason = migration.status, migration.reason
        migration.engine.emit("migration", outcome=outcome, reason=reason, partitions=migration.progress.bins)


class NativeEngine:
    """One run of a query of Spark's own. A worker is an executor, a version is a batch, an operator is a group."""

    unit = "partitions"
    mode: Mode = Steered()
    remainder = "nothing was lost, and Spark places its state anew"

    def __init__(self, placement: StatePlacement, clock: Clock | None = None) -> None:
        self.placement, self.watch = placement, placement.watch
        self.events = EventLog(clock, query=self.name)
        self.operators: Mapping[int, str] = placement.names
        self._staffing = Staffing(placement, self.events, clock or SystemClock())
        self._samplers = {group: Sampler(group, len(placement.partitions(group))) for group in placement.groups}
        self._runs: dict[int, SteeringRun] = {}
        self._count = 0
        self._owners: tuple[Owners, ...] = ()
        self._revision = 0
        self._times: tuple[VersionTime, ...] = ()
        self._lock, self._submitting = threading.Lock(), threading.Lock()
        self.watch.on_lost = lambda executor, why: self.emit("lost", executor=executor, reason=why)

    # --- life --------------------------------------------------------------------------------

    def check_active(self, what: str) -> None:
        """Raise `QueryFailed` where the query does not run, or is not watched any more."""
        if self.watch.ended.is_set() or not self.placement.internals.is_active:
            raise QueryFailed("the query has ended, or was detached from; start it, and attach again")

    def close(self) -> None:
        """Watch no more, steer no more, and have Spark wait for places for as long as before."""
        self.watch.close()
        run = self._run
        if run is not None:
            run.join()
        with suppress(Exception):
            self.placement.let_apart()

    @property
    def _run(self) -> SteeringRun | None:
        """The plan that is carried out, or the last one."""
        return self._runs.get(self._count)

    # --- Movable -----------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """What the query is called in logs: its name, or its id."""
        return self.placement.internals.name

    @property
    def bins(self) -> int:
        """How many state partitions each group has."""
        return self.placement.count

    @property
    def workers(self) -> tuple[WorkerId, ...]:
        """The executors that are there and may hold something."""
        return tuple(executor_of(each) for each in self.placement.participants)

    def status(self) -> EngineStatus:
        """What the engine is and does now, from what was watched: nothing is asked of Spark."""
        run, version = self._run, self.watch.batch
        if version != (self._times[-1].version if self._times else -1):
            self._times = tuple(VersionTime(each.number, each.took_ms) for each in tuple(self.watch.batches))
        owners = {task.worker for _, task in list(self.watch.last.values())}
        # What is carried out when the query ends has still to be brought to its end.
        is_active = not self.watch.ended.is_set() or (run is not None and not run.is_over)
        return EngineStatus(version, is_active, tuple(sorted(owners - {WorkerId(-1)})), times=self._times)

    def ledger(self) -> Ledger:
        """Who owns what now, as Spark's scheduler will see it at the next batch."""
        placement, watch = self.placement, self.watch
        groups = tuple(placement.groups)
        owners = tuple(np.array(placement.owners(group), np.int64) for group in groups)
        with self._lock:
            is_same = len(owners) == len(self._owners) and all(map(np.array_equal, owners, self._owners))
            if not is_same:
                self._owners, self._revision = owners, self._revision + 1
            revision = self._revision
        size, work = [], []
        for group in groups:
            keys = [Partition(group, number) for number in placement.partitions(group)]
            tasks = [watch.last.get(key) for key in keys]
            size.append(np.array([0 if each is None else each[1].state_bytes for each in tasks], np.int64))
            work.append(np.array([watch.ms.get(key, 0.0) for key in keys]))
        return Ledger(revision, watch.batch, owners, tuple(size), tuple(work))

    def view(self, operator: int) -> View:
        """What a policy sees of a group."""
        self.placement.check_placeable()
        batches, sampler = tuple(self.watch.batches), self._samplers[operator]
        with self._lock:
            sampler.note(batches)
            samples = sampler.samples
        executors = self.placement.participants
        return View(
            samples,
            tuple(executor_of(each) for each in executors),
            {executor_of(each): float(each.cores) for each in executors},
            batches[-1].took_ms if batches else 0.0,
            self.placement.internals.trigger_ms,
        )

    def propose(self, request: Request) -> Proposal:
        """Plan what a request asks for, with the executors that are there and do not leave."""
        alive = [each.id for each in self.placement.workers]
        unknown = sorted({str(each) for each in request.targets.values()} - set(alive))
        if unknown:
            raise InvalidOption(f"there is no executor {unknown[0]!r}; there are: {', '.join(alive)}")
        executors = [each for each in self.placement.participants if executor_of(each) not in request.leaving]
        workers = tuple(executor_of(each) for each in executors)
        ledger = self.ledger()
        if len({each.cores for each in executors}) > 1:
            ledger = replace(ledger, capacities={executor_of(each): float(each.cores) for each in executors})
        options = dict(request.schedule_options)
        if request.schedule == "batched":
            # A batch waits for what is loaded in it: one partition comes to an executor at a time.
            options = {"max_bins": max(1, len(self.placement.workers)), "max_in": 1, **options}
        among = workers if request.among is None else request.among
        return propose(replace(request, among=among, schedule_options=options), ledger, self.operators, workers)

    def draft(self, request: Request) -> Proposal:
        """No plan yet where executors have to come first: nobody knows what they will be called."""
        return Proposal({}, (), 0, 0, 0, ()) if request.workers is not None else self.propose(request)

    def submit(self, revision: int, steps: Sequence[Step], budget: Budget) -> int:
        """Carry out a plan, in place of the one under way, once that one steers no more."""
        assert isinstance(budget, SteeringPatience)
        with self._submitting:
            number, before = self._count + 1, self._run
            if before is not None and not before.is_over:
                before.end("replaced", f"by migration {number}")
                before.join()
            if self.ledger().revision != revision:
                raise StaleLedger("partitions have moved since the plan was made; plan again")
            self._runs[number] = run = SteeringRun(number, steps, budget, self.placement, self.events)
            self._runs.pop(number - MAX_RUNS, None)
            self._count = number
            run.start()
            return number

    def state(self, migration: int) -> MigrationState:
        """How far a migration is."""
        activity = "moving" if self.watch.is_in_batch else "waiting for a batch"
        return replace(self._runs[migration].state, activity=activity)

    def cancel(self, migration: int, reason: str) -> None:
        """Steer nothing more of a migration; what was steered already stays, or arrives yet."""
        self._runs[migration].end("cancelled", reason)

    def subscribe(self, listener: Listener) -> None:
        """Call a listener with every event from here on."""
        self.events.subscribe(listener)

    def unsubscribe(self, listener: Listener) -> None:
        """Do not call a listener any more."""
        self.events.unsubscribe(listener)

    def emit(self, event: str, **facts: object) -> None:
        """Add an event."""
        self.events.emit(event, **facts)

    # --- executors ---------------------------------------------------------------------------

    def recruit(self, request: Request, workers: Collection[WorkerId], given_up: threading.Event) -> Recruits:
        """See that there are as many executors as a rescale wants."""
        if request.workers is None:
            return Recruits()
        return self._staffing.recruit(request.workers, request.executors_within_s, given_up)

    def still_held(self, request: Request, proposal: Proposal) -> set[str]:
        """The executors that shall be empty and hold state: one without work takes what others are slow to begin."""
        leavers = self._staffing.leavers(request, proposal)
        return self.placement.held(leavers) if leavers else set()

    def let_go(
        self, request: Request, proposal: Proposal, recruits: Recruits, outcome: str
    ) -> tuple[int, tuple[str, ...]]:
        """Let executors go that are empty now, or came in vain; whoever replaces a migration has those that came."""
        run = self._run
        try:
            if outcome == "done":
                return self._staffing.dismiss(request, proposal, lambda: run is None or run.is_wanted)
            return (0 if outcome == "replaced" else self._staffing.take_back(recruits)), ()
        finally:
            with self._submitting:
                if self._run is None or self._run.is_over:
                    self.placement.let_apart()
