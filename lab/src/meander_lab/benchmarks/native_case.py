"""The driver process of one run of `./dev bench native`: its Spark, its query, and the phases of that.

It prints one JSON object a line: {"event": ...}; the process that started it listens. A phase that fails is told as
failed, and the next one begins, as long as the query runs.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meander.engine.spark.gateway import Gateway
from meander_lab.benchmarks import native_measure as m
from meander_lab.benchmarks.migrate_native import ROCKSDB, STORE
from meander_lab.benchmarks.native_measure import NativeCase, NativePhase

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from meander.attached import Attached

EXECUTORS = 3
ODD = 2_654_435_761
"""Prime, so that the keys of as many rows as there are keys are all different."""

SETTLE = 2
"""Whole batches after something is over that still belong to it."""

STALLED_S = 180.0
"""Without a batch for so long, a phase has failed."""

MOVING_S = 300.0
GONE_S = 60.0
LOOK_S = 0.02


def tell(event: str, **facts: Any) -> None:
    """Print one event."""
    print(json.dumps({"event": event, **facts}), flush=True)


class Over(Exception):
    """The query does not run any more, so no phase can follow."""


def session(case: NativeCase) -> SparkSession:
    """A Spark as anybody would start it, with one executor more than the query begins with."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    settings = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "OFF",
        "spark.sql.shuffle.partitions": str(case.partitions),
        "spark.sql.streaming.numRecentProgressUpdates": "100000",
    }
    if case.store == m.ROCKSDB:
        settings[STORE] = ROCKSDB
    builder = SparkSession.builder.master(f"local-cluster[{EXECUTORS + 1},1,1024]").appName("meander-bench-native")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    return spark


class NativeStage:
    """A query that counts by key, as fast as it goes, and what has been done to it so far."""

    def __init__(self, case: NativeCase, spark: SparkSession, folder: Path) -> None:
        self.case, self.spark, self.folder = case, spark, folder
        self.gateway = Gateway(spark)
        self.attached: Attached | None = None
        self.query: StreamingQuery
        self._committed = -1
        self._told = 0

    # --- the query -----------------------------------------------------------------------------

    def rows(self) -> DataFrame:
        """As many rows a batch as the case says; those of the first batches have every key once."""
        from pyspark.sql import functions as F

        reader = self.spark.readStream.format("rate-micro-batch").option("rowsPerBatch", self.case.rows)
        numbers = reader.option("numPartitions", EXECUTORS).load()
        return numbers.select((F.col("value") * ODD % self.case.keys).alias("key"))

    def start(self, **trigger: Any) -> StreamingQuery:
        """Start the query, or start it again."""
        writer = self.rows().groupBy("key").count().writeStream.format("noop").outputMode("update")
        writer = writer.option("checkpointLocation", str(self.folder))
        self._told = 0
        self.query = (writer.trigger(**trigger) if trigger else writer).start()
        return self.query

    @property
    def committed(self) -> int:
        """The last batch that Spark's commit log names."""
        while (self.folder / "commits" / str(self._committed + 1)).exists():
            self._committed += 1
        return self._committed

    def until(self, batch: int) -> None:
        """Wait until a batch is committed."""
        before, since = self.committed, time.monotonic()
        while self.committed < batch:
            if not self.query.isActive:
                raise Over(f"the query has ended: {str(self.query.exception()).splitlines()[0][:300]}")
            if self._committed > before:
                before, since = self._committed, time.monotonic()
            if time.monotonic() - since > STALLED_S:
                raise TimeoutError(f"no batch has ended for {STALLED_S:.0f} s")
            time.sleep(LOOK_S)

    @property
    def batch_s(self) -> float:
        """How long the last batch took."""
        progress = self.query.lastProgress
        return 1.0 if progress is None else progress["durationMs"]["triggerExecution"] / 1000

    def until_idle(self) -> None:
        """Wait until no batch runs; the trigger has to leave time for that."""
        deadline = time.monotonic() + STALLED_S
        while self.query.status["isTriggerActive"]:
            if time.monotonic() > deadline:
                raise TimeoutError(f"the query was never idle for {STALLED_S:.0f} s")
            time.sleep(LOOK_S / 2)

    def until_executors(self, count: int) -> None:
        """Wait until there are so many executors; one that is let go needs some seconds."""
        deadline = time.monotonic() + GONE_S
        while len(self.gateway.executors()) != count:
            if time.monotonic() > deadline:
                there = len(self.gateway.executors())
                raise TimeoutError(f"there are {there} executors and not {count} after {GONE_S:.0f} s")
            time.sleep(0.2)

    def tell_batches(self) -> None:
        """Tell the batches of this run of the query that were not told yet."""
        progress = self.query._jsq.recentProgress()
        batches = []
        for at in range(self._told, len(progress)):
            batch = json.loads(str(progress[at].json()))
            began_s = datetime.fromisoformat(batch["timestamp"]).timestamp()
            took_ms = batch["durationMs"].get("triggerExecution", 0)
            if batch["numInputRows"]:
                batches.append(
                    m.NativeBatch(batch["batchId"], began_s + took_ms / 1000, took_ms, batch["numInputRows"])
                )
        self._told = len(progress)
        tell("batches", batches=batches)

    # --- phases --------------------------------------------------------------------------------

    @contextmanager
    def phase(self, name: str, steady: bool = False) -> Iterator[NativePhase]:
        """What is done here, and the batches meanwhile, are one phase; tells how it went."""
        now = time.time()
        current = NativePhase(name, self.committed + 1, self.committed, now, now, steady)
        try:
            yield current
        except Exception as problem:
            current.failed = f"{type(problem).__name__}: {str(problem).splitlines()[0][:300]}"
            if isinstance(problem, Over) or not self.query.isActive:
                raise Over(current.failed) from problem
        finally:
            current.last, current.ended_s = self.committed, time.time()
            with suppress(Exception):
                current.placed = self.placed()
            tell("phase", phase=asdict(current))
            self.tell_batches()

    def placed(self) -> list[int]:
        """How many partitions each executor has, most first."""
        if self.attached is None:
            return []
        (owners,) = self.attached.assignment.values()
        held = dict.fromkeys(self.attached.executors, 0) | Counter(owners)
        return sorted(held.values(), reverse=True)

    def steady(self, name: str, batches: int | None = None) -> None:
        """A phase in which nothing is done."""
        with self.phase(name, steady=True):
            self.until(self.committed + (batches or self.case.batches))

    def settle(self) -> None:
        """Let the batch end that runs now, and whole ones after it."""
        self.until(self.committed + 1 + SETTLE)

    def moving(self, name: str, begin: Callable[[], Any], executors: int) -> None:
        """A phase in which partitions are moved, and at its end there are so many executors."""
        assert self.attached is not None
        heard = len(self.attached.events)
        with self.phase(name) as phase:
            handle = begin()
            try:
                if not handle.wait(MOVING_S, show=False):
                    handle.cancel()
                    raise TimeoutError(f"it was not over within {MOVING_S:.0f} s: {handle.progress}")
            finally:
                arrived = [each for each in self.attached.events[heard:] if each.name == "arrived"]
                phase.moved = sum(len(each.facts["partitions"]) for each in arrived)
                phase.seconds, phase.remarks = handle.report.duration_s, list(handle.report.remarks)
            self.until_executors(executors)
            self.settle()

    def warm(self) -> None:
        """Until every key was counted, and for as many batches as a phase has, which count for nothing."""
        self.until(-(-self.case.keys // self.case.rows) + self.case.batches - 1)

    def count(self) -> None:
        """Tell what the state of the stopped query counts, and how many rows its committed batches had."""
        from pyspark.sql import functions as F

        state = self.spark.read.format("statestore").load(str(self.folder))
        counted = state.agg(F.sum("value.count")).collect()[0][0]
        offset = (self.folder / "offsets" / str(self.committed)).read_text().splitlines()[-1]
        tell("counted", counted=counted, rows=json.loads(offset)["offset"])
