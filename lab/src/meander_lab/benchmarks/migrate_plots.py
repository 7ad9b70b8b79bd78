"""The plots of `./dev bench migrate`: latency and memory over time, and worst latency against duration. No Spark.

Every plot has a line of the run in which nothing moves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meander_lab.benchmarks.migrate_measure import NONE, MoveFigures, MoveRecord, latency_ms, totals

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MARKERS = "osD^vP*X"
MIB = 1 << 20


def _drawn(path: Path, rows: int, columns: int, draw: Callable[[Any], None], size: tuple[float, float]) -> Path:
    """Make a figure of so many panels, let them be drawn, and write it."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(rows, columns, figsize=(size[0] * columns, size[1] * rows), squeeze=False)
    try:
        draw(axes)
        figure.tight_layout()
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=110)
    finally:
        pyplot.close(figure)
    return path


def _style(mode: str) -> dict[str, Any]:
    return {"color": "black", "linestyle": "--", "linewidth": 1.0} if mode == NONE else {"linewidth": 1.2}


def latency_over_time(records: Sequence[MoveRecord], path: Path, title: str) -> Path:
    """Latency of each batch's oldest row against when it was out, one line for each mode; 0 is when the move began."""

    def draw(axes: Any) -> None:
        axis: Axes = axes[0][0]
        for record in records:
            marks, rate = record.marks, record.case.rate
            batches = [each for each in record.batches if each.rows and each.ended_s >= marks["steady"]]
            at = [each.ended_s - marks["move"] for each in batches]
            took = [latency_ms(each, marks["load"], rate) for each in batches]
            (line,) = axis.plot(at, took, label=record.case.mode, **_style(record.case.mode))
            if record.case.mode != NONE:
                axis.axvline(marks["moved"] - marks["move"], color=line.get_color(), linestyle=":", linewidth=0.7)
        axis.axvline(0.0, color="grey", linewidth=0.7)
        axis.set(title=title, xlabel="seconds since the move began (dotted: it is over)", yscale="log")
        axis.set_ylabel("latency of the oldest row [ms]")
        axis.grid(True, which="both", alpha=0.2)
        axis.legend(fontsize="small")

    return _drawn(path, 1, 1, draw, (10, 5))


def memory_over_time(records: Sequence[MoveRecord], path: Path, title: str) -> Path:
    """Memory against time, a panel for each process and one for all executors, one line for each mode."""
    names = sorted({each.role for record in records for each in record.memory})
    panels = ["executor", *names]
    columns = 3
    rows = -(-len(panels) // columns)

    def draw(axes: Any) -> None:
        flat = [axis for line in axes for axis in line]
        for axis, role in zip(flat, panels, strict=False):
            for record in records:
                began, steady, end = (record.marks[name] for name in ("move", "steady", "end"))
                samples = totals(record.memory, role)
                series = [(at - began, size / MIB) for at, size in samples if steady <= at <= end]
                if series:
                    axis.plot(*zip(*series, strict=True), label=record.case.mode, **_style(record.case.mode))
            axis.axvline(0.0, color="grey", linewidth=0.7)
            axis.set_title("all executors" if role == "executor" else role, fontsize="small")
            axis.set(xlabel="seconds since the move began", ylabel="memory [MiB]")
            axis.grid(True, alpha=0.2)
        for axis in flat[len(panels) :]:
            axis.axis("off")
        flat[0].legend(fontsize="x-small")
        flat[0].figure.suptitle(title)

    return _drawn(path, rows, columns, draw, (5, 3))


def worst_against_duration(figures_of: Mapping[str, Mapping[str, MoveFigures]], path: Path, title: str) -> Path:
    """Worst latency against duration: a line for each mode, a mark for each size, as Megaphone's Figures 16 to 18.

    Args:
        figures_of: the figures by mode, then by size in words. Of the mode in which nothing moves only the worst
            latency is drawn.
        path: where to.
        title: above it.
    """

    def draw(axes: Any) -> None:
        axis: Axes = axes[0][0]
        sizes = list(dict.fromkeys(size for each in figures_of.values() for size in each))
        marker = {size: MARKERS[at % len(MARKERS)] for at, size in enumerate(sizes)}
        for mode, each in figures_of.items():
            if mode == NONE:
                for size, figures in each.items():
                    axis.axhline(figures.worst_ms, color="black", linestyle="--", linewidth=0.6, alpha=0.7)
                    axis.text(1.0, figures.worst_ms, f"none, {size}", fontsize=6, transform=axis.get_yaxis_transform())
                continue
            points = [(figures.duration_s, figures.worst_ms) for figures in each.values()]
            (line,) = axis.plot(*zip(*points, strict=True), label=mode, linewidth=1.0)
            for size, figures in each.items():
                axis.plot(figures.duration_s, figures.worst_ms, marker[size], color=line.get_color())
        for size in sizes:
            axis.plot([], [], marker[size], color="grey", label=size)
        axis.set(title=title, xlabel="duration [s]", ylabel="worst latency [ms]", xscale="log", yscale="log")
        axis.grid(True, which="both", alpha=0.2)
        axis.legend(fontsize="x-small")

    return _drawn(path, 1, 1, draw, (8, 5))


def throughput_over_time(lines: Mapping[str, Sequence[tuple[float, float]]], path: Path, title: str) -> Path:
    """Rows a second against seconds since the load was steady, one panel for each line, for `./dev bench disturb`."""

    def draw(axes: Any) -> None:
        for (axis,), (name, line) in zip(axes, lines.items(), strict=True):
            axis.plot(*(zip(*line, strict=True) if line else ([], [])), **_style(name))
            axis.set_title(name, fontsize="small", loc="left")
            axis.set_ylim(bottom=0)
            axis.set_ylabel("rows/s")
            axis.grid(True, alpha=0.2)
        axes[-1][0].set_xlabel("seconds")
        axes[0][0].figure.suptitle(title)

    return _drawn(path, len(lines), 1, draw, (10, 1.8))


def bars(groups: Mapping[str, Mapping[str, float]], path: Path, title: str, unit: str) -> Path:
    """Bars in groups: a group for each name on the axis, a bar for each name within."""

    def draw(axes: Any) -> None:
        axis: Axes = axes[0][0]
        kinds = list(dict.fromkeys(kind for each in groups.values() for kind in each))
        width = 0.8 / max(1, len(kinds))
        for at, kind in enumerate(kinds):
            heights = [each.get(kind, 0.0) for each in groups.values()]
            axis.bar([turn + at * width for turn in range(len(groups))], heights, width, label=kind)
        axis.set_xticks([turn + 0.4 - width / 2 for turn in range(len(groups))], list(groups), fontsize="small")
        axis.set(title=title, ylabel=unit)
        axis.grid(True, axis="y", alpha=0.2)
        axis.legend(fontsize="x-small")

    return _drawn(path, 1, 1, draw, (10, 4))
