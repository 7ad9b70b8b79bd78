"""One plan while it is carried out: partitions move batch by batch, in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace

from meander.errors import MeanderError, MigrationFailed
from meander.logs import about, logger
from meander.migration.events import EventLog
from meander.migration.movable import MigrationState
from meander.migration.orders import Outcome, Phase
from meander.migration.steps import OperatorMove, SteeringPatience, Step
from meander.native.placement import StatePlacement
from meander.native.steering import (
    Arrived,
    Doubted,
    GivenUp,
    Steer,
    SteeringDone,
    SteeringInstruction,
    SteeringProtocol,
    TakeSnapshot,
)
from meander.native.stores import BatchRun, Partition

SOON_S = 0.05

QUERY_ENDED = "the query has ended; nothing was lost, and Spark places its state anew"


class SteeringRun:
    """Takes the steps of one plan, each at the end of a batch, until all are taken or somebody ends it."""

    def __init__(
        self,
        number: int,
        steps: Sequence[Step],
        patience: SteeringPatience,
        placement: StatePlacement,
        events: EventLog,
    ) -> None:
        self.number = number
        self.state = MigrationState({step.number: Phase.PLANNED for step in steps}, arrived=(0, 0))
        self._protocol = SteeringProtocol(steps, patience)
        self._placement, self._watch, self._events = placement, placement.watch, events
        self._moving: set[Partition] = {Partition.of(move) for step in steps for move in step.moves}
        self._end: tuple[Outcome, str] | None = None
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name="meander-steering", daemon=True)

    @property
    def is_over(self) -> bool:
        """Whether it steers no more."""
        return self.state.outcome is not None

    @property
    def is_wanted(self) -> bool:
        """Whether nobody has ended it, and the query runs."""
        return not self._ending.is_set() and not self._watch.ended.is_set()

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def end(self, outcome: Outcome, reason: str) -> None:
        """Steer nothing more; who says so first is why."""
        if self._end is None:
            self._end = (outcome, reason)
        self._ending.set()

    def join(self) -> None:
        """Wait until its thread has ended."""
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        with about(query=self._placement.internals.name, migration=self.number):
            self._take_steps()

    def _take_steps(self) -> None:
        end: tuple[Outcome, str]
        self._watch.is_close = True
        try:
            self._placement.hold_together()
            self._placement.warm_up({move.target for step in self._protocol.steps for move in step.moves})
            is_through = self._steer()
            end = ("done", "") if is_through or self._end is None else self._end
        except MeanderError as problem:
            end = ("failed", str(problem))
        except Exception as problem:
            logger.exception("a migration has failed")
            end = ("failed", f"{type(problem).__name__}: {str(problem).partition(chr(10))[0]}")
        finally:
            self._watch.is_close = False
        self.state = self.state.finished(*end, self._watch.batch)

    def _steer(self) -> bool:
        """Take one step after the other, each at the end of a batch; returns whether all were taken."""
        # In the middle of a batch its own tasks would say where they are after us, and win.
        planned, newest = self._placement.internals.last_planned, self._watch.newest
        is_turn = self._placement.internals.is_between_batches or newest.number == planned
        batch = newest if newest.number == planned else BatchRun(planned if is_turn else planned - 1, 0.0, 0.0, 0)
        stale: tuple[OperatorMove, ...] = ()
        while self.is_wanted:
            if is_turn:
                instructions = self._protocol.on(self._placement.sight(batch, self._protocol.concerns))
                stale = self._act(instructions, batch)
                self._note_phases()
                if SteeringDone() in instructions:
                    return True
            if stale and self._watch.batch >= batch.number:
                # Not before the batch has ended: Spark then finds for itself what is overdue, and forgets the rest.
                self._placement.prepare(stale, self._moving, batch.number)
                self._emit("snapshot", batch, stale)
                stale = ()
            next_batch = self._watch.wait_served(batch.number, SOON_S)
            is_turn = next_batch is not None
            batch = next_batch or batch
            if not is_turn:
                # Word of a batch comes late, and a task that was to run elsewhere says so when it begins: whenever the
                # next batch is planned, the last word shall have been this one.
                self._placement.flip(self._protocol.under_way)
        if self._watch.ended.is_set():
            raise MigrationFailed(QUERY_ENDED)
        return False

    def _act(self, instructions: Sequence[SteeringInstruction], batch: BatchRun) -> tuple[OperatorMove, ...]:
        """Do what the protocol says; returns what shall have a snapshot."""
        stale: tuple[OperatorMove, ...] = ()
        # Steering first: the next batch may soon be planned.
        for each in sorted(instructions, key=lambda each: not isinstance(each, Steer)):
            match each:
                case Steer(moves):
                    self._placement.flip(moves)
                    self._emit("steered", batch, moves)
                case TakeSnapshot(moves):
                    stale = moves
                case Arrived(move):
                    partitions, size = self.state.arrived or (0, 0)
                    self.state = replace(self.state, arrived=(partitions + 1, size + move.bytes))
                    self._emit("arrived", batch, [move])
                case Doubted(move, reason):
                    self._remark(f"partition {move.bin} is on executor {move.target}: {reason}")
                    self._emit("doubted", batch, [move], reason=reason)
                case GivenUp(move, reason):
                    self._remark(f"partition {move.bin} did not go to executor {move.target}: {reason}")
                    self._emit("given_up", batch, [move], reason=reason)
        return stale

    def _note_phases(self) -> None:
        """Steps behind the one being taken have flipped; when all are looked after, they are released."""
        protocol = self._protocol
        behind = Phase.RELEASED if protocol.is_finished else Phase.FLIPPED
        phases = {step.number: behind for step in protocol.steps[: protocol.at]}
        phases |= {step.number: Phase.COPYING for step in protocol.steps[protocol.at : protocol.at + 1]}
        self.state = replace(self.state, phases={**self.state.phases, **phases})

    def _remark(self, text: str) -> None:
        self.state = replace(self.state, remarks=(*self.state.remarks, text))
        logger.info("%s", text)

    def _emit(self, event: str, batch: BatchRun, moves: Sequence[OperatorMove], **facts: object) -> None:
        partitions = [[move.operator, move.bin, move.source, move.target] for move in moves]
        self._events.emit(event, batch=batch.number, partitions=partitions, **facts)
