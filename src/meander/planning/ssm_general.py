"""The optimal contiguous assignment where `ssm_kernel` does not reach: pins, unequal workers, scattered owners.

Each owner may keep one interval only. With a scattered present map that rule ties far-apart bins together, and the
problem becomes NP-hard. It is solved here by relaxing the rule and tightening it only where it is broken:

- the table remembers who is used only along a stretch of bins per owner (at first the owner's longest run);
- a use of an owner has a price; raising the price of those used twice and lowering that of those not used
  (a subgradient) lowers the upper bound that the relaxed answer is;
- the boundaries of each relaxed answer, with keepers matched anew, give a true assignment: a lower bound;
- where the bounds meet, the assignment is optimal. Where they do not after a while, the stretch of an owner that was
  used twice grows to cover both uses. With every stretch at full length the table is exact, so it ends.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from meander.errors import TooLarge
from meander.pictures import many
from meander.planning import ssm_general_kernel
from meander.planning.intervals import Piece, infeasible, least_intervals, no_intervals, prefix_sums
from meander.planning.problem import ROUNDING, Problem
from meander.types import WorkerId, runs

MOST_CELLS = 20_000_000
"""Cells of one table, at 18 bytes each."""

MOST_SLOTS = 12
"""Owners remembered at one boundary; each doubles the table."""

MOST_WORK = 4_000_000_000
"""Cells times window, over all tables of a search: about half a minute."""

PATIENCE = 12
"""Tables without a better upper bound before the memory grows."""

NOBODY = -1


def solve(problem: Problem) -> list[Piece]:
    """Return the intervals of an optimal contiguous assignment, from left to right, one for each worker.

    Raises:
        Infeasible: no contiguous assignment keeps the cap.
        TooLarge: the exact answer would take too long.
    """
    best: list[Piece] | None = None
    best_gain = -math.inf
    for classes in _class_counts(problem):
        search = _Search.of(problem, classes)
        if search.least_tau() is None:
            continue
        gain, pieces = search.run(best_gain)
        if pieces is not None and gain > best_gain:
            idle = Counter(classes) - Counter(piece.capacity for piece in pieces)
            empty = [Piece(problem.bins, problem.bins, None, capacity) for capacity in sorted(idle.elements())]
            best, best_gain = [*pieces, *empty], gain
    if best is None:
        if problem.has_equal_capacities and not problem.pinned:
            raise no_intervals(problem)
        raise infeasible(problem, _largest_cap(problem), *_smallest_tau(problem))
    return best


def _class_counts(problem: Problem) -> Iterator[dict[float, int]]:
    """Every way to say how many workers of each capacity there will be: one, unless the planner chooses who leaves."""
    there = Counter(problem.capacity(w) for w in problem.candidates)
    holders = Counter(problem.capacity(w) for w in problem.holders)
    speeds = sorted(there)
    if not problem.planner_chooses or len(speeds) == 1:
        yield {c: min(there[c], problem.wanted) for c in speeds}
        return
    ranges = [range(holders[c], there[c] + 1) for c in speeds]
    if math.prod(map(len, ranges)) > 10_000:
        raise TooLarge(
            f"{len(speeds)} different capacities leave too many ways to choose who leaves; "
            "name the workers that leave in must_leave, or use planner 'free'"
        )
    for counts in itertools.product(*ranges):
        if sum(counts) == problem.wanted:
            yield {c: k for c, k in zip(speeds, counts, strict=True) if k}


@dataclass
class _Search:
    """One table's fixed inputs, and the search over memories and prices."""

    problem: Problem
    speeds: list[float]
    owners: list[WorkerId]
    load: NDArray[np.float64]
    owner: NDArray[np.int64]
    pinned: NDArray[np.bool_]
    pins: NDArray[np.int64]
    class_of: NDArray[np.int64]
    cap: NDArray[np.float64]
    count: NDArray[np.int64]
    stride: NDArray[np.int64]
    spent: NDArray[np.int64]
    rest: NDArray[np.int64]
    work: int = 0

    @classmethod
    def of(cls, problem: Problem, classes: dict[float, int]) -> _Search:
        speeds = sorted(classes)
        count = np.array([classes[c] for c in speeds])
        total = math.fsum(c * k for c, k in classes.items())
        per_unit = (1 + problem.tau) * problem.total_load / total
        cap = np.array([per_unit * c * (1 + ROUNDING) for c in speeds])
        size = math.prod((count + 1).tolist())
        if (problem.bins + 1) * size > MOST_CELLS:
            raise _too_many_capacities(problem, len(speeds))
        stride = np.cumprod([1, *(count[:-1] + 1).tolist()])
        spent = np.array([sum(digits) for digits in itertools.product(*(range(k + 1) for k in count[::-1]))])
        kept = set(problem.survivors) & set(problem.owner)
        owners = sorted(w for w in kept if problem.capacity(w) in classes)
        index = {w: i for i, w in enumerate(owners)}
        pinned = np.zeros(problem.bins, dtype=np.bool_)
        pinned[list(problem.pinned)] = True
        owner = np.array([index.get(w, NOBODY) for w in problem.owner])
        load = prefix_sums(problem.load_array)
        return cls(
            problem=problem,
            speeds=speeds,
            owners=owners,
            load=load,
            owner=owner,
            pinned=pinned,
            pins=np.bincount(owner[pinned], minlength=len(owners)),
            class_of=np.array([speeds.index(problem.capacity(w)) for w in owners], dtype=np.int64),
            cap=cap,
            count=count,
            stride=stride,
            spent=spent,
            rest=least_intervals(load, float(cap.max())),
        )

    def least_tau(self) -> float | None:
        """The tau that some contiguous assignment within the cap needs, whatever it gains; None if there is none."""
        only_pinned = replace(self, owner=np.where(self.pinned, self.owner, NOBODY))
        forgetful = _OwnerMemory.none(self.problem.bins, len(self.owners))
        value, pieces = only_pinned.table(forgetful, np.zeros(len(self.owners)))
        if value == -math.inf:
            return None
        speed = math.fsum(c * k for c, k in zip(self.speeds, self.count.tolist(), strict=True))
        heights = [float(self.load[p.stop] - self.load[p.start]) / p.capacity for p in pieces]
        return max(heights) * speed / self.problem.total_load - 1 if self.problem.total_load else 0.0

    def run(self, already: float) -> tuple[float, list[Piece] | None]:
        """Return the best gain and its pieces, or nothing if no answer gains more than `already`."""
        memory = _OwnerMemory.of_longest_runs(self.owner, len(self.owners))
        price = np.zeros(len(self.owners))
        lower, best = already, None
        enough = self._enough()
        while True:
            upper, stale, scale = math.inf, 0, 1.0
            # Without prices first: an answer that uses no owner twice is then optimal as it stands.
            trials = [np.zeros(len(self.owners)), price] if price.any() else [price]
            while stale < PATIENCE:
                price = trials.pop(0) if trials else price
                bound, relaxed = self.table(memory, price)
                bound += float(price.sum())
                gain, pieces = self._true_answer(relaxed)
                if gain > lower:
                    lower, best = gain, pieces
                uses = self._uses(relaxed)
                if not price.any():
                    unpriced = relaxed
                if bound - lower <= enough or (not price.any() and uses.max(initial=0) <= 1):
                    return lower, best
                if bound < upper - 1e-12 * abs(upper):
                    upper, stale = bound, 0
                else:
                    stale, scale = stale + 1, scale * 0.8
                if not trials:
                    slope = uses - 1
                    step = scale * (bound - lower) / max(1, int((slope * slope).sum()))
                    price = np.maximum(0.0, price + step * slope)
            # The unpriced answer uses an owner twice, else it would have been the last; so the memory always grows.
            memory.grow(relaxed, self.owners)
            memory.grow(unpriced, self.owners)

    def table(self, memory: _OwnerMemory, price: NDArray[np.float64]) -> tuple[float, list[Piece]]:
        """Solve the relaxed problem: its value after prices, and its pieces."""
        held, slot = memory.slots()
        cells = (self.problem.bins + 1) * self.spent.size * 2 ** held.shape[1]
        window = 1 + int((np.arange(self.load.size) - self._left_ends()).mean())
        self.work += cells * window
        if held.shape[1] > MOST_SLOTS or cells > MOST_CELLS or self.work > MOST_WORK:
            raise self._too_large()
        best, lefts, keepers, masks = ssm_general_kernel.fill(
            self.load,
            self.problem.state_array,
            self.owner,
            self.pinned,
            self.pins,
            self.class_of,
            self.cap,
            self.count,
            self.stride,
            self.spent,
            self.rest,
            held,
            slot,
            price,
        )
        x, pieces = self.problem.bins, list[Piece]()
        v, mask = np.unravel_index(int(best[x].argmax()), best[x].shape)
        value = float(best[x, v, mask])
        while x > 0 and value > -math.inf:
            start, who = int(lefts[x, v, mask]), int(keepers[x, v, mask])
            group = int(self.class_of[who]) if who >= 0 else NOBODY - 1 - who
            pieces.append(Piece(start, x, self.owners[who] if who >= 0 else None, self.speeds[group]))
            x, v, mask = start, v - self.stride[group], masks[x, v, mask]
        return value, pieces[::-1]

    def _true_answer(self, relaxed: list[Piece]) -> tuple[float, list[Piece]]:
        """Keep the boundaries and capacities of a relaxed answer and match each owner to one piece at most."""
        from scipy.optimize import linear_sum_assignment  # slow to import, and rarely needed

        state = self.problem.state_array
        gain = np.zeros((len(self.owners), len(relaxed)))
        forced = 1.0 + float(state.sum())
        for p, piece in enumerate(relaxed):
            inside = slice(piece.start, piece.stop)
            whose = self.owner[inside]
            gain[:, p] = np.bincount(whose[whose >= 0], state[inside][whose >= 0], minlength=len(self.owners))
            gain[:, p] += forced * np.bincount(self.owner[inside][self.pinned[inside]], minlength=len(self.owners))
            gain[[self.problem.capacity(w) != piece.capacity for w in self.owners], p] = 0.0
        rows, columns = linear_sum_assignment(gain, maximize=True)
        keeper = {int(p): self.owners[w] for w, p in zip(rows, columns, strict=True) if gain[w, p] > 0}
        total = math.fsum(gain[w, p] for w, p in zip(rows, columns, strict=True)) - forced * int(self.pinned.sum())
        return total, [piece._replace(keeper=keeper.get(p)) for p, piece in enumerate(relaxed)]

    def _uses(self, pieces: list[Piece]) -> NDArray[np.int64]:
        kept = Counter(piece.keeper for piece in pieces)
        return np.array([kept[w] for w in self.owners], dtype=np.int64)

    def _enough(self) -> float:
        """How near the bounds must come: whole numbers cannot differ by less than their common divisor."""
        state = self.problem.state
        if all(isinstance(size, int) for size in state) and sum(state) < 2**52:
            return 0.999 * math.gcd(*map(int, state))
        return 1e-12 * math.fsum(state)

    def _left_ends(self) -> NDArray[np.int64]:
        """For each boundary, how far left an interval that ends there may begin."""
        return np.asarray(np.searchsorted(self.load, self.load - self.cap.max(), side="left"))

    def _too_large(self) -> TooLarge:
        if self.problem.is_contiguous:
            return _too_many_capacities(self.problem, len(self.speeds))
        return TooLarge(
            f"the present map scatters {len(self.owners)} owners over {self.problem.bins} bins too much for an exact "
            "contiguous answer in reasonable time; use planner 'free', which moves fewer bytes anyway"
        )


@dataclass
class _OwnerMemory:
    """Along which boundaries the table remembers that an owner is used: first[w] <= x < last[w]."""

    bins: int
    first: list[int]
    last: list[int]

    @classmethod
    def none(cls, bins: int, owners: int) -> _OwnerMemory:
        return cls(bins, [0] * owners, [0] * owners)

    @classmethod
    def of_longest_runs(cls, owner: NDArray[np.int64], owners: int) -> _OwnerMemory:
        memory = cls.none(owner.size, owners)
        for start, stop, w in runs([WorkerId(int(w)) for w in owner]):
            if w != NOBODY and stop - start > memory.last[w] - memory.first[w] + 1:
                memory.first[w], memory.last[w] = start + 1, stop
        return memory

    def grow(self, pieces: list[Piece], owners: list[WorkerId]) -> None:
        """Make each owner that keeps two of these pieces remembered from the one to the other."""
        index = {w: i for i, w in enumerate(owners)}
        ends: dict[int, int] = {}
        for piece in pieces:
            if piece.keeper is None:
                continue
            w = index[piece.keeper]
            if w in ends:
                low, high = ends[w], piece.start + 1
                if self.first[w] < self.last[w]:
                    low, high = min(low, self.first[w]), max(high, self.last[w])
                self.first[w], self.last[w] = low, high
            ends[w] = piece.stop

    def slots(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Give stretches that overlap different slots: (owner by boundary and slot, slot by owner)."""
        slot = np.zeros(len(self.first), dtype=np.int64)
        free_from: list[int] = []
        for w in sorted(range(len(self.first)), key=lambda w: (self.first[w], w)):
            if self.first[w] >= self.last[w]:
                continue
            free = next((s for s, x in enumerate(free_from) if x <= self.first[w]), len(free_from))
            if free == len(free_from):
                free_from.append(0)
            slot[w], free_from[free] = free, self.last[w]
        held = np.full((self.bins + 1, max(1, len(free_from))), NOBODY)
        for w in range(len(self.first)):
            held[self.first[w] : self.last[w], slot[w]] = w
        return held, slot


def _too_many_capacities(problem: Problem, different: int) -> TooLarge:
    return TooLarge(
        f"{different} different capacities among {problem.wanted} workers and {problem.bins} bins are too many for an "
        "exact contiguous answer in reasonable time; round the capacities to fewer values, or use planner 'free'"
    )


def _largest_cap(problem: Problem) -> float:
    fastest = sorted((problem.capacity(w) for w in problem.candidates), reverse=True)
    speeds = fastest[: problem.wanted]
    return (1 + problem.tau) * problem.total_load * fastest[0] / math.fsum(speeds)


def _smallest_tau(problem: Problem) -> tuple[float | None, str]:
    """Return the smallest tau with an answer, or None and the reason why there is none."""

    def reachable(tau: float) -> float:
        """The tau needed by the best assignment found at this tau; infinite if there is none."""
        wider = replace(problem, tau=tau)
        needed = [_Search.of(wider, classes).least_tau() for classes in _class_counts(wider)]
        return min((each for each in needed if each is not None), default=math.inf)

    speeds = [problem.capacity(w) for w in problem.candidates]
    everything, slowest = math.fsum(speeds), min(speeds)
    low, high = problem.tau, reachable(max(2 * problem.tau + 1, everything / slowest))
    if math.isinf(high):
        return None, _pins_in_the_way(problem)
    best = high
    while high - low > ROUNDING * (1 + high):
        middle = (low + high) / 2
        reached = reachable(middle)
        low, high = (middle, high) if math.isinf(reached) else (low, min(middle, reached))
        best = min(best, reached)
    return best, ""


def _pins_in_the_way(problem: Problem) -> str:
    """Name two bins pinned to one worker with a bin pinned to another between them, or say that workers run out."""
    order = list(problem.pinned)
    seen: dict[WorkerId, int] = {}
    for before, j in zip([None, *order], order, strict=False):
        w = problem.owner[j]
        if w in seen and before is not None and problem.owner[before] != w:
            return (
                f"bins {seen[w]} and {j} are pinned to worker {w} and bin {before} between them to worker "
                f"{problem.owner[before]}, so no assignment by intervals exists"
            )
        seen[w] = j
    bins, workers = many(problem.bins, "bin"), many(problem.wanted, "worker")
    return f"the pinned bins leave no assignment of {bins} by intervals to {workers}"
