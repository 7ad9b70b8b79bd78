"""./dev bench join: Meander's join beside BiStream, BiStream-ContRand and FastJoin, as Ls-Stream compares them.

Parts:

    datasets   LI, the highest rate and the latency of all schemes, for Zipf streams with coefficients 0.2 to 1.0 and
               for rides whose hot spots move, with 8 workers (Figures 7, 8, 9 and 12)
    workers    the same at Zipf 0.8 with 8, 16 and 24 workers (Figures 10, 11 and 13)
    alpha      Ls-Stream's highest rate and latency for alpha from 0.25 to 6 (Figures 14 and 15)
    spark      rows a second of Spark's own join and of ours, on Spark (`join_spark.py`)
    growth     what twice the state does to the time of a batch, on Spark (`join_spark.py`)

The first three need as many cores as there are workers, and so they have a virtual clock. Every worker runs the real
join over state of its own, one after the other, and is busy for as long as that takes of the CPU's time; a batch takes
as long as the busiest of them, and its overhead (`join_cluster.py`). Rates are rows a second of both sides together.
The highest rate is the one at which batches begin to take longer than the interval. The latency is from arrival to the
end of the batch, at one rate for all schemes: 0.8 of the lowest highest one, batch after batch without a pause. For
all Zipf streams it is the same rate. Between 8 workers no key can be divided but by ContRand, which looks at each row
twice for it. LI is that of eq. 11 to 13 for all: the rows that a worker has of each of 256 slices of the hash.

All schemes have the same join, which finds the rows of a key without looking at others. In the paper, the other
systems look through all that an instance has stored; what Ls-Stream gains by smaller partitions is not shown here.
Every repetition (--repeats) has other data, and the table has the medians.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from time import perf_counter

from rich.console import Console
from rich.progress import Progress, TaskID
from rich.table import Table

from meander_lab.apps.rides import Rides
from meander_lab.apps.zipf import ZipfStreams
from meander_lab.benchmarks import join_plots as plots
from meander_lab.benchmarks.join_cluster import JoinFeed, JoinSetting
from meander_lab.benchmarks.join_ramp import Lengths, Point, point_of, ramp_of
from meander_lab.benchmarks.join_schemes import SCHEMES

CONSOLE = Console(highlight=False, width=None if sys.stdout.isatty() else 170)
PARTS = ("datasets", "workers", "alpha", "spark", "growth")
ZIPFS = ("zipf0.2", "zipf0.4", "zipf0.6", "zipf0.8", "zipf1.0")
DATASETS = (*ZIPFS, "rides")
ALPHAS = (0.25, 0.5, 1.0, 2.0, 4.0, 6.0)
PLOTS = Path("results/join")
SHARE = 0.8
"""The rate at which latency is measured, of the lowest highest rate."""

RIDES = Rides(order=5, spread_km=0.7, moves_s=20.0, trip_s=5.0)
"""Cells of about a kilometre, so that a hot spot is a few of them; a minute is a few seconds."""


def feed_of(dataset: str, keys: int, seed: int) -> JoinFeed:
    """The rows of a dataset."""
    if dataset == "rides":
        return JoinFeed(replace(RIDES, seed=seed))
    return JoinFeed(ZipfStreams(float(dataset.removeprefix("zipf")), keys, seed))


class JoinBench:
    """Runs what is asked for and keeps what it finds."""

    def __init__(self, options: argparse.Namespace, tell: Progress, task: TaskID) -> None:
        self.options, self.tell, self.task = options, tell, task
        self.setting = JoinSetting(bins=options.bins, interval_s=options.interval, overhead_s=options.overhead,
                               within_s=options.within, alpha=options.alpha)  # fmt: skip
        self.lengths = Lengths(12, 16) if options.quick else Lengths()

    def datasets(self, datasets: Sequence[str]) -> list[Point]:
        """All schemes with all datasets; the median of the repetitions."""
        points: list[Point] = []
        for seed in range(self.options.repeats):
            setting = replace(self.setting, seed=seed)
            highest = {(d, s): self.ramp(s, d, setting) for d in datasets for s in SCHEMES}
            zipf = [rate for (d, _), (rate, _) in highest.items() if d in ZIPFS]
            for (dataset, scheme), most in highest.items():
                lowest = min(zipf) if dataset in ZIPFS else min(highest[dataset, s][0] for s in SCHEMES)
                points.append(self.point(scheme, dataset, setting, SHARE * lowest, most))
        return [middle([each for each in points if (each.dataset, each.scheme) == (dataset, scheme)])
                for dataset in datasets for scheme in SCHEMES]  # fmt: skip

    def workers(self, dataset: str, counts: Sequence[int]) -> list[Point]:
        """All schemes with so many workers each; the rate of the latency is for 8 of them, whatever their number."""
        highest = {(n, s): self.ramp(s, dataset, replace(self.setting, workers=n)) for n in counts for s in SCHEMES}
        rate = SHARE * min(most for most, _ in highest.values())
        return [
            self.point(scheme, dataset, replace(self.setting, workers=n), rate, most)
            for (n, scheme), most in highest.items()
        ]

    def alphas(self, datasets: Sequence[str], alphas: Sequence[float]) -> list[Point]:
        """Ls-Stream with every alpha."""
        points = []
        for dataset in datasets:
            highest = {alpha: self.ramp("Ls-Stream", dataset, replace(self.setting, alpha=alpha)) for alpha in alphas}
            rate = SHARE * min(most for most, _ in highest.values())
            for alpha, most in highest.items():
                points.append(self.point("Ls-Stream", dataset, replace(self.setting, alpha=alpha), rate, most))
        return points

    def ramp(self, scheme: str, dataset: str, setting: JoinSetting) -> tuple[float, float]:
        """The highest rate of one."""
        self._say(f"{dataset}, {scheme}, {setting.workers} workers, alpha {setting.alpha:g}: highest rate")
        return ramp_of(scheme, feed_of(dataset, self.options.keys, setting.seed), setting, self.lengths)

    def point(
        self, scheme: str, dataset: str, setting: JoinSetting, rate: float, highest: tuple[float, float]
    ) -> Point:
        """The figures of one."""
        self._say(f"{dataset}, {scheme}, {setting.workers} workers, alpha {setting.alpha:g}: latency")
        feed = feed_of(dataset, self.options.keys, setting.seed)
        return point_of(scheme, dataset, feed, setting, self.lengths, rate, highest)

    def _say(self, text: str) -> None:
        self.tell.update(self.task, description=text, advance=1)
        if self.tell.disable:
            CONSOLE.print(text, markup=False)


def middle(points: Sequence[Point]) -> Point:
    """The medians of points of one dataset and scheme."""
    medians = {
        each.name: statistics.median(getattr(point, each.name) for point in points)
        for each in fields(Point) if each.name not in ("dataset", "scheme", "workers", "seed", "table", "moved_rows")
    }  # fmt: skip
    return replace(points[0], **medians)


def show(title: str, points: Sequence[Point], beside: str | None = "BiStream") -> None:
    """Print points as a table, with ratios to a scheme."""
    grid = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for at, column in enumerate((
        "dataset", "scheme", "workers", "alpha", "LI before", "LI", "busy LI", "highest rows/s", "of BiStream", "busy",
        "rows/s", "mean ms", "p99 ms", "max ms", "of BiStream", "pairs a row", "moved rows", "table",
    )):  # fmt: skip
        grid.add_column(column, justify="right" if at > 1 else "left", no_wrap=at < 2)
    for each in points:
        peer = next(
            (p for p in points if (p.dataset, p.workers, p.scheme) == (each.dataset, each.workers, beside)), None
        )
        grid.add_row(
            each.dataset, each.scheme, str(each.workers), f"{each.alpha:g}", f"{each.begin_li:.2f}", f"{each.li:.2f}",
            f"{each.busy_li:.2f}", f"{each.highest:,.0f}",
            f"{each.highest / peer.highest:.2f}" if peer and peer.highest else "",
            f"{each.busy_share:.0%}", f"{each.rate:,.0f}", f"{each.mean_s * 1e3:.0f}", f"{each.p99_s * 1e3:.0f}",
            f"{each.max_s * 1e3:.0f}", f"{each.max_s / peer.max_s:.2f}" if peer else "", f"{each.looked_at:.1f}",
            f"{each.moved_rows:,}", f"{each.table:,}",
        )  # fmt: skip
    CONSOLE.print("", grid, "")


def judged(points: Sequence[Point]) -> Mapping[str, tuple[str, bool]]:
    """What the table has to show at Zipf 1.0: each target, what was found, and whether it is met."""
    hot = {each.scheme: each for each in points if each.dataset == "zipf1.0"}
    if set(hot) != set(SCHEMES):
        return {}
    ours, hashed, fast = hot["Meander"], hot["BiStream"], hot["FastJoin"]
    rate, latency = (mine / other if other else float("inf") for mine, other in (
        (ours.highest, hashed.highest), (ours.max_s, hashed.max_s)))  # fmt: skip
    ahead = ours.highest / fast.highest if fast.highest else float("inf")
    return {
        "highest rate at least 2x BiStream's at Zipf 1.0": (f"{rate:.2f}x", rate >= 2),
        "highest latency at most half of BiStream's at Zipf 1.0": (f"{latency:.2f}x", latency <= 0.5),
        "highest rate ahead of FastJoin's at Zipf 1.0": (f"{ahead:.2f}x", ahead > 1),
    }


def write(path: Path, points: Sequence[Point]) -> None:
    """Write points as CSV."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, [each.name for each in fields(Point)], lineterminator="\n")
        writer.writeheader()
        writer.writerows(each.to_dict() for each in points)


def run_part(part: str, bench: JoinBench, folder: Path) -> None:
    """Run one of the parts with the virtual clock, and tell."""
    quick = bench.options.quick
    if part == "datasets":
        points = bench.datasets(bench.options.datasets or (("zipf1.0",) if quick else DATASETS))
        show("datasets", points)
        for target, (measured, is_met) in judged(points).items():
            CONSOLE.print(f"{'met' if is_met else 'missed'}: {target}: {measured}", markup=False)
        drawn = plots.of_datasets(points, folder)
    elif part == "workers":
        points = bench.workers("zipf0.8", (8,) if quick else (8, 16, 24))
        show("workers", points)
        drawn = plots.of_workers(points, folder)
    else:
        points = bench.alphas(("zipf0.8",) if quick else ("zipf0.4", "zipf0.6", "zipf0.8"), ALPHAS)
        show("alpha", points, None)
        drawn = plots.of_alpha(points, folder)
    write(folder / f"{part}.csv", points)
    CONSOLE.print(f"plots: {', '.join(map(str, drawn))}", markup=False)


def names(known: Sequence[str]) -> Callable[[str], list[str]]:
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
    usual = JoinSetting()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=names(PARTS), default=list(PARTS), metavar="PART,..",
                        help=f"only these of {', '.join(PARTS)}")  # fmt: skip
    parser.add_argument("--datasets", type=names(DATASETS), metavar="DATASET,..",
                        help=f"part datasets: only these of {', '.join(DATASETS)}")  # fmt: skip
    parser.add_argument("--quick", action="store_true", help="short, and only part datasets with Zipf 1.0")
    parser.add_argument("--repeats", type=int, default=1, metavar="N",
                        help="part datasets: so many times, with other data (default 1)")  # fmt: skip
    parser.add_argument("--keys", type=int, default=10_000, help="keys of the Zipf streams (default 10000)")
    parser.add_argument("--bins", type=int, default=usual.bins, help=f"bins of Meander (default {usual.bins})")
    parser.add_argument("--alpha", type=float, default=usual.alpha, help=f"LI left alone (default {usual.alpha:g})")
    parser.add_argument("--within", type=float, default=usual.within_s, metavar="S",
                        help=f"seconds between rows that match (default {usual.within_s:g})")  # fmt: skip
    parser.add_argument("--interval", type=float, default=usual.interval_s, metavar="S",
                        help=f"seconds between batches (default {usual.interval_s:g})")  # fmt: skip
    parser.add_argument("--overhead", type=float, default=usual.overhead_s, metavar="S",
                        help=f"seconds of a batch besides its operators (default {usual.overhead_s:g})")  # fmt: skip
    parser.add_argument("--plots", type=Path, default=PLOTS, metavar="DIR", help=f"for plots and CSV (default {PLOTS})")
    options = parser.parse_args(arguments)
    if options.quick and options.only == list(PARTS):
        options.only = ["datasets"]
    return options


def main() -> int:
    """Run the parts and report."""
    options = parsed()
    options.plots.mkdir(parents=True, exist_ok=True)
    for part in options.only:
        started = perf_counter()
        if part in ("spark", "growth"):
            from meander_lab.benchmarks import join_spark

            CONSOLE.print("", (join_spark.compared if part == "spark" else join_spark.grown)(options.quick), "")
        else:
            with Progress(console=CONSOLE, transient=True, disable=not sys.stdout.isatty()) as progress:
                run_part(part, JoinBench(options, progress, progress.add_task("", total=None)), options.plots)
        CONSOLE.print(f"{part} took {perf_counter() - started:.0f} s\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
