"""./dev bench growth: the time of a batch against rows, keys, bins, workers and operators, one axis at a time.

Count by key over the production driver and the real workers in this process, without Spark; keys are drawn evenly from
those that are there. Figures are medians over batches, processor time of the thread that does the work: the driver's
part (everything but the workers: plan, messages, reports, manifest) and that of the slowest worker. On executors the
workers run beside each other, so `batch` is the two together. The exponent is the slope of a line through the
logarithms of size and time: 1 is linear, 0 is no growth.

    driver    the driver's part with 1,000 rows a batch, bins and workers together
    rows      1 k to 1 M rows a batch                   workers   2 to 64
    keys      1 M to 100 M, 100,000 rows a batch        chain     1 to 5 operators, each counting by the same key
    bins      2^8 to 2^16, the most there can be

With --spark the same batches run on `local[2]`, and `batch` is Spark's own `triggerExecution`. Writes a plot for each
axis and all figures as JSON. Ends with exit code 1 where the target is missed, unless the sizes are the quick ones.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from meander_lab.benchmarks.engine_figures import BenchTarget
from meander_lab.benchmarks.growth_case import GrowthCase, GrowthFigures, measure
from meander_lab.benchmarks.growth_plots import draw, exponent

CONSOLE = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
LEAST, MOST = (256, 4), (65536, 64)
"""Bins and workers of the query that the target is about, and of the one it is compared with."""
TARGET = 2.0

Measure = Callable[[GrowthCase, Path], GrowthFigures]


def axes(is_quick: bool, most_keys: int) -> dict[str, list[GrowthCase]]:
    """The cases of each axis; all but one size stay as they are."""
    small = GrowthCase(rows=1000, keys=100_000, batches=5 if is_quick else 40)
    large = GrowthCase(rows=100_000, keys=1_000_000, batches=3 if is_quick else 7)
    keys = [each for each in (10_000, 100_000) if is_quick] or [10**6, 10**7, 10**8]
    return {
        "rows": [replace(large, rows=10**each) for each in (range(3, 6) if is_quick else range(3, 7))],
        "keys": [replace(large, keys=each) for each in keys if each <= most_keys],
        "bins": [replace(small, bins=1 << each) for each in ((8, 12) if is_quick else range(8, 17, 2))],
        "workers": [replace(small, workers=1 << each) for each in ((1, 3) if is_quick else range(1, 7))],
        "chain": [replace(small, chain=each) for each in ((1, 2) if is_quick else range(1, 6))],
    }


def corners(is_quick: bool) -> list[GrowthCase]:
    """Bins and workers together, for the driver's part."""
    small = GrowthCase(rows=1000, keys=100_000, batches=5 if is_quick else 40)
    bins, workers = ((256, 4096), (4, 16)) if is_quick else ((256, 4096, 65536), (4, 16, 64))
    return [replace(small, bins=many, workers=each) for many in bins for each in workers]


def size_of(axis: str, case: GrowthCase) -> int:
    """What grows along an axis."""
    return int(getattr(case, axis))


def axis_table(axis: str, figures: Mapping[GrowthCase, GrowthFigures]) -> Table:
    """The figures of one axis, with the exponents below."""
    sizes = [size_of(axis, case) for case in figures]
    table = _table(f"{axis}: ms, medians", axis, "batch", "driver", "slowest worker", "to workers kB", "reports kB")
    for size, each in zip(sizes, figures.values(), strict=True):
        times = f"{each.batch_ms:,.1f}", f"{each.driver_ms:,.1f}", f"{each.worker_ms:,.1f}"
        table.add_row(f"{size:,}", *times, f"{each.control_bytes / 1e3:,.0f}", f"{each.report_bytes / 1e3:,.0f}")
    exponents = (
        exponent(sizes, [getattr(each, name) for each in figures.values()])
        for name in ("batch_ms", "driver_ms", "worker_ms", "control_bytes", "report_bytes")
    )
    table.add_row("exponent", *(f"{each:.2f}" for each in exponents), style="bold")
    return table


def driver_table(figures: Mapping[GrowthCase, GrowthFigures]) -> Table:
    """The driver's part by bins and workers, in ms and as a multiple of the smallest."""
    workers = sorted({case.workers for case in figures})
    table = _table("driver: ms a batch of 1,000 rows, median (mean)", "bins", *(f"{each} workers" for each in workers))
    for bins in sorted({case.bins for case in figures}):
        row = [each for case, each in figures.items() if case.bins == bins]
        table.add_row(f"{bins:,}", *(f"{each.driver_ms:.1f} ({each.driver_mean_ms:.1f})" for each in row))
    return table


def target_of(figures: Mapping[GrowthCase, GrowthFigures]) -> BenchTarget | None:
    """How the driver's part grows from few bins and workers to many; None where these were not measured."""
    at = {(case.bins, case.workers): each.driver_ms for case, each in figures.items()}
    if LEAST not in at or MOST not in at:
        return None
    return BenchTarget("driver, 65,536 bins and 64 workers / 256 and 4", at[MOST] / at[LEAST], TARGET)


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, justify="right")
    return table


def as_json(results: Mapping[str, Mapping[GrowthCase, GrowthFigures]]) -> str:
    """All figures, by axis, as JSON."""
    lines = {
        axis: [{**asdict(case), **asdict(each)} for case, each in figures.items()] for axis, figures in results.items()
    }
    return json.dumps(lines, indent=1)


def run(cases: Mapping[str, Sequence[GrowthCase]], measured: Measure) -> dict[str, dict[GrowthCase, GrowthFigures]]:
    """Measure all cases; one that is on several axes is measured once."""
    known: dict[GrowthCase, GrowthFigures] = {}
    with Progress(console=CONSOLE, transient=True, disable=not sys.stdout.isatty()) as progress:
        task = progress.add_task("", total=sum(map(len, cases.values())))
        for axis, each in cases.items():
            for case in each:
                progress.update(task, description=f"{axis}: {size_of(axis, case):,}" if axis != "driver" else axis)
                if case not in known:
                    with tempfile.TemporaryDirectory(prefix="meander-growth-", ignore_cleanup_errors=True) as folder:
                        known[case] = measured(case, Path(folder))
                progress.advance(task)
    return {axis: {case: known[case] for case in each} for axis, each in cases.items()}


def main() -> int:
    """Measure, print, draw and write; returns 1 where the target is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="AXIS,..", help="only these of driver, rows, keys, bins, workers, chain")
    parser.add_argument("--quick", action="store_true", help="small sizes; the target is not for these")
    parser.add_argument(
        "--most-keys", type=int, default=10**8, help="no case has more keys (a key takes about 40 bytes)"
    )
    parser.add_argument("--spark", action="store_true", help="on Spark, local[2], in place of this process alone")
    parser.add_argument("--plots", type=Path, default=Path("build/growth"), help="folder of the plots and the JSON")
    options = parser.parse_args()
    cases = {"driver": corners(options.quick), **axes(options.quick, options.most_keys)}
    chosen = (
        options.only.split(",")
        if options.only
        else [each for each in cases if not (options.spark and each == "driver")]
    )
    unknown = [name for name in chosen if name not in cases]
    if unknown:
        parser.error(f"there is no axis {unknown[0]!r}; there are: {', '.join(cases)}")
    measured: Measure = measure
    if options.spark:
        from meander_lab.benchmarks.growth_spark import SparkGrowth

        measured = SparkGrowth().measure
    results = run({axis: cases[axis] for axis in chosen}, measured)
    for axis, figures in results.items():
        CONSOLE.print(driver_table(figures) if axis == "driver" else axis_table(axis, figures))
        CONSOLE.print()
        if axis != "driver":
            sizes = [size_of(axis, case) for case in figures]
            CONSOLE.print(f"drawn: {draw(axis, sizes, list(figures.values()), options.plots / f'{axis}.png')}\n")
    options.plots.mkdir(parents=True, exist_ok=True)
    (options.plots / "growth.json").write_text(as_json(results))
    target = target_of(results.get("driver", {}))
    if target is None:
        return 0
    CONSOLE.print(f"{target.what}: {target.measured:.1f}, wanted {target.wanted}: {'met' if target.met else 'missed'}")
    return int(not options.quick and not target.met)


if __name__ == "__main__":
    sys.exit(main())
