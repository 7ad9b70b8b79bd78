"""Finding and reading rows of the base: the inner loops. The layout is described in `layout`.

A handle is bin << 32 | row. It is good until the base changes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from meander.kernel import kernel

Words = NDArray[np.int64]
Octets = NDArray[np.uint8]
Hashes = NDArray[np.uint64]
Bins = NDArray[np.int32]
Directory = NDArray[np.int64]

# Numba's cache sees a change in this file only, so what layout.py says stands here again; a test compares them.
HELD, ROWS, HIGH, GAP, CAPACITY, START, WORDS, HEAP, HEAP_WORDS, USED, GARBAGE, LOWEST = range(12)
BLOCK = 32
LOW = 0xFFFFFFFF
MARK = -(1 << 32)
LOW_BITS = np.uint64(LOW)


@kernel
def find(
    directory: Directory, arena: Words, shape: Words, order: Words, bins: Bins, hashes: Hashes, words: Words,
    heap: Words, handles: Words,
) -> None:  # fmt: skip
    """Fill the handle of each key, or -1. `order` may be empty: the keys are taken as they come.

    A key is its word, or where keys are wide the reference to its record in `heap`.
    """
    width, wide = shape[0], shape[3] != 0
    for n in range(handles.size):
        i = order[n] if order.size else n
        handles[i] = -1
        b = np.int64(bins[i])
        capacity = directory[b, CAPACITY]
        if capacity == 0:
            continue
        start = directory[b, START]
        size = capacity + capacity // 3 + 1
        rows_at = start + size
        mark = np.int64(hashes[i] & LOW_BITS)
        slot = (mark * size) >> 32
        mark <<= 32
        while True:
            entry = arena[start + slot]
            if entry == 0:
                break
            if entry & MARK == mark:
                row = (entry & LOW) - 1
                word = arena[rows_at + row * width]
                if (not wide and word == words[i]) or (
                    wide and _is_same(arena, directory[b, HEAP], word, heap, words[i])
                ):
                    handles[i] = (b << 32) | row
                    break
            slot += 1
            if slot == size:
                slot = 0


@kernel
def _is_same(arena: Words, at: int, mine: int, heap: Words, other: int) -> bool:
    if mine & LOW != other & LOW:
        return False
    a, b = at + (mine >> 32), other >> 32
    for k in range(((mine & LOW) + 7) >> 3):  # noqa: SIM110
        if arena[a + k] != heap[b + k]:
            return False
    return True


@kernel
def gather(
    directory: Directory, arena: Words, octets: Octets, shape: Words, handles: Words, column: int, words: Words,
    valid: NDArray[np.bool_],
) -> None:  # fmt: skip
    """Read a value of each row as a word, 0 where it is null or the handle is -1."""
    width, marks, ordered = shape[0], shape[1], shape[2]
    byte, bit = (column + 1) >> 3, (column + 1) & 7
    for i in range(handles.size):
        words[i] = 0
        valid[i] = False
        if handles[i] >= 0:
            b, row = handles[i] >> 32, handles[i] & LOW
            capacity = directory[b, CAPACITY]
            rows_at = directory[b, START] + capacity + capacity // 3 + 1
            marks_at = rows_at + capacity * width
            if ordered:
                marks_at += capacity + (capacity + BLOCK - 1) // BLOCK
            if (octets[(marks_at << 3) + row * marks + byte] >> bit) & 1:
                words[i] = arena[rows_at + row * width + 1 + column]
                valid[i] = True


@kernel
def key_words(directory: Directory, arena: Words, shape: Words, handles: Words, words: Words) -> None:
    """Read the key of each row: its word, or its reference within the bin's heap."""
    width = shape[0]
    for i in range(handles.size):
        b, row = handles[i] >> 32, handles[i] & LOW
        capacity = directory[b, CAPACITY]
        words[i] = arena[directory[b, START] + capacity + capacity // 3 + 1 + row * width]


@kernel
def records(
    directory: Directory, octets: Octets, handles: Words, references: Words, offsets: Words, data: Octets
) -> None:
    """Copy the records that references of these rows' bins point to, to their offsets."""
    for i in range(handles.size):
        length = references[i] & LOW
        if length:
            at = np.uint64((directory[handles[i] >> 32, HEAP] + (references[i] >> 32)) << 3)
            target = np.uint64(offsets[i])
            for k in range(np.uint64(length)):
                data[target + k] = octets[at + k]


@kernel
def handles_in(directory: Directory, octets: Octets, shape: Words, bins: Words, handles: Words) -> None:
    """Fill the handles of all rows of these bins, bin after bin."""
    width, marks, ordered = shape[0], shape[1], shape[2]
    n = 0
    for k in range(bins.size):
        b = bins[k]
        capacity = directory[b, CAPACITY]
        marks_at = directory[b, START] + capacity + capacity // 3 + 1 + capacity * width
        if ordered:
            marks_at += capacity + (capacity + BLOCK - 1) // BLOCK
        for row in range(directory[b, HIGH]):
            if octets[(marks_at << 3) + row * marks] & 1:
                handles[n] = (b << 32) | row
                n += 1


@kernel
def due(directory: Directory, arena: Words, shape: Words, upto: int, handles: Words) -> int:
    """Return how many rows have an order below `upto`; fill their handles, as far as there is room."""
    width, n = shape[0], 0
    for b in range(directory.shape[0]):
        if directory[b, ROWS] == 0 or directory[b, LOWEST] >= upto:
            continue
        capacity, high = directory[b, CAPACITY], directory[b, HIGH]
        order_at = directory[b, START] + capacity + capacity // 3 + 1 + capacity * width
        blocks_at = order_at + capacity
        for block in range((high + BLOCK - 1) // BLOCK):
            if arena[blocks_at + block] >= upto:
                continue
            for row in range(block * BLOCK, min(high, (block + 1) * BLOCK)):
                if arena[order_at + row] < upto:
                    if n < handles.size:
                        handles[n] = (b << 32) | row
                    n += 1
    return n
