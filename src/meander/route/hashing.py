"""The hash that chooses a key's bin: the same number as Spark's `xxhash64` in the JVM.

A row's bin is the high bits of that hash, so that Spark can send it to its worker without any Python, and the
worker computes the same bin.

In the kernels everything is unsigned: NumPy's rules make a float of a uint64 and a signed number, so every constant is
a np.uint64 and positions are unsigned too, which also spares the check for indices from the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from meander.errors import InvalidOption
from meander.kernel import kernel
from meander.options import whole
from meander.route.columns import (
    ALLOWED,
    is_narrow,
    is_octets,
    is_word,
    octets_of,
    valid_of,
    view,
    whole_column,
    words_of,
)

Octets = NDArray[np.uint8]
Words = NDArray[np.int64]
Hashes = NDArray[np.uint64]

SEED = 42
"""The seed of Spark's `xxhash64`."""

MOST_BINS = 65536

P1 = np.uint64(0x9E3779B185EBCA87)
P2 = np.uint64(0xC2B2AE3D27D4EB4F)
P3 = np.uint64(0x165667B19E3779F9)
P4 = np.uint64(0x85EBCA77C2B2AE63)
P5 = np.uint64(0x27D4EB2F165667C5)

LOW = np.uint64(0xFFFFFFFF)
ZERO, ONE, TWO, THREE = np.uint64(0), np.uint64(1), np.uint64(2), np.uint64(3)
FOUR, FIVE, SIX, SEVEN = np.uint64(4), np.uint64(5), np.uint64(6), np.uint64(7)
S7, S8, S11, S12, S16, S18, S23, S24, S27, S29, S31, S32, S33, S40, S48, S56 = (
    np.uint64(bits) for bits in (7, 8, 11, 12, 16, 18, 23, 24, 27, 29, 31, 32, 33, 40, 48, 56)
)
S64 = np.uint64(64)


@kernel
def chain_narrow(words: Words, valid: Octets, hashes: Hashes) -> None:
    """Replace each hash by the hash of the low 32 bits of a word, seeded by it; an empty `valid` means no nulls."""
    for i in range(words.size):
        if valid.size == 0 or valid[i] != 0:
            mixed = (hashes[i] + P5 + FOUR) ^ ((np.uint64(words[i]) & LOW) * P1)
            hashes[i] = _avalanche(_rotate(mixed, S23) * P2 + P3)


@kernel
def chain_words(words: Words, valid: Octets, hashes: Hashes) -> None:
    """Replace each hash by the hash of a word of 64 bits, seeded by it; an empty `valid` means no nulls."""
    for i in range(words.size):
        if valid.size == 0 or valid[i] != 0:
            mixed = (hashes[i] + P5 + S8) ^ (_rotate(np.uint64(words[i]) * P2, S31) * P1)
            hashes[i] = _avalanche(_rotate(mixed, S27) * P1 + P4)


@kernel
def chain_octets(offsets: Words, data: Octets, valid: Octets, hashes: Hashes) -> None:
    """Replace each hash by the hash of data[offsets[i]:offsets[i + 1]], seeded by it; see `chain_words`."""
    for i in range(hashes.size):
        if valid.size == 0 or valid[i] != 0:
            hashes[i] = _xxh64(data, np.uint64(offsets[i]), np.uint64(offsets[i + 1]), hashes[i])


@kernel
def hash_octets(data: Octets, hashes: Hashes) -> None:
    """Replace the only hash by the hash of all data, seeded by it."""
    hashes[0] = _xxh64(data, ZERO, np.uint64(data.size), hashes[0])


@kernel
def _rotate(x: np.uint64, bits: np.uint64) -> np.uint64:
    return (x << bits) | (x >> (S64 - bits))


@kernel
def _avalanche(x: np.uint64) -> np.uint64:
    x = (x ^ (x >> S33)) * P2
    x = (x ^ (x >> S29)) * P3
    return x ^ (x >> S32)


@kernel
def _half(data: Octets, at: np.uint64) -> np.uint64:
    low = np.uint64(data[at]) | (np.uint64(data[at + ONE]) << S8)
    return low | (np.uint64(data[at + TWO]) << S16) | (np.uint64(data[at + THREE]) << S24)


@kernel
def _word(data: Octets, at: np.uint64) -> np.uint64:
    # Spelled out in one function: only then the compiler merges the eight loads into one.
    return (
        np.uint64(data[at])
        | (np.uint64(data[at + ONE]) << S8)
        | (np.uint64(data[at + TWO]) << S16)
        | (np.uint64(data[at + THREE]) << S24)
        | (np.uint64(data[at + FOUR]) << S32)
        | (np.uint64(data[at + FIVE]) << S40)
        | (np.uint64(data[at + SIX]) << S48)
        | (np.uint64(data[at + SEVEN]) << S56)
    )


@kernel
def _round(lane: np.uint64, word: np.uint64) -> np.uint64:
    return _rotate(lane + word * P2, S31) * P1


@kernel
def _xxh64(data: Octets, at: np.uint64, stop: np.uint64, seed: np.uint64) -> np.uint64:
    length = stop - at
    if length >= S32:
        a, b, c, d = seed + P1 + P2, seed + P2, seed, seed - P1
        while at + S32 <= stop:
            a = _round(a, _word(data, at))
            b = _round(b, _word(data, at + S8))
            c = _round(c, _word(data, at + S16))
            d = _round(d, _word(data, at + S24))
            at += S32
        x = _rotate(a, ONE) + _rotate(b, S7) + _rotate(c, S12) + _rotate(d, S18)
        x = (x ^ _round(ZERO, a)) * P1 + P4
        x = (x ^ _round(ZERO, b)) * P1 + P4
        x = (x ^ _round(ZERO, c)) * P1 + P4
        x = (x ^ _round(ZERO, d)) * P1 + P4
    else:
        x = seed + P5
    x += length
    while at + S8 <= stop:
        x = _rotate(x ^ _round(ZERO, _word(data, at)), S27) * P1 + P4
        at += S8
    if at + FOUR <= stop:
        x = _rotate(x ^ (_half(data, at) * P1), S23) * P2 + P3
        at += FOUR
    while at < stop:
        x = _rotate(x ^ (np.uint64(data[at]) * P5), S11) * P1
        at += ONE
    return _avalanche(x)


def xxhash64(columns: Sequence[pa.Array | pa.ChunkedArray]) -> NDArray[np.uint64]:
    """Return the hash of each row: exactly Spark's `F.xxhash64(*columns)`, as unsigned numbers.

    The hash of a column is the seed of the next one, and a null leaves the seed as it is.

    >>> [hex(each) for each in xxhash64([pa.array(["ab", None]), pa.array([7, 7])])]
    ['0x60ed1353d821200', '0xd84046c3cf69aaf1']
    """
    if not columns:
        raise InvalidOption("there is nothing to hash: give at least one column")
    hashes = np.full(len(columns[0]), SEED, dtype=np.uint64)
    for each in columns:
        column = whole_column(each)
        if len(column) != hashes.size:
            raise InvalidOption(f"columns of {hashes.size} and {len(column)} rows cannot be hashed together")
        if is_octets(column.type):
            chain_octets(*octets_of(column), valid_of(column), hashes)
        elif is_narrow(column.type):
            chain_narrow(words_of(column), valid_of(column), hashes)
        elif is_word(column.type):
            chain_words(words_of(column), valid_of(column), hashes)
        else:
            raise InvalidOption(f"a column of type {column.type} cannot be hashed; {ALLOWED}")
    return hashes


def checksum(data: Any) -> int:
    """Return the plain XXH64, seed 0, of a buffer of bytes; some 8 GB/s.

    >>> hex(checksum(b"abc"))
    '0x44bc2cf5ad770999'
    """
    buffer = pa.py_buffer(data)
    hashes = np.zeros(1, dtype=np.uint64)
    hash_octets(view(buffer, np.dtype(np.uint8), 0, buffer.size), hashes)
    return int(hashes[0])


def bins_of(hashes: NDArray[np.uint64], bins: int) -> NDArray[np.int32]:
    """Return the bin of each hash: its high bits, as many as it takes to number the bins.

    >>> bins_of(np.array([0, 2**63, 2**64 - 1], dtype=np.uint64), 256)
    array([  0, 128, 255], dtype=int32)
    """
    bits = bits_of(bins)
    if not bits:
        return np.zeros(hashes.size, dtype=np.int32)
    return (hashes >> np.uint64(64 - bits)).astype(np.int32)


def bits_of(bins: int) -> int:
    """Return how many bits number the bins: their logarithm; refuses numbers that are no power of two up to 65536.

    >>> bits_of(256)
    8
    """
    count = whole("bins", bins, 1, MOST_BINS)
    bits = count.bit_length() - 1
    if count != 1 << bits:
        raise InvalidOption(f"bins is {count}; it must be a power of two, such as {1 << bits} or {2 << bits}")
    return bits
