"""Sums of floats that round only at the end: the inner loops of `sums`."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from meander.kernel import kernel

Words = NDArray[np.int64]
Doubles = NDArray[np.float64]


@kernel
def largest(of: Words, values: Doubles, count: Words, top: Doubles) -> None:
    """Count the rows of each group and find its largest value, regardless of sign."""
    for i in range(of.size):
        count[of[i]] += 1
        top[of[i]] = max(top[of[i]], abs(values[i]))


@kernel
def cut_up(of: Words, values: Doubles, count: Words, unit: Words, bits: Words, sums: Doubles) -> None:
    """Add three pieces of each value, of `bits` bits each, to the sums of its group: sums[3 * group + level].

    The pieces of level k are whole multiples of 2 ** (unit - k * bits) and are added up as whole numbers below 2^53,
    so nothing is rounded and the order does not matter. A group of one row needs no cutting.
    """
    for i in range(of.size):
        group = of[i]
        if count[group] == 1:
            sums[3 * group] = values[i]
            continue
        left, exponent = values[i], unit[group]
        for level in range(3):
            piece = float(math.trunc(math.ldexp(left, -exponent)))
            sums[3 * group + level] += piece
            left -= math.ldexp(piece, exponent)
            exponent -= bits[group]
            if left == 0.0:
                break
