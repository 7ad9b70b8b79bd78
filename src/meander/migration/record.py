"""What the driver writes down of every bin, version by version; plans are made of a `Ledger` of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from meander.migration.ledger import Floats, Ledger, Owners
from meander.migration.steps import OperatorMove
from meander.types import WorkerId

RECENT_WEIGHT = 0.2
"""The weight of the last version in the load of a bin: loads are planned with, and one batch is chance."""


@dataclass(frozen=True, eq=False)
class BinCounts:
    """What the workers of one operator counted in a version, by bin."""

    rows: NDArray[np.int64]
    state_rows: NDArray[np.int64]
    state_bytes: NDArray[np.int64]


class BinRecord:
    """The bins of all operators of one query.

    `owners` are those of the last committed version, or as they were repaired since; `now` those of the version that
    is being made.
    """

    def __init__(self, owners: Sequence[Owners], version: int = -1) -> None:
        bins = len(owners[0])
        self.bins, self.version, self.revision = bins, version, 0
        self.owners: tuple[Owners, ...] = tuple(each.copy() for each in owners)
        self.now = self.owners
        self.rows = [np.zeros(bins, np.int64) for _ in owners]
        self.state_bytes = [np.zeros(bins, np.int64) for _ in owners]
        self.state_rows = [0] * len(owners)
        self.work: list[Floats | None] = [None] * len(owners)
        self._workers = self.ledger().workers

    @property
    def operators(self) -> range:
        """The operators, by number."""
        return range(len(self.owners))

    @property
    def workers(self) -> list[WorkerId]:
        """The workers that own bins of some operator."""
        return list(self._workers)

    def ledger(self) -> Ledger:
        """Everything as it is now, for plans."""
        return Ledger(self.revision, self.version, self.owners, tuple(self.state_bytes), tuple(self.work))

    def assign(self, owners: Sequence[Owners]) -> None:
        """Give bins to others from the next version on."""
        if any((old != new).any() for old, new in zip(self.owners, owners, strict=True)):
            self.revision += 1
        self.owners = self.now = tuple(owners)
        self._workers = self.ledger().workers

    def flip(self, moves: Sequence[OperatorMove]) -> None:
        """Give bins to others in the version that is being made; without any, it is as the one before."""
        self.now = tuple(each.copy() for each in self.owners) if moves else self.owners
        for move in moves:
            self.now[move.operator][move.bin] = move.target

    def commit(self, version: int, counts: Sequence[BinCounts]) -> None:
        """The version is committed: who owned in it owns, and this is what was counted."""
        self.assign(self.now)
        self.version = version
        for operator, each in enumerate(counts):
            self.rows[operator], self.state_bytes[operator] = each.rows, each.state_bytes
            self.state_rows[operator] = int(each.state_rows.sum())
            before = self.work[operator]
            rows = each.rows.astype(np.float64)
            if rows.any():
                self.work[operator] = rows if before is None else before + RECENT_WEIGHT * (rows - before)
