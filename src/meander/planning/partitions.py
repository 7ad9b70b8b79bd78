"""All ways to cut the bins into intervals within a load cap, and what it costs to go from one to another.

A partitioning is its sorted inner boundaries, without who owns what: for sequences of migrations only the boundaries
matter, since owners can be renamed without changing a cost (Ding et al., Lemma 4.1).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from meander.errors import TooLarge
from meander.planning.intervals import least_intervals
from meander.planning.problem import ROUNDING

Cuts = tuple[int, ...]
"""Ends of the intervals, ascending, the last one the number of bins. No interval is empty."""


def partitions(load: NDArray[np.float64], workers: int, cap: float, limit: int) -> list[Cuts]:
    """Return every cut into at most `workers` intervals of at most `cap`, in lexical order; `load` is a prefix sum.

    Raises:
        TooLarge: there are more than `limit`.

    >>> len(partitions(np.arange(101.0), 3, 1.2 * 100 / 3, limit=1000))
    231
    """
    bins = load.size - 1
    reach = np.searchsorted(load, load + cap * (1 + ROUNDING), side="right") - 1
    need = least_intervals(load, cap * (1 + ROUNDING))  # what cannot end in time is never begun
    found: list[Cuts] = []

    def extend(cuts: Cuts, at: int) -> None:
        if at == bins:
            if len(found) == limit:
                raise TooLarge(f"more than {limit} partitionings of {bins} bins into {workers} intervals keep the cap")
            found.append(cuts)
            return
        for end in range(at + 1, int(reach[at]) + 1):
            if need[end] <= workers - len(cuts) - 1:
                extend((*cuts, end), end)

    extend((), 0)
    return found


def as_table(cuts: Sequence[Cuts]) -> NDArray[np.int64]:
    """Partitionings as rows of equal length for `partitions_kernel.kept`; short ones repeat their last end."""
    width = max(map(len, cuts))
    return np.array([[*c, *[c[-1]] * (width - len(c))] for c in cuts], dtype=np.int64)
