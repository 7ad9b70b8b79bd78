"""./dev bench mtm: what looking ahead saves over real series of worker counts, at the papers' default setting.

64 bins with Zipf loads, 8 to 16 workers, gamma 0.8, up to 100 migrations after the first month of each series; for each
tau with loads that stay and with loads that drift. Beside ssm and mtm: free, redist (mean of 10 rings), even,
consistent_hash (mean of 100 rings), a clairvoyant that knows the next 3 migrations, and a bound that no intervals go
below. A tau that is infeasible is raised to the smallest feasible one, and that is printed.

Outlooks are learned on Spark, local[2], from the bins as they are at the start. Under drift they are kept as they are,
unless --renew LIMIT says from which distance of loads on a new one is made. They are kept in the folder of --out, with
the time they took, until the code that learns them changes; --fresh makes them again.

    --only series    the replays
    --only gap       small problems: learned prices against the optimum and ssm, by exact evaluation of their policies

Ends with exit code 1 where a target is missed, and names it. CSV and PNG go to --out.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path

import numpy as np
from rich.console import Console

import meander
from meander.outlook import Outlook
from meander.progress import progress_bars
from meander_lab.benchmarks import mtm_figures as m
from meander_lab.benchmarks import mtm_gap
from meander_lab.benchmarks.mtm_figures import ReplayLine
from meander_lab.experiments.arrivals import arrivals
from meander_lab.experiments.setting import DRIFTS, History, Lab, Outlooks, Setting, TimedOutlook
from meander_lab.replay import clairvoyant, lower_bound, replay

CONSOLE = Console(highlight=False, width=None if sys.stdout.isatty() else 220)
GENERATED = 4
AHEAD = 3


@dataclass
class Renewing:
    """Planner mtm that has a new outlook made when the loads are too far from those of the one it has."""

    history: History
    tau: float
    gamma: float
    limit: float
    outlooks: Outlooks
    timed_outlooks: list[TimedOutlook] = field(default_factory=list)
    __name__: str = "mtm"

    def __call__(self, problem: meander.Problem) -> meander.Plan:
        """Plan, with the outlook there is or a new one."""
        if not self.timed_outlooks or self.outlook.distance(problem) > self.limit:
            transitions = self.history.transitions
            load, state = problem.load_array, problem.state_array
            self.timed_outlooks.append(self.outlooks.of(load, state, transitions, self.tau, self.gamma))
        return meander.planners()["mtm"](problem, outlook=self.outlook)

    @property
    def outlook(self) -> Outlook:
        """The newest outlook."""
        return self.timed_outlooks[-1].outlook


def line_of(lab: Lab, history: History, tau: float, drift: float, renew: float | None) -> ReplayLine:
    """Replay all planners over one series at one tau with one drift."""
    bins, outlooks = lab.bins(drift), [lab.outlook(history, tau)]
    replays = {name: lab.replayed(history, name, tau, drift) for name in m.PLANNERS if name != "mtm"}
    if renew is None or drift == 0:
        replays["mtm"] = lab.replayed(history, "mtm", tau, drift)
    else:
        planner = Renewing(history, tau, lab.setting.gamma, renew, lab.outlooks, outlooks)
        replays["mtm"] = replay(history.counts, bins, planner, tau, most=lab.setting.migrations)
    most = lab.setting.migrations
    moved = {name: float(each.total_bytes) for name, each in replays.items()}
    moved[m.CLAIRVOYANT] = float(clairvoyant(history.counts, bins, tau, ahead=AHEAD, most=most).total_bytes)
    moved[m.BOUND] = lower_bound(history.counts, bins, tau, most=most).bytes
    ahead = replays["mtm"]
    ms = [each.ms for each in ahead.migrations]
    return ReplayLine(
        series=history.name,
        tau=tau,
        drift=drift,
        migrations=len(ahead.migrations),
        moved=moved,
        ssm_percent=replays["ssm"].percent_per_migration,
        raised=replays["ssm"].raised.times,
        raised_to=replays["ssm"].raised.most,
        pmc_s=sum(each.seconds for each in outlooks),
        median_ms=float(np.median(ms)),
        p99_ms=float(np.percentile(ms, 99)),
        fell_back=sum(any("planned by ssm" in note for note in each.notes) for each in ahead.migrations),
        renewed=len(outlooks) - 1,
    )


def histories(data: Path | None, setting: Setting, most: int | None) -> list[History]:
    """The series of a folder, or made-up ones, and say which."""
    folder = data
    if folder is None:
        CONSOLE.print(f"{most or GENERATED} series are made up; give real ones with --data", soft_wrap=True)
        seeds = range(1, (most or GENERATED) + 1)
        return [History.of(f"generated-{seed}", arrivals(seed=seed), setting) for seed in seeds]
    series = []
    for path in sorted(folder.glob("*.csv")):
        try:
            series.append(History.read(path, setting))
        except meander.InvalidOption as error:
            CONSOLE.print(f"{path.name} is left out: {error}", markup=False, soft_wrap=True)
    for history in series[:most]:
        for note in history.notes:
            CONSOLE.print(f"{history.name}: {note}", markup=False, soft_wrap=True)
    return series[:most]


def replays(options: argparse.Namespace, setting: Setting, outlooks: Outlooks, lab: Lab) -> int:
    """All series, taus and drifts: table, plot, verdicts. Return 1 where a target is missed."""
    cases = [*product(lab.histories, options.taus, options.drifts)]
    lines: list[ReplayLine] = []
    for history, tau, drift in lab.each(cases):
        lines.append(line_of(lab, history, tau, drift, options.renew))
        # Written each time, so that a run that is cut short has left what it found.
        m.write_csv([line.row() for line in lines], options.out / "mtm.csv")
    return report(lines, options.out, setting, options.renew)


def report(lines: Sequence[ReplayLine], out: Path, setting: Setting, renew: float | None) -> int:
    """Print the table, the verdicts and where the files are; return 1 where a target is missed."""
    kept = "never renewed" if renew is None else f"renewed under drift beyond a distance of {renew:g}"
    title = (
        f"{setting.bins} bins, {setting.lo} to {setting.hi} workers, gamma {setting.gamma:g}, up to "
        f"{setting.migrations} migrations; the outlook is made from the bins at the start and {kept}; bytes over all "
        f"migrations against those of ssm; ssm %: of all state, a migration; ring: consistent_hash, mean of "
        f"{setting.seeds} rings"
    )
    CONSOLE.print(m.table(lines, title), "", sep="\n")
    verdicts = m.verdicts(lines)
    CONSOLE.print(m.verdict_table(verdicts))
    CONSOLE.print(m.times(lines), soft_wrap=True)
    files = [m.write_csv([line.row() for line in lines], out / "mtm.csv"), m.plot(lines, out / "mtm.png")]
    CONSOLE.print(f"written: {', '.join(map(str, files))}", soft_wrap=True)
    missed = [each for each in verdicts if not each.met]
    for each in missed:
        CONSOLE.print(f"missed: {each.what}: {each.figure}", markup=False, soft_wrap=True)
    return int(bool(missed))


def gaps(options: argparse.Namespace, outlooks: Outlooks, lab: Lab) -> None:
    """Learned prices against the optimum on small problems, as a table and a CSV."""
    small = mtm_gap.QUICK if options.quick else mtm_gap.SMALL
    gaps_of_cases = [mtm_gap.gap(each, outlooks) for each in lab.each(small)]
    CONSOLE.print("", mtm_gap.table(gaps_of_cases), sep="\n")
    path = m.write_csv([each.row() for each in gaps_of_cases], options.out / "gap.csv")
    CONSOLE.print(f"written: {path}", soft_wrap=True)


def numbers(text: str) -> list[float]:
    """Numbers with commas between them."""
    return [float(each) for each in text.split(",")]


def parsed(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--data", type=Path, metavar="DIR", help="folder of *.csv series ; without it, series are made up"
    )
    parser.add_argument("--taus", type=numbers, metavar="X,..", help="load caps (default 0.2,0.4,0.8,1.2)")
    parser.add_argument("--drifts", type=numbers, metavar="X,..", default=list(DRIFTS), help="drifts (default 0,0.05)")
    parser.add_argument("--series", type=int, metavar="N", help="only the first N series")
    parser.add_argument("--renew", type=float, metavar="LIMIT", help="make a new outlook beyond this distance")
    parser.add_argument("--migrations", type=int, metavar="N", help="at most so many of each series (default 100)")
    parser.add_argument("--only", choices=("series", "gap"), help="only the replays, or only the small problems")
    parser.add_argument("--fresh", action="store_true", help="make outlooks again that were kept")
    parser.add_argument("--quick", action="store_true", help="2 taus, 1 series, little practice, 30 migrations")
    parser.add_argument("--out", type=Path, metavar="DIR", default=Path("results/mtm"), help="(default results/mtm)")
    options = parser.parse_args(words)
    setting = Setting.quick() if options.quick else Setting()
    options.taus = options.taus or list(setting.taus)
    options.series = options.series or (1 if options.quick else None)
    options.migrations = options.migrations or setting.migrations
    options.setting = replace(setting, migrations=options.migrations)
    return options


def main() -> int:
    """Measure, print, and return 1 where a target is missed."""
    options = parsed()
    setting: Setting = options.setting
    kept = options.out / "outlooks"
    if options.fresh:
        shutil.rmtree(kept, ignore_errors=True)
    there = [] if options.only == "gap" else histories(options.data, setting, options.series)
    if not there and options.only != "gap":
        CONSOLE.print(f"there is no series in {options.data}")
        return 2
    status = 0
    with progress_bars() as tell:
        outlooks = Outlooks(kept, effort=setting.effort, tell=tell)
        lab = Lab(setting, there, outlooks, tell)
        if options.only != "gap":
            status = replays(options, setting, outlooks, lab)
        if options.only != "series":
            gaps(options, outlooks, lab)
    return status


if __name__ == "__main__":
    sys.exit(main())
