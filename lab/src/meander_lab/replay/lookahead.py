"""What could be saved if the future were known, and what no contiguous policy can save.

Neither is a planner for real use: the one sees worker counts, loads and sizes that have not come yet, the other is a
number. They stand beside replays of planners to say how much is left to gain.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from time import perf_counter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meander.errors import TooLarge
from meander.options import amount, whole
from meander.outlook.partitions import kept
from meander.planning import Plan, Problem, ssm_kernel
from meander.planning.intervals import Piece, no_intervals, prefix_sums, smallest_cap, target_of
from meander.planning.problem import ROUNDING
from meander.types import runs
from meander_lab.replay import lookahead_kernel
from meander_lab.replay.bins import Bins, Floats
from meander_lab.replay.replaying import MOST, Progress, Replay, series_of, through
from meander_lab.replay.starting import balanced, smallest_tau

Ends = NDArray[np.int64]
"""Where intervals end, ascending, the last one at the number of bins; none is empty."""

Path = list[Ends]
"""The intervals after each of some migrations."""

MOST_BINS = 1024
LONGEST_WINDOW = 256
STRETCHES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48)
"""For how many migrations in a row it is tried to move nothing."""

SLACK = 1 + 1e-7
"""A cap counts as this much wider in the bound, so that what planners allow for rounding does not break it."""


class KnownMigration(NamedTuple):
    """One migration that is known: how many workers, the cap, and what the bins weigh; sums are prefix sums."""

    workers: int
    load: Floats
    state: Floats
    load_sums: Floats
    state_sums: Floats
    cap: float
    smallest: float
    left: Ends


class Bound(NamedTuple):
    """What every contiguous policy moves at least, over all migrations: bytes, and per cent of all state for each."""

    bytes: float
    percent_per_migration: float


def clairvoyant(
    counts: Iterable[int],
    bins: Bins,
    tau: float = 0.2,
    *,
    ahead: int = 3,
    width: int = 8,
    most: int = MOST,
    progress: Progress | None = None,
) -> Replay:
    """Return the replay of a planner that knows the next migrations: their worker counts, loads and sizes.

    Args:
        counts: the number of workers, one after the other, as for `replay`.
        bins: their load and state at each migration.
        tau: the load cap, raised to the smallest feasible one where it is infeasible.
        ahead: how many migrations it sees beyond the one that is due.
        width: from how many different ways through them it starts its search.
        most: how many migrations to replay.
        progress: called after each migration.

    Raises:
        InvalidOption: an argument is out of range.
        TooLarge: there are more than 1024 bins.

    At each migration it looks for the cheapest way through this one and the `ahead` next ones, goes one step, and
    looks again. A way starts as what `ssm` does step by step, within the caps or within narrower ones, or as what is
    left of the last way. Then each partitioning on it gives way to the best one between its two neighbours, and each
    stretch of them to the best one that can stand still throughout, both found by one dynamic programme, until nothing
    gets cheaper. The cheapest of all ways is taken.

    It is a search, not a proof: more foresight mostly saves more, not always. Where all migrations are in sight at
    once, it never moves more than `ssm`. For a few bins `oms` gives the optimum.
    """
    series = series_of(counts, most)
    ahead, width = whole("ahead", ahead, 0), whole("width", width, 1)
    if bins.bins > MOST_BINS:
        raise TooLarge(f"looking ahead takes too long for {bins.bins} bins; use at most {MOST_BINS}")
    stages = _stages(series, bins, tau)
    way: Path = []

    def step(k: int, problem: Problem) -> Plan:
        nonlocal way
        if problem.tau < smallest_tau(stages[k].load, problem.wanted) - ROUNDING:
            raise no_intervals(problem)
        now = np.array([run.stop for run in runs(problem.owner)])
        started = perf_counter()
        way = way[1:]
        if not k or k + ahead < len(stages):  # else nothing more has come into sight
            way = _cheapest(now, stages[k : k + ahead + 1], way, width)
        return _plan(problem, way[0], (perf_counter() - started) * 1e3)

    return through(f"clairvoyant {ahead}", series, bins, step, tau, progress=progress)


def lower_bound(counts: Iterable[int], bins: Bins, tau: float = 0.2, *, most: int = MOST) -> Bound:
    """Return a bound from below on what any contiguous policy moves, also one that knows all that comes.

    The policy starts as `replay` does and keeps, after every migration, the cap of tau, or of the smallest feasible
    one where that is larger. Why the bound holds:

    1. Take migrations s+1..t in a row. A bin that moves in none of them has one owner w throughout. The bins of w that
       never move lie in w's interval after each of them, so they fit into one interval that is within the cap of
       every count from s to t, by the loads of each. No more workers than the smallest of these counts are there
       throughout. So what never moves is at most the state of that many disjoint intervals, each within all of
       these caps, and a dynamic programme finds the most that such intervals can hold. Before the first migration
       the owners are known: there each interval lies in one present interval, and no two in the same.
    2. Every other bin moves at least once, at a size not below its smallest in these migrations. So they move at least
       the sum of these smallest sizes less the most that can stay, whatever was done before them.
    3. The bound of 2 holds from any assignment, so bounds of rows of migrations that do not overlap add up. The
       best way to cut the series into rows is found by another dynamic programme.

    Where the cap is loose enough for as many intervals as the smallest count to serve the largest one, it is 0, and
    rightly so: such intervals need never move while loads stay.
    """
    series = series_of(counts, most)
    stages = _stages(series, bins, float(amount("tau", tau)))
    start = np.array([run.stop for run in runs(balanced(bins.at(0)[0], series[0]))])
    in_bytes = [stage.state for stage in stages]
    in_percent = [100 * state / state.sum() if state.any() else state for state in in_bytes]
    bounds = [_best_rows(series, stages, start, states) for states in (in_bytes, in_percent)]
    return Bound(bounds[0], bounds[1] / len(stages))


def _stages(series: Sequence[int], bins: Bins, tau: float) -> list[KnownMigration]:
    stages: list[KnownMigration] = []
    for k, workers in enumerate(series[1:]):
        load, state = bins.at(k)
        sums = prefix_sums(load)
        smallest = smallest_cap(sums, min(workers, bins.bins))
        cap = max((1 + tau) * float(sums[-1]) / workers, smallest)
        left = _left(sums, cap * (1 + ROUNDING))
        stages.append(KnownMigration(workers, load, state, sums, prefix_sums(state), cap, smallest, left))
    return stages


def _left(sums: Floats, cap: float) -> Ends:
    """For each right end r, the smallest l such that bins l..r-1 are within the cap."""
    return np.minimum(np.searchsorted(sums, sums - cap, side="left"), np.arange(sums.size))


def _cheapest(now: Ends, stages: Sequence[KnownMigration], left_over: Path, width: int) -> Path:
    """Return the cheapest way found from the present intervals through all stages."""
    ways = [_onward(now, stages, share) for share in np.linspace(1.0, 0.0, width)]
    if left_over:
        ways.append([*left_over, *_onward(left_over[-1], stages[len(left_over) :], 1.0)])
    best, cheapest = ways[0], np.inf
    for way in ways:
        path = _improved(now, stages, way)
        cost = _cost(now, stages, path)
        if cost < cheapest - ROUNDING * stages[0].state_sums[-1]:
            best, cheapest = path, cost
    return best


def _onward(now: Ends, stages: Sequence[KnownMigration], share: float) -> Path:
    """Return what `ssm` does step by step under a cap that lies so far between the smallest and the whole one."""
    way: Path = []
    for stage in stages:
        edge, keeps = np.concatenate(([0], now)), np.ones(now.size, dtype=np.bool_)
        cap = (stage.smallest + share * (stage.cap - stage.smallest)) * (1 + ROUNDING)
        count = min(stage.workers, stage.load.size)
        if now.size > count or np.diff(stage.load_sums[edge]).max() > cap:
            starts, _ = ssm_kernel.best_intervals(stage.load, stage.state, edge, keeps, cap, count)
            now = np.unique(np.append(starts[starts > 0], stage.load.size))
        way.append(now)
    return way


def _improved(now: Ends, stages: Sequence[KnownMigration], way: Path) -> Path:
    """Return a way on which no stretch gets cheaper when one partitioning takes its place."""
    way, is_better = list(way), True
    while is_better:
        is_better = False
        for length in STRETCHES:
            for i in range(len(stages) - length + 1):
                stretch, onward = stages[i : i + length], stages[i + length : i + length + 1]
                before, after = way[i - 1] if i else now, way[i + length : i + length + 1]
                new = _standing(before, stretch, onward, after)
                if new is None:
                    continue
                old_cost = _cost(before, [*stretch, *onward], [*way[i : i + length], *after])
                new_cost = _cost(before, [*stretch[:1], *onward], [new, *after])
                dust = ROUNDING * stretch[0].state_sums[-1]
                # One of the same cost is taken too where it is a single one: from there others may get cheaper.
                if new_cost < old_cost - dust or (length == 1 and new_cost <= old_cost):
                    way[i : i + length] = [new] * length
                    is_better |= bool(new_cost < old_cost - dust)
    return way


def _standing(
    before: Ends, stretch: Sequence[KnownMigration], onward: Sequence[KnownMigration], after: Path
) -> Ends | None:
    """Return the best intervals that need not move during a stretch of migrations; None where there are none."""
    first, bins = stretch[0], stretch[0].load.size
    left = np.maximum.reduce([stage.left for stage in stretch])
    count = min(bins, *(stage.workers for stage in stretch))
    needed, at = 0, bins
    while at > 0 and needed <= count and left[at] < at:
        needed, at = needed + 1, int(left[at])
    if at > 0 or needed > count:
        return None
    kept_before = lookahead_kernel.stays(first.state_sums, before, left)
    kept_after = lookahead_kernel.stays(onward[0].state_sums, after[0], left) if onward else np.zeros_like(kept_before)
    return lookahead_kernel.between(kept_before, kept_after, left, count)


def _cost(now: Ends, stages: Sequence[KnownMigration], way: Path) -> float:
    total = 0.0
    for stage, then in zip(stages, way, strict=True):
        total += float(stage.state_sums[-1]) - kept(stage.state_sums, now, then)
        now = then
    return total


def _plan(problem: Problem, ends: Ends, elapsed_ms: float) -> Plan:
    """Give the intervals to the workers so that the most state stays."""
    from scipy.optimize import linear_sum_assignment  # slow to import, and needed only here

    stays = problem.survivors
    begins = [0, *ends[:-1].tolist()]
    owner, place = np.array(problem.owner), {w: i for i, w in enumerate(stays)}
    overlap = np.zeros((len(stays), ends.size))
    for p, (begin, end) in enumerate(zip(begins, ends.tolist(), strict=True)):
        for w in set(owner[begin:end].tolist()) & place.keys():
            overlap[place[w], p] = problem.state_array[begin:end][owner[begin:end] == w].sum()
    rows, columns = linear_sum_assignment(overlap, maximize=True)
    keeper = {int(p): stays[w] for w, p in zip(rows, columns, strict=True) if overlap[w, p] > 0}
    pieces = [Piece(b, e, keeper.get(p), 1.0) for p, (b, e) in enumerate(zip(begins, ends.tolist(), strict=True))]
    target = target_of(problem, pieces)
    return Plan.of(problem, target.owner, target.workers, planner="clairvoyant", elapsed_ms=elapsed_ms)


def _best_rows(series: Sequence[int], stages: Sequence[KnownMigration], start: Ends, states: Sequence[Floats]) -> float:
    """Return the largest sum of bounds of rows of migrations that do not overlap."""
    best = [0.0] * (len(stages) + 1)
    lefts = [_left(stage.load_sums, stage.cap * SLACK) for stage in stages]
    bins = np.arange(states[0].size + 1)
    for s in range(len(stages)):
        if s:
            best[s] = max(best[s], best[s - 1])
            left = lefts[s - 1]
        else:
            left = np.concatenate(([0], np.repeat([0, *start[:-1]], np.diff([0, *start]))))
        smallest, workers = np.full(states[0].size, np.inf), series[s]
        for t in range(s + 1, min(len(stages), s + LONGEST_WINDOW) + 1):
            left = np.maximum(left, lefts[t - 1])
            smallest, workers = np.minimum(smallest, states[t - 1]), min(workers, series[t])
            sums = prefix_sums(smallest)
            gain = sums - sums[left]
            if s:
                held = np.zeros(bins.size)
                for _ in range(min(workers, smallest.size)):
                    held = np.maximum.accumulate(held[left] + gain)
                most = float(held[-1])
            else:
                pieces = np.maximum.reduceat(gain[1:], [0, *start[:-1]])
                most = float(np.sort(pieces)[::-1][:workers].sum())
            best[t] = max(best[t], best[s] + float(sums[-1]) - most)
    return max(best)
