"""Figure 15 of Ding et al.: how late results are from minute to minute, migrated live and with a restart."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

from meander_lab.experiments import finding as f
from meander_lab.experiments.delays import longest_gap_s
from meander_lab.experiments.finding import Finding
from meander_lab.experiments.live import Live, SearchRun

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BUSY = "minutes run into each other, and the machine is too busy, or --scale too small, for these figures"
MODES = ("live", "restart")
BEFORE, AFTER = 10, 8
PLANNER = "ssm"

WIDE = 10.0
"""From such a ratio on, a logarithmic scale."""

STARTED = 6
"""The first versions, which find what came while the query started, and load what has to be loaded."""


def ding_live(live: Live) -> Finding:
    """How late results are in each minute, 10 workers becoming 8 in the 7th, live and with a restart (Figure 15)."""
    rows: list[dict[str, Any]] = []
    live.calibrated(BEFORE)
    for number, mode in enumerate(MODES):
        live.tell(number, len(MODES), "modes")
        with live.running(live.timing.window_s, BEFORE) as run:
            rows += _mode(live, run, mode)
    live.tell(len(MODES), len(MODES), "modes")
    return Finding("ding-live", rows, says(rows), lambda figure: draw(figure, rows))


def minutes(live: Live) -> float:
    """About how long it will take."""
    return len(MODES) * (live.timing.minutes * live.timing.minute_s + 20) / 60 + 1


def _mode(live: Live, run: SearchRun, mode: str) -> list[dict[str, Any]]:
    timing, query = live.timing, run.query
    first_s = _under_way_s(run)

    def end_of(minute: int) -> float:
        return first_s + minute * timing.minute_s

    run.until(end_of(timing.moves_in - 1), f"{mode}: before the migration")
    begun_s = time.time()
    move = query.rescale(AFTER, planner=PLANNER, mode=mode)
    run.until(end_of(timing.minutes), f"{mode}: after the migration began")
    run.caught_up(end_of(timing.minutes), f"{mode}: the last results")
    move.wait(max(60.0, 2 * timing.minute_s))
    report, delays = move.report, run.delays
    gap_s = longest_gap_s(list(run.ended_ms.values()), begun_s, begun_s + max(report.duration_s, timing.minute_s))
    rows = []
    for minute in range(1, timing.minutes + 1):
        these = delays.between(end_of(minute - 1), end_of(minute))
        rows.append(
            {
                "input": live.input,
                "mode": mode,
                "minute": minute,
                "mean_ms": these.mean_ms,
                "p99_ms": these.p99_ms,
                "results": these.count,
                "moves_in": timing.moves_in,
                "longest_gap_s": gap_s,
                "took_s": report.duration_s,
                "bytes": report.bytes,
                "workers_before": len(report.workers_before),
                "workers_after": len(report.workers_after),
                "window_s": timing.window_s,
                "tweets_per_s": live.rate,
                "scale": timing.scale,
            }
        )
    return rows


def _under_way_s(run: SearchRun) -> float:
    """Wait until the query is under way, and return the moment from which minutes count."""
    while len(run.ended_ms) < STARTED or not run.delays.count:
        run.look("starting")
    return time.time()


def draw(figure: Figure, rows: list[dict[str, Any]]) -> None:
    """Draw the figures."""
    axis = figure.subplots()
    points = {
        mode: [(minute, ms) for minute, ms in f.line(rows, "minute", "mean_ms", mode=mode) if not math.isnan(ms)]
        for mode in MODES
    }
    heights = [ms for each in points.values() for _, ms in each]
    f.lines(axis, points, "minute", "mean delay of results [ms]", log=max(heights) > WIDE * min(heights))
    axis.axvline(rows[0]["moves_in"], color="grey", linewidth=0.8, linestyle=":")
    scale = rows[0]["scale"]
    short = "" if scale == 1 else f", a minute is {60 * scale:g} s"
    figure.suptitle(
        f"{rows[0]['workers_before']} workers become {rows[0]['workers_after']} in minute {rows[0]['moves_in']} "
        f"({f.distinct(rows, 'input')[0]} tweets{short})"
    )


def says(rows: list[dict[str, Any]]) -> str:
    """The paragraph that follows from the figures."""
    moves_in, scale, rate = rows[0]["moves_in"], rows[0]["scale"], rows[0]["tweets_per_s"]
    said = [
        f"{BEFORE} workers became {AFTER} in minute {moves_in} of {len(f.distinct(rows, 'minute'))} at {rate:g} "
        f"tweets a second and a window of {rows[0]['window_s']:g} s; "
        + ("a minute is a minute." if scale == 1 else f"a minute is {60 * scale:g} s here.")
    ]
    worst = {}
    for mode in MODES:
        these = [row for row in rows if row["mode"] == mode and not math.isnan(row["mean_ms"])]
        steady = f.mean([row for row in these if 1 < row["minute"] < moves_in], "mean_ms")
        worst[mode] = max((row["mean_ms"] for row in these if row["minute"] >= moves_in), default=math.nan)
        if steady > 60e3 * scale:
            said.append(f"With {mode} a result took longer than a minute of this course: {BUSY}.")
        gap_s = max((row["longest_gap_s"] for row in these), default=math.nan)
        said.append(
            f"With {mode} the mean delay is {steady:.0f} ms in the minutes before and at most {worst[mode]:.0f} ms in "
            f"one from then on, {worst[mode] / steady:.1f} times as much; around the migration the longest time "
            f"between two commits is {gap_s:.1f} s."
        )
    said.append(
        f"The worst minute with a restart is {worst['restart'] / worst['live']:.1f} times that of live migration; in "
        "the paper live migration is better by several orders of magnitude, where a restart ends every process and "
        "here only the query."
    )
    return " ".join(said)
