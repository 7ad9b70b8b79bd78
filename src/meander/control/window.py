"""What was counted in the last batches, and what a planner is told of it: Ls-Stream's load monitoring.

Bins carry their own numbers: what a batch counted of a bin counts whoever owned it. Only the speed of a worker is
measured with the bins it had.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby
from typing import Any, Literal, TypeAlias

import numpy as np

from meander.errors import InvalidOption
from meander.measure.load import Floats, Resources, by_side, load_imbalance, per_bin, sum_by_worker
from meander.measure.rates import mean_sojourn_s, service_per_s, steady_mean
from meander.options import amount, listed, positive, worker_id
from meander.pictures import many
from meander.types import BinId, WorkerId

Gamma: TypeAlias = float | Literal["measured"] | None
"""Weight of memory against computing: a number, by what was measured, or the usual one."""

MEASURED = "measured"
"""The gamma that is worked out anew for every look."""


@dataclass(frozen=True, eq=False)
class Sample:
    """What was counted in one batch.

    Args:
        batch: its number.
        interval_s: the time it stands for, in seconds: from the batch before to this one.
        stored: rows each bin had stored when it came, by side: two sides of a join, one of any other operator.
        queued: rows of each bin that looked for a match in this batch, by side.
        rows: rows of each bin in this batch.
        busy_s: how long each worker was busy with this batch; a worker that is not named was idle.
        owner: who owned each bin.
        backlog: rows of each bin that still wait, of all sides. They are taken to be of the sides that the bin's rows
            of this batch are of.
    """

    batch: int
    interval_s: float
    stored: tuple[Floats, ...]
    queued: tuple[Floats, ...]
    rows: Floats
    busy_s: Mapping[WorkerId, float]
    owner: Sequence[int]
    backlog: Floats | None = None

    def __post_init__(self) -> None:
        stored, queued = by_side(self.stored, self.queued)
        bins = len(stored[0])
        owners = listed("owner", self.owner)
        known = {w: WorkerId(worker_id(f"the owner of bin {owners.index(w)}", w)) for w in dict.fromkeys(owners)}
        owner = tuple(known[w] for w in owners)
        if len(owner) != bins or not bins:
            raise InvalidOption(f"there are {many(len(owner), 'owner')} but {many(bins, 'bin')}; give one for each")
        fixed = {
            "interval_s": float(positive("interval_s", self.interval_s)),
            "stored": stored,
            "queued": queued,
            "rows": per_bin("rows", self.rows, bins),
            "busy_s": {w: float(amount(f"busy_s of worker {w}", s)) for w, s in sorted(self.busy_s.items())},
            "owner": owner,
            "backlog": None if self.backlog is None else per_bin("backlog", self.backlog, bins),
        }
        for name, value in fixed.items():
            object.__setattr__(self, name, value)

    @property
    def waiting(self) -> tuple[Floats, ...]:
        """Rows of each bin that queue, by side: those of this batch and the backlog."""
        if self.backlog is None:
            return self.queued
        both = sum(self.queued, np.zeros(len(self.rows)))
        even = np.full(len(self.rows), 1 / len(self.queued))
        shares = (np.divide(side, both, out=even.copy(), where=both > 0) for side in self.queued)
        return tuple(side + self.backlog * share for side, share in zip(self.queued, shares, strict=True))


@dataclass(frozen=True, eq=False)
class LoadWindow:
    """How bins and workers do over a window of batches: what the planner is given.

    Attributes:
        owner: who owns each bin, in the newest batch.
        workers: everyone who is there, with or without bins, ascending.
        load: what each bin asks of its worker (eq. 11).
        stored: rows each bin has stored, of all sides, in the newest batch: it is a level, not a rate.
        computing: computing load of each bin (eq. 9).
        arrivals: rows per second of each bin.
        busy_per_s: seconds of work per second, of all workers together.
        service: rows per second each worker can serve, mu. Empty where nobody was busy yet.
    """

    owner: tuple[WorkerId, ...]
    workers: tuple[WorkerId, ...]
    load: Floats
    stored: Floats
    computing: Floats
    arrivals: Floats
    busy_per_s: float
    service: Mapping[WorkerId, float] = field(default_factory=dict)

    @classmethod
    def of(cls, samples: Sequence[Sample], workers: Sequence[int] = (), gamma: Gamma = None) -> LoadWindow:
        """Put together what these batches, the oldest first, have counted.

        Args:
            samples: one for each batch of the window.
            workers: who is there. Whoever owns bins is, also if not named.
            gamma: weight of memory against computing; see `Resources`. "measured" is what fits the busy times best.
        """
        if not samples:
            raise InvalidOption("there is no batch to look at; note one first")
        newest = samples[-1]
        sides = [each.waiting for each in samples]
        queued = tuple(steady_mean([waiting[side] for waiting in sides]) for side in range(len(newest.stored)))
        weight = measured_gamma(samples) if isinstance(gamma, str) else gamma
        resources = Resources(newest.stored, queued, weight)
        bare = cls(
            owner=tuple(map(WorkerId, newest.owner)),
            workers=tuple(sorted({WorkerId(worker_id("a worker", w)) for w in (*workers, *newest.owner)})),
            load=resources.load,
            stored=sum(newest.stored, np.zeros(resources.bins)),
            computing=resources.computing,
            arrivals=steady_mean([each.rows / each.interval_s for each in samples]),
            busy_per_s=float(steady_mean([sum(each.busy_s.values()) / each.interval_s for each in samples])),
        )
        return replace(bare, service=_service(bare, samples))

    @cached_property
    def loads(self) -> dict[WorkerId, float]:
        """Load of each worker (eq. 12)."""
        return self.by_worker(self.load)

    @cached_property
    def input_rate(self) -> dict[WorkerId, float]:
        """Rows per second each worker gets, E."""
        return self.by_worker(self.arrivals)

    @cached_property
    def sojourn_s(self) -> dict[WorkerId, float]:
        """Mean seconds a row stays at each worker (eq. 20); infinite where mu <= E."""
        return {w: mean_sojourn_s(mu, self.input_rate[w]) for w, mu in self.service.items()}

    @cached_property
    def imbalance(self) -> float:
        """Load imbalance degree LI (eq. 13), at most workers - 1."""
        return load_imbalance(list(self.loads.values()))

    @cached_property
    def straggler(self) -> WorkerId:
        """The owner of bins with the highest load; of equals the lowest id."""
        return max(sorted(set(self.owner)), key=lambda w: self.loads[w])

    @cached_property
    def idlest(self) -> WorkerId:
        """The worker with the lowest load; of equals the lowest id."""
        return min(self.workers, key=lambda w: self.loads[w])

    @cached_property
    def heaviest(self) -> BinId:
        """The heaviest bin of the straggler; of equals the lowest number."""
        mine = [j for j, worker in enumerate(self.owner) if worker == self.straggler]
        return BinId(max(mine, key=lambda j: float(self.load[j])))

    def of_mean(self, load: float, workers: int | None = None) -> float:
        """Return a load as a multiple of the mean load of a worker, among those there are or so many."""
        total = float(self.load.sum())
        return load * (workers or len(self.workers)) / total if total > 0 else 0.0

    def by_worker(self, values: Floats) -> dict[WorkerId, float]:
        """Return the sum over the bins of each worker."""
        return dict(zip(self.workers, sum_by_worker(values, self.owner, self.workers).tolist(), strict=True))

    def options(self, alpha: float) -> dict[str, Any]:
        """Return what planner `annealing` takes beside the problem, whose load is that of this view."""
        owners = set(self.owner)
        service = {w: mu for w, mu in self.service.items() if w in owners}
        return {
            "stored": self.stored.tolist(),
            "computing": self.computing.tolist(),
            "arrivals": self.arrivals.tolist(),
            "service": service or None,
            "alpha": alpha,
        }


def _service(view: LoadWindow, samples: Sequence[Sample]) -> dict[WorkerId, float]:
    """Rows per second that each worker can serve with the bins it has now.

    Measured since it has them, if it had rows since. Else measured with the bins it had before, and scaled: a worker's
    speed in computing load per second stays, so that E and C turning to E' and C' turn mu to mu * (E' / E) * (C / C').
    A worker that never had rows is as fast as the others on average.
    """
    speeds: dict[WorkerId, float] = {}
    measured: dict[WorkerId, float] = {}
    for stretch in _stretches(samples):
        rates = _rows_per_busy_s(stretch)
        row_work = _row_work(view, stretch[0].owner, list(rates))
        for worker, rate in rates.items():
            if worker in view.workers and worker not in speeds:
                speeds[worker] = rate * row_work[worker]
                if stretch[0] is samples[-1]:
                    measured[worker] = rate
    if not speeds:
        return {}
    usual = sum(speeds.values()) / len(speeds)
    row_work = _row_work(view, view.owner, view.workers)
    return {
        w: measured[w] if w in measured else service_per_s(1.0, row_work[w], speeds.get(w, usual)) for w in view.workers
    }


def _stretches(samples: Sequence[Sample]) -> Iterator[list[Sample]]:
    """Batches that follow each other with one owner map; the newest stretch first, its newest batch first."""
    for _, stretch in groupby(reversed(samples), key=lambda each: each.owner):
        yield list(stretch)


def _rows_per_busy_s(stretch: Sequence[Sample]) -> dict[WorkerId, float]:
    """What each worker served per second of work, for those that had rows and were busy."""
    owner = stretch[0].owner
    workers = sorted(set(owner))
    rows = sum_by_worker(sum((each.rows for each in stretch), np.zeros(len(owner))), owner, workers)
    busy_s = [sum(each.busy_s.get(WorkerId(w), 0.0) for each in stretch) for w in workers]
    had = zip(workers, rows.tolist(), busy_s, strict=True)
    return {WorkerId(w): count / s for w, count, s in had if count > 0 and s > 0}


def _row_work(view: LoadWindow, owner: Sequence[int], workers: Sequence[int]) -> dict[WorkerId, float]:
    """Computing load of a mean row of the bins that each had by `owner`; of a mean row anywhere if they have none."""
    rows, work = float(view.arrivals.sum()), float(view.computing.sum())
    otherwise = work / rows if rows > 0 and work > 0 else 1.0
    everyone = sorted({*owner, *workers})
    sums = (sum_by_worker(values, owner, everyone).tolist() for values in (view.computing, view.arrivals))
    return {WorkerId(w): c / e if c > 0 and e > 0 else otherwise for w, c, e in zip(everyone, *sums, strict=True)}


def measured_gamma(samples: Sequence[Sample]) -> float | None:
    """Return the gamma with which load comes closest to busy time, or None where there is nothing to tell it by.

    The busy time of every worker in every batch is taken for a * memory + b * computing and something that is always
    there, none of it below 0, with the least squares; gamma is a / (a + b). So a bin's load is the time it really takes
    of its worker. By the paper's own gamma of 0.5, computing is nearly all of it: stored times queued rows of a bin are
    many more than a join that finds the rows of a key looks at.
    """
    from scipy.optimize import nnls

    parts, times = [], []
    for each in samples:
        resources = Resources(each.stored, each.queued)
        workers = sorted(set(each.owner))
        parts.append(
            np.column_stack([sum_by_worker(v, each.owner, workers) for v in (resources.memory, resources.computing)])
        )
        times += [each.busy_s.get(WorkerId(worker), 0.0) for worker in workers]
    amounts = np.concatenate(parts)
    scale = amounts.max(axis=0)
    if not (scale > 0).all() or not any(times):
        return None
    (memory, computing, _), _ = nnls(np.column_stack([amounts / scale, np.ones(len(amounts))]), np.array(times))
    memory, computing = memory / scale[0], computing / scale[1]
    return float(memory / (memory + computing)) if memory + computing > 0 else None
