"""Figure 14 of Ding et al.: what the discount gamma does to cost and pre-computation."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any

from meander_lab.experiments import finding as f
from meander_lab.experiments.finding import Finding
from meander_lab.experiments.setting import DRIFTS, Lab

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def ding_gamma(lab: Lab) -> Finding:
    """What the discount gamma does to what mtm moves, and to its pre-computation (Figure 14)."""
    rows: list[dict[str, Any]] = []
    setting = lab.setting
    for history, tau, drift, gamma in lab.each([*product(lab.histories, setting.two_taus, DRIFTS, setting.gammas)]):
        result = lab.replayed(history, "mtm", tau, drift, gamma=gamma)
        rows.append(
            {
                "series": history.name,
                "tau": tau,
                "drift": drift,
                "gamma": gamma,
                "percent": result.percent_per_migration,
                "bytes": result.total_bytes,
                "ssm_percent": lab.replayed(history, "ssm", tau, drift).percent_per_migration,
                "pmc_seconds": lab.outlook(history, tau, gamma).seconds,
                "noted": sum(result.notes.values()),
            }
        )
    return Finding("ding-gamma", rows, says(rows), lambda figure: draw(figure, rows))


def draw(figure: Figure, rows: list[dict[str, Any]]) -> None:
    """Draw the figures."""
    left, right = figure.subplots(1, 2)
    taus, drifts = f.distinct(rows, "tau"), f.distinct(rows, "drift")
    points = {
        f"tau {tau:g}, {f.of_loads(drift)}": f.line(rows, "gamma", "percent", tau=tau, drift=drift)
        for tau, drift in product(taus, drifts)
    }
    f.lines(left, points, "discount gamma", "state moved by mtm per migration [%]")
    seconds = {f"tau {tau:g}": f.line(rows, "gamma", "pmc_seconds", tau=tau) for tau in taus}
    f.lines(right, seconds, "discount gamma", "pre-computation [s]")
    figure.suptitle(f"Effect of the discount gamma ({f.source(rows)})")


def says(rows: list[dict[str, Any]]) -> str:
    """The paragraph that follows from the figures."""
    gammas = f.distinct(rows, "gamma")
    said = []
    for tau, drift in product(f.distinct(rows, "tau"), f.distinct(rows, "drift")):
        these = [row for row in rows if (row["tau"], row["drift"]) == (tau, drift)]
        costs = [f.mean(these, "percent", gamma=gamma) for gamma in gammas]
        ssm = f.mean(these, "ssm_percent")
        best = gammas[costs.index(min(costs))]
        moves = f"moves {f.direction(costs, '%', 0.02)} of state a migration"
        said.append(
            f"At tau {tau:g} with {f.of_loads(drift)}, what mtm {moves} as gamma goes from {gammas[0]:g} to "
            f"{gammas[-1]:g}"
            + (f", and is least at {best:g} with {min(costs):.2f} %." if costs[-1] > min(costs) else ".")
        )
        if gammas[0] == 0:
            said.append("gamma 0 moves what ssm does." if costs[0] == ssm else f"ssm moves {ssm:.2f} %.")
        if ssm < f.NEAR_ZERO:
            said.append("There ssm moves next to nothing already.")
    said.append("In the paper the cost falls as gamma grows, and gamma 0 is single-step migration.")
    seconds = [f.mean(rows, "pmc_seconds", gamma=gamma) for gamma in gammas]
    times = f"from {seconds[0]:.3g} to {seconds[-1]:.3g} s"
    said.append(f"The pre-computation {f.trend(seconds)} with gamma, {times} (paper: it grows).")
    return " ".join(said)
