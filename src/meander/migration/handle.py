"""What a user holds of a migration, whichever engine moves the bins: how far it is, waiting for it, ending it."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from contextlib import suppress

from meander.clock import Clock, SystemClock
from meander.errors import MeanderError, MigrationFailed
from meander.logs import logger
from meander.migration.movable import EngineStatus, MigrationState, Movable, Recruits, StaleLedger
from meander.migration.orders import Phase
from meander.migration.report import Latency, Progress, Report
from meander.migration.request import Proposal, Request
from meander.migration.steps import Budget, Step
from meander.planning import Plan
from meander.progress import bars

LOOK_EVERY_S = 0.05
AHEAD_S = 60.0
"""So long before the time it is meant for, a migration asks for executors and plans."""
ROUNDS = 3
"""So often executors are emptied that get something back meanwhile."""


class Migration:
    """A migration under way or ended: how far it is, how to wait for it or cancel it, and what it did."""

    def __init__(self, engine: Movable, request: Request, proposal: Proposal, clock: Clock | None = None) -> None:
        self.engine, self.request, self.proposal = engine, request, proposal
        self.number: int | None = None
        """Its number once it is under way; events carry it."""
        self._rows_held, self._longest_hold_ms = 0, 0.0
        self._clock = clock or SystemClock()
        self._began_s = self._clock.now_s()
        self._ended_s: float | None = None
        self._before = engine.status()
        self._first_version = self._before.version + 1
        self._last_version: int | None = None
        self._end: tuple[str, str] | None = None
        self._is_running = False
        self._replaced = False
        self._recruits = Recruits()
        self._released = 0
        self._remarks: tuple[str, ...] = ()
        self._earlier: tuple[int, int | float] = (0, 0)
        self._processes_after: tuple[str, ...] = ()
        self._is_alone = False
        """Whether it begins in the caller's thread, so that nothing can happen while it waits for its time."""
        self._cancelled, self._ended = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="meander-migration", daemon=True)

    def __repr__(self) -> str:
        return f"<Migration {'' if self.number is None else self.number}: {self.progress}>".replace(" :", ":")

    # --- what one sees ---------------------------------------------------------------------

    @property
    def status(self) -> str:
        """One word: waiting (for executors or for its time), running, done, cancelled, replaced or failed."""
        if self._end is not None:
            return self._end[0]
        return (self._state.outcome or "running") if self._is_running else "waiting"

    @property
    def reason(self) -> str:
        """Why it was cancelled, replaced or has failed."""
        return self._state.reason if self._end is None else self._end[1]

    @property
    def is_over(self) -> bool:
        """Whether it has ended, one way or the other."""
        return self._ended.is_set()

    @property
    def plans(self) -> Mapping[str, Plan]:
        """The plan for each operator."""
        return self.proposal.plans

    @property
    def steps(self) -> tuple[Step, ...]:
        """What flips together, in order."""
        return self.proposal.steps

    @property
    def versions(self) -> range:
        """The versions that were made while it was under way."""
        last = self.engine.status().version if self._last_version is None else self._last_version
        return range(self._first_version, last + 1)

    @property
    def progress(self) -> Progress:
        """How far it is: bins, bytes and steps that have flipped, and how long the rest will take."""
        state = self._state
        flipped = [step for step in self.steps if state.is_flipped(step.number)]
        bins, size = state.arrived or (sum(len(step.moves) for step in flipped), sum(step.bytes for step in flipped))
        bins, size = bins + self._earlier[0], size + self._earlier[1]
        all_bins, all_bytes = self.proposal.bins + self._earlier[0], self.proposal.bytes + self._earlier[1]
        left = all_bins - bins
        spent_s = self._clock.now_s() - self._began_s
        eta_s = 0.0 if not left else spent_s / bins * left if bins else None
        return Progress(
            self._phase(state), bins, all_bins, size, all_bytes, len(flipped), len(self.steps), eta_s, self.engine.unit
        )  # fmt: skip

    def _phase(self, state: MigrationState) -> str:
        if self.status != "running":
            return self.status
        if state.activity:
            return state.activity
        ahead = [state.phases.get(step.number, Phase.PLANNED) for step in self.steps]
        return next((str(phase) for phase in ahead if phase not in (Phase.FLIPPED, Phase.RELEASED)), "releasing")

    @property
    def report(self) -> Report:
        """What it was and did to the stream, so far or in all."""
        now, progress, versions, last = self.engine.status(), self.progress, self.versions, self._last_version
        during = [each.took_ms for each in now.times if each.version in versions]
        after = [each.took_ms for each in now.times if last is not None and each.version > last]
        end_s = self._clock.now_s() if self._ended_s is None else self._ended_s
        return Report(
            mode=self.request.mode.name, outcome=self.status, reason=self.reason,
            planner=next(iter(self.plans.values())).planner if self.plans else self._planner,
            planner_ms=self.proposal.planner_ms,
            remarks=(*self.proposal.notes, *self._state.remarks, *self._remarks),
            schedule=self.request.schedule,
            workers_before=self._before.workers, workers_after=now.workers,
            bins=progress.bins, bytes=progress.bytes, steps=progress.steps,
            versions=len(during), duration_s=end_s - self._began_s,
            before=Latency.of(_took_ms(self._before)), during=Latency.of(during), after=Latency.of(after),
            rows_held=self._rows_held, longest_hold_ms=round(self._longest_hold_ms, 1),
            rows_misrouted=now.misrouted - self._before.misrouted,
            processes_before=self._before.processes, processes_after=self._processes_after or now.processes,
            executors={
                "asked": self._recruits.requested, "came": len(self._recruits.arrived), "let_go": self._released,
            },
        )  # fmt: skip

    @property
    def _planner(self) -> str:
        return "resumed" if self.request.kind == "resume" else self.request.planner

    @property
    def _state(self) -> MigrationState:
        return MigrationState({}) if self.number is None else self.engine.state(self.number)

    # --- what one does ---------------------------------------------------------------------

    def wait(self, timeout_s: float | None = None, show: bool | None = None) -> bool:
        """Wait until it is over.

        Args:
            timeout_s: wait so many seconds at most.
            show: whether to draw a progress bar; by default in a notebook, and on a terminal.

        Returns:
            Whether it is over.

        Raises:
            MigrationFailed: it has failed, or the query has ended before it was through.

        Example:
            >>> migration.wait(timeout_s=60)
            True
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s

        with bars(show) as draw:

            def look() -> None:
                progress = self.progress
                if draw is not None:
                    draw("moving state", progress.bins, max(1, progress.of_bins), str(progress))

            while not self._ended.wait(LOOK_EVERY_S):
                look()
                if not self._thread.is_alive() and self._is_running and not self.is_over:
                    raise MigrationFailed(self._cut_short())
                if deadline is not None and time.monotonic() >= deadline:
                    return False
            look()
        if self.status == "failed":
            raise MigrationFailed(self.reason)
        return True

    def _cut_short(self) -> str:
        if self._is_alone:
            return "in a harness nothing goes on by itself; give the migration to h.finish(..), or call h.rescale(..)"
        progress = self.progress
        done = f"the query has ended with {progress.bins} of {progress.of_bins} {progress.unit} moved"
        return f"{done}; {self.engine.remainder}"

    def cancel(self) -> None:
        """Move nothing more: bins that have flipped stay where they are, copies of the others are dropped.

        Example:
            >>> move = query.rescale(3, schedule="fluid")
            >>> move.cancel()
            >>> move.status
            'cancelled'
        """
        if self._ended.is_set():
            return
        self._cancelled.set()
        if self.number is not None:
            self.engine.cancel(self.number, "cancelled by the user")

    def give_way(self) -> None:
        """Do not begin any more, because another request has come; one that is meant for a later time stays."""
        if self.status == "waiting" and self.request.at_time is None:
            self._replaced = True
            self._cancelled.set()

    def join(self) -> None:
        """Wait until its thread has ended."""
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join()

    # --- what it does; `Mode`s call these too ------------------------------------------------

    def start(self, background: bool = True) -> Migration:
        """Begin: in a thread of its own, or here, up to the submission of its steps."""
        if background:
            self._thread.start()
        else:
            self._is_alone = True
            self._begin()
        return self

    def resume(self, number: int, background: bool = True) -> Migration:
        """Go on with a migration that a driver before this one has begun."""
        self.number, self._is_running, self._is_alone = number, True, not background
        self._thread = threading.Thread(target=self._follow, name="meander-migration", daemon=True)
        if background:
            self._thread.start()
        return self

    def poll(self) -> bool:
        """Clean up if it is over, and return whether it is: for one that was started without a thread."""
        if not self.is_over and self._state.outcome is not None:
            self._clear_up()
        return self.is_over

    def plan_again(self) -> None:
        """Plan from the assignment as it is now."""
        self.proposal = self.engine.propose(self.request)

    def mark_running(self) -> None:
        """It begins now: what happens from here on is because of it."""
        now = self.engine.status()
        self._is_running, self._first_version, self._before = True, now.version + 1, now

    def know_as(self, number: int) -> None:
        """Its number at the engine, for modes that move bins without `submit`."""
        self.number = number

    def note_hold(self, rows: int, longest_ms: float = 0.0) -> None:
        """For modes that hold rows back: so many more had to wait, and for how long at most."""
        self._rows_held += rows
        self._longest_hold_ms = max(self._longest_hold_ms, longest_ms)

    def submit(self, budget: Budget | None = None) -> None:
        """Give the steps to the engine; plan again first if anything has changed."""
        if self.request.at_time is not None:
            self.plan_again()
        self.mark_running()  # before: who hears the event that it is planned may ask how it stands
        self._take_up(self._submit(budget or self.request.budget))

    def _take_up(self, number: int) -> None:
        """It has this number from here on; whoever cancelled it before could not name it to the engine."""
        self.number = number
        logger.info("migration %s begins, a %s: %s", number, self.request.kind, self.proposal, extra=self._subject)
        if self._cancelled.is_set():
            self.engine.cancel(number, "cancelled by the user")

    def _submit(self, budget: Budget) -> int:
        while True:
            try:
                return self.engine.submit(self.proposal.revision, self.steps, budget)
            except StaleLedger:
                self.plan_again()

    def conclude(self) -> None:
        """All bins have flipped at once: clear up, and be over with the last version that was made."""
        self._clear_up(self.engine.status().version)

    def end(self, outcome: str, reason: str = "") -> None:
        """It is over."""
        self._end = (outcome, reason)
        now = self.engine.status()
        if self._last_version is None:
            self._last_version = now.version
        self._ended_s = self._ended_s or self._clock.now_s()
        self.request.mode.ended(self)
        self._processes_after = now.processes
        logger.info("migration %s is over: %s", self.number, str(self.report).partition("\n")[0], extra=self._subject)
        self._ended.set()

    @property
    def _subject(self) -> dict[str, object]:
        """What is logged about it."""
        return {"query": self.engine.name, "version": self.engine.status().version, "migration": self.number}

    def _run(self) -> None:
        if self._begin():
            self._follow()

    def _begin(self) -> bool:
        """Wait for its time and its executors, and submit; returns whether it is under way."""
        try:
            self._await_time(AHEAD_S)
            self._recruit()
            self._await_time(0)
            if not self._cancelled.is_set():
                self.request.mode.run(self)
                return not self.is_over
            end = ("replaced", "another request came first") if self._replaced else ("cancelled", "by the user")
        except Exception as problem:
            end = self._failure(problem)
        with suppress(MeanderError):
            self._let_go(end[0])
        self.end(*end)
        return False

    def _await_time(self, ahead_s: float) -> None:
        at = self.request.at_time
        while at is not None and (left_s := at - ahead_s - self._clock.wall_ms() / 1000) > 0:
            self._clock.sleep(left_s if self._is_alone else min(left_s, LOOK_EVERY_S))
            if self._cancelled.is_set():
                return
            if not self.engine.status().is_active:
                raise MigrationFailed("the query ended before the time of this migration")

    def _recruit(self) -> None:
        if not self._cancelled.is_set():
            self._recruits = self.engine.recruit(self.request, self.proposal.workers, self._cancelled)
        if self._recruits.arrived and not self._cancelled.is_set():
            self.plan_again()  # with the executors that have come

    def _follow(self) -> None:
        """Wait until it is over; empty executors again that have got something back meanwhile, and clean up."""
        try:
            for rounds_left in reversed(range(ROUNDS + 1)):
                while self._state.outcome is None:
                    if not self.engine.status().is_active:
                        return
                    self._clock.sleep(LOOK_EVERY_S)
                if self.status != "done" or self._cancelled.is_set() or not rounds_left:
                    break
                held = self.engine.still_held(self.request, self.proposal)
                if not held:
                    break
                self._again(held)
        except Exception as problem:
            with suppress(MeanderError):
                self._let_go("failed")
            self.end(*self._failure(problem))
            return
        self._clear_up()

    def _again(self, held: set[str]) -> None:
        remark = f"executor {', '.join(sorted(held))} still holds state and is emptied once more"
        self._remarks = (*self._remarks, *self._state.remarks, remark)
        progress = self.progress
        self.number, self._earlier = None, (progress.bins, progress.bytes)
        self.plan_again()
        self._take_up(self._submit(self.request.budget))

    def _clear_up(self, last_version: int | None = None) -> None:
        state = self._state
        self._last_version = state.last_version if last_version is None else last_version
        self._ended_s = self._clock.now_s()
        outcome, reason = state.outcome or "done", state.reason
        if self._replaced:
            outcome, reason = "replaced", "another request came"
        try:
            self._let_go(outcome)
        except MeanderError as problem:
            outcome, reason = "failed", str(problem)
        self.end(outcome, reason)

    def _let_go(self, outcome: str) -> None:
        try:
            self._released, remarks = self.engine.let_go(self.request, self.proposal, self._recruits, outcome)
            self._remarks = (*self._remarks, *remarks)
        except MeanderError:
            raise
        except Exception:
            logger.exception("workers that own nothing could not be cleared up", extra=self._subject)

    def _failure(self, problem: Exception) -> tuple[str, str]:
        """How it ended, and why, for a problem that ended it."""
        if isinstance(problem, MeanderError):
            return "failed", str(problem)
        logger.error("a migration has failed", exc_info=problem, extra=self._subject)
        return "failed", f"{type(problem).__name__}: {str(problem).partition(chr(10))[0]}"


def _took_ms(status: EngineStatus) -> list[float]:
    return [each.took_ms for each in status.times]
