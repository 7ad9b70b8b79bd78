"""What a migration is made of: shifts, and the steps in which they take effect."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import NamedTuple

from meander.types import BinId, Bytes, Move, WorkerId


class Shift(NamedTuple):
    """One bin of one stage that changes hands."""

    stage: int
    bin: BinId
    source: WorkerId
    target: WorkerId
    bytes: Bytes = 0


@dataclass(frozen=True)
class Step:
    """Shifts that take effect together, at one version.

    Args:
        number: its place in the migration, from 0.
        shifts: what changes hands, in the order in which it is copied.
        at: the batch from which on it shall be in effect; it is copied before, and flips then, ready or not.
        forced: it flips as soon as its turn comes, and its bins are read at that moment; nothing is copied before.
    """

    number: int
    shifts: tuple[Shift, ...]
    at: int | None = None
    forced: bool = False

    @property
    def bytes(self) -> Bytes:
        """The state that travels."""
        return sum(shift.bytes for shift in self.shifts)

    @property
    def workers(self) -> frozenset[WorkerId]:
        """Everybody who gives or takes."""
        return frozenset(worker for shift in self.shifts for worker in (shift.source, shift.target))


def joined(
    schedules: Mapping[int, Sequence[Iterable[Move]]], at: int | None = None, forced: bool = False
) -> tuple[Step, ...]:
    """The steps of one migration of several stages: their first steps together, their second ones, and so on.

    Empty steps stay: they are versions without a move. `at` is the batch at which the first one takes effect.

    >>> first, second = joined({0: [[Move(3, 0, 1, 10)]], 1: [[Move(5, 0, 1, 10)], [Move(6, 0, 1, 10)]]})
    >>> [(shift.stage, shift.bin) for shift in first.shifts], [(shift.stage, shift.bin) for shift in second.shifts]
    ([(0, 3), (1, 5)], [(1, 6)])
    """
    each = [[[Shift(stage, *move) for move in step] for step in steps] for stage, steps in sorted(schedules.items())]
    together = zip_longest(*each, fillvalue=())
    return tuple(
        Step(number, tuple(shift for part in parts for shift in part), at if number == 0 else None, forced)
        for number, parts in enumerate(together)
    )
