"""The native baseline: Spark's own stateful query, stopped, repartitioned offline and started again.

`StreamingCheckpointManager.repartition` is all Spark 4.3 has for another degree of parallelism. It needs RocksDB, a
stopped query and a last batch that has ended; a stop under load interrupts one, the call refuses with
LAST_BATCH_FAILED, and a run with `availableNow` has to end first. It rewrites the whole state, and cannot place any of
it: where Meander moves a quarter of the bins to two more workers, this goes from two partitions to four.

    native          stopped under load
    native_quiet    rows are held back before the stop until the query has nothing to do: no batch is interrupted
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meander_lab.benchmarks.migrate_load import Load

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

STORE = "spark.sql.streaming.stateStore.providerClass"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
FINISH_S = 300
UNFINISHED = "LAST_BATCH_FAILED"


class Native:
    """`groupBy().count()` on RocksDB, to Spark's `noop` sink."""

    def __init__(self, rows: DataFrame, folder: Path, partitions: int, trigger_s: float = 0.0) -> None:
        self.spark, self.folder, self.log = rows.sparkSession, folder, folder
        self._rows, self._trigger_s = rows, trigger_s
        self.spark.conf.set(STORE, ROCKSDB)
        self.spark.conf.set("spark.sql.shuffle.partitions", str(partitions))
        self.inner = self._start()

    def _start(self, finish: bool = False) -> StreamingQuery:
        counted = self._rows.groupBy("key").count()
        writer = counted.writeStream.format("noop").outputMode("update").option("checkpointLocation", str(self.folder))
        if finish:
            writer = writer.trigger(availableNow=True)
        elif self._trigger_s:
            writer = writer.trigger(processingTime=f"{round(self._trigger_s * 1000)} milliseconds")
        return writer.start()

    def settle(self) -> None:
        """Until everything that was pushed is out."""
        self.inner.processAllAvailable()

    def check(self) -> None:
        """Raise what the query has failed of."""
        problem = self.inner.exception()
        if problem is not None:
            raise problem

    def repartition(self, partitions: int, load: Load, quiet: bool) -> dict[str, Any]:
        """Take the query through it, until it runs again, and return how long each part took."""
        began = time.time()
        if quiet:
            load.hold()
            self.settle()
        held = time.time()
        self.inner.stop()
        stopped = time.time()
        finished = stopped
        try:
            self._repartition(partitions)
        except Exception as problem:
            if UNFINISHED not in str(problem):
                raise
            # The feed, unlike Kafka, has no end at the time of the start: with new rows the run would go on for ever.
            load.hold()
            if not self._start(finish=True).awaitTermination(FINISH_S):
                raise TimeoutError(f"the interrupted batch did not end within {FINISH_S} s") from None
            finished = time.time()
            self._repartition(partitions)
        done = time.time()
        self.inner = self._start()
        load.release()
        spent_s = {
            "hold": held - began, "stop": stopped - held, "finish": finished - stopped,
            "repartition": done - finished, "start": time.time() - done,
        }  # fmt: skip
        interrupted = finished > stopped
        return {"spent_s": spent_s, "interrupted": interrupted, "bytes": self.written_bytes(finished, done)}

    def _repartition(self, partitions: int) -> None:
        self.spark._streamingCheckpointManager.repartition(str(self.folder), partitions, enforce_exactly_once_sink=True)

    def written_bytes(self, since_s: float, until_s: float) -> int:
        """What was written to its state in the checkpoint in a time; a repartition writes all of it."""
        files = [each.stat() for each in (self.folder / "state").rglob("*") if each.is_file()]
        return sum(each.st_size for each in files if since_s <= each.st_mtime <= until_s)

    def stop(self) -> None:
        """End it."""
        self.inner.stop()
