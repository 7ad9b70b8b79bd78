"""The migrations of one query: the protocol, who follows it, and what it means for the bins of the next version."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from meander.checkpoint.entries import Json
from meander.checkpoint.manifest import Log
from meander.migration import journal
from meander.migration.protocol import (
    Cancelled,
    Committed,
    Entered,
    Event,
    Finished,
    Gone,
    Instruction,
    Lost,
    Opened,
    Planned,
    Rules,
)
from meander.migration.steps import Step
from meander.spark.happenings import Happenings
from meander.spark.ledger import Ledger, Owners
from meander.spark.orders import Orders, stale
from meander.spark.seats import Seats
from meander.spark.settings import Settings
from meander.types import WorkerId

Follower = Callable[[Entered | Finished], None]
"""Who wants to know how a migration goes on."""


class Moves:
    """How the bins of a query change hands. Whoever calls a method that changes something holds the engine's lock."""

    def __init__(self, ledger: Ledger, seats: Seats, log: Log, settings: Settings, noted: Mapping[str, Any]) -> None:
        self.ledger, self.seats, self.log, self.settings = ledger, seats, log, settings
        self.wanted: list[int] = noted.get("wanted") or [settings.workers] * len(ledger.owners)
        """How many workers each stage is to have: as started, or as moved since; a loss does not change it."""
        self.asked: int | None = noted.get("asked")
        self.protocol = journal.from_json(noted.get("migration"))
        self.count: int = noted.get("migrations", 0)
        """How many migrations there have been."""
        self.copy_ms = settings.copy_ms
        self.happenings = Happenings()
        self.orders = Orders()
        self._followers: dict[int, Follower] = {}
        self._told_workers = 0

    @property
    def version(self) -> int:
        """The last committed version."""
        return self.log.index.version

    @property
    def participants(self) -> list[WorkerId]:
        """The workers that have something to do in the next version: those that own, copy or still keep bins."""
        moving = self.protocol.workers if self.protocol.busy else set()
        return sorted({*self.ledger.workers, *moving})

    @property
    def processes(self) -> tuple[str, ...]:
        """The executors' processes that workers sit on: host and process id."""
        return tuple(sorted({":".join(place.process.split(":")[:2]) for place in self.seats.now.values()}))

    def noted(self) -> Json:
        """What another driver has to know of it after the version that is being committed."""
        found: Json = {"wanted": self.wanted, "asked": self.asked, "migrations": self.count}
        under_way = journal.to_json(self.protocol)
        return found if under_way is None else {**found, "migration": under_way}

    # --- wishes ----------------------------------------------------------------------------

    def rescale_to(self, asked: int | None) -> None:
        """Before the first version of this run: spread the bins over the workers wanted, moving as few as possible.

        Someone who asks for as many as the last time, or for none in particular, gets what it was rescaled to since.
        """
        if self.log.last is None or (asked is not None and asked != self.asked):
            self.wanted = [self.settings.workers] * len(self.ledger.owners)
            self.tell(Cancelled("the query was started with another number of workers"))
        self.asked = asked
        if self.protocol.busy:
            return
        for stage, owner in enumerate(self.ledger.owners):
            if len(np.unique(owner)) != self.wanted[stage]:
                self.ledger.owners[stage] = np.array(self.ledger.plan(stage, self.wanted[stage]).owner, np.int64)

    def begin(self, steps: Sequence[Step], rules: Rules, follower: Follower) -> int:
        """Begin a migration, in place of the one under way, and return its number."""
        self.count += 1
        self._followers[self.count] = follower
        self.wanted = [len(np.unique(owner)) for owner in self._after(steps)]
        self.tell(Planned(self.count, tuple(steps), rules))
        return self.count

    def follow(self, migration: int, follower: Follower) -> None:
        """Let someone know how a migration goes on that is under way since before a restart."""
        self._followers[migration] = follower

    def cancel(self, migration: int, reason: str) -> None:
        """Flip nothing more of this migration."""
        if self.protocol.migration == migration:
            self.tell(Cancelled(reason))

    def take_over(self, steps: Iterable[Step]) -> None:
        """From the next version on, the targets of these steps own their bins, and read them then."""
        self.tell(Cancelled("another migration takes effect at once"))
        self.ledger.owners = self._after(steps)
        self.wanted = [len(np.unique(owner)) for owner in self.ledger.owners]

    def _after(self, steps: Iterable[Step]) -> list[Owners]:
        """Who owns each bin once these steps have been taken."""
        owners = [owner.copy() for owner in self.ledger.owners]
        for step in steps:
            for shift in step.shifts:
                owners[shift.stage][shift.bin] = shift.target
        return owners

    def tell(self, event: Event) -> list[Instruction]:
        """Give an event to the protocol, and tell everybody concerned what comes of it."""
        told = self.protocol.on(event)
        for each in told:
            match each:
                case Entered(migration, step, phase):
                    self.happenings.tell(str(phase), version=self.version + 1, migration=migration, step=step)
                case Finished(migration, outcome, reason):
                    facts = {"migration": migration, "outcome": outcome, "reason": reason}
                    self.happenings.tell("finished", version=self.version, **facts)
                    if outcome in ("cancelled", "failed"):
                        self.wanted = [len(np.unique(owner)) for owner in self.ledger.owners]
                case _:
                    continue
            follower = self._followers.get(migration)
            if follower is not None:
                follower(each)
            if isinstance(each, Finished):
                self._followers.pop(migration, None)
        return told

    # --- versions --------------------------------------------------------------------------

    def open(self, version: int, batch: int) -> None:
        """Ask the protocol what this version is to do; again for every attempt, for workers may have been lost."""
        self.orders = Orders()
        if self.protocol.busy:
            unknown = [
                worker
                for worker in self.participants
                if any(self.seats.held(stage, worker) is None for stage in self.ledger.stages)
            ]
            self.tell(Lost(frozenset(unknown)))
            self.orders = Orders.of(self.tell(Opened(version, batch, stale(self.protocol, self.log.index))))
        self.ledger.flip(self.orders.flips)
        if self.orders.flips:
            self.happenings.tell("flipping", version=version, bins=[int(shift.bin) for shift in self.orders.flips])

    def committed(self, version: int, troubles: Sequence[str]) -> None:
        """The version is committed: who owned in it owns, and the migration is so much further."""
        self.ledger.keep()
        held = {
            (stage, worker): found
            for worker in self.participants
            for stage in self.ledger.stages
            if (found := self.seats.held(stage, worker)) is not None
        }
        self.tell(Committed(version, held, tuple(troubles)))
        there = self.ledger.workers
        if self.protocol.migration is None and len(there) != self._told_workers:
            self._told_workers = len(there)
            self.happenings.tell("workers", version=version, workers=sorted(map(int, there)))

    # --- losses ----------------------------------------------------------------------------

    def repair(self, lost: Collection[WorkerId]) -> None:
        """Let others own what these workers had, as the planner chooses; what they would have got is not moved."""
        self.happenings.tell("lost", version=self.version + 1, workers=sorted(map(int, lost)))
        stay = [worker for worker in self.ledger.workers if worker not in lost]
        for stage, owner in enumerate(self.ledger.owners):
            if set(lost) & set(self.ledger.workers_of(stage)):
                fallen = self._fallen_back(stage, owner, lost)
                there = [worker for worker in stay if worker in fallen] or stay
                plan = self.ledger.plan(stage, there, owner=fallen, must_leave=lost)
                self.ledger.owners[stage] = np.array(plan.owner, np.int64)
        self.tell(Gone(frozenset(lost)))

    def _fallen_back(self, stage: int, owner: Owners, lost: Collection[WorkerId]) -> Owners:
        """Who counts as owner where some are lost: an old owner that still has its copy need not read it again."""
        found = owner.copy()
        for kept in self.protocol.kept:
            for shift in kept.step.shifts:
                has = self.seats.held(stage, shift.source)
                is_mine = shift.stage == stage and owner[shift.bin] == shift.target
                if is_mine and shift.target in lost and shift.source not in lost and has is not None and has[shift.bin]:
                    found[shift.bin] = shift.source
        return found

    def dismissed(self) -> dict[str, str]:
        """Take workers that have nothing to do any more off their seats; the folders they leave, and where."""
        idle = set(self.seats.now) - set(self.participants)
        left = self.seats.dismiss(idle)
        if left:
            self.happenings.tell("dismissed", version=self.version, workers=sorted(map(int, idle)))
        return left
