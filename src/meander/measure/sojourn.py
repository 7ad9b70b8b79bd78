"""How long a row stays at a worker that is an M/M/1 queue, waiting and being served: Ls-Stream IV-A."""

from __future__ import annotations

import math


def mean_sojourn_s(service_per_s: float, arrival_per_s: float) -> float:
    """Return the mean sojourn time in seconds, 1 / (mu - E) (eq. 20).

    Infinite where rows come at least as fast as they are served: the queue grows for ever.

    >>> mean_sojourn_s(10.0, 8.0), mean_sojourn_s(8.0, 8.0)
    (0.5, inf)
    """
    return 1 / (service_per_s - arrival_per_s) if service_per_s > arrival_per_s else math.inf


def service_per_s(arrival_per_s: float, work_per_s: float, speed_per_s: float) -> float:
    """Return the rows a worker can serve per second, mu: rows divided by the time they keep it busy.

    Args:
        arrival_per_s: rows that come in per second.
        work_per_s: work, in any unit, that these rows make.
        speed_per_s: work the worker can do per second, in the same unit.

    Rows that make no work are served at once: infinitely many per second.

    >>> service_per_s(8.0, work_per_s=40.0, speed_per_s=50.0)
    10.0
    """
    return arrival_per_s * speed_per_s / work_per_s if work_per_s > 0 else math.inf
