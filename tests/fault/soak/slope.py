"""Growth per hour of something that is sampled in groups, such as the memory of processes that follow each other."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

HOUR_S = 3600
Z = 1.96
"""95 % of a normal distribution are within so many standard deviations."""

MOST = 300
"""Of a larger group so many points are taken, evenly: a day has millions of pairs."""
APART_S = 30
"""Points that are nearer in time say nothing about growth."""

Points = Sequence[tuple[float, float]]
"""Seconds and values."""


@dataclass(frozen=True)
class Slope:
    """Growth in percent of the median per hour, with the 95 % interval it is in."""

    percent: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.percent:+.1f} ({self.low:+.1f} .. {self.high:+.1f})"


def seasonal_kendall(groups: Iterable[Points], least: int = 10) -> Slope | None:
    """The median of the slopes between any two points of one group; None below so many points.

    Hirsch, Slack, Smith (1982); the interval is Gilbert's (1987). Points of different groups are never compared: what
    differs between groups is no growth.
    """
    slopes: list[float] = []
    values: list[float] = []
    variance, count = 0.0, 0
    for group in groups:
        group = group[:: -(-len(group) // MOST) or 1]
        size = len(group)
        if size < 2:
            continue
        values += [value for _, value in group]
        count += size
        variance += size * (size - 1) * (2 * size + 5) / 18
        slopes += [
            (later - value) / (time - began)
            for at, (began, value) in enumerate(group)
            for time, later in group[at + 1 :]
            if abs(time - began) >= APART_S
        ]
    if count < least or not slopes:
        return None
    slopes.sort()
    reach = Z * math.sqrt(variance)
    low, high = ((len(slopes) + each * reach) / 2 for each in (-1, 1))
    scale = 100 * HOUR_S / (statistics.median(values) or 1.0)
    last = len(slopes) - 1
    return Slope(
        statistics.median(slopes) * scale,
        slopes[max(0, math.floor(low) - 1)] * scale,
        slopes[min(last, math.ceil(high))] * scale,
    )
