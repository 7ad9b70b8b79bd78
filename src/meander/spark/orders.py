"""What the protocol says about one version, by worker, as the engine puts it into control messages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from meander.checkpoint.index import Index
from meander.migration.protocol import OPEN_STEPS, Copy, Flip, Hold, Instruction, Protocol, Snapshot
from meander.migration.steps import Shift
from meander.types import BinId, WorkerId

Bins = NDArray[np.bool_]
Seat = tuple[int, WorkerId]
"""A stage and a worker."""

LONG_CHAIN = 4
"""A bin with more deltas than this is written whole before it is copied."""


@dataclass(frozen=True)
class Orders:
    """Flips of one version, and which bins each worker holds beside its own, copies ahead, or writes whole."""

    flips: tuple[Shift, ...] = ()
    held: Mapping[Seat, tuple[BinId, ...]] = field(default_factory=dict)
    copied: Mapping[Seat, tuple[BinId, ...]] = field(default_factory=dict)
    written: Mapping[Seat, tuple[BinId, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, instructions: Iterable[Instruction]) -> Orders:
        """Sort instructions by what they are about."""
        flips: tuple[Shift, ...] = ()
        held: dict[Seat, tuple[BinId, ...]] = {}
        copied: dict[Seat, tuple[BinId, ...]] = {}
        written: dict[Seat, tuple[BinId, ...]] = {}
        for each in instructions:
            match each:
                case Flip(_, shifts):
                    flips = shifts
                case Hold(stage, worker, bins):
                    held[stage, worker] = bins
                case Copy(stage, worker, bins):
                    copied[stage, worker] = bins
                case Snapshot(stage, worker, bins):
                    written[stage, worker] = bins
                case _:
                    pass
        return cls(flips, held, copied, written)

    def held_by(self, seat: Seat, owned: Bins) -> Bins:
        """The bins that a worker is to have: its own, those it keeps or has copied, and those it is to copy."""
        return owned | flags((*self.held.get(seat, ()), *self.copied.get(seat, ())), owned.size)


def stale(protocol: Protocol, index: Index) -> frozenset[tuple[int, BinId]]:
    """The bins that move next and have too many deltas to be read one by one."""
    if index.version < 0:
        return frozenset()
    coming = [shift for step in protocol.steps[: OPEN_STEPS + 1] for shift in step.shifts]
    return frozenset((shift.stage, shift.bin) for shift in coming if index.chains(shift.stage)[shift.bin] > LONG_CHAIN)


def flags(members: Iterable[int], bins: int) -> Bins:
    """A set of bins as one flag for each."""
    found = np.zeros(bins, np.bool_)
    found[np.fromiter(members, np.int64)] = True
    return found
