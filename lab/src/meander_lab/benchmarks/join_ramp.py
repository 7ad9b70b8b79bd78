"""The highest rate that a cluster sustains, and how it does at a given one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np

from meander.measure.load import load_imbalance
from meander_lab.benchmarks.join_cluster import JoinBatch, JoinFeed, JoinSetting, cluster, imbalance, latencies
from meander_lab.benchmarks.join_schemes import SCHEMES

STEP = 1.15
"""From one rate to the next where the batches take nearly all of the time already."""

LEAP = 2.0
"""At most so much more, however little the batches take."""

HOLD, LOOK = 2, 4
"""Batches at a new rate that do not count yet, for tables grow with it, and those that do."""

FAR = 1.5
"""Where every batch takes so many intervals from the first on, nobody has to look longer."""

MOST_STEPS = 30


class Runs(Protocol):
    """What can be ramped."""

    def run(self, rate: float, batches: int, interval_s: float | None = None) -> Sequence[JoinBatch]:
        """Go on for some batches at a rate."""

    def skip(self) -> None:
        """Leave out what waits."""


@dataclass(frozen=True)
class Ramp:
    """The highest rate that was sustained, and every rate with the median seconds of a batch at it."""

    rate: float
    tried: tuple[tuple[float, float], ...]


def highest_rate(runs: Runs, first: float, interval_s: float) -> Ramp:
    """Raise the rate until most batches take longer than the interval, so that the backlog grows.

    The steps are of 15 %, and larger as long as the batches take little of the time. The last step is halved, and
    between the highest rate that was sustained and the lowest that was not, the answer is where the line between
    their times crosses the interval.
    """
    tried: list[tuple[float, float]] = []
    good: tuple[float, float] | None = None
    bad: tuple[float, float] | None = None
    rate = first
    while len(tried) < MOST_STEPS:
        ran = runs.run(rate, HOLD)
        if min(each.took_s for each in ran) <= FAR * interval_s:
            ran = runs.run(rate, LOOK)
        took_s = float(np.median([each.took_s for each in ran]))
        tried.append((rate, took_s))
        if took_s <= interval_s:
            good = (rate, took_s) if good is None or rate > good[0] else good
        else:
            bad = (rate, took_s) if bad is None or rate < bad[0] else bad
            runs.skip()
        if good and bad:
            if bad[0] <= good[0] * math.sqrt(STEP) * 1.001:
                break
            rate = math.sqrt(good[0] * bad[0])
        else:
            rate = rate * min(LEAP, max(STEP, 0.9 * interval_s / took_s)) if good else rate / LEAP
    if not good:
        return Ramp(0.0, tuple(tried))
    if not bad:
        return Ramp(good[0], tuple(tried))
    share = (interval_s - good[1]) / max(bad[1] - good[1], 1e-12)
    return Ramp(good[0] + (bad[0] - good[0]) * share, tuple(tried))


@dataclass(frozen=True)
class Point:
    """What was measured of a scheme: at `rate`, and the highest rate.

    Times are in seconds. `begin_li` is LI before a balancer could act, `li` after, `busy_li` that of busy times;
    `looked_at` pairs with one key and near in time per row; `busy_share` what all workers together are busy of what
    they could be, at the highest rate.
    """

    dataset: str
    scheme: str
    workers: int
    alpha: float
    seed: int
    highest: float
    rate: float
    begin_li: float
    li: float
    busy_li: float
    mean_s: float
    p99_s: float
    max_s: float
    looked_at: float
    busy_share: float
    moved_rows: int
    table: int

    def to_dict(self) -> dict[str, Any]:
        """As a row of a CSV."""
        return {name: round(each, 4) if isinstance(each, float) else each for name, each in asdict(self).items()}


@dataclass(frozen=True)
class Lengths:
    """How many batches there are before anything counts, and how many the latency is of; where the ramp begins."""

    warm: int = 16
    steady: int = 20
    first: float = 300_000.0


def ramp_of(name: str, feed: JoinFeed, setting: JoinSetting, lengths: Lengths) -> tuple[float, float]:
    """The highest rate of a scheme, after its balancer has had its say, and what all workers are busy at it."""
    with cluster(SCHEMES[name](feed, setting), feed, setting) as simulation:
        simulation.run(lengths.first, lengths.warm)
        highest = highest_rate(simulation, lengths.first, setting.interval_s).rate
        simulation.skip()
        last = simulation.run(highest * 0.97, LOOK)
        share = float(np.mean([each.busy_s.sum() / max(each.took_s, setting.interval_s) for each in last]))
        return highest, share / setting.workers


def point_of(
    name: str,
    dataset: str,
    feed: JoinFeed,
    setting: JoinSetting,
    lengths: Lengths,
    rate: float,
    highest: tuple[float, float],
) -> Point:
    """How a scheme does at a rate: batches follow each other without a pause, as with Spark's default trigger."""
    with cluster(SCHEMES[name](feed, setting), feed, setting) as simulation:
        before = simulation.run(rate, lengths.warm)
        steady = simulation.run(rate, lengths.steady, interval_s=0.0)
        scheme = simulation.scheme
    if name in ("Ls-Stream", "Meander"):
        assert {each.table for each in steady} == {setting.bins}, "the routing table has grown"
    begin = before[2 : setting.window]
    return Point(
        dataset, name, setting.workers, setting.alpha, setting.seed, highest[0], rate, imbalance(begin),
        imbalance(steady), load_imbalance(np.mean([each.busy_s for each in steady], axis=0)),
        looked_at=sum(each.looked_at for each in steady) / sum(each.rows for each in steady),
        busy_share=highest[1], moved_rows=scheme.moved_rows, table=steady[-1].table, **latencies(steady),
    )  # fmt: skip
