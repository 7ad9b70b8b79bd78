"""The arithmetic of `./dev bench disturb`: throughput over time, how long it was how far below steady. No Spark.

N-Storm counts seconds by the throughput in each. Batches would make every such second a matter of where their ends
fall, so a batch's rows count as coming out evenly over the last slot before its commit, a slot being the steady time
between two commits (its 99th percentile). While commits come as they do when steady, throughput is about the rate; when
none comes for ten seconds, it is 0 for ten seconds less a slot. The time below a level is then exact, not in seconds.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from meander_lab.benchmarks.engine_figures import quantile
from meander_lab.benchmarks.migrate_measure import CommittedBatch, gaps_s

LEVELS = (0.2, 0.4, 0.6, 0.8, 1.0)
"""Shares below steady; 1.0 is no result at all."""


class ThroughputPiece(NamedTuple):
    """A time in which the throughput is the same: rows that come out in a slot."""

    start_s: float
    stop_s: float
    rows: int


def slot_s(batches: Sequence[CommittedBatch], start_s: float, stop_s: float) -> float:
    """The steady time between two commits: its 99th percentile."""
    gaps = gaps_s(batches, start_s, stop_s)
    if not gaps:
        raise ValueError("there were fewer than two batches before the first move; wait longer (--every)")
    return quantile(gaps, 0.99)


def pieces(batches: Sequence[CommittedBatch], slot: float, start_s: float, stop_s: float) -> list[ThroughputPiece]:
    """The throughput of a time, cut where it changes."""
    changes = [(start_s, 0), (stop_s, 0)]
    for each in batches:
        if each.rows and each.ended_s > start_s and each.ended_s - slot < stop_s:
            changes.append((max(start_s, each.ended_s - slot), each.rows))
            changes.append((min(stop_s, each.ended_s), -each.rows))
    changes.sort()
    cut, level = [], 0
    for (at, change), (after, _) in pairwise(changes):
        level += change
        if after > at:
            cut.append(ThroughputPiece(at, after, level))
    return cut


def mean_rows(of: Sequence[ThroughputPiece]) -> float:
    """The mean rows in a slot."""
    total_s = sum(each.stop_s - each.start_s for each in of)
    return sum(each.rows * (each.stop_s - each.start_s) for each in of) / total_s


def below_s(of: Sequence[ThroughputPiece], steady_rows: float, share: float) -> float:
    """Seconds in which throughput is at least this share below steady."""
    limit = steady_rows * (1 - share)
    return sum(each.stop_s - each.start_s for each in of if each.rows <= limit)


def per_second(of: Sequence[ThroughputPiece], slot: float) -> list[tuple[float, float]]:
    """The mean rows a second of every whole second, by seconds since the first piece began; for a plot."""
    if not of:
        return []
    began, seconds = of[0].start_s, int(of[-1].stop_s - of[0].start_s)
    sums = [0.0] * seconds
    for each in of:
        at = each.start_s - began
        while at < each.stop_s - began and int(at) < seconds:
            until = min(int(at) + 1.0, each.stop_s - began)
            sums[int(at)] += each.rows / slot * (until - at)
            at = until
    return [(float(at), value) for at, value in enumerate(sums)]


class Degraded(NamedTuple):
    """What the moves of a run did to its throughput: seconds below each level, and the rows that came out."""

    below_s: tuple[float, ...]
    rows: int
    slot_s: float


def degraded(batches: Sequence[CommittedBatch], steady_s: float, first_move_s: float, stop_s: float) -> Degraded:
    """Seconds below each level from the first move on, against the throughput before it."""
    slot = slot_s(batches, steady_s, first_move_s)
    steady_rows = mean_rows(pieces(batches, slot, steady_s, first_move_s))
    moving = pieces(batches, slot, first_move_s, stop_s)
    rows = sum(each.rows for each in batches if steady_s < each.ended_s <= stop_s)
    return Degraded(tuple(below_s(moving, steady_rows, share) for share in LEVELS), rows, slot)


def random_groups(owner: Sequence[int], groups: int, count: int, workers: int, rng: random.Random) -> dict[int, int]:
    """Which bins move, and where to: `count` random ones of so many groups of neighbours, each to another worker.

    A group moves whole, so it has one owner. No worker is left without a group.
    """
    size = len(owner) // groups
    of_group = [owner[at * size] for at in range(groups)]
    chosen: dict[int, int] = {}
    order = list(range(groups))
    rng.shuffle(order)
    for group in order:
        if len(chosen) == count:
            break
        source = of_group[group]
        target = rng.choice([each for each in range(workers) if each != source])
        if of_group.count(source) > 1:
            of_group[group] = target
            chosen[group] = target
    return {
        bin_: target for group, target in sorted(chosen.items()) for bin_ in range(group * size, (group + 1) * size)
    }
