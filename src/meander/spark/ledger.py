"""What the driver knows of every bin: who owns it, how much work it is, how large its state; and plans made of that."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meander.errors import Infeasible
from meander.migration.steps import Shift
from meander.planning import Plan, Problem, plan
from meander.planning.ahead import Outlook
from meander.spark.messages import Report, read_numbers
from meander.types import WorkerId

Owners = NDArray[np.int64]
Bins = NDArray[np.bool_]

RECENT = 0.2
"""The weight of the last version in the load of a bin: loads are planned with, and one batch is chance."""

USUAL_TAU = 0.2


class Ledger:
    """The bins of all stages of one query.

    `owners` are those of the last committed version, or as they were repaired since; `now` those of the version that
    is being made.
    """

    def __init__(self, owners: Sequence[Owners], bins: int) -> None:
        self.bins = bins
        self.owners = [each.copy() for each in owners]
        self.now = list(self.owners)
        self.rows = [np.zeros(bins, np.int64) for _ in owners]
        self.state_bytes = [np.zeros(bins, np.int64) for _ in owners]
        self.state_rows = [0] * len(self.owners)
        self.work: list[NDArray[np.float64] | None] = [None] * len(self.owners)
        """How much work each bin is, smoothed over versions; None while nothing has been measured."""
        self.capacities: dict[int, float] = {}
        """How fast workers are, where they are not alike."""
        self.outlooks: dict[int, Outlook | str] = {}
        """What migrations to come will cost, by stage: for planner mtm, where nobody gives it another."""

    @property
    def stages(self) -> range:
        """The stages, by number."""
        return range(len(self.owners))

    @property
    def workers(self) -> list[WorkerId]:
        """The workers that own bins of some stage."""
        return [WorkerId(int(each)) for each in np.unique(np.concatenate(self.owners))]

    def workers_of(self, stage: int) -> list[WorkerId]:
        """The workers that own bins of a stage."""
        return [WorkerId(int(each)) for each in np.unique(self.owners[stage])]

    def note(self, reports: Sequence[Report]) -> None:
        """Take in what the workers have measured in a version that is committed."""
        for stage in self.stages:
            mine = [report for report in reports if report.stage == stage]
            self.rows[stage] = self._sum(mine, "loads")
            self.state_rows[stage] = int(self._sum(mine, "state_rows").sum())
            self.state_bytes[stage] = self._sum(mine, "state_bytes")
            before = self.work[stage]
            rows = self.rows[stage].astype(np.float64)
            if rows.any():
                self.work[stage] = rows if before is None else before + RECENT * (rows - before)

    def flip(self, shifts: Sequence[Shift]) -> None:
        """Give bins to others in the version that is being made; without any, it is as the one before."""
        self.now = [each.copy() for each in self.owners] if shifts else list(self.owners)
        for shift in shifts:
            self.now[shift.stage][shift.bin] = shift.target

    def keep(self) -> None:
        """The version was committed: from here on, who owned in it owns."""
        self.owners = list(self.now)

    def plan(
        self,
        stage: int,
        workers: int | Collection[WorkerId],
        planner: str = "free",
        tau: float | None = None,
        must_leave: Collection[WorkerId] = (),
        options: Mapping[str, Any] | None = None,
        owner: Owners | None = None,
        load: Sequence[float] | None = None,
    ) -> Plan:
        """A plan for the bins of a stage; without a tau, the usual one, or the smallest that can be kept.

        Workers that are named and own nothing take part; `owner` is who counts as the owner, should that be another,
        and `load` what the bins count as, should that not be what was measured.
        """
        owners = (self.owners[stage] if owner is None else owner).tolist()
        measured, state = self.measured(stage)
        given_load = measured.tolist() if load is None else list(load)
        options = dict(options or {})
        if planner == "mtm" and stage in self.outlooks:
            options.setdefault("outlook", self.outlooks[stage])
        idle = () if isinstance(workers, int) else sorted(set(workers) - set(owners))

        def planned(cap: float) -> Plan:
            there = [worker for worker in must_leave if worker in owners]
            given = workers if isinstance(workers, int) else sorted(workers)
            problem = Problem(
                given_load, state.tolist(), owners, given, cap, self.capacities, must_leave=there, idle=idle
            )
            return plan(problem, planner, **options)

        try:
            return planned(USUAL_TAU if tau is None else tau)
        except Infeasible as error:
            if tau is not None:
                raise
            return planned((error.smallest_tau or USUAL_TAU) * (1 + 1e-9))

    def measured(self, stage: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Load and bytes of each bin of a stage, as planners take them: none is nothing."""
        work = self.work[stage]
        return np.ones(self.bins) if work is None else 1.0 + work, self.state_bytes[stage] + 1

    def _sum(self, reports: Sequence[Report], what: str) -> NDArray[np.int64]:
        total = np.zeros(self.bins, np.int64)
        for report in reports:
            total += read_numbers(getattr(report, what))
        return total
