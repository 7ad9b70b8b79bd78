"""Count by key, five ways on one Spark: ours, and what Spark itself offers. For `./dev bench engine`.

Every system gets rows with a column `key`, emits the keys that changed to Spark's `noop` sink, and is measured with
the same stick: `triggerExecution` of Spark's own progress, which is the whole batch with its commit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import meander as me

if TYPE_CHECKING:
    import pandas as pd  # type: ignore[import-untyped]
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

BUCKETS = 16
STORE = "spark.sql.streaming.stateStore.providerClass"
STATE = "org.apache.spark.sql.execution.streaming.state"
PATIENCE_S = 300.0


def session(app: str) -> SparkSession:
    """Two threads, two partitions, memory enough for the natives, and as much progress kept as is asked for."""
    settings = {
        "spark.driver.memory": "5g",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
        "spark.sql.streaming.numRecentProgressUpdates": "100000",
        # Natives that are stopped within a batch would log that it failed.
        "spark.log.level": "FATAL",
    }
    return me.session("local[2]", app, **{name.replace(".", "__"): value for name, value in settings.items()})


# --- rows ------------------------------------------------------------------------------------


def hashed(keys: int) -> Column:
    """A number below `keys`, evenly spread, for each row of a source of numbers."""
    from pyspark.sql import functions as F

    return F.pmod(F.xxhash64("value"), F.lit(keys)).cast("bigint")


def steady(spark: SparkSession, rows: int, keys: int, text: bool = False) -> DataFrame:
    """A source with so many rows in every batch, as fast as they are taken; keys are numbers or texts."""
    from pyspark.sql import functions as F

    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", rows).option("numPartitions", 2)
    key = hashed(keys)
    return source.load().select((F.concat(F.lit("k"), key.cast("string")) if text else key).alias("key"))


class NumberFeed:
    """A source that is given ranges of numbers, and makes each a batch's rows inside the JVM.

    A row `value` >= 0 has the key `hashed(keys)`; a row below 0 is for preloading and has the key `-1 - value`.
    """

    def __init__(self, spark: SparkSession, keys: int, sparse: bool = False) -> None:
        from pyspark.sql import functions as F
        from pyspark.sql.classic.dataframe import DataFrame

        jvm: Any = spark.sparkContext._jvm
        self._seq = jvm.org.apache.spark.api.python.PythonUtils.toSeq
        memory_stream = jvm.org.apache.spark.sql.execution.streaming.runtime.MemoryStream
        self._stream = memory_stream.apply(
            0, spark._jsparkSession, jvm.scala.Some(2), jvm.org.apache.spark.sql.Encoders.STRING()
        )
        self.ranges: list[tuple[int, int]] = []
        ends = F.split("value", ":")
        numbers = F.sequence(ends[0].cast("bigint"), ends[1].cast("bigint"))
        rows = DataFrame(self._stream.toDF(), spark).select(F.explode(numbers).alias("value"))
        key = F.when(F.col("value") < 0, -1 - F.col("value")).otherwise(hashed(keys))
        self.rows = rows.select((F.xxhash64(key) if sparse else key).alias("key"))

    def push(self, start: int, end: int) -> None:
        """Make the rows start..end-1 available, in two parts that two tasks make."""
        middle = (start + end) // 2
        parts = [(start, middle), (middle, end)]
        self._stream.addData(self._seq([f"{low}:{high - 1}" for low, high in parts if low < high]))
        self.ranges.append((start, end))


# --- systems ---------------------------------------------------------------------------------


@dataclass
class Running:
    """A query that runs, and Spark's progress of its batches."""

    inner: StreamingQuery
    ours: me.Query | None = None
    stopped: Callable[[], None] = field(default=lambda: None)

    @classmethod
    def of(cls, spark: SparkSession, query: me.Query) -> Running:
        """One of ours, with the query of Spark that brings its batches."""
        inner = spark.streams.get(query.id)
        if inner is None:
            raise query.exception() or RuntimeError("the query has ended before it was looked at")
        return cls(inner, query)

    def wait(self, batches: int) -> None:
        """Until so many batches are done."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            last = self.inner.lastProgress
            if last is not None and last["batchId"] >= batches - 1 and last["numInputRows"]:
                return
            self._check()
            if time.monotonic() > deadline:
                raise TimeoutError(f"fewer than {batches} batches in {PATIENCE_S:.0f} s; take smaller ones (--quick)")
            time.sleep(0.1)

    def wait_for_end(self) -> None:
        """Until the query has read everything; raises what it failed of."""
        if self.ours is not None:
            done = self.ours.await_termination(PATIENCE_S)
        else:
            done = bool(self.inner.awaitTermination(int(PATIENCE_S)))
        if not done:
            raise TimeoutError(f"the query was not done within {PATIENCE_S:.0f} s; take smaller batches (--quick)")

    def settle(self) -> None:
        """Until everything that was pushed is done."""
        self._check()
        self.inner.processAllAvailable()

    def _check(self) -> None:
        problem = self.ours.exception() if self.ours else self.inner.exception()
        if problem is not None:
            raise problem
        if not self.inner.isActive:
            raise RuntimeError("the query has ended by itself")

    def progress(self) -> list[dict[str, Any]]:
        """Spark's progress of every batch that had rows, oldest first."""
        return [dict(each) for each in self.inner.recentProgress if each["numInputRows"]]

    def times_ms(self) -> list[float]:
        """How long each batch took, whole."""
        return [float(each["durationMs"]["triggerExecution"]) for each in self.progress()]

    def stop(self) -> None:
        """End it, and give back what Spark's state stores hold in memory."""
        if self.ours:
            self.ours.stop()
        else:
            self.inner.stop()
        self.stopped()


Start = Callable[["DataFrame", Path], Running]


def ours(to: str = "noop", **settings: Any) -> Start:
    """Meander, with its full durability: deltas, snapshots, manifests; to Spark's `noop` sink, or into memory."""

    def start(rows: DataFrame, folder: Path) -> Running:
        options = {"workers": 2, "bins": 256, **settings}
        sink = me.sinks.memory() if to == "memory" else me.sinks.format("noop", mode="overwrite")
        query = me.stream(rows).key_by("key").count().start(folder, sink, **options)
        return Running.of(rows.sparkSession, query)

    return start


def native(rocksdb: bool = False, to: str = "noop") -> Start:
    """`groupBy().count()` on Spark's default store, or on RocksDB."""
    return lambda rows, folder: _start(rows.groupBy("key").count(), folder, rocksdb, to)


def bucketed(keys: int) -> Start:
    """`applyInPandasWithState` over a few buckets, the state of each one NumPy array of counts; dense keys only."""
    size = -(-keys // BUCKETS)

    def count(bucket: tuple[int], parts: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
        import numpy as np
        import pandas as pd

        counts = np.frombuffer(state.get[0], np.int64).copy() if state.exists else np.zeros(size, np.int64)
        buckets = np.concatenate([part["key"].to_numpy() for part in parts]) // BUCKETS
        more = np.bincount(buckets, minlength=size)
        counts += more
        state.update((counts.tobytes(),))
        changed = np.flatnonzero(more)
        yield pd.DataFrame({"key": changed * BUCKETS + bucket[0], "count": counts[changed]})

    def start(rows: DataFrame, folder: Path) -> Running:
        from pyspark.sql import functions as F

        grouped = rows.withColumn("bucket", F.pmod("key", F.lit(BUCKETS))).groupBy("bucket")
        shape = "key bigint, count bigint", "counts binary"
        return _start(grouped.applyInPandasWithState(count, *shape, "update", "NoTimeout"), folder)

    return start


def per_key(rows: DataFrame, folder: Path) -> Running:
    """`applyInPandasWithState`, called once for every key."""

    def count(key: tuple[int], parts: Iterator[pd.DataFrame], state: Any) -> Iterator[pd.DataFrame]:
        import pandas as pd

        total = (state.get[0] if state.exists else 0) + sum(len(part) for part in parts)
        state.update((total,))
        yield pd.DataFrame({"key": [key[0]], "count": [total]})

    shape = "key bigint, count bigint", "count bigint"
    return _start(rows.groupBy("key").applyInPandasWithState(count, *shape, "update", "NoTimeout"), folder)


def transform(rows: DataFrame, folder: Path) -> Running:
    """`transformWithStateInPandas`, called once for every key; it needs RocksDB."""
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor

    class CountProcessor(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self.total = handle.getValueState("total", "count bigint")

        def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timers: Any) -> Iterator[pd.DataFrame]:  # noqa: N802
            import pandas as pd

            total = (self.total.get()[0] if self.total.exists() else 0) + sum(len(part) for part in rows)
            self.total.update((total,))
            yield pd.DataFrame({"key": [key[0]], "count": [total]})

        def close(self) -> None:
            pass

    shape = "key bigint, count bigint"
    counted = rows.groupBy("key").transformWithStateInPandas(CountProcessor(), shape, "Update", "None")
    return _start(counted, folder, rocksdb=True)


def _start(counted: DataFrame, folder: Path, rocksdb: bool = False, to: str = "noop") -> Running:
    """Start one of Spark's own queries; it reads its store's name when it starts."""
    spark = counted.sparkSession
    kind = f"{STATE}.{'RocksDBStateStoreProvider' if rocksdb else 'HDFSBackedStateStoreProvider'}"
    jvm: Any = spark.sparkContext._jvm

    def unload() -> None:
        # Stopped queries' stores stay in memory for minutes and would burden whoever is measured next.
        jvm.org.apache.spark.sql.execution.streaming.state.StateStore.stop()
        jvm.java.lang.System.gc()

    spark.conf.set(STORE, kind)
    try:
        writer = counted.writeStream.format(to).outputMode("update").option("checkpointLocation", str(folder))
        name = f"counted_{abs(hash(folder))}"
        return Running(writer.queryName(name).start(), stopped=unload)
    finally:
        spark.conf.unset(STORE)
