"""Support for tests of the native engine: a plain Spark, rows that keep coming, and what the query made of them."""

from __future__ import annotations

import os
import random
import sys
import threading
from collections import Counter

import pyarrow as pa

from streams import Feed

PARTITIONS = 6
KEYS = 400
SCHEMA = pa.schema([("key", pa.int64()), ("at", pa.timestamp("us", "UTC")), ("n", pa.int64())])


def plain_session(master, **settings):
    """Spark as somebody who has never heard of us would start it, but for fewer partitions."""
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master(master).config("spark.ui.enabled", "false")
    builder = builder.config("spark.sql.shuffle.partitions", PARTITIONS).config("spark.sql.session.timeZone", "UTC")
    for name, value in settings.items():
        builder = builder.config(name.replace("__", "."), value)
    session = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    return session


class Load:
    """Rows that keep coming while something is done to the query, always a batch or two ahead of it."""

    def __init__(self, folder, seed: int, rows: int = 150) -> None:
        self.feed, self.batches = Feed(folder, SCHEMA), []
        self.query = None
        self._rng, self._rows = random.Random(seed), rows
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._pour, daemon=True)
        self.add()

    def add(self) -> None:
        count, rng = len(self.batches), self._rng
        keys = [int(rng.paretovariate(0.4)) % KEYS for _ in range(self._rows)]
        times = [1_700_000_000_000_000 + (count * self._rows + each) * 10_000 for each in range(self._rows)]
        rows = pa.table({"key": keys, "at": pa.array(times, pa.timestamp("us", "UTC")), "n": range(self._rows)})
        self.batches.append(rows.cast(SCHEMA))
        self.feed.add(self.batches[-1])

    def _pour(self) -> None:
        while not self._ended.wait(0.05):
            done = self.query.lastProgress
            if done is not None and len(self.batches) < done["batchId"] + 3:
                self.add()

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._ended.set()
        self._thread.join()

    @property
    def rows(self) -> pa.Table:
        return pa.concat_tables(self.batches)


def started(load, frame, tmp_path, mode):
    """The query, and the newest result of each key as its sink has got them."""
    latest = {}

    def take(rows, batch):
        for row in rows.collect():
            latest[row[0]] = tuple(row)

    writer = frame.writeStream.outputMode(mode).foreachBatch(take)
    load.query = writer.option("checkpointLocation", str(tmp_path / "ck")).start()
    return load.query, latest


def counts(load):
    return dict(Counter(load.rows["key"].to_pylist()))


def on(attached, group=0):
    return Counter(attached.assignment[attached.operators[group]])
