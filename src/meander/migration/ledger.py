"""What plans are made of: who owns each bin, how much work it is, how large its state, as of one revision."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meander.errors import Infeasible
from meander.planning import Plan, Problem, plan
from meander.types import WorkerId

Owners = NDArray[np.int64]
Floats = NDArray[np.float64]

USUAL_TAU = 0.2


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
        return [WorkerId(int(each)) for each in np.unique(np.concatenate(self.owners))]

    def workers_of(self, operator: int) -> list[WorkerId]:
        """The workers that own bins of an operator."""
        return [WorkerId(int(each)) for each in np.unique(self.owners[operator])]

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
