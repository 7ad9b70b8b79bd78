"""What bins ask of their workers, and how unevenly that is spread: Ls-Stream sections III-D and IV-A.

One side of a join is stored, the rows of the other side queue up to be joined with it. `Resources` puts both directions
together, and serves operators that are no joins, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from meander.errors import InvalidOption
from meander.options import amount
from meander.pictures import many

Floats = NDArray[np.float64]
MOST_SIDES = 2


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


@dataclass(frozen=True, eq=False)
class Resources:
    """Memory, computing and load of each bin, from the rows it has stored and those that queue.

    Args:
        stored: rows each bin has stored, by side: two sides of a join, one of any other operator.
        queued: rows that queue at each bin, by side.
        gamma: weight of memory against computing, from 0 (computing only) to 1 (memory only). If not given, 0.5 for a
            join, as in the paper, and 0 for any other operator.

    A row of either side of a join is compared with what the other side has stored in its bin. The state of any other
    operator is looked up by key: a row costs the same however much is stored. Counting what is stored as load would
    there move large bins that nobody asks for, so by default only rows count.

    >>> figure_4 = Resources(stored=([4, 4, 2, 1], [0] * 4), queued=([0] * 4, [3, 4, 2, 3]))
    >>> figure_4.of_workers(owner=[0, 0, 1, 1], workers=[0, 1]).tolist()
    [21.5, 7.5]
    >>> round(figure_4.imbalance([0, 0, 1, 1], [0, 1]), 2)
    0.48
    """

    stored: tuple[Floats, ...]
    queued: tuple[Floats, ...]
    gamma: float | None = None

    def __post_init__(self) -> None:
        stored, queued = by_side(self.stored, self.queued)
        object.__setattr__(self, "stored", stored)
        object.__setattr__(self, "queued", queued)
        weight = (0.5 if len(stored) > 1 else 0.0) if self.gamma is None else check_gamma(self.gamma)
        object.__setattr__(self, "gamma", weight)

    @property
    def bins(self) -> int:
        """How many bins there are."""
        return len(self.stored[0])

    @property
    def memory(self) -> Floats:
        """The rows each bin holds, stored or queued, of all sides (eq. 7)."""
        return self._sum(memory_load(s, q) for s, q in zip(self.stored, self.queued, strict=True))

    @property
    def computing(self) -> Floats:
        """The work before each bin: comparisons in both directions (eq. 9), or rows where there is one side."""
        if len(self.stored) == 1:
            return self.queued[0]
        return self._sum(computing_load(s, q) for s, q in self._directions)

    @property
    def load(self) -> Floats:
        """What each bin asks of its worker: gamma * memory + (1 - gamma) * computing (eq. 11)."""
        assert self.gamma is not None
        if len(self.stored) == 1:
            return self.gamma * self.memory + (1 - self.gamma) * self.computing
        return self._sum(resource(s, q, self.gamma) for s, q in self._directions)

    @property
    def _directions(self) -> tuple[tuple[Floats, Floats], ...]:
        """What is stored and what queues up to be compared with it, once for each direction of a join."""
        return tuple(zip(self.stored, reversed(self.queued), strict=True))

    def _sum(self, parts: Iterable[Floats]) -> Floats:
        return sum(parts, np.zeros(self.bins))

    def of_workers(self, owner: Sequence[int], workers: Sequence[int]) -> Floats:
        """Return the load of each worker, in the order of `workers` (eq. 12)."""
        if len(owner) != self.bins:
            raise InvalidOption(
                f"there are {many(len(owner), 'owner')} but {many(self.bins, 'bin')}; give one for each"
            )
        known = set(workers)
        for j, worker in enumerate(owner):
            if worker not in known:
                raise InvalidOption(f"bin {j} belongs to worker {worker}, which is not among the workers; name it too")
        return sum_by_worker(self.load, owner, workers)

    def imbalance(
        self, owner: Sequence[int], workers: Sequence[int], capacities: Sequence[float] | None = None
    ) -> float:
        """Return the load imbalance degree LI among `workers` (eq. 13), as utilisation where capacities are given."""
        return load_imbalance(self.of_workers(owner, workers), capacities)


def check_gamma(gamma: object) -> float:
    """Return a weight of memory against computing, or refuse it."""
    weight = float(amount("gamma", gamma))
    resource([], [], weight)
    return weight


def per_bin(name: str, values: ArrayLike, bins: int | None = None) -> Floats:
    """Return one finite number of at least 0 for each bin, as a read-only array."""
    try:
        array = np.array(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise InvalidOption(f"{name} must be a list of numbers, one for each bin") from None
    if array.ndim != 1 or (bins is not None and len(array) != bins):
        wanted = " of the" if bins is None else f" of {bins}"
        raise InvalidOption(f"{name} has the shape {array.shape}; give one number for each{wanted} bins")
    good = (array >= 0) & (array < np.inf)
    if not good.all():
        wrong = good.argmin()
        raise InvalidOption(f"{name} of bin {wrong} is {array[wrong]}; it must be finite and at least 0")
    array.flags.writeable = False
    return array


def by_side(stored: Sequence[ArrayLike], queued: Sequence[ArrayLike]) -> tuple[tuple[Floats, ...], tuple[Floats, ...]]:
    """Return both as tuples of arrays, one for each side, all of one length."""
    if not isinstance(stored, tuple | list) or not isinstance(queued, tuple | list):
        raise InvalidOption("stored and queued must be tuples of arrays, one for each side")
    if not 1 <= len(stored) <= MOST_SIDES or len(stored) != len(queued):
        raise InvalidOption(
            f"stored has {len(stored)} sides and queued has {len(queued)}; give two of each for a join, else one"
        )
    first = per_bin("stored of side 0", stored[0])
    bins = len(first)
    rest = (per_bin(f"stored of side {side}", stored[side], bins) for side in range(1, len(stored)))
    return (first, *rest), tuple(per_bin(f"queued of side {side}", q, bins) for side, q in enumerate(queued))
