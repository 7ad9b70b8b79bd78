"""./dev bench disturb: how much it disturbs a stream that random groups of bins move again and again (after N-Storm).

Count by key on `local-cluster[4,1,1024]`, four workers, 32 groups of bins. Every 60 seconds for 600 seconds, M random
groups move to random other workers. Told are, for each mode, the seconds with a throughput 20, 40, 60, 80 and 100 %
below steady, and the rows that came out. What counts as throughput is in `disturb_measure.py`.

    modes   M = 1, 2, 4, 8 and 16 in every mode, and a run in which nothing moves (Figures 6 to 10)
    delay   M = 16, live: the old owner keeps its copy for 0 to 4 batches (Figures 11 and 12)
    ticks   M = 16, live: how often the one who moves looks / Spark's trigger: 10/3, 3/1, 1/0.3, 0.3/0.1 seconds,
            each beside a run in which nothing moves (Figures 13 and 14)

Rows come at a fixed rate that waits for nobody; with --rate 0, as many as are taken, as in the paper. A full run takes
seven hours; --every and --for make it shorter, --short much shorter. Runs are driver processes of their own.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from meander_lab.benchmarks import disturb_measure as measure
from meander_lab.benchmarks import migrate_plots as plots
from meander_lab.benchmarks.migrate import names, numbers, table
from meander_lab.benchmarks.migrate_case import EXECUTORS, Failed, MoveStage, mark, on_stage, run, tell
from meander_lab.benchmarks.migrate_load import Ours
from meander_lab.benchmarks.migrate_measure import NONE, MoveCase, MoveRecord

CONSOLE = Console(highlight=False, width=None if sys.stdout.isatty() else 140)
GROUPS = 32
MODES = ("live", "pause", "pause_bins", "restart", "restart_workers")
AFTER = 3
"""Batches to be seen after the end."""
TICKS = ((10.0, 3.0), (3.0, 1.0), (1.0, 0.3), (0.3, 0.1))


@dataclass(frozen=True)
class Disturbance:
    """One run: a case, how many groups move, how often, for how long, and how often someone looks whether to.

    Args:
        part: the part of the benchmark.
        name: what sets it apart within its part.
        case: how much state, the load, the mode, and the options of the moves.
        groups: how many groups move at a time; 0: nothing moves.
        every_s, seconds: from one move to the next, and in all.
        tick_s: a move begins at the first tick at which it is due and the last one is over.
    """

    part: str
    name: str
    case: MoveCase
    groups: int
    every_s: float
    seconds: float
    tick_s: float = 1.0
    seed: int = 1

    def __str__(self) -> str:
        return f"{self.part}: {self.name}"


@dataclass
class DisturbanceOutcome:
    """What came of it, over repeats."""

    below_s: list[tuple[float, ...]] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    moves: list[int] = field(default_factory=list)
    line: list[tuple[float, float]] = field(default_factory=list)


# --- in the driver process -------------------------------------------------------------------


def carry_out(disturbance: Disturbance) -> None:
    """Run one disturbance."""
    with on_stage(disturbance.case, workers=EXECUTORS) as stage:
        stage.sleep(disturbance.case.warm_s)
        began = mark("steady")
        tell("told", told={"moves": disturb(stage, disturbance, began)})


def disturb(stage: MoveStage, disturbance: Disturbance, began: float) -> list[dict[str, Any]]:
    """Look at every tick whether a move is due, until the time is over; return when each began and was over."""
    system = stage.system
    assert isinstance(system, Ours)
    rng = random.Random(disturbance.seed)
    moves: list[dict[str, Any]] = []
    moving: Any = None
    due = began + disturbance.every_s
    tick = began
    while (tick := tick + disturbance.tick_s) < began + disturbance.seconds:
        stage.sleep(tick - time.time())
        if moving is not None and moving.status not in ("waiting", "running"):
            moves[-1] |= {"until_s": time.time() - began, "status": moving.status, "bytes": moving.report.bytes}
            moving = None
        if disturbance.groups and moving is None and tick >= due:
            to = measure.random_groups(system.owner, GROUPS, disturbance.groups, EXECUTORS, rng)
            moves.append({"from_s": time.time() - began, "bins": len(to)})
            moving = system.query.move(
                to, mode=disturbance.case.mode, **{"schedule": "batched", **disturbance.case.options}
            )
            due += disturbance.every_s
    end = mark("end")
    if moving is not None:
        moving.wait(60)
        moves[-1] |= {"until_s": time.time() - began, "status": moving.status}
    # Rows that come out in the last slot before the end are committed after it.
    while sum(each.ended_s > end for each in stage.commits.batches) < AFTER and time.time() < end + 60:
        stage.sleep(0.1)
    return moves


# --- outside ---------------------------------------------------------------------------------


def runs_of(options: argparse.Namespace) -> list[Disturbance]:
    """Every run of the parts that are asked for."""
    base = MoveCase("live", options.keys, options.bins, options.rate, options.warm, options.every)

    def run_of(part: str, name: str, groups: int, tick_s: float = 1.0, **changed: Any) -> Disturbance:
        return Disturbance(part, name, replace(base, **changed), groups, options.every, options.duration, tick_s)

    runs: list[Disturbance] = []
    if "modes" in options.only:
        runs.append(run_of("modes", NONE, 0, mode=NONE))
        runs += [run_of("modes", f"{mode}, M = {m}", m, mode=mode) for mode in options.modes for m in options.groups]
    most = max(options.groups)
    if "delay" in options.only:
        runs += [
            run_of("delay", f"{after} batches", most, options={"release_after": after}) for after in options.delays
        ]
    if "ticks" in options.only:
        for tick_s, trigger_s in options.ticks:
            said = f"{tick_s:g}/{trigger_s:g} s"
            runs.append(run_of("ticks", f"{said}, {NONE}", 0, tick_s, trigger_s=trigger_s, mode=NONE))
            runs.append(run_of("ticks", said, most, tick_s, trigger_s=trigger_s))
    return [
        replace(each, seed=1 + turn, case=replace(each.case, repeat=turn))
        for turn in range(options.repeat)
        for each in runs
    ]


def outcome(record: MoveRecord, disturbance: Disturbance, so_far: DisturbanceOutcome) -> DisturbanceOutcome:
    """Add one run's figures."""
    began, end = record.marks["steady"], record.marks["end"]
    # Spans are the same in all runs, so that their seconds can be compared.
    first = began + disturbance.every_s
    loss = measure.degraded(record.batches, began, first, end)
    so_far.below_s.append(loss.below_s)
    so_far.rows.append(loss.rows)
    so_far.moves.append(len(record.told.get("moves", [])))
    if not so_far.line:
        whole = measure.pieces(record.batches, loss.slot_s, began, end)
        so_far.line = measure.per_second(whole, loss.slot_s)
    return so_far


def report(outcomes: dict[str, dict[str, DisturbanceOutcome]], out: Path) -> None:
    """Print a table for each part and draw its plots."""
    shares = [f"-{share:.0%}" for share in measure.LEVELS]
    for part, runs in outcomes.items():
        grid = table(
            f"{part}: seconds with a throughput so far below steady", "run", *shares, "rows", "of none", "moves"
        )
        still = {name: each for name, each in runs.items() if name.endswith(NONE)}
        for name, each in runs.items():
            seconds = [statistics.median(column) for column in zip(*each.below_s, strict=True)]
            rows = statistics.median(each.rows)
            beside = still.get(f"{name}, {NONE}") or next(iter(still.values()), None)
            of_none = "" if beside is None else f"{rows / statistics.median(beside.rows):.3f}"
            figures = [f"{value:.1f}" for value in seconds]
            grid.add_row(name, *figures, f"{rows:,.0f}", of_none, f"{statistics.median(each.moves):.0f}")
        CONSOLE.print(grid, "")
        middles = {
            name: dict(zip(shares, (statistics.median(c) for c in zip(*each.below_s, strict=True)), strict=True))
            for name, each in runs.items()
        }
        plots.bars(middles, out / f"below-{part}.png", f"{part}: time below steady throughput", "seconds")
        lines = {name: each.line for name, each in runs.items()}
        plots.throughput_over_time(lines, out / f"throughput-{part}.png", f"{part}: rows a second")
    CONSOLE.print(f"plots, records and logs are in {out}")


def pairs(text: str) -> list[tuple[float, float]]:
    """Pairs as in 10/3,3/1."""
    return [(float(left), float(right)) for left, right in (each.split("/") for each in text.split(","))]


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = ("modes", "delay", "ticks")
    parser.add_argument("--only", type=names(*parts), default=list(parts), metavar="PART,..", help=f"of {parts}")
    parser.add_argument("--modes", type=names(*MODES), metavar="MODE,..", help=f"only these of {', '.join(MODES)}")
    parser.add_argument("--groups", type=numbers, metavar="M,..", help=f"groups that move, of {GROUPS} (1,2,4,8,16)")
    parser.add_argument("--keys", type=int, metavar="N", help="how many keys (1000000)")
    parser.add_argument("--bins", type=int, default=256, metavar="N", help="how many bins, at least 32 (256)")
    parser.add_argument("--rate", type=int, metavar="N", help="rows a second; 0: as many as are taken (20000)")
    parser.add_argument("--every", type=float, metavar="S", help="seconds from one move to the next (60)")
    parser.add_argument("--for", dest="duration", type=float, metavar="S", help="seconds in all (600)")
    parser.add_argument("--warm", type=float, metavar="S", help="seconds of load that do not count (15)")
    parser.add_argument("--delays", type=numbers, metavar="N,..", help="batches an old owner keeps its copy (0 to 4)")
    parser.add_argument("--ticks", type=pairs, metavar="S/S,..", help="tick and trigger (10/3,3/1,1/0.3,0.3/0.1)")
    parser.add_argument("--repeat", type=int, default=1, metavar="N", help="runs of each; figures are medians")
    parser.add_argument("--short", action="store_true", help="few keys, moves and seconds, for CI")
    parser.add_argument("--out", type=Path, help="folder for plots, records and logs (default: a new temporary one)")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    full = {
        "modes": list(MODES), "groups": [1, 2, 4, 8, 16], "keys": 1_000_000, "rate": 20_000, "every": 60.0,
        "duration": 600.0, "warm": 15.0, "delays": [0, 1, 2, 3, 4], "ticks": list(TICKS),
    }  # fmt: skip
    short = full | {
        "modes": ["live", "restart"], "groups": [16], "keys": 100_000, "rate": 5_000, "every": 8.0,
        "duration": 24.0, "warm": 5.0, "delays": [0], "ticks": [(1.0, 0.3)],
    }  # fmt: skip
    for name, value in (short if options.short else full).items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    if options.bins % GROUPS:
        parser.error(f"--bins must be a multiple of {GROUPS}, not {options.bins}")
    return options


def main() -> int:
    """Run all, each in a process of its own, and report."""
    options = parsed()
    if options.case:
        plain = json.loads(options.case)
        carry_out(Disturbance(**plain | {"case": MoveCase(**plain["case"])}))
        return 0
    out: Path = options.out or Path(tempfile.mkdtemp(prefix="meander-disturb-"))
    out.mkdir(parents=True, exist_ok=True)
    outcomes: dict[str, dict[str, DisturbanceOutcome]] = {}
    status = 0
    wanted = runs_of(options)
    for at, each in enumerate(wanted):
        log = out / f"{at:03d}.log"
        try:
            limit_s = 300 + 2 * each.seconds + each.case.keys / 10_000
            record = replace(run("disturb", json.dumps(asdict(each)), log, limit_s), case=each.case)
            outcome(record, each, outcomes.setdefault(each.part, {}).setdefault(each.name, DisturbanceOutcome()))
            with (out / "records.jsonl").open("a") as file:
                file.write(json.dumps(record.to_dict() | {"run": asdict(each)}) + "\n")
            CONSOLE.print(f"{at + 1}/{len(wanted)} {each}: done", markup=False)
        except (Failed, ValueError) as problem:
            status = 1
            CONSOLE.print(f"{at + 1}/{len(wanted)} {each}: failed: {problem}", markup=False)
    report({part: {n: o for n, o in runs.items() if o.rows} for part, runs in outcomes.items()}, out)
    return status


if __name__ == "__main__":
    sys.exit(main())
