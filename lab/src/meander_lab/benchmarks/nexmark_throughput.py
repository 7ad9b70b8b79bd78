"""Large batches of NEXMark, ours beside Spark's own streaming SQL. For `./dev bench nexmark`.

All read the same folder of Parquet files, one of each kind in each batch, on the same Spark, and hand their rows to its
`noop` sink. Rows are events of the kinds that a query reads; where Spark's form reads them twice, they count once. A
batch's time is Spark's own `triggerExecution`. Before anything is timed, both sides answer over a small folder, and a
peer that answers otherwise is not timed.
"""

from __future__ import annotations

import itertools
import shutil
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import meander as me
from meander_lab.benchmarks import nexmark_peers as peers
from meander_lab.benchmarks.engine_figures import quantile, ratio_in_turn
from meander_lab.benchmarks.engine_measure import Measured, measured
from meander_lab.benchmarks.engine_peers import Running
from meander_lab.benchmarks.nexmark_figures import READS, SHARES
from meander_lab.nexmark import files
from meander_lab.nexmark.generator.config import Config
from meander_lab.nexmark.queries import QueryDefinition, named
from meander_lab.nexmark.streams import Events

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

OURS = "ours"
LATENESS = timedelta(seconds=4)
WINDOW = timedelta(seconds=10)
CHECK_RATE = 2_500
"""Events in a second of event time of the small folder: some windows close within few events."""


@dataclass(frozen=True)
class ThroughputSizes:
    """How much is measured: events a batch, batches that count and that do not, runs in turn, events of the check."""

    events: int = 250_000
    batches: int = 10
    warm: int = 2
    rounds: int = 2
    checked: int = 100_000


QUICK = ThroughputSizes(events=50_000, batches=4, warm=2, rounds=1, checked=50_000)


@dataclass
class ThroughputLine:
    """A query on one system, over its runs; `note` says why where there is no figure."""

    query: str
    system: str
    runs: list[Measured] = field(default_factory=list)
    note: str = ""

    @property
    def times_ms(self) -> list[float]:
        """Every batch of all runs."""
        return [ms for each in self.runs for ms in each.times_ms]

    @property
    def rates(self) -> list[float]:
        """Rows a second of each run, over all its batches."""
        return [each.rows * len(each.times_ms) / sum(each.times_ms) * 1000 for each in self.runs]

    @property
    def rows_per_s(self) -> float:
        """The median of the runs."""
        return statistics.median(self.rates)

    def times_as_fast(self, other: ThroughputLine) -> float:
        """How many times as many rows a second this one takes, run by run."""
        return ratio_in_turn(self.rates, other.rates)

    def to_dict(self) -> dict[str, object]:
        """One row of the CSV."""
        figures: dict[str, object] = dict.fromkeys(("rows_a_batch", "rows_per_s", "median_ms", "p99_ms", "batches"), "")
        if self.runs:
            figures = {
                "rows_a_batch": self.runs[0].rows, "rows_per_s": round(self.rows_per_s),
                "median_ms": round(statistics.median(self.times_ms), 1),
                "p99_ms": round(quantile(self.times_ms, 0.99), 1), "batches": len(self.times_ms),
            }  # fmt: skip
        return {"query": self.query, "system": self.system, **figures, "note": self.note}


class ThroughputBench:
    """One Spark, a large and a small folder of events, and a folder for checkpoints."""

    def __init__(self, spark: SparkSession, sizes: ThroughputSizes, folder: Path, said: Callable[[str], None]) -> None:
        self.spark, self.sizes, self.folder, self.said = spark, sizes, folder, said
        self._number = itertools.count()
        said("events")
        parts = sizes.warm + sizes.batches
        self.large = files.write(folder / "large", sizes.events * parts, Config(), parts)
        self.small = files.write(folder / "small", sizes.checked, Config(rate_per_s=CHECK_RATE), 4)

    def lines(self, query: str, rocksdb: bool) -> list[ThroughputLine]:
        """Everything there is to say about one query: ours, and its peers."""
        definition = named(query)
        results = [ThroughputLine(query, OURS)]
        if query in peers.REFUSED:
            self.said(f"{query}: what Spark says")
            refused = peers.refusal(peers.REFUSED[query], Events.of_files(self.spark, self.small), self.folder)
            results.append(ThroughputLine(query, "Spark", note=note_of(refused)))
        starts: dict[str, Callable[[Path], Running]] = {OURS: lambda folder: self._ours(definition, folder)}
        if query in peers.PEERS:
            self.said(f"{query}: the same answer?")
            mine = self._answer(definition)
        for name, build in peers.PEERS.get(query, {}).items():
            line = ThroughputLine(
                query, name, note=differing(query, mine, self._their_answer(build), self._closed(query))
            )
            results.append(line)
            if not line.note:
                starts[name] = self._theirs(build, rocksdb=False)
                if rocksdb and query not in ("q1", "q2"):
                    results.append(ThroughputLine(query, f"{name}, RocksDB"))
                    starts[f"{name}, RocksDB"] = self._theirs(build, rocksdb=True)
        for _ in range(self.sizes.rounds):
            for line in results:
                if line.system in starts:
                    self.said(f"{query}: {line.system}")
                    line.runs.append(self._timed(query, starts[line.system]))
        return results

    # --- timing ----------------------------------------------------------------------------

    def _timed(self, query: str, start: Callable[[Path], Running]) -> Measured:
        checkpoint = self._new()
        running = start(checkpoint)
        try:
            running.wait_for_end()
            rows = round(self.sizes.events * sum(SHARES[kind] for kind in READS[query]))
            return measured(running, rows, self.sizes.warm)
        finally:
            running.stop()
            shutil.rmtree(checkpoint, ignore_errors=True)

    def _ours(self, definition: QueryDefinition, folder: Path) -> Running:
        sink = me.sinks.format("noop", mode="overwrite")
        stream = definition.build(Events.of_files(self.spark, self.large))
        query = stream.start(folder, sink, workers=2, trigger={"availableNow": True})
        return Running.of(self.spark, query)

    def _theirs(self, build: peers.Build, rocksdb: bool) -> Callable[[Path], Running]:
        return lambda folder: peers.run(build(Events.of_files(self.spark, self.large)), folder, rocksdb=rocksdb)

    # --- answers ---------------------------------------------------------------------------

    def _answer(self, definition: QueryDefinition) -> pa.Table:
        folder, sink = self._new(), me.sinks.memory()
        stream = definition.build(Events.of_files(self.spark, self.small))
        query = stream.start(folder, sink, workers=2, trigger={"availableNow": True}, at_end="close")
        try:
            query.await_termination()
        finally:
            query.stop()
        shutil.rmtree(folder, ignore_errors=True)
        return definition.shown(sink.to_arrow())

    def _their_answer(self, build: peers.Build) -> pa.Table:
        folder, name = self._new(), f"answer_{next(self._number)}"
        running = peers.run(build(Events.of_files(self.spark, self.small)), folder, to="memory", name=name)
        try:
            running.wait_for_end()
            answer: DataFrame = self.spark.table(name)
            return answer.toArrow()
        finally:
            running.stop()
            self.spark.catalog.dropTempView(name)
            shutil.rmtree(folder, ignore_errors=True)

    def _closed(self, query: str) -> pa.Scalar:
        """The time that Spark's watermark has come to at the end of the small folder."""
        newest = [
            pc.max(pq.read_table(self.small / kind, columns=["dateTime"])["dateTime"]).as_py() for kind in READS[query]
        ]
        return pa.scalar(min(newest) - LATENESS, pa.timestamp("us", "UTC"))

    def _new(self) -> Path:
        return self.folder / f"run-{next(self._number)}"


# --- comparing answers -----------------------------------------------------------------------


def note_of(refused: Mapping[str, str]) -> str:
    """Why Spark cannot run a query, in its own words; "" where it would run in some output mode."""
    if len(refused) < len(peers.MODES):
        return ""
    return "; ".join(f"{mode}: {why}" for mode, why in refused.items())


def ends(query: str, rows: pa.Table) -> pa.ChunkedArray | None:
    """When the window of each row of an answer ends; None where the query has no windows."""
    if query == "q5":
        return rows["endtime"]
    if query == "q8":
        return pc.add(rows["starttime"], pa.scalar(WINDOW))
    if query == "q7":
        floor = pc.floor_temporal(rows["dateTime"], multiple=int(WINDOW.total_seconds()), unit="second")
        return pc.add(floor, pa.scalar(WINDOW))
    return None


def differing(query: str, ours: pa.Table, theirs: pa.Table, closed: pa.Scalar) -> str:
    """What is wrong with a peer's answer, "" where nothing is; of ours only the windows count that it has closed."""
    theirs = theirs.select(ours.column_names)
    until = ends(query, ours)
    if until is not None:
        ours = ours.filter(pc.less_equal(until, closed))
    mine, others = counted(ours), counted(theirs)
    if not mine:
        return "the answer is empty, and nothing is compared"
    if mine != others:
        return f"another answer: {(mine - others).total()} rows missing, {(others - mine).total()} too many"
    return ""


def counted(rows: pa.Table) -> Counter[tuple[object, ...]]:
    """How often each row is there; times as microseconds, whatever their zone is called."""
    columns = []
    for column in rows.columns:
        if pa.types.is_timestamp(column.type):
            column = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
        columns.append(column.to_pylist())
    return Counter(zip(*columns, strict=True))


# --- telling ---------------------------------------------------------------------------------


def compared(lines: Sequence[ThroughputLine]) -> list[list[str]]:
    """The cells of the table, a row for each line; the ratio is how many times as fast ours is."""
    mine = {line.query: line for line in lines if line.system == OURS}
    rows = []
    for line in lines:
        if not line.runs:
            rows.append([line.query, line.system, "", "", "", "", line.note or "not run"])
            continue
        median, high = statistics.median(line.times_ms), quantile(line.times_ms, 0.99)
        ratio = "" if line.system == OURS else f"{mine[line.query].times_as_fast(line):.2f}x"
        rows.append([
            line.query, line.system, f"{line.runs[0].rows:,}", f"{line.rows_per_s:,.0f}", f"{median:,.0f}",
            f"{high:,.0f}", ratio,
        ])  # fmt: skip
    return rows


def spent(lines: Sequence[ThroughputLine]) -> list[list[str]]:
    """Where the milliseconds of our batches go, a row for each query: Spark, our driver, the slowest task."""
    rows = []
    for line in lines:
        if line.system != OURS or not line.runs:
            continue
        last = line.runs[-1]
        figures = [
            last.spark_ms.get("triggerExecution"), last.spark_ms.get("addBatch"),
            *(last.driver_ms.get(name) for name in ("operate", "sink", "commit")), last.task_ms.get("busy"),
        ]  # fmt: skip
        cells = ["" if figure is None else f"{figure:,.0f}" for figure in figures]
        rows.append([line.query, *cells, f"{last.state_rows:,}", f"{last.state_bytes / 1e6:,.1f}"])
    return rows
