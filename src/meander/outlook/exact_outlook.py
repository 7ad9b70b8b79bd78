"""An outlook that knows the projected cost of every feasible partitioning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np

from meander.errors import Infeasible, InvalidOption
from meander.outlook import exact_kernel
from meander.outlook.outlook import Flags, Floats, Ints, Outlook, Tables, cap_of
from meander.pictures import many
from meander.planning.intervals import prefix_sums
from meander.planning.planner import Target
from meander.planning.problem import Problem
from meander.types import WorkerId, runs

TIE = 1e-12
"""Estimates that differ by less than this share of all state count as equal."""


class BestPartitioning(NamedTuple):
    """The best of an outlook's partitionings: its ends, which present run keeps each interval, and its cost.

    `cost` is what moves now and `estimate` adds gamma times what is to come. The keeper is `outlook.NOBODY`
    where a worker without bins takes the interval.
    """

    ends: Ints
    keepers: Ints
    cost: float
    estimate: float


class _Feasible(NamedTuple):
    """The partitionings that are feasible for one number of workers: their ends and projected costs."""

    table: Ints
    shared: Ints
    projected: Floats


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class ExactOutlook(Outlook, kind="exact"):
    """Projected costs of all feasible partitionings.

    Attributes:
        epsilon: every projected cost is within this share of all state of the true one.
        horizon: how many migrations are looked at; None for all that will ever be.
        sweeps: how often all pairs were looked at until then.
        ends: every partitioning that is feasible for some number of workers, as in `partitions.as_table`, ordered by
            the number of intervals and then lexically.
        projected: one row for each number of workers from transitions.lo on, one column for each partitioning: the
            projected cost in bytes, NaN where the partitioning is not feasible for that number.
    """

    epsilon: float
    horizon: int | None
    sweeps: int
    ends: Ints
    projected: Floats

    def inputs(self) -> dict[str, Any]:
        """What the answer follows from, ready for JSON."""
        return {**super().inputs(), "epsilon": self.epsilon, "horizon": self.horizon}

    def facts(self) -> dict[str, Any]:
        """All that is not in a table, ready for JSON."""
        return {**super().facts(), "sweeps": self.sweeps}

    def to_tables(self) -> Tables:
        """One table: a row for each partitioning, with a column of projected costs for each number of workers."""
        costs = {f"workers_{self.transitions.lo + at}": row for at, row in enumerate(self.projected)}
        return {"partitionings": {"ends": self.ends, **costs}}

    @classmethod
    def from_tables(cls, facts: Mapping[str, Any], tables: Tables) -> Self:
        """Build an outlook from what `facts` and `to_tables` gave."""
        common = cls.common(facts)
        table, transitions = tables["partitionings"], common["transitions"]
        projected = np.array([table[f"workers_{n}"] for n in range(transitions.lo, transitions.hi + 1)])
        own = {name: facts[name] for name in ("epsilon", "horizon", "sweeps")}
        return cls(**common, **own, ends=table["ends"], projected=projected)

    def partitionings(self, workers: int) -> tuple[Ints, Floats]:
        """The partitionings that are feasible for so many workers, and their projected costs."""
        known = self._feasible_for(workers)
        return known.table, known.projected

    def choose(self, problem: Problem) -> Target:
        """Return the assignment with the least cost now and gamma times the projected cost together.

        Costs are those of the problem's own state, projected costs grow as all state has grown, and only what keeps
        the problem's own cap is chosen, so bins may have drifted a little. Ties go to the most even load.

        Raises:
            InvalidProblem: the problem is not of the kind this outlook is about; `unfit` says why.
            Infeasible: none of the partitionings keeps the problem's cap.
        """
        self.refuse_unfit(problem)
        loads = prefix_sums(problem.load_array)
        reach = np.searchsorted(loads, loads + cap_of(problem), side="right") - 1
        best = self.best(problem.state_array, *self.present(problem), problem.wanted, reach)
        if best is None:
            raise Infeasible(
                f"none of the outlook's partitionings for {many(problem.wanted, 'worker')} keeps tau {problem.tau:g} "
                "at the present loads; make a new outlook, or use planner 'ssm'"
            )
        return self.target(problem, best.ends, best.keepers)

    def estimate(self, problem: Problem, owner: Sequence[WorkerId]) -> float:
        """Bytes that move if `owner` owns the bins, plus gamma times what is projected to come after that.

        Any contiguous target will do: for one that is not among the partitionings, one migration more is looked at.
        """
        moved = self.moved(problem, owner)
        ends = np.array([run.stop for run in runs(owner)])
        return moved + self.gamma * self._growth(problem.state_array) * self._projected_of(ends, problem.wanted)

    def best(
        self, state: Floats, edges: Ints, keeps: Flags, workers: int, reach: Ints | None = None
    ) -> BestPartitioning | None:
        """Return the best partitioning for so many workers, from where things stand; None where none is within reach.

        Args:
            state: bytes of each bin, now.
            edges: the ends of the present intervals, ascending.
            keeps: whether the worker of each interval may stay.
            workers: how many workers are wanted.
            reach: where an interval that begins at x has to end; without it, as the outlook's own cap says.
        """
        known = self._feasible_for(workers)
        sums, all_state = prefix_sums(state), float(state.sum())
        kept = np.zeros(known.projected.size)
        exact_kernel.kept_by_all(sums, edges, keeps, known.table, known.shared, 0, kept)
        cost = np.maximum(sums[-1] - kept, 0.0)
        total = cost + self.gamma * self._growth(state) * known.projected
        if reach is not None:
            total[~exact_kernel.within(reach, known.table)] = np.inf
        least = float(total.min())
        if np.isinf(least):
            return None
        ties = np.flatnonzero(total <= least + TIE * max(all_state, least))
        edges_of_ties = np.concatenate([np.zeros((ties.size, 1), dtype=np.int64), known.table[ties]], axis=1)
        loads = np.diff(prefix_sums(self.load)[edges_of_ties], axis=1)
        at = int(ties[np.argmin((loads**2).sum(axis=1))])
        cuts = known.table[at]
        cuts = cuts[: int(np.argmax(cuts == self.bins)) + 1]
        keepers = exact_kernel.keepers(sums, edges, keeps, cuts)
        return BestPartitioning(cuts, keepers, float(cost[at]), float(total[at]))

    def _growth(self, state: Floats) -> float:
        """How much state there is for each byte there was."""
        before = float(self.state.sum())
        return float(state.sum()) / before if before > 0 else 1.0

    def _feasible_for(self, workers: int) -> _Feasible:
        lo, hi = self.transitions.lo, self.transitions.hi
        if not lo <= workers <= hi:
            raise InvalidOption(f"the outlook is about {lo} to {hi} workers, not {workers}")
        if workers not in self._feasible:
            rows = np.flatnonzero(~np.isnan(self.projected[workers - lo]))
            table = self.ends[rows]
            shared = exact_kernel.shared_ends(table)
            self._feasible[workers] = _Feasible(table, shared, self.projected[workers - lo, rows])
        return self._feasible[workers]

    @cached_property
    def _feasible(self) -> dict[int, _Feasible]:
        return {}

    def _projected_of(self, ends: Ints, workers: int) -> float:
        """The projected cost of any cut into intervals; of one that is not in the table, by looking one step on."""
        known = self._feasible_for(workers)
        if ends.size <= known.table.shape[1]:
            padded = np.full(known.table.shape[1], self.bins)
            padded[: ends.size] = ends
            matches = np.flatnonzero((known.table == padded).all(axis=1))
            if matches.size:
                return float(known.projected[matches[0]])
        everyone = np.ones(ends.size, dtype=np.bool_)
        onward = 0.0
        for n, chance in enumerate(self.transitions.row(workers).tolist(), start=self.transitions.lo):
            best = self.best(self.state, ends, everyone, n) if chance > 0 else None
            onward += chance * best.estimate if best else 0.0
        return onward
