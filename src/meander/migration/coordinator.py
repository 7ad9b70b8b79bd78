"""The migrations of one query: the protocol, what it means for the bins of the next version, repairs after losses."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from meander.logs import logger
from meander.migration.control_rows import ControlRow, ControlRows
from meander.migration.events import EventLog
from meander.migration.ledger import BinRecord, Holdings, Ledger, Owners
from meander.migration.movable import MigrationState
from meander.migration.orders import (
    Cancelled,
    Committed,
    Controlled,
    Entered,
    Event,
    Finished,
    Gone,
    Instruction,
    Lost,
    Opened,
    Orders,
    Phase,
    Planned,
)
from meander.migration.protocol import SEEN_STEPS, Protocol
from meander.migration.steps import COPY_BYTES, CopyBudget, Json, OperatorMove, Step
from meander.types import BinId, Bytes, WorkerId

MAX_STATES = 64


class Coordinator:
    """How the bins of a query change hands. Every method that changes something is called under the driver's lock."""

    def __init__(
        self,
        record: BinRecord,
        holdings: Holdings,
        events: EventLog,
        workers: int,
        note: Mapping[str, Any],
        before: Coordinator | None = None,
    ) -> None:
        """Go on from what was committed; `before` is a coordinator of the same query in this process."""
        self.record, self.holdings, self.events = record, holdings, events
        wanted: list[int] = note.get("wanted") or [workers]
        self.wanted = (wanted + [wanted[-1]] * len(record.owners))[: len(record.owners)]
        """How many workers each operator is to have: as started, or as moved since; a loss does not change it."""
        self.requested: int | None = note.get("asked")
        """The number of workers that the user named at the last start, if any."""
        self.protocol = Protocol.from_json(note.get("migration"))
        self.control: ControlRows = before.control if before else ControlRows.from_json(note.get("control"))
        """The rows of the control stream that have not taken effect."""
        self.count: int = max(note.get("migrations", 0), before.count if before else 0)
        """How many migrations there have been."""
        self.orders = Orders()
        self.states: dict[int, MigrationState] = self._ended(before.states if before else {})
        """How far the last migrations are, or how they ended, by number."""
        self._last_workers = 0
        self._batch = -1
        self._control_revision = -1
        """Of the record that the steps of the control stream were made from."""
        self._see_control()
        if self.protocol.migration is not None:
            self.states[self.protocol.migration] = MigrationState(dict(self.protocol.phases))

    def _ended(self, states: Mapping[int, MigrationState]) -> dict[int, MigrationState]:
        """The migrations of a coordinator before this one; what it did not commit is over."""
        why = "the query was started anew"
        return {
            number: state if state.outcome is not None else state.finished("replaced", why, self.record.version)
            for number, state in states.items()
        }

    @property
    def participants(self) -> list[WorkerId]:
        """The workers that have something to do in the next version: those that own, copy or still keep bins."""
        return sorted({*self.record.workers, *self.protocol.workers})

    def note(self) -> Json:
        """What another driver has to know of it after the version that is being committed."""
        note: Json = {"wanted": self.wanted, "asked": self.requested, "migrations": self.count}
        left = {"migration": self.protocol.to_json(), "control": self.control.after(self._batch).to_json()}
        return note | {name: each for name, each in left.items() if each is not None}

    # --- requests --------------------------------------------------------------------------

    def start(self, requested: int | None, workers: int) -> None:
        """Before the first version of a run: spread the bins over the workers wanted, moving as few as possible.

        A start with the same number as the last one, or with none in particular, keeps what it was rescaled to since.
        """
        record = self.record
        if record.version < 0 or (requested is not None and requested != self.requested):
            self.wanted = [workers] * len(record.owners)
            self._on(Cancelled("the query was started with another number of workers"))
        elif self.wanted != [workers] * len(record.owners):
            kept = ", ".join(map(str, dict.fromkeys(self.wanted)))
            logger.info(
                "the query was rescaled to %s workers before and keeps them, not the %d of its start", kept, workers
            )
        self.requested = requested
        if self.protocol.migration is not None:
            return
        ledger = record.ledger()
        record.assign(
            [
                owner
                if len(np.unique(owner)) == self.wanted[operator]
                else np.array(ledger.plan(operator, self.wanted[operator]).owner, np.int64)
                for operator, owner in enumerate(record.owners)
            ]
        )
        self._see_control()

    def state(self, migration: int) -> MigrationState:
        """How far a migration is, or how it ended; of the last few."""
        return self.states[migration]

    def begin(self, steps: Sequence[Step], budget: CopyBudget) -> int:
        """Begin a migration, in place of the one under way, and return its number."""
        self.count += 1
        self._open_state()
        self.wanted = _counts(_after(self.record.owners, steps))
        self._on(Planned(self.count, tuple(steps), budget))
        return self.count

    def cancel(self, migration: int, reason: str) -> None:
        """Flip nothing more of this migration."""
        if self.protocol.migration == migration:
            self._on(Cancelled(reason))

    def take_over(self, steps: Iterable[Step]) -> int:
        """From the next version on, the targets of these steps own their bins, and read them then."""
        self._on(Cancelled("another migration takes effect at once"))
        steps = tuple(steps)
        self.record.assign(_after(self.record.owners, steps))
        self._see_control()
        self.wanted = _counts(self.record.owners)
        self.count += 1
        self._open_state()
        phases = {step.number: Phase.RELEASED for step in steps}
        self.states[self.count] = MigrationState(phases, "done", "", self.record.version)
        return self.count

    def accept(self, rows: Sequence[ControlRow], budget: CopyBudget) -> None:
        """Let these rows take effect at their batches, whatever is planned."""
        self.control = self.control.with_rows(rows, budget)
        self._see_control()
        self.events.emit("accepted", version=self.record.version, rows=[list(row) for row in rows])

    def _see_control(self) -> None:
        """Let the protocol see what the rows of the control stream make of the assignment as it is now."""
        record, control = self.record, self.control
        self._control_revision = record.revision
        if control.rows or self.protocol.control:
            self._on(Controlled(control.steps(record.owners, record.state_bytes), control.budget))

    def _open_state(self) -> None:
        self.states[self.count] = MigrationState({})
        self.states.pop(self.count - MAX_STATES, None)

    def _on(self, event: Event) -> list[Instruction]:
        """Give an event to the protocol, and note and emit what comes of it."""
        instructions = self.protocol.on(event)
        version = self.record.version
        for each in instructions:
            match each:
                case Entered(migration, step, phase):
                    self.states[migration] = self._known(migration).entered(step, phase)
                    self.events.emit(str(phase), version=version + 1, migration=migration, step=step)
                case Finished(migration, outcome, reason):
                    if outcome in ("cancelled", "failed"):
                        self.wanted = _counts(self.record.owners)
                    self.states[migration] = self._known(migration).finished(outcome, reason, version)
                    self.events.emit("finished", version=version, migration=migration, outcome=outcome, reason=reason)
                case _:
                    pass
        return instructions

    def _known(self, migration: int) -> MigrationState:
        return self.states.get(migration, MigrationState({}))

    # --- versions --------------------------------------------------------------------------

    @property
    def next_moves(self) -> list[OperatorMove]:
        """The moves of the steps that are copied next."""
        control, steps = self.protocol.control[:SEEN_STEPS], self.protocol.steps[:SEEN_STEPS]
        return [move for step in (*control, *steps) for move in step.moves]

    def open(
        self,
        version: int,
        batch: int,
        stale: frozenset[tuple[int, BinId]] = frozenset(),
        copy_bytes: Bytes = COPY_BYTES,
    ) -> None:
        """Ask the protocol what this version is to do; again for every attempt, for workers may have been lost."""
        self.orders, self._batch = Orders(), batch
        if self.protocol.busy:
            unknown = [
                worker
                for worker in self.participants
                if any(self.holdings.of(operator, worker) is None for operator in self.record.operators)
            ]
            self._on(Lost(frozenset(unknown)))
            self.orders = Orders.of(self._on(Opened(version, batch, stale, copy_bytes)))
        self.record.flip(self.orders.flips)
        if len(self.control.after(batch).rows) < len(self.control.rows):
            self.wanted = _counts(_after(self.record.now, self.protocol.left))
        if self.orders.flips:
            self.events.emit("flipping", version=version, bins=[int(move.bin) for move in self.orders.flips])

    def committed(self, version: int, troubles: Sequence[str]) -> None:
        """The version is committed, and the migration is so much further."""
        held = {
            (operator, worker): bins
            for worker in self.participants
            for operator in self.record.operators
            if (bins := self.holdings.of(operator, worker)) is not None
        }
        self._on(Committed(version, held, tuple(troubles)))
        left = self.control.after(self._batch)
        if left != self.control or self._control_revision != self.record.revision:
            self.control = left
            self._see_control()
        workers = self.record.workers
        if self.protocol.migration is None and len(workers) != self._last_workers:
            self._last_workers = len(workers)
            self.events.emit("workers", version=version, workers=sorted(map(int, workers)))

    # --- losses ----------------------------------------------------------------------------

    def repair(self, lost: Collection[WorkerId]) -> None:
        """Let others own what these workers had, as the planner chooses; what they would have got is not moved."""
        record = self.record
        self.events.emit("lost", version=record.version + 1, workers=sorted(map(int, lost)))
        ledger, stay = record.ledger(), [worker for worker in record.workers if worker not in lost]
        record.assign([self._repaired(ledger, operator, lost, stay) for operator in ledger.operators])
        self._on(Gone(frozenset(lost)))
        for row in (row for row in self.control.rows if row.worker in lost):
            reason = f"worker {row.worker} is gone"
            self.events.emit("refused", version=record.version, row=row._asdict(), reason=reason)
        self.control = self.control.without(lost)
        self._see_control()

    def _repaired(self, ledger: Ledger, operator: int, lost: Collection[WorkerId], stay: Sequence[WorkerId]) -> Owners:
        if not set(lost) & set(ledger.workers_of(operator)):
            return ledger.owners[operator]
        owner = self._fall_back(operator, ledger.owners[operator], lost)
        staying = [worker for worker in stay if worker in owner] or stay
        return np.array(ledger.plan(operator, staying, owner=owner, must_leave=lost).owner, np.int64)

    def _fall_back(self, operator: int, owner: Owners, lost: Collection[WorkerId]) -> Owners:
        """Who counts as owner where some are lost: an old owner that still has its copy need not read it again."""
        owner = owner.copy()
        for kept in self.protocol.kept:
            for move in kept.step.moves:
                copy = self.holdings.of(operator, move.source)
                is_mine = move.operator == operator and owner[move.bin] == move.target
                if is_mine and move.target in lost and move.source not in lost and copy is not None and copy[move.bin]:
                    owner[move.bin] = move.source
        return owner


def _after(owners: Sequence[Owners], steps: Iterable[Step]) -> list[Owners]:
    """Who owns each bin once these steps have been taken."""
    later = [owner.copy() for owner in owners]
    for move in (move for step in steps for move in step.moves):
        later[move.operator][move.bin] = move.target
    return later


def _counts(owners: Sequence[Owners]) -> list[int]:
    """How many workers own bins, by operator."""
    return [len({*owner.tolist()}) for owner in owners]
