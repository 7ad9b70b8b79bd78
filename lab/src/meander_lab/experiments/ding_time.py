"""Figure 10 of Ding et al.: how long a plan takes, against the load cap tau."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from meander_lab.experiments import finding as f
from meander_lab.experiments.finding import Finding
from meander_lab.experiments.setting import DRIFTS, Lab

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PLANNERS = ("ssm", "mtm")
PAPER_MS = 2.0
ENOUGH_MS = 10.0
ROUNDS = 3
"""So often each plan is made; the quickest counts, since other work on the machine only ever adds to it."""


def ding_time(lab: Lab) -> Finding:
    """How long a plan of ssm and of mtm takes, against tau (Figure 10)."""
    rows: list[dict[str, Any]] = []
    for history, drift, tau, planner in lab.each([*product(lab.histories, DRIFTS, lab.setting.taus, PLANNERS)]):
        rounds = [lab.replayed(history, planner, tau, drift).migrations for _ in range(ROUNDS)]
        ms = [min(each.ms for each in same) for same in zip(*rounds, strict=True)]
        rows.append(
            {
                "series": history.name,
                "drift": drift,
                "tau": tau,
                "planner": planner,
                "median_ms": float(np.median(ms)),
                "p99_ms": float(np.percentile(ms, 99)),
                "plans": len(ms),
            }
        )
    return Finding("ding-time", rows, says(rows), lambda figure: draw(figure, rows))


def draw(figure: Figure, rows: list[dict[str, Any]]) -> None:
    """Draw the figures."""
    names = {"median_ms": "median", "p99_ms": "99th percentile"}
    for axis, planner in zip(figure.subplots(1, len(PLANNERS)), PLANNERS, strict=True):
        points = {
            f"{label}, {f.of_loads(drift)}": f.line(rows, "tau", column, planner=planner, drift=drift)
            for column, label in names.items()
            for drift in f.distinct(rows, "drift")
        }
        f.lines(axis, points, "load cap tau", "time of a plan [ms]", planner)
    figure.suptitle(f"Time of a plan against tau ({f.source(rows)})")


def says(rows: list[dict[str, Any]]) -> str:
    """The paragraph that follows from the figures."""
    taus = f.distinct(rows, "tau")
    ssm, mtm = ([f.mean(rows, "median_ms", tau=tau, planner=name) for tau in taus] for name in PLANNERS)
    worst_ssm, worst_mtm = (max(row["p99_ms"] for row in rows if row["planner"] == name) for name in PLANNERS)
    within = "within" if worst_ssm <= PAPER_MS else "not within"
    enough = "within" if worst_mtm <= ENOUGH_MS else "not within"
    return (
        f"The median time of ssm {f.direction(ssm, 'ms', 0.02)} as tau goes from {taus[0]:g} to {taus[-1]:g}; "
        f"the paper's grows. Its 99th percentile is at most {worst_ssm:.2f} ms, {within} the "
        f"{PAPER_MS:g} ms that the paper never exceeds. That of mtm "
        f"{f.direction(mtm, 'ms', 0.1)}, its 99th percentile is at most {worst_mtm:.2f} ms, {enough} the "
        f"{ENOUGH_MS:g} ms it may take; the paper calls its time negligible and shows none."
    )
