"""What an experiment found: rows for a CSV, a figure, and a paragraph that is worked out from the rows."""

from __future__ import annotations

import csv
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meander.errors import InvalidOption

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Row = Mapping[str, Any]
Points = Mapping[str, Sequence[tuple[float, float]]]
"""Points of a line, by its label."""

NEAR_ZERO = 1.0
"""Below so many per cent of state a migration there is next to nothing to save."""

SAME = 0.02
"""Figures that differ by less than this share count as the same in a sentence."""

DOTS_PER_INCH = 120
MARKERS = "osD^vPX*"


@dataclass(frozen=True)
class Finding:
    """What an experiment found.

    Attributes:
        name: of the experiment; its files are called so.
        rows: the figures.
        says: how they compare with the paper, in one paragraph.
        draw: draws them.
        size: of the drawing, in inches.
    """

    name: str
    rows: Sequence[Row]
    says: str
    draw: Callable[[Figure], None]
    size: tuple[float, float] = (11.0, 4.5)

    def write(self, folder: str | Path) -> list[Path]:
        """Write the CSV and the PNG into a folder and return where they are."""
        folder = Path(folder)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidOption(f"cannot write into {folder}: {(error.strerror or str(error)).lower()}") from None
        table = folder / f"{self.name}.csv"
        with table.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(self.rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(self.rows)
        return [table, drawn(self.draw, folder / f"{self.name}.png", self.size)]


# --- arithmetic over rows ---


def mean(rows: Sequence[Row], column: str, **where: object) -> float:
    """The mean of a column over the rows that have these values, which are those of all series; NaN for none.

    >>> mean([{"tau": 1, "ms": 2.0}, {"tau": 1, "ms": 4.0}, {"tau": 2, "ms": 9.0}], "ms", tau=1)
    3.0
    """
    values = [row[column] for row in rows if all(row[name] == value for name, value in where.items())]
    return statistics.fmean(values) if values else math.nan


def distinct(rows: Sequence[Row], column: str) -> list[Any]:
    """The values of a column, each once, in the order in which they come."""
    return list(dict.fromkeys(row[column] for row in rows))


def line(rows: Sequence[Row], x: str, y: str, **where: object) -> list[tuple[float, float]]:
    """The mean of y at each x."""
    return [(value, mean(rows, y, **where, **{x: value})) for value in distinct(rows, x)]


# --- sentences ---


def trend(values: Sequence[float], least: float = 0.0) -> str:
    """How figures go from the first to the last, as a verb; changes below `least` or 2 % of the largest do not count.

    >>> trend([1, 2, 3]), trend([3, 2, 2]), trend([1, 3, 2]), trend([2, 2.01, 2])
    ('grows', 'falls', 'goes up and down', 'stays')
    """
    enough = max(least, SAME * max((abs(value) for value in values), default=0.0))
    changes = [after - before for before, after in combinations(values, 2)]
    if max(changes, default=0.0) > enough and min(changes, default=0.0) < -enough:
        return "goes up and down"
    change = values[-1] - values[0] if values else 0.0
    return "stays" if abs(change) <= enough else "grows" if change > 0 else "falls"


def direction(values: Sequence[float], unit: str, least: float = 0.0) -> str:
    """How figures go from the first to the last, with both.

    >>> direction([4.0, 3.0], "%"), direction([4.0, 4.0], "%")
    ('falls from 4.00 to 3.00 %', 'stays at about 4.00 %')
    """
    verb = trend(values, least)
    if verb == "stays":
        return f"stays at about {values[-1]:.2f} {unit}"
    return f"{verb} from {values[0]:.2f} to {values[-1]:.2f} {unit}"


def less(ours: float, theirs: float) -> str:
    """One amount against another, in words.

    >>> less(3.0, 4.0), less(5.0, 4.0), less(4.0, 4.01), less(0.0, 0.0)
    ('25 % less than', '25 % more than', 'as much as', 'as much as')
    """
    if ours == theirs or (theirs and abs(ours / theirs - 1) < 0.005):
        return "as much as"
    if not theirs:
        return "more than"
    return f"{abs(1 - ours / theirs):.0%}".replace("%", " %") + (" less than" if ours < theirs else " more than")


def listing(words: Sequence[object], empty: str = "none") -> str:
    """Words with commas and an "and".

    >>> listing([0.2, 0.4, 1.2])
    '0.2, 0.4 and 1.2'
    """
    texts = [f"{each:g}" if isinstance(each, float) else str(each) for each in words]
    if len(texts) < 2:
        return texts[0] if texts else empty
    return f"{', '.join(texts[:-1])} and {texts[-1]}"


def of_loads(drift: float) -> str:
    """What a drift is called."""
    return f"loads that drift by {100 * drift:g} %" if drift else "loads that stay"


def source(rows: Sequence[Row]) -> str:
    """Whose migrations the figures are of."""
    names = distinct(rows, "series")
    return names[0] if len(names) == 1 else f"mean of {len(names)} series"


# --- drawing ---


def drawn(draw: Callable[[Figure], None], path: Path, size: tuple[float, float]) -> Path:
    """Write what is drawn as a PNG and return where it is."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    draw(figure)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=DOTS_PER_INCH)
    return path


def lines(axis: Axes, points: Points, x: str, y: str, title: str = "", *, log: bool = False) -> None:
    """Draw a line for each label over the same x; on a logarithmic scale zeros are left out."""
    for at, (label, values) in enumerate(points.items()):
        shown = [(value, height) for value, height in values if not log or height > 0]
        # Earlier lines are wider, so that they are seen where a later one covers them.
        style: dict[str, Any] = {"color": f"C{at}", "marker": MARKERS[at % len(MARKERS)], "fillstyle": "none"}
        style |= {"linewidth": max(1.2, 3.2 - 0.5 * at), "markersize": 7, "label": label}
        axis.plot([value for value, _ in shown], [height for _, height in shown], **style)
    every = sorted({value for values in points.values() for value, _ in values})
    axis.set_xticks(every, [f"{value:g}" for value in every])
    if log:
        axis.set_yscale("log")
        axis.yaxis.set_major_formatter("{x:g}")
    else:
        axis.set_ylim(bottom=0)
    axis.set(xlabel=x, ylabel=y)
    axis.set_title(title, fontsize="medium")
    axis.grid(True, which="both", alpha=0.2)
    axis.spines[["top", "right"]].set_visible(False)
    if len(points) > 1:
        axis.legend(fontsize="small")
