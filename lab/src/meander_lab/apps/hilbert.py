"""Places as numbers along Hilbert's curve: cells that follow one another on it lie side by side in the plane.

A square of 2 ** order times 2 ** order cells is walked through without a jump. The curve of order 1 goes from (0, 0)
over (0, 1) and (1, 1) to (1, 0). The larger ones begin and end in the same corners; each quarter of one is the next
smaller one, turned, and number >> 2 is the number of the cell on the next smaller one. Ride matching takes the number
of a cell as the key of its join, as Ls-Stream does (section VI).

Hilbert, Über die stetige Abbildung einer Linie auf ein Flächenstück, 1891.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from meander.errors import InvalidOption
from meander.options import whole

Cells = NDArray[np.int64]

LARGEST_ORDER = 31
"""Four cells more for each order, and numbers of 64 bits with a sign."""


class Box(NamedTuple):
    """A part of the world, in degrees."""

    west: float
    south: float
    east: float
    north: float


def hilbert(x: ArrayLike, y: ArrayLike, order: int) -> Cells:
    """The number of each cell along the curve, from 0 to 4 ** order - 1.

    Args:
        x: whole numbers from 0 to 2 ** order - 1, from west to east.
        y: the same, from south to north.
        order: how often the square is cut in half each way.

    >>> hilbert([0, 0, 1, 1], [0, 1, 1, 0], 1).tolist()
    [0, 1, 2, 3]
    """
    side = 1 << whole("order", order, 0, LARGEST_ORDER)
    x, y = np.broadcast_arrays(_cells("x", x, side), _cells("y", y, side))
    number, swapped, turned = (np.zeros(x.shape, np.int64) for _ in range(3))
    for level in reversed(range(order)):
        right, up = (x >> level) & 1, (y >> level) & 1
        exchange = (right ^ up) & swapped ^ turned
        right, up = right ^ exchange, up ^ exchange
        number = number << 2 | right << 1 | right ^ up
        # The quarters below lie along the other diagonal: x and y change places, on the right the far ends as well.
        swapped ^= 1 - up
        turned ^= right & (1 - up)
    return number


def unhilbert(number: ArrayLike, order: int) -> tuple[Cells, Cells]:
    """The cells x and y that have these numbers on the curve: the inverse of `hilbert`."""
    along = _cells("the number", number, 1 << 2 * whole("order", order, 0, LARGEST_ORDER))
    x, y, swapped, turned = (np.zeros(along.shape, np.int64) for _ in range(4))
    for level in reversed(range(order)):
        right = (along >> 2 * level + 1) & 1
        up = (along >> 2 * level) & 1 ^ right
        exchange = (right ^ up) & swapped ^ turned
        x, y = x << 1 | right ^ exchange, y << 1 | up ^ exchange
        swapped ^= 1 - up
        turned ^= right & (1 - up)
    return x, y


def cell_of(lon: ArrayLike, lat: ArrayLike, box: Box, order: int) -> Cells:
    """The number of the cell that each place lies in; places outside the box belong to the nearest cell of its edge.

    Args:
        lon: degrees east.
        lat: degrees north.
        box: what the square of cells is laid over.
        order: the box has 2 ** order cells each way.
    """
    side = 1 << whole("order", order, 0, LARGEST_ORDER)
    x = _steps("lon", lon, box.west, box.east, side)
    y = _steps("lat", lat, box.south, box.north, side)
    return hilbert(x, y, order)


def _cells(what: str, values: ArrayLike, limit: int) -> Cells:
    numbers = np.asarray(values)
    if numbers.size and (numbers.dtype.kind not in "iu" or numbers.min() < 0 or numbers.max() >= limit):
        raise InvalidOption(f"{what} must be whole numbers from 0 to {limit - 1}; raise the order, or clip them first")
    return numbers.astype(np.int64)


def _steps(what: str, degrees: ArrayLike, low: float, high: float, side: int) -> Cells:
    at = np.asarray(degrees, np.float64)
    if not low < high:
        raise InvalidOption(f"the box goes from {low:g} to {high:g} in {what}; its east and north are the larger ones")
    if not np.isfinite(at).all():
        raise InvalidOption(f"{what} must be finite; leave rows without a place out first")
    return np.clip(np.floor((at - low) * (side / (high - low))), 0, side - 1).astype(np.int64)
