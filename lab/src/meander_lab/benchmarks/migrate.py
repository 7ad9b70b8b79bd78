"""./dev bench migrate: a quarter of the state moves under load, in every way there is, beside Spark's own way.

Count by key on separate executor processes, `local-cluster[4,1,1024]`. The state is filled with all keys; then rows
come at a fixed rate that waits for nobody (an open loop). Two workers own the bins, and a quarter of each one's goes
to two more. What is measured, and how, is in `migrate_measure.py`; every run is a driver process of its own.

    none            nothing moves: the line that every table and plot has
    all_at_once     live, by this schedule; so are fluid, batched and matching
    restart         the query stops and starts with the new owners
    restart_workers the same with new worker processes
    native          Spark's own count by key on RocksDB: stop, repartition, start
    native_quiet    the same, with rows held back first so that the stop interrupts no batch

Parts:

    modes   every mode, 1 M and 10 M keys with 256 and 4096 bins: a table, latency and memory over time
    bins    more bins on the same keys: worst latency against duration (Megaphone's Figure 16)
    keys    more keys in the same bins (Figure 17)
    both    more of both, the same bytes in a bin (Figure 18)

Ends with exit code 1 where a run has failed or, unless it is the short form, a target is missed. A full run takes about
three hours with 2 cores; run it on a quiet machine, for load from others falls on some runs only. Records of all runs
go to the folder of --out; --again makes tables and plots of them once more.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from time import perf_counter

from rich.console import Console
from rich.table import Table

from meander_lab.benchmarks import migrate_plots as plots
from meander_lab.benchmarks.engine_figures import BenchTarget
from meander_lab.benchmarks.migrate_case import MODES, NATIVES, RESTARTS, Failed, carry_out, run
from meander_lab.benchmarks.migrate_measure import NONE, MoveCase, MoveFigures, MoveRecord, figures, middle, peaks

CONSOLE = Console(highlight=False, width=None if sys.stdout.isatty() else 170)
STRATEGIES = (NONE, "all_at_once", "fluid", "batched")
MIB = 1 << 20
Size = tuple[int, int]
"""Keys and bins."""


# --- which cases -----------------------------------------------------------------------------


def sizes_of(part: str, keys: Sequence[int], bins: Sequence[int]) -> list[Size]:
    """The sizes of a part: all pairs, or a line along which bins, keys, or both grow."""
    few_keys, many_keys = min(keys), max(keys)
    few_bins, many_bins = min(bins), max(bins)
    if part == "modes":
        return [(each, count) for each in keys for count in bins]
    if part == "bins":
        return [(few_keys, count) for count in _between(few_bins, many_bins, 4)]
    if part == "keys":
        return [(each, few_bins) for each in _between(few_keys, many_keys, 2)]
    return [(few_keys * count // few_bins, count) for count in _between(few_bins, many_bins, 2) if
            few_keys * count // few_bins <= many_keys]  # fmt: skip


def _between(low: int, high: int, factor: int) -> list[int]:
    steps = [low]
    while steps[-1] * factor < high:
        steps.append(steps[-1] * factor)
    return steps if high == low else [*steps, high]


PARTS = {"modes": MODES, "bins": STRATEGIES, "keys": STRATEGIES, "both": STRATEGIES}
"""The modes of each part."""


def cases_of(options: argparse.Namespace) -> list[MoveCase]:
    """Every case of the parts that are asked for, each once, those of one size beside one another."""
    wanted: dict[tuple[Size, str], None] = {}
    for part in options.only:
        for size in sizes_of(part, options.keys, options.bins):
            for mode in PARTS[part]:
                if mode in options.modes:
                    wanted[(size, mode)] = None
    # Spark's own query knows no bins: one number of them is enough.
    first = {size[0]: size for size, _ in reversed(wanted)}
    kept = [(size, mode) for size, mode in wanted if mode not in NATIVES or first[size[0]] == size]
    cases = [
        MoveCase(mode, *size, options.rate, options.warm, options.seconds, options=options.options)
        for size, mode in sorted(kept, key=lambda each: each[0])
    ]
    return [replace(case, repeat=turn) for turn in range(options.repeat) for case in cases]


# --- telling ---------------------------------------------------------------------------------


def table(title: str, *columns: str) -> Table:
    """A table without lines; the first column is text."""
    grid = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for at, column in enumerate(columns):
        grid.add_column(column, justify="right" if at else "left", no_wrap=not at)
    return grid


FiguresByCase = dict[tuple[Size, str], MoveFigures]


def figures_in(records: Iterable[MoveRecord]) -> FiguresByCase:
    """The medians of the runs of each size and mode."""
    runs: dict[tuple[Size, str], list[MoveFigures]] = {}
    for record in records:
        if record.failed is None:
            runs.setdefault(((record.case.keys, record.case.bins), record.case.mode), []).append(figures(record))
    return {at: middle(each) for at, each in runs.items()}


def modes_table(figures: FiguresByCase, size: Size, rate: int) -> Table:
    """One line for each mode; ratios are against the run in which nothing moves."""
    title = f"{size[0]:,} keys, {size[1]:,} bins, {rate:,} rows/s: latency in ms from a row's creation to its commit"
    grid = table(
        title, "mode", "max", "of none", "p99", "of none", "max/steady p99", "worst batch", "/steady p99",
        "duration s", "no results s", "MB moved", "steady MB", "peak MB", "ratio", "python ratio",
    )  # fmt: skip
    still = figures.get((size, NONE))
    for mode in MODES:
        each = figures.get((size, mode))
        if each is None and mode in NATIVES:
            each = next((one for (at, name), one in figures.items() if name == mode and at[0] == size[0]), None)
        if each is None:
            continue
        of_none = [f"{a / b:.2f}" for a, b in ((each.worst_ms, still.worst_ms), (each.p99_ms, still.p99_ms))] if (
            still) else ["", ""]  # fmt: skip
        grid.add_row(
            mode, f"{each.worst_ms:,.0f}", of_none[0], f"{each.p99_ms:,.0f}", of_none[1],
            f"{each.worst_of_steady:.2f}", f"{each.worst_batch_ms:,.0f}", f"{each.worst_batch_of_steady:.2f}",
            "" if mode == NONE else f"{each.duration_s:.1f}", f"{each.silent_s:.2f}", f"{each.moved_bytes / 1e6:,.1f}",
            f"{each.steady_memory / MIB:,.0f}", f"{each.peak_memory / MIB:,.0f}", f"{each.memory_of_steady:.2f}",
            "" if math.isnan(each.steady_python) else f"{each.peak_python / each.steady_python:.2f}",
        )  # fmt: skip
    return grid


def memory_table(records: Sequence[MoveRecord], size: Size) -> Table:
    """Steady and peak memory of every process in MiB, a column for each mode, from the first run of each."""
    first: dict[str, dict[str, tuple[float, float]]] = {}
    for record in records:
        first.setdefault(record.case.mode, peaks(record.memory, record.marks))
    grid = table(
        f"{size[0]:,} keys, {size[1]:,} bins: MiB (RSS of JVMs, PSS of Python), steady -> peak", "process", *first
    )
    for role in sorted({role for each in first.values() for role in each}):
        cells = [each.get(role, (math.nan, math.nan)) for each in first.values()]
        grid.add_row(role, *[f"{_mib(low)} -> {_mib(high)}" for low, high in cells])
    return grid


def _mib(size: float) -> str:
    return "-" if math.isnan(size) else f"{size / MIB:,.0f}"


def line_table(part: str, figures: FiguresByCase, sizes: Sequence[Size], modes: Sequence[str]) -> Table:
    """Worst latency and duration along a line of sizes."""
    grid = table(f"{part}: worst latency ms / duration s", "keys, bins", *modes)
    for size in sizes:
        cells = []
        for mode in modes:
            each = figures.get((size, mode))
            cells.append("" if each is None else f"{each.worst_ms:,.0f} / {each.duration_s:.1f}")
        grid.add_row(f"{size[0]:,} in {size[1]:,}", *cells)
    return grid


def targets_of(figures: FiguresByCase, both: Sequence[Size]) -> list[BenchTarget]:
    """What the issue asks for, as figures beside their limits."""
    targets = []
    for (size, mode), each in figures.items():
        if mode == "batched":
            where = f"batched, {size[0]:,} keys, {size[1]:,} bins"
            targets += [
                BenchTarget(f"{where}: worst batch / steady p99", each.worst_batch_of_steady, 1.5),
                BenchTarget(f"{where}: worst latency / steady p99", each.worst_of_steady, 1.5),
                BenchTarget(f"{where}: seconds without results beyond 1.5x the steady p99", each.beyond_steady_s, 0.0),
                BenchTarget(f"{where}: peak memory / steady", each.memory_of_steady, 1.25),
            ]
    for mode in ("fluid", "batched"):
        line = [figures[size, mode].worst_ms for size in both if (size, mode) in figures]
        if len(line) > 1:
            what = f"{mode}, the same bytes in a bin: worst latency, most state / least"
            targets.append(BenchTarget(what, line[-1] / line[0], 1.25))
    return targets


def report(
    records: Sequence[MoveRecord], parts: Sequence[str], keys: Sequence[int], bins: Sequence[int], out: Path
) -> int:
    """Print the tables, draw the plots, and return 1 where a target is missed or a run has failed."""
    fine = [record for record in records if record.failed is None]
    figures = figures_in(fine)
    drawn: list[Path] = []
    for size in sizes_of("modes", keys, bins) if "modes" in parts else []:
        records_of_size = [each for each in fine if _is_of(each.case, size)]
        if not records_of_size:
            continue
        name = f"{size[0]}-keys-{size[1]}-bins"
        title = f"{size[0]:,} keys, {size[1]:,} bins, a quarter moves"
        CONSOLE.print(modes_table(figures, size, records_of_size[0].case.rate), "")
        CONSOLE.print(memory_table(records_of_size, size), "")
        once = list({each.case.mode: each for each in reversed(records_of_size)}.values())[::-1]
        drawn.append(plots.latency_over_time(once, out / f"latency-{name}.png", title))
        drawn.append(plots.memory_over_time(once, out / f"memory-{name}.png", title))
    for part in [each for each in parts if each != "modes"]:
        line = sizes_of(part, keys, bins)
        modes = [mode for mode in STRATEGIES if any((size, mode) in figures for size in line)]
        if not modes:
            continue
        CONSOLE.print(line_table(part, figures, line, modes), "")
        shown = {
            mode: {
                f"{size[0]:,} keys, {size[1]:,} bins": figures[size, mode] for size in line if (size, mode) in figures
            }
            for mode in modes
        }
        drawn.append(plots.worst_against_duration(shown, out / f"worst-{part}.png", f"{part} vary"))
    both = sizes_of("both", keys, bins) if "both" in parts else []
    targets = targets_of(figures, both)
    grid = table("targets", "what", "measured", "target", "")
    for each in targets:
        grid.add_row(each.what, f"{each.measured:.3g}", each.wanted, "met" if each.met else "[red]missed[/]")
    downtimes = [f"{mode} {each.silent_s:.1f} s" for (size, mode), each in figures.items()
                 if mode in (*RESTARTS, *NATIVES, "batched") and size[0] == min(keys)]  # fmt: skip
    CONSOLE.print(grid, f"\nlongest time without results, {min(keys):,} keys: {', '.join(downtimes) or 'nothing ran'}")
    CONSOLE.print(f"drawn: {', '.join(each.name for each in drawn) or 'nothing'} in {out}")
    failures = [record for record in records if record.failed is not None]
    for record in failures:
        CONSOLE.print(f"[red]failed[/]: {record.case}: {record.failed}", markup=True)
    return int(bool(failures) or not all(each.met for each in targets))


def _is_of(case: MoveCase, size: Size) -> bool:
    return case.keys == size[0] and (case.bins == size[1] or case.mode in NATIVES)


# --- the command -----------------------------------------------------------------------------


def numbers(text: str) -> list[int]:
    """Whole numbers between commas; k and m stand for thousands and millions."""
    short = {"k": 1_000, "m": 1_000_000}
    return sorted({int(float(each.rstrip("kmKM")) * short.get(each[-1].lower(), 1)) for each in text.split(",")})


def names(*known: str) -> argparse._ActionType:
    """Names between commas, each of them known."""

    def read(text: str) -> list[str]:
        words = text.split(",")
        unknown = [each for each in words if each not in known]
        if unknown:
            raise argparse.ArgumentTypeError(f"there is no {unknown[0]!r}; there are: {', '.join(known)}")
        return words

    return read


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=names(*PARTS), metavar="PART,..",
                        help=f"only these of {', '.join(PARTS)}")  # fmt: skip
    parser.add_argument("--modes", type=names(*MODES), metavar="MODE,..",
                        help=f"only these of {', '.join(MODES)}")  # fmt: skip
    parser.add_argument("--keys", type=numbers, metavar="N,..", help="how many keys, as in 1m,10m (default)")
    parser.add_argument("--bins", type=numbers, metavar="N,..", help="how many bins (default 256,4096)")
    parser.add_argument("--rate", type=int, metavar="N", help="rows a second (default 20000)")
    parser.add_argument("--seconds", type=float, metavar="S",
                        help="seconds before the move, and at least so many from its start (default 30)")  # fmt: skip
    parser.add_argument("--warm", type=float, metavar="S", help="seconds of load that do not count (default 15)")
    parser.add_argument("--repeat", type=int, default=1, metavar="N", help="runs of each case; figures are medians")
    parser.add_argument("--options", type=json.loads, default={}, metavar="JSON",
                        help='of the live moves, as in \'{"max_bins": 8, "copy_bytes": 1000000}\'')  # fmt: skip
    parser.add_argument("--short", action="store_true",
                        help="few keys, modes and seconds, for CI; targets are not held against it")  # fmt: skip
    parser.add_argument("--out", type=Path, help="folder for plots, records and logs (default: a new temporary one)")
    parser.add_argument("--again", type=Path, metavar="FOLDER", help="run nothing: tables and plots of these records")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    options = parser.parse_args()
    full = {
        "only": list(PARTS), "modes": list(MODES), "keys": [10**6, 10**7], "bins": [256, 4096],
        "rate": 20_000, "seconds": 30.0, "warm": 15.0,
    }  # fmt: skip
    short = {
        "only": ["modes"], "modes": [NONE, "batched", "restart", "native"], "keys": [100_000], "bins": [64],
        "rate": 5_000, "seconds": 8.0, "warm": 6.0,
    }  # fmt: skip
    for name, value in (short if options.short else full).items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    return options


def main() -> int:
    """Run the cases, each in a process of its own, and report."""
    options = parsed()
    if options.case:
        carry_out(MoveCase(**json.loads(options.case)))
        return 0
    out: Path = options.again or options.out or Path(tempfile.mkdtemp(prefix="meander-migrate-"))
    out.mkdir(parents=True, exist_ok=True)
    kept = out / "records.jsonl"
    records: list[MoveRecord] = []
    if options.again:
        records = [MoveRecord.from_dict(json.loads(line)) for line in kept.read_text().splitlines()]
        options.keys = sorted({record.case.keys for record in records})
        options.bins = sorted({record.case.bins for record in records})
    else:
        cases = cases_of(options)
        for at, case in enumerate(cases):
            started = perf_counter()
            record = one(case, out / f"{case.mode}-{case.keys}-{case.bins}-{case.repeat}.log")
            with kept.open("a") as file:
                file.write(json.dumps(record.to_dict()) + "\n")
            records.append(record)
            said = record.failed or "done"
            CONSOLE.print(f"{at + 1}/{len(cases)} {case}: {said}, {perf_counter() - started:.0f} s", markup=False)
    status = report(records, options.only, options.keys, options.bins, out)
    return int(any(record.failed for record in records)) if options.short else status


def one(case: MoveCase, log: Path) -> MoveRecord:
    """Run one case; what it fails of is in its record."""
    limit_s = 240 + case.keys / 10_000 + 30 * case.seconds
    try:
        return replace(run("migrate", json.dumps(asdict(case)), log, limit_s), case=case)
    except Failed as problem:
        return MoveRecord(case, failed=str(problem))


if __name__ == "__main__":
    sys.exit(main())
