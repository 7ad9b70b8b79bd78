"""The demo: a live word count that is rescaled while it runs, watched, and checked against a recount at the end."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from meander.cli import show
from meander.cli.quiet import without_start_up_warnings
from meander.engine.driver.version_progress import VersionProgress
from meander.errors import QueryFailed
from meander.pictures import many
from meander.warmth import is_warm

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from meander.migration.handle import Migration
    from meander.streams import Query

VOCABULARY = 50_000
LEFT_OUT = 3
"""The first batches wait for Python processes and compiled kernels to be loaded: they are not in the figures."""

STEADY = 5
"""So many batches run at every size before the next."""

COLOURS = ("cyan", "magenta", "yellow", "green", "blue", "red")


def words(number: Column) -> Column:
    """The word of each row, as skewed as language: the one of rank r comes about 1/r as often as the first."""
    from pyspark.sql import functions as F

    uniform = F.pmod(F.xxhash64(number), F.lit(1_000_000)) / 1e6
    return F.concat(F.lit("w"), F.floor(F.pow(F.lit(float(VOCABULARY)), uniform)).cast("string")).alias("word")


def run_demo(console: Console, master: str, seconds: float, through: list[int], bins: int, rate: int) -> None:
    """Count words, rescale meanwhile, show it; then recount every word in a plain batch job and compare."""
    import meander as me

    console.print(f"Starting Spark on {master} ..")
    if not is_warm():
        console.print("Compiling inner loops beside, once for this machine: the first batch waits for some of them.")
    with without_start_up_warnings():
        spark = me.session(master, app="meander-demo", spark__ui__enabled=False, spark__sql__shuffle__partitions=2)
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
                    checkpoint=f"{folder}/checkpoint", sink=counts, workers=through[0], bins=bins, name="demo", retain=2
                )
            )
            run = DemoRun(console, query, seconds)
            moves = run.go(through)
            emitted = counts.to_arrow()
            _print_figures(console, run.progress, moves, emitted)
            _check(console, spark, emitted, run.progress)
    finally:
        spark.stop()


class DemoRun:
    """Shows a query while it runs and goes through its sizes."""

    def __init__(self, console: Console, query: Query, seconds: float) -> None:
        self.console, self.query = console, query
        self.ends = time.monotonic() + seconds
        self.moves: list[Migration] = []
        self._seen: dict[int, VersionProgress] = {}

    @property
    def progress(self) -> list[VersionProgress]:
        """What every version did, oldest first."""
        return [self._seen[version] for version in sorted(self._seen)]

    def go(self, through: list[int]) -> list[Migration]:
        """Run some batches at every size, at least until the time is up, and return the migrations in between."""
        with Live(console=self.console, refresh_per_second=4, transient=self.console.is_terminal) as live:
            self._until(live, lambda: len(self._seen) >= LEFT_OUT + STEADY)
            for workers in through[1:]:
                move = self.query.rescale(workers)
                self.moves.append(move)
                self._until(live, lambda: move.report.outcome not in ("waiting", "running"))  # noqa: B023
                move.wait(60, show=False)
                self._say(move)
                reached = len(self._seen) + STEADY
                self._until(live, lambda: len(self._seen) >= reached)  # noqa: B023
            self._until(live, lambda: time.monotonic() >= self.ends)
        self.query.stop()
        self._look()
        self.console.print(_view(self.query, self.progress, 0.0))
        return self.moves

    def _until(self, live: Live, done: Callable[[], bool]) -> None:
        while not done():
            problem = self.query.exception()
            if problem is not None or not self.query.is_active:
                raise QueryFailed(f"the demo's query has failed: {problem}")
            time.sleep(0.1)
            self._look()
            if self.console.is_terminal:
                live.update(_view(self.query, self.progress, max(0.0, self.ends - time.monotonic())))

    def _look(self) -> None:
        self._seen.update({each.version: each for each in self.query.recent_progress})

    def _say(self, move: Migration) -> None:
        report = move.report
        self.console.print(
            f"{len(report.workers_before)} -> {many(len(report.workers_after), 'worker')} while it ran: "
            f"{many(report.bins, 'bin')}, "
            f"{show.size(report.bytes)} in {many(report.steps, 'step')} and {report.duration_s:.1f} s; rows held "
            f"{report.rows_held}, misrouted {report.rows_misrouted}"
        )
        self.console.print(_strip(self.query))


def _strip(query: Query) -> Text:
    """Who owns the bins, a character each, or for every few of them where there are many."""
    (owner,) = query.assignment.values()
    every = max(1, len(owner) // 64)
    text = Text("bins ")
    for worker in owner[::every]:
        text.append(f"{worker % 10}", style=COLOURS[worker % len(COLOURS)])
    return text


def _print_figures(console: Console, progress: list[VersionProgress], moves: list[Migration], emitted: Any) -> None:
    """Print rows in, rows counted, bytes moved, and the worst batch before, during and after the migrations."""
    moving = {version for move in moves for version in move.versions}
    after = max(moving, default=0)
    parts: dict[str, list[float]] = {"before": [], "during": [], "after": []}
    for each in progress[LEFT_OUT:]:
        at = "during" if each.version in moving else "after" if each.version > after else "before"
        parts[at].append(each.took_ms)
    newest: dict[str, int] = dict(zip(emitted["word"].to_pylist(), emitted["count"].to_pylist(), strict=True))
    console.print(
        f"\nrows in {sum(each.rows for each in progress):,}, rows counted {sum(newest.values()):,}, "
        f"bytes moved {show.size(sum(move.report.bytes for move in moves))}"
    )
    worst = [f"{max(times):.0f} ms {name}" for name, times in parts.items() if times]
    console.print(f"worst batch: {', '.join(worst)}")


def _view(query: Query, progress: list[VersionProgress], left_s: float) -> Group:
    totals = (">batches", ">rows", ">rows/s", ">batch, median", ">words", ">state", ">misrouted", ">left")
    head = show.new_table(*totals, title="[bold]a live word count[/]")
    workers = show.new_table("worker", ">rows in the last batch", "", ">words", ">state", ">busy")
    if not progress:
        return Group(head, "waiting for the first batch: Python processes and kernels are being loaded")
    last = progress[-1]
    steady = progress[LEFT_OUT:] or progress
    took_ms = [each.took_ms for each in steady]
    rows = sum(each.rows for each in progress)
    per_s = sum(each.rows for each in steady) / (sum(took_ms) / 1000)
    parts = last.workers
    head.add_row(
        str(len(progress)), f"{rows:,}", f"{per_s:,.0f}", f"{statistics.median(took_ms):.0f} ms",
        f"{sum(part.state_rows for part in parts):,}", show.size(last.state_bytes),
        str(query.misrouted), f"{left_s:.0f} s",
    )  # fmt: skip
    most = max(1, *(part.rows for part in parts))
    for part in parts:
        workers.add_row(
            str(part.worker), f"{part.rows:,}", "█" * round(24 * part.rows / most),
            f"{part.state_rows:,}", show.size(part.state_bytes), f"{part.spent_ms['busy']:.0f} ms",
        )  # fmt: skip
    moving = query.migration
    lines = [str(moving.progress)] if moving is not None and moving.status in ("waiting", "running") else []
    return Group(head, "", workers, "", _strip(query), *lines)


def _check(console: Console, spark: SparkSession, emitted: Any, progress: list[VersionProgress]) -> None:
    """Recount all rows that were committed, in a batch job that shares nothing with the engine, and compare."""
    rows = sum(each.rows for each in progress)
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
    console.print(
        f"[bold]Verified[/]: {rows:,} rows recounted by a batch job, all {len(recounted):,} counts are equal."
    )


def _recount(spark: SparkSession, rows: int) -> dict[str, int]:
    numbers: DataFrame = spark.range(rows)
    counted = numbers.select(words(numbers["id"])).groupBy("word").count().toArrow()
    return dict(zip(counted["word"].to_pylist(), counted["count"].to_pylist(), strict=True))
