"""Figure 13 of Ding et al.: how late results are after a migration, against the size of the window, by planner."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from meander.errors import Infeasible
from meander_lab.experiments import finding as f
from meander_lab.experiments.arrivals import arrivals
from meander_lab.experiments.finding import Finding
from meander_lab.experiments.live import Live, SearchRun
from meander_lab.experiments.setting import History, Setting

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PLANNERS = ("ssm", "mtm", "consistent_hash", "even")
BEFORE, AFTER = 8, 6
FEWEST = 4
"""Workers before and after, and the fewest that the outlook of mtm knows of."""

TAU = Setting().tau
PAPER_STORM_MS = 5000.0


def ding_window(live: Live) -> Finding:
    """How late results are in the two minutes after a migration, against the window, by planner (Figure 13)."""
    rows: list[dict[str, Any]] = []
    timing = live.timing
    live.calibrated(BEFORE)
    for number, window_s in enumerate(timing.windows_s):
        live.tell(number, len(timing.windows_s), "windows")
        with live.running(window_s, BEFORE) as run:
            rows += _window(live, run, window_s)
    live.tell(len(timing.windows_s), len(timing.windows_s), "windows")
    return Finding("ding-window", rows, says(rows), lambda figure: draw(figure, rows))


def minutes(live: Live) -> float:
    """About how long it will take."""
    timing = live.timing
    return sum(each + len(PLANNERS) * (timing.after_s + timing.before_s / 2 + 5) + 45 for each in timing.windows_s) / 60


def _window(live: Live, run: SearchRun, window_s: float) -> list[dict[str, Any]]:
    """Fill the window, then let each planner take the same query to fewer workers."""
    timing, query = live.timing, run.query
    run.until(run.began_s + window_s + timing.before_s, f"filling a window of {window_s:g} s")
    usual_ms = run.delays.between(run.began_s + window_s, math.inf).mean_ms
    usual_ms = run.delays.mean_ms if math.isnan(usual_ms) else usual_ms
    history = History.of("generated", arrivals(), replace(Setting(), lo=FEWEST, hi=BEFORE))
    query.look_ahead(history.transitions, tau=TAU, gamma=Setting().gamma, exactly=False, effort=timing.effort)
    origin = query.assignment
    rows = []
    for planner in PLANNERS:
        _begin_again(run, planner, origin)
        run.calm(usual_ms, timing.after_s, f"waiting for calm, {planner}, window of {window_s:g} s")
        rows.append({"input": live.input, "window_s": window_s, "planner": planner, **_migrated(live, run, planner)})
    return rows


def _begin_again(run: SearchRun, planner: str, origin: Mapping[str, Sequence[int]]) -> None:
    """Bring all bins, at once, to where all began, or for consistent hashing onto its ring of as many workers."""
    if planner == "consistent_hash":
        run.query.rescale(BEFORE, planner=planner, mode="pause").wait()
        return
    for operator, owners in origin.items():
        run.query.move(dict(enumerate(owners)), operator=operator, mode="pause").wait()


def _migrated(live: Live, run: SearchRun, planner: str) -> dict[str, Any]:
    timing, query = live.timing, run.query
    state = query.last_progress.state_bytes if query.last_progress else 0
    begun_s = time.time()
    move = _rescaled(run, planner)
    run.until(begun_s + timing.after_s, f"after the migration by {planner}")
    run.caught_up(begun_s + timing.after_s, f"after the migration by {planner}")
    move.wait(max(60.0, timing.after_s))
    report, delays = move.report, run.delays
    before, after = (
        delays.between(begun_s - timing.before_s, begun_s),
        delays.between(begun_s, begun_s + timing.after_s),
    )
    return {
        "mean_ms": after.mean_ms,
        "p99_ms": after.p99_ms,
        "before_ms": before.mean_ms,
        "results": after.count,
        "percent": 100 * report.bytes / state if state else math.nan,
        "bytes": report.bytes,
        "bins": report.bins,
        "took_s": report.duration_s,
        "workers_before": BEFORE,
        "workers_after": len(report.workers_after),
        "tweets_per_s": live.rate,
        "scale": timing.scale,
        "notes": "; ".join(report.remarks),
    }


def _rescaled(run: SearchRun, planner: str) -> Any:
    """Begin the migration, at the papers' tau, or at the smallest that can be kept."""
    try:
        return run.query.rescale(AFTER, planner=planner, tau=TAU)
    except Infeasible as error:
        if error.smallest_tau is None:
            raise
        return run.query.rescale(AFTER, planner=planner, tau=error.smallest_tau * (1 + 1e-9))


def draw(figure: Figure, rows: list[dict[str, Any]]) -> None:
    """Draw the figures."""
    left, right = figure.subplots(1, 2)
    for axis, column, label in (
        (left, "mean_ms", "mean delay after the migration began [ms]"),
        (right, "percent", "state moved [%]"),
    ):
        points = {planner: f.line(rows, "window_s", column, planner=planner) for planner in PLANNERS}
        f.lines(axis, points, "window [s]", label)
    figure.suptitle(f"Delay of results after {BEFORE} workers became {AFTER} ({f.distinct(rows, 'input')[0]} tweets)")


def says(rows: list[dict[str, Any]]) -> str:
    """The paragraph that follows from the figures."""
    windows = f.distinct(rows, "window_s")
    means = {name: [f.mean(rows, "mean_ms", window_s=each, planner=name) for each in windows] for name in PLANNERS}
    ssm, mtm, ring, even = (means[name] for name in PLANNERS)
    scale, rate = rows[0]["scale"], rows[0]["tweets_per_s"]
    trends = [f"that of {name} {f.direction(means[name], 'ms')}" for name in PLANNERS]
    said = [
        f"{BEFORE} workers became {AFTER} at {rate:g} tweets a second; "
        + ("all times are the papers'." if scale == 1 else f"all times are {scale:g} of the papers'."),
        f"As the window goes from {windows[0]:g} to {windows[-1]:g} s, the mean delay after a migration began goes so: "
        f"{f.listing(trends)}; in the paper all grow.",
        f"ssm is below consistent hashing at {_below(ssm, ring)} of {len(windows)} windows and mtm at "
        f"{_below(mtm, ring)} (paper: both at all, by large margins); mtm is below ssm at {_below(mtm, ssm)} "
        "(paper: all).",
        f"The delay of even is at least {min(even):.0f} ms (paper: Storm's scheduler at least {PAPER_STORM_MS:g} ms, "
        "too much for its figure).",
    ]
    times = [row["mean_ms"] / row["before_ms"] for row in rows if row["before_ms"] > 0]
    if times:
        said.append(
            f"Against the time right before, a migration makes the mean delay {min(times):.2f} to {max(times):.2f} "
            "times what it was, whoever plans it."
        )
    moved = {name: f.mean(rows, "percent", planner=name) for name in PLANNERS}
    said.append(
        "Of all state, "
        + f.listing([f"{name} moves {percent:.0f} %" for name, percent in moved.items()])
        + " in the mean over windows."
    )
    return " ".join(said)


def _below(ours: list[float], theirs: list[float]) -> int:
    return sum(mine < other for mine, other in zip(ours, theirs, strict=True))
