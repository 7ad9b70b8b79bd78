"""Sums of groups that do not depend on the order of the rows: exact for integers, nearly so for floats."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from meander.kernel import kernel

Words = NDArray[np.int64]
Doubles = NDArray[np.float64]


Flags = NDArray[np.bool_]

EXACT = 2**53
"""Doubles hold every whole number up to this one."""


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


def whole_sums(start: Words, of: Words, values: Words) -> tuple[Words, Flags]:
    """The exact sums of groups, added to where each starts, and which of them leave the range of 64 bits."""
    groups = start.size
    if not values.size:
        return start, np.zeros(groups, dtype=np.bool_)
    most = max(abs(int(values.max())), abs(int(values.min())))
    if most * values.size < EXACT:
        added = np.bincount(of, weights=values, minlength=groups).astype(np.int64)
        total = start + added
        return total, ((start ^ total) & (added ^ total)) < 0
    high, low = start >> 32, start & 0xFFFFFFFF
    np.add.at(high, of, values >> 32)
    np.add.at(low, of, values & 0xFFFFFFFF)
    high += low >> 32
    return (high << 32) | (low & 0xFFFFFFFF), (high < -(2**31)) | (high >= 2**31)


def float_sums(of: Words, values: Doubles, groups: int) -> tuple[Doubles, Doubles]:
    """The sums of groups as a double and what is left of it when rounded, the same in every order of the rows.

    Each value is cut into three pieces of so few bits that adding a group's pieces never rounds.
    """
    finite = np.isfinite(values)
    if not finite.all():
        total, rest = float_sums(of, np.where(finite, values, 0.0), groups)
        strange = np.bincount(of[~finite], minlength=groups) > 0
        with np.errstate(invalid="ignore"):
            np.add.at(total, of[~finite], values[~finite])
        return total, np.where(strange, 0.0, rest)
    count, top = np.zeros(groups, dtype=np.int64), np.zeros(groups)
    largest(of, values, count, top)
    bits = 51 - np.frexp(count.astype(np.float64))[1].astype(np.int64)
    unit = np.frexp(top)[1] - bits
    pieces = np.zeros(3 * groups)
    cut_up(of, values, count, unit, bits, pieces)
    total, rest = np.zeros(groups), np.zeros(groups)
    for level in range(3):
        with np.errstate(over="ignore"):
            scaled = np.ldexp(pieces[level::3], unit - level * bits)
        total, rest = add_floats(total, rest, np.where(count > 1, scaled, pieces[level::3]))
    return total, rest


def add_floats(total: Doubles, rest: Doubles, values: Doubles) -> tuple[Doubles, Doubles]:
    """Add values to totals of twice a double's precision."""
    with np.errstate(invalid="ignore", over="ignore"):
        sums = total + values
        shadow = sums - total
        error = (total - (sums - shadow)) + (values - shadow) + rest
        rounded = sums + error
        left = error - (rounded - sums)
    return np.where(np.isfinite(sums), rounded, sums), np.where(np.isfinite(sums) & np.isfinite(left), left, 0.0)
