"""The plots of `./dev bench join`, after Ls-Stream's Figures 7 to 15; which one is in the name of the file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from meander_lab.benchmarks.join_ramp import Point
from meander_lab.benchmarks.join_schemes import SCHEMES
from meander_lab.experiments.finding import drawn

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Value = Callable[[Point], float]

MEASURES: dict[str, tuple[str, Value]] = {
    "li": ("load imbalance degree LI", lambda each: each.li),
    "highest": ("highest rate [1000 rows/s]", lambda each: each.highest / 1000),
    "mean": ("mean latency [ms]", lambda each: each.mean_s * 1000),
    "max": ("highest latency [ms]", lambda each: each.max_s * 1000),
}


def of_datasets(points: Sequence[Point], folder: Path) -> list[Path]:
    """Figures 7, 8, 9 and 12: bars of each scheme, by dataset."""
    names = {"fig07-imbalance": "li", "fig08-highest-rate": "highest", "fig09-latency": "max", "fig12-mean": "mean"}
    return [_bars(points, folder / f"{name}.png", measure) for name, measure in names.items()]


def of_workers(points: Sequence[Point], folder: Path) -> list[Path]:
    """Figures 10 and 11 (a worker is a node and an instance here), and 13: lines of each scheme, by workers."""
    names = {"fig10-11-highest-rate-by-workers": "highest", "fig13-latency-by-workers": "mean"}
    return [
        _lines(points, folder / f"{name}.png", measure, "workers", lambda each: each.scheme, lambda each: each.workers)
        for name, measure in names.items()
    ]


def of_alpha(points: Sequence[Point], folder: Path) -> list[Path]:
    """Figures 14 and 15: lines of each dataset, by alpha."""
    names = {"fig14-highest-rate-by-alpha": "highest", "fig15-latency-by-alpha": "mean"}
    return [
        _lines(points, folder / f"{name}.png", measure, "alpha", lambda each: each.dataset, lambda each: each.alpha)
        for name, measure in names.items()
    ]


def _bars(points: Sequence[Point], path: Path, measure: str) -> Path:
    said, value = MEASURES[measure]
    datasets = list(dict.fromkeys(each.dataset for each in points))
    wide = 0.8 / len(SCHEMES)

    def draw(figure: Figure) -> None:
        axis = figure.subplots()
        for at, scheme in enumerate(SCHEMES):
            mine = {each.dataset: value(each) for each in points if each.scheme == scheme}
            where = [datasets.index(name) + (at + 0.5) * wide - 0.4 for name in mine]
            axis.bar(where, list(mine.values()), wide, label=scheme)
        axis.set_xticks(range(len(datasets)), datasets)
        axis.set_ylabel(said)
        axis.legend()
        axis.grid(True, axis="y", alpha=0.2)

    return drawn(draw, path, (8.0, 4.0))


def _lines(
    points: Sequence[Point], path: Path, measure: str, along: str, label: Callable[[Point], str], x: Value
) -> Path:
    said, value = MEASURES[measure]

    def draw(figure: Figure) -> None:
        axis = figure.subplots()
        for name in dict.fromkeys(map(label, points)):
            mine = sorted((x(each), value(each)) for each in points if label(each) == name)
            axis.plot([at for at, _ in mine], [height for _, height in mine], marker="o", label=name)
        axis.set_xlabel(along)
        axis.set_ylabel(said)
        axis.set_ylim(bottom=0)
        axis.legend()
        axis.grid(True, alpha=0.2)

    return drawn(draw, path, (7.0, 4.0))
