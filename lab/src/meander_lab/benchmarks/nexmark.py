"""./dev bench nexmark: Q1 to Q8 beside Spark's own streaming SQL, and through a move of a quarter of their bins.

Parts:

    throughput   rows a second and batch times of large batches on `local[2]`, two workers or shuffle partitions, all
                 to `noop`: ours, and the same query in Spark's SQL where it can say it. What it cannot, it says itself.
                 A peer has to give the same answer before it is timed (`nexmark_throughput.py`).
    timelines    events at a fixed rate that waits for nobody, half of what the query can take, on two executor
                 processes. Half of the bins of one worker go to the other (25 % of all), and back: the move back is
                 the one that is told, once batched and once all_at_once (`nexmark_timelines.py`). q5-dilated has
                 windows of an hour, a new one every minute, at 60 times real time; q8-dilated windows of 12 hours at
                 79 times. Table and plots are those of Megaphone's Figures 5 to 12.

Event time is real time, but for the dilated ones. In q4 and q6 so many auctions are open that each is for 20 s. What a
query has in its state when its bins move back is in the table. A full run takes about an hour with 2 cores; run it
on a quiet machine, for load from others falls on some runs only. CSV files, plots, records and logs go to the folder of
--out; --again makes the table and the plots of its timelines once more. Exit code 1 where a run has failed or a peer
has answered otherwise.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import Any

from rich.console import Console
from rich.progress import Progress

from meander_lab.benchmarks import engine_peers
from meander_lab.benchmarks import nexmark_plots as plots
from meander_lab.benchmarks import nexmark_throughput as throughput
from meander_lab.benchmarks import nexmark_timelines as timelines
from meander_lab.benchmarks.migrate import names, table
from meander_lab.benchmarks.migrate_case import Failed, run
from meander_lab.benchmarks.nexmark_figures import (
    READS,
    SCHEDULES,
    VARIANTS,
    TimelineCase,
    TimelineFigures,
    TimelineRecord,
    at_rates,
    figures,
    middle,
    shown,
    whole_rate,
    write_csv,
)
from meander_lab.benchmarks.nexmark_peers import REFUSED

CONSOLE = Console(highlight=False, width=None if sys.stdout.isatty() else 170)
PARTS = ("throughput", "timelines")
OUT = Path("results/nexmark")
QUICKLY = ("q4", "q5-dilated")
"""What the quick form takes through a move."""
SHARE = 0.5
"""The rate of a timeline, of what the query can take."""


# --- throughput ------------------------------------------------------------------------------


def run_throughput(options: argparse.Namespace, out: Path) -> int:
    """Time every query and its peers, and print and write the table."""
    sizes = throughput.QUICK if options.quick else throughput.ThroughputSizes()
    queries = [each for each in READS if each in options.queries]
    lines: list[throughput.ThroughputLine] = []
    with (
        tempfile.TemporaryDirectory(prefix="meander-bench-", ignore_cleanup_errors=True) as folder,
        Progress(console=CONSOLE, transient=True, disable=not sys.stdout.isatty()) as progress,
    ):
        task = progress.add_task("", total=None)
        spark = engine_peers.session("meander-bench-nexmark")
        try:
            bench = throughput.ThroughputBench(
                spark, sizes, Path(folder), lambda text: progress.update(task, description=text)
            )
            for query in queries:
                started = perf_counter()
                lines += bench.lines(query, options.rocksdb)
                CONSOLE.print(f"throughput: {query} took {perf_counter() - started:.0f} s")
        finally:
            spark.stop()
    write_csv(out / "throughput.csv", [line.to_dict() for line in lines])
    said = f"throughput: {sizes.events:,} events a batch, {sizes.batches} batches, {sizes.rounds} rounds in turn"
    grid = table(said, "query", "system", "rows a batch", "rows/s", "median ms", "p99 ms", "ours is")
    refused = [line for line in lines if line.query in REFUSED and line.system != throughput.OURS]
    for cells in throughput.compared([line for line in lines if line not in refused]):
        grid.add_row(*cells)
    CONSOLE.print("", grid, "")
    for line in refused:
        CONSOLE.print(f"{line.query} in Spark's SQL: {line.note or 'Spark would run it'}", markup=False)
    where = table(
        "where the milliseconds of our batches go (medians)", "query", "batch", "addBatch", "operate", "sink", "commit",
        "slowest task", "state rows", "state MB",
    )  # fmt: skip
    for cells in throughput.spent(lines):
        where.add_row(*cells)
    CONSOLE.print("", where, "")
    wrong = [line for line in lines if line.note and line not in refused]
    return int(bool(wrong) or any(not line.note for line in refused))


# --- timelines -------------------------------------------------------------------------------


def cases_of(options: argparse.Namespace) -> list[TimelineCase]:
    """Every case that is asked for, those of one query beside one another; rates are not known yet."""
    wanted = [
        each
        for each in VARIANTS
        if each in options.queries and (options.chosen or not options.quick or each in QUICKLY)
    ]
    phases: dict[str, Any] = {"fill_s": 4.0, "warm_s": 2.0, "steady_s": 4.0, "limit": 50_000} if options.quick else {}
    if options.seconds is not None:
        phases["steady_s"] = options.seconds
    return [TimelineCase(name, schedule, options.rate, **phases) for name in wanted for schedule in options.schedules]


def rates_of(cases: Sequence[TimelineCase], out: Path, quick: bool) -> tuple[dict[str, float], dict[str, float]]:
    """What each query can take, and the rate it gets."""
    first = list({case.name: case for case in cases}.values())
    option = json.dumps({"rates": [asdict(case) for case in first], "batches": 3 if quick else 6})
    rates = run("nexmark", option, out / "rates.log", 120 + 60 * len(first)).told["rates"]
    return rates, {name: whole_rate(SHARE * most, VARIANTS[name].dilation) for name, most in rates.items()}


def one(case: TimelineCase, log: Path) -> TimelineRecord:
    """Run one case; what it fails of is in what comes of it."""
    try:
        record = run("nexmark", json.dumps({"case": asdict(case)}), log, 120 + 5 * timelines.WITHIN_S)
        return TimelineRecord(case, record.batches, record.marks, record.told)
    except Failed as problem:
        return TimelineRecord(case, failed=str(problem))


def run_timelines(options: argparse.Namespace, out: Path) -> int:
    """Take every query through its moves, each in a process of its own, and report."""
    cases = cases_of(options)
    if not options.rate:
        started = perf_counter()
        try:
            most, rates = rates_of(cases, out, options.quick)
        except Failed as problem:
            CONSOLE.print(f"[red]failed[/]: how much the queries can take: {problem}")
            return 1
        grid = table("rates: events a second, of all kinds", "query", "it can take", "it gets", "rows of it")
        for name, rate in rates.items():
            grid.add_row(name, f"{most[name]:,.0f}", f"{rate:,.0f}", f"{rate * VARIANTS[name].share:,.0f}")
        CONSOLE.print(grid, f"found in {perf_counter() - started:.0f} s\n")
        cases = at_rates(cases, rates)
    records: list[TimelineRecord] = []
    kept = out / "timelines.jsonl"
    kept.unlink(missing_ok=True)
    for at, case in enumerate(cases):
        started = perf_counter()
        record = one(case, out / f"{case.name}-{case.schedule}.log")
        with kept.open("a") as file:
            file.write(json.dumps(record.to_dict()) + "\n")
        records.append(record)
        said = record.failed or "done"
        CONSOLE.print(f"{at + 1}/{len(cases)} {case}: {said}, {perf_counter() - started:.0f} s", markup=False)
    return report(records, out)


def report(records: Sequence[TimelineRecord], out: Path) -> int:
    """Print the table, draw a plot for each query, write both as CSV, and return 1 where a run has failed."""
    fine = [record for record in records if record.failed is None]
    results: dict[tuple[str, str], TimelineFigures] = {}
    for key in dict.fromkeys((record.case.name, record.case.schedule) for record in fine):
        results[key] = middle([figures(each) for each in fine if (each.case.name, each.case.schedule) == key])
    grid = table(
        "timelines: latency of events in ms, from arrival to commit; the move back, and the steady time before it",
        "query", "schedule", "events/s", "state MB", "steady p50", "p99", "max", "moving p99", "max", "p99 ratio",
        "max ratio", "took s", "MB moved", "bins", "steps",
    )  # fmt: skip
    for (name, schedule), each in results.items():
        grid.add_row(
            name, schedule, f"{each.rate:,.0f}", f"{each.state_bytes / 1e6:,.1f}", f"{each.steady_p50:,.0f}",
            f"{each.steady_p99:,.0f}", f"{each.steady_max:,.0f}", f"{each.p99:,.0f}", f"{each.max:,.0f}",
            f"{each.p99_of_steady:.2f}", f"{each.max_of_steady:.2f}", f"{each.duration_s:.1f}",
            f"{each.moved_bytes / 1e6:,.2f}", f"{each.moved_bins:.0f}", f"{each.steps:.0f}",
        )  # fmt: skip
    CONSOLE.print("", grid, "")
    write_csv(out / "timelines.csv", [_row(key, each) for key, each in results.items()])
    write_csv(out / "latencies.csv", [
        {"query": record.case.name, "schedule": record.case.schedule, "since_move_s": at, "latency_ms": round(ms, 1)}
        for record in fine for at, ms in shown(record)
    ])  # fmt: skip
    for name in dict.fromkeys(record.case.name for record in fine):
        drawn = list({each.case.schedule: each for each in fine if each.case.name == name}.values())
        rate, state = drawn[0].case.rate, results[name, drawn[0].case.schedule].state_bytes
        title = f"{name}: {rate:,.0f} events/s, {state / 1e6:,.1f} MB of state, a quarter of the bins moves back"
        plots.latency_over_time(drawn, out / f"{name}.png", title)
    failures = [record for record in records if record.failed is not None]
    for record in failures:
        CONSOLE.print(f"failed: {record.case}: {record.failed}", markup=False)
    CONSOLE.print(f"plots, CSV files, records and logs are in {out}", markup=False)
    return int(bool(failures))


def _row(key: tuple[str, str], each: TimelineFigures) -> Mapping[str, object]:
    plain = {name: round(value, 3) for name, value in asdict(each).items()}
    ratios = {"p99_of_steady": round(each.p99_of_steady, 3), "max_of_steady": round(each.max_of_steady, 3)}
    return {"query": key[0], "schedule": key[1], **plain, **ratios}


# --- the command -----------------------------------------------------------------------------


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=names(*PARTS), default=list(PARTS), metavar="PART,..",
                        help=f"only these of {', '.join(PARTS)}")  # fmt: skip
    parser.add_argument("--queries", type=names(*VARIANTS), metavar="QUERY,..",
                        help=f"only these of {', '.join(VARIANTS)}")  # fmt: skip
    parser.add_argument("--schedules", type=names(*SCHEDULES), default=list(SCHEDULES), metavar="SCHEDULE,..",
                        help=f"only these of {', '.join(SCHEDULES)}")  # fmt: skip
    parser.add_argument("--rate", type=float, default=0.0, metavar="N",
                        help="events a second of all timelines (default: half of what a query can take)")  # fmt: skip
    parser.add_argument("--seconds", type=float, metavar="S",
                        help="steady seconds between the moves, and after the second one (default 10)")  # fmt: skip
    parser.add_argument("--rocksdb", action="store_true", help="Spark's queries with state on RocksDB as well")
    parser.add_argument("--quick", action="store_true",
                        help=f"small and short; only timelines of {', '.join(QUICKLY)} without --queries")  # fmt: skip
    parser.add_argument("--out", type=Path, default=OUT, help=f"folder for all that is written (default {OUT})")
    parser.add_argument("--again", action="store_true", help="run nothing: tables and plots of the records in --out")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    options.chosen = options.queries is not None
    options.queries = options.queries or list(VARIANTS)
    return options


def main() -> int:
    """Run the parts and report."""
    options = parsed()
    if options.case:
        order = json.loads(options.case)
        if "rates" in order:
            timelines.calibrate([TimelineCase(**each) for each in order["rates"]], order["batches"])
        else:
            timelines.carry_out(TimelineCase(**order["case"]))
        return 0
    out: Path = options.out
    out.mkdir(parents=True, exist_ok=True)
    if options.again:
        kept = (out / "timelines.jsonl").read_text().splitlines()
        return report([TimelineRecord.from_dict(json.loads(line)) for line in kept], out)
    status = 0
    for part in options.only:
        started = perf_counter()
        status |= run_throughput(options, out) if part == "throughput" else run_timelines(options, out)
        CONSOLE.print(f"{part} took {perf_counter() - started:.0f} s\n")
    return status


if __name__ == "__main__":
    sys.exit(main())
