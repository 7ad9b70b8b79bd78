"""Moves that come as data (Megaphone's control stream): rows of batch, bin and worker, as one long migration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from meander.migration.coordinator import Coordinator
from meander.migration.steps import CopyBudget, OperatorMove, Step
from meander.types import BinId, WorkerId

COLUMNS = ("batch", "bin", "worker")


class OwnerUpdate(NamedTuple):
    """As of a batch, a worker owns a bin of an operator."""

    batch: int
    operator: int
    bin: BinId
    worker: WorkerId


class ControlStream:
    """Turns rows of a control stream into steps. The caller holds the driver's lock."""

    def __init__(self, coordinator: Coordinator, budget: CopyBudget) -> None:
        self._coordinator, self._budget = coordinator, budget

    def take(self, rows: Sequence[Mapping[str, Any]], cores: int | None) -> bool:
        """Take rows over; returns whether any was good. A bad one is an event, and left out.

        Args:
            rows: batch, bin, worker, and operator if there are several.
            cores: how many workers there can be; None: any number.
        """
        updates = [update for row in rows if (update := self._checked(row, cores)) is not None]
        if updates:
            self._submit(updates)
        return bool(updates)

    def _checked(self, row: Mapping[str, Any], cores: int | None) -> OwnerUpdate | None:
        record = self._coordinator.record
        update = OwnerUpdate(row["batch"], row.get("operator") or 0, row["bin"], row["worker"])
        reason = None
        if None in update:
            reason = "a number is missing"
        elif not 0 <= update.operator < len(record.owners):
            reason = f"there is no operator {update.operator}"
        elif not 0 <= update.bin < record.bins:
            reason = f"there is no bin {update.bin}: the bins are 0 to {record.bins - 1}"
        elif not 0 <= update.worker < 1 << 31:
            reason = f"{update.worker} cannot be the number of a worker"
        elif cores is not None and len({*self._coordinator.participants, update.worker}) > cores:
            reason = f"worker {update.worker} needs a core, and all {cores} have a worker; rescale first"
        if reason is None:
            return update
        self._coordinator.events.emit("refused", version=record.version, row=dict(row), reason=reason)
        return None

    def _submit(self, updates: Sequence[OwnerUpdate]) -> None:
        """Add updates to what has not flipped yet; that is in the journal, so a restart or another plan loses none."""
        left = [
            OwnerUpdate(0 if step.at is None else step.at, move.operator, move.bin, move.target)
            for step in self._coordinator.protocol.steps
            for move in step.moves
        ]
        steps = self._steps(sorted([*left, *updates], key=lambda each: each.batch))
        self._coordinator.begin(steps, self._budget)

    def _steps(self, updates: Sequence[OwnerUpdate]) -> list[Step]:
        """One step for each batch, from whoever owns a bin when its turn comes."""
        record = self._coordinator.record
        owners = [each.copy() for each in record.owners]
        steps: list[Step] = []
        for batch in sorted({update.batch for update in updates}):
            moves: dict[tuple[int, int], OperatorMove] = {}
            for _, operator, bin_, worker in (each for each in updates if each.batch == batch):
                source = WorkerId(int(owners[operator][bin_]))
                moves.pop((operator, bin_), None)
                if source != worker:
                    size = int(record.state_bytes[operator][bin_])
                    moves[operator, bin_] = OperatorMove(operator, bin_, source, worker, size)
            for move in moves.values():
                owners[move.operator][move.bin] = move.target
            steps.append(Step(len(steps), tuple(moves.values()), batch))
        return steps
