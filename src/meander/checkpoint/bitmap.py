"""Sets of bins as bitmaps: one bit per bin, the first bin in the highest bit of the first byte."""

from __future__ import annotations

import base64
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray


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
    return np.flatnonzero(np.unpackbits(np.frombuffer(bits, np.uint8))).astype(np.int64)


def to_text(bits: bytes) -> str:
    """A bitmap as text: base64, or how many bytes of ones where all bits are set."""
    full = bits and bits.count(255) == len(bits)
    return f"*{len(bits)}" if full else base64.b64encode(bits).decode()


def from_text(text: str) -> bytes:
    """The bitmap that `to_text` wrote."""
    return b"\xff" * int(text[1:]) if text.startswith("*") else base64.b64decode(text, validate=True)


def rows(bitmaps: list[bytes], width: int) -> NDArray[np.uint8]:
    """Bitmaps of `width` bytes each as the rows of an array."""
    data: Any = np.frombuffer(b"".join(bitmaps), np.uint8).reshape(len(bitmaps), width)
    return cast(NDArray[np.uint8], data)
