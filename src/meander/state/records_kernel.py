"""Records of bytes in words, rows in order of their bins, and sums at rows: the inner loops that every table needs.

A record stands in whole words of 8 bytes, padded with zeros, so that records are compared and copied by words. A
*reference* says where: the first word << 32 | the length in bytes; 0 is the empty record, which takes no word.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from meander.kernel import kernel

Words = NDArray[np.int64]
Octets = NDArray[np.uint8]
Hashes = NDArray[np.uint64]

LENGTH = 0xFFFFFFFF
LOW_DIGIT, HIGH_DIGIT, DIGIT = np.uint64(48), np.uint64(56), np.uint64(255)


@kernel
def words_for(offsets: Words, valid: Octets) -> int:
    """How many words the records between these offsets take; `valid` may be empty: all are valid."""
    total = 0
    for i in range(offsets.size - 1):
        if valid.size == 0 or valid[i]:
            total += (offsets[i + 1] - offsets[i] + 7) >> 3
    return total


@kernel
def pack(offsets: Words, data: Octets, valid: Octets, heap: Words, octets: Octets, at: int, references: Words) -> int:
    """Write records from word `at` on; returns the word behind the last. `octets` is `heap` as bytes."""
    for i in range(references.size):
        start, length = offsets[i], offsets[i + 1] - offsets[i]
        if length == 0 or (valid.size > 0 and valid[i] == 0):
            references[i] = 0
            continue
        references[i] = (at << 32) | length
        behind = at + ((length + 7) >> 3)
        heap[behind - 1] = 0
        _copy(data, start, octets, at << 3, length)
        at = behind
    return at


@kernel
def lengths(references: Words, offsets: Words) -> None:
    """Add up the lengths of records, as offsets from 0."""
    offsets[0] = 0
    for i in range(references.size):
        offsets[i + 1] = offsets[i] + (references[i] & LENGTH)


@kernel
def unpack(references: Words, octets: Octets, offsets: Words, data: Octets) -> None:
    """Copy records to their offsets, one after the other."""
    for i in range(references.size):
        _copy(octets, (references[i] >> 32) << 3, data, offsets[i], references[i] & LENGTH)


@kernel
def words_before_end(references: Words, octets: Octets, back: int, words: Words) -> None:
    """Read the word that begins `back` bytes before the end of each record."""
    for i in range(words.size):
        at = np.uint64(((references[i] >> 32) << 3) + (references[i] & LENGTH) - back)
        word = np.uint64(0)
        for k in range(np.uint64(8)):
            word |= np.uint64(octets[at + k]) << (np.uint64(8) * k)
        words[i] = np.int64(word)


@kernel
def by_hash(hashes: Hashes, words: Words, sorted_hashes: Hashes, sorted_words: Words, rows: Words) -> None:
    """Fill keys by the high 16 bits of their hash, ascending, with the row that each came from.

    Two passes of 8 bits each, from the low ones to the high ones, so that the cache holds all ends that grow.
    """
    count = hashes.size
    low, high = np.zeros(257, np.int64), np.zeros(257, np.int64)
    for i in range(count):
        low[np.int64((hashes[i] >> LOW_DIGIT) & DIGIT) + 1] += 1
        high[np.int64(hashes[i] >> HIGH_DIGIT) + 1] += 1
    for k in range(256):
        low[k + 1] += low[k]
        high[k + 1] += high[k]
    once_hashes, once_words, once_rows = (
        np.empty(count, np.uint64),
        np.empty(count, np.int64),
        np.empty(count, np.int64),
    )
    for i in range(count):
        k = (hashes[i] >> LOW_DIGIT) & DIGIT
        at = low[k]
        low[k] = at + 1
        once_hashes[at], once_words[at], once_rows[at] = hashes[i], words[i], i
    for i in range(count):
        k = once_hashes[i] >> HIGH_DIGIT
        at = high[k]
        high[k] = at + 1
        sorted_hashes[at], sorted_words[at], rows[at] = once_hashes[i], once_words[i], once_rows[i]


@kernel
def by_bin(bins: NDArray[np.int32], count: int, order: Words) -> None:
    """Fill `order` with the rows by bin, ascending, and as they came within a bin."""
    at = np.zeros(count + 1, dtype=np.int64)
    for i in range(bins.size):
        at[bins[i] + 1] += 1
    for k in range(count):
        at[k + 1] += at[k]
    for i in range(bins.size):
        order[at[bins[i]]] = i
        at[bins[i]] += 1


def is_ascending(bins: NDArray[np.int32] | Words) -> bool:
    """Whether no bin is followed by a lower one."""
    return bool((bins[1:] >= bins[:-1]).all())


@kernel
def add(target: NDArray[np.float64], valid: NDArray[np.bool_], rows: Words, amounts: NDArray[np.float64]) -> None:
    """Add each amount at its row; `amounts` of size 1 is the same for all. Also for int64."""
    step = 0 if amounts.size == 1 else 1
    for i in range(rows.size):
        target[rows[i]] += amounts[i * step]
        valid[rows[i]] = True


@kernel
def lowest(target: NDArray[np.float64], valid: NDArray[np.bool_], rows: Words, amounts: NDArray[np.float64]) -> None:
    """Keep the lowest amount at each row; NaN is above all numbers. Also for int64."""
    for i in range(rows.size):
        row, amount = rows[i], amounts[i]
        # x != x is NaN.
        if not valid[row] or amount < target[row] or (target[row] != target[row]):
            target[row] = amount
            valid[row] = True


@kernel
def highest(target: NDArray[np.float64], valid: NDArray[np.bool_], rows: Words, amounts: NDArray[np.float64]) -> None:
    """Keep the highest amount at each row; NaN is above all numbers. Also for int64."""
    for i in range(rows.size):
        row, amount = rows[i], amounts[i]
        if not valid[row] or amount > target[row] or (amount != amount):
            target[row] = amount
            valid[row] = True


@kernel
def _copy(source: Octets, start: int, target: Octets, at: int, count: int) -> None:
    for k in range(np.uint64(count)):
        target[np.uint64(at) + k] = source[np.uint64(start) + k]
