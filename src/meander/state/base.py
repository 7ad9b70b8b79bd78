"""The committed state of one table, for the bins that a worker holds.

Two memory-mapped files: `<table>.directory`, where each bin's rows lie, and `<table>.arena`, the rows. Any process may
open them, one at a time may change them. A batch never changes them: `apply` does, with a delta that is committed.
What a call costs depends on the rows it is given, not on the rows that are there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from meander.errors import InvalidOption, NoSpace
from meander.route.hashing import bits_of, checksum
from meander.route.keys import Keys
from meander.state import base_kernel, shape_kernel, write_kernel
from meander.state.changes import Changes, changes
from meander.state.columns import NO_OCTETS, fixed_column, from_words, is_record, record_column
from meander.state.extents import LENGTH, Extents, identity, mapped, reserve, sized
from meander.state.layout import (
    CAPACITY,
    FIELDS,
    FIRST_HEAP,
    FIRST_ROWS,
    GARBAGE,
    GOLDEN,
    HEAP,
    HEAP_WORDS,
    HELD,
    ROWS,
    START,
    USED,
    WORDS,
    Layout,
    granules,
    room,
)  # fmt: skip
from meander.state.records import Probe, probe
from meander.state.records_kernel import by_bin, is_ascending, lengths
from meander.state.spec import BIN, DELETED, TableSpec, dtype_of

Words = NDArray[np.int64]
Bins = NDArray[np.int32]

HEADER = 16
FORMAT, FINGERPRINT, SPACE = 0, 1, 4
"""Words of the directory's header: its format, what table it is of, and from there on what the arena's extents need."""

VERSION = 0x4D45414E44455201
MOST_ROWS = 1 << 22
MOST_WORDS = 1 << 27
"""So many rows and words of heap are extracted in one piece, since Arrow's texts end at 2 GB."""

LOOSE = 4
"""A bin with so many times the room that it needs moves to a smaller extent."""

NO_WORDS = np.empty(0, np.int64)


class Base:
    """The rows of one table that are committed. Open one with `Base.open`."""

    def __init__(self, path: Path, spec: TableSpec, bins: int) -> None:
        self.path, self.spec, self.bins = path, spec, bins
        self.layout = Layout.of(spec, bins)
        self.grown = 0
        self._shape = self.layout.shape
        self._records = np.array(self.layout.records, dtype=np.int64)
        self.is_new = False
        header, self._directory = self._opened()
        self._extents = Extents(path / f"{spec.name}.arena", header[SPACE:])
        self._refresh()

    @classmethod
    def open(cls, path: Path, spec: TableSpec, bins: int) -> Base:
        """Open a table's files in a directory; empty ones are made where there are none, or those of another table."""
        bits_of(bins)
        path.mkdir(parents=True, exist_ok=True)
        return cls(path, spec, bins)

    def close(self) -> None:
        """Let go of the files. What was applied stays."""
        self._extents.close()
        self._directory = np.empty((0, FIELDS), np.int64)

    @property
    def is_current(self) -> bool:
        """Whether the files that are mapped are those in the directory."""
        same = identity(self.path / f"{self.spec.name}.directory") == self._file
        return same and self._extents.file in ((0, 0), identity(self._extents.path))

    def install(self, bin_ids: Sequence[int] | Words) -> None:
        """Hold these bins, without a row in them."""
        wanted = self._checked(bin_ids)
        self.release(wanted[self._directory[wanted, HELD] != 0])
        self._directory[wanted, HELD] = 1

    def release(self, bin_ids: Sequence[int] | Words) -> None:
        """Hold these bins no longer, and give their space back to the disk."""
        gone = self._checked(bin_ids)
        if not gone.size:
            return
        self._refresh()
        mine = self._directory[gone]
        self._directory[gone] = 0
        starts, sizes = np.append(mine[:, START], mine[:, HEAP]), np.append(mine[:, WORDS], mine[:, HEAP_WORDS])
        if sizes.any():
            self._extents.free(starts, sizes, for_good=True)

    def clear(self) -> None:
        """Hold no bin, and give all space back to the disk."""
        self._directory[:] = 0
        self._extents.clear()

    def apply(self, delta: pa.Table) -> None:
        """Write and delete the rows of a delta, whose keys are unique and whose bins, all held, ascend.

        Raises NoSpace before anything has changed. `grown` is how many bins have moved to another extent for it.
        """
        self._refresh()
        self.grown = 0
        for part in _parts(delta):
            self._write(changes(self.spec, self.layout, part, self.bins, self._directory[:, HELD]))

    def find(self, keys: Keys, order: Words | None = None) -> Words:
        """The handle of each key, or -1; `order`, rows by bin, is made where it is missing. Good until a change."""
        bins = keys.bins(self.bins)
        if order is None:
            order = NO_WORDS
            if not is_ascending(bins):
                order = np.empty(bins.size, np.int64)
                by_bin(bins, self.bins, order)
        return self.seek(probe(keys, bins), order)

    def seek(self, keys: Probe, order: Words = NO_WORDS) -> Words:
        """The handle of each key that is packed already, or -1."""
        return self._found(keys, order, np.empty((self.layout.width - 1, 0), np.int64), NO_OCTETS)

    def load(self, keys: Probe, order: Words) -> tuple[Words, Words, NDArray[np.uint8]]:
        """The handle of each key, the words of its values, a row for each column, and the marks of its row, or 0."""
        values = np.empty((self.layout.width - 1, keys.bins.size), np.int64)
        marks = np.empty(keys.bins.size * self.layout.marks, np.uint8)
        return self._found(keys, order, values, marks), values, marks.reshape(-1, self.layout.marks)

    def read(self, handles: Words, at: int) -> tuple[Words, NDArray[np.bool_]]:
        """Value column `at` of these rows as words, and where it is not null; a handle of -1 has null."""
        words, valid = np.empty(handles.size, np.int64), np.empty(handles.size, np.bool_)
        extents = self._extents
        base_kernel.gather(
            self._directory, extents.words, extents.octets, self._shape, handles, at, words, valid
        )  # fmt: skip
        return words, valid

    def texts(self, handles: Words, references: Words) -> tuple[Words, NDArray[np.uint8]]:
        """The records that these rows' words refer to: offsets from 0, and bytes."""
        offsets = np.empty(handles.size + 1, np.int64)
        lengths(references, offsets)
        data = np.empty(int(offsets[-1]), np.uint8)
        base_kernel.records(self._directory, self._extents.octets, handles, references, offsets, data)
        return offsets, data

    def gather(self, handles: Words, column: str) -> pa.Array:
        """A column of these rows, of the key or of the values; null where a handle of a value is -1."""
        at = self.spec.key_at(column)
        if at is not None:
            return self.spec.key.decode(self._bare_keys(handles))[at]
        at, type_ = self.spec.value_at(column), self.spec.types[column]
        words, valid = self.read(handles, at)
        if is_record(type_):
            return record_column(*self.texts(handles, words), valid, type_)
        dtype = dtype_of(type_)
        assert dtype is not None
        return fixed_column(from_words(words, dtype), valid, type_)

    def keys(self, handles: Words) -> Keys:
        """The keys of these rows."""
        return self.spec.key.encode(self.spec.key.decode(self._bare_keys(handles)))

    def extract(self, bin_ids: Sequence[int] | Words) -> pa.Table:
        """All rows of these bins, in the columns of a delta, by bin."""
        self._refresh()
        wanted = np.unique(self._checked(bin_ids))
        parts = [self._extracted(each) for each in _pieces(self._directory[wanted], wanted)]
        return pa.concat_tables(parts) if parts else self.spec.schema.empty_table()

    def due(self, upto: int) -> Words:
        """The handles of the rows whose order column is below `upto`, by bin."""
        self._refresh()
        if not self.layout.ordered:
            raise InvalidOption(f"table {self.spec.name!r} has no order; name the column that rows fall due by")
        handles = NO_WORDS
        while True:
            count = base_kernel.due(self._directory, self._extents.words, self._shape, upto, handles)
            if count <= handles.size:
                return handles[:count]
            handles = np.empty(count, np.int64)

    @property
    def held(self) -> NDArray[np.bool_]:
        """Which bins are held."""
        return np.asarray(self._directory[:, HELD] != 0)

    def rows_of(self, bin_ids: Sequence[int] | Words) -> Words:
        """The number of rows in each of these bins."""
        return np.asarray(self._directory[self._checked(bin_ids), ROWS])

    def bytes_of(self, bin_ids: Sequence[int] | Words) -> Words:
        """The bytes that each of these bins takes in the arena."""
        mine = self._directory[self._checked(bin_ids)]
        return (mine[:, WORDS] + mine[:, HEAP_WORDS]) * 8

    @property
    def total_bytes(self) -> int:
        """The bytes that all bins take in the arena."""
        return int(self._directory[:, WORDS].sum() + self._directory[:, HEAP_WORDS].sum()) * 8

    def _opened(self) -> tuple[Words, Words]:
        path = self.path / f"{self.spec.name}.directory"
        words = HEADER + self.bins * FIELDS
        is_known = path.exists() and path.stat().st_size == words * 8
        if not is_known:
            path.unlink(missing_ok=True)
            sized(path, words)
            reserve(path, [(0, words)])
        everything, self._file = mapped(path, words), identity(path)
        header, directory = everything[:HEADER], everything[HEADER:].reshape(self.bins, FIELDS)
        fingerprint = self._fingerprint()
        arena = self.path / f"{self.spec.name}.arena"
        size = arena.stat().st_size if arena.exists() else 0
        if (header[FORMAT], header[FINGERPRINT]) != (VERSION, fingerprint) or size < header[SPACE + LENGTH] * 8:
            self.is_new = True
            everything[:] = 0
            arena.unlink(missing_ok=True)
            header[FINGERPRINT], header[FORMAT] = fingerprint, VERSION
        return header, directory

    def _fingerprint(self) -> int:
        spec = self.spec
        fields = [[name, str(type_)] for name, type_ in spec.key.fields + spec.values]
        text = json.dumps([self.bins, spec.name, len(spec.key.fields), spec.key.leading, fields, spec.order])
        return checksum(text.encode()) >> 1

    def _refresh(self) -> None:
        owned = None
        if not self._extents.is_current:
            mine = self._directory[self._directory[:, WORDS] + self._directory[:, HEAP_WORDS] > 0]
            starts, sizes = np.append(mine[:, START], mine[:, HEAP]), np.append(mine[:, WORDS], mine[:, HEAP_WORDS])
            owned = starts[sizes > 0], sizes[sizes > 0]
        self._extents.refresh(owned)

    def _checked(self, bin_ids: Sequence[int] | Words) -> Words:
        wanted = np.asarray(bin_ids, dtype=np.int64).reshape(-1)
        if wanted.size and (wanted.min() < 0 or wanted.max() >= self.bins):
            raise InvalidOption(
                f"there is no bin {wanted.max() if wanted.min() >= 0 else wanted.min()}: "
                f"table {self.spec.name!r} has bins 0 to {self.bins - 1}"
            )
        return wanted

    def _write(self, delta: Changes) -> None:
        if not delta.bins.size:
            return
        handles = self.seek(delta.keys)
        rows, heap_words = np.empty(delta.bins.size, np.int64), np.empty(delta.bins.size, np.int64)
        write_kernel.needs(
            self._directory, self._extents.words, self._shape, self._records, delta.runs, handles, delta.deleted,
            delta.keys.words, delta.values, rows, heap_words,
        )  # fmt: skip
        self._make_room(delta.bins, rows, heap_words)
        extents = self._extents
        write_kernel.write(
            self._directory, extents.words, extents.octets, self._shape, self._records, delta.runs, delta.bins,
            delta.keys.hashes, delta.keys.words, delta.keys.heap, handles, delta.deleted, delta.values, delta.marks,
            delta.orders,
        )  # fmt: skip
        self._trim(delta.bins)

    def _found(self, keys: Probe, order: Words, values: Words, marks: NDArray[np.uint8]) -> Words:
        self._refresh()
        handles = np.empty(keys.bins.size, np.int64)
        base_kernel.find(
            self._directory, self._extents.words, self._extents.octets, self._shape, order, keys.bins, keys.hashes,
            keys.words, keys.heap, handles, values, marks,
        )  # fmt: skip
        return handles

    def _make_room(self, bins: Words, rows: Words, heap_words: Words) -> None:
        """Move the bins that will not have room for so many more rows and words to larger extents."""
        mine = self._directory[bins]
        wanted = mine[:, ROWS] + rows
        tight = wanted > mine[:, CAPACITY]
        live = mine[:, USED] - mine[:, GARBAGE] + heap_words
        # Bins in which values change alike would all be tidied up in the same batch, were it not for the phase.
        much = 0.4 + 0.2 * (bins * GOLDEN % 1.0)
        full = mine[:, USED] + heap_words > mine[:, HEAP_WORDS]
        full |= (mine[:, GARBAGE] > much * mine[:, USED]) & (mine[:, GARBAGE] >= FIRST_HEAP)
        self._move(bins[tight], room(bins[tight], wanted[tight], FIRST_ROWS), bins[full], live[full], dense=False)

    def _trim(self, bins: Words) -> None:
        """Move the bins that have lost most of their rows to smaller extents."""
        rows, capacity = self._directory[bins, ROWS], self._directory[bins, CAPACITY]
        loose = capacity > LOOSE * np.maximum(rows, FIRST_ROWS)
        bins, rows, capacity = bins[loose], rows[loose], capacity[loose]
        wanted = room(bins, np.maximum(rows, 1), FIRST_ROWS)
        loose = capacity > LOOSE * wanted
        bins, wanted = bins[loose], wanted[loose]
        heaps = bins[self._directory[bins, HEAP_WORDS] > 0]
        try:
            self._move(bins, wanted, heaps, self._directory[heaps, USED] - self._directory[heaps, GARBAGE], dense=True)
        except NoSpace:
            # Smaller extents would need room beside the large ones. They stay as they are.
            return

    def _move(self, bins: Words, capacity: Words, heaps: Words, live: Words, dense: bool) -> None:
        if not bins.size and not heaps.size:
            return
        before, before_heap = self._directory[bins], self._directory[heaps]
        sizes = self.layout.extent_words(capacity)
        heap_sizes = granules(room(heaps, np.maximum(live, 1), FIRST_HEAP))
        starts = self._extents.take(np.append(sizes, heap_sizes))
        extents = self._extents
        # The heap goes first: it walks over the rows where they are.
        shape_kernel.reheap(
            self._directory, extents.words, extents.octets, self._shape, self._records, heaps, starts[bins.size :],
            heap_sizes,
        )  # fmt: skip
        shape_kernel.reshape(
            self._directory, extents.words, extents.octets, self._shape, bins, capacity, starts[: bins.size], sizes,
            dense,
        )  # fmt: skip
        self._extents.free(
            np.append(before[:, START], before_heap[:, HEAP]), np.append(before[:, WORDS], before_heap[:, HEAP_WORDS])
        )
        self.grown += np.unique(np.append(bins, heaps)).size

    def _bare_keys(self, handles: Words) -> Keys:
        words = np.empty(handles.size, np.int64)
        base_kernel.key_words(self._directory, self._extents.words, self._shape, handles, words)
        unknown = np.zeros(handles.size, np.uint64)
        if not self.layout.wide:
            return Keys(self.spec.key, words, None, None, unknown, unknown)
        offsets, data = self.texts(handles, words)
        return Keys(self.spec.key, None, offsets, data, unknown, unknown)

    def _extracted(self, bin_ids: Words) -> pa.Table:
        handles = np.empty(int(self._directory[bin_ids, ROWS].sum()), np.int64)
        base_kernel.handles_in(self._directory, self._extents.octets, self._shape, bin_ids, handles)
        fixed = [fixed_column((handles >> 32).astype(np.int32), None, pa.int32())]
        fixed.append(fixed_column(np.zeros(handles.size, np.bool_), None, pa.bool_()))
        keys = self.spec.key.decode(self._bare_keys(handles))
        values = [self.gather(handles, name) for name, _ in self.spec.values]
        return pa.Table.from_arrays(fixed + keys + values, schema=self.spec.schema)


def _parts(delta: pa.Table) -> Iterator[pa.Table]:
    """The delta in pieces whose texts fit into one array each."""
    if delta.num_rows and (delta.nbytes <= MOST_WORDS * 8 or all(each.num_chunks <= 1 for each in delta.columns)):
        yield delta
    elif delta.num_rows:
        for batch in delta.to_batches():
            yield pa.Table.from_batches([batch])


def _pieces(mine: Words, bin_ids: Words) -> Iterator[Words]:
    """Bins in groups that are small enough for one piece of a table."""
    if not bin_ids.size:
        return
    group = np.maximum(np.cumsum(mine[:, ROWS]) // MOST_ROWS, np.cumsum(mine[:, USED]) // MOST_WORDS)
    yield from np.split(bin_ids, np.flatnonzero(np.diff(group)) + 1)


__all__ = ["BIN", "DELETED", "Base"]
