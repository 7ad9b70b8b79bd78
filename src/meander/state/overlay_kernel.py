"""The row of each key of a batch: the inner loops.

An entry of `slots` is the low 32 bits of a key's hash << 32 | its row + 1, or 0. Its place is by the high 32 bits, so
that keys of one bin are close together.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from meander.kernel import kernel

Words = NDArray[np.int64]
Hashes = NDArray[np.uint64]
Bins = NDArray[np.int32]

LOW = 0xFFFFFFFF
MARK = -(1 << 32)
LOW_BITS = np.uint64(LOW)
HALF = np.uint64(32)


@kernel
def factorise(
    order: Words, wide: bool, bins: Bins, shift: int, hashes: Hashes, words: Words, heap: Words, slots: Words,
    my_bins: Bins, my_hashes: Hashes, my_words: Words, my_heap: Words, used: int, size: int, rows: Words,
) -> tuple[int, int]:  # fmt: skip
    """Fill the row of each key; a new key is appended to the rows and records.

    Where `order` is not empty, key i stands for key order[i] of `bins` and `rows`. Where `bins` is empty, a key's bin
    is the high half of its hash >> `shift`. Returns the rows and the words of heap in use afterwards.
    """
    for i in range(rows.size):
        j = order[i] if order.size else i
        mark = np.int64(hashes[i] & LOW_BITS) << 32
        slot = int((np.int64(hashes[i] >> HALF) * slots.size) >> 32)
        word = words[i]
        while True:
            entry = slots[slot]
            if entry == 0:
                slots[slot] = mark | (size + 1)
                if wide:
                    count = ((word & LOW) + 7) >> 3
                    source = word >> 32
                    for k in range(count):
                        my_heap[used + k] = heap[source + k]
                    word = (used << 32) | (word & LOW)
                    used += count
                my_words[size] = word
                my_bins[size] = bins[j] if bins.size else np.int32(np.int64(hashes[i] >> HALF) >> shift)
                my_hashes[size] = hashes[i]
                rows[j] = size
                size += 1
                break
            if entry & MARK == mark:
                row = (entry & LOW) - 1
                if (not wide and my_words[row] == word) or (wide and _is_same(my_heap, my_words[row], heap, word)):
                    rows[j] = row
                    break
            slot += 1
            if slot == slots.size:
                slot = 0
    return size, used


@kernel
def _is_same(heap: Words, mine: int, others: Words, other: int) -> bool:
    if mine & LOW != other & LOW:
        return False
    a, b = mine >> 32, other >> 32
    for k in range(((mine & LOW) + 7) >> 3):  # noqa: SIM110
        if heap[a + k] != others[b + k]:
            return False
    return True


@kernel
def enter(hashes: Hashes, slots: Words) -> None:
    """Enter rows 0, 1, .. into slots that are empty."""
    for row in range(hashes.size):
        slot = int((np.int64(hashes[row] >> HALF) * slots.size) >> 32)
        while slots[slot] != 0:
            slot += 1
            if slot == slots.size:
                slot = 0
        slots[slot] = (np.int64(hashes[row] & LOW_BITS) << 32) | (row + 1)
