"""How a native migration goes on from batch to batch: what was seen comes in, what to do now goes out.

Pure: it decides, others act. A step is taken when its partitions have a fresh snapshot, or none comes; the next one
only when every partition of the last has been seen to run where it should, or has been given up with a reason.

    wait -> ask for snapshots -> steer -> seen there: next step, and one more look in the batch after
                                       -> seen elsewhere: steer again, a few times, then give up
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from meander.errors import InvalidOption
from meander.migration.steps import OperatorMove, SteeringPatience, Step
from meander.native.stores import Partition
from meander.pictures import many
from meander.types import WorkerId


@dataclass(frozen=True)
class TaskSight:
    """Where a partition ran in a batch, and what its state was then; `why` where Spark had a reason to go elsewhere."""

    worker: WorkerId
    rows: int = 0
    updated: int = 0
    removed: int = 0
    loads: int = 0
    why: str = ""


@dataclass(frozen=True)
class BatchSight:
    """What is known when a batch has ended.

    Args:
        batch: its number.
        tasks: the partitions that ran in it.
        alive: the executors that are there.
        stale: bytes of changes since the last snapshot, for the partitions that may move next.
    """

    batch: int
    tasks: Mapping[Partition, TaskSight]
    alive: Collection[WorkerId]
    stale: Mapping[Partition, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Steer:
    """Say where these partitions shall be, now."""

    moves: tuple[OperatorMove, ...]


@dataclass(frozen=True)
class TakeSnapshot:
    """See that these partitions write a snapshot with the next batch."""

    moves: tuple[OperatorMove, ...]


@dataclass(frozen=True)
class Arrived:
    """A partition was seen to run where it should."""

    move: OperatorMove


@dataclass(frozen=True)
class Doubted:
    """A partition has arrived, but something does not add up."""

    move: OperatorMove
    reason: str


@dataclass(frozen=True)
class GivenUp:
    """A partition stays where it is, or wherever Spark has put it."""

    move: OperatorMove
    reason: str


@dataclass(frozen=True)
class SteeringDone:
    """Every step has been taken."""


SteeringInstruction = Steer | TakeSnapshot | Arrived | Doubted | GivenUp | SteeringDone


class SteeringProtocol:
    """One migration from its first step to its last."""

    def __init__(self, steps: Sequence[Step], patience: SteeringPatience) -> None:
        keys = [Partition.of(move) for step in steps for move in step.moves]
        if len(keys) != len(set(keys)):
            raise InvalidOption("a partition moves twice in one migration; let the first one end before the second")
        self.steps, self.patience = tuple(steps), patience
        self.at = 0
        """The step that is being taken."""
        self.arrived: list[OperatorMove] = []
        self.given_up: list[GivenUp] = []
        self._open: dict[Partition, OperatorMove] = {}
        self._is_steered = False
        self._batches_waited = 0
        self._tries: dict[Partition, int] = {}
        self._rows: dict[Partition, int] = {}
        self._settling: dict[Partition, tuple[OperatorMove, int]] = {}
        self._begin()

    @property
    def is_finished(self) -> bool:
        """Whether nothing is left to do, or to look after."""
        return self._is_through and not self._settling

    @property
    def _is_through(self) -> bool:
        return self.at >= len(self.steps)

    @property
    def under_way(self) -> tuple[OperatorMove, ...]:
        """What was steered and has not been seen there yet."""
        return tuple(self._open.values()) if self._is_steered else ()

    @property
    def concerns(self) -> list[Partition]:
        """The partitions of the step being taken and of the one after it: what the next sight should show."""
        ahead = self.steps[self.at + 1 : self.at + 2]
        return [*self._open, *self._settling, *(Partition.of(move) for step in ahead for move in step.moves)]

    def on(self, sight: BatchSight) -> list[SteeringInstruction]:
        """Take in what was seen when a batch ended, and return what to do before the next one."""
        instructions: list[SteeringInstruction] = []
        self._look_after(sight, instructions)
        again = self._check(sight, instructions) if self._is_steered else ()
        if not self._open and not self._is_through:
            self.at += 1  # an empty step is a batch in which nothing moves
            self._begin()
        if self.is_finished:
            instructions.append(SteeringDone())
        elif again:
            instructions.append(Steer(again))
        elif not self._is_steered and not self._is_through:
            self._take(sight, instructions)
        self._rows.update({key: task.rows for key, task in sight.tasks.items()})
        return instructions

    def _begin(self) -> None:
        self._is_steered, self._batches_waited = False, 0
        moves = () if self._is_through else self.steps[self.at].moves
        self._open = {Partition.of(move): move for move in moves}

    def _take(self, sight: BatchSight, instructions: list[SteeringInstruction]) -> None:
        for key, move in list(self._open.items()):
            if move.target not in sight.alive:
                self._give_up(key, f"executor {move.target} is gone", instructions)
        moves = tuple(self._open.values())
        stale = self._stale(moves, sight)
        if stale and self._batches_waited < self.patience.snapshot_batches:
            self._batches_waited += 1
            instructions.append(TakeSnapshot(stale))
            return
        if moves:
            self._is_steered = True
            self._tries = dict.fromkeys(self._open, 1)
            instructions.append(Steer(moves))
        ahead = self._stale([move for step in self.steps[self.at + 1 : self.at + 2] for move in step.moves], sight)
        if ahead:
            instructions.append(TakeSnapshot(ahead))

    def _stale(self, moves: Sequence[OperatorMove], sight: BatchSight) -> tuple[OperatorMove, ...]:
        limit = self.patience.fresh_bytes
        return tuple(move for move in moves if sight.stale.get(Partition.of(move), 0) > limit)

    def _check(self, sight: BatchSight, instructions: list[SteeringInstruction]) -> tuple[OperatorMove, ...]:
        """Tick off what has arrived; returns what has to be steered again."""
        again = []
        for key, move in list(self._open.items()):
            task = sight.tasks.get(key)
            if task is not None and task.worker == move.target:
                instructions.append(Arrived(move))
                self._compare(key, task, instructions)
                self.arrived.append(move)
                self._settling[key] = (self._open.pop(key), task.loads)
            elif move.target not in sight.alive:
                self._give_up(key, f"executor {move.target} is gone", instructions)
            elif task is not None:
                if self._tries[key] >= self.patience.tries:
                    reason = f"it ran on executor {task.worker} {many(self._tries[key], 'time')}{task.why}"
                    self._give_up(key, reason, instructions)
                    continue
                self._tries[key] += 1
                again.append(move)
        return tuple(again)

    def _compare(self, key: Partition, task: TaskSight, instructions: list[SteeringInstruction]) -> None:
        """Whether a partition has as many rows as it had, give or take what the batch itself did."""
        before = self._rows.get(key)
        if before and not before - task.removed <= task.rows <= before + task.updated:
            reason = (
                f"it had {many(before, 'row')} before and {task.rows} after a batch with {task.updated} updates and "
                f"{task.removed} removals"
            )
            instructions.append(Doubted(self._open[key], reason))

    def _look_after(self, sight: BatchSight, instructions: list[SteeringInstruction]) -> None:
        """Whether partitions that had arrived stayed in the batch after, and were not loaded a second time."""
        for key, (move, loads) in list(self._settling.items()):
            task = sight.tasks.get(key)
            if task is None:
                continue
            if task.worker != move.target:
                instructions.append(Doubted(move, f"it ran on executor {task.worker} in the batch after{task.why}"))
            elif task.loads > loads:
                reason = f"its state was loaded again in the batch after: {many(task.loads, 'time')}"
                instructions.append(Doubted(move, reason))
            del self._settling[key]

    def _give_up(self, key: Partition, reason: str, instructions: list[SteeringInstruction]) -> None:
        loss = GivenUp(self._open.pop(key), reason)
        self.given_up.append(loss)
        instructions.append(loss)
