"""The plot of `./dev bench native`: how long batches took, over time, and what was done meanwhile. No Spark."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from meander_lab.benchmarks.native_measure import PEER, NativeRecord

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = ("tab:orange", "tab:green", "tab:blue", "tab:purple", "tab:olive", "tab:red")
"""Of the phases in which something is done, in turn; steady ones are white."""


def over_time(records: Sequence[NativeRecord], path: Path, title: str) -> Path:
    """Batch time against when the batch ended, a panel for each run, its phases shaded and named."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = max(1, len(records))
    figure, axes = pyplot.subplots(rows, 1, figsize=(14, 4.2 * rows), squeeze=False)
    try:
        for (axis,), record in zip(axes, records, strict=False):
            _panel(axis, record)
        figure.suptitle(title)
        figure.tight_layout()
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=110)
    finally:
        pyplot.close(figure)
    return path


def _panel(axis: Axes, record: NativeRecord) -> None:
    named = record.case.kind != PEER
    begin = min((each.began_s for each in record.phases), default=0.0)
    shown = sorted(each for each in record.batches if each.rows and each.ended_s >= begin)
    done = 0
    for phase in record.phases:
        colour = "none" if phase.steady else COLOURS[done % len(COLOURS)]
        done += not phase.steady
        began, ended = phase.began_s - begin, phase.ended_s - begin
        axis.axvspan(began, ended, color=colour, alpha=0.15, linewidth=0)
        axis.axvline(began, color="grey", linewidth=0.5)
        placed = f"\n{' + '.join(map(str, phase.placed))}" if phase.placed and phase.steady else ""
        failed = " (failed)" if phase.failed else ""
        axis.text(
            (began + ended) / 2, 0.98, f"{phase.name}{failed}{placed}", rotation=90, fontsize=7, ha="center", va="top",
            transform=axis.get_xaxis_transform(), color="black" if phase.steady else "dimgrey",
        )  # fmt: skip
    axis.plot([each.ended_s - begin for each in shown], [each.took_ms / 1000 for each in shown], ".-", linewidth=0.9)
    worst = max((each.took_ms / 1000 for each in shown), default=1.0)
    least = min((each.took_ms / 1000 for each in shown), default=0.1)
    # Names of phases stand above the line.
    axis.set(yscale="log", ylim=(least * 0.7, worst * 12), xlabel="seconds", ylabel="batch time [s]")
    where = " (partitions on each executor)" if named else " (stop, repartition, start)"
    axis.set_title(f"{record.case.partitions} partitions, {record.case.store} store{where}", fontsize="medium")
    axis.grid(True, which="both", alpha=0.2)
