"""Pairs of rows that are near enough in time: the inner loops of the join."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from meander.kernel import kernel

Words = NDArray[np.int64]


@kernel
def count_pairs(starts: Words, stops: Words, times: Words, stored: Words, low: int, high: int, counts: Words) -> None:
    """Count for each look-up the stored rows from starts to stops whose time less its own lies in low .. high."""
    for k in range(starts.size):
        count, time = 0, times[k]
        for at in range(starts[k], stops[k]):
            count += low <= stored[at] - time <= high
        counts[k] = count


@kernel
def fill_pairs(
    starts: Words, stops: Words, times: Words, stored: Words, low: int, high: int, first: int, last: int,
    rows_of_lookups: Words, rows_of_stored: Words, rows: Words, partners: Words,
) -> None:  # fmt: skip
    """Write the pairs of look-ups first .. last - 1 that `count_pairs` has counted: looking row and stored row."""
    n = 0
    for k in range(first, last):
        time, row = times[k], rows_of_lookups[k]
        for at in range(starts[k], stops[k]):
            if low <= stored[at] - time <= high:
                rows[n] = row
                partners[n] = rows_of_stored[at]
                n += 1
