"""Ls-Stream's planner: from the straggler to the least-loaded worker, by migration impact factor.

Section V-C and Algorithm 1 of the paper, with its errors corrected: (30) and (31) both have to hold, the start
is not empty, and the best choice that was seen is kept. One step is a `Handover`; this module does all steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from random import Random

from meander.errors import InvalidOption
from meander.measure.load import spread
from meander.options import positive, whole
from meander.planning.handover import Handover, Side, Sums, anneal, exhaustive, greedy, shed
from meander.planning.planner import Target, planner
from meander.planning.problem import LARGEST_NUMBER, ROUNDING, Problem
from meander.planning.workload import Workload
from meander.types import BinId, WorkerId

Choice = Callable[[Handover], list[int] | None]

MOST_SWEEPS = 10_000
"""Rounds of cooling down in one step."""


@planner(keeps_cap=False)
def annealing(
    problem: Problem,
    *,
    stored: Sequence[float] | None = None,
    queued: Sequence[float] | None = None,
    computing: Sequence[float] | None = None,
    gamma: float = 0.5,
    alpha: float = 1.0,
    arrivals: Sequence[float] | None = None,
    service: Mapping[int, float] | float | None = None,
    T: float = 1.0,  # noqa: N803 - the paper's name, and the name of the option
    T_min: float = 0.001,  # noqa: N803 - likewise
    eta: float = 0.9,
    seed: int = 0,
    choose: str = "annealing",
) -> Target:
    """Hand bins from the straggler to the least-loaded worker, step by step, until the loads differ little.

    The measure of balance is not tau but the load imbalance degree LI, over everyone who is there afterwards.
    Where LI <= alpha and nobody comes or goes, nothing moves.

    Args:
        problem: the question. Loads are compared per unit of capacity.
        stored: rows each bin has stored.
        queued: rows that wait at each bin. If both are given, the load of a bin is
            gamma * (stored + queued) + (1 - gamma) * stored * queued, else that of the problem.
        computing: the part of each bin's load that keeps a worker busy, where it is not that product: both sides of a
            join are stored and wait. If not given, stored * queued, else the load.
        gamma: weight of memory against computing, from 0 to 1.
        alpha: the LI to reach. Among n equal workers LI is at most n - 1, so a larger alpha never fires.
        arrivals: rows per second that come to each bin; if not given `queued`, else the load.
        service: rows per second that each worker serves with the bins it has now, or one number for a worker
            of capacity 1. A worker that is not named is, for its capacity, as fast as those that are. If not
            given, speed goes with capacity and the busiest worker is 90 % busy.
        T: temperature at the start, in units of the mif of the first choice.
        T_min: temperature at the end.
        eta: factor from one temperature to the next, between 0 and 1.
        seed: start of the random numbers; the same seed gives the same plan.
        choose: "annealing" (Algorithm 1), "greedy", or "exhaustive" (at most 20 bins to choose from).

    Raises:
        InvalidOption: the message names the option.
        TooLarge: the exhaustive choice has more than 20 bins to choose from.

    **A step.** The straggler h has the highest load per capacity, the least-loaded worker l the lowest. A set
    SK of bins goes from h to l that leaves h below mean * (1 + alpha), condition (30), and not below l,
    condition (31), where equal loads are fine as in (27). Of such sets it has the highest mif = (dR + lb) /
    card(SK): load and seconds of sojourn time that are won, per tuple that moves (stored rows if given, else
    bytes of state). Where h is within alpha and only l lags behind, l has to come above mean * (1 - alpha) in
    the place of (30). Where no choice meets both, (31) alone counts: h gives what brings l up to the mean, or
    one bin if none is that light, and further steps follow. A straggler that can give nothing, because its
    bins are pinned or too heavy, is passed over for the next worker. Steps end when LI <= alpha, or when
    nobody outside alpha can be helped. No step makes LI larger.

    **Sojourn times.** A worker is an M/M/1 queue: rows come at rate E and are served at rate mu, rows per
    busy time. Busy time goes with the computing load C, so a step that changes E and C to E' and C' changes mu
    to mu * (E' / E) * (C / C'). Where mu <= E the sojourn time is infinite, and a choice that makes it finite
    beats all that do not.

    **Workers.** Where the planner chooses who leaves, it is those with the fewest bytes of state, of equals
    the highest ids, never an owner of pinned bins. The bins of all who leave go first, the heaviest ahead,
    each to the worker whose load per capacity is then the lowest. A new worker gets bins even where LI <= alpha.
    """
    alpha = positive("alpha", alpha)
    choice = _choice(choose, T, T_min, eta, seed)
    workload = Workload.of(problem, stored, queued, computing, gamma, arrivals, service)
    workers = _workers_afterwards(problem)
    balance = _Balance(problem, workload, workers, alpha)
    balance.empty_leavers()
    while balance.step(choice):
        pass
    return Target(balance.owner, workers)


class _Balance:
    """Who owns what so far, and what that means for each worker."""

    def __init__(self, problem: Problem, workload: Workload, workers: list[WorkerId], alpha: float) -> None:
        self.problem, self.workload, self.workers, self.alpha = problem, workload, workers, alpha
        self.pinned = frozenset(problem.pinned)
        self.capacity = {w: problem.capacity(w) for w in workers}
        self.mean = math.fsum(part.load for part in workload.parts) / math.fsum(self.capacity.values())
        self.owner = list(problem.owner)
        self.bins: dict[WorkerId, list[BinId]] = {w: [] for w in workers}
        self.homeless: list[BinId] = []
        for j, w in enumerate(self.owner):
            self.bins.get(w, self.homeless).append(BinId(j))
        self.sides = {w: self._side(w) for w in workers}

    def empty_leavers(self) -> None:
        """Give bins of leaving workers to the worker that is then least loaded; of equals, the one with least state."""
        load = {w: self.sides[w].sums.load for w in self.workers}
        state = {w: math.fsum(self.problem.state[j] for j in self.bins[w]) for w in self.workers}
        for j in sorted(self.homeless, key=lambda j: (-self.workload.parts[j].load, j)):
            more = self.workload.parts[j].load
            to = min(self.workers, key=lambda w: ((load[w] + more) / self.capacity[w], state[w], w))
            load[to] += more
            state[to] += self.problem.state[j]
            self.owner[j] = to
            self.bins[to].append(j)
        self.homeless = []
        self.sides = {w: self._side(w) for w in self.workers}

    def step(self, choice: Choice) -> bool:
        """Hand bins from one worker to another; False where there is no need or no way."""
        loads = [self.sides[w].sums.load for w in self.workers]
        use = {w: load / self.capacity[w] for w, load in zip(self.workers, loads, strict=True)}
        # Of workers with equal load per capacity, the one with more capacity can take whatever the others can.
        ascending = sorted(self.workers, key=lambda w: (use[w], -self.capacity[w], w))
        targets = [w for w in ascending if w in self.problem.newcomers and not self.bins[w]][:1]
        if max(spread(loads, [*self.capacity.values()])) > self.alpha:
            targets.insert(0, ascending[0])
        for target in targets:
            for source in sorted(self.workers, key=lambda w: (-use[w], w)):
                handover = self._handover(source, target)
                indices = choice(handover) or shed(handover) if handover else None
                if handover and indices:
                    self._move([handover.bins[i] for i in indices], source, target)
                    return True
        return False

    def _handover(self, source: WorkerId, target: WorkerId) -> Handover | None:
        """Return the question of a step between these two; None where it would not help."""
        mean, alpha, c, d = self.mean, self.alpha, self.capacity[source], self.capacity[target]
        high, low = self.sides[source].sums.load, self.sides[target].sums.load
        # Equal loads are allowed up to rounding. Without the margin, bins could move back and forth without end.
        margin = ROUNDING * mean
        if high / c - low / d <= 2 * margin:
            return None
        ceiling = (high / c - low / d + margin) / (1 / c + 1 / d)
        floor = high - mean * (1 + alpha) * c
        if floor <= 0:
            floor = mean * (1 - alpha) * d - low
        if floor <= 0:
            if self.bins[target] or target not in self.problem.newcomers:
                return None
            floor = ceiling / 2  # the first bins of a new worker
        free = [j for j in self.bins[source] if j not in self.pinned]
        return Handover(
            self.sides[source],
            self.sides[target],
            tuple(free),
            tuple(self.workload.parts[j] for j in free),
            floor,
            ceiling,
            mean * d - low,
            self.workload.least_tuples,
        ).without_heavy_bins()

    def _move(self, moved: list[BinId], source: WorkerId, target: WorkerId) -> None:
        for j in moved:
            self.owner[j] = target
        self.bins[source] = [j for j in self.bins[source] if self.owner[j] == source]
        self.bins[target] += moved
        self.sides[source], self.sides[target] = self._side(source), self._side(target)

    def _side(self, worker: WorkerId) -> Side:
        # Summed afresh, never updated: rounding errors must not add up.
        self.bins[worker].sort()
        sums = Sums.of(self.workload.parts[j] for j in self.bins[worker])
        return Side(worker, sums, self.workload.speeds[worker], self.workload.row_work)


def _workers_afterwards(problem: Problem) -> list[WorkerId]:
    """Everyone who is there afterwards; where the planner chooses, the owners of the least state leave."""
    state = dict.fromkeys(problem.survivors, 0.0)
    for worker, size in zip(problem.owner, problem.state, strict=True):
        if worker in state:
            state[worker] += size
    holders = {problem.owner[j] for j in problem.pinned}
    stay = sorted(problem.survivors, key=lambda w: (w not in holders, -state[w], w))[: problem.wanted]
    return sorted((*stay, *problem.newcomers))


def _choice(choose: str, start: float, end: float, eta: float, seed: int) -> Choice:
    start, end, eta = positive("T", start), positive("T_min", end), positive("eta", eta)
    if end < 1 / LARGEST_NUMBER:
        raise InvalidOption(f"T_min is {end:g}; it must be at least {1 / LARGEST_NUMBER:g}, such as 0.001")
    if start <= end:
        raise InvalidOption(f"T is {start}; it must be above T_min, which is {end}")
    if eta >= 1:
        raise InvalidOption(f"eta is {eta}; it must lie between 0 and 1, such as 0.9")
    if not (sweeps := (math.log(end) - math.log(start)) / math.log(eta)) <= MOST_SWEEPS:
        raise InvalidOption(
            f"from T {start:g} to T_min {end:g} by eta {eta:g} are {sweeps:.2g} sweeps, more than {MOST_SWEEPS}; "
            "raise T_min or lower eta"
        )
    rng = Random(whole("seed", seed, 0))
    choices: dict[str, Choice] = {
        "annealing": lambda handover: anneal(handover, rng, start, end, eta),
        "greedy": greedy,
        "exhaustive": exhaustive,
    }
    if not isinstance(choose, str) or choose not in choices:
        raise InvalidOption(f"choose is {choose!r}; it must be one of {', '.join(choices)}")
    return choices[choose]
