"""The hash that chooses a key's bin: the same number as Spark's `xxhash64` in the JVM.

A row's bin is the high bits of that hash, so that Spark can send it to its worker without any Python, and the
worker computes the same bin.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from meander.errors import InvalidOption
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
from meander.route.hashing_kernel import chain_narrow, chain_octets, chain_words, hash_octets

SEED = 42
"""The seed of Spark's `xxhash64`."""

MOST_BINS = 65536


def xxhash64(columns: Sequence[pa.Array | pa.ChunkedArray]) -> NDArray[np.uint64]:
    """Return the hash of each row: exactly Spark's `F.xxhash64(*columns)`, as unsigned numbers.

    The hash of a column is the seed of the next one, and a null leaves the seed as it is.

    >>> [hex(each) for each in xxhash64([pa.array(["ab", None]), pa.array([7, 7])])]
    ['0x60ed1353d821200', '0xd84046c3cf69aaf1']
    """
    if not columns:
        raise InvalidOption("there is nothing to hash: give at least one column")
    return chain(columns, np.full(len(columns[0]), SEED, dtype=np.uint64))


def chain(columns: Sequence[pa.Array | pa.ChunkedArray], hashes: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Hash further columns with these hashes as seeds; they are replaced, in the same array."""
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
