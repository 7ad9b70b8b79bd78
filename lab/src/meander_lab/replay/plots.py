"""Replays side by side, as a picture: workers, bytes moved so far, and how heavy the heaviest worker is."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING

from meander.errors import InvalidOption
from meander_lab.replay.replaying import Replay

if TYPE_CHECKING:
    from matplotlib.axes import Axes

UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
WIDE = 8.0
"""From this ratio between the most and the fewest bytes on, a logarithmic axis shows more."""

HEIGHTS = (1, 4, 3)
DOTS_PER_INCH = 110


def plot(replays: Sequence[Replay], path: str | Path, title: str = "") -> Path:
    """Write one PNG of all replays, which are of the same migrations, and return where it is.

    From top to bottom: how many workers there are, what each planner has moved so far, and the load of its heaviest
    worker against the fair share.

    Raises:
        InvalidOption: there is nothing to draw.
        ModuleNotFoundError: matplotlib is not installed.
    """
    if not replays:
        raise InvalidOption("there are no replays to draw; replay at least one planner")
    try:
        import matplotlib
    except ModuleNotFoundError:
        raise ModuleNotFoundError("drawing needs matplotlib: pip install matplotlib") from None

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (top, middle, bottom) = pyplot.subplots(
        3, 1, figsize=(10, 9), sharex=True, layout="constrained", height_ratios=HEIGHTS
    )
    try:
        _workers(top, replays[0])
        _moved(middle, replays)
        _heaviest(bottom, replays)
        for axis in (top, middle, bottom):
            axis.grid(True, which="both", alpha=0.2)
            axis.spines[["top", "right"]].set_visible(False)
        bottom.set_xlabel("migration")
        if title:
            figure.suptitle(title)
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=DOTS_PER_INCH)
    finally:
        pyplot.close(figure)
    return path


def _workers(axis: Axes, replay: Replay) -> None:
    from matplotlib.ticker import MaxNLocator

    counts = [replay.migrations[0].before, *(each.workers for each in replay.migrations)]
    axis.step(range(len(counts)), counts, where="post", color="black", linewidth=1.0)
    axis.yaxis.set_major_locator(MaxNLocator(4, integer=True))
    axis.set_ylabel("workers")


def _moved(axis: Axes, replays: Sequence[Replay]) -> None:
    """Bytes moved so far, a line for each planner, the one that has moved most first in the legend."""
    totals = [float(replay.total_bytes) for replay in replays]
    most, power = max(totals), 0
    while power + 1 < len(UNITS) and most >= 1024 ** (power + 1):
        power += 1
    is_wide = most > WIDE * min((total for total in totals if total > 0), default=most)
    for at in sorted(range(len(replays)), key=lambda at: -totals[at]):
        replay = replays[at]
        so_far = [*accumulate(float(each.bytes) / 1024**power for each in replay.migrations)]
        # Zero has no place on a logarithmic axis: such a line begins where the first byte moves.
        shown = [value if value > 0 or not is_wide else float("nan") for value in so_far]
        label = f"{replay.planner}: {replay.percent_per_migration:.3g} % a migration"
        axis.step(range(1, len(shown) + 1), shown, where="post", color=f"C{at}", linewidth=1.6, label=label)
    if is_wide:
        axis.set_yscale("log")
        axis.yaxis.set_major_formatter("{x:g}")
    else:
        axis.set_ylim(bottom=0)
    axis.set_ylabel(f"moved so far [{UNITS[power]}]")
    axis.legend(fontsize="small", loc="best")


def _heaviest(axis: Axes, replays: Sequence[Replay]) -> None:
    """Load of the heaviest worker after each migration, and the cap that was asked for."""
    for at, replay in enumerate(replays):
        places = range(1, len(replay.imbalance) + 1)
        axis.plot(places, replay.imbalance, color=f"C{at}", linewidth=1.0, label=replay.planner)
    cap = 1 + replays[0].migrations[0].asked
    axis.axhline(cap, color="black", linestyle="--", linewidth=0.9)
    axis.annotate(f"cap {cap:g}", (1.0, cap), xycoords=("axes fraction", "data"), ha="right", va="bottom", fontsize=8)
    axis.set_ylabel("heaviest worker / fair share")
    axis.set_ylim(bottom=1.0)
