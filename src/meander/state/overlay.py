"""The rows that one batch touches: their keys, and a column of plain values for each column of the table.

Arrays grow by doubling and never shrink: an overlay lives for one batch. The index of the keys is an array of slots, in
256 stripes: keys whose hashes begin with the same 8 bits, which are bits of the bin, share one. So keys of one bin are
close together, and each stripe has the slots that its keys need: a batch may have all its keys in one bin. A slot is
the low 32 bits of a key's hash << 32 | its row + 1, or 0. Its place in the stripe is by bits of the keyed hash alone.
"""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from meander.kernel import kernel
from meander.route.columns import valid_of
from meander.route.hashing import bits_of
from meander.route.keys import Keys
from meander.state.columns import (
    NO_OCTETS,
    Octets,
    Probe,
    conformed,
    fixed_column,
    flags_of,
    probe,
    record_column,
    texts_of,
    to_words,
    typed_of,
    unpacked,
)
from meander.state.records_kernel import by_hash, pack, words_before_end, words_for
from meander.state.slot_hash import Secret
from meander.state.spec import TableSpec, dtype_of

Words = NDArray[np.int64]
Hashes = NDArray[np.uint64]
Bins = NDArray[np.int32]

LOW = 0xFFFFFFFF
MARK = -(1 << 32)
LOW_BITS = np.uint64(LOW)
HALF = np.uint64(32)


Kind = TypeVar("Kind", bound=np.generic)

LEAST = 64
STRIPES, STRIPE_BITS = 256, 8
STRIPE, NEXT = np.uint64(64 - STRIPE_BITS), np.uint64(1)
GROUP = 64
SCATTERED = 4096
"""From this many keys on, keys are looked up in order of their hash, for the sake of the cache."""


@kernel
def factorise(
    order: Words, wide: bool, bin_bits: int, hashes: Hashes, words: Words, heap: Words, stripes: Words, slots: Words,
    held: Words, my_bins: Bins, my_hashes: Hashes, my_words: Words, my_heap: Words, used: int, size: int, rows: Words,
) -> tuple[int, int, int]:  # fmt: skip
    """Fill the row of each key; a new key is appended to the rows and records, and counted in its stripe.

    Where `order` is not empty, key i stands for key order[i] of `rows`. Stripe k has the slots from stripes[k] to
    stripes[k + 1]. Returns the rows and the words of heap in use afterwards, and a number without meaning, which keeps
    the compiler from removing loads that only warm the cache.
    """
    public_bits, other_bits = np.uint64(max(bin_bits, STRIPE_BITS)), np.uint64(32 - bin_bits)
    seen = np.int64(0)
    for begin in range(0, rows.size, GROUP):
        end = min(begin + GROUP, rows.size)
        # Sorted keys meet slots and rows in order, but come from all over the batch: these loads overlap.
        if order.size:
            for i in range(begin, end):
                seen ^= rows[order[i]]
            if wide and heap.size:
                for i in range(begin, end):
                    seen ^= heap[words[i] >> 32]
        for i in range(begin, end):
            j = order[i] if order.size else i
            mark = np.int64(hashes[i] & LOW_BITS) << 32
            stripe = hashes[i] >> STRIPE
            slot, stop = _home(hashes[i], public_bits, stripes), stripes[stripe + NEXT]
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
                    my_bins[size] = np.int32((hashes[i] >> HALF) >> other_bits)
                    my_hashes[size] = hashes[i]
                    held[stripe] += 1
                    rows[j] = size
                    size += 1
                    break
                if entry & MARK == mark:
                    row = (entry & LOW) - 1
                    if (not wide and my_words[row] == word) or (wide and _is_same(my_heap, my_words[row], heap, word)):
                        rows[j] = row
                        break
                slot += 1
                if slot == stop:
                    slot = stripes[stripe]
    return size, used, int(seen)


@kernel
def _home(hash_: np.uint64, public_bits: np.uint64, stripes: Words) -> int:
    """The slot where the search for a key begins."""
    stripe = hash_ >> STRIPE
    size = stripes[stripe + NEXT] - stripes[stripe]
    return int(stripes[stripe] + ((np.int64((hash_ << public_bits) >> HALF) * size) >> 32))


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
def tally(hashes: Hashes, counts: Words) -> None:
    """Add to each stripe's count how many of these hashes are in it."""
    for i in range(hashes.size):
        counts[hashes[i] >> STRIPE] += 1


@kernel
def enter(hashes: Hashes, bin_bits: int, stripes: Words, slots: Words) -> None:
    """Enter rows 0, 1, .. into slots that are empty."""
    public_bits = np.uint64(max(bin_bits, STRIPE_BITS))
    for row in range(hashes.size):
        stripe = hashes[row] >> STRIPE
        slot = _home(hashes[row], public_bits, stripes)
        while slots[slot] != 0:
            slot += 1
            if slot == stripes[stripe + NEXT]:
                slot = stripes[stripe]
        slots[slot] = (np.int64(hashes[row] & LOW_BITS) << 32) | (row + 1)


def grown(array: NDArray[Kind], used: int, wanted: int) -> NDArray[Kind]:
    """The array, or a longer one with the same first `used` values and zeros behind, so that `wanted` fit."""
    if wanted <= array.size:
        return array
    longer = np.zeros(max(LEAST, wanted, 2 * used), array.dtype)
    longer[:used] = array[:used]
    return longer


class KeyRows:
    """The distinct keys of a batch, numbered as they came."""

    def __init__(self, spec: TableSpec, bins: int, secret: Secret) -> None:
        self.spec, self.count, self.size, self._secret = spec, bins, 0, secret
        self.bins, self.hashes = np.empty(0, np.int32), np.empty(0, np.uint64)
        self.words, self.heap = np.empty(0, np.int64), np.empty(0, np.int64)
        self.slots, self._used = np.empty(0, np.int64), 0
        self._stripes, self._held = np.zeros(STRIPES + 1, np.int64), np.zeros(STRIPES, np.int64)

    def touch(self, keys: Keys) -> Words:
        """The row of each key; new keys get new rows."""
        rows = np.empty(len(keys), np.int64)
        if not len(keys):
            return rows
        sought = probe(keys, self.count, self._secret)
        order, hashes, words = np.empty(0, np.int64), sought.hashes, sought.words
        if rows.size >= SCATTERED:
            order, hashes, words = np.empty_like(rows), np.empty_like(hashes), np.empty_like(words)
            by_hash(sought.hashes, sought.words, hashes, words, order)
        self._make_room(sought)
        self.size, self._used, _ = factorise(
            order, self.spec.key.wide, bits_of(self.count), hashes, words, sought.heap, self._stripes, self.slots,
            self._held, self.bins, self.hashes, self.words, self.heap, self._used, self.size, rows,
        )  # fmt: skip
        return rows

    def _make_room(self, sought: Probe) -> None:
        """Have space for all of these keys, and slots of which a third is empty in every stripe."""
        most = self.size + sought.hashes.size
        self.bins, self.hashes = grown(self.bins, self.size, most), grown(self.hashes, self.size, most)
        self.words = grown(self.words, self.size, most)
        self.heap = grown(self.heap, self._used, self._used + sought.heap.size)
        wanted = self._held.copy()
        tally(sought.hashes, wanted)
        if (3 * wanted > 2 * np.diff(self._stripes)).any():
            # The mean on top spares small stripes from growing at every touch.
            sizes = 2 * wanted + most // (4 * STRIPES) + 4
            self._stripes = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
            self.slots = np.zeros(int(self._stripes[-1]), np.int64)
            enter(self.hashes[: self.size], bits_of(self.count), self._stripes, self.slots)

    def keys(self, rows: Words) -> Keys:
        """The keys of these rows, to be decoded: all their hashes are those of the index."""
        words, hashes = self.words[rows], self.hashes[rows]
        if not self.spec.key.wide:
            return Keys(self.spec.key, words, None, None, hashes)
        offsets, data = unpacked(words, self.heap)
        return Keys(self.spec.key, None, offsets, data, hashes)

    def order_words(self, rows: Words) -> Words:
        """The order column of these rows, which is a column of the key, as words."""
        names, types = self.spec.key.names, self.spec.key.types
        at = names.index(str(self.spec.order))
        if not self.spec.key.wide:
            return np.asarray(self.words[rows])
        if any(dtype_of(type_) is None for type_ in types[at:]):
            return to_words(typed_of(self.spec.key.decode(self.keys(rows))[at]))
        words = np.empty(rows.size, np.int64)
        words_before_end(self.words[rows], self.heap.view(np.uint8), 8 * (len(names) - at), words)
        return words


class FixedColumn:
    """A value column of fixed width."""

    def __init__(self, name: str, type_: pa.DataType) -> None:
        self.name, self.type = name, type_
        dtype = dtype_of(type_)
        assert dtype is not None
        self.values: NDArray[Any] = np.empty(0, dtype)
        self.valid = np.empty(0, np.bool_)

    def grow(self, used: int, wanted: int) -> None:
        """Have so many rows; new ones are null."""
        self.values, self.valid = grown(self.values, used, wanted), grown(self.valid, used, wanted)

    def get(self, rows: Words, valid: NDArray[np.bool_]) -> pa.Array:
        """The values of these rows, null where they or `valid` say so."""
        return fixed_column(self.values[rows], valid & self.valid[rows], self.type)

    def set(self, rows: Words, values: pa.Array) -> None:
        """Replace the values of these rows."""
        column = conformed(values, self.type, self.name)
        self.values[rows], self.valid[rows] = typed_of(column), flags_of(column)


class RecordColumn:
    """A value column of texts, binaries or decimals: references into a heap that only grows."""

    def __init__(self, name: str, type_: pa.DataType) -> None:
        self.name, self.type = name, type_
        self.references, self.valid = np.empty(0, np.int64), np.empty(0, np.bool_)
        self.heap, self._used = np.empty(0, np.int64), 0

    def grow(self, used: int, wanted: int) -> None:
        """Have so many rows; new ones are null."""
        self.references, self.valid = grown(self.references, used, wanted), grown(self.valid, used, wanted)

    def get(self, rows: Words, valid: NDArray[np.bool_]) -> pa.Array:
        """The values of these rows, null where they or `valid` say so."""
        shown = valid & self.valid[rows]
        return record_column(*unpacked(self.references[rows] * shown, self.heap), shown, self.type)

    def set(self, rows: Words, values: pa.Array) -> None:
        """Replace the values of these rows."""
        column = conformed(values, self.type, self.name)
        self.references[rows] = self.put(*texts_of(column), valid_of(column))
        self.valid[rows] = flags_of(column)

    def put(self, offsets: Words, data: Octets, valid: Octets = NO_OCTETS) -> Words:
        """Write records; returns the references to them."""
        behind = self._used + words_for(offsets, valid)
        self.heap = grown(self.heap, self._used, behind)
        references = np.empty(offsets.size - 1, np.int64)
        self._used = pack(offsets, data, valid, self.heap, self.heap.view(np.uint8), self._used, references)
        return references
