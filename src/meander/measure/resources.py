"""What the bins of an operator ask of their workers, be it a join or not: Ls-Stream sections III-D and IV-A.

The formulas for one side that is stored and one that queues are in `imbalance`; here both directions come together.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from meander.errors import InvalidOption
from meander.measure.imbalance import computing_load, load_imbalance, memory_load, resource, sum_by_worker
from meander.options import amount

Floats = NDArray[np.float64]

MOST_SIDES = 2


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
            raise InvalidOption(f"there are {len(owner)} owners but {self.bins} bins; give one for each")
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
    wrong = np.flatnonzero(~((array >= 0) & (array < np.inf)))
    if wrong.size:
        raise InvalidOption(f"{name} of bin {wrong[0]} is {array[wrong[0]]}; it must be finite and at least 0")
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
