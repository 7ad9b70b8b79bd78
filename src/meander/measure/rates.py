"""Rates that a single odd batch does not spoil (Ls-Stream III-B), and how long a row stays at a worker (IV-A)."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from meander.errors import InvalidOption

FEWEST = 3
"""With fewer values than this, leaving out the highest and the lowest would leave none."""


def steady_mean(values: ArrayLike, axis: int = 0) -> NDArray[np.float64]:
    """Return the mean over batches without the highest and the lowest (eq. 4).

    Args:
        values: one value for each batch, or one row of values, such as those of all bins.
        axis: along which the batches follow each other.

    Every column leaves out its own two values. Of fewer than three values it is the plain mean. The paper takes two
    values away and divides by how many there were before; here it is a mean of those that are left.

    >>> float(steady_mean([5, 900, 7, 0]))
    6.0
    >>> steady_mean([[1, 9], [2, 0], [60, 3]]).tolist()
    [2.0, 3.0]
    """
    array = np.asarray(values, dtype=np.float64)
    if array.ndim == 0 or array.shape[axis] == 0:
        raise InvalidOption("there is no batch to take a mean of; wait until one has ended")
    batches = np.moveaxis(array, axis, 0)
    if len(batches) >= FEWEST:
        # Sorted, not subtracted from the sum: a huge value would leave nothing of the digits of the others.
        batches = np.sort(batches, axis=0)[1:-1]
    return np.asarray(batches.mean(axis=0))


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
