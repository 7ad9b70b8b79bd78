"""What a migration is made of: moves, and the steps in which they take effect."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import NamedTuple

from meander.types import BinId, Bytes, Move, WorkerId


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
    """

    number: int
    moves: tuple[OperatorMove, ...]
    at: int | None = None
    forced: bool = False

    @property
    def bytes(self) -> Bytes:
        """The state that travels."""
        return sum(move.bytes for move in self.moves)

    @property
    def workers(self) -> frozenset[WorkerId]:
        """Everybody who gives or takes."""
        return frozenset(worker for move in self.moves for worker in (move.source, move.target))


def joined(
    schedules: Mapping[int, Sequence[Iterable[Move]]], at: int | None = None, forced: bool = False
) -> tuple[Step, ...]:
    """The steps of one migration of several operators: their first steps together, their second ones, and so on.

    Empty steps stay: they are versions without a move. `at` is the batch at which the first one takes effect.

    >>> first, second = joined({0: [[Move(3, 0, 1, 10)]], 1: [[Move(5, 0, 1, 10)], [Move(6, 0, 1, 10)]]})
    >>> [(move.operator, move.bin) for move in first.moves], [(move.operator, move.bin) for move in second.moves]
    ([(0, 3), (1, 5)], [(1, 6)])
    """
    by_operator = [
        [[OperatorMove(operator, *move) for move in step] for step in steps]
        for operator, steps in sorted(schedules.items())
    ]
    together = zip_longest(*by_operator, fillvalue=())
    return tuple(
        Step(number, tuple(move for part in parts for move in part), at if number == 0 else None, forced)
        for number, parts in enumerate(together)
    )
