"""The figures of `./dev bench mtm`: lines, totals, verdicts, table and plot. No Spark, nothing is measured here."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from meander_lab.experiments.finding import NEAR_ZERO, drawn, of_loads

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PLANNERS = ("ssm", "mtm", "free", "redist", "even", "consistent_hash")
CLAIRVOYANT, BOUND = "clairvoyant", "bound"
COMPARED = ("mtm", "free", "redist", "even", "consistent_hash", CLAIRVOYANT, BOUND)
SHORT = {"consistent_hash": "ring"}

ABOVE_SSM = 1.02
"""On no single series mtm may move more than so much of what ssm moves."""

OF_EVEN = 0.5
PMC_S = 300.0
MTM_MS = 10.0
"""What a plan of mtm should take; reported, not judged."""

DUST = 1e-9


@dataclass(frozen=True)
class ReplayLine:
    """One series at one tau with one drift.

    Attributes:
        series, tau, drift: what was replayed.
        migrations: how many there were.
        moved: bytes moved, by planner, by the clairvoyant, and at least by anyone (the bound).
        ssm_percent: of all state, a migration.
        raised: at how many migrations tau was raised, for ssm and mtm.
        raised_to: the largest tau that was used instead, 0 where it never was.
        pmc_s: what making the outlook took; the sum where it was renewed.
        median_ms, p99_ms: of a plan of mtm.
        fell_back: at how many migrations mtm planned as ssm, for want of an outlook that fits.
        renewed: how often the outlook was made again on the way.
    """

    series: str
    tau: float
    drift: float
    migrations: int
    moved: dict[str, float]
    ssm_percent: float
    raised: int
    raised_to: float
    pmc_s: float
    median_ms: float
    p99_ms: float
    fell_back: int = 0
    renewed: int = 0

    def ratio(self, planner: str, to: str = "ssm") -> float:
        """Bytes of one against bytes of another; 1 where neither moves any."""
        return ratio(self.moved[planner], self.moved[to])

    @property
    def near_zero(self) -> bool:
        """Whether ssm moves next to nothing."""
        return self.ssm_percent < NEAR_ZERO

    def row(self) -> dict[str, Any]:
        """The line as plain values, for a CSV."""
        return {
            "series": self.series,
            "tau": self.tau,
            "drift": self.drift,
            "migrations": self.migrations,
            "ssm_percent": self.ssm_percent,
            **{f"{name}_bytes": self.moved[name] for name in ("ssm", *COMPARED)},
            **{f"{name}_of_ssm": self.ratio(name) for name in COMPARED},
            "mtm_of_even": self.ratio("mtm", "even"),
            "tau_raised": self.raised,
            "tau_raised_to": self.raised_to,
            "pmc_s": self.pmc_s,
            "mtm_median_ms": self.median_ms,
            "mtm_p99_ms": self.p99_ms,
            "fell_back": self.fell_back,
            "renewed": self.renewed,
        }


@dataclass(frozen=True)
class TargetVerdict:
    """A target, whether it is met, and what was found."""

    what: str
    figure: str
    met: bool


def ratio(ours: float, theirs: float) -> float:
    """One against another; 1 where both are nothing."""
    if theirs:
        return ours / theirs
    return math.inf if ours else 1.0


def groups(lines: Sequence[ReplayLine]) -> dict[tuple[float, float], list[ReplayLine]]:
    """The lines by tau and drift, in the order in which these come."""
    lines_of: dict[tuple[float, float], list[ReplayLine]] = {}
    for line in lines:
        lines_of.setdefault((line.tau, line.drift), []).append(line)
    return lines_of


def total(lines: Sequence[ReplayLine], name: str) -> float:
    """Bytes of all lines together."""
    return math.fsum(line.moved[name] for line in lines)


def percent(lines: Sequence[ReplayLine]) -> float:
    """What ssm moves of all state a migration, the mean over all migrations of these lines."""
    return sum(line.ssm_percent * line.migrations for line in lines) / sum(line.migrations for line in lines)


def verdicts(lines: Sequence[ReplayLine]) -> list[TargetVerdict]:
    """Every target of issue 6, for each tau and drift, and the pre-computation for all."""
    results = []
    for (tau, drift), same in groups(lines).items():
        where = f"tau {tau:g}, {of_loads(drift)}"
        ssm, mtm, even = (total(same, name) for name in ("ssm", "mtm", "even"))
        near = _near(percent(same))
        # Where ssm moves nothing, nobody can move less.
        below = mtm < ssm * (1 - DUST) or (mtm == ssm == 0)
        results.append(TargetVerdict(f"{where}: mtm in total below ssm", f"{ratio(mtm, ssm):.3f} x ssm{near}", below))
        worst = max(same, key=lambda line: line.ratio("mtm"))
        results.append(
            TargetVerdict(
                f"{where}: on no series more than {100 * (ABOVE_SSM - 1):.0f} % above ssm",
                f"at worst {worst.ratio('mtm'):.3f} x ssm, {worst.series}{_near(worst.ssm_percent)}",
                worst.ratio("mtm") <= ABOVE_SSM,
            )
        )
        results.append(
            TargetVerdict(f"{where}: mtm below half of even", f"{ratio(mtm, even):.3f} x even", mtm < OF_EVEN * even)
        )
    slowest = max(lines, key=lambda line: line.pmc_s / (1 + line.renewed))
    took = slowest.pmc_s / (1 + slowest.renewed)
    results.append(
        TargetVerdict(
            f"pre-computation at most {PMC_S:g} s",
            f"at most {took:.0f} s ({slowest.series}, tau {slowest.tau:g})",
            took <= PMC_S,
        )
    )
    return results


def _near(ssm_percent: float) -> str:
    if ssm_percent >= NEAR_ZERO:
        return ""
    return f"; ssm is near zero there, {ssm_percent:.2f} % of state a migration"


def times(lines: Sequence[ReplayLine]) -> str:
    """How long a plan of mtm takes, in a sentence."""
    median, worst = max(line.median_ms for line in lines), max(line.p99_ms for line in lines)
    return (
        f"a plan of mtm takes at most {median:.1f} ms (the largest median of a replay) and {worst:.1f} ms (the largest "
        f"99th percentile); {MTM_MS:g} ms are wanted"
    )


# --- telling ---------------------------------------------------------------------------------


def table(lines: Sequence[ReplayLine], title: str) -> Table:
    """One row for each series, tau and drift, and one for all series of each tau and drift."""
    grid = Table(title=title, title_justify="left", box=None, pad_edge=False)
    grid.add_column("series", no_wrap=True)
    compared = [f"{SHORT.get(name, name)}/ssm" for name in COMPARED]
    for column in ("tau", "drift", "ssm %", *compared, "mtm/even", "tau raised", "pmc s", "mtm ms", "p99 ms"):
        grid.add_column(column, justify="right", no_wrap=True)
    grid.add_column("notes")
    for line in lines:
        raised = f"{line.raised} x, to {line.raised_to:.2f}" if line.raised else "never"
        grid.add_row(
            line.series, f"{line.tau:g}", f"{line.drift:g}", f"{line.ssm_percent:.2f}",
            *(_times(line.ratio(name)) for name in COMPARED), _times(line.ratio("mtm", "even")), raised,
            f"{line.pmc_s:.0f}", f"{line.median_ms:.1f}", f"{line.p99_ms:.1f}", _notes(line),
        )  # fmt: skip
    grid.add_row("")
    for (tau, drift), same in groups(lines).items():
        ssm = total(same, "ssm")
        compared = [_times(ratio(total(same, name), ssm)) for name in COMPARED]
        even = _times(ratio(total(same, "mtm"), total(same, "even")))
        raised = str(sum(line.raised for line in same)) + " x"
        note = "ssm near zero" if percent(same) < NEAR_ZERO else ""
        grid.add_row(
            f"all {len(same)} series", f"{tau:g}", f"{drift:g}", f"{percent(same):.2f}", *compared, even, raised,
            "", "", "", note,
        )  # fmt: skip
    return grid


def _times(value: float) -> str:
    return f"{value:.3f}" if math.isfinite(value) else "-"


def _notes(line: ReplayLine) -> str:
    said = [f"ssm near zero ({line.ssm_percent:.2f} %)"] if line.near_zero else []
    if line.fell_back:
        said.append(f"{line.fell_back} of {line.migrations} planned by ssm")
    if line.renewed:
        said.append(f"renewed {line.renewed} x")
    return "; ".join(said)


def verdict_table(verdicts: Sequence[TargetVerdict]) -> Table:
    """The targets, and whether they are met."""
    grid = Table(title="targets", title_justify="left", box=None, pad_edge=False)
    for column in ("what", "found", ""):
        grid.add_column(column)
    for each in verdicts:
        grid.add_row(each.what, each.figure, "met" if each.met else "[red]MISSED[/]")
    return grid


def write_csv(rows: Sequence[dict[str, Any]], path: Path) -> Path:
    """Write rows as CSV and return where they are."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return path


def plot(lines: Sequence[ReplayLine], path: Path) -> Path:
    """Bytes against ssm's, a panel for each drift, a group of bars for each tau: all series together."""
    drifts = list(dict.fromkeys(line.drift for line in lines))
    return drawn(lambda figure: _bars(figure, lines, drifts), path, (6.5 * len(drifts), 5.0))


def _bars(figure: Figure, lines: Sequence[ReplayLine], drifts: Sequence[float]) -> None:
    shown = ("mtm", CLAIRVOYANT, BOUND, "free", "consistent_hash", "redist", "even")
    for axis, drift in zip(figure.subplots(1, len(drifts), sharey=True, squeeze=False)[0], drifts, strict=True):
        mine = {tau: same for (tau, at), same in groups(lines).items() if at == drift}
        for at, name in enumerate(shown):
            places = [place + (at - len(shown) / 2 + 0.5) * 0.11 for place in range(len(mine))]
            heights = [ratio(total(same, name), total(same, "ssm")) for same in mine.values()]
            # Where ssm moves nothing there is no ratio, and zero has no place on a logarithmic axis.
            axis.bar(places, [h if 0 < h < math.inf else math.nan for h in heights], 0.1, label=name, color=f"C{at}")
        labels = [f"{tau:g}\nssm {percent(same):.2f} %" for tau, same in mine.items()]
        axis.set_xticks(range(len(mine)), labels)
        axis.axhline(1.0, color="black", linewidth=0.9)
        axis.set_yscale("log")
        axis.yaxis.set_major_formatter("{x:g}")
        axis.set(xlabel="load cap tau; what ssm moves of all state a migration", title=of_loads(drift))
        axis.grid(True, axis="y", which="both", alpha=0.2)
        axis.spines[["top", "right"]].set_visible(False)
    figure.axes[0].set_ylabel("bytes moved / bytes moved by ssm")
    figure.axes[0].legend(fontsize="small", ncols=2)
    names = dict.fromkeys(line.series for line in lines)
    figure.suptitle(f"Bytes moved against ssm, all migrations of {', '.join(names)}")
