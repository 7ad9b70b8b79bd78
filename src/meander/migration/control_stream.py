"""Moves that come as data (Megaphone's control stream): rows of batch, bin and worker, checked and accepted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from meander.migration.control_rows import ControlRow
from meander.migration.coordinator import Coordinator
from meander.migration.steps import CopyBudget

COLUMNS = ("batch", "bin", "worker")


class ControlStream:
    """Takes the rows of a control stream. The caller holds the driver's lock."""

    def __init__(self, coordinator: Coordinator, budget: CopyBudget) -> None:
        self._coordinator, self._budget = coordinator, budget

    def take(self, rows: Sequence[Mapping[str, Any]], cores: int | None, batch: int) -> bool:
        """Accept rows; returns whether any was good. A bad one is an event, and left out.

        Args:
            rows: batch, bin, worker, and operator if there are several.
            cores: how many workers there can be; None: any number.
            batch: the last one that is committed, -1 before the first; it is too late for rows up to it.
        """
        coordinator, accepted = self._coordinator, list[ControlRow]()
        workers = set(coordinator.participants)
        for row in rows:
            control = ControlRow(row["batch"], row.get("operator") or 0, row["bin"], row["worker"])
            if reason := self._refusal(control, cores, batch, {*workers, control.worker}):
                coordinator.events.emit("refused", version=coordinator.record.version, row=dict(row), reason=reason)
            else:
                accepted.append(control)
                workers.add(control.worker)
        if accepted:
            coordinator.accept(accepted, self._budget)
        return bool(accepted)

    def _refusal(self, row: ControlRow, cores: int | None, batch: int, workers: set[Any]) -> str | None:
        """Why a row cannot be accepted."""
        record = self._coordinator.record
        if None in row:
            return "a number is missing"
        if row.batch <= batch:
            return f"batch {row.batch} has passed: the last one was {batch}; name a later batch"
        if not 0 <= row.operator < len(record.owners):
            return f"there is no operator {row.operator}"
        if not 0 <= row.bin < record.bins:
            return f"there is no bin {row.bin}: the bins are 0 to {record.bins - 1}"
        if not 0 <= row.worker < 1 << 31:
            return f"{row.worker} cannot be the number of a worker"
        if cores is not None and len(workers) > cores:
            return f"worker {row.worker} needs a core, and all {cores} have a worker; rescale first"
        return None
