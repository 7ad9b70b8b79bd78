"""Where a replay begins: intervals of about the same load, or the ground a planner is used to."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from meander.planning import Problem, planners
from meander.planning.intervals import least_intervals, prefix_sums, smallest_cap
from meander.planning.problem import ROUNDING
from meander.types import WorkerId
from meander_lab.replay.bins import Bins, Floats

OWN_GROUND = {"even": "even", "consistent_hash": "consistent_hash", "redist": "consistent_hash"}
"""Planners whose answer does not depend on who owns what now, and the one with whose map each begins."""


def smallest_tau(load: Floats, workers: int) -> float:
    """Return the smallest tau at which so many workers can share the bins as intervals; at least 0."""
    cap = smallest_cap(prefix_sums(load), min(workers, load.size))
    return max(0.0, cap * workers / float(load.sum()) - 1)


def balanced(load: Floats, workers: int) -> list[WorkerId]:
    """Return intervals of about the same load for workers 0, 1, ...; none is above the smallest cap there is.

    Each ends where it is nearest to the fair share of what is left, as far as those behind it can take the rest.

    >>> import numpy as np
    >>> balanced(np.array([1.0, 1.0, 4.0, 1.0, 1.0]), 3)
    [0, 0, 1, 2, 2]
    """
    sums = prefix_sums(load)
    room = smallest_cap(sums, min(workers, load.size)) * (1 + ROUNDING)
    need = least_intervals(sums, room)
    owner: list[WorkerId] = []
    for worker in range(workers):
        at, left = len(owner), workers - worker - 1
        ends = [e for e in range(at, load.size + 1) if sums[e] <= sums[at] + room and need[e] <= left]
        fair = (sums[-1] - sums[at]) / (left + 1)
        end = min(ends, key=lambda e: (abs(sums[e] - sums[at] - fair), e))
        owner += [WorkerId(worker)] * (end - at)
    return owner


def start_of(name: str, workers: int, bins: Bins, options: Mapping[str, Any] = MappingProxyType({})) -> list[WorkerId]:
    """Return where a planner starts from: its own ground, where it would else move everything at first."""
    load, state = bins.at(0)
    if name not in OWN_GROUND:
        return balanced(load, workers)
    planner = planners()[OWN_GROUND[name]]
    known = {key: value for key, value in options.items() if key in planner.options}
    return list(planner(Problem(load, state, [0] * bins.bins, range(workers)), **known).owner)
