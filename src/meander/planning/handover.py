"""One step of Ls-Stream, as a question: which bins the straggler should hand to the least-loaded worker.

The model of sections IV-B and V-C of the paper: which choices of bins are allowed, and what each is worth.
How to choose is in `handover_choice`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from meander.measure.sojourn import mean_sojourn_s, service_per_s
from meander.planning.problem import ROUNDING
from meander.types import BinId, WorkerId


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
