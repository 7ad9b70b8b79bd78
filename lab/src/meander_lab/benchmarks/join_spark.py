"""The join on Spark itself: ours beside Spark's own stream-stream join, and ours as its state grows.

For `./dev bench join`. Both read the same folders of Parquet files, one of each side in each batch, on the same Spark,
with as many workers as the other has state partitions, and hand their rows to its `noop` sink. A batch's time is
Spark's own `triggerExecution`. Before anything is timed, both answer over a few small batches; they are only timed if
they have the same pairs.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from rich.table import Table

import meander as me
from meander_lab.apps.zipf import ZipfStreams
from meander_lab.benchmarks.engine_figures import ratio_in_turn
from meander_lab.benchmarks.engine_measure import Measured, measured
from meander_lab.benchmarks.engine_peers import STATE, STORE, Running, session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

WORKERS = 8
NEAR = 0.01
SINCE_US = 1_700_000_000_000_000
"""When event time begins: not at 0, where Spark's first watermark stands and what has that time is late."""
OURS, NATIVE = "ours", "Spark"


@dataclass(frozen=True)
class SparkJoinSizes:
    """Rows of each side in a batch, which is a second of event time; batches that count and that do not; rounds."""

    rows: int = 30_000
    batches: int = 5
    warm: int = 2
    rounds: int = 2
    keys: int = 100_000
    within_s: float = 0.05


QUICK = SparkJoinSizes(rows=20_000, batches=3, warm=3, rounds=1)


@dataclass
class SparkJoinLine:
    """One system on one dataset, over its runs."""

    dataset: str
    system: str
    runs: list[Measured] = field(default_factory=list)

    @property
    def rates(self) -> list[float]:
        """Rows a second of each run."""
        return [each.rows * len(each.times_ms) / sum(each.times_ms) * 1000 for each in self.runs]

    @property
    def batch_ms(self) -> float:
        """The median batch."""
        return statistics.median(ms for each in self.runs for ms in each.times_ms)

    def times_as_fast(self, other: SparkJoinLine) -> float:
        """How many times as many rows a second this one takes, run by run."""
        return ratio_in_turn(self.rates, other.rates)


def write(folder: Path, source: ZipfStreams, sizes: SparkJoinSizes, batches: int) -> Path:
    """Both sides as files, a second of event time in each; file number n has time n, so that Spark keeps the order."""
    import os

    for side, name in enumerate(("left", "right")):
        (folder / name).mkdir(parents=True)
        for number in range(batches):
            rows = source.rows(side, number * sizes.rows, sizes.rows, sizes.rows, SINCE_US)
            path = folder / name / f"{number:05d}.parquet"
            pq.write_table(rows, path)
            os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))
    return folder


def sides(spark: SparkSession, folder: Path) -> list[DataFrame]:
    """Both sides as streams, one file of each in a batch."""
    from pyspark.sql.pandas.types import from_arrow_schema

    schema = from_arrow_schema(pq.read_schema(next((folder / "left").glob("*.parquet"))))
    read = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1)
    return [read.parquet(str(folder / name)) for name in ("left", "right")]


def ours(spark: SparkSession, folder: Path, within_s: float, balanced: bool = True) -> Callable[..., Running]:
    """Meander's join; with its balancer, if asked for."""

    def start(checkpoint: Path, sink: object = None, workers: int = WORKERS) -> Running:
        left, right = sides(spark, folder)
        near = pc.abs(pc.field("x") - pc.field("x_right")) < NEAR
        joined = me.stream(left).join(right, on="key", within=within_s, where=near, time="ts")
        sink = sink or me.sinks.format("noop", mode="overwrite")
        query = joined.start(checkpoint, sink, workers=workers, trigger={"availableNow": True})
        if balanced:
            query.keep_balanced(window=3, rest=3)
        return Running.of(spark, query)

    return start


def native(spark: SparkSession, folder: Path, within_s: float, rocksdb: bool = False) -> Callable[..., Running]:
    """Spark's own join, with watermarks and a range of time, so that it forgets what ours does."""

    def start(checkpoint: Path, name: str | None = None, workers: int = WORKERS) -> Running:
        from pyspark.sql import functions as F

        spark.conf.set("spark.sql.shuffle.partitions", workers)
        spark.conf.set(STORE, f"{STATE}.{'RocksDBStateStoreProvider' if rocksdb else 'HDFSBackedStateStoreProvider'}")
        left, right = (
            each.withWatermark("ts", "0 seconds").alias(side)
            for side, each in zip("lr", sides(spark, folder), strict=True)
        )
        width = f"INTERVAL {round(within_s * 1e6)} MICROSECONDS"
        on = f"l.key = r.key AND r.ts BETWEEN l.ts - {width} AND l.ts + {width} AND abs(l.x - r.x) < {NEAR}"
        pairs = left.join(right, F.expr(on)).select("l.key", "l.ts", "l.id", "l.x", "r.ts", "r.id", "r.x")
        if name is not None:
            pairs = pairs.toDF("key", "ts", "id", "x", "ts_right", "id_right", "x_right")
        writer = pairs.writeStream.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
        writer = writer.format("noop") if name is None else writer.format("memory").queryName(name)
        return Running(writer.outputMode("append").start())

    return start


class SparkJoinBench:
    """One Spark and a folder for everything."""

    def __init__(self, spark: SparkSession, sizes: SparkJoinSizes, folder: Path, said: Callable[[str], None]) -> None:
        self.spark, self.sizes, self.folder, self.said = spark, sizes, folder, said
        self._count = 0

    def throughput(self, coefficient: float) -> list[SparkJoinLine]:
        """Rows a second of ours and of Spark's, on one dataset."""
        sizes, name = self.sizes, f"Zipf {coefficient}"
        source = ZipfStreams(coefficient, sizes.keys)
        self.said(f"{name}: the same pairs?")
        small = write(self._new(), source, SparkJoinSizes(rows=3_000), 4)
        self._check(small)
        self.said(f"{name}: rows")
        large = write(self._new(), source, sizes, sizes.warm + sizes.batches)
        starts = {
            OURS: ours(self.spark, large, sizes.within_s),
            NATIVE: native(self.spark, large, sizes.within_s),
        }
        lines = [SparkJoinLine(name, system) for system in starts]
        for _ in range(sizes.rounds):
            for line in lines:
                self.said(f"{name}: {line.system}")
                line.runs.append(self._timed(starts[line.system], 2 * sizes.rows))
        return lines

    def growth(self, factors: tuple[int, ...] = (1, 2, 4)) -> list[tuple[int, int, float]]:
        """What a batch takes as the state doubles at one rate: (factor, rows stored, median ms).

        The window grows, and so does the number of keys: a row has as many matches as before.
        """
        sizes, points = self.sizes, []
        within_s = 1.0
        for factor in factors:
            self.said(f"growth: state x{factor}")
            warm = 2 * factor * 3
            source = ZipfStreams(0.2, 20 * sizes.rows * factor)
            folder = write(self._new(), source, sizes, warm + sizes.batches)
            runs = []
            for _ in range(sizes.rounds):
                run = self._timed(ours(self.spark, folder, factor * within_s, balanced=False), 2 * sizes.rows, warm)
                runs.append(run)
            points.append((factor, runs[-1].state_rows, statistics.median(ms for run in runs for ms in run.times_ms)))
        return points

    def _timed(self, start: Callable[..., Running], rows: int, warm: int | None = None) -> Measured:
        checkpoint = self._new()
        running = start(checkpoint)
        try:
            running.wait_for_end()
            return measured(running, rows, self.sizes.warm if warm is None else warm)
        finally:
            running.stop()
            shutil.rmtree(checkpoint, ignore_errors=True)

    def _check(self, folder: Path) -> None:
        """Both have the same pairs, or nothing is compared."""
        sink = me.sinks.memory()
        running = ours(self.spark, folder, 0.5)(self._new(), sink)
        running.wait_for_end()
        running.stop()
        name = f"pairs_{self._count}"
        other = native(self.spark, folder, 0.5)(self._new(), name)
        other.wait_for_end()
        theirs: pa.Table = self.spark.table(name).toArrow()
        other.stop()
        self.spark.catalog.dropTempView(name)
        mine, others = (Counter(zip(*(each[c].to_pylist() for c in ("id", "id_right")), strict=True))
                        for each in (sink.to_arrow(), theirs))  # fmt: skip
        if not mine or mine != others:
            raise SystemExit(
                f"the pairs differ: {(mine - others).total()} only ours, {(others - mine).total()} only Spark's"
            )

    def _new(self) -> Path:
        self._count += 1
        return self.folder / f"part-{self._count}"


def bench(app: str, sizes: SparkJoinSizes) -> AbstractContextManager[SparkJoinBench]:
    """A bench on a Spark of its own, whose files are gone afterwards."""

    @contextmanager
    def opened() -> Iterator[SparkJoinBench]:
        with tempfile.TemporaryDirectory(prefix="meander-join-") as folder:
            spark = session(app)
            try:
                yield SparkJoinBench(spark, sizes, Path(folder), print)
            finally:
                spark.stop()

    return opened()


def compared(quick: bool, coefficients: tuple[float, ...] = (0.2, 1.0)) -> Table:
    """Ours and Spark's own join on the Zipf streams, in rows a second of both sides."""
    with bench("join", QUICK if quick else SparkJoinSizes()) as runner:
        results = [runner.throughput(each) for each in coefficients]
    table = Table(title=f"ours and Spark's own join, {WORKERS} workers, local[2]", title_justify="left", box=None)
    for at, column in enumerate(("dataset", "system", "rows/s", "median batch ms", "ours is", "target")):
        table.add_column(column, justify="right" if at > 1 else "left")
    for coefficient, lines in zip(coefficients, results, strict=True):
        mine, theirs = lines
        ratio, wanted = mine.times_as_fast(theirs), 1.0
        target = f"{'met' if ratio >= wanted else 'missed'}: at least {wanted:g}x"
        table.add_row(mine.dataset, OURS, f"{statistics.median(mine.rates):,.0f}", f"{mine.batch_ms:,.0f}",
                      f"{ratio:.2f}x", target if coefficient in (0.2, 1.0) else "")  # fmt: skip
        table.add_row(
            mine.dataset, NATIVE, f"{statistics.median(theirs.rates):,.0f}", f"{theirs.batch_ms:,.0f}", "", ""
        )
    return table


def grown(quick: bool) -> Table:
    """Ours as its state doubles at one rate, and a row has as many matches as before."""
    with bench("growth", QUICK if quick else SparkJoinSizes(rows=50_000)) as runner:
        points = runner.growth()
    table = Table(title="the join as its state grows", title_justify="left", box=None)
    for column in ("state", "rows stored", "median batch ms", "of the one before", "target"):
        table.add_column(column, justify="right")
    before = None
    for factor, rows, ms in points:
        ratio = ms / before if before else 1.0
        target = "" if before is None else f"{'met' if ratio < 1.2 else 'missed'}: below 1.20"
        table.add_row(f"x{factor}", f"{rows:,}", f"{ms:,.0f}", f"{ratio:.2f}", target)
        before = ms
    return table
