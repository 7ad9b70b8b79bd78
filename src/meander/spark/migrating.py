"""A migration from the driver's side: executors come, bins move, executors go; and the handle that shows it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from meander.errors import MigrationFailed
from meander.migration.progress import Latency, Progress, Report
from meander.migration.protocol import Entered, Finished, Phase, Rules
from meander.spark.engine import Engine
from meander.spark.executors import Brought, bring
from meander.spark.handle import LOOK_EVERY_S, Handle
from meander.spark.rehearsal import rehearse
from meander.spark.request import NO_LIMIT, Proposal, Request, proposed

if TYPE_CHECKING:
    from meander.spark.running import Query

logger = logging.getLogger("meander")

AHEAD_S = 60.0
"""So long before the time it is meant for, a migration asks for executors and plans."""


class Migration(Handle):
    """A migration under way or ended: how far it is, how to wait for it or cancel it, and what it did."""

    def __init__(self, query: Query, request: Request, proposal: Proposal) -> None:
        super().__init__(proposal)
        self._query, self._request = query, request
        self.number: int | None = None
        """Its number once it is under way; events carry it."""
        self._gave_way = False
        self._phases: dict[int, Phase] = {}
        self._first_version = query.version + 1
        self._last_version: int | None = None
        self._before = _taken_ms(query.recent_progress)
        self._misrouted = query.misrouted
        self._processes = query._engine.moves.processes
        self._processes_after: tuple[str, ...] = ()
        self._workers_before = tuple(query.workers)
        self._brought = Brought(0, 0, ())
        self._let_go = 0
        self.rows_held, self.longest_hold_ms = 0, 0.0

    # --- what one sees ---------------------------------------------------------------------

    @property
    def progress(self) -> Progress:
        """How far it is: bins, bytes and steps that have flipped, and how long the rest will take."""
        flipped = [step for step in self.steps if self._phases.get(step.number) in (Phase.FLIPPED, Phase.RELEASED)]
        done, size = sum(len(step.shifts) for step in flipped), sum(step.bytes for step in flipped)
        return Progress(
            self._phase(), done, self._proposal.bins, size, self._proposal.bytes, len(flipped), len(self.steps),
            self._eta_s(done),
        )  # fmt: skip

    def _phase(self) -> str:
        if self._status != "running":
            return self._status
        ahead = [self._phases.get(step.number, Phase.PLANNED) for step in self.steps]
        return next((str(phase) for phase in ahead if phase not in (Phase.FLIPPED, Phase.RELEASED)), "releasing")

    @property
    def versions(self) -> range:
        """The versions that were made while it was under way."""
        last = self._query.version if self._last_version is None else self._last_version
        return range(self._first_version, last + 1)

    @property
    def report(self) -> Report:
        """What it was and did to the stream, so far or in all."""
        query, progress = self._query, self.progress
        history, last = query.recent_progress, self._last_version
        during = [each for each in history if each["version"] in self.versions]
        after = [each for each in history if last is not None and each["version"] > last]
        restarts = self._request.mode in ("pause", "restart", "restart_workers")
        return Report(
            mode=self._request.mode, outcome=self._status, reason=self._reason,
            planner=next(iter(self.plans.values())).planner if self.plans else "resumed",
            planner_ms=self._proposal.planner_ms,
            remarks=self._proposal.notes,
            schedule="all_at_once" if restarts else self._request.schedule,
            workers_before=self._workers_before, workers_after=tuple(query.workers),
            bins=progress.bins, bytes=progress.bytes, steps=progress.steps,
            versions=len(during), duration_s=self._spent_s(),
            before=Latency.of(self._before), during=Latency.of(_taken_ms(during)), after=Latency.of(_taken_ms(after)),
            rows_held=self.rows_held, longest_hold_ms=round(self.longest_hold_ms, 1),
            rows_misrouted=query.misrouted - self._misrouted,
            processes_before=self._processes, processes_after=self._processes_after or query._engine.moves.processes,
            executors={"asked": self._brought.asked, "came": len(self._brought.came), "let_go": self._let_go},
        )  # fmt: skip

    def _check_query(self) -> None:
        if not self._query.is_active and self._status == "running" and self._request.mode != "restart":
            raise MigrationFailed(
                f"the query has ended with {self.progress.bins} of {self._proposal.bins} bins moved; started "
                "again, it goes on with the rest"
            )

    def cancel(self) -> None:
        """Move nothing more: bins that have flipped stay where they are, copies of the others are dropped."""
        if self._ended.is_set():
            return
        self._cancelled.set()
        engine = self._query._engine
        with engine.lock:
            if self.number is not None:
                engine.moves.cancel(self.number, "cancelled by the user")

    def give_way(self) -> None:
        """Do not begin any more, because another wish has come; one that is meant for a later time stays."""
        if self._status == "waiting" and self._request.at_time is None:
            self._gave_way = True
            self._cancelled.set()

    # --- what it does ----------------------------------------------------------------------

    def _run(self) -> None:
        try:
            from meander.spark.modes import MODES

            self._wait_for_its_time()
            self._bring_executors()
            if not self._cancelled.is_set():
                MODES[self._request.mode](self)
                return
            end = ("replaced", "another wish came first") if self._gave_way else ("cancelled", "cancelled by the user")
        except Exception as problem:
            end = self._failure(problem)
        with suppress(Exception):
            self._let_executors_go([])
        self._end(*end)

    def _wait_for_its_time(self) -> None:
        at = self._request.at_time
        if at is None:
            return
        while time.time() < at - AHEAD_S and not self._cancelled.wait(LOOK_EVERY_S):
            if not self._query.is_active:
                raise MigrationFailed("the query ended before the time of this migration")

    def _bring_executors(self) -> None:
        if self._cancelled.is_set():
            return
        engine = self._query._engine
        needed = {*self._proposal.workers, *engine.moves.participants}
        new = [worker for worker in sorted(needed) if worker not in engine.seats.now]
        self._brought = bring(
            engine.gateway, engine.seats.places, len(needed), self._request.executors_within_s,
            lambda: self._cancelled.is_set() or not self._query.is_active,
        )  # fmt: skip
        if self._brought.asked:
            engine.moves.happenings.tell("executors", asked=self._brought.asked, came=list(self._brought.came))
        taken = {place.executor for place in engine.seats.now.values()}
        fresh = [place for place in engine.seats.places.now() if place.executor not in taken][: len(new)]
        if fresh and not engine.gateway.local:
            rehearse(engine.pipeline, engine.empty_rows(), fresh, engine.settings.bins)
        at = self._request.at_time
        while at is not None and time.time() < at and not self._cancelled.wait(LOOK_EVERY_S):
            pass

    def submit(self, rules: Rules | None = None, copy_ms: float | None = None) -> None:
        """Plan again if anything has changed, and give the steps to the engine."""
        query = self._query
        engine = query._engine
        while True:
            before = [owner.copy() for owner in engine.ledger.owners]
            if self._is_outdated(before) or self._request.at_time is not None:
                self._proposal = self._propose()
            with engine.lock:
                same = all((a == b).all() for a, b in zip(before, engine.ledger.owners, strict=True))
                empty = engine.version < 0  # there is no state to copy, and perhaps no row for a long time
                if same and empty:
                    engine.moves.take_over(self.steps)
                elif same:
                    self._begin(engine, rules or self._request.rules, copy_ms or self._request.copy_ms)
            if same:
                return self.conclude() if empty else None

    def _begin(self, engine: Engine, rules: Rules, copy_ms: float) -> None:
        self._status = "running"
        self._first_version = engine.version + 1
        self._before = _taken_ms(engine.progress)
        self._phases = {}
        engine.moves.copy_ms = copy_ms
        self.number = engine.moves.begin(self.steps, rules, self.follow)

    def _propose(self) -> Proposal:
        engine = self._query._engine
        return proposed(self._request, engine.ledger, self._query.operators, engine.moves.participants, engine.version)

    def _is_outdated(self, owners: Sequence[Any]) -> bool:
        shifts = [shift for step in self.steps for shift in step.shifts]
        return any(owners[shift.stage][shift.bin] != shift.source for shift in shifts)

    def follow(self, told: Entered | Finished) -> None:
        """Note how it goes on; called by the engine, in the thread that makes versions."""
        if isinstance(told, Entered):
            self._phases[told.step] = told.phase
            return
        self._status, self._reason = told.outcome, told.reason
        self._last_version = self._query._engine.version
        self._ended_s = time.monotonic()
        # Who had a part in it and owns nothing may go; not here, where a batch waits.
        threading.Thread(target=self._clear_up, name="meander-clear-up", daemon=True).start()

    def _clear_up(self) -> None:
        try:
            self._let_executors_go(self.dismiss_idle())
        except Exception:
            logger.exception("workers that own nothing could not be cleared up")
        finally:
            self._let_rows_go()
            self._processes_after = self._query._engine.moves.processes
            self._ended.set()

    def _let_rows_go(self) -> None:
        """Hold no rows back any more, and take over how many waited, and for how long."""
        if self._request.mode == "pause_bins":
            runner = self._query._runner
            runner.holds_back = False
            self.rows_held, self.longest_hold_ms = runner.rows_held, runner.longest_hold_ms

    def dismiss_idle(self) -> list[str]:
        """Remove workers that have nothing to do any more, with what they have left; returns their executors."""
        engine = self._query._engine
        with engine.lock:
            left = engine.moves.dismissed()
        engine.seats.places.clear(left.keys(), left.values())
        return sorted(set(left.values()))

    def _let_executors_go(self, executors: Sequence[str]) -> None:
        engine = self._query._engine
        if engine.gateway.local or self._request.keep_executors:
            return
        in_vain = self._brought.came if self._status in ("failed", "cancelled", "waiting") else ()
        free = engine.seats.unused([*executors, *in_vain])
        if free and not self._query.is_shared:
            engine.gateway.release_executors(free)
            for executor in free:
                engine.seats.places.known.pop(executor, None)
            self._let_go = len(free)
            engine.moves.happenings.tell("executors", let_go=free)

    def conclude(self) -> None:
        """All bins have flipped at once: dismiss who owns nothing any more, and be done."""
        self._phases = dict.fromkeys((step.number for step in self.steps), Phase.RELEASED)
        self._status = "done"
        self._let_executors_go(self.dismiss_idle())
        self._end("done")

    def _end(self, status: str, reason: str = "") -> None:
        self._let_rows_go()
        self._last_version = self._query.version
        self._processes_after = self._query._engine.moves.processes
        super()._end(status, reason)

    @classmethod
    def resumed(cls, query: Query) -> Migration:
        """The handle of a migration that a driver before this one has begun."""
        engine = query._engine
        protocol = engine.moves.protocol
        number = protocol.migration
        assert number is not None
        bins = sum(len(step.shifts) for step in protocol.steps)
        size = sum(step.bytes for step in protocol.steps)
        stages = tuple(engine.ledger.stages)
        request = Request("resume", stages, protocol.rules, engine.settings.copy_ms, engine.settings.executors_within_s)
        workers = tuple(sorted({*engine.workers, *protocol.workers}))
        made = cls(query, request, Proposal({}, protocol.steps, bins, size, 0, workers))
        made.number, made._status = number, "running"
        engine.moves.follow(number, made.follow)
        return made


def unlimited(rules: Rules) -> Rules:
    """The same rules without a budget: everything is copied at once, and nothing is kept."""
    return replace(rules, copy_bytes=NO_LIMIT, release_after=0)


def _taken_ms(progress: Sequence[Mapping[str, Any]]) -> list[float]:
    return [float(np.sum(list(each["spent_ms"].values()))) for each in progress]
