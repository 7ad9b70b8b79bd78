"""What is measured of every operator, batch after batch: rows that are stored and that wait, busy time, balance."""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meander.control.window import LoadWindow, Sample
from meander.engine.worker.bin_numbers import BinNumbers, highest, summed
from meander.engine.worker.messages import TaskReport
from meander.measure.load import Resources
from meander.operators.operator import BinnedOperator
from meander.pictures import facts, load_bars, many
from meander.types import WorkerId

WINDOW = 8
"""So many batches are looked back on."""
MAX_SAMPLES = 64

ROWS = ("rows",)


@dataclass(frozen=True, repr=False)
class Loads:
    """What each bin had to do in the last batch, and how that is spread: what Ls-Stream's balancer looks at.

    Args:
        rows: how many rows each bin had.
        stored: rows each bin had stored when the batch came, by side: "left" and "right" for a join, else "rows".
        queued: rows of each bin that came to be joined with the other side, and such as wait, by side.
        memory: stored and queued rows of each bin (eq. 7).
        computing: what its queued rows have to be compared with (eq. 9).
        gamma: weight of memory against computing.
        load: what each bin asks of its worker: gamma * memory + (1 - gamma) * computing (eq. 11).
        by_worker: the load of each worker (eq. 12).
        imbalance: the load imbalance degree LI (eq. 13).
        arrivals: rows per second that come to each worker, E: a mean without the highest and the lowest batch (eq. 4).
        service: rows per second of busy time that each worker can serve, mu.
        sojourn_s: mean seconds that a row stays at each worker (eq. 20); infinite where mu <= E.
    """

    rows: list[int]
    stored: Mapping[str, list[float]]
    queued: Mapping[str, list[float]]
    memory: list[float]
    computing: list[float]
    gamma: float | None
    load: list[float]
    by_worker: Mapping[WorkerId, float]
    imbalance: float
    arrivals: Mapping[WorkerId, float]
    service: Mapping[WorkerId, float]
    sojourn_s: Mapping[WorkerId, float]

    @classmethod
    def of(cls, rows: Sequence[int], sides: Sequence[str], samples: Sequence[Sample], workers: Sequence[int]) -> Loads:
        """What the samples of the last batches say of bins that had these rows."""
        nothing = tuple(np.zeros(len(rows)) for _ in sides)
        resources = Resources(samples[-1].stored, samples[-1].waiting) if samples else Resources(nothing, nothing)
        view = LoadWindow.of(samples, workers) if samples else None
        return cls(
            rows=list(rows),
            stored={side: each.tolist() for side, each in zip(sides, resources.stored, strict=True)},
            queued={side: each.tolist() for side, each in zip(sides, resources.queued, strict=True)},
            memory=resources.memory.tolist(),
            computing=resources.computing.tolist(),
            gamma=resources.gamma,
            load=resources.load.tolist(),
            by_worker=view.loads if view else {},
            imbalance=view.imbalance if view else 0.0,
            arrivals=view.input_rate if view else {},
            service=view.service if view else {},
            sojourn_s=view.sojourn_s if view else {},
        )

    def to_dict(self) -> dict[str, Any]:
        """What it says, as plain lists and numbers, ready for JSON.

        Returns:
            The fields, by name.

        Example:
            >>> sum(query.loads["0:count"].to_dict()["rows"])
            10
        """
        return asdict(self)

    def __repr__(self) -> str:
        return f"<Loads {self}>"

    def _repr_html_(self) -> str:
        shown = {"rows": f"{sum(self.rows):,}", "bins": len(self.rows), "imbalance (LI)": f"{self.imbalance:.2f}"}
        return facts("loads", shown, load_bars(self.by_worker))

    def __str__(self) -> str:
        of_mean = sum(self.by_worker.values()) / len(self.by_worker) if self.by_worker else 0.0
        shares = [f"{worker}: {load / of_mean:.2f}" for worker, load in self.by_worker.items() if of_mean]
        spread = f"; load of the mean by worker {', '.join(shares)}" if shares else ""
        return f"{many(sum(self.rows), 'row')} in {many(len(self.rows), 'bin')}, imbalance {self.imbalance:.2f}{spread}"


@dataclass(frozen=True, eq=False)
class BatchCounts:
    """What the workers of one operator counted in one batch; a sample is made of it when somebody looks."""

    batch: int
    interval_s: float
    bins: int
    stored: tuple[Sequence[BinNumbers], ...]
    queued: tuple[Sequence[BinNumbers], ...]
    loads: Sequence[BinNumbers]
    busy_s: Mapping[WorkerId, float]
    owner: NDArray[np.int64]
    behind: int

    @cached_property
    def sample(self) -> Sample:
        """The counts as policies take them."""
        rows = summed(self.loads, self.bins).astype(np.float64)
        # One worker owns a bin, and where it ran in waves each of them reports what it has: the most is what there is.
        stored = tuple(highest(each, self.bins).astype(np.float64) for each in self.stored)
        queued = tuple(summed(each, self.bins).astype(np.float64) for each in self.queued) or (rows,)
        backlog = rows * (self.behind / rows.sum()) if self.behind and rows.any() else None
        return Sample(self.batch, self.interval_s, stored, queued, rows, self.busy_s, self.owner.tolist(), backlog)


class Monitor:
    """The samples of the last batches of every operator."""

    def __init__(self, operators: Sequence[BinnedOperator], bins: int) -> None:
        self.operators, self.bins = operators, bins
        self.is_watched = False
        """Whether anyone looks at samples, so that it pays to ask the sources how far they are."""
        self._counts: dict[int, deque[BatchCounts]] = defaultdict(lambda: deque(maxlen=MAX_SAMPLES))
        self._last_ms: int | None = None
        self._lock = threading.Lock()

    def note(
        self,
        version: int,
        time_ms: int,
        reports: Sequence[TaskReport],
        owners: Sequence[NDArray[np.int64]],
        behind: int = 0,
    ) -> None:
        """Take what the workers measured in a version that is committed; `behind` are rows that wait in the source."""
        if not any(report.rows for report in reports):
            return  # an idle tick: the rows of the next batch have come since the last batch, not since then
        last, self._last_ms = self._last_ms, time_ms
        if last is None:
            return
        for operator in range(len(self.operators)):
            mine = [report for report in reports if report.operator == operator]
            counts = self._count(version, max(1, time_ms - last) / 1000, operator, mine, owners[operator], behind)
            with self._lock:
                self._counts[operator].append(counts)

    def samples(self, operator: int) -> tuple[Sample, ...]:
        """What was counted in the last batches of an operator, oldest first."""
        self.is_watched = True
        return tuple(each.sample for each in self._last(operator))

    def loads(self, operator: int, rows: Sequence[int], workers: Sequence[int]) -> Loads:
        """What is known of the bins of an operator that had these rows in the last version."""
        samples = [each.sample for each in self._last(operator)[-WINDOW:]]
        return Loads.of(rows, self.operators[operator].stores or ROWS, samples, workers)

    def _last(self, operator: int) -> list[BatchCounts]:
        with self._lock:
            return list(self._counts[operator])

    def _count(
        self,
        version: int,
        interval_s: float,
        operator: int,
        mine: Sequence[TaskReport],
        owner: NDArray[np.int64],
        behind: int,
    ) -> BatchCounts:
        stores = range(len(self.operators[operator].stores))
        busy_s: dict[WorkerId, float] = defaultdict(float)
        for report in mine:
            busy_s[WorkerId(report.worker)] += report.spent_ms.get("busy", 0.0) / 1000
        return BatchCounts(
            batch=version,
            interval_s=interval_s,
            bins=self.bins,
            stored=tuple([report.stored[at] for report in mine] for at in stores)
            or ([report.state_rows for report in mine],),
            queued=tuple([report.queued[at] for report in mine] for at in stores),
            loads=[report.loads for report in mine],
            busy_s=busy_s,
            owner=owner,
            behind=behind,
        )
