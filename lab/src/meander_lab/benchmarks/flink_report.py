"""The tables and the plot of `./dev bench flink`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from meander_lab.benchmarks.flink_figures import (
    BIGGER_IS_BETTER,
    OURS,
    SYSTEMS,
    Medians,
    PeerRecord,
    gaps_s,
    latencies_ms,
    medians,
    ratio,
    with_rows,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TITLES = {
    "throughput": "count by key, exactly once: rows a second, committed",
    "latency": "latency from a row's creation to the commit that covers it",
    "rescale": "from 2 to 4 workers under load",
}
COLOURS = {system: f"C{at}" for at, system in enumerate(SYSTEMS)}


def number(name: str, value: float) -> str:
    """A figure with as many digits as its unit needs."""
    if math.isnan(value):
        return "-"
    if name == "rows/s":
        return f"{value / 1e6:,.2f} M"
    if name.endswith(" ms"):
        return f"{value:,.0f}"
    return f"{value:,.2f}"


def table_of(records: Sequence[PeerRecord], part: str) -> Table:
    """One line for each case and system; in brackets ours / theirs, more is better for rates and less for times."""
    rows = medians(records, part)
    names = _names(rows)
    table = Table(
        title=f"{part}: {TITLES[part]} (in brackets: ours / theirs)", title_justify="left", box=None, pad_edge=False
    )
    for column in ("case", "system", "runs"):
        table.add_column(column, no_wrap=True)
    for name in names:
        table.add_column(name, justify="right")
    for case, systems in rows.items():
        for system, figures in systems.items():
            runs = [
                each for each in records
                if (each.case.part, each.case.name, each.case.column, each.problem) == (part, case, system, None)
            ]  # fmt: skip
            cells = []
            for name in names:
                times = ratio(systems, system, name)
                beside = "" if system == OURS or math.isnan(times) else f" ({times:.2f})"
                cells.append(number(name, figures[name]) + beside)
            table.add_row(case, system, str(len(runs)), *cells)
    return table


def summary_of(records: Sequence[PeerRecord], parts: Sequence[str]) -> dict[str, object]:
    """Medians and ratios of all parts, ready for JSON."""
    result: dict[str, object] = {}
    for part in parts:
        rows = medians(records, part)
        ratios = {
            case: {
                system: {name: _plain(ratio(systems, system, name)) for name in figures}
                for system, figures in systems.items() if system != OURS
            }
            for case, systems in rows.items()
        }  # fmt: skip
        plain = {case: {system: {name: _plain(value) for name, value in figures.items()}
                        for system, figures in systems.items()} for case, systems in rows.items()}  # fmt: skip
        result[part] = {"medians": plain, "ours_over_theirs": ratios, "more_is_better": list(BIGGER_IS_BETTER)}
    return result


def _plain(value: float) -> float | None:
    return None if math.isnan(value) else round(value, 4)


def _names(rows: Medians) -> list[str]:
    return list(dict.fromkeys(name for systems in rows.values() for figures in systems.values() for name in figures))


# --- the plot --------------------------------------------------------------------------------


def plot(records: Sequence[PeerRecord], parts: Sequence[str], path: Path) -> Path:
    """A panel for each part: bars of throughput, shares of latency, and commits around a rescale."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    draw = {"throughput": _bars, "latency": _shares, "rescale": _timelines}
    shown = [part for part in parts if any(each.case.part == part and each.problem is None for each in records)]
    figure, axes = pyplot.subplots(1, max(1, len(shown)), figsize=(6.5 * max(1, len(shown)), 4.5), squeeze=False)
    try:
        for axis, part in zip(axes[0], shown, strict=False):
            good = [each for each in records if each.case.part == part and each.problem is None]
            draw[part](axis, good)
            axis.set_title(TITLES[part], fontsize="small")
            axis.grid(True, which="both", alpha=0.2)
            axis.legend(fontsize="x-small")
        figure.tight_layout()
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=120)
    finally:
        pyplot.close(figure)
    return path


def _bars(axis: Axes, records: Sequence[PeerRecord]) -> None:
    rows = medians(records, "throughput")
    for at, system in enumerate(SYSTEMS):
        heights = [systems.get(system, {}).get("rows/s", math.nan) / 1e6 for systems in rows.values()]
        axis.bar([turn + 0.27 * at for turn in range(len(rows))], heights, 0.27, label=system, color=COLOURS[system])
    axis.set_xticks([turn + 0.27 for turn in range(len(rows))], list(rows), fontsize="small")
    axis.set_ylabel("M rows/s")


def _shares(axis: Axes, records: Sequence[PeerRecord]) -> None:
    """The share of rows that took longer, one line for each case and system, from its first run."""
    import numpy as np

    drawn: set[str] = set()
    styles: dict[int, str] = {}
    for record in records:
        label = f"{record.case.column}, {record.case.rate:,}/s"
        if label in drawn:
            continue
        drawn.add(label)
        style = styles.setdefault(record.case.rate, ["-", "--", ":"][len(styles) % 3])
        values = np.sort(latencies_ms(record, (record.marks["steady"], record.marks["end"])))
        above = 1.0 - np.arange(len(values)) / max(1, len(values))
        axis.plot(values, above, style, label=label, linewidth=1.2)
    axis.set(xscale="log", yscale="log", xlabel="latency [ms]", ylabel="share of rows above")


def _timelines(axis: Axes, records: Sequence[PeerRecord]) -> None:
    """Latency of the oldest row of each commit against time; 0 is when the rescale was asked for."""
    drawn: set[str] = set()
    for record in records:
        label = f"{record.case.system}, {record.case.keys:,} keys"
        if label in drawn:
            continue
        drawn.add(label)
        start, asked, end = (record.marks[name] for name in ("steady", "rescale", "end"))
        commits = [each for each in with_rows(record.commits) if start <= each.at_s]
        lanes, fill, rate = len(commits[0].positions), record.case.fill, record.case.rate
        oldest = [record.begin_s + (min(each.positions) * lanes - fill) / rate for each in commits]
        took = [(later.at_s - created) * 1000 for created, later in zip(oldest, commits[1:], strict=False)]
        silence = max(gaps_s(record.commits, asked, end), default=math.nan)
        times = [each.at_s - asked for each in commits[1:]]
        axis.plot(times, took, ".-", color=None, label=f"{label}: silent for {silence:.1f} s", linewidth=1.0)
    axis.axvline(0.0, color="grey", linewidth=0.7)
    axis.set(yscale="log", xlabel="seconds since the rescale was asked for", ylabel="latency of the oldest row [ms]")
