"""Contiguous targets: intervals of bins, who keeps them, and the smallest cap that lets them exist."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meander.errors import Infeasible
from meander.pictures import many
from meander.planning.planner import Target
from meander.planning.problem import ROUNDING, Problem
from meander.types import WorkerId


class Piece(NamedTuple):
    """Bins `start`..`stop - 1` for one worker: the one that keeps it, or anyone else of that capacity."""

    start: int
    stop: int
    keeper: WorkerId | None
    capacity: float


def prefix_sums(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """0, v0, v0 + v1, ...: bins l..r-1 weigh p[r] - p[l]."""
    sums = np.zeros(values.size + 1)
    np.cumsum(values, out=sums[1:])
    return sums


def target_of(problem: Problem, pieces: Sequence[Piece]) -> Target:
    """Give each piece to its keeper, and the others, also empty ones, to the other workers, lowest ids first."""
    kept = {piece.keeper for piece in pieces if piece.keeper is not None}
    others = [w for w in problem.candidates if w not in kept]
    owner: list[WorkerId] = []
    for start, stop, keeper, capacity in pieces:
        if keeper is None:
            keeper = next(w for w in others if problem.capacity(w) == capacity)
            others.remove(keeper)
            kept.add(keeper)
        owner += [keeper] * (stop - start)
    return Target(owner, sorted([*kept, *others[: problem.wanted - len(kept)]]))


def round_up(tau: float) -> float:
    """The next number with four digits behind the point or, below 0.01, four significant ones."""
    digits = 4 if tau >= 0.01 or tau <= 0 else 4 - math.floor(math.log10(tau)) - 1
    return math.ceil(tau * 10.0**digits * (1 - 1e-12)) / 10.0**digits


def smallest_cap(load: NDArray[np.float64], intervals: int) -> float:
    """The smallest cap under which so many intervals cover all bins; `load` is a prefix sum."""

    def heaviest(cap: float) -> float:
        """Fill intervals from the left up to `cap`; the heaviest of them, or infinity if they do not suffice."""
        at, worst = 0, 0.0
        for _ in range(intervals):
            stop = int(np.searchsorted(load, load[at] + cap * (1 + ROUNDING), side="right")) - 1
            worst = max(worst, float(load[stop] - load[at]))
            at = stop
            if at == load.size - 1:
                return worst
        return math.inf

    low, high = float(load[-1]) / intervals, float(load[-1])
    best = high
    while high - low > ROUNDING * high:
        middle = (low + high) / 2
        if not low < middle < high:
            break  # the smallest floats have nothing between them
        reached = heaviest(middle)
        low, high = (middle, high) if math.isinf(reached) else (low, middle)
        best = min(best, reached)
    return best


def least_intervals(load: NDArray[np.float64], cap: float) -> NDArray[np.int64]:
    """For each x, how many intervals of at most `cap` the bins from x on need; too many where none suffice."""
    bins = load.size - 1
    reach = np.searchsorted(load, load + cap, side="right") - 1
    need = np.zeros(bins + 1, dtype=np.int64)
    for x in range(bins - 1, -1, -1):
        need[x] = need[reach[x]] + 1 if reach[x] > x else bins + 1
    return need


def no_intervals(problem: Problem) -> Infeasible:
    """Say why equal workers cannot share the bins as intervals, and which tau would let them."""
    needed = smallest_cap(prefix_sums(problem.load_array), min(problem.wanted, problem.bins))
    cap = (1 + problem.tau) * problem.total_load / problem.wanted
    return infeasible(problem, cap, needed * problem.wanted / problem.total_load - 1)


def infeasible(problem: Problem, cap: float, smallest_tau: float | None, why: str = "") -> Infeasible:
    """Say in one sentence why no contiguous assignment keeps the cap, and which tau would."""
    heaviest = max(range(problem.bins), key=lambda j: problem.load[j])
    if why:
        reason = why
    elif problem.load[heaviest] > cap * (1 + ROUNDING):
        reason = f"bin {heaviest} alone has load {problem.load[heaviest]:g}, above the cap of {cap:g} per worker"
    else:
        reason = (
            f"no contiguous assignment of {many(problem.bins, 'bin')} to {many(problem.wanted, 'worker')} "
            f"keeps every load within the cap of {cap:g}"
        )
    if smallest_tau is None:
        return Infeasible(f"{reason}; no tau helps", None)
    rounded = f"{round_up(smallest_tau):.12g}"
    return Infeasible(f"{reason} at tau {problem.tau:g}; the smallest tau that would do is {rounded}", smallest_tau)
