"""Moving a bin's rows or heap to another extent: the inner loops. The layout is described in `layout`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from meander.kernel import kernel

Words = NDArray[np.int64]
Octets = NDArray[np.uint8]
Directory = NDArray[np.int64]

# Numba's cache notices changes of this file only, so it repeats the constants of layout.py; a test compares them.
HELD, ROWS, HIGH, GAP, CAPACITY, START, WORDS, HEAP, HEAP_WORDS, USED, GARBAGE, LOWEST = range(12)
BLOCK = 32
NEVER = np.iinfo(np.int64).max
LOW = 0xFFFFFFFF


@kernel
def _index_size(capacity: int) -> int:
    return capacity + capacity // 3 + 1


@kernel
def reshape(
    directory: Directory, arena: Words, octets: Octets, shape: Words, bins: Words, capacities: Words, starts: Words,
    sizes: Words, dense: bool,
) -> None:  # fmt: skip
    """Move each bin's rows to an extent for another number of rows.

    `dense` leaves no gaps, which changes the numbers of the rows; without it the new extent must hold all gaps too.
    """
    width, marks, ordered = shape[0], shape[1], shape[2] != 0
    for k in range(bins.size):
        b, new, target = bins[k], capacities[k], starts[k]
        old, source, high = directory[b, CAPACITY], directory[b, START], directory[b, HIGH]
        for slot in range(_index_size(new)):
            arena[target + slot] = 0
        new_rows, old_rows = target + _index_size(new), source + _index_size(old)
        new_order, old_order = new_rows + new * width, old_rows + old * width
        new_marks, old_marks = new_order, old_order
        if ordered:
            new_marks += new + (new + BLOCK - 1) // BLOCK
            old_marks += old + (old + BLOCK - 1) // BLOCK
        new_marks, old_marks = new_marks << 3, old_marks << 3
        moved = np.empty(high if dense else 0, dtype=np.int64)
        behind = high
        if dense:
            behind = 0
            for row in range(high):
                if octets[old_marks + row * marks] & 1:
                    moved[row] = behind
                    for c in range(width):
                        arena[new_rows + behind * width + c] = arena[old_rows + row * width + c]
                    for m in range(marks):
                        octets[new_marks + behind * marks + m] = octets[old_marks + row * marks + m]
                    if ordered:
                        arena[new_order + behind] = arena[old_order + row]
                    behind += 1
            directory[b, HIGH], directory[b, GAP] = behind, 0
        else:
            for c in range(high * width):
                arena[new_rows + c] = arena[old_rows + c]
            for m in range(high * marks):
                octets[new_marks + m] = octets[old_marks + m]
            if ordered:
                for row in range(high):
                    arena[new_order + row] = arena[old_order + row]
        if ordered:
            for block in range((behind + BLOCK - 1) // BLOCK):
                lowest = NEVER
                for row in range(block * BLOCK, min(behind, (block + 1) * BLOCK)):
                    lowest = min(lowest, arena[new_order + row])
                arena[new_order + new + block] = lowest
        size = _index_size(new)
        for slot in range(_index_size(old) if old else 0):
            entry = arena[source + slot]
            if entry != 0:
                mark = (entry >> 32) & LOW
                if dense:
                    entry = (mark << 32) | (moved[(entry & LOW) - 1] + 1)
                to = (mark * size) >> 32
                while arena[target + to] != 0:
                    to += 1
                    if to == size:
                        to = 0
                arena[target + to] = entry
        directory[b, CAPACITY], directory[b, START], directory[b, WORDS] = new, target, sizes[k]


@kernel
def reheap(
    directory: Directory, arena: Words, octets: Octets, shape: Words, records: Words, bins: Words, starts: Words,
    sizes: Words,
) -> None:  # fmt: skip
    """Move each bin's heap to another extent, without its garbage."""
    width, marks, ordered, wide = shape[0], shape[1], shape[2] != 0, shape[3] != 0
    for k in range(bins.size):
        b, target, source = bins[k], starts[k], directory[bins[k], HEAP]
        if directory[b, GARBAGE] == 0:
            for w in range(directory[b, USED]):
                arena[target + w] = arena[source + w]
        else:
            capacity = directory[b, CAPACITY]
            rows_at = directory[b, START] + _index_size(capacity)
            marks_at = rows_at + capacity * width
            if ordered:
                marks_at += capacity + (capacity + BLOCK - 1) // BLOCK
            used = 0
            for row in range(directory[b, HIGH]):
                if octets[(marks_at << 3) + row * marks] & 1:
                    for r in range(-1 if wide else 0, records.size):
                        at = rows_at + row * width
                        if r >= 0:
                            at += 1 + records[r]
                        reference = arena[at]
                        size = ((reference & LOW) + 7) >> 3
                        if size:
                            begin = source + (reference >> 32)
                            for w in range(size):
                                arena[target + used + w] = arena[begin + w]
                            arena[at] = (used << 32) | (reference & LOW)
                            used += size
            directory[b, USED], directory[b, GARBAGE] = used, 0
        directory[b, HEAP], directory[b, HEAP_WORDS] = target, sizes[k]
