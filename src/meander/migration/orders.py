"""What the protocol says about one version, by worker, as it goes into control messages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from meander.migration.protocol import Copy, Flip, Hold, Instruction, Snapshot
from meander.migration.steps import OperatorMove
from meander.types import BinId, WorkerId

Bins = NDArray[np.bool_]
Share = tuple[int, WorkerId]
"""What one worker has of one operator."""


@dataclass(frozen=True)
class Orders:
    """Flips of one version, and which bins each worker holds beside its own, copies ahead, or writes whole."""

    flips: tuple[OperatorMove, ...] = ()
    held: Mapping[Share, tuple[BinId, ...]] = field(default_factory=dict)
    copied: Mapping[Share, tuple[BinId, ...]] = field(default_factory=dict)
    written: Mapping[Share, tuple[BinId, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, instructions: Iterable[Instruction]) -> Orders:
        """Sort instructions by what they are about."""
        flips: tuple[OperatorMove, ...] = ()
        held: dict[Share, tuple[BinId, ...]] = {}
        copied: dict[Share, tuple[BinId, ...]] = {}
        written: dict[Share, tuple[BinId, ...]] = {}
        for each in instructions:
            match each:
                case Flip(_, moves):
                    flips = moves
                case Hold(operator, worker, bins):
                    held[operator, worker] = bins
                case Copy(operator, worker, bins):
                    copied[operator, worker] = bins
                case Snapshot(operator, worker, bins):
                    written[operator, worker] = bins
                case _:
                    pass
        return cls(flips, held, copied, written)

    def held_by(self, share: Share, owned: Bins) -> Bins:
        """The bins that a worker is to have: its own, those it keeps or has copied, and those it is to copy."""
        return owned | flags((*self.held.get(share, ()), *self.copied.get(share, ())), owned.size)


def flags(members: Iterable[int], bins: int) -> Bins:
    """A set of bins as one flag for each."""
    chosen = np.zeros(bins, np.bool_)
    chosen[np.fromiter(members, np.int64)] = True
    return chosen
