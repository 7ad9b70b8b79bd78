"""The exponents of `./dev bench growth` and its plots: time against size, both logarithmic. No Spark."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from meander_lab.benchmarks.growth_case import GrowthFigures

LINES = {"batch_ms": "batch", "driver_ms": "driver", "worker_ms": "slowest worker"}


def exponent(sizes: Sequence[float], times: Sequence[float]) -> float:
    """The slope of the line through the logarithms of size and time with the least squares; NaN where none fits.

    >>> round(exponent([1, 2, 4], [5, 10, 20]), 6)
    1.0
    """
    if len(set(sizes)) < 2 or min(times) <= 0:
        return float("nan")
    x, y = np.log(np.asarray(sizes, np.float64)), np.log(np.asarray(times, np.float64))
    return float(((x - x.mean()) * (y - y.mean())).sum() / ((x - x.mean()) ** 2).sum())


def draw(axis: str, sizes: Sequence[int], figures: Sequence[GrowthFigures], path: Path) -> Path:
    """Draw one axis, with the exponent of each line in the legend."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, pane = pyplot.subplots(figsize=(6, 4))
    try:
        for name, label in LINES.items():
            times = [getattr(each, name) for each in figures]
            if min(times) > 0:
                pane.plot(sizes, times, marker="o", label=f"{label}, exponent {exponent(sizes, times):.2f}")
        pane.set(xscale="log", yscale="log", xlabel=axis, ylabel="ms a batch, median", title=f"growth with {axis}")
        pane.grid(True, which="both", alpha=0.2)
        pane.legend(fontsize="small")
        figure.tight_layout()
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=110)
    finally:
        pyplot.close(figure)
    return path
