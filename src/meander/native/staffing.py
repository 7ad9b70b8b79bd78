"""Executors of a query of Spark's own: they come before partitions need them, and go when they are empty."""

from __future__ import annotations

import threading
from collections.abc import Callable

from meander.clock import Clock
from meander.engine.driver.placement import await_executors
from meander.errors import MigrationFailed
from meander.migration.events import EventLog
from meander.migration.movable import Recruits
from meander.migration.request import Proposal, Request
from meander.native.moving import QUERY_ENDED
from meander.native.placement import StatePlacement, executor_of
from meander.pictures import many

PAUSE_WITHIN_S = 60.0
PAUSE_LOOK_S = 0.003


class Staffing:
    """Asks for executors and lets them go."""

    def __init__(self, placement: StatePlacement, events: EventLog, clock: Clock) -> None:
        self._placement, self._events, self._clock = placement, events, clock
        self._lock = threading.Lock()

    def recruit(self, count: int, within_s: float, given_up: threading.Event) -> Recruits:
        """See that there are so many executors; raises `MigrationFailed` where they do not come in time.

        Those that have not come when nobody wants them any more are called off: only then is another one's turn.
        """
        with self._lock:
            placement, ended = self._placement, self._placement.watch.ended
            there = placement.participants
            missing = count - len(there)
            if missing <= 0:
                return Recruits()
            ids = {each.id for each in placement.workers}
            enough = len(ids) + missing
            placement.gateway.request_executors(enough)
            await_executors(
                lambda: len(placement.workers) >= enough or ended.is_set(), within_s, given_up, self._clock
            )  # fmt: skip
            arrived = tuple(each.id for each in placement.workers if each.id not in ids)
            self._events.emit("executors", asked=missing, came=list(arrived))
            recruits = Recruits(missing, arrived)
            if len(arrived) >= missing:
                return recruits
            placement.gateway.request_executors(len(placement.workers))
            if given_up.is_set():
                return recruits
            self.take_back(recruits)
            if ended.is_set():
                raise MigrationFailed(QUERY_ENDED)
            raise MigrationFailed(
                f"{many(count, 'executor')} were wanted and there are {len(there)}: asked for {missing} more, "
                f"{len(arrived)} came within {within_s:g} s; nothing was moved. Give Spark more room, or "
                f"rescale to at most {len(there)}"
            )

    def take_back(self, recruits: Recruits) -> int:
        """Let executors go that came in vain, and return how many."""
        placement = self._placement
        arrivals = recruits.arrived
        if not recruits.requested:
            return 0
        vain = set(arrivals) - placement.held(arrivals) - set(placement.held_by_others(arrivals))
        placement.gateway.request_executors(len(placement.workers))
        placement.release(sorted(vain))
        return len(vain)

    def leavers(self, request: Request, proposal: Proposal) -> set[str]:
        """The executors that shall hold nothing, of those that are there; never so many that fewer than wanted stay."""
        if request.workers is None and not request.leaving:
            return set()
        there = self._placement.workers
        if request.workers is None:
            return {each.id for each in there if executor_of(each) in request.leaving}
        staying = set(proposal.workers)
        idle = [each.id for each in there if executor_of(each) not in staying]
        idle.sort(key=lambda each: each not in self._placement.draining)
        return set(idle[: max(0, len(there) - request.workers)])

    def dismiss(
        self, request: Request, proposal: Proposal, is_wanted: Callable[[], bool]
    ) -> tuple[int, tuple[str, ...]]:
        """Let executors go that are empty; how many went, and why others did not.

        Raises `MigrationFailed` where one that had to be emptied still holds state.
        """
        leaving = self.leavers(request, proposal)
        if not leaving:
            return 0, ()
        placement, releases = self._placement, request.releases and not request.keep_executors
        held = placement.held(leaving)
        shared = placement.held_by_others(leaving) if releases else {}
        free = sorted(leaving - held - set(shared)) if releases else []
        if free:
            self._await_pause(is_wanted)
            placement.release(free)
            self._events.emit("executors", let_go=free)
        if held:
            raise MigrationFailed(f"executor {', '.join(sorted(held))} still holds state; see the remarks")
        kept = (
            f"executor {executor} is empty but kept: another query, {query}, has state there"
            for executor, query in sorted(shared.items())
        )
        return len(free), tuple(kept)

    def _await_pause(self, is_wanted: Callable[[], bool]) -> None:
        """Wait until nothing runs: a task on an executor that goes would be missed only after seconds.

        Even where one batch follows the other there is a pause between them, while Spark commits and plans.
        """
        deadline = self._clock.now_s() + PAUSE_WITHIN_S
        while self._clock.now_s() < deadline and not self._placement.internals.is_quiet and is_wanted():
            self._clock.sleep(PAUSE_LOOK_S)
