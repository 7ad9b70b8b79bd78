"""What is measured of every operator, batch after batch: rows that are stored and that wait, busy time, balance."""

from __future__ import annotations

import logging
import threading
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from meander.control.view import Sample, View
from meander.measure.resources import Resources
from meander.operators.operator import Stage
from meander.spark.messages import Report, read_numbers
from meander.types import WorkerId

logger = logging.getLogger("meander")

WINDOW = 8
"""So many batches are looked back on."""

ROWS = ("rows",)

Watcher = Callable[[int, Sample], None]


class Loads(list[int]):
    """How many rows each bin had in the last batch; beside it, what Ls-Stream's balancer looks at.

    Attributes:
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

    def __init__(self, rows: Sequence[int], sides: Sequence[str], samples: Sequence[Sample], workers: Sequence[int]):
        super().__init__(rows)
        nothing = tuple(np.zeros(len(rows)) for _ in sides)
        asked = Resources(samples[-1].stored, samples[-1].waiting) if samples else Resources(nothing, nothing)
        self.stored = {side: each.tolist() for side, each in zip(sides, asked.stored, strict=True)}
        self.queued = {side: each.tolist() for side, each in zip(sides, asked.queued, strict=True)}
        self.gamma = asked.gamma
        self.memory, self.computing, self.load = asked.memory.tolist(), asked.computing.tolist(), asked.load.tolist()
        view = View.of(samples, workers) if samples else None
        self.by_worker: Mapping[WorkerId, float] = view.loads if view else {}
        self.imbalance = view.imbalance if view else 0.0
        self.arrivals: Mapping[WorkerId, float] = view.input_rate if view else {}
        self.service: Mapping[WorkerId, float] = view.service if view else {}
        self.sojourn_s: Mapping[WorkerId, float] = view.sojourn_s if view else {}


class Monitor:
    """The samples of the last batches of every stage, for whoever wants to look at them, or be told of each."""

    def __init__(self, stages: Sequence[Stage], bins: int) -> None:
        self.stages, self.bins = stages, bins
        self.watchers: list[Watcher] = []
        self._samples: dict[int, deque[Sample]] = defaultdict(lambda: deque(maxlen=WINDOW))
        self._last_ms: int | None = None
        self._lock = threading.Lock()

    def note(
        self,
        version: int,
        time_ms: int,
        reports: Sequence[Report],
        owners: Sequence[NDArray[np.int64]],
        behind: int = 0,
    ) -> None:
        """Take what the workers measured in a version that is committed; `behind` are rows that wait in the source."""
        if not any(report.rows for report in reports):
            return  # an idle tick: the rows of the next batch have come since the last batch, not since then
        last, self._last_ms = self._last_ms, time_ms
        if last is None:
            return
        for stage in range(len(self.stages)):
            mine = [report for report in reports if report.stage == stage]
            sample = self._sample(version, max(1, time_ms - last) / 1000, stage, mine, owners[stage], behind)
            with self._lock:
                self._samples[stage].append(sample)
            for watcher in list(self.watchers):
                try:
                    watcher(stage, sample)
                except Exception:
                    logger.exception("whoever watches operator %d has failed; the batch goes on", stage)

    def loads(self, stage: int, rows: Sequence[int], workers: Sequence[int]) -> Loads:
        """What is known of the bins of a stage that had these rows in the last version."""
        with self._lock:
            samples = list(self._samples[stage])
        return Loads(rows, self.stages[stage].stores or ROWS, samples, workers)

    def _sample(
        self, version: int, interval_s: float, stage: int, mine: Sequence[Report], owner: NDArray[np.int64], behind: int
    ) -> Sample:
        def total(texts: Sequence[str]) -> NDArray[np.float64]:
            found = np.zeros(self.bins)
            for text in texts:
                found += read_numbers(text)
            return found

        rows = total([report.loads for report in mine])
        stores = range(len(self.stages[stage].stores))
        busy_s: dict[WorkerId, float] = defaultdict(float)
        for report in mine:
            busy_s[WorkerId(report.worker)] += report.spent_ms.get("busy", 0.0) / 1000
        backlog = rows * (behind / rows.sum()) if behind and rows.any() else None
        return Sample(
            batch=version,
            interval_s=interval_s,
            stored=tuple(_most([report.stored[at] for report in mine]) for at in stores)
            or (_most([report.state_rows for report in mine]),),
            queued=tuple(total([report.queued[at] for report in mine]) for at in stores) or (rows,),
            rows=rows,
            busy_s=busy_s,
            owner=owner.tolist(),
            backlog=backlog,
        )


def _most(texts: Sequence[str]) -> NDArray[np.float64]:
    """The most that anybody has of each bin: one worker owns it, and where it ran in waves each of them tells it."""
    found = read_numbers(texts[0]).astype(np.float64)
    for text in texts[1:]:
        np.maximum(found, read_numbers(text), out=found)
    return found
