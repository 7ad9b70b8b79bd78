"""One run of ours, in a driver process of its own, in the same form as one of Flink's. For `./dev bench flink`.

The query is a count by key with full durability, to Spark's `noop` sink. Rows of a load at a rate come from the feed of
the other benchmarks, those of every 20 ms at once; rows as fast as they are taken from Spark's `rate-micro-batch`.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

import meander as me
from meander_lab.benchmarks.engine_peers import NumberFeed, session
from meander_lab.benchmarks.flink_figures import Commit, PeerCase, PeerRecord, is_long_enough
from meander_lab.benchmarks.flink_keys import difference, expected_counts, spark_key
from meander_lab.benchmarks.migrate_case import mark, run, tell
from meander_lab.benchmarks.migrate_load import Commits, Load, fill
from meander_lab.benchmarks.migrate_load import session as session_of_processes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

WORKERS, MORE_WORKERS = 2, 4
BINS = 256
PATIENCE_S = 300.0


# --- in the driver process -------------------------------------------------------------------


def carry_out(case: PeerCase) -> None:
    """Run one case of ours, and print what happens, one JSON object a line."""
    spark = (
        session_of_processes(MORE_WORKERS, "meander-bench-flink")
        if case.part == "rescale"
        else session("meander-bench-flink")
    )
    with tempfile.TemporaryDirectory(prefix="meander-bench-", ignore_cleanup_errors=True) as folder:
        checkpoint = Path(folder) / "ours"
        try:
            (_flood if case.part == "throughput" else _open_loop)(spark, case, checkpoint)
        finally:
            spark.stop()


def _started(rows: DataFrame, checkpoint: Path) -> me.Query:
    sink = me.sinks.format("noop", mode="overwrite")
    return me.stream(rows).key_by("key").count().start(checkpoint, sink, workers=WORKERS, bins=BINS)


def _flood(spark: SparkSession, case: PeerCase, checkpoint: Path) -> None:
    """Batches of many rows, one after the other, as fast as they are taken."""
    source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", case.rows_a_batch)
    numbers = source.option("numPartitions", 2).load()
    query = _started(numbers.select(spark_key(case.law, case.keys, numbers["value"]).alias("key")), checkpoint)
    log = CommitLog(checkpoint / "spark" / "commits")
    try:
        _wait(query, "the first batch", lambda: bool(log.look()))
        mark("load")
        _sleep(query, case.warm_s, log.look)
        steady_s = mark("steady")
        _sleep(query, case.seconds, log.look)
        _wait(
            query,
            "enough commits",
            lambda: is_long_enough([Commit(at_s, (number + 1,)) for number, at_s in log.look()], steady_s),
        )
        mark("end")
    finally:
        with suppress(Exception):
            query.stop()
    commits = [(at_s, (number + 1) * case.rows_a_batch) for number, at_s in log.look()]
    tell("batches", batches=[(at, 0.0, at_s, 0, rows) for at, (at_s, rows) in enumerate(commits)])
    numbers_of, counts = stored_counts(checkpoint, case.law)
    rows = int(counts.sum())
    # A stop may come between our commit and Spark's, which then brings the batch again; nothing else may be amiss.
    fits = commits[-1][1] <= rows <= commits[-1][1] + case.rows_a_batch and rows % case.rows_a_batch == 0
    problem = None if fits else f"{rows:,} rows were counted where {commits[-1][1]:,} were committed"
    tell("told", told={"rows": rows, "problem": problem or _difference(case, (rows,), numbers_of, counts)})


def _open_loop(spark: SparkSession, case: PeerCase, checkpoint: Path) -> None:
    """A load at a rate over a state with all keys, and in a rescale two workers more on the way."""
    feed = NumberFeed(spark, case.keys)
    query = _started(feed.rows, checkpoint)
    commits = Commits(checkpoint / "spark", feed)
    load = Load(feed, commits, case.rate)
    try:
        fill(feed, case.fill, query.process_all_available)
        load.start()
        tell("mark", name="load", at=load.load_s)
        _sleep(query, case.warm_s)
        steady_s = mark("steady")
        _sleep(query, case.seconds)
        _wait(
            query,
            "enough commits",
            lambda: is_long_enough([Commit(each.ended_s, (each.end,)) for each in commits.batches], steady_s),
        )
        if case.part == "rescale":
            began = mark("rescale")
            migration = query.rescale(MORE_WORKERS)
            if not migration.wait(PATIENCE_S):
                raise TimeoutError(f"the rescale was not over within {PATIENCE_S:.0f} s: {migration.progress}")
            mark("rescaled")
            if len(query.workers) != MORE_WORKERS:
                raise RuntimeError(f"there are {len(query.workers)} workers after a rescale to {MORE_WORKERS}")
            _sleep(query, max(0.0, began + case.seconds - time.time()))
        mark("end")
        load.stop()
        query.process_all_available()
        commits.close()
    finally:
        load.stop()
        with suppress(Exception):
            query.stop()
    tell("batches", batches=commits.batches)
    numbers, counts = stored_counts(checkpoint, case.law)
    positions = (case.fill + max(end for _, end in feed.ranges),)
    tell("told", told={"rows": int(counts.sum()), "problem": _difference(case, positions, numbers, counts)})


class CommitLog:
    """When each of Spark's batches was committed, by the files of its log, which it removes after a while."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._times: list[tuple[int, float]] = []

    def look(self) -> list[tuple[int, float]]:
        """Number and time of all batches so far."""
        while (file := self._folder / str(len(self._times))).exists():
            self._times.append((len(self._times), file.stat().st_mtime))
        return self._times


def stored_counts(checkpoint: Path, law: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The keys in a checkpoint, as numbers, and their counts, read without the query."""
    table = me.checkpoint(checkpoint).to_arrow("count")
    keys, counts = table["key"], table["count"].to_numpy()
    if law == "texts":
        import pyarrow.compute as pc

        keys = pc.utf8_slice_codeunits(keys, 1).cast("int64")
    return keys.to_numpy(), counts


def _difference(
    case: PeerCase, positions: tuple[int, ...], numbers: NDArray[np.int64], counts: NDArray[np.int64]
) -> str | None:
    return difference(numbers, counts, *expected_counts(positions, case.law, case.keys, case.fill))


def _sleep(query: me.Query, seconds: float, look: Callable[[], Any] = lambda: None) -> None:
    """Wait while the query runs; raises what it failed of."""
    end = time.time() + seconds
    while (left := end - time.time()) > 0:
        _check(query)
        look()
        time.sleep(min(left, 0.5))


def _wait(query: me.Query, what: str, ready: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not ready():
        _check(query)
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} did not come within {PATIENCE_S:.0f} s")
        time.sleep(0.05)


def _check(query: me.Query) -> None:
    problem = query.exception()
    if problem is not None:
        raise problem


# --- outside ---------------------------------------------------------------------------------


def run_ours(case: PeerCase, log: Path) -> PeerRecord:
    """Run a case of ours in a process of its own, and return what it has told.

    Raises:
        Failed: the process did not do what it should.
    """
    within_s = 300 + case.keys / 10_000 + 10 * (case.warm_s + case.seconds)
    result = run("flink", json.dumps(asdict(case)), log, within_s)
    # Commits of the rows that fill say nothing of which; they are before the load.
    commits = [Commit(each.ended_s, (case.fill + each.end,)) for each in result.batches if each.rows]
    return replace(
        PeerRecord(case),
        commits=commits, begin_s=result.marks["load"], marks=result.marks,
        rows_counted=result.told["rows"], problem=result.told["problem"],
    )  # fmt: skip
