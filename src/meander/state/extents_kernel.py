"""Placing extents: the inner loops."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from meander.kernel import kernel

Words = NDArray[np.int64]


@kernel
def fit(begins: Words, left: Words, wanted: Words, tail: int, starts: Words) -> int:
    """Place each wanted size in the first free extent it fits after the last one, or behind the tail.

    `begins` and `left`, the free extents, are cut down. Returns the new tail.
    """
    rover, failed = 0, np.int64(1) << 62
    for i in range(wanted.size):
        size = wanted[i]
        placed = False
        # What was too large for every extent once is too large still.
        if size < failed:
            for k in range(begins.size):
                j = rover + k
                if j >= begins.size:
                    j -= begins.size
                if left[j] >= size:
                    starts[i] = begins[j]
                    begins[j] += size
                    left[j] -= size
                    rover, placed = j, True
                    break
            if not placed:
                failed = size
        if not placed:
            starts[i] = tail
            tail += size
    return tail
