"""./dev bench flink: count by key of ours beside Apache Flink's, in one run on one machine.

Flink comes from PyPI into an environment of the benchmark's own (about 350 MB, once), our job for it is compiled on the
spot, and a standalone cluster on the loopback runs it. Parts:

    throughput   rows a second over 1 M keys: whole numbers, short texts, Zipf; ours on local[2], Flink with 2 slots
    latency      from a row's creation to the commit that covers it, at 20 k and 100 k rows/s; Flink's checkpoints come
                 every 200 ms and every 1 s
    rescale      2 -> 4 under load, processes of their own: the longest silence between commits, and the worst latency

Everything is exactly once: Flink commits with a checkpoint (heap state and RocksDB), ours with a version. Each run is
a cluster, or a driver process, of its own; systems take turns; figures are medians of --repeat runs. At the end of each
run every key's count is compared with a count from first principles, and a run whose counts are wrong is no result.

What is compared how, and what is unfair to whom: docs/how-meander-compares-with-flink.md. A full run takes about an
hour and a half with 2 cores; run it on a quiet machine. Ends with exit code 1 where a run has failed, 2 where there is
no Flink.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from time import perf_counter

from rich.console import Console
from rich.progress import Progress

from meander_lab.benchmarks.flink_cluster import FlinkFailed
from meander_lab.benchmarks.flink_figures import BACKENDS, LAWS, OURS, SYSTEMS, PeerCase, PeerRecord
from meander_lab.benchmarks.flink_install import VERSION, FlinkHome, Unavailable, default_folder, installed
from meander_lab.benchmarks.flink_ours import carry_out, run_ours
from meander_lab.benchmarks.flink_report import plot, summary_of, table_of
from meander_lab.benchmarks.flink_run import run_flink
from meander_lab.benchmarks.migrate_case import Failed

CONSOLE = Console(highlight=False, width=None if sys.stdout.isatty() else 170)
PARTS = ("throughput", "latency", "rescale")
RATES = (20_000, 100_000)
INTERVALS_MS = (200, 1000)
LARGE_KEYS = 10_000_000


def cases_of(
    parts: Sequence[str], quick: bool = False, large: bool = False, systems: Sequence[str] = SYSTEMS
) -> list[PeerCase]:
    """Every case once; those that are compared with each other are neighbours."""
    keys = 100_000 if quick else 1_000_000
    cases: list[PeerCase] = []
    # Seconds that warm up, and seconds that count.
    warm_s = 5.0 if quick else 15.0
    if "throughput" in parts:
        seconds = 6.0 if quick else 20.0
        cases += [
            PeerCase("throughput", system, law, keys, warm_s=warm_s, seconds=seconds, rows_a_batch=keys)
            for law in LAWS for system in systems
        ]  # fmt: skip
    if "latency" in parts:
        seconds = 6.0 if quick else 30.0
        for rate in (5_000,) if quick else RATES:
            for system in systems:
                for interval_ms in INTERVALS_MS[:1] if system == OURS or quick else INTERVALS_MS:
                    cases.append(
                        PeerCase("latency", system, "ints", keys, keys, rate, warm_s, seconds, interval_ms)
                    )  # fmt: skip
    if "rescale" in parts:
        rate, seconds = (5_000, 12.0) if quick else (20_000, 30.0)
        for many in (keys, LARGE_KEYS) if large else (keys,):
            cases += [PeerCase("rescale", system, "ints", many, many, rate, warm_s, seconds) for system in systems]
    return cases


def one(case: PeerCase, home: FlinkHome | None, out: Path) -> PeerRecord:
    """Run one case; why it is worth nothing is in its record."""
    name = f"{case.part}-{case.column}-{case.law}-{case.keys}-{case.rate}-{case.repeat}".replace(" ", "-").replace(
        ",", ""
    )
    try:
        if case.system == OURS:
            return run_ours(case, out / f"{name}.log")
        assert home is not None
        return run_flink(home, case, out / name)
    except (Failed, FlinkFailed) as problem:
        return PeerRecord(case, problem=str(problem))


def report(records: Sequence[PeerRecord], out: Path) -> int:
    """Print the tables, draw the plot, write the summary, and return 1 where a run is worth nothing."""
    parts = [part for part in PARTS if any(each.case.part == part for each in records)]
    for part in parts:
        CONSOLE.print(table_of(records, part), "")
    picture = plot(records, parts, out / "flink.png")
    failures = [each for each in records if each.problem is not None]
    counted = sum(each.rows_counted for each in records if each.problem is None)
    summary = {
        "flink": VERSION,
        "machine": {"cores": os.cpu_count(), "system": platform.system(), "architecture": platform.machine()},
        "load_average": os.getloadavg(),
        "failures": [f"{each.case}: {each.problem}" for each in failures],
        **summary_of(records, parts),
    }
    (out / "flink.json").write_text(json.dumps(summary, indent=2) + "\n")
    CONSOLE.print(f"{counted:,} rows were counted again, key by key, of {len(records) - len(failures)} runs: all right")
    CONSOLE.print(f"written: {picture}, {out / 'flink.json'}, {out / 'records.jsonl'}")
    for each in failures:
        CONSOLE.print(f"[red]failed[/]: {each.case}: {each.problem}", markup=True)
    return int(bool(failures))


# --- the command -----------------------------------------------------------------------------


def names(*known: str) -> Callable[[str], list[str]]:
    """Names between commas, each of them known."""

    def read(text: str) -> list[str]:
        words = text.split(",")
        unknown = [each for each in words if each not in known]
        if unknown:
            raise argparse.ArgumentTypeError(f"there is no {unknown[0]!r}; there are: {', '.join(known)}")
        return words

    return read


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=names(*PARTS), default=list(PARTS), metavar="PART,..",
                        help=f"only these of {', '.join(PARTS)}")  # fmt: skip
    parser.add_argument("--systems", type=names(*SYSTEMS), default=list(SYSTEMS), metavar="SYSTEM,..",
                        help=f"only these of {', '.join(SYSTEMS)}")  # fmt: skip
    parser.add_argument("--repeat", type=int, metavar="N", help="runs of each case (default 3, quick: 1)")
    parser.add_argument("--quick", action="store_true", help="few keys, rows and seconds: to see it work")
    parser.add_argument("--large", action="store_true", help="rescale with 10 M keys as well")
    parser.add_argument(
        "--folder", type=Path, default=default_folder(), help="where Flink is kept (default: %(default)s)"
    )
    parser.add_argument("--out", type=Path, help="folder for tables, plot and records (default: a new temporary one)")
    parser.add_argument("--again", type=Path, metavar="FOLDER", help="run nothing: tables and plot of these records")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    options.repeat = options.repeat or (1 if options.quick else 3)
    return options


def main() -> int:
    """Run the cases in turn, and report."""
    options = parsed()
    if options.case:
        carry_out(PeerCase(**json.loads(options.case)))
        return 0
    if options.again:
        lines = (options.again / "records.jsonl").read_text().splitlines()
        return report([PeerRecord.from_dict(json.loads(line)) for line in lines], options.again)
    out: Path = (options.out or Path(tempfile.mkdtemp(prefix="meander-flink-"))).absolute()
    out.mkdir(parents=True, exist_ok=True)
    home: FlinkHome | None = None
    if any(system in BACKENDS for system in options.systems):
        try:
            with CONSOLE.status(f"Flink {VERSION} in {options.folder}"):
                home = installed(options.folder.absolute())
        except Unavailable as problem:
            CONSOLE.print(f"there is no Flink to compare with: {problem}", markup=False)
            return 2
    cases = cases_of(options.only, options.quick, options.large, options.systems)
    cases = [replace(case, repeat=turn) for turn in range(options.repeat) for case in cases]
    try:
        return report(measured(cases, home, out), out)
    except KeyboardInterrupt:
        CONSOLE.print(f"interrupted, and Flink has ended; --again {out} shows what was measured", markup=False)
        return 130


def measured(cases: Sequence[PeerCase], home: FlinkHome | None, out: Path) -> list[PeerRecord]:
    """The records of the cases, each written down as soon as it is there."""
    records: list[PeerRecord] = []
    with Progress(console=CONSOLE, transient=True, disable=not sys.stdout.isatty()) as progress:
        task = progress.add_task("", total=len(cases))
        for at, case in enumerate(cases):
            progress.update(task, description=str(case))
            started = perf_counter()
            record = one(case, home, out)
            with (out / "records.jsonl").open("a") as file:
                file.write(json.dumps(record.to_dict()) + "\n")
            records.append(record)
            outcome = record.problem or "done"
            CONSOLE.print(f"{at + 1}/{len(cases)} {case}: {outcome}, {perf_counter() - started:.0f} s", markup=False)
            progress.advance(task)
    return records


if __name__ == "__main__":
    sys.exit(main())
