"""What goes into the protocol of a migration and what comes out: events, instructions, and orders for one version.

Orders are instructions by worker, as they go into control messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from meander.migration.control_rows import ControlStep
from meander.migration.steps import COPY_BYTES, CopyBudget, OperatorMove, Step
from meander.types import BinId, Bytes, WorkerId

Bins = NDArray[np.bool_]
Share = tuple[int, WorkerId]
"""What one worker has of one operator."""
Held = Mapping[Share, Bins]
"""The bins that a worker has reported to hold of an operator."""

Outcome = Literal["done", "cancelled", "replaced", "failed"]


class Phase(StrEnum):
    """How far a step is."""

    PLANNED = "planned"
    COPYING = "copying"
    READY = "ready"
    FLIPPED = "flipped"
    RELEASED = "released"


# --- events ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Planned:
    """A plan is to be carried out; it starts from the committed assignment and replaces the one under way."""

    migration: int
    steps: tuple[Step, ...]
    budget: CopyBudget = field(default_factory=CopyBudget)


@dataclass(frozen=True)
class Controlled:
    """What accepted rows of the control stream make of the committed assignment; replaces what was said before."""

    steps: tuple[ControlStep, ...]
    budget: CopyBudget = field(default_factory=CopyBudget)


@dataclass(frozen=True)
class Opened:
    """A version is about to be made, for the first time or again.

    `stale` are bins with many deltas to be read; `copy_bytes` is what a worker is known to copy in a version.
    """

    version: int
    batch: int
    stale: frozenset[tuple[int, BinId]] = frozenset()
    copy_bytes: Bytes = COPY_BYTES


@dataclass(frozen=True, eq=False)
class Committed:
    """A version is committed, and this is what its workers have reported to hold."""

    version: int
    held: Held
    troubles: tuple[str, ...] = ()
    """Why bins could not be copied."""


@dataclass(frozen=True)
class Lost:
    """Workers have lost what they held; they may hold bins again."""

    workers: frozenset[WorkerId]


@dataclass(frozen=True)
class Gone:
    """Workers will not come back; others have taken over their bins."""

    workers: frozenset[WorkerId]


@dataclass(frozen=True)
class Cancelled:
    """Nothing more is to be flipped."""

    reason: str = ""


Event = Planned | Controlled | Opened | Committed | Lost | Gone | Cancelled


# --- instructions ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Flip:
    """From this version on, the targets own these bins."""

    version: int
    moves: tuple[OperatorMove, ...]


@dataclass(frozen=True)
class Hold:
    """A worker holds these bins beside those it owns."""

    operator: int
    worker: WorkerId
    bins: tuple[BinId, ...]


@dataclass(frozen=True)
class Copy:
    """A worker reads these bins, in this order, as far as its time allows."""

    operator: int
    worker: WorkerId
    bins: tuple[BinId, ...]


@dataclass(frozen=True)
class Snapshot:
    """An owner writes these bins whole, so that they can be copied without their long past."""

    operator: int
    worker: WorkerId
    bins: tuple[BinId, ...]


@dataclass(frozen=True)
class Entered:
    """A step is in another phase."""

    migration: int
    step: int
    phase: Phase


@dataclass(frozen=True)
class Finished:
    """The migration is over."""

    migration: int
    outcome: Outcome
    reason: str = ""


Instruction = Flip | Hold | Copy | Snapshot | Entered | Finished


# --- orders -------------------------------------------------------------------------------------


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
        others = (*self.held.get(share, ()), *self.copied.get(share, ()))
        return owned | flags(others, owned.size) if others else owned


def flags(members: Iterable[int], bins: int) -> Bins:
    """A set of bins as one flag for each."""
    chosen = np.zeros(bins, np.bool_)
    chosen[np.fromiter(members, np.int64)] = True
    return chosen
