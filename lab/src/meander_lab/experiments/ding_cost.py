"""Figure 9 of Ding et al.: migration cost against the load cap tau, by planner."""

from __future__ import annotations

import math
from itertools import product
from typing import TYPE_CHECKING, Any

from meander_lab.experiments import finding as f
from meander_lab.experiments.finding import Finding, Row
from meander_lab.experiments.setting import DRIFTS, Lab

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PLANNERS = ("ssm", "mtm", "consistent_hash", "even", "redist", "free")


def ding_cost(lab: Lab) -> Finding:
    """What planners move, against tau (Figure 9)."""
    rows: list[dict[str, Any]] = []
    for history, drift, tau, planner in lab.each([*product(lab.histories, DRIFTS, lab.setting.taus, PLANNERS)]):
        result = lab.replayed(history, planner, tau, drift)
        rows.append(
            {
                "series": history.name,
                "drift": drift,
                "tau": tau,
                "planner": planner,
                "percent": result.percent_per_migration,
                "bytes": result.total_bytes,
                "migrations": len(result.migrations),
                "tau_raised": result.raised.times,
                "largest_tau": max(each.tau for each in result.migrations),
                "heaviest": max(result.imbalance),
                "seeds": result.seeds,
                "noted": sum(result.notes.values()),
            }
        )
    return Finding("ding-cost", rows, says(rows), lambda figure: draw(figure, rows))


def draw(figure: Figure, rows: list[dict[str, Any]]) -> None:
    """Draw the figures."""
    drifts = f.distinct(rows, "drift")
    for axis, drift in zip(figure.subplots(1, len(drifts), sharey=True, squeeze=False)[0], drifts, strict=True):
        points = {name: f.line(rows, "tau", "percent", drift=drift, planner=name) for name in PLANNERS}
        f.lines(axis, points, "load cap tau", "state moved per migration [%]", f.of_loads(drift), log=True)
    figure.suptitle(f"Migration cost against tau ({f.source(rows)})")


def says(rows: list[dict[str, Any]]) -> str:
    """The paragraph that follows from the figures."""
    return " ".join(_of_drift([row for row in rows if row["drift"] == drift]) for drift in f.distinct(rows, "drift"))


def _of_drift(rows: list[Row] | list[dict[str, Any]]) -> str:
    taus = f.distinct(rows, "tau")
    ssm, mtm, ring, even = (
        [f.mean(rows, "percent", tau=tau, planner=name) for tau in taus]
        for name in ("ssm", "mtm", "consistent_hash", "even")
    )
    loads = f.of_loads(rows[0]["drift"])
    below = [tau for tau, ours, theirs in zip(taus, mtm, ssm, strict=True) if ours < theirs]
    gaps = [theirs - ours for ours, theirs in zip(mtm, ssm, strict=True)]
    compared = [f"{f.less(ours, theirs)} ssm at tau {tau:g}" for tau, ours, theirs in zip(taus, mtm, ssm, strict=True)]
    said = [
        f"With {loads}, mtm moves {f.listing(compared)}; the paper has it below ssm at every tau, here it is at "
        f"{len(below)} of {len(taus)}.",
        f"The gap {_direction(gaps)} ({f.listing([f'{gap:.2f}' for gap in gaps])} points of state per migration), and "
        f"in the paper it grows.",
        f"What ssm moves {f.trend(ssm, 0.05)} with tau and what mtm moves {f.trend(mtm, 0.05)} (paper: both fall).",
        _ring(taus, ring, ssm, mtm),
        _even(taus, even, ssm, mtm),
    ]
    idle = [tau for tau, percent in zip(taus, ssm, strict=True) if percent < f.NEAR_ZERO]
    if idle:
        said.append(
            f"At tau {f.listing(idle)} ssm moves less than {f.NEAR_ZERO:g} % of state a migration, as workers may stay "
            "empty: there is next to nothing left to save."
        )
    return " ".join(said)


def _direction(gaps: list[float]) -> str:
    return f"{f.trend(gaps, 0.05)} with tau" if max(gaps) > 0 else "is nowhere in favour of mtm"


def _ring(taus: list[float], ring: list[float], ssm: list[float], mtm: list[float]) -> str:
    above = [tau for tau, theirs, a, b in zip(taus, ring, ssm, mtm, strict=True) if theirs > max(a, b)]
    where = "at every tau" if len(above) == len(taus) else f"only at tau {f.listing(above)}"
    return f"Consistent hashing is above both {where} (paper: at every tau)."


def _even(taus: list[float], even: list[float], ssm: list[float], mtm: list[float]) -> str:
    times = [theirs / max(a, b) if max(a, b) > 0 else math.inf for theirs, a, b in zip(even, ssm, mtm, strict=True)]
    least = min(times)
    if math.isinf(least):
        return "They move nothing at all, and even does."
    return f"even moves at least {least:.1f} times what they do (Storm's scheduler in the paper: more than twice)."
