"""How much each bin asks of its worker, and how unevenly that is spread: Ls-Stream sections III-D and IV-A.

One side of a join is stored, the rows of the other side queue up to be joined with it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from meander.errors import InvalidOption


def memory_load(stored: ArrayLike, queued: ArrayLike) -> NDArray[np.float64]:
    """Return the rows each bin holds: those it has stored and those that wait (eq. 7)."""
    return np.asarray(stored, dtype=np.float64) + np.asarray(queued, dtype=np.float64)


def computing_load(stored: ArrayLike, queued: ArrayLike) -> NDArray[np.float64]:
    """Return the comparisons each bin has before it: every waiting row with every stored one (eq. 9)."""
    return np.asarray(stored, dtype=np.float64) * np.asarray(queued, dtype=np.float64)


def resource(stored: ArrayLike, queued: ArrayLike, gamma: float = 0.5) -> NDArray[np.float64]:
    """Return what each bin asks of its worker: gamma * memory + (1 - gamma) * computing (eq. 11).

    The paper wants 0 < gamma < 1; here 0 (computing only) and 1 (memory only) are allowed too.
    """
    if not 0 <= gamma <= 1:
        raise InvalidOption(f"gamma is {gamma}; it weighs memory against computing and lies between 0 and 1")
    return gamma * memory_load(stored, queued) + (1 - gamma) * computing_load(stored, queued)


def sum_by_worker(values: ArrayLike, owner: Sequence[int], workers: Sequence[int]) -> NDArray[np.float64]:
    """Return the sum over the bins of each worker, in the order of `workers` (eq. 8, 10, 12).

    >>> sum_by_worker([1, 2, 4], owner=[7, 3, 7], workers=[3, 5, 7]).tolist()
    [2.0, 0.0, 5.0]
    """
    place = {worker: i for i, worker in enumerate(workers)}
    slots = np.array([place[worker] for worker in owner], dtype=np.intp)
    sums = np.zeros(len(workers))
    np.add.at(sums, slots, np.asarray(values, dtype=np.float64))
    return sums


def spread(loads: ArrayLike, capacities: ArrayLike | None = None) -> tuple[float, float]:
    """Return how far the most and the least loaded worker are from the mean, as shares of the mean.

    Args:
        loads: load of each worker.
        capacities: relative speed of each worker; all alike unless given.

    With capacities, what is compared is utilisation: load divided by capacity, and as its mean the whole load
    divided by the whole capacity. That mean stays the same whatever moves between workers. No load at all is
    spread evenly: (0, 0).
    """
    load = np.asarray(loads, dtype=np.float64)
    capacity = np.ones_like(load) if capacities is None else np.asarray(capacities, dtype=np.float64)
    mean = load.sum() / capacity.sum() if load.size else 0.0
    if not mean > 0:
        return 0.0, 0.0
    utilisation = load / capacity
    return float((utilisation.max() - mean) / mean), float((mean - utilisation.min()) / mean)


def load_imbalance(loads: ArrayLike, capacities: ArrayLike | None = None) -> float:
    """Return the load imbalance degree LI: the larger of the two distances that `spread` gives (eq. 13).

    0 is perfect balance. Among n equal workers LI is at most n - 1: one has everything.

    >>> load_imbalance([3.0, 1.0])
    0.5
    >>> load_imbalance([3.0, 1.0], capacities=[3.0, 1.0])
    0.0
    """
    return max(spread(loads, capacities))
