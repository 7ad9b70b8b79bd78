"""A made-up history of arrivals, for whoever has no series at hand: days, weeks, weather and bursts."""

from __future__ import annotations

import numpy as np

from meander.options import whole
from meander.outlook import Series

DAYS = 60
START = "2026-03-02T00"  # a Monday

MEMORY = 0.9
"""How much of what was unusual in one hour is still so in the next."""

BURSTS_A_WEEK = 1.5
BURST_LEFT = 0.7


def arrivals(days: int = DAYS, seed: int = 1) -> Series:
    """Return rows per hour of a stream that follows day and week, the same for the same seed.

    Args:
        days: how long it is.
        seed: which chance: where its peak is, how quiet its nights and weekends are, its weather and its bursts.

    >>> arrivals(days=2).values.shape
    (48,)
    """
    days, seed = whole("days", days, 1, 3660), whole("seed", seed, 0)
    rng = np.random.default_rng([seed, 20_261_116])
    hour = np.arange(24 * days)
    peak, night, weekend = rng.uniform(10, 20), rng.uniform(0.5, 0.9), rng.uniform(0.5, 0.9)
    of_day = 1 + night * np.cos(2 * np.pi * (hour - peak) / 24) + 0.2 * np.cos(4 * np.pi * (hour - peak - 3) / 24)
    of_week = np.where(hour // 24 % 7 < 5, 1.0, weekend)
    unusual, burst = np.zeros(hour.size), np.zeros(hour.size)
    for at in range(1, hour.size):
        unusual[at] = MEMORY * unusual[at - 1] + 0.05 * rng.standard_normal()
        burst[at] = BURST_LEFT * burst[at - 1]
        if rng.random() < BURSTS_A_WEEK / (7 * 24):
            burst[at] += rng.uniform(0.3, 1.0)
    amounts = 10_000 * np.maximum(of_day * of_week, 0.05) * np.exp(unusual + burst)
    return Series(np.datetime64(START, "h") + hour, np.rint(amounts))
