"""One query of `./dev bench growth` in this process: what a batch costs the driver and the workers. No Spark."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import thread_time
from typing import Any

import numpy as np
import pyarrow as pa

import meander as me
from meander.clock import ManualClock
from meander.engine.driver.driver import Driver
from meander.engine.driver.ports import Job, JobInput, JobResult, Place
from meander.engine.driver.settings import Settings
from meander.engine.worker.messages import Control, TaskReport
from meander.store.location import Location
from meander.streams import Stream
from meander.testing.inprocess import InProcessCluster, InProcessJobs, MemorySink, Tables
from meander.testing.stream import InProcessLaunch, InProcessStream

LOAD_ROWS = 1_000_000
"""Keys come in batches of so many before anything is measured."""


@dataclass(frozen=True)
class GrowthCase:
    """One query: rows a batch, keys, bins, workers, and operators in a chain.

    `batches` are measured, after `warm` others.
    """

    rows: int
    keys: int
    bins: int = 256
    workers: int = 4
    chain: int = 1
    batches: int = 10
    warm: int = 4


@dataclass(frozen=True)
class GrowthFigures:
    """What a batch costs.

    Args:
        batch_ms: all of it, workers beside each other.
        driver_ms: the driver's part, the median batch.
        driver_mean_ms: the mean, which has also what is done every sixteenth version: a full index, a sweep.
        worker_ms: the worker that takes longest, summed over the operators of a chain.
        control_bytes, report_bytes: what goes to all workers, and what they report.
    """

    batch_ms: float
    driver_ms: float
    driver_mean_ms: float
    worker_ms: float
    control_bytes: float = 0.0
    report_bytes: float = 0.0


@dataclass
class BatchCost:
    """Where the processor time of one batch went, in seconds, and the bytes of its messages."""

    jobs_s: float = 0.0
    messages_s: float = 0.0
    tasks_s: list[list[float]] = field(default_factory=list)
    control_bytes: int = 0
    report_bytes: int = 0


class TimedJobs(InProcessJobs):
    """The jobs of tests, with a look at the clock around what is the driver's part and what is the workers'."""

    cost = BatchCost()

    def run(self, input: JobInput, job: Job) -> JobResult:
        """Run every worker of every operator."""
        began = thread_time()
        result = super().run(input, job)
        self.cost.jobs_s += thread_time() - began
        return result

    def run_task(
        self, at: int, control: Control, rows: Tables, place: Place, last: bool
    ) -> tuple[TaskReport, pa.Table | None]:
        """One worker's part of an operator. The driver's part of it, both messages, is done once more to be timed."""
        clock = [thread_time()]
        message = control.to_bytes()
        clock.append(thread_time())
        report, output = super().run_task(at, control, rows, place, last)
        clock.append(thread_time())
        text = report.to_text()
        clock.append(thread_time())
        TaskReport.from_text(text)
        clock.append(thread_time())
        written_s, task_s, _, read_s = np.diff(clock).tolist()
        cost = self.cost
        cost.messages_s += written_s + read_s
        while len(cost.tasks_s) <= at:
            cost.tasks_s.append([])
        cost.tasks_s[at].append(max(0.0, task_s - written_s - read_s))
        cost.control_bytes += len(message)
        cost.report_bytes += len(text)
        return report, output


def stream_of(chain: int, source: Any) -> Stream:
    """Count by key, and count those counts by key, and so on."""
    stream: Any = me.stream(source)
    for _ in range(chain):
        stream = stream.key_by("key").count()
    assert isinstance(stream, Stream)
    return stream


@dataclass
class GrowthRun:
    """A query that runs, its source of chance, and the clock it goes by."""

    jobs: TimedJobs
    driver: Driver
    stream: InProcessStream
    clock: ManualClock
    rng: np.random.Generator

    def batch(self, keys: np.ndarray[Any, np.dtype[np.int64]]) -> tuple[float, BatchCost]:
        """Process rows of these keys: the processor time of all of it in seconds, and where it went."""
        self.jobs.cost = cost = BatchCost()
        self.clock.advance(1.0)
        rows = pa.table({"key": keys})
        began = thread_time()
        self.stream.put(rows)
        spent_s = thread_time() - began
        sink = self.jobs.sink
        assert isinstance(sink, MemorySink)
        sink.versions.clear()
        return spent_s, cost


@contextmanager
def running(case: GrowthCase, folder: Path) -> Iterator[GrowthRun]:
    """A query of a case, with all its keys in its state."""
    stream = stream_of(case.chain, me.testing.source("key bigint"))
    graph, clock = stream.flow.graph, ManualClock()
    cluster = InProcessCluster(folder / "executors", case.workers)
    jobs = TimedJobs(graph, pa.schema([("key", pa.int64())]), cluster, MemorySink())
    settings = Settings(str(folder / "checkpoint"), case.workers, case.bins)
    location = Location.of(settings.checkpoint)
    driver, batches = InProcessLaunch(graph, location, cluster, jobs, settings, clock, case.workers).start()
    run = GrowthRun(jobs, driver, batches, clock, np.random.default_rng(7))
    try:
        for start in range(0, case.keys, LOAD_ROWS):
            run.batch(np.arange(start, min(case.keys, start + LOAD_ROWS)))
        yield run
    finally:
        batches.stop()
        driver.close()


def measure(case: GrowthCase, folder: Path) -> GrowthFigures:
    """What a batch of a case costs, with files in a folder."""
    driver_s, worker_s = [], []
    control, report = [], []
    with running(case, folder) as run:
        for number in range(case.warm + case.batches):
            spent_s, cost = run.batch(run.rng.integers(0, case.keys, case.rows))
            if number >= case.warm:
                driver_s.append(spent_s - cost.jobs_s + cost.messages_s)
                worker_s.append(sum(map(max, cost.tasks_s)))
                control.append(cost.control_bytes)
                report.append(cost.report_bytes)
    driver_ms, worker_ms = (statistics.median(each) * 1e3 for each in (driver_s, worker_s))
    return GrowthFigures(
        driver_ms + worker_ms, driver_ms, statistics.fmean(driver_s) * 1e3, worker_ms,
        statistics.median(control), statistics.median(report),
    )  # fmt: skip
