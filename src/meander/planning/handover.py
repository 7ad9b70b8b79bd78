"""One step of Ls-Stream: which bins the straggler should hand to the least-loaded worker.

`Handover` is the model of sections IV-B and V-C of the paper: which choices of bins are allowed, and what each is
worth. `anneal` (Algorithm 1), `greedy` and `exhaustive` choose: indices into its bins, ascending, or None where they
find no choice that meets both (30) and (31). `shed` then does what (31) alone allows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from random import Random
from typing import NamedTuple

from meander.errors import TooLarge
from meander.measure.rates import mean_sojourn_s, service_per_s
from meander.pictures import many
from meander.planning.problem import ROUNDING
from meander.types import BinId, WorkerId

MOST_BINS = 20
"""The exhaustive choice looks at up to two to this power of subsets."""

TRIES = 4
"""How many bins a proposal may try to take in so that (30) holds again."""

UNMET = -3
"""What a choice that does not meet the conditions has settled: less than any that does."""


class Sums(NamedTuple):
    """What a bin, or a set of bins, amounts to.

    Attributes:
        load: resources it takes (eq. 11), or the load of the problem.
        work: computing load (eq. 9), or the same as `load`.
        rows: rows that come in, per second.
        tuples: what moves with it, card(SK): stored rows, or bytes of state.
    """

    load: float
    work: float
    rows: float
    tuples: float

    @classmethod
    def of(cls, parts: Iterable[Sums]) -> Sums:
        """Return the sums of these parts, each rounded once."""
        columns = list(zip(*parts, strict=True))
        return cls(*map(math.fsum, columns)) if columns else NOTHING


NOTHING = Sums(0.0, 0.0, 0.0, 0.0)


class Score(NamedTuple):
    """What a choice is worth; larger is better, and `settled` goes before `mif`.

    Attributes:
        settled: how many of the two workers come to a finite sojourn time, less those that lose it.
        mif: migration impact factor, (dR + lb) / card(SK) (eq. 25).
    """

    settled: int
    mif: float


@dataclass(frozen=True)
class Side:
    """One of the two workers, before the step.

    Attributes:
        worker: its id.
        sums: of all its bins, also of those that must stay.
        speed: work it can do per second.
        row_work: work of a mean row anywhere, for a worker that has no rows of its own.
    """

    worker: WorkerId
    sums: Sums
    speed: float
    row_work: float

    def sojourn_s(self, work: float, rows: float) -> float:
        """Return its mean sojourn time with this work and these rows per second; of one row if none come."""
        if rows <= 0:
            return self.row_work / self.speed if self.speed > 0 else math.inf
        return mean_sojourn_s(service_per_s(rows, work, self.speed), rows)


@dataclass(frozen=True)
class Handover:
    """The bins that may go from `source` to `target`, and how much has to.

    Attributes:
        source: the straggler.
        target: the least-loaded worker.
        bins: the bins to choose from.
        parts: what each of them amounts to.
        floor: the load of a choice must be above this: condition (30).
        ceiling: the load of a choice must be below this: condition (31).
        fair: the load that would bring the target up to the mean.
        least_tuples: what counts as moved where a choice has no tuples, so that mif stays finite.
    """

    source: Side
    target: Side
    bins: tuple[BinId, ...]
    parts: tuple[Sums, ...]
    floor: float
    ceiling: float
    fair: float
    least_tuples: float = 1.0

    def without_heavy_bins(self) -> Handover:
        """Return the same question without the bins that break (31) on their own."""
        light = [i for i, part in enumerate(self.parts) if part.load < self.ceiling]
        bins, parts = tuple(self.bins[i] for i in light), tuple(self.parts[i] for i in light)
        return Handover(self.source, self.target, bins, parts, self.floor, self.ceiling, self.fair, self.least_tuples)

    @cached_property
    def is_open(self) -> bool:
        """Whether there can be a choice that meets both conditions, by a quick test."""
        return self.floor < min(self.ceiling, math.fsum(part.load for part in self.parts))

    @cached_property
    def sojourns_s(self) -> tuple[float, float]:
        """Mean sojourn times at source and target before the step."""
        source, target = (side.sojourn_s(side.sums.work, side.sums.rows) for side in (self.source, self.target))
        return source, target

    def score(self, moved: Sums) -> Score:
        """Return what a choice that amounts to `moved` is worth.

        dR = 2 * (R_h - R'_h) is load and lb (eq. 24) is seconds; the paper adds them as they are, and so does
        this. Infinite sojourn times are left out of lb and counted in `settled` instead.
        """
        load, work, rows, tuples = moved
        _, source_work, source_rows, _ = self.source.sums
        _, target_work, target_rows, _ = self.target.sums
        left = source_rows - rows
        if left < source_rows * ROUNDING:  # what a difference of floats leaves behind is not a row
            left = 0.0
        before_s = self.sojourns_s
        after_s = (
            self.source.sojourn_s(source_work - work, left),
            self.target.sojourn_s(target_work + work, target_rows + rows),
        )
        settled, benefit_s = 0, before_s[0] - after_s[0] + before_s[1] - after_s[1]
        if not math.isfinite(benefit_s):
            settled = before_s.count(math.inf) - after_s.count(math.inf)
            benefit_s = sum(s for s in before_s if s < math.inf) - sum(s for s in after_s if s < math.inf)
        return Score(settled, (2 * load + benefit_s) / max(tuples, self.least_tuples))


def anneal(handover: Handover, rng: Random, start: float, end: float, eta: float) -> list[int] | None:
    """Return the best choice that Algorithm 1 comes across on its way from temperature `start` to `end`.

    It begins with the greedy choice, or with a random one within (31). A proposal flips a random bin and,
    where that breaks (31) or (30), sends random others out or in for it. As long as (30) does not hold, more
    load is better; from then on the score decides. Temperatures count in units of the mif at the start.
    """
    if not handover.is_open:
        return None
    walk = _Walk(handover, rng)
    scale = abs(handover.score(walk.sums).mif) or 1.0

    def value() -> Score:
        load = walk.sums.load
        if load >= handover.ceiling:
            return Score(UNMET, -math.inf)
        if load <= handover.floor:
            return Score(UNMET, load / handover.ceiling * scale)
        return handover.score(walk.sums)

    now = best = value()
    answer = walk.indices
    temperature = start
    while temperature > end:
        for _ in handover.parts:
            before = walk.sums
            walk.propose()
            new = value()
            if new > now or rng.random() < _acceptance(new, now, scale, temperature):
                walk.accept()
                now = new
                if now > best:
                    best, answer = now, walk.indices
            else:
                walk.reject(before)
        walk.sum_afresh()
        temperature *= eta
    return answer if best.settled > UNMET else None


def greedy(handover: Handover) -> list[int] | None:
    """Return the bins with the best mif of their own, within (31), until (30) holds."""
    if not handover.is_open:
        return None
    indices, load = _fill(handover, handover.ceiling, handover.floor)
    return indices if load > handover.floor else None


def exhaustive(handover: Handover) -> list[int] | None:
    """Return the choice with the highest score of all that meet (30) and (31).

    Raises:
        TooLarge: there are more than 20 bins to choose from.
    """
    parts, count = handover.parts, len(handover.parts)
    if not handover.is_open:
        return None
    if count > MOST_BINS:
        raise TooLarge(
            f"worker {handover.source.worker} has {many(count, 'bin')} to choose from, and the exhaustive choice "
            f"takes at most {MOST_BINS}; use choose='annealing'"
        )
    order = sorted(range(count), key=lambda i: -parts[i].load)
    rest = [math.fsum(parts[i].load for i in order[depth:]) for depth in range(count + 1)]
    best: Score | None = None
    answer: list[int] | None = None
    indices: list[int] = []

    def visit(depth: int, sums: Sums) -> None:
        nonlocal best, answer
        if depth == count:
            score = handover.score(sums) if sums.load > handover.floor else None
            if score is not None and (best is None or score > best):
                best, answer = score, sorted(indices)
            return
        if sums.load + rest[depth] <= handover.floor:
            return
        i = order[depth]
        if sums.load + parts[i].load < handover.ceiling:
            indices.append(i)
            a, b = sums, parts[i]
            visit(depth + 1, Sums(a.load + b.load, a.work + b.work, a.rows + b.rows, a.tuples + b.tuples))
            indices.pop()
        visit(depth + 1, sums)

    visit(0, NOTHING)
    return answer


def shed(handover: Handover) -> list[int] | None:
    """Return bins that make the straggler lighter, though not as light as (30) wants; None where none can go.

    Bins with the best mif of their own go first, as many as bring the target up to the mean and no further.
    Where none is that light, the single best one goes. (31) holds either way.
    """
    indices, load = _fill(handover, min(handover.ceiling, handover.fair * (1 + ROUNDING)), math.inf)
    if load > 0:
        return indices
    heavy = [i for i, part in enumerate(handover.parts) if part.load > 0]
    return [max(heavy, key=lambda i: handover.score(handover.parts[i]))] if heavy else None


def _acceptance(new: Score, now: Score, scale: float, temperature: float) -> float:
    """Return how likely a choice that is not better takes the place of the present one (eq. 32)."""
    if new.settled != now.settled:
        return 0.0
    return math.exp(min(0.0, (new.mif - now.mif) / scale / temperature))


def _fill(handover: Handover, limit: float, enough: float) -> tuple[list[int], float]:
    """Take bins, best mif first, that keep the load below `limit`, until it is above `enough`."""
    indices, load = [], 0.0
    order = sorted(range(len(handover.parts)), key=lambda i: handover.score(handover.parts[i]), reverse=True)
    for i in order:
        if load > enough:
            break
        if handover.parts[i].load > 0 and load + handover.parts[i].load < limit:
            indices.append(i)
            load += handover.parts[i].load
    return sorted(indices), load


class _Walk:
    """A choice of bins, and what is proposed to change about it.

    `order` holds, one after the other, the chosen bins that stay, those proposed to go out, those proposed to
    come in, and the rest. So every change is a swap, and a proposal that is rejected leaves nothing to undo.
    """

    def __init__(self, handover: Handover, rng: Random) -> None:
        self.parts, self.floor, self.ceiling = handover.parts, handover.floor, handover.ceiling
        self.random = rng.random
        self.order = rng.sample(range(len(self.parts)), len(self.parts))
        self.size = self.kept = self.added = 0
        self.sums = NOTHING
        first = greedy(handover)
        if first is None:
            self._fill_up(tries=len(self.order))
        else:
            members = set(first)
            self.order.sort(key=lambda i: i not in members)
            self.added = len(first)
        self.accept()
        self.sum_afresh()

    @property
    def indices(self) -> list[int]:
        return sorted(self.order[: self.size])

    def sum_afresh(self) -> None:
        """Forget the rounding errors of many small changes."""
        self.sums = Sums.of(self.parts[i] for i in self.order[: self.size])

    def propose(self) -> None:
        at = int(self.random() * len(self.order))
        if at < self.size:
            self._send_out(at)
        else:
            self._take_in(at)
            if self.kept and self.random() < 0.5:
                self._send_out(int(self.random() * self.kept))
            while self.kept and self.sums.load >= self.ceiling:
                self._send_out(int(self.random() * self.kept))
        self._fill_up(tries=TRIES)

    def accept(self) -> None:
        kept, size, end = self.kept, self.size, self.size + self.added
        self.order[kept:end] = self.order[size:end] + self.order[kept:size]
        self.size = self.kept = kept + self.added
        self.added = 0

    def reject(self, before: Sums) -> None:
        self.kept, self.added, self.sums = self.size, 0, before

    def _fill_up(self, tries: int) -> None:
        """Take in random bins within (31) until (30) holds, or there were enough tries."""
        for _ in range(tries):
            first = self.size + self.added
            if self.sums.load > self.floor or first == len(self.order):
                return
            at = first + int(self.random() * (len(self.order) - first))
            if self.sums.load + self.parts[self.order[at]].load < self.ceiling:
                self._take_in(at)

    def _take_in(self, at: int) -> None:
        order, to = self.order, self.size + self.added
        order[at], order[to] = order[to], order[at]
        self.added += 1
        a, b = self.sums, self.parts[order[to]]
        self.sums = Sums(a.load + b.load, a.work + b.work, a.rows + b.rows, a.tuples + b.tuples)

    def _send_out(self, at: int) -> None:
        order, to = self.order, self.kept - 1
        order[at], order[to] = order[to], order[at]
        self.kept = to
        a, b = self.sums, self.parts[order[to]]
        self.sums = Sums(a.load - b.load, a.work - b.work, a.rows - b.rows, a.tuples - b.tuples)
