"""`./dev bench mtm --only gap`: how far learned prices are from the optimum, where the optimum is known.

A planner decides by the present partitioning and the number of workers wanted, so on small problems all its decisions
can be listed. What they cost, discounted, over all migrations to come is then a system of linear equations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

import meander
from meander.outlook.exact import Case, solved
from meander.outlook.exact_outlook import ExactOutlook
from meander.outlook.transitions import Transitions
from meander.types import runs
from meander_lab.experiments.arrivals import arrivals
from meander_lab.experiments.setting import History, Outlooks, Setting
from meander_lab.replay import Bins, balanced

Policy = Callable[[meander.Problem], meander.Plan]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Small:
    """A problem that is small enough for an exact answer."""

    bins: int
    lo: int
    hi: int
    tau: float
    seed: int = 1
    gamma: float = 0.8

    def transitions(self) -> Transitions:
        """Those of a made-up history."""
        return History.of("made up", arrivals(seed=self.seed), Setting(lo=self.lo, hi=self.hi)).transitions

    def case(self) -> Case:
        """The problem with its inputs checked and its partitionings ordered."""
        load, state = Bins.synthetic(self.bins, drift=0.0, seed=self.seed).at(0)
        return Case.of(load, state, self.transitions(), self.tau, self.gamma)


SMALL = (
    Small(12, 2, 4, 0.2), Small(12, 2, 4, 0.4), Small(12, 2, 4, 0.8), Small(14, 2, 4, 0.4, seed=2),
    Small(16, 2, 4, 0.2, seed=3), Small(16, 2, 4, 0.4), Small(16, 2, 4, 0.8, seed=2), Small(16, 2, 4, 1.2),
)  # fmt: skip
QUICK = (Small(12, 2, 4, 0.4), Small(14, 2, 4, 0.4, seed=2))


@dataclass(frozen=True)
class Gap:
    """What policies cost from a balanced start, discounted, as per cent of all state: the mean over worker counts."""

    small: Small
    partitionings: int
    optimum: float
    learned: float
    ssm: float

    @property
    def learned_above(self) -> float:
        """How far learned prices are above the optimum, in per cent of it."""
        return 100 * (self.learned / self.optimum - 1) if self.optimum else 0.0

    @property
    def ssm_above(self) -> float:
        """How far ssm is above the optimum, in per cent of it."""
        return 100 * (self.ssm / self.optimum - 1) if self.optimum else 0.0

    @property
    def gained(self) -> float:
        """How much of what the optimum saves against ssm is saved, in per cent; NaN where there is nothing to save."""
        room = self.ssm - self.optimum
        return 100 * (self.ssm - self.learned) / room if room > 1e-6 * self.ssm else math.nan

    def row(self) -> dict[str, Any]:
        """The gap as plain values, for a CSV."""
        return {
            "bins": self.small.bins,
            "lo": self.small.lo,
            "hi": self.small.hi,
            "tau": self.small.tau,
            "seed": self.small.seed,
            "gamma": self.small.gamma,
            "partitionings": self.partitionings,
            "optimum": self.optimum,
            "learned_above": self.learned_above,
            "ssm_above": self.ssm_above,
            "gained": self.gained,
        }


def value_of(case: Case, policy: Policy) -> Floats:
    """The discounted cost in bytes of all migrations to come under a policy.

    Rows are numbers of workers from lo on, columns partitionings in the order of the case; NaN where a partitioning is
    not feasible for so many workers. Solves V[n, P] = sum over n' of M[n][n'] * (cost(P, P') + gamma * V[n', P']).
    """
    ends = case.table(0, case.partitionings)
    feasible = case.feasible(ends)
    rank = {_key(row, case.bins): at for at, row in enumerate(ends)}
    place = np.full(feasible.shape, -1)
    place[feasible] = np.arange(feasible.sum())
    system, cost = np.eye(int(feasible.sum())), np.zeros(int(feasible.sum()))
    lo, matrix = case.transitions.lo, case.transitions.matrix
    for target in case.targets.tolist():
        workers = lo + target
        for at in np.flatnonzero(feasible.any(axis=0)).tolist():
            moved, after = _step(case, policy, ends[at], workers)
            then = place[target, rank[after]]
            current = place[feasible[:, at], at]
            chance = matrix[feasible[:, at], target]
            cost[current] += chance * moved
            system[current, then] -= case.gamma * chance
    value = np.full(feasible.shape, np.nan)
    value[feasible] = np.linalg.solve(system, cost)
    return value


def _step(case: Case, policy: Policy, ends: NDArray[np.int64], workers: int) -> tuple[float, tuple[int, ...]]:
    """Bytes moved by a policy from a partitioning to so many workers, and where its intervals end then."""
    cuts = _key(ends, case.bins)
    owner = np.repeat(np.arange(len(cuts)), np.diff([0, *cuts]))
    problem = meander.Problem(case.load, case.state, owner, workers, case.taus[workers])
    try:
        plan = policy(problem)
    except meander.Infeasible:
        # The smallest feasible tau may miss by the last digits.
        plan = policy(replace(problem, tau=problem.tau + 1e-8))
    return float(plan.cost), tuple(run.stop for run in runs(plan.owner))


def _key(ends: NDArray[np.int64], bins: int) -> tuple[int, ...]:
    """The ends of the intervals of a table's row, without its padding."""
    inner = [end for end in ends.tolist() if end < bins]
    return (*inner, bins)


def from_balance(case: Case, value: Floats) -> float:
    """What is to come from a balanced start, as per cent of all state: the mean over the numbers of workers."""
    ends = case.table(0, case.partitionings)
    rank = {_key(row, case.bins): at for at, row in enumerate(ends)}
    values = []
    for at, workers in enumerate(case.taus):
        start = tuple(run.stop for run in runs(balanced(case.load, workers)))
        values.append(value[at, rank[start]])
    return float(100 * np.mean(values) / case.total)


def gap(small: Small, outlooks: Outlooks) -> Gap:
    """Compare learned prices with the optimum and with ssm."""
    case = small.case()
    optimum: ExactOutlook = solved(case)
    learned = outlooks.of(case.load, case.state, case.transitions, case.tau, case.gamma).outlook
    planners = meander.planners()
    values = [
        optimum.projected,
        value_of(case, lambda problem: planners["mtm"](problem, outlook=learned)),
        value_of(case, planners["ssm"]),
    ]
    return Gap(small, case.partitionings, *(from_balance(case, value) for value in values))


def table(gaps: Sequence[Gap]) -> Table:
    """One row for each small problem."""
    title = "discounted cost of all migrations to come, from a balanced start, mean over the numbers of workers"
    grid = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for column in (
        "bins", "workers", "tau", "partitionings", "optimum, % of state", "learned above it", "ssm above it",
        "of what can be saved, learned saves",
    ):  # fmt: skip
        grid.add_column(column, justify="right")
    for each in gaps:
        small = each.small
        grid.add_row(
            str(small.bins), f"{small.lo} to {small.hi}", f"{small.tau:g}", str(each.partitionings),
            f"{each.optimum:.1f}", f"{each.learned_above:.2f} %", f"{each.ssm_above:.2f} %",
            "nothing to save" if math.isnan(each.gained) else f"{each.gained:.0f} %",
        )  # fmt: skip
    return grid
