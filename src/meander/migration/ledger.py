"""What is known of every bin: who owns it, how much work it is, how large its state, and which workers hold it.

`Ledger` is what plans are made of, as of one revision; `BinRecord` is what the driver writes down version by version;
`Holdings` is what workers reported to hold.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meander.errors import Infeasible
from meander.migration.steps import OperatorMove
from meander.planning import Plan, Problem, plan
from meander.types import WorkerId

Owners = NDArray[np.int64]
Floats = NDArray[np.float64]
Bins = NDArray[np.bool_]

USUAL_TAU = 0.2
RECENT_WEIGHT = 0.2
"""The weight of the last version in the load of a bin: loads are planned with, and one batch is chance."""


@dataclass(frozen=True, eq=False)
class Ledger:
    """The bins of all operators of one query, at one moment. Its arrays are not to be written to.

    Args:
        revision: grows whenever an owner changes; a plan made from an older one is refused.
        version: the last committed version; -1 before the first.
        owners: who owns each bin, by operator.
        state_bytes: the state of each bin.
        work: how much work each bin is, smoothed over versions; None while nothing has been measured.
        capacities: how fast workers are, where they are not alike.
    """

    revision: int
    version: int
    owners: tuple[Owners, ...]
    state_bytes: tuple[NDArray[np.int64], ...]
    work: tuple[Floats | None, ...]
    capacities: Mapping[int, float] = field(default_factory=dict)

    @property
    def bins(self) -> int:
        """How many bins each operator has."""
        return len(self.owners[0])

    @property
    def operators(self) -> range:
        """The operators, by number."""
        return range(len(self.owners))

    @property
    def workers(self) -> list[WorkerId]:
        """The workers that own bins of some operator."""
        return _workers(self.owners)

    def workers_of(self, operator: int) -> list[WorkerId]:
        """The workers that own bins of an operator."""
        return _workers([self.owners[operator]])

    def measured(self, operator: int) -> tuple[Floats, NDArray[np.int64]]:
        """Load and bytes of each bin of an operator, as planners take them: none is nothing."""
        work = self.work[operator]
        return np.ones(self.bins) if work is None else 1.0 + work, self.state_bytes[operator] + 1

    def plan(
        self,
        operator: int,
        workers: int | Collection[WorkerId],
        planner: str = "free",
        tau: float | None = None,
        must_leave: Collection[WorkerId] = (),
        options: Mapping[str, Any] | None = None,
        owner: Owners | None = None,
        load: Sequence[float] | None = None,
    ) -> Plan:
        """A plan for the bins of an operator; without a tau, the usual one, or the smallest that can be kept.

        Workers that are named and own nothing take part; `owner` is who counts as the owner, should that be another,
        and `load` what the bins count as, should that not be what was measured.
        """
        owners = (self.owners[operator] if owner is None else owner).tolist()
        measured, state = self.measured(operator)
        loads = measured.tolist() if load is None else list(load)
        targets = workers if isinstance(workers, int) else sorted(workers)
        idle = () if isinstance(workers, int) else sorted(set(workers) - set(owners))
        leaving = [worker for worker in must_leave if worker in owners]

        def plan_within(cap: float) -> Plan:
            problem = Problem(
                loads, state.tolist(), owners, targets, cap, self.capacities, must_leave=leaving, idle=idle
            )  # fmt: skip
            return plan(problem, planner, **(options or {}))

        try:
            return plan_within(USUAL_TAU if tau is None else tau)
        except Infeasible as error:
            if tau is not None:
                raise
            return plan_within((error.smallest_tau or USUAL_TAU) * (1 + 1e-9))


def _workers(owners: Sequence[Owners]) -> list[WorkerId]:
    """The workers that own bins."""
    return [WorkerId(each) for each in np.unique(np.concatenate([np.unique(owner) for owner in owners])).tolist()]


@dataclass(frozen=True, eq=False)
class BinCounts:
    """What the workers of one operator counted in a version.

    Args:
        rows: the rows that came to each bin.
        state_rows: the rows of their state in all.
        bytes_of_bins: gives the state of each bin; called when somebody asks, which in most versions nobody does.
    """

    rows: NDArray[np.int64]
    state_rows: int
    bytes_of_bins: Callable[[], NDArray[np.int64]]

    @cached_property
    def state_bytes(self) -> NDArray[np.int64]:
        """The state of each bin."""
        return self.bytes_of_bins()


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
        self._counts = [BinCounts(each, 0, each.copy) for each in self.rows]
        self.state_rows = [0] * len(owners)
        self.work: list[Floats | None] = [None] * len(owners)
        self._workers = _workers(self.owners)

    @property
    def operators(self) -> range:
        """The operators, by number."""
        return range(len(self.owners))

    @property
    def workers(self) -> list[WorkerId]:
        """The workers that own bins of some operator."""
        return list(self._workers)

    @property
    def state_bytes(self) -> list[NDArray[np.int64]]:
        """The state of each bin, by operator."""
        return [each.state_bytes for each in self._counts]

    def ledger(self) -> Ledger:
        """Everything as it is now, for plans."""
        return Ledger(self.revision, self.version, self.owners, tuple(self.state_bytes), tuple(self.work))

    def assign(self, owners: Sequence[Owners]) -> None:
        """Give bins to others from the next version on."""
        has_changed = any(old is not new and (old != new).any() for old, new in zip(self.owners, owners, strict=True))
        self.owners = self.now = tuple(owners)
        if has_changed:
            self.revision += 1
            self._workers = _workers(self.owners)

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
            self.rows[operator], self._counts[operator] = each.rows, each
            self.state_rows[operator] = each.state_rows
            before = self.work[operator]
            rows = each.rows.astype(np.float64)
            if np.count_nonzero(rows):
                self.work[operator] = rows if before is None else before + RECENT_WEIGHT * (rows - before)


class Holdings:
    """The bins that workers have reported to hold, by operator."""

    def __init__(self) -> None:
        self._bins: dict[tuple[int, WorkerId], Bins] = {}

    def of(self, operator: int, worker: WorkerId) -> Bins | None:
        """The bins of an operator that a worker holds; None: nothing is known."""
        return self._bins.get((operator, worker))

    def report(self, operator: int, worker: WorkerId, bins: Bins) -> None:
        """Take what a worker has reported to hold."""
        self._bins[operator, worker] = bins

    def doubt(self, operator: int, worker: WorkerId) -> None:
        """Forget what a worker holds of an operator."""
        self._bins.pop((operator, worker), None)

    def forget(self, workers: Collection[WorkerId]) -> None:
        """Forget everything of these workers: they begin anew, or are gone."""
        self._bins = {at: bins for at, bins in self._bins.items() if at[1] not in workers}
