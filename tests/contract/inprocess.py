"""The whole engine in this process, without Spark, as a runtime of the contract: batches wait for a thread."""

from __future__ import annotations

import queue
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa

import meander as me
from contract.cases import Case, Gate, Runtime
from contract.kinds import Rows
from meander.clock import SystemClock
from meander.engine.driver.attempts import Stopped
from meander.engine.driver.ports import SinkToken, SinkWrite
from meander.engine.driver.run import QueryRun
from meander.engine.driver.settings import Settings
from meander.migration.control_stream import ControlStream
from meander.query import Query
from meander.store.location import Location
from meander.testing.inprocess import InProcessCluster, InProcessJobs, MemorySink
from meander.testing.stream import InProcessLaunch, InProcessStream


class GatedSink(MemorySink):
    """A sink in memory behind a gate."""

    def __init__(self, gate: Gate) -> None:
        super().__init__()
        self.gate = gate

    def prepare(self, output: pa.Table, write: SinkWrite) -> SinkToken:
        self.gate.pass_through()
        return super().prepare(output, write)


class QueuedStream(InProcessStream):
    """Batches wait until a thread of the stream processes them, as they do with Spark."""

    def __init__(self, location: Location, driver: Any) -> None:
        super().__init__(location, driver)
        self._queue: queue.Queue[pa.Table | None] = queue.Queue()
        self._problem: Exception | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def is_active(self) -> bool:
        return not self._ended.is_set()

    @property
    def is_quiet(self) -> bool:
        return self._queue.unfinished_tasks == 0

    def add(self, rows: pa.Table) -> None:
        """Let a batch wait for its turn."""
        self._queue.put(rows)

    def finish(self) -> None:
        """End when everything that waits has been processed."""
        self._queue.put(None)

    def process_all_available(self) -> None:
        while not self._ended.is_set() and not self.is_quiet:
            self._ended.wait(0.005)
        if self._problem is not None:
            raise self._problem

    def wait(self, timeout_s: float) -> None:
        self._ended.wait(timeout_s)

    def stop(self) -> None:
        self._ended.set()
        super().stop()

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                rows = self._queue.get(timeout=0.01)
            except queue.Empty:
                continue
            try:
                if rows is None:
                    self._ended.set()
                else:
                    self.put(rows)
            except Stopped:
                self._ended.set()
            except Exception as problem:
                self._problem = problem
                self._ended.set()
            finally:
                self._queue.task_done()


class InProcessCase(Case):
    """A query in this process."""

    def __init__(self, folder: Path, kind: str, options: dict[str, Any]) -> None:
        super().__init__(folder, kind, options)
        self.sink = GatedSink(self.gate)
        self._waiting: list[pa.Table] = []
        self._is_launched = False
        self.cluster = InProcessCluster(folder / "executors", 3, most=3)

    def launch(self) -> Any:
        options = dict(self.options)
        trigger = options.pop("trigger", None)
        source = me.testing.source(self.kind.schema)
        operators = [node.operator for node in self.kind.describe(me.stream(source)).nodes]
        jobs = InProcessJobs(operators, source.schema, self.cluster, self.sink)
        requested = options.pop("workers")
        workers = requested or sum(place.cores for place in self.cluster.executors())
        settings = Settings(str(self.checkpoint), workers, **{"copy_ms": 1e9, **options})
        launch = InProcessLaunch(
            operators, Location.of(self.checkpoint), self.cluster, jobs, settings, SystemClock(), requested,
            stream=QueuedStream, background=True,
        )  # fmt: skip
        self.run = QueryRun(launch)
        self.stream = self.run.stream
        assert isinstance(self.stream, QueuedStream)
        done = self.stream.next_batch
        for batch in self.batches[done:]:
            self.stream.add(batch)
        self.run.driver.ticker.start()
        if trigger is not None:
            self.stream.finish()
        self._is_launched = True
        return Query(self.run)

    def feed(self, batch: pa.Table) -> None:
        if self._is_launched and self.run.stream.is_active:
            self.stream.add(batch)

    def output(self) -> Rows:
        return [
            {**row, "batch": version}
            for version, rows in sorted(self.sink.versions.items())
            for row in rows.to_pylist()
        ]

    def steer(self, *moves: tuple[int, int, int]) -> None:
        rows = [dict(zip(("batch", "bin", "worker"), move, strict=True)) for move in moves]
        driver = self.run.driver
        with driver.loop.lock:
            ControlStream(driver.coordinator, driver.settings.budget).take(rows, 3, self.stream.next_batch - 1)

    def lose_worker(self, worker: int, for_good: bool = False) -> None:
        place = self.run.driver.placement.places[worker]
        self.cluster.lose(place.executor, replace=not for_good)


class InProcess(Runtime):
    """The whole engine without Spark."""

    name = "inprocess"
    loses_workers = has_executors = True

    def case(self, folder: Path, kind: str, control: pa.Schema | None, options: dict[str, Any]) -> Case:
        return InProcessCase(folder, kind, options)
