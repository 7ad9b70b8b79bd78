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
from meander.migration.steps import Shift, Step
from meander.types import BinId, WorkerId
from meander.values import whole

Key = tuple[int, BinId]
"""Group and partition."""


@dataclass(frozen=True)
class Rules:
    """How patient a migration is.

    Args:
        fresh_bytes: changes since the last snapshot that may be read again when a partition is loaded elsewhere.
        snapshot_batches: for so many batches it waits for a fresher snapshot, then it moves without.
        tries: so often a partition is steered before it is given up.
    """

    fresh_bytes: int = 256 << 10
    snapshot_batches: int = 4
    tries: int = 4

    def __post_init__(self) -> None:
        whole("fresh_bytes", self.fresh_bytes, 0)
        whole("snapshot_batches", self.snapshot_batches, 0, 1 << 20)
        whole("tries", self.tries, 1, 1000)


@dataclass(frozen=True)
class Sight:
    """Where a partition ran in a batch, and what its state was then; `why` where Spark had a reason to go elsewhere."""

    worker: WorkerId
    rows: int = 0
    updated: int = 0
    removed: int = 0
    loads: int = 0
    why: str = ""


@dataclass(frozen=True)
class Seen:
    """What is known when a batch has ended.

    Args:
        batch: its number.
        ran: the partitions that ran in it.
        alive: the executors that are there.
        stale: bytes of changes since the last snapshot, for the partitions that may move next.
    """

    batch: int
    ran: Mapping[Key, Sight]
    alive: Collection[WorkerId]
    stale: Mapping[Key, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Steer:
    """Say where these partitions shall be, now."""

    shifts: tuple[Shift, ...]


@dataclass(frozen=True)
class Snapshot:
    """See that these partitions write a snapshot with the next batch."""

    shifts: tuple[Shift, ...]


@dataclass(frozen=True)
class Arrived:
    """A partition was seen to run where it should."""

    shift: Shift


@dataclass(frozen=True)
class Doubted:
    """A partition has arrived, but something does not add up."""

    shift: Shift
    reason: str


@dataclass(frozen=True)
class GivenUp:
    """A partition stays where it is, or wherever Spark has put it."""

    shift: Shift
    reason: str


@dataclass(frozen=True)
class Finished:
    """Every step has been taken."""


Instruction = Steer | Snapshot | Arrived | Doubted | GivenUp | Finished


class Course:
    """One migration from its first step to its last."""

    def __init__(self, steps: Sequence[Step], rules: Rules) -> None:
        keys = [(shift.stage, shift.bin) for step in steps for shift in step.shifts]
        if len(keys) != len(set(keys)):
            raise InvalidOption("a partition moves twice in one migration; let the first one end before the second")
        self.steps, self.rules = tuple(steps), rules
        self.at = 0
        """The step that is being taken."""
        self.arrived: list[Shift] = []
        self.given_up: list[GivenUp] = []
        self._left: dict[Key, Shift] = {}
        self._steered = False
        self._waited = 0
        self._tries: dict[Key, int] = {}
        self._rows: dict[Key, int] = {}
        self._settling: dict[Key, tuple[Shift, int]] = {}
        self._begin()

    @property
    def is_finished(self) -> bool:
        """Whether nothing is left to do, or to look after."""
        return self._is_through and not self._settling

    @property
    def _is_through(self) -> bool:
        return self.at >= len(self.steps)

    @property
    def under_way(self) -> tuple[Shift, ...]:
        """What was steered and has not been seen there yet."""
        return tuple(self._left.values()) if self._steered else ()

    @property
    def concerned(self) -> list[Key]:
        """The partitions of the step being taken and of the one after it: what the next `Seen` should tell about."""
        ahead = self.steps[self.at + 1 : self.at + 2]
        return [*self._left, *self._settling, *((shift.stage, shift.bin) for step in ahead for shift in step.shifts)]

    def on(self, seen: Seen) -> list[Instruction]:
        """Take in what was seen when a batch ended, and return what to do before the next one."""
        told: list[Instruction] = []
        self._look_after(seen, told)
        again = self._check(seen, told) if self._steered else ()
        if not self._left and not self._is_through:
            self.at += 1  # an empty step is a batch in which nothing moves
            self._begin()
        if self.is_finished:
            told.append(Finished())
        elif again:
            told.append(Steer(again))
        elif not self._steered and not self._is_through:
            self._take(seen, told)
        self._rows.update({key: sight.rows for key, sight in seen.ran.items()})
        return told

    def _begin(self) -> None:
        self._steered, self._waited = False, 0
        shifts = () if self._is_through else self.steps[self.at].shifts
        self._left = {(shift.stage, shift.bin): shift for shift in shifts}

    def _take(self, seen: Seen, told: list[Instruction]) -> None:
        for key, shift in list(self._left.items()):
            if shift.target not in seen.alive:
                self._give_up(key, f"executor {shift.target} is gone", told)
        now = tuple(self._left.values())
        stale = self._stale(now, seen)
        if stale and self._waited < self.rules.snapshot_batches:
            self._waited += 1
            told.append(Snapshot(stale))
            return
        if now:
            self._steered = True
            self._tries = dict.fromkeys(self._left, 1)
            told.append(Steer(now))
        ahead = self._stale([shift for step in self.steps[self.at + 1 : self.at + 2] for shift in step.shifts], seen)
        if ahead:
            told.append(Snapshot(ahead))

    def _stale(self, shifts: Sequence[Shift], seen: Seen) -> tuple[Shift, ...]:
        limit = self.rules.fresh_bytes
        return tuple(shift for shift in shifts if seen.stale.get((shift.stage, shift.bin), 0) > limit)

    def _check(self, seen: Seen, told: list[Instruction]) -> tuple[Shift, ...]:
        """Tick off what has arrived; returns what has to be steered again."""
        again = []
        for key, shift in list(self._left.items()):
            sight = seen.ran.get(key)
            if sight is not None and sight.worker == shift.target:
                told.append(Arrived(shift))
                self._compare(key, sight, told)
                self.arrived.append(shift)
                self._settling[key] = (self._left.pop(key), sight.loads)
            elif shift.target not in seen.alive:
                self._give_up(key, f"executor {shift.target} is gone", told)
            elif sight is not None:
                if self._tries[key] >= self.rules.tries:
                    self._give_up(key, f"it ran on executor {sight.worker} {self._tries[key]} times{sight.why}", told)
                    continue
                self._tries[key] += 1
                again.append(shift)
        return tuple(again)

    def _compare(self, key: Key, sight: Sight, told: list[Instruction]) -> None:
        """Whether a partition has as many rows as it had, give or take what the batch itself did."""
        before = self._rows.get(key)
        if before and not before - sight.removed <= sight.rows <= before + sight.updated:
            reason = (
                f"it had {before} rows before and {sight.rows} after a batch with {sight.updated} updates and "
                f"{sight.removed} removals"
            )
            told.append(Doubted(self._left[key], reason))

    def _look_after(self, seen: Seen, told: list[Instruction]) -> None:
        """Whether partitions that had arrived stayed in the batch after, and were not loaded a second time."""
        for key, (shift, loads) in list(self._settling.items()):
            sight = seen.ran.get(key)
            if sight is None:
                continue
            if sight.worker != shift.target:
                told.append(Doubted(shift, f"it ran on executor {sight.worker} in the batch after{sight.why}"))
            elif sight.loads > loads:
                told.append(Doubted(shift, f"its state was loaded again in the batch after: {sight.loads} times"))
            del self._settling[key]

    def _give_up(self, key: Key, reason: str, told: list[Instruction]) -> None:
        found = GivenUp(self._left.pop(key), reason)
        self.given_up.append(found)
        told.append(found)
