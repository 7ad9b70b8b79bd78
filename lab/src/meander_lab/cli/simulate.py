"""`meander simulate`: worker counts of a real series, replayed by several planners. Spark only where `mtm` needs it."""

from __future__ import annotations

import csv
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from meander.cli import show
from meander.cli.read import json_from
from meander.errors import InvalidOption, InvalidProblem, MeanderError
from meander.options import amount, whole
from meander.progress import Tell, progress_bars
from meander_lab.replay import Bins, Bound, Replay, clairvoyant, lower_bound, replay
from meander_lab.replay.bins import DRIFT, SKEW

if TYPE_CHECKING:
    from meander.outlook import Outlook
    from meander.outlook.transitions import Transitions

PLANNERS = "ssm,mtm,free,consistent_hash,redist,even"
CLAIRVOYANT = "clairvoyant"
MTM = "mtm"
BINS = 64


@dataclass
class Study:
    """What is replayed, and what came of it."""

    series: str
    counts: list[int]
    transitions: Transitions
    bins: Bins
    tau: float
    gamma: float
    outlook: str | None
    seeds: int
    notes: list[str]
    replays: list[Replay] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    bound: Bound | None = None


def simulate(
    series: Annotated[str, typer.Argument(help="CSV or Parquet with times and amounts")],
    planners: Annotated[
        str, typer.Option("--planners", help="who plans, with commas; clairvoyant knows the next 3 migrations")
    ] = PLANNERS,
    lo: Annotated[int, typer.Option("--lo", help="the fewest workers")] = 8,
    hi: Annotated[int, typer.Option("--hi", help="the most workers")] = 16,
    bins: Annotated[int | None, typer.Option("--bins", help=f"number of bins, {BINS} unless given")] = None,
    tau: Annotated[float, typer.Option("--tau", help="the load cap: (1 + tau) times the fair share")] = 1.2,
    gamma: Annotated[float, typer.Option("--gamma", help="what a later migration counts for mtm, below 1")] = 0.8,
    drift: Annotated[
        float | None,
        typer.Option("--drift", help=f"how much bins change per migration; {DRIFT}, and 0 for measured ones"),
    ] = None,
    skew: Annotated[float | None, typer.Option("--skew", help=f"exponent of Zipf's law, {SKEW} unless given")] = None,
    migrations: Annotated[int, typer.Option("--migrations", help="how many to replay at most")] = 100,
    seed: Annotated[int, typer.Option("--seed", help="another seed, other bins")] = 1,
    seeds: Annotated[int, typer.Option("--seeds", help="how many rings to take the mean of")] = 20,
    measured: Annotated[
        str | None, typer.Option("--measured", metavar="FILE", help="bins as JSON: load and state, or a whole problem")
    ] = None,
    outlook: Annotated[
        str | None, typer.Option("--outlook", metavar="FOLDER", help="an outlook for mtm; else it is computed first")
    ] = None,
    time: Annotated[str | None, typer.Option("--time", metavar="COLUMN", help="the column with the times")] = None,
    value: Annotated[str | None, typer.Option("--value", metavar="COLUMN", help="the column with the amounts")] = None,
    out: Annotated[
        str | None, typer.Option("--out", metavar="DIR", help="where CSV and plot go; by default simulation-SERIES")
    ] = None,
    format: show.FORMAT = None,
) -> None:
    """Replay a history of arrivals and compare what planners move.

    Amounts are summed into hours and scaled to --lo to --hi workers. What mtm has to learn it learns from the first
    month; replayed are the migrations after it. Bins are made up, with Zipf loads that drift, or measured. All planners
    see the same ones. A tau that is infeasible is raised to the smallest feasible one.

    For example

    \b
      meander simulate arrivals.csv --tau 0.4
      meander simulate arrivals.csv --planners ssm,even --measured bins.json
    """
    names = _names(planners)
    tau = float(amount("--tau", tau))
    if not 0 <= gamma < 1:
        raise InvalidOption(f"--gamma is {gamma}; it must be at least 0 and below 1, such as 0.8")
    counts, transitions, notes = _counts(series, lo, hi, time, value, whole("--migrations", migrations, 1))
    all_bins = _bins(measured, bins, skew, drift, seed)
    seeds = whole("--seeds", seeds, 1)
    what = Study(Path(series).stem, counts, transitions, all_bins, tau, gamma, outlook, seeds, notes)
    folder = _folder(out if out is not None else f"simulation-{what.series}")
    _run(what, names, folder)
    files = [_write_csv(folder / "replay.csv", what.replays), *_plot(folder / "replay.png", what)]
    if show.wants_json(format):
        show.print_json(_answer(what, files))
    else:
        _print(show.console(), what, files)


def _names(text: str) -> list[str]:
    from meander.planning import planners

    names = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    known = [*dict.fromkeys([*planners(), MTM]), CLAIRVOYANT]
    for name in names:
        if name not in known:
            raise InvalidOption(f"--planners names {name!r}; there are {', '.join(known)}")
    if not names:
        raise InvalidOption(f"--planners names nobody; write names with commas, such as {PLANNERS}")
    return names


def _counts(
    series: str, lo: int, hi: int, time: str | None, value: str | None, most: int
) -> tuple[list[int], Transitions, list[str]]:
    """The worker counts to replay, the transitions of the month before, and what was decided on the way."""
    from meander.outlook import read_series
    from meander.outlook.series import migrations
    from meander.outlook.transitions import Transitions

    hourly = read_series(series, time, value).hourly().workers(lo, hi)
    learned, judged = hourly.learn_and_judge()
    counts: list[int] = migrations(judged.values).tolist()
    if len(counts) < 2:
        raise InvalidOption(
            f"after what is learned from, {series} asks for {counts[0]} workers all the time, so there is nothing to "
            "replay; give a longer series or another --lo and --hi"
        )
    notes = list(dict.fromkeys([*learned.notes, *judged.notes]))
    return counts[: most + 1], Transitions.of(learned.values, lo, hi), notes


def _bins(measured: str | None, bins: int | None, skew: float | None, drift: float | None, seed: int) -> Bins:
    if measured is None:
        return Bins.synthetic(
            BINS if bins is None else bins,
            skew=SKEW if skew is None else skew,
            drift=DRIFT if drift is None else drift,
            seed=seed,
        )
    if bins is not None or skew is not None:
        raise InvalidOption("--bins and --skew are for bins that are made up; leave them out with --measured")
    try:
        data = json_from(measured, "measured bins")
    except InvalidProblem as error:
        raise InvalidOption(str(error)) from None
    return Bins.from_dict(data, drift=0.0 if drift is None else drift, seed=seed)


def _outlook(what: Study, folder: Path, tell: Tell) -> Outlook:
    """The outlook for mtm: the one given, or one that is made on Spark and kept in a folder."""
    from meander.outlook import read
    from meander.outlook.exact import Case
    from meander.outlook.files import INDEX
    from meander.outlook.outlook import fingerprint_of

    if what.outlook is not None and (Path(what.outlook) / INDEX).exists():
        return read(what.outlook)
    # Nobody but mtm loads Spark.
    from meander.engine.spark.jobs import in_short
    from meander.outlook.pmc import DRIFT as USUAL
    from meander.outlook.pmc import pmc
    from meander.sessions import session

    tell(0, None, "starting Spark")
    try:
        spark = session()
    except MeanderError:
        raise
    except Exception as error:
        raise InvalidOption(
            f"its outlook is made on Spark, which did not start ({in_short(error)}); "
            "install Java 17 or newer, or give --outlook FOLDER"
        ) from None
    spark.sparkContext.setLogLevel("ERROR")
    load, state = what.bins.at(0)
    drift = what.bins.drift or USUAL
    inputs = {**Case.of(load, state, what.transitions, what.tau, what.gamma).inputs(), "drift": drift}
    path = folder / f"outlook-{fingerprint_of('', inputs)[:12]}" if what.outlook is None else Path(what.outlook)
    # Exact costs are those of the first bins; learned ones serve better once bins have drifted.
    exactly = False if what.bins.drift else None
    return pmc(
        spark, load, state, what.transitions, what.tau, what.gamma, path, exactly=exactly, drift=drift, tell=tell
    )


def _run(what: Study, names: Sequence[str], folder: Path) -> None:
    """Replay every planner; one that cannot go on is left out, and the others go on."""
    with progress_bars() as tell:
        for name in names:
            try:
                what.replays.append(_replayed(what, name, folder, tell))
            except MeanderError as error:
                what.left_out[name] = str(error)
        if not what.replays:
            reasons = "; ".join(f"{name}: {why}" for name, why in what.left_out.items())
            raise InvalidOption(f"no planner could be replayed ({reasons})")
        what.bound = lower_bound(what.counts, what.bins, what.tau, most=len(what.counts))


def _replayed(what: Study, name: str, folder: Path, tell: Tell) -> Replay:
    """What a planner did."""

    def report(done: int, total: int) -> None:
        tell(done, total, name)

    most = len(what.counts)
    if name == CLAIRVOYANT:
        return clairvoyant(what.counts, what.bins, what.tau, most=most, progress=report)
    options = {"outlook": _outlook(what, folder, tell)} if name == MTM else {}
    return replay(what.counts, what.bins, name, what.tau, options=options, most=most, seeds=what.seeds, progress=report)


def _folder(name: str) -> Path:
    folder = Path(name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidOption(
            f"cannot write into {name}: {(error.strerror or str(error)).lower()}; name another folder with --out"
        ) from None
    return folder


def _write_csv(path: Path, replays: Sequence[Replay]) -> str:
    rows = [row for each in replays for row in each.rows()]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return str(path)


def _plot(path: Path, what: Study) -> list[str]:
    from meander_lab.replay.plots import plot

    title = f"{what.series}: {what.bins.bins} bins, tau {what.tau:g}, drift {what.bins.drift:g}"
    try:
        return [str(plot(what.replays, path, title))]
    except ModuleNotFoundError:
        what.notes.append("there is no plot, because matplotlib is not installed")
        return []


def _figures(what: Study) -> list[dict[str, Any]]:
    """One object for each planner; against ssm as a ratio where ssm was replayed and has moved anything."""
    ssm = next((each.total_bytes for each in what.replays if each.planner == "ssm"), 0)
    return [
        {
            "planner": each.planner,
            "bytes": each.total_bytes,
            "percent_per_migration": each.percent_per_migration,
            "against_ssm": each.total_bytes / ssm if ssm else None,
            "heaviest_mean": statistics.fmean(each.imbalance),
            "heaviest_worst": max(each.imbalance),
            "tau_raised": each.raised.times,
            "largest_tau": max(row.tau for row in each.migrations),
            "median_ms": each.median_ms,
            "seeds": each.seeds,
            "notes": each.notes,
        }
        for each in what.replays
    ]


def _answer(what: Study, files: Sequence[str]) -> dict[str, Any]:
    assert what.bound is not None
    return {
        "series": what.series,
        "migrations": len(what.counts) - 1,
        "bins": what.bins.bins,
        "tau": what.tau,
        "drift": what.bins.drift,
        "planners": _figures(what),
        "left_out": what.left_out,
        "at_least": what.bound._asdict(),
        "notes": what.notes,
        "files": list(files),
    }


def _print(console: Console, what: Study, files: Sequence[str]) -> None:
    assert what.bound is not None
    steps = len(what.counts) - 1
    lines = [
        f"{what.series}: {steps} migrations between {min(what.counts)} and {max(what.counts)} workers, "
        f"{what.bins.bins} bins, tau {what.tau:g}, drift {what.bins.drift:g}",
        "%: of all state, a migration; mean, worst: heaviest worker / fair share",
    ]
    console.print(*lines, "", sep="\n", markup=False, soft_wrap=True)
    console.print(figures_table(_figures(what)))
    least = f"{show.size(what.bound.bytes)}, {what.bound.percent_per_migration:.2f} %"
    lines = [f"intervals cannot do with less than {least}, whoever plans"]
    lines += [f"{name} is left out: {why}" for name, why in what.left_out.items()]
    for each in what.replays:
        lines += [f"{each.planner}: mean of {each.seeds} seeds"] if each.seeds > 1 else []
        lines += [f"{each.planner}, at {times} of {steps} migrations: {note}" for note, times in each.notes.items()]
    console.print("", *lines, *what.notes, "written: " + ", ".join(files), sep="\n", markup=False, soft_wrap=True)


def figures_table(figures: Sequence[dict[str, Any]]) -> Table:
    """Planners by row: what they moved, against ssm, how even they kept the load, and how long they took."""
    columns = ("planner", ">moved", ">%", ">x ssm", ">mean", ">worst", ">tau raised", ">ms")
    table = show.new_table(*columns, no_wrap=True)
    for each in figures:
        ratio, times = each["against_ssm"], each["tau_raised"]
        table.add_row(
            Text(each["planner"]),
            show.size(each["bytes"]),
            f"{each['percent_per_migration']:.2f}",
            "-" if ratio is None else f"{ratio:.2f}",
            f"{each['heaviest_mean']:.2f}",
            f"{each['heaviest_worst']:.2f}",
            f"{times} x, to {each['largest_tau']:.2f}" if times else "never",
            f"{each['median_ms']:.2f}",
        )
    return table
