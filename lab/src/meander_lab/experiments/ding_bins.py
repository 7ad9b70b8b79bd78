"""Figure 12 of Ding et al.: what the number of bins does to cost and time."""

from __future__ import annotations

import math
from itertools import product
from typing import TYPE_CHECKING, Any

from meander_lab.experiments import finding as f
from meander_lab.experiments.finding import Finding
from meander_lab.experiments.setting import DRIFTS, Lab, of_size

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PLANNERS = ("ssm", "mtm")

MTM_UP_TO = 128
"""With more bins the pre-computation would take longer than all the rest; the paper shows only ssm here."""


def ding_bins(lab: Lab) -> Finding:
    """What the number of bins does to what ssm and mtm move, and to their time (Figure 12).

    All sizes cut the same keys: fewer bins are more of the finest ones merged.
    """
    rows: list[dict[str, Any]] = []
    setting, finest = lab.setting, max(lab.setting.sizes)
    who = [("ssm", size) for size in setting.sizes] + [("mtm", size) for size in setting.sizes if size <= MTM_UP_TO]
    cases = [*product(lab.histories, setting.two_taus, DRIFTS, who)]
    for history, tau, drift, (planner, size) in lab.each(cases):
        bins = of_size(size, finest, drift, setting.seed)
        result = lab.replayed(history, planner, tau, drift, bins=bins)
        rows.append(
            {
                "series": history.name,
                "tau": tau,
                "drift": drift,
                "bins": size,
                "planner": planner,
                "percent": result.percent_per_migration,
                "bytes": result.total_bytes,
                "median_ms": result.median_ms,
                "tau_raised": result.raised.times,
                "noted": sum(result.notes.values()),
            }
        )
    return Finding("ding-bins", rows, says(rows), lambda figure: draw(figure, rows), (11.0, 8.5))


def draw(figure: Figure, rows: list[dict[str, Any]]) -> None:
    """Draw the figures."""
    taus = f.distinct(rows, "tau")
    for (left, right), tau in zip(figure.subplots(len(taus), 2, squeeze=False), taus, strict=True):
        for axis, column, label in (
            (left, "percent", "state moved per migration [%]"),
            (right, "median_ms", "time of a plan, median [ms]"),
        ):
            points = {
                f"{planner}, {f.of_loads(drift)}": f.line(_of(rows, planner), "bins", column, tau=tau, drift=drift)
                for planner, drift in product(PLANNERS, f.distinct(rows, "drift"))
            }
            f.lines(axis, points, "bins m", label, f"tau {tau:g}")
            axis.set_xscale("log", base=2)
            sizes = f.distinct(rows, "bins")
            axis.set_xticks(sizes, [str(size) for size in sizes])
            axis.minorticks_off()
    figure.suptitle(f"Effect of the number of bins ({f.source(rows)})")


def _of(rows: list[dict[str, Any]], planner: str) -> list[dict[str, Any]]:
    return [row for row in rows if row["planner"] == planner]


def says(rows: list[dict[str, Any]]) -> str:
    """The paragraph that follows from the figures."""
    said = []
    for tau, drift in product(f.distinct(rows, "tau"), f.distinct(rows, "drift")):
        moved = []
        for planner in PLANNERS:
            points = f.line(_of(rows, planner), "bins", "percent", tau=tau, drift=drift)
            if points:
                trend = f.direction([percent for _, percent in points], "%", 0.05)
                moved.append(f"what {planner} moves {trend} as bins go from {points[0][0]:g} to {points[-1][0]:g}")
        said.append(f"At tau {tau:g} with {f.of_loads(drift)}, {f.listing(moved)}.")
        if f.mean(_of(rows, "ssm"), "percent", tau=tau, drift=drift) < f.NEAR_ZERO:
            said.append("That is next to nothing.")
    said.append("In the paper the cost falls with more bins, for both.")
    times = f.line(_of(rows, "ssm"), "bins", "median_ms")
    (few, little), (many, much) = times[0], times[-1]
    if many > few:
        power = math.log(much / little) / math.log(many / few)
        said.append(
            f"The time of ssm goes from {little:.2f} ms for {few:g} bins to {much:.2f} ms for {many:g}, about as the "
            f"number of bins to the power of {abs(power) if abs(power) < 0.05 else power:.1f}; the paper's grows with "
            f"its square."
        )
    return " ".join(said)
