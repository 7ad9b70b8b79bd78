"""Finding and reading rows of the base: the inner loops. The layout is described in `binfiles`.

A handle is bin << 32 | row. It is valid until the base changes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from meander.kernel import kernel

Words = NDArray[np.int64]
Octets = NDArray[np.uint8]
Hashes = NDArray[np.uint64]
Directory = NDArray[np.int64]

# Numba's cache notices changes of this file only, so it repeats the constants of binfiles.py; a test compares them.
HELD, ROWS, HIGH, GAP, CAPACITY, START, WORDS, HEAP, HEAP_WORDS, USED, GARBAGE, LOWEST = range(12)
BLOCK = 32
LOW = 0xFFFFFFFF
MARK = -(1 << 32)
HALF = np.uint64(32)
GROUP = 64


@kernel
def find(
    directory: Directory, arena: Words, octets: Octets, shape: Words, order: Words, hashes: Hashes, words: Words,
    heap: Words, handles: Words, values: NDArray[np.int64], present: Octets,
) -> None:  # fmt: skip
    """Fill the handle of each key, or -1, and unless `present` is empty the words and the marks of its row, or 0.

    A key is its word, or where keys are wide the reference to its record in `heap`; its hash is that of `slot_hash`.
    `order` may be empty: the keys are taken as they come.

    Nearly all of the time is memory latency. So each step runs for a whole group of keys, without branches between
    loads that could be mispredicted: the processor then waits for many loads at once.
    """
    width, marks, ordered, wide, bin_bits = shape[0], shape[1], shape[2] != 0, shape[3] != 0, np.uint64(shape[4])
    other_bits = HALF - bin_bits
    if arena.size == 0:
        handles[:] = -1
        values[:] = 0
        present[:] = 0
        return
    starts, sizes, slots = np.empty(GROUP, np.int64), np.empty(GROUP, np.int64), np.empty(GROUP, np.int64)
    entries, rows, stored = np.empty(GROUP, np.int64), np.empty(GROUP, np.int64), np.empty(GROUP, np.int64)
    first_words, in_bin = np.empty(GROUP, np.int64), np.empty(GROUP, np.int64)
    for begin in range(0, handles.size, GROUP):
        count = min(GROUP, handles.size - begin)
        for g in range(count):
            i = order[begin + g] if order.size else begin + g
            b = np.int64((hashes[i] >> HALF) >> other_bits)
            in_bin[g] = b
            capacity = directory[b, CAPACITY]
            starts[g] = directory[b, START]
            # A bin without capacity has one slot, which is read and not used.
            sizes[g] = capacity + capacity // 3 + 1
            slots[g] = (np.int64((hashes[i] << bin_bits) >> HALF) * sizes[g]) >> 32
            entries[g] = arena[starts[g] + slots[g]] if capacity else 0
        for g in range(count):
            i = order[begin + g] if order.size else begin + g
            mark = np.int64((hashes[i] << bin_bits) >> HALF) << 32
            start, size, slot, entry = starts[g], sizes[g], slots[g], entries[g]
            while entry != 0 and entry & MARK != mark:
                slot += 1
                if slot == size:
                    slot = 0
                entry = arena[start + slot]
            slots[g] = slot
            rows[g] = (entry & LOW) - 1
            entries[g] = start + size + rows[g] * width if entry != 0 else 0
        for g in range(count):
            stored[g] = arena[entries[g]]
        if wide:
            for g in range(count):
                first_words[g] = arena[directory[in_bin[g], HEAP] + (stored[g] >> 32)] if rows[g] >= 0 else 0
        for g in range(count):
            i = order[begin + g] if order.size else begin + g
            b, row, word = in_bin[g], rows[g], words[i]
            if row < 0:
                handles[i] = -1
            elif (not wide and stored[g] == word) or (
                wide
                and stored[g] & LOW == word & LOW
                and (word & LOW == 0 or first_words[g] == heap[word >> 32])
                and _is_same(arena, directory[b, HEAP], stored[g], heap, word)
            ):
                handles[i] = (b << 32) | row
            else:
                full = int(np.int64((hashes[i] << bin_bits) >> HALF) << 32)
                at = directory[b, HEAP]
                row = _next(arena, starts[g], sizes[g], slots[g], width, wide, at, full, word, heap)
                handles[i] = (b << 32) | row if row >= 0 else -1
        if present.size:
            for g in range(count):
                i = order[begin + g] if order.size else begin + g
                if handles[i] < 0:
                    for c in range(width - 1):
                        values[c, i] = 0
                    for m in range(marks):
                        present[i * marks + m] = 0
                    continue
                row = handles[i] & LOW
                rows_at = starts[g] + sizes[g]
                for c in range(width - 1):
                    values[c, i] = arena[rows_at + row * width + 1 + c]
                capacity = directory[in_bin[g], CAPACITY]
                marks_at = rows_at + capacity * width
                if ordered:
                    marks_at += capacity + (capacity + BLOCK - 1) // BLOCK
                for m in range(marks):
                    present[i * marks + m] = octets[(marks_at << 3) + row * marks + m]


@kernel
def _next(
    arena: Words, start: int, size: int, slot: int, width: int, wide: bool, at: int, mark: int, word: int, heap: Words
) -> int:
    """The row of a key that is not in this slot although its mark is there; or -1."""
    while True:
        slot += 1
        if slot == size:
            slot = 0
        entry = arena[start + slot]
        if entry == 0:
            return -1
        if entry & MARK == mark:
            row = (entry & LOW) - 1
            other = arena[start + size + row * width]
            if (not wide and other == word) or (wide and _is_same(arena, at, other, heap, word)):
                return int(row)


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
    """Return how many rows have an order below `upto`; fill their handles, as far as they fit."""
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
