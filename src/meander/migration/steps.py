"""What a migration is made of: moves, the steps in which they take effect, and how much is done at a time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import zip_longest
from typing import Any, NamedTuple

from meander.options import positive, whole
from meander.types import BinId, Bytes, Move, WorkerId

Json = dict[str, Any]

NO_LIMIT = 1 << 50
"""Bytes that no budget exceeds."""

COPY_BYTES = 32 << 20
"""What a worker may copy in one version as long as nobody says and nothing is measured."""


class OperatorMove(NamedTuple):
    """One bin of one operator that changes hands."""

    operator: int
    bin: BinId
    source: WorkerId
    target: WorkerId
    bytes: Bytes = 0


@dataclass(frozen=True)
class Step:
    """Moves that take effect together, at one version.

    Args:
        number: its place in the migration, from 0.
        moves: what changes hands, in the order in which it is copied.
        at: the batch from which on it shall be in effect; it is copied before, and flips then, ready or not.
        forced: it flips as soon as its turn comes, and its bins are read at that moment; nothing is copied before.
        joins: it may flip together with the step before it, where both are ready.
    """

    number: int
    moves: tuple[OperatorMove, ...]
    at: int | None = None
    forced: bool = False
    joins: bool = False

    @cached_property
    def bytes(self) -> Bytes:
        """The state that travels."""
        return sum(move.bytes for move in self.moves)

    @cached_property
    def workers(self) -> frozenset[WorkerId]:
        """Everybody who gives or takes."""
        return frozenset(worker for move in self.moves for worker in (move.source, move.target))

    def to_json(self) -> Json:
        """The step as plain lists and numbers: every version writes them, and there may be thousands of moves."""
        fields: Json = {"number": self.number, "shifts": [list(move) for move in self.moves]}
        fields |= {"at": self.at} if self.at is not None else {}
        return fields | {name: True for name in ("forced", "joins") if getattr(self, name)}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Step:
        """The step of which `to_json` wrote."""
        moves = tuple(
            OperatorMove(operator, BinId(bin_), WorkerId(source), WorkerId(target), bytes_)
            for operator, bin_, source, target, bytes_ in fields["shifts"]
        )
        return cls(fields["number"], moves, fields.get("at"), fields.get("forced", False), fields.get("joins", False))


def joined(
    schedules: Mapping[int, Sequence[Iterable[Move]]],
    at: int | None = None,
    forced: bool = False,
    joins: bool = False,
) -> tuple[Step, ...]:
    """The steps of one migration of several operators: their first steps together, their second ones, and so on.

    Empty steps stay: they are versions without a move. A bin that is copied in several steps flips in the last one.
    `at` is the batch at which the first step takes effect; where one `joins`, those that are ready flip together.

    >>> first, second = joined({0: [[Move(3, 0, 1, 10)]], 1: [[Move(5, 0, 1, 10)], [Move(6, 0, 1, 10)]]})
    >>> [(move.operator, move.bin) for move in first.moves], [(move.operator, move.bin) for move in second.moves]
    ([(0, 3), (1, 5)], [(1, 6)])
    """
    by_operator = [
        [[OperatorMove(operator, *move) for move in step] for step in _flips(steps)]
        for operator, steps in sorted(schedules.items())
    ]
    together = zip_longest(*by_operator, fillvalue=())
    return tuple(
        Step(
            number,
            tuple(move for part in parts for move in part),
            at if number == 0 else None,
            forced,
            joins and number > 0,
        )
        for number, parts in enumerate(together)
    )


def _flips(steps: Sequence[Iterable[Move]]) -> list[list[Move]]:
    """The steps with each bin once, whole, where its last chunk is."""
    size: dict[BinId, Bytes] = defaultdict(int)
    last: dict[BinId, int] = {}
    listed = [list(step) for step in steps]
    for at, step in enumerate(listed):
        for move in step:
            size[move.bin] += move.bytes
            last[move.bin] = at
    return [
        [move._replace(bytes=size[move.bin]) for move in step if last[move.bin] == at] for at, step in enumerate(listed)
    ]


def restated(done: Iterable[OperatorMove], steps: tuple[Step, ...], number: int) -> tuple[Step, ...]:
    """The steps of a plan that was made before another one's moves were done, made to start after them.

    Bins that the plan would have left where they were go back in one step more, of this number.
    """
    moved = {move[:2]: move for move in done}
    later: list[Step] = []
    for step in steps:
        moves = []
        for move in step.moves:
            before = moved.pop(move[:2], None)
            moves.append(move._replace(source=before.target) if before else move)
        later.append(replace(step, moves=tuple(move for move in moves if move.source != move.target)))
    back = tuple(move._replace(source=move.target, target=move.source) for move in moved.values())
    return (*later, Step(number, back)) if back else tuple(later)


@dataclass(frozen=True)
class CopyBudget:
    """How much the binned engine copies at a time.

    Args:
        copy_bytes: what a worker may copy, and what it may write for others to copy, in one version; None: as fast as
            it was found to be. One bin is always allowed, however large it is.
        copy_ms: for how long a worker may copy in one version; None: so that the version hardly takes longer.
        release_after: for how many versions after a flip the old owner keeps its copy.
        keep_bytes: of all such copies at most so much is kept.
        patience: a step that gains no bin in so many versions is forced: what is missing is read when it flips.
    """

    copy_bytes: int | None = None
    copy_ms: float | None = None
    release_after: int = 2
    keep_bytes: int = 256 << 20
    patience: int = 50

    def __post_init__(self) -> None:
        if self.copy_bytes is not None:
            whole("copy_bytes", self.copy_bytes, 1, NO_LIMIT)
        if self.copy_ms is not None:
            positive("copy_ms", self.copy_ms)
        whole("release_after", self.release_after, 0, 1 << 20)
        whole("keep_bytes", self.keep_bytes, 0, NO_LIMIT)
        whole("patience", self.patience, 1, 1 << 30)


@dataclass(frozen=True)
class SteeringPatience:
    """How patient the native engine is with Spark.

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


Budget = CopyBudget | SteeringPatience
