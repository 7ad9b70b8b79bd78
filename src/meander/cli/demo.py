"""The demo: a live word count over a skewed generator, watched while it runs and checked against a recount."""

from __future__ import annotations

import statistics
import tempfile
import time
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table

from meander.cli import show
from meander.errors import QueryFailed

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from meander.query import Query

VOCABULARY = 50_000
LEFT_OUT = 2
"""The first batches wait for Python processes and compiled kernels to be loaded: they are not in the median."""


def words(number: Column) -> Column:
    """The word of each row, as skewed as language: the one of rank r comes about 1/r as often as the first."""
    from pyspark.sql import functions as F

    uniform = F.pmod(F.xxhash64(number), F.lit(1_000_000)) / 1e6
    return F.concat(F.lit("w"), F.floor(F.pow(F.lit(float(VOCABULARY)), uniform)).cast("string")).alias("word")


def run_demo(console: Console, master: str, seconds: float, workers: int | None, bins: int, rate: int) -> None:
    """Count words for a while, show it, then recount every word in a plain batch job and compare."""
    import meander as me

    console.print(f"Starting Spark on {master} ..")
    spark = me.session(master, app="meander-demo")
    spark.sparkContext.setLogLevel("ERROR")
    try:
        with tempfile.TemporaryDirectory(prefix="meander-demo-") as folder:
            source = spark.readStream.format("rate").option("rowsPerSecond", rate).load()
            counts = me.sinks.memory("counts")
            query = (
                me.stream(source.select(words(source["value"])))
                .key_by("word")
                .count()
                .start(
                    checkpoint=f"{folder}/checkpoint", sink=counts, workers=workers, bins=bins, name="demo", retain=2
                )
            )
            progress = _watch(console, query, seconds)
            _check(console, spark, counts.to_arrow(), progress)
    finally:
        spark.stop()


def _watch(console: Console, query: Query, seconds: float) -> list[dict[str, Any]]:
    """Show the query until the time is up, and return what every version did."""
    seen: dict[int, dict[str, Any]] = {}
    ends = time.monotonic() + seconds
    with Live(console=console, refresh_per_second=4, transient=console.is_terminal) as live:
        while time.monotonic() < ends and query.is_active:
            time.sleep(0.2)
            seen.update({each["version"]: each for each in query.recent_progress})
            left = max(0.0, ends - time.monotonic())
            if console.is_terminal:
                live.update(_view(query, [seen[version] for version in sorted(seen)], left))
    problem = query.exception()
    if problem is not None:
        raise QueryFailed(f"the demo's query has failed: {problem}")
    query.stop()
    seen.update({each["version"]: each for each in query.recent_progress})
    if not seen:
        raise QueryFailed(f"nothing was counted within {seconds:g} s; try again with --seconds {2 * seconds:g}")
    done = [seen[version] for version in sorted(seen)]
    console.print(_view(query, done, 0.0))
    return done


def _view(query: Query, progress: list[dict[str, Any]], left_s: float) -> Group:
    head = Table(box=None, pad_edge=False, title="[bold]a live word count[/]", title_justify="left")
    for column in ("batches", "rows", "rows/s", "batch, median", "words", "state", "misrouted", "left"):
        head.add_column(column, justify="right")
    workers = Table(box=None, pad_edge=False)
    for column in ("worker", "rows in the last batch", "", "words", "state", "busy"):
        workers.add_column(column, justify="left" if column in ("worker", "") else "right")
    if not progress:
        return Group(head, "waiting for the first batch: Python processes and kernels are being loaded")
    last = progress[-1]
    steady = progress[LEFT_OUT:] or progress
    took_ms = [sum(each["spent_ms"].values()) for each in steady]
    rows = sum(each["rows"] for each in progress)
    per_s = sum(each["rows"] for each in steady) / (sum(took_ms) / 1000)
    parts = last["workers"]
    head.add_row(
        str(len(progress)), f"{rows:,}", f"{per_s:,.0f}", f"{statistics.median(took_ms):.0f} ms",
        f"{sum(part['state_rows'] for part in parts):,}", show.size(sum(part["state_bytes"] for part in parts)),
        str(query.misrouted), f"{left_s:.0f} s",
    )  # fmt: skip
    most = max(1, *(part["rows"] for part in parts))
    for part in parts:
        workers.add_row(
            str(part["worker"]), f"{part['rows']:,}", "█" * round(24 * part["rows"] / most),
            f"{part['state_rows']:,}", show.size(part["state_bytes"]), f"{part['spent_ms']['busy']:.0f} ms",
        )  # fmt: skip
    return Group(head, "", workers)


def _check(console: Console, spark: SparkSession, emitted: Any, progress: list[dict[str, Any]]) -> None:
    """Recount all rows that were committed, in a batch job that shares nothing with the engine, and compare."""
    rows = sum(each["rows"] for each in progress)
    newest: dict[str, int] = dict(zip(emitted["word"].to_pylist(), emitted["count"].to_pylist(), strict=True))
    recounted = _recount(spark, rows)
    wrong = [word for word in recounted.keys() | newest.keys() if recounted.get(word) != newest.get(word)]
    if wrong:
        word = sorted(wrong)[0]
        raise QueryFailed(
            f"{len(wrong)} of {len(recounted)} words are wrong, {word!r} for one: counted {newest.get(word, 0)}, "
            f"recounted {recounted.get(word, 0)}; please report this"
        )
    most = sorted(recounted.items(), key=lambda item: (-item[1], item[0]))[:5]
    console.print("\nthe most frequent: " + ", ".join(f"{word} {count:,}" for word, count in most))
    console.print(f"[bold]Checked[/]: {rows:,} rows recounted by a batch job, all {len(recounted):,} counts are equal.")


def _recount(spark: SparkSession, rows: int) -> dict[str, int]:
    numbers: DataFrame = spark.range(rows)
    counted = numbers.select(words(numbers["id"])).groupBy("word").count().toArrow()
    return dict(zip(counted["word"].to_pylist(), counted["count"].to_pylist(), strict=True))
