"""Sets of bins as bitmaps: one bit per bin, the first bin in the highest bit of the first byte."""

from __future__ import annotations

from binascii import a2b_base64, b2a_base64
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

KNOWN_TEXTS = 256
"""So many bitmaps are remembered with their text: the bins of a worker come again with every version."""


def bitmap(members: ArrayLike, bins: int) -> bytes:
    """Return a set of bins as a bitmap.

    >>> bitmap([0, 9], 16).hex()
    '8040'
    """
    flags = np.zeros(bins, dtype=bool)
    flags[np.asarray(members, dtype=np.int64)] = True
    return np.packbits(flags).tobytes()


def members(bits: bytes) -> NDArray[np.int64]:
    """Return the bins of a bitmap, ascending.

    >>> members(bytes.fromhex("8040"))
    array([0, 9])
    """
    return np.unpackbits(np.frombuffer(bits, np.uint8)).nonzero()[0]


@lru_cache(maxsize=KNOWN_TEXTS)
def to_text(bits: bytes) -> str:
    """A bitmap as text: base64, or how many bytes of ones where all bits are set."""
    full = bits and bits.count(255) == len(bits)
    return f"*{len(bits)}" if full else b2a_base64(bits, newline=False).decode()


@lru_cache(maxsize=KNOWN_TEXTS)
def from_text(text: str) -> bytes:
    """The bitmap that `to_text` wrote."""
    return b"\xff" * int(text[1:]) if text.startswith("*") else a2b_base64(text, strict_mode=True)


def to_int(bits: bytes) -> int:
    """A bitmap as one number: sets of bins are compared and joined by `&`, `|` and `~`."""
    return int.from_bytes(bits, "big")


def from_int(number: int, width: int) -> bytes:
    """The bitmap of `width` bytes that `to_int` made a number of."""
    return number.to_bytes(width, "big")


def counts(bitmaps: Sequence[bytes], bins: int) -> NDArray[np.int64]:
    """How many of these bitmaps have each bin.

    >>> counts([bytes.fromhex("80"), bytes.fromhex("c0")], 4)
    array([2, 1, 0, 0])
    """
    if not bitmaps:
        return np.zeros(bins, np.int64)
    rows = np.frombuffer(b"".join(bitmaps), np.uint8).reshape(len(bitmaps), -1)
    totals: NDArray[np.int64] = np.add.reduce(np.unpackbits(rows, axis=1, count=bins), axis=0, dtype=np.int64)
    return totals
