"""Projected migration costs over all feasible partitionings, exactly (Ding et al., section 4.2, made a fixed point).

    C[n, P] = sum over n' of M[n][n'] * min over P' feasible for n' of (cost(P, P') + gamma * C[n', P'])

P runs over all cuts of the bins into at most n intervals within the load cap. cost(P, P') is the state that moves under
the best matching of old and new intervals; it depends on P and P' alone and is the same in both directions, so it is
computed once for each pair, whatever number of workers the two are feasible for.

A *sweep* looks at all pairs. Between two sweeps the choices just made are followed until their cost is known, which
looks at no pair (Puterman and Shin's modified policy iteration); a handful of sweeps is enough for any gamma. After a
sweep from C to C', every true value lies within gamma / (1 - gamma) times the least and the largest entry of C' - C
above C' (the contraction bound in MacQueen's form). When these ends are close enough, their middle is the answer.

Nothing here knows Spark: `pmc_exact` runs the same sweep in tasks, `solved` runs it in this process.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from meander.errors import InvalidOption, InvalidProblem, TooLarge
from meander.options import listed, number, whole
from meander.outlook import exact_kernel
from meander.outlook.exact_outlook import ExactOutlook
from meander.outlook.outlook import Flags, Floats, Ints, Premises
from meander.outlook.transitions import Transitions
from meander.planning.intervals import least_intervals, prefix_sums, smallest_cap
from meander.planning.problem import ROUNDING, Problem

EPSILON = 1e-6
"""How far projected costs may be off by default, as a share of all state."""

MOST_PARTITIONINGS = 60_000
MOST_IN_DRIVER = 8_000
FOLLOWED = 1_000
"""Steps for which choices are followed at most before all pairs are looked at again."""

EXACT_FLOAT32 = 2**24
"""Whole numbers up to this one are exact as 32-bit floats."""


class Sweep(NamedTuple):
    """For each number of workers one may go to (rows) from each partitioning (columns): the least cost, and where."""

    least: Floats
    choice: Ints

    @classmethod
    def empty(cls, targets: int, partitionings: int) -> Sweep:
        """No way known yet."""
        shape = (targets, partitionings)
        return cls(np.full(shape, np.inf), np.full(shape, np.iinfo(np.int64).max))

    def improve(self, at: slice, least: Floats, choice: Ints) -> None:
        """Take what is cheaper in some columns; of equals the first, so that the order of blocks does not matter."""
        old, old_choice = self.least[:, at], self.choice[:, at]
        better = (least < old) | ((least == old) & (choice < old_choice))
        old[better], old_choice[better] = least[better], choice[better]

    def look(self, costs: NDArray[Any], rows: slice, columns: slice, onward: Floats, allowed: Flags) -> None:
        """Go through one block of costs, in both directions where it is not on the diagonal."""
        directions = [(exact_kernel.cheapest_across, rows, columns), (exact_kernel.cheapest_down, columns, rows)]
        for search, source, target in directions[: 1 if rows == columns else 2]:
            least = np.empty((onward.shape[0], source.stop - source.start))
            choice = np.empty(least.shape, dtype=np.int64)
            search(costs, onward[:, target].copy(), allowed[:, target].copy(), least, choice)
            self.improve(source, least, choice + target.start)


class Group(NamedTuple):
    """The partitionings into one number of intervals: how far an interval reaches, and in how many ways one goes on."""

    intervals: int
    first: int
    stop: int
    reach: Ints
    ways: Ints


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Case(Premises):
    """What is to be solved: the inputs, checked, and the order of all feasible partitionings.

    Partitionings are ordered by their number of intervals and then lexically, and known by their rank in that order,
    so that a task can make those from rank 200 to 300 without the others.
    """

    epsilon: float
    horizon: int | None

    @classmethod
    def of(
        cls,
        load: Iterable[float],
        state: Iterable[float],
        transitions: Transitions,
        tau: float = 0.2,
        gamma: float = 0.8,
        epsilon: float | None = None,
        horizon: int | None = None,
    ) -> Case:
        """Check the inputs and raise tau where a number of workers needs it.

        Raises:
            InvalidProblem: a load or a state is no amount.
            InvalidOption: gamma, epsilon or the horizon is not possible.
        """
        load = listed("load", load, InvalidProblem)
        bins = Problem(load, state, [0] * len(load), 1, tau)
        gamma = float(number("gamma", gamma))
        if not 0 <= gamma <= 1:
            raise InvalidOption(f"gamma is {gamma:g}; it must be at least 0 and below 1, such as 0.8")
        if horizon is not None:
            whole("horizon", horizon, 0)
        elif gamma == 1:
            raise InvalidOption(
                "gamma is 1, and without a discount the cost of all migrations to come is infinite; "
                "use a gamma below 1, such as 0.95, or give a horizon"
            )
        least = 1e-12 if gamma == 1 else max(1e-12, 1e-14 / (1 - gamma) ** 2)
        epsilon = max(EPSILON, least) if epsilon is None else float(number("epsilon", epsilon))
        if not least <= epsilon <= 1:
            raise InvalidOption(f"epsilon is {epsilon:g}; at gamma {gamma:g} it must be from {least:.1g} to 1")
        numbers = range(transitions.lo, transitions.hi + 1)
        sums = prefix_sums(bins.load_array)
        taus = {n: _feasible_tau(sums, bins.total_load, float(bins.tau), n) for n in numbers}
        return cls(
            load=bins.load_array, state=bins.state_array, tau=float(bins.tau), taus=taus, gamma=gamma,
            transitions=transitions, epsilon=epsilon, horizon=horizon,
        )  # fmt: skip

    # --- what is feasible ---

    @cached_property
    def reach(self) -> dict[int, Ints]:
        """By number of workers: where an interval that begins at x has to end to keep the cap."""
        sums = prefix_sums(self.load)
        return {n: np.searchsorted(sums, sums + self.cap(n) * (1 + ROUNDING), side="right") - 1 for n in self.taus}

    def cap(self, workers: int) -> float:
        """The largest load a worker may have, if there are so many."""
        return (1 + self.taus[workers]) * math.fsum(self.load) / workers

    @cached_property
    def groups(self) -> list[Group]:
        """The partitionings by number of intervals.

        Raises:
            TooLarge: there are too many of them.
        """
        groups: list[Group] = []
        first = 0
        for intervals in range(1, min(self.transitions.hi, self.bins) + 1):
            # The widest reach of all numbers of workers that so many intervals are not too many for.
            reach = np.max([r for n, r in self.reach.items() if n >= intervals], axis=0)
            ways = np.zeros((intervals + 1, self.bins + 1), dtype=np.int64)
            ways[0, self.bins] = 1
            for rest in range(1, intervals + 1):
                sums = np.concatenate(([0], np.cumsum(ways[rest - 1])))
                # Without the limit these numbers would leave 64 bits.
                ways[rest] = np.minimum(sums[reach + 1] - sums[np.arange(self.bins + 1) + 1], MOST_PARTITIONINGS + 1)
            groups.append(Group(intervals, first, first + int(ways[intervals, 0]), reach, ways))
            first = groups[-1].stop
            if first > MOST_PARTITIONINGS:
                raise TooLarge(
                    f"more than {MOST_PARTITIONINGS} partitionings of {self.bins} bins keep the cap for "
                    f"{self.transitions.lo} to {self.transitions.hi} workers, too many to look at all pairs; "
                    "use a learned outlook, fewer bins or a smaller tau"
                )
        return groups

    @property
    def partitionings(self) -> int:
        """How many partitionings are feasible for some number of workers."""
        return self.groups[-1].stop

    def table(self, start: int, stop: int) -> Ints:
        """The partitionings of ranks start..stop-1, made one by one from their ranks."""
        table = np.empty((stop - start, self.groups[-1].intervals), dtype=np.int64)
        for group in self.groups:
            begin, end = max(start, group.first), min(stop, group.stop)
            if begin < end:
                part = table[begin - start : end - start]
                exact_kernel.unrank(group.reach, group.ways, group.intervals, begin - group.first, part)
        return table

    def feasible(self, table: Ints) -> Flags:
        """For each number of workers (rows), which partitionings of a table (columns) are feasible."""
        used = (table < self.bins).sum(axis=1) + 1
        return np.array([exact_kernel.within(self.reach[n], table) & (used <= n) for n in self.taus])

    # --- what it costs ---

    @cached_property
    def total(self) -> float:
        """State of all bins together, in bytes."""
        return math.fsum(self.state)

    @cached_property
    def rounding(self) -> float:
        """By how many bytes projected costs are off at most if costs are kept as 32-bit floats."""
        if self.total <= EXACT_FLOAT32 and not np.any(self.state % 1):
            return 0.0
        steps = self.horizon if self.horizon is not None else 1 / (1 - self.gamma)
        return self.total / EXACT_FLOAT32 * max(1.0, float(steps))

    @property
    def dtype(self) -> np.dtype[Any]:
        """What costs are kept as: 32-bit floats, unless epsilon asks for more than they hold."""
        narrow = self.rounding <= 0.75 * self.epsilon * self.total
        return np.dtype(np.float32 if narrow else np.float64)

    def costs(self, froms: Ints, tos: Ints, same: bool) -> NDArray[Any]:
        """The cost of each pair of two tables."""
        block = np.empty((len(froms), len(tos)), dtype=self.dtype)
        exact_kernel.pair_costs(prefix_sums(self.state), froms, tos, same, block)
        return block

    @property
    def targets(self) -> Ints:
        """The rows of the matrix for the numbers of workers that anyone goes to."""
        return np.flatnonzero(self.transitions.matrix.any(axis=0))

    # --- as inputs of an outlook ---

    def inputs(self) -> dict[str, Any]:
        """What the answer follows from, ready for JSON."""
        return {**super().inputs(), "epsilon": self.epsilon, "horizon": self.horizon}

    def outlook(self, table: Ints, values: Floats, sweeps: int) -> ExactOutlook:
        """The answer, with what it was computed from."""
        return ExactOutlook(
            **self.premises,
            epsilon=self.epsilon,
            horizon=self.horizon,
            sweeps=sweeps,
            ends=table,
            projected=np.where(self.feasible(table), values, np.nan),
        )


def converge(
    case: Case,
    feasible: Flags,
    sweep: Callable[[Floats], Sweep],
    start: tuple[Floats, int] | None = None,
    keep: Callable[[Floats, int], None] | None = None,
) -> tuple[Floats, int]:
    """Return the projected costs of all (number of workers, partitioning), and how many sweeps it took.

    Args:
        case: what is to be solved.
        feasible: which partitionings are feasible, by number of workers.
        sweep: looks at all pairs, given gamma times the present costs of what one may go to.
        start: costs and sweeps to go on from.
        keep: is given costs and sweeps between two sweeps, to go on from another time.
    """
    values, sweeps = start or (np.zeros(feasible.shape), 0)
    gamma, targets, matrix = case.gamma, case.targets, case.transitions.matrix[:, case.targets]
    factor = gamma / (1 - gamma)
    allowed = case.epsilon * case.total - (case.rounding if case.dtype == np.float32 else 0.0)
    while True:
        least, choice = sweep(gamma * values[targets])
        after = matrix @ least
        sweeps += 1
        change = (after - values)[feasible]
        low, high = float(change.min()), float(change.max())
        if factor * (high - low) / 2 <= allowed:
            return after + factor * (low + high) / 2, sweeps
        moved = least - gamma * np.take_along_axis(values[targets], choice, axis=1)
        values = _follow(case, feasible, moved, choice, after, allowed / 4)
        if keep is not None:
            keep(values, sweeps)


def _follow(case: Case, feasible: Flags, moved: Floats, choice: Ints, values: Floats, enough: float) -> Floats:
    """The projected costs if everyone always goes where `choice` says, nearly."""
    gamma, targets, matrix = case.gamma, case.targets, case.transitions.matrix[:, case.targets]
    factor = gamma / (1 - gamma)
    for _ in range(FOLLOWED):
        after = matrix @ (moved + gamma * np.take_along_axis(values[targets], choice, axis=1))
        change = (after - values)[feasible]
        low, high = float(change.min()), float(change.max())
        values = after
        if factor * (high - low) / 2 <= enough:
            return values + factor * (low + high) / 2
    return values


def solved(case: Case) -> ExactOutlook:
    """Solve a case in this process."""
    size = case.partitionings
    if size > MOST_IN_DRIVER:
        raise TooLarge(
            f"{size} partitionings are more than the {MOST_IN_DRIVER} whose pairs fit into one process; "
            "use me.pmc, which spreads them over Spark"
        )
    table = case.table(0, size)
    feasible = case.feasible(table)
    costs, everything = case.costs(table, table, same=True), slice(0, size)

    def sweep(onward: Floats) -> Sweep:
        best = Sweep.empty(len(onward), size)
        best.look(costs, everything, everything, onward, feasible[case.targets])
        return best

    if case.horizon is None:
        return case.outlook(table, *converge(case, feasible, sweep))
    values = np.zeros(feasible.shape)
    for _ in range(case.horizon):
        values = case.transitions.matrix[:, case.targets] @ sweep(case.gamma * values[case.targets]).least
    return case.outlook(table, values, case.horizon)


def _feasible_tau(load: Floats, total: float, tau: float, workers: int) -> float:
    """The tau given, or the smallest with which so many intervals suffice; `load` is a prefix sum."""
    intervals = min(workers, load.size - 1)
    if least_intervals(load, (1 + tau) * total / workers * (1 + ROUNDING))[0] <= intervals:
        return tau
    return smallest_cap(load, intervals) * workers / total - 1
