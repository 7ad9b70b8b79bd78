"""The files of one table: which bins are held, and the extents that each of them has.

Two memory-mapped files: `<table>.directory`, where each bin's rows lie, and `<table>.arena`, the rows. Any process may
open them, one at a time may change them. A bin has two extents. The first holds, one after the other, for `capacity`
rows:

    index     capacity * 4/3 + 1 entries: 32 bits of the key's keyed hash << 32 | row + 1, or 0; linear probing, in
              order of these bits: keys that come by hash go through it from left to right
    rows      `width` words each: the key's word or reference, and one word or reference for each value
    order     one word each, and the lowest word of each 32 rows (only in tables that have an order)
    marks     `marks` bytes each: bit 0 says that the row is there, bit c + 1 that value c is not null

The second is the heap: the records that references of this bin point to. A row that is deleted leaves a gap that the
next new row fills; the gaps are chained by the word where a key would be.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from meander.errors import InvalidOption, NoSpace, TooLarge
from meander.route.hashing import bits_of, checksum
from meander.state import write_kernel
from meander.state.extents import GRANULE, LENGTH, Extents, create, identity, mapped
from meander.state.slot_hash import fresh_secret
from meander.state.spec import TableSpec, is_record

Words = NDArray[np.int64]

HELD, ROWS, HIGH, GAP, CAPACITY, START, WORDS, HEAP, HEAP_WORDS, USED, GARBAGE, LOWEST = range(12)
"""A bin in the directory: whether it is held; its rows, the row behind the last, the first gap + 1 and the
capacity in rows; its extent and its words; its heap, its words, the words in use and those without a reference; and
the lowest value of the order column."""

FIELDS = 12
BLOCK = 32
NEVER = np.iinfo(np.int64).max

FIRST_ROWS, FIRST_HEAP = 4.0, 8.0
GROWTH = 1.5
GOLDEN = 0.6180339887498949


HEADER = 16
FORMAT, FINGERPRINT, SECRET, SPACE = 0, 1, 2, 4
"""Words of the directory's header: its format, the table's fingerprint, the first word of the secret that its slots
are by, and the first word of the arena's extents."""

VERSION = 0x4D45414E44455202

MOST_HEAP = (1 << 31) - 1
"""The words of a bin's heap that a reference can reach."""

LOOSE = 4
"""A bin with more than this many times the capacity it needs moves to a smaller extent."""


@dataclass(frozen=True)
class Layout:
    """The shape of a table's rows."""

    width: int
    marks: int
    ordered: bool
    wide: bool
    bin_bits: int
    records: tuple[int, ...]

    @classmethod
    def of(cls, spec: TableSpec, bins: int) -> Layout:
        """The layout of a table in so many bins."""
        records = tuple(at for at, (_, type_) in enumerate(spec.values) if is_record(type_))
        values = len(spec.values)
        return cls(1 + values, (values + 8) // 8, spec.order is not None, spec.key.wide, bits_of(bins), records)

    @property
    def shape(self) -> Words:
        """Width, bytes of marks, whether there is an order, whether keys are records, the bits that choose a bin."""
        return np.array([self.width, self.marks, self.ordered, self.wide, self.bin_bits], dtype=np.int64)

    def extent_words(self, capacity: Words) -> Words:
        """The words of an extent for so many rows; none for no rows."""
        index = capacity + capacity // 3 + 1
        order = capacity + -(-capacity // BLOCK) if self.ordered else 0
        words = index + capacity * self.width + order + -(-capacity * self.marks // 8)
        return np.where(capacity > 0, granules(words), 0)


def granules(words: Words) -> Words:
    """Round up to whole granules."""
    return -(-words // GRANULE) * GRANULE


def room(bins: Words, wanted: Words, first: float) -> Words:
    """The smallest step of each bin's ladder that holds the wanted size; 0 where that is 0.

    A ladder's steps are a factor apart, and each bin's begins elsewhere, so that bins of equal size do not all grow in
    the same batch.
    """
    phase = bins * GOLDEN % 1.0
    base = first * GROWTH**phase
    step = np.ceil(np.log(np.maximum(wanted / base, 1.0)) / np.log(GROWTH))
    size = np.ceil(base * GROWTH**step).astype(np.int64)
    short = size < wanted
    size[short] = np.ceil(base[short] * GROWTH ** (step[short] + 1)).astype(np.int64)
    return np.where(wanted > 0, size, 0)


class BinFiles:
    """The bins of one table on the disk, and their space. `Base` reads and writes their contents.

    `grown` counts the bins that have moved to other extents since it was last set to 0. `is_new` says that the files
    were missing, or belonged to another table, when they were opened.
    """

    def __init__(self, path: Path, spec: TableSpec, bins: int) -> None:
        self.path, self.spec, self.bins = path, spec, bins
        self.layout = Layout.of(spec, bins)
        self.grown = 0
        self.shape = self.layout.shape
        self.records = np.array(self.layout.records, dtype=np.int64)
        self.is_new = False
        header, self.directory = self._opened()
        self.secret = header[SECRET:SPACE].view(np.uint64)
        self.extents = Extents(path / f"{spec.name}.arena", header[SPACE:])
        self.refresh()

    def close(self) -> None:
        """Unmap the files. Applied changes stay."""
        self.extents.close()
        self.directory = np.empty((0, FIELDS), np.int64)

    @property
    def is_current(self) -> bool:
        """Whether the files that are mapped are those in the directory."""
        same = identity(self._directory_path) == self._file
        return same and self.extents.file in ((0, 0), identity(self.extents.path))

    def install(self, bin_ids: Sequence[int] | Words) -> None:
        """Hold these bins, without a row in them."""
        wanted = self.checked(bin_ids)
        self.release(wanted[self.directory[wanted, HELD] != 0])
        self.directory[wanted, HELD] = 1

    def release(self, bin_ids: Sequence[int] | Words) -> None:
        """Release these bins, and return their space to the disk."""
        gone = self.checked(bin_ids)
        if not gone.size:
            return
        self.refresh()
        mine = self.directory[gone]
        self.directory[gone] = 0
        starts, sizes = np.append(mine[:, START], mine[:, HEAP]), np.append(mine[:, WORDS], mine[:, HEAP_WORDS])
        if sizes.any():
            self.extents.free(starts, sizes, for_good=True)

    def clear(self) -> None:
        """Release all bins, and return all space to the disk."""
        self.directory[:] = 0
        self.extents.clear()

    @property
    def held(self) -> NDArray[np.bool_]:
        """Which bins are held."""
        return np.asarray(self.directory[:, HELD] != 0)

    def rows_of(self, bin_ids: Sequence[int] | Words) -> Words:
        """The number of rows in each of these bins."""
        return np.asarray(self.directory[self.checked(bin_ids), ROWS])

    def bytes_of(self, bin_ids: Sequence[int] | Words) -> Words:
        """The bytes that each of these bins takes in the arena."""
        mine = self.directory[self.checked(bin_ids)]
        return (mine[:, WORDS] + mine[:, HEAP_WORDS]) * 8

    def make_room(self, bins: Words, rows: Words, heap_words: Words) -> None:
        """Move the bins that lack space for this many more rows and words to larger extents."""
        mine = self.directory[bins]
        wanted = mine[:, ROWS] + rows
        tight = wanted > mine[:, CAPACITY]
        live = mine[:, USED] - mine[:, GARBAGE] + heap_words
        if (live > MOST_HEAP).any():
            raise TooLarge(
                f"bin {bins[np.argmax(live)]} of table {self.spec.name!r} would hold over {MOST_HEAP * 8 >> 30} GB "
                "of texts and keys; start the query with more bins"
            )
        # The phase spreads the compaction of bins whose values change alike over several batches.
        much = 0.4 + 0.2 * (bins * GOLDEN % 1.0)
        full = mine[:, USED] + heap_words > mine[:, HEAP_WORDS]
        full |= (mine[:, GARBAGE] > much * mine[:, USED]) & (mine[:, GARBAGE] >= FIRST_HEAP)
        if tight.any() or full.any():
            self._move(bins[tight], room(bins[tight], wanted[tight], FIRST_ROWS), bins[full], live[full], dense=False)

    def trim(self, bins: Words) -> None:
        """Move the bins that have lost most of their rows to smaller extents."""
        rows, capacity = self.directory[bins, ROWS], self.directory[bins, CAPACITY]
        loose = capacity > LOOSE * np.maximum(rows, FIRST_ROWS)
        if not loose.any():
            return
        bins, rows, capacity = bins[loose], rows[loose], capacity[loose]
        wanted = room(bins, np.maximum(rows, 1), FIRST_ROWS)
        loose = capacity > LOOSE * wanted
        bins, wanted = bins[loose], wanted[loose]
        heaps = bins[self.directory[bins, HEAP_WORDS] > 0]
        try:
            self._move(bins, wanted, heaps, self.directory[heaps, USED] - self.directory[heaps, GARBAGE], dense=True)
        except NoSpace:
            # Smaller extents need space beside the large ones. The bins stay where they are.
            return

    def _move(self, bins: Words, capacity: Words, heaps: Words, live: Words, dense: bool) -> None:
        if not bins.size and not heaps.size:
            return
        before, before_heap = self.directory[bins], self.directory[heaps]
        sizes = self.layout.extent_words(capacity)
        heap_sizes = granules(room(heaps, np.maximum(live, 1), FIRST_HEAP))
        starts = self.extents.take(np.append(sizes, heap_sizes))
        extents = self.extents
        # The heap goes first: it walks over the rows where they are.
        write_kernel.reheap(
            self.directory, extents.words, extents.octets, self.shape, self.records, heaps, starts[bins.size :],
            heap_sizes,
        )  # fmt: skip
        write_kernel.reshape(
            self.directory, extents.words, extents.octets, self.shape, bins, capacity, starts[: bins.size], sizes,
            dense,
        )  # fmt: skip
        self.extents.free(
            np.append(before[:, START], before_heap[:, HEAP]), np.append(before[:, WORDS], before_heap[:, HEAP_WORDS])
        )
        self.grown += np.unique(np.append(bins, heaps)).size

    def refresh(self) -> None:
        """Pick up the changes of other processes to the files."""
        owned = None
        if not self.extents.is_current:
            mine = self.directory[self.directory[:, WORDS] + self.directory[:, HEAP_WORDS] > 0]
            starts, sizes = np.append(mine[:, START], mine[:, HEAP]), np.append(mine[:, WORDS], mine[:, HEAP_WORDS])
            owned = starts[sizes > 0], sizes[sizes > 0]
        self.extents.refresh(owned)

    def checked(self, bin_ids: Sequence[int] | Words) -> Words:
        """Bins as an array; refuses numbers that no bin has."""
        wanted = np.asarray(bin_ids, dtype=np.int64).reshape(-1)
        if wanted.size and (wanted.min() < 0 or wanted.max() >= self.bins):
            raise InvalidOption(
                f"there is no bin {wanted.max() if wanted.min() >= 0 else wanted.min()}: "
                f"table {self.spec.name!r} has bins 0 to {self.bins - 1}"
            )
        return wanted

    def _opened(self) -> tuple[Words, Words]:
        self._directory_path = path = self.path / f"{self.spec.name}.directory"
        words = HEADER + self.bins * FIELDS
        create(path, words)
        everything, self._file = mapped(path, words), identity(path)
        header, directory = everything[:HEADER], everything[HEADER:].reshape(self.bins, FIELDS)
        fingerprint = self._fingerprint()
        arena = self.path / f"{self.spec.name}.arena"
        size = arena.stat().st_size if arena.exists() else 0
        if (header[FORMAT], header[FINGERPRINT]) != (VERSION, fingerprint) or size < header[SPACE + LENGTH] * 8:
            self.is_new = True
            everything[:] = 0
            arena.unlink(missing_ok=True)
            header[SECRET:SPACE].view(np.uint64)[:] = fresh_secret()
            header[FINGERPRINT], header[FORMAT] = fingerprint, VERSION
        return header, directory

    def _fingerprint(self) -> int:
        spec = self.spec
        fields = [[name, str(type_)] for name, type_ in spec.key.fields + spec.values]
        text = json.dumps([self.bins, spec.name, len(spec.key.fields), spec.key.leading, fields, spec.order])
        return checksum(text.encode()) >> 1
