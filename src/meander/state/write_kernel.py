"""Changing the base: the inner loops. The layout is described in `binfiles`.

`needs` computes the space that `write` takes, so that `write` itself allocates nothing; `reshape` and `reheap` move a
bin's rows or heap to another extent.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from meander.kernel import kernel

Words = NDArray[np.int64]
Octets = NDArray[np.uint8]
Hashes = NDArray[np.uint64]
Directory = NDArray[np.int64]
Matrix = NDArray[np.int64]
Flags = NDArray[np.bool_]

# Numba's cache notices changes of this file only, so it repeats the constants of binfiles.py; a test compares them.
HELD, ROWS, HIGH, GAP, CAPACITY, START, WORDS, HEAP, HEAP_WORDS, USED, GARBAGE, LOWEST = range(12)
BLOCK = 32
NEVER = np.iinfo(np.int64).max
LOW = 0xFFFFFFFF
MARK = -(1 << 32)
HALF = np.uint64(32)
GROUP = 64
NO_ROOM = -1


@kernel
def _index_size(capacity: int) -> int:
    return capacity + capacity // 3 + 1


@kernel
def _words(reference: int) -> int:
    return ((reference & LOW) + 7) >> 3


@kernel
def needs(
    directory: Directory, arena: Words, shape: Words, records: Words, runs: Words, handles: Words, deleted: Flags,
    words: Words, values: Matrix, rows: Words, heap_words: Words,
) -> None:  # fmt: skip
    """Fill, for each run of rows of one bin, how many rows are new and how many words of heap they take.

    Rows runs[k]..runs[k + 1] - 1 of the delta are of one bin.
    """
    width, wide = shape[0], shape[3] != 0
    for k in range(runs.size - 1):
        rows[k] = 0
        heap_words[k] = 0
        for i in range(runs[k], runs[k + 1]):
            if deleted[i]:
                continue
            at = -1
            if handles[i] < 0:
                rows[k] += 1
                if wide:
                    heap_words[k] += _words(words[i])
            elif records.size:
                b, row = handles[i] >> 32, handles[i] & LOW
                capacity = directory[b, CAPACITY]
                at = directory[b, START] + _index_size(capacity) + row * width + 1
            for r in range(records.size):
                size = _words(values[records[r], i])
                if at < 0 or size > _words(arena[at + records[r]]):
                    heap_words[k] += size


@kernel
def write(
    directory: Directory, arena: Words, octets: Octets, shape: Words, records: Words, runs: Words, bins: Words,
    hashes: Hashes, words: Words, heap: Words, handles: Words, deleted: Flags, values: Matrix, present: Octets,
    orders: Words,
) -> tuple[int, int]:  # fmt: skip
    """Write rows, bin after bin: update known rows, insert new ones, then remove deleted ones.

    `present` has the bytes of marks of each row. All space is reserved beforehand. Returns how many rows could not be
    written or removed, which only a delta has that names a key twice; and a number without meaning, which keeps the
    compiler from removing loads that only warm the cache.
    """
    width, marks, ordered, wide = shape[0], shape[1], shape[2] != 0, shape[3] != 0
    bin_bits, seen, refused = np.uint64(shape[4]), np.int64(0), 0
    for k in range(runs.size - 1):
        b = bins[k]
        capacity = directory[b, CAPACITY]
        if capacity == 0:
            # The bin is empty and stays empty: the delta deletes rows that never existed.
            continue
        start = directory[b, START]
        rows_at = start + _index_size(capacity)
        order_at = rows_at + capacity * width
        marks_at = order_at
        if ordered:
            marks_at += capacity + (capacity + BLOCK - 1) // BLOCK
        some_deleted = False
        for begin in range(runs[k], runs[k + 1], GROUP):
            end = min(begin + GROUP, runs[k + 1])
            # Loads that miss the cache overlap, stores hardly do.
            for i in range(begin, end):
                seen ^= arena[rows_at + ((handles[i] & LOW) * width if handles[i] >= 0 else 0)]
            for i in range(begin, end):
                if deleted[i]:
                    some_deleted = True
                    continue
                is_new = handles[i] < 0
                if is_new:
                    row = directory[b, GAP] - 1
                    if row >= 0:
                        directory[b, GAP] = arena[rows_at + row * width]
                    else:
                        row = directory[b, HIGH]
                        directory[b, HIGH] += 1
                        if ordered:
                            arena[order_at + row] = NEVER
                            if row % BLOCK == 0:
                                arena[order_at + capacity + row // BLOCK] = NEVER
                    directory[b, ROWS] += 1
                    _enter(arena, start, capacity, hashes[i], bin_bits, row)
                    word = words[i]
                    if wide:
                        word = _append(directory, arena, b, heap, word)
                        if word == NO_ROOM:
                            refused, word = refused + 1, 0
                    arena[rows_at + row * width] = word
                else:
                    row = handles[i] & LOW
                at = rows_at + row * width + 1
                r = 0
                for c in range(width - 1):
                    word = values[c, i]
                    if r < records.size and records[r] == c:
                        r += 1
                        word = _replace(directory, arena, b, 0 if is_new else arena[at + c], heap, word)
                        if word == NO_ROOM:
                            refused, word = refused + 1, 0
                    arena[at + c] = word
                for m in range(marks):
                    # Most marks are unchanged, and an unchanged page need not go to the disk.
                    if octets[(marks_at << 3) + row * marks + m] != present[i * marks + m]:
                        octets[(marks_at << 3) + row * marks + m] = present[i * marks + m]
                if ordered:
                    _reorder(directory, arena, b, order_at, capacity, row, orders[i])
        if some_deleted:
            for i in range(runs[k], runs[k + 1]):
                if deleted[i] and handles[i] >= 0:
                    row = handles[i] & LOW
                    if octets[(marks_at << 3) + row * marks] & 1 == 0:
                        refused += 1
                        continue
                    _leave(arena, start, capacity, hashes[i], bin_bits, row)
                    at = rows_at + row * width
                    if wide:
                        directory[b, GARBAGE] += _words(arena[at])
                    for r in range(records.size):
                        directory[b, GARBAGE] += _words(arena[at + 1 + records[r]])
                        arena[at + 1 + records[r]] = 0
                    arena[at] = directory[b, GAP]
                    directory[b, GAP] = row + 1
                    directory[b, ROWS] -= 1
                    octets[(marks_at << 3) + row * marks] = 0
                    if ordered:
                        _reorder(directory, arena, b, order_at, capacity, row, np.int64(NEVER))
            if directory[b, ROWS] == 0:
                directory[b, HIGH], directory[b, GAP] = 0, 0
                directory[b, USED], directory[b, GARBAGE] = 0, 0
        if ordered:
            lowest = NEVER
            for block in range((directory[b, HIGH] + BLOCK - 1) // BLOCK):
                lowest = min(lowest, arena[order_at + capacity + block])
            directory[b, LOWEST] = lowest
    return refused, int(seen)


@kernel
def _enter(arena: Words, start: int, capacity: int, hash_: np.uint64, bin_bits: np.uint64, row: int) -> None:
    mark = np.int64((hash_ << bin_bits) >> HALF)
    size = _index_size(capacity)
    slot = int((mark * size) >> 32)
    while arena[start + slot] != 0:
        slot += 1
        if slot == size:
            slot = 0
    arena[start + slot] = (mark << 32) | (row + 1)


@kernel
def _leave(arena: Words, start: int, capacity: int, hash_: np.uint64, bin_bits: np.uint64, row: int) -> None:
    mark = np.int64((hash_ << bin_bits) >> HALF)
    size = _index_size(capacity)
    hole = int((mark * size) >> 32)
    entry = (mark << 32) | (row + 1)
    while arena[start + hole] != entry:
        hole += 1
        if hole == size:
            hole = 0
    # Move back the entries that a hole before them would make unreachable.
    slot = hole
    while True:
        slot += 1
        if slot == size:
            slot = 0
        entry = arena[start + slot]
        if entry == 0:
            break
        home = (((entry >> 32) & LOW) * size) >> 32
        behind = slot - home if slot >= home else slot - home + size
        gap = slot - hole if slot >= hole else slot - hole + size
        if behind >= gap:
            arena[start + hole] = entry
            hole = slot
    arena[start + hole] = 0


@kernel
def _append(directory: Directory, arena: Words, b: int, heap: Words, reference: int) -> int:
    size = _words(reference)
    if size == 0:
        return 0
    used = directory[b, USED]
    if used + size > directory[b, HEAP_WORDS]:
        return NO_ROOM
    target, source = directory[b, HEAP] + used, reference >> 32
    for k in range(size):
        arena[target + k] = heap[source + k]
    directory[b, USED] = used + size
    return int((used << 32) | (reference & LOW))


@kernel
def _replace(directory: Directory, arena: Words, b: int, old: int, heap: Words, reference: int) -> int:
    before, size = _words(old), _words(reference)
    if size > before:
        directory[b, GARBAGE] += before
        return _append(directory, arena, b, heap, reference)
    directory[b, GARBAGE] += before - size
    if size == 0:
        return 0
    target, source = directory[b, HEAP] + (old >> 32), reference >> 32
    for k in range(size):
        arena[target + k] = heap[source + k]
    return int((old & MARK) | (reference & LOW))


@kernel
def _reorder(
    directory: Directory, arena: Words, b: int, order_at: int, capacity: int, row: int, order: int | np.int64
) -> None:
    before = arena[order_at + row]
    arena[order_at + row] = order
    at = order_at + capacity + row // BLOCK
    if order <= arena[at]:
        arena[at] = order
    elif before == arena[at]:
        first = row // BLOCK * BLOCK
        lowest = order
        for other in range(first, min(first + BLOCK, directory[b, HIGH])):
            lowest = min(lowest, arena[order_at + other])
        arena[at] = lowest


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
