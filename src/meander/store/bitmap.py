"""Sets of bins as bitmaps: one bit per bin, the first bin in the highest bit of the first byte."""

from __future__ import annotations

from binascii import a2b_base64, b2a_base64
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

KNOWN_TEXTS = 256
"""So many bitmaps are remembered with their text: the bins of a worker come again with every version."""

SPARSE_FROM = 6
"""A bitmap of so many times as many bytes as have bits is written sparsely."""


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
    octets = np.frombuffer(bits, np.uint8)
    at = (octets != 0).nonzero()[0]
    bits_set = np.unpackbits(octets[at]).nonzero()[0]
    answer: NDArray[np.int64] = (at[bits_set >> 3] << 3) + (bits_set & 7)
    return answer


@lru_cache(maxsize=KNOWN_TEXTS)
def to_text(bits: bytes) -> str:
    """A bitmap as text: base64; how many bytes of ones where all bits are set; or where its few bytes with bits are.

    >>> to_text(bitmap([0], 16)), to_text(bitmap(range(16), 16)), to_text(bitmap([80], 4096))
    ('gAA=', '*2', '512:CgCA')
    """
    width = len(bits)
    if bits and bits.count(255) == width:
        return f"*{width}"
    # Three bytes or five for each byte that has bits: worth it where most have none.
    if SPARSE_FROM * (width - bits.count(0)) < width:
        octets = np.frombuffer(bits, np.uint8)
        at = (octets != 0).nonzero()[0]
        gaps = np.concatenate([at[:1], at[1:] - at[:-1]]).astype(_gap_type(width))
        return f"{width}:{b2a_base64(gaps.tobytes() + octets[at].tobytes(), newline=False).decode()}"
    return b2a_base64(bits, newline=False).decode()


@lru_cache(maxsize=KNOWN_TEXTS)
def from_text(text: str) -> bytes:
    """The bitmap that `to_text` wrote; a ValueError where it wrote none such."""
    if text.startswith("*"):
        return b"\xff" * int(text[1:])
    head, colon, rest = text.partition(":")
    if not colon:
        return a2b_base64(text, strict_mode=True)
    width, data = int(head), a2b_base64(rest, strict_mode=True)
    kind = _gap_type(width)
    count, left = divmod(len(data), kind.itemsize + 1)
    at = np.cumsum(np.frombuffer(data, kind, count), dtype=np.int64)
    # Compared before anything is made of that width: a text from elsewhere may say what it likes.
    if left or SPARSE_FROM * count >= width or (count and at[-1] >= width):
        raise ValueError(f"{count} bytes do not lie in a bitmap of {width}")
    octets = np.zeros(width, np.uint8)
    octets[at] = np.frombuffer(data, np.uint8, offset=kind.itemsize * count)
    return octets.tobytes()


def _gap_type(width: int) -> np.dtype[Any]:
    """What holds the way from one byte to the next in a bitmap of so many."""
    return np.dtype("<u2" if width <= 1 << 16 else "<u4")
