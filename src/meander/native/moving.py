"""A migration of state partitions: executors come, partitions move batch by batch, executors go."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from meander.errors import MigrationFailed
from meander.migration.progress import Latency, Progress, Report
from meander.migration.steps import Shift, Step
from meander.native.course import (
    Arrived,
    Course,
    Doubted,
    Finished,
    GivenUp,
    Instruction,
    Key,
    Rules,
    Snapshot,
    Steer,
)
from meander.native.placement import Placement, executor_of
from meander.native.watching import Batch
from meander.spark.executors import await_executors
from meander.spark.handle import Handle
from meander.spark.happenings import Happenings
from meander.spark.request import Proposal, Request

logger = logging.getLogger("meander")

SOON_S = 0.05

PAUSE_WITHIN_S = 60.0
PAUSE_LOOK_S = 0.003

ROUNDS = 3
"""So often an executor is emptied that Spark gives something to meanwhile."""


@dataclass(frozen=True)
class Wish:
    """What is wanted of a native migration.

    Args:
        request: what moves, and by which planner and schedule.
        rules: how patient it is.
        leaving: executors that shall hold nothing afterwards.
        releases: whether executors that hold nothing afterwards are let go.
    """

    request: Request
    rules: Rules = field(default_factory=Rules)
    leaving: frozenset[str] = frozenset()
    releases: bool = False

    @property
    def empties(self) -> bool:
        """Whether executors may hold nothing afterwards."""
        return self.releases or bool(self.leaving)


class NativeMigration(Handle):
    """A migration of Spark's own state partitions, under way or ended."""

    def __init__(
        self, placement: Placement, wish: Wish, propose: Callable[[], Proposal], happenings: Happenings
    ) -> None:
        super().__init__(propose() if wish.request.workers is None else Proposal({}, (), 0, 0, 0, ()))
        self._placement, self._wish, self._propose, self._happenings = placement, wish, propose, happenings
        self._watch = placement.watch
        self._course: Course | None = None
        self._arrived: list[Shift] = []
        self._steps_before = 0
        self._replaced = False
        self._remarks: list[str] = []
        self._before = [each.took_ms for each in self._watch.batches]
        self._first_batch = self._watch.batch + 1
        self._last_batch: int | None = None
        self._owners = self._owning()
        self._asked, self._let_go = 0, 0
        self._moving: set[Key] = set()
        self._came: tuple[str, ...] = ()

    # --- what one sees -----------------------------------------------------------------------

    @property
    def progress(self) -> Progress:
        """How far it is: partitions, bytes and steps that have been seen in their new places."""
        arrived, course = list(self._arrived), self._course
        size = sum(shift.bytes for shift in arrived)
        steps = self._steps_before + (min(course.at, len(course.steps)) if course else 0)
        return Progress(
            self._phase(), len(arrived), self._proposal.bins, size, self._proposal.bytes, steps, len(self.steps),
            self._eta_s(len(arrived)), "partitions",
        )  # fmt: skip

    def _phase(self) -> str:
        if self._status != "running" or self._course is None:
            return self._status
        return "waiting for a batch" if self._placement.internals.is_between_batches else "moving"

    @property
    def report(self) -> Report:
        """What it was and did to the stream, so far or in all; a version is a batch here."""
        last = self._watch.batch if self._last_batch is None else self._last_batch
        during = [each.took_ms for each in self._watch.batches if self._first_batch <= each.number <= last]
        after = [each.took_ms for each in self._watch.batches if self._last_batch is not None and each.number > last]
        progress, plans = self.progress, self.plans
        return Report(
            mode="native", outcome=self._status, reason=self._reason,
            planner=next(iter(plans.values())).planner if plans else self._wish.request.planner,
            planner_ms=self._proposal.planner_ms, schedule=self._wish.request.schedule,
            workers_before=self._owners, workers_after=self._owning(),
            bins=progress.bins, bytes=progress.bytes, steps=progress.steps, versions=len(during),
            duration_s=self._spent_s(),
            before=Latency.of(self._before), during=Latency.of(during), after=Latency.of(after),
            executors={"asked": self._asked, "came": len(self._came), "let_go": self._let_go},
            remarks=(*self._proposal.notes, *self._remarks),
        )  # fmt: skip

    def _owning(self) -> tuple[int, ...]:
        found = {ran.executor for _, ran in self._watch.last.values()}
        return tuple(sorted(int(each) for each in found if each.isdigit()))

    def cancel(self) -> None:
        """Move nothing more: partitions that were steered already stay where they are, or arrive yet."""
        self._cancelled.set()

    def give_way(self) -> None:
        """End because another wish has come, and wait until it has."""
        self._replaced = True
        self._cancelled.set()
        self.join()

    def join(self) -> None:
        """Wait until its thread has ended."""
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join()

    def _check_query(self) -> None:
        if self._watch.ended.is_set() and not self._thread.is_alive() and not self._ended.is_set():
            raise MigrationFailed("the query has ended; nothing was lost, and Spark places its state anew")

    # --- what it does ------------------------------------------------------------------------

    def _run(self) -> None:
        self._watch.closely = True
        try:
            self._bring()
            self._status = "running"
            self._before = [each.took_ms for each in self._watch.batches]
            self._first_batch = self._watch.batch + 1
            with self._placement.held_together():
                self._go(self.steps)
                if self._wish.empties:
                    self._empty()
            status, reason = "done", ""
            if self._cancelled.is_set():
                status, reason = ("replaced", "another wish came") if self._replaced else ("cancelled", "by the user")
        except Exception as problem:
            status, reason = self._failure(problem)
        finally:
            self._watch.closely = False
        if status != "done":
            self._take_back()
        self._last_batch = self._watch.batch
        self._end(status, reason)
        self._happenings.tell("migration", outcome=status, reason=reason, partitions=self.progress.bins)

    def _given_up(self) -> bool:
        return self._cancelled.is_set() or self._watch.ended.is_set()

    def _bring(self) -> None:
        """See that there are as many executors as wanted, and plan with them."""
        wanted = self._wish.request.workers
        if wanted is None:
            return
        placement, within_s = self._placement, self._wish.request.executors_within_s
        there = [each.id for each in placement.workers if each.id not in placement.draining]
        everybody = len(placement.workers)
        if wanted > len(there):
            self._asked = wanted - len(there)
            placement.gateway.request_executors(everybody + self._asked)
            known = {each.id for each in placement.workers}
            enough = everybody + self._asked
            await_executors(lambda: len(placement.workers) >= enough, within_s, self._given_up)
            self._came = tuple(each.id for each in placement.workers if each.id not in known)
            self._happenings.tell("executors", asked=self._asked, came=list(self._came))
            if len(self._came) < self._asked and not self._given_up():
                raise MigrationFailed(
                    f"{wanted} executors were wanted and there are {len(there)}: asked for {self._asked} more, "
                    f"{len(self._came)} came within {within_s:g} s; nothing was moved. Give Spark more room, or "
                    f"rescale to at most {len(there)}"
                )
        self._proposal = self._propose()

    def _take_back(self) -> None:
        """Let executors go that came in vain."""
        with suppress(Exception):
            placement = self._placement
            vain = set(self._came) - placement.held(self._came) - set(placement.held_by_others(self._came))
            if self._asked:
                placement.gateway.request_executors(len(placement.workers))
            placement.release(sorted(vain))
            self._let_go = len(vain)

    def _go(self, steps: Sequence[Step]) -> None:
        """Take one step after the other, each at the end of a batch."""
        self._moving = {(shift.stage, shift.bin) for step in steps for shift in step.shifts}
        self._placement.warm_up({shift.target for step in steps for shift in step.shifts})
        self._course = course = Course(steps, self._wish.rules)
        # In the middle of a batch its own tasks would say where they are after us, and win.
        last, served = self._placement.internals.last_planned, self._watch.served
        turn = self._placement.internals.is_between_batches or served.number == last
        batch = served if served.number == last else Batch(last if turn else last - 1, 0.0, 0.0, 0)
        stale: tuple[Shift, ...] = ()
        while not self._given_up():
            if turn:
                seen = self._placement.seen(batch, course.concerned)
                told = course.on(seen)
                stale = self._act(told, batch)
                if Finished() in told:
                    return
            if stale and self._watch.batch >= batch.number:
                # Not before the batch has ended: Spark then finds for itself what is overdue, and forgets the rest.
                self._placement.prepare(stale, self._moving, batch.number)
                self._tell("snapshot", batch, stale)
                stale = ()
            found = self._watch.served_after(batch.number, SOON_S)
            turn = found is not None
            batch = found or batch
            if not turn:
                # Word of a batch comes late, and a task that was to run elsewhere says so when it begins: whenever the
                # next batch is planned, the last word shall have been this one.
                self._placement.flip(course.under_way)
        if self._watch.ended.is_set():
            raise MigrationFailed("the query has ended; nothing was lost, and Spark places its state anew")

    def _act(self, told: Sequence[Instruction], batch: Batch) -> tuple[Shift, ...]:
        """Do what the course says; returns what shall have a snapshot."""
        stale: tuple[Shift, ...] = ()
        # Steering first: the next batch may soon be planned.
        for each in sorted(told, key=lambda each: not isinstance(each, Steer)):
            match each:
                case Steer(shifts):
                    self._placement.flip(shifts)
                    self._tell("steered", batch, shifts)
                case Snapshot(shifts):
                    stale = shifts
                case Arrived(shift):
                    self._arrived.append(shift)
                    self._tell("arrived", batch, [shift])
                case Doubted(shift, reason) | GivenUp(shift, reason):
                    word = "is on" if isinstance(each, Doubted) else "did not go to"
                    self._remark(f"partition {shift.bin} {word} executor {shift.target}: {reason}")
                    self._tell("doubted" if isinstance(each, Doubted) else "given_up", batch, [shift], reason=reason)
        return stale

    def _tell(self, event: str, batch: Batch, shifts: Sequence[Shift], **facts: Any) -> None:
        moved = [[shift.stage, shift.bin, shift.source, shift.target] for shift in shifts]
        self._happenings.tell(event, batch=batch.number, partitions=moved, **facts)

    def _remark(self, text: str) -> None:
        self._remarks.append(text)
        logger.info("%s", text)

    def _empty(self) -> None:
        """See that who shall leave holds nothing, and let it go if that is wanted.

        While it was emptied, Spark may have given it something again: an executor without work takes what others are
        slow to begin.
        """
        for _ in range(ROUNDS):
            leaving = self._leaving()
            held = self._placement.held(leaving)
            if not leaving or not held or self._given_up():
                break
            self._remark(f"executor {', '.join(sorted(held))} still holds state and is emptied once more")
            more, done = self._propose(), self._arrived
            self._steps_before = len(self.steps)
            self._proposal = replace(
                more, steps=(*self.steps, *more.steps), bins=len(done) + more.bins,
                bytes=sum(shift.bytes for shift in done) + more.bytes,
            )  # fmt: skip
            self._go(more.steps)
        if self._given_up() or not leaving:
            return
        held, shared = self._placement.held(leaving), {}
        if self._wish.releases:
            shared = self._placement.held_by_others(leaving)
        free = sorted(leaving - held - set(shared))
        if self._wish.releases and free:
            self._await_a_pause()
            self._placement.release(free)
            self._let_go = len(free)
            self._happenings.tell("executors", let_go=free)
        for executor, query in sorted(shared.items()):
            self._remark(f"executor {executor} is empty but kept: another query, {query}, has state there")
        if held:
            raise MigrationFailed(f"executor {', '.join(sorted(held))} still holds state; see the remarks")

    def _await_a_pause(self) -> None:
        """Wait until nothing runs: a task on an executor that goes would be missed only after seconds.

        Even where one batch follows the other there is a pause between them, while Spark commits and plans.
        """
        deadline = time.monotonic() + PAUSE_WITHIN_S
        while time.monotonic() < deadline and not self._placement.internals.is_quiet and not self._given_up():
            time.sleep(PAUSE_LOOK_S)

    def _leaving(self) -> set[str]:
        """The executors that shall hold nothing, of those that are there; never so many that fewer than wanted stay."""
        there, wanted = self._placement.workers, self._wish.request.workers
        if wanted is None:
            return {each.id for each in there if each.id in self._wish.leaving}
        staying = set(self._proposal.workers)
        idle = [each.id for each in there if executor_of(each) not in staying]
        idle.sort(key=lambda each: each not in self._placement.draining)
        return set(idle[: max(0, len(there) - wanted)])
