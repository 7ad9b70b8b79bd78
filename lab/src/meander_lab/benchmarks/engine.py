"""./dev bench engine: the binned engine beside what Spark itself offers, in one run on one machine.

Count by key on `local[2]`, two workers or two shuffle partitions, everything to Spark's `noop` sink, ours with its full
durability. A batch's time is Spark's own `triggerExecution`; figures are medians over batches after warm-up. Parts:

    throughput   1 M rows a batch over 1 M keys, numbers and texts, against native, per-key Python and bucketed NumPy
    latency      10 k rows a batch, against native
    bins         the same 1 M rows with 2^4 to 2^16 bins
    state        the same batches of 200 k rows on 1 M and on 10 M keys; memory per key
    records      latency of single records at a fixed rate, 2^4 to 2^16 bins and native: histogram, CCDF plot
    routing      the lookup of a row's worker in the JVM, one array against intervals
    durability   fsync on and off

Ends with exit code 1 where a target is missed, unless the sizes are the quick ones. A full run takes a
quarter of an hour or more with 2 cores; run it on a quiet machine, for load from others falls on some systems only.
"""

from __future__ import annotations

import argparse
import itertools
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from meander_lab.benchmarks import engine_peers as peers
from meander_lab.benchmarks import engine_records as records
from meander_lab.benchmarks import engine_routing as routing
from meander_lab.benchmarks.engine_figures import BenchTarget, Histogram, quantile, ratio_in_turn
from meander_lab.benchmarks.engine_measure import Measured, measured, profiled, python_bytes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CONSOLE = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
LAPS = ("take", "catch_up", "operate", "delta", "write", "output")


@dataclass(frozen=True)
class EngineSizes:
    """How much is measured."""

    keys: int = 1_000_000
    rows: int = 1_000_000
    small_rows: int = 10_000
    slow_rows: int = 4_000
    state_rows: int = 200_000
    large_state: int = 10_000_000
    warm: int = 3
    batches: int = 5
    small_batches: int = 25
    rounds: int = 3
    record_rate: int = 100_000
    record_s: float = 10.0
    record_bins: tuple[int, ...] = (1 << 4, 1 << 8, 1 << 12, 1 << 16)
    routed_rows: int = 20_000_000


QUICK = EngineSizes(
    keys=100_000,
    rows=100_000,
    slow_rows=500,
    state_rows=20_000,
    large_state=1_000_000,
    warm=2,
    batches=2,
    small_batches=5,
    rounds=1,
    record_rate=20_000,
    record_s=2.0,
    record_bins=(1 << 4, 1 << 12),
    routed_rows=2_000_000,
)


class EngineBench:
    """One part's Spark application, its sizes, and a folder for checkpoints."""

    def __init__(self, spark: SparkSession, sizes: EngineSizes, folder: Path, said: Callable[[str], None], plots: Path):
        self.spark, self.sizes, self.folder, self.said, self.plots = spark, sizes, folder, said, plots
        self._number = itertools.count()

    @contextmanager
    def run(self, start: peers.Start, rows: DataFrame, said: str) -> Iterator[peers.Running]:
        """A query over these rows with a checkpoint of its own, both gone at the end."""
        self.said(said)
        checkpoint = self.folder / f"run-{next(self._number)}"
        running = start(rows, checkpoint)
        try:
            yield running
        finally:
            running.stop()
            shutil.rmtree(checkpoint, ignore_errors=True)

    def batches(self, start: peers.Start, rows: int, count: int, said: str, text: bool = False) -> Measured:
        """So many batches of so many rows, after those that warm up."""
        warm = self.sizes.warm
        with self.run(start, peers.steady(self.spark, rows, self.sizes.keys, text), said) as running:
            running.wait(warm + count)
            return measured(running, rows, warm)


# --- the parts -------------------------------------------------------------------------------


def throughput(bench: EngineBench) -> list[BenchTarget]:
    """Rows per second of every system, and how many times theirs ours is."""
    sizes = bench.sizes
    few = max(2, sizes.batches - 2)
    systems: dict[str, tuple[peers.Start, int, int]] = {
        "ours": (peers.ours(), sizes.rows, sizes.batches),
        "native, default store": (peers.native(), sizes.rows, sizes.batches),
        "native, RocksDB": (peers.native(rocksdb=True), sizes.rows, few),
        "bucketed NumPy": (peers.bucketed(sizes.keys), sizes.rows, few),
        "applyInPandasWithState per key": (peers.per_key, sizes.slow_rows, 2),
        "transformWithStateInPandas per key": (peers.transform, sizes.slow_rows, 2),
    }
    results: dict[tuple[str, str], Measured] = {}
    for kind, names in (("int", list(systems)), ("string", list(systems)[:3])):
        for name in names:
            start, rows, count = systems[name]
            said = f"throughput: {name}, {kind} keys"
            results[kind, name] = bench.batches(start, rows, count, said, text=kind == "string")
    table = _table("throughput: count by key", "keys", "system", "rows a batch", "ms a batch", "rows/s", "ours is")
    for (kind, name), each in results.items():
        times = results[kind, "ours"].rows_per_s / each.rows_per_s
        figures = f"{each.rows:,}", f"{each.median_ms:,.0f}", f"{each.rows_per_s:,.0f}", f"{times:.1f}x"
        table.add_row(kind, name, *figures)
    CONSOLE.print(table)
    _where("throughput", {f"{kind} keys": results[kind, "ours"] for kind in ("int", "string")})
    limits = dict(zip(systems, (1.0, 2.0, 5.0, 2.0, 100.0, 100.0), strict=True))
    return [
        BenchTarget(
            f"{kind} keys: rows/s of ours / {name}",
            results[kind, "ours"].rows_per_s / each.rows_per_s,
            limits[name],
            at_least=True,
        )
        for (kind, name), each in results.items()
        if name != "ours"
    ]


def latency(bench: EngineBench) -> list[BenchTarget]:
    """The median and the 90th percentile of small batches, run in turn, to two sinks.

    Neither needs a second Spark job of ours: workers drop what goes to `noop`, and small output comes with reports.
    """
    sizes = bench.sizes
    systems = {
        "ours, to memory": peers.ours(to="memory"),
        "native, to memory": peers.native(to="memory"),
        "ours, to noop": peers.ours(),
        "native, to noop": peers.native(),
    }
    results: dict[str, list[Measured]] = {name: [] for name in systems}
    for _ in range(min(2, sizes.rounds)):
        for name, start in systems.items():
            said = f"latency: {name}"
            results[name].append(bench.batches(start, sizes.small_rows, sizes.small_batches, said))
    table = _table(f"latency: {sizes.small_rows:,} rows a batch", "system", "median ms", "p90 ms")
    middle, high = {}, {}
    for name, rounds in results.items():
        times = [ms for each in rounds for ms in each.times_ms]
        middle[name], high[name] = statistics.median(times), quantile(times, 0.9)
        table.add_row(name, f"{middle[name]:.0f}", f"{high[name]:.0f}")
    CONSOLE.print(table)
    _where("latency", {name: rounds[-1] for name, rounds in results.items()})
    targets = []
    for sink in ("memory", "noop"):
        mine, theirs = f"ours, to {sink}", f"native, to {sink}"
        targets.append(
            BenchTarget(f"small batches to {sink}: median of ours / native", middle[mine] / middle[theirs], 1.0)
        )
        targets.append(BenchTarget(f"small batches to {sink}: p90 of ours / native", high[mine] / high[theirs], 1.0))
    return targets


def bins(bench: EngineBench) -> list[BenchTarget]:
    """The same batches with few and many bins; 256 and 4096 in turn."""
    sizes = bench.sizes
    counts = [*[256, 4096] * sizes.rounds, 1 << 4, 1 << 16]
    results: dict[int, list[Measured]] = {}
    for count in counts:
        one = bench.batches(peers.ours(bins=count), sizes.rows, max(3, sizes.batches - 1), f"bins: {count}")
        results.setdefault(count, []).append(one)
    table = _table(f"bins: {sizes.rows:,} rows a batch", "bins", "ms a batch", "of 256 bins", "rounds")
    base = statistics.median(each.median_ms for each in results[256])
    for count, rounds in sorted(results.items()):
        ms = statistics.median(each.median_ms for each in rounds)
        table.add_row(f"{count:,}", f"{ms:.0f}", f"{ms / base:.2f}", str(len(rounds)))
    CONSOLE.print(table)
    _where("bins", {f"{count} bins": rounds[-1] for count, rounds in sorted(results.items())})
    middle = {count: [each.median_ms for each in rounds] for count, rounds in results.items()}
    return [BenchTarget("time of a batch, 4096 bins / 256", ratio_in_turn(middle[4096], middle[256]), 1.05)]


def state(bench: EngineBench) -> list[BenchTarget]:
    """The same batches on little and on much state, and what a key takes in memory."""
    sizes = bench.sizes
    title = f"state: {sizes.state_rows:,} rows a batch"
    table = _table(title, "keys", "ms a batch", "worst", "state bytes/key", "Python processes, MB")
    results: dict[int, Measured] = {}
    held: dict[int, int] = {}
    small = sizes.large_state // 10
    for keys in (small, sizes.large_state):
        feed = peers.NumberFeed(bench.spark, keys)
        with bench.run(peers.ours(), feed.rows, f"state: {keys:,} keys") as running:
            records.preload(feed, running, keys)
            loaded = len(feed.ranges)
            for turn in range(sizes.warm + 2 * sizes.batches):
                feed.push(turn * sizes.state_rows, (turn + 1) * sizes.state_rows)
                running.settle()
            results[keys] = measured(running, sizes.state_rows, loaded + sizes.warm)
            held[keys] = python_bytes()
        each = results[keys]
        figures = f"{each.median_ms:.0f}", f"{max(each.times_ms):.0f}", f"{each.state_bytes / each.state_rows:.1f}"
        table.add_row(f"{each.state_rows:,}", *figures, f"{held[keys] / 1e6:,.0f}")
    CONSOLE.print(table)
    more = (held[sizes.large_state] - held[small]) / (sizes.large_state - small)
    CONSOLE.print(f"Python's memory grows by {more:.1f} bytes for each key more\n")
    _where("state", {f"{keys:,} keys": each for keys, each in results.items()})
    ratio = results[sizes.large_state].median_ms / results[small].median_ms
    return [BenchTarget(f"time of a batch, {sizes.large_state:,} keys / {small:,}", ratio, 1.2)]


def record_latencies(bench: EngineBench) -> list[BenchTarget]:
    """Latency of single records, as Megaphone's Figures 13 to 15."""
    sizes = bench.sizes
    panels: dict[str, dict[str, Histogram]] = {}
    systems = {f"{count:,} bins": peers.ours(bins=count) for count in sizes.record_bins} | {"native": peers.native()}
    title = f"records: {sizes.record_rate:,} a second, {sizes.keys:,} keys preloaded, latency in ms"
    table = _table(title, "operator", "system", "p50", "p90", "p99", "p99.99", "max", "records")
    for kind, sparse in (("key count", False), ("hash count", True)):
        panels[kind] = {}
        for name, start in systems.items():
            feed = peers.NumberFeed(bench.spark, sizes.keys, sparse)
            with bench.run(start, feed.rows, f"records: {kind}, {name}") as running:
                records.preload(feed, running, sizes.keys)
                one = records.latencies(feed, running, sizes.record_rate, sizes.record_s / 5, sizes.record_s)
            panels[kind][name] = one
            shares = [f"{one.quantile(share):,.0f}" for share in (0.5, 0.9, 0.99, 0.9999)]
            table.add_row(kind, name, *shares, f"{one.largest:,.0f}", f"{one.total:,}")
    CONSOLE.print(table)
    records.plot(panels, bench.plots)
    CONSOLE.print(f"drawn: {bench.plots}\n")
    return []


def lookups(bench: EngineBench) -> list[BenchTarget]:
    """What it costs to find the worker of a bin, beyond hashing the key."""
    sizes, workers = bench.sizes, 16
    forms = ("array", "chain", "search")
    title = f"routing: ns per row and thread, {workers} workers, beyond the hash; in brackets ms for a query of no rows"
    table = _table(title, "bins", "intervals", "hash alone", *forms)
    for count in (64, 256, 1024, 4096):
        bench.said(f"routing: {count} bins")
        for scattered in (False, True):
            owner = routing.owners(count, workers, scattered)
            alone, *costs = routing.costs(bench.spark, owner, (None, *forms), sizes.routed_rows, sizes.rounds)
            figures = [f"{each.ns - alone.ns:,.1f} ({each.fixed_ms:.0f})" for each in costs]
            row = f"{count:,}", f"{len(routing.runs_of(owner)):,}", f"{alone.ns:.1f} ({alone.fixed_ms:.0f})"
            table.add_row(*row, *figures)
    CONSOLE.print(table)
    CONSOLE.print()
    return []


def durability(bench: EngineBench) -> list[BenchTarget]:
    """What surviving a loss of power costs beyond surviving a loss of processes."""
    sizes = bench.sizes
    table = _table("durability: ms a batch", "rows a batch", "fsync off", "fsync on", "ratio")
    for rows, count in ((sizes.small_rows, sizes.small_batches), (sizes.rows, sizes.batches)):
        off, on = (
            bench.batches(peers.ours(fsync=fsync), rows, count, f"durability: {rows:,} rows, fsync {fsync}").median_ms
            for fsync in (False, True)
        )
        table.add_row(f"{rows:,}", f"{off:.0f}", f"{on:.0f}", f"{on / off:.2f}")
    CONSOLE.print(table)
    CONSOLE.print()
    return []


PARTS: dict[str, tuple[Callable[[EngineBench], list[BenchTarget]], int]] = {
    "throughput": (throughput, 9),
    "latency": (latency, 4),
    "bins": (bins, 8),
    "state": (state, 2),
    "records": (record_latencies, 10),
    "routing": (lookups, 4),
    "durability": (durability, 4),
}
"""What each part runs, and in how many steps."""


# --- telling ---------------------------------------------------------------------------------


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    texts = {"keys", "system", "operator", "what", "where"}
    for column in columns:
        table.add_column(column, justify="left" if column in texts else "right")
    return table


def _where(title: str, runs: dict[str, Measured]) -> None:
    """Print where the milliseconds of a median batch go, a column for each run."""
    table = _table(f"{title}: where the milliseconds go (medians)", "where", *runs)

    def add(what: str, figures: Sequence[float | None]) -> None:
        if any(figure is not None for figure in figures):
            table.add_row(what, *["" if figure is None else f"{figure:.1f}" for figure in figures])

    each = list(runs.values())
    add("the whole batch (triggerExecution)", [one.spark_ms.get("triggerExecution") for one in each])
    for name in ("latestOffset", "walCommit", "queryPlanning", "addBatch", "commitOffsets", "commitBatch"):
        add(f"  Spark: {name}", [one.spark_ms.get(name) for one in each])
    for name in ("operate", "sink", "commit"):
        add(f"    our driver: {name}", [one.driver_ms.get(name) for one in each])
    for name in (*LAPS, "busy"):
        add(f"      slowest task: {name}", [one.task_ms.get(name) for one in each])
    CONSOLE.print(table)
    CONSOLE.print()


def _targets(targets: Sequence[BenchTarget], quick: bool) -> int:
    table = _table("targets, which are for larger sizes" if quick else "targets", "what", "measured", "target", "")
    for each in targets:
        table.add_row(each.what, f"{each.measured:.3g}", each.wanted, "met" if each.met else "[red]missed[/]")
    CONSOLE.print(table)
    return int(not quick and not all(each.met for each in targets))


def main() -> int:
    """Run the parts, each in a Spark application of its own, and say which targets are met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="PART,..", help=f"only these of {', '.join(PARTS)}")
    parser.add_argument("--quick", action="store_true", help="small sizes; targets are not for these")
    parser.add_argument("--plots", type=Path, default=Path("build/engine-records.png"), help="where the plot goes")
    parser.add_argument("--profile", action="store_true", help="profile what our driver does in each batch")
    options = parser.parse_args()
    parts = options.only.split(",") if options.only else list(PARTS)
    unknown = [name for name in parts if name not in PARTS]
    if unknown:
        parser.error(f"there is no part {unknown[0]!r}; there are: {', '.join(PARTS)}")
    targets: list[BenchTarget] = []
    with (
        tempfile.TemporaryDirectory(prefix="meander-bench-", ignore_cleanup_errors=True) as folder,
        Progress(console=CONSOLE, transient=True, disable=not sys.stdout.isatty()) as progress,
    ):
        task = progress.add_task("", total=sum(PARTS[name][1] for name in parts))

        def said(text: str) -> None:
            progress.update(task, description=text, advance=1)

        for name in parts:
            started = perf_counter()
            with profiled() if options.profile else nullcontext() as profile:
                spark = peers.session(f"meander-bench-{name}")
                try:
                    sizes = QUICK if options.quick else EngineSizes()
                    targets += PARTS[name][0](EngineBench(spark, sizes, Path(folder), said, options.plots))
                finally:
                    spark.stop()
            if profile is not None:
                CONSOLE.print(profile.getvalue(), markup=False)
            CONSOLE.print(f"{name} took {perf_counter() - started:.0f} s\n")
    return _targets(targets, options.quick) if targets else 0


if __name__ == "__main__":
    sys.exit(main())
