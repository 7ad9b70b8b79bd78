"""The plots of `./dev bench nexmark`: latency over time while bins move back, after Megaphone's Figures 5 to 12."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from meander_lab.benchmarks.nexmark_figures import TimelineRecord, shown
from meander_lab.experiments.finding import drawn

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = {"batched": "C0", "all_at_once": "C1"}


def latency_over_time(records: Sequence[TimelineRecord], path: Path, title: str) -> Path:
    """The largest latency of every 250 ms, a panel for each schedule, with the moves shaded; write it as a PNG."""

    def draw(figure: Figure) -> None:
        axes = figure.subplots(len(records), 1, sharex=True, sharey=True, squeeze=False)
        for (axis,), record in zip(axes, records, strict=True):
            _panel(axis, record)
        axes[-1][0].set_xlabel("seconds since the move back began, by an event's arrival")
        figure.suptitle(title)

    return drawn(draw, path, (9.0, 1.0 + 2.4 * len(records)))


def _panel(axis: Axes, record: TimelineRecord) -> None:
    from matplotlib.ticker import LogLocator

    marks, name = record.marks, record.case.schedule
    colour = COLOURS.get(name, "C2")
    line = shown(record)
    axis.plot([at for at, _ in line], [latency for _, latency in line], color=colour, linewidth=1.2)
    for began, ended, what in (("first", "first_moved", "first move"), ("move", "moved", "move back")):
        if began in marks and ended in marks:
            span = marks[began] - marks["move"], marks[ended] - marks["move"]
            axis.axvspan(*span, color=colour, alpha=0.12, linewidth=0)
            for at in span:
                axis.axvline(at, color="grey", linewidth=0.7)
            axis.text(span[0], 1.0, what, fontsize=7, va="bottom", transform=axis.get_xaxis_transform())
    axis.set_yscale("log", subs=[3, 4, 6, 7, 8, 9])
    axis.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.yaxis.set_major_formatter("{x:g}")
    axis.yaxis.set_minor_formatter("")
    axis.set_ylabel("latency [ms]")
    axis.set_title(name, fontsize="small", loc="right")
    axis.grid(True, which="both", alpha=0.2)
