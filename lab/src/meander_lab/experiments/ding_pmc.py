"""Figure 11 of Ding et al.: how long the pre-computation takes, against the load cap tau."""

from __future__ import annotations

import os
from itertools import product
from typing import TYPE_CHECKING, Any

from meander_lab.experiments import finding as f
from meander_lab.experiments.finding import Finding
from meander_lab.experiments.setting import Lab

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ENOUGH_S = 300.0


def ding_pmc(lab: Lab) -> Finding:
    """How long the pre-computation for mtm takes, against tau (Figure 11)."""
    rows: list[dict[str, Any]] = []
    for history, tau in lab.each([*product(lab.histories, lab.setting.taus)]):
        timed = lab.outlook(history, tau)
        rows.append({"series": history.name, "tau": tau, "kind": timed.outlook.kind, "seconds": timed.seconds})
    return Finding("ding-pmc", rows, says(rows), lambda figure: draw(figure, rows), (6.5, 4.5))


def draw(figure: Figure, rows: list[dict[str, Any]]) -> None:
    """Draw the figures."""
    points = {name: f.line(rows, "tau", "seconds", series=name) for name in f.distinct(rows, "series")}
    title = f"Time of the pre-computation against tau ({f.source(rows)})"
    f.lines(figure.subplots(), points, "load cap tau", "pre-computation [s]", title)


def says(rows: list[dict[str, Any]]) -> str:
    """The paragraph that follows from the figures."""
    taus = f.distinct(rows, "tau")
    seconds = [f.mean(rows, "seconds", tau=tau) for tau in taus]
    longest = max(row["seconds"] for row in rows)
    within = "within" if longest <= ENOUGH_S else "not within"
    times = [f"{each:.3g} s at tau {tau:g}" for tau, each in zip(taus, seconds, strict=True)]
    is_learned = f.distinct(rows, "kind") == ["learned"]
    how = " Costs are learned here, with as much practice at every tau." if is_learned else ""
    return (
        f"The pre-computation takes {f.listing(times)} on this machine's {os.cpu_count()} cores, at most "
        f"{longest:.3g} s, {within} 5 minutes; it {f.trend(seconds)} with tau.{how} The paper looks at all "
        f"partitionings, on 64 executors, and needs hundreds of minutes. Outlooks that were kept from an earlier run "
        f"count with the time they took then."
    )
