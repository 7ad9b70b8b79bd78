"""Packing tuples into bytes and picking rows of bytes, the inner loops.

A `cursor` holds for each row where its next value stands in the packed data; every kernel moves it past the value.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from meander.kernel import kernel

Octets = NDArray[np.uint8]
Words = NDArray[np.int64]

ONE, EIGHT = np.uint64(1), np.uint64(8)


@kernel
def pack_words(words: Words, cursor: Words, data: Octets) -> None:
    """Write each word as 8 bytes, little endian."""
    for i in range(words.size):
        _write(np.uint64(words[i]), data, np.uint64(cursor[i]), EIGHT)
        cursor[i] += 8


@kernel
def pack_octets(offsets: Words, values: Octets, cursor: Words, data: Octets) -> None:
    """Write the length of each value as 4 bytes, little endian, and the value."""
    for i in range(cursor.size):
        start, stop = offsets[i], offsets[i + 1]
        _write(np.uint64(stop - start), data, np.uint64(cursor[i]), np.uint64(4))
        _copy(values, start, data, cursor[i] + 4, stop - start)
        cursor[i] += 4 + stop - start


@kernel
def unpack_words(data: Octets, cursor: Words, words: Words) -> None:
    """Read 8 bytes for each word."""
    for i in range(words.size):
        words[i] = np.int64(_read(data, np.uint64(cursor[i]), EIGHT))
        cursor[i] += 8


@kernel
def unpack_lengths(data: Octets, cursor: Words, offsets: Words) -> None:
    """Read the length of each value into offsets that add them up; the cursor stays."""
    offsets[0] = 0
    for i in range(cursor.size):
        offsets[i + 1] = offsets[i] + np.int64(_read(data, np.uint64(cursor[i]), np.uint64(4)))


@kernel
def unpack_octets(data: Octets, cursor: Words, offsets: Words, values: Octets) -> None:
    """Read the values that have these offsets."""
    for i in range(cursor.size):
        length = offsets[i + 1] - offsets[i]
        _copy(data, cursor[i] + 4, values, offsets[i], length)
        cursor[i] += 4 + length


@kernel
def pick_lengths(offsets: Words, rows: Words, picked: Words) -> None:
    """Fill the offsets that the picked rows have when they stand one after the other."""
    picked[0] = 0
    for i in range(rows.size):
        picked[i + 1] = picked[i] + offsets[rows[i] + 1] - offsets[rows[i]]


@kernel
def pick_octets(offsets: Words, data: Octets, rows: Words, picked: Words, target: Octets) -> None:
    """Copy the bytes of the picked rows to their new offsets."""
    for i in range(rows.size):
        _copy(data, offsets[rows[i]], target, picked[i], picked[i + 1] - picked[i])


@kernel
def _write(word: np.uint64, data: Octets, at: np.uint64, count: np.uint64) -> None:
    for k in range(count):
        data[at + k] = np.uint8((word >> (EIGHT * k)) & np.uint64(255))


@kernel
def _read(data: Octets, at: np.uint64, count: np.uint64) -> np.uint64:
    word = np.uint64(0)
    for k in range(count):
        word |= np.uint64(data[at + k]) << (EIGHT * k)
    return word


@kernel
def _copy(source: Octets, start: int, target: Octets, at: int, count: int) -> None:
    for k in range(np.uint64(count)):
        target[np.uint64(at) + k] = source[np.uint64(start) + k]
