"""The committed state of one table, for the bins that a worker holds.

A batch never changes it; `apply` does, with a committed delta. The cost of a call depends on the rows it takes, not
on the rows in the table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from meander.errors import InvalidOption
from meander.route.columns import valid_of, whole_column
from meander.route.hashing import bits_of
from meander.route.keys import Keys
from meander.state import base_kernel, write_kernel
from meander.state.binfiles import HELD, NEVER, ROWS, USED, BinFiles, Layout
from meander.state.columns import (
    NO_OCTETS,
    Probe,
    fixed_column,
    flags_of,
    from_words,
    packed,
    probe,
    record_column,
    texts_of,
    to_words,
    typed_of,
)
from meander.state.records_kernel import is_ascending, lengths
from meander.state.slot_hash import Secret
from meander.state.spec import BIN, DELETED, TableSpec, dtype_of, is_record

Words = NDArray[np.int64]


MOST_ROWS = 1 << 22
MOST_WORDS = 1 << 27
"""The most rows and words of heap in one extracted piece, since Arrow's texts end at 2 GB."""

NO_WORDS = np.empty(0, np.int64)


@dataclass(frozen=True)
class Changes:
    """The rows of a delta, by bin. Rows runs[k]..runs[k + 1] - 1 are those of bins[k]."""

    bins: Words
    runs: Words
    keys: Probe
    deleted: NDArray[np.bool_]
    values: Words
    marks: NDArray[np.uint8]
    orders: Words


def changes(spec: TableSpec, layout: Layout, delta: pa.Table, bins: int, secret: Secret, held: Words) -> Changes:
    """Read a delta; refuses other columns, bins that do not ascend or do not fit their keys, and bins not held."""
    columns = {name: whole_column(delta.column(name)) for name in _checked_names(spec, delta)}
    rows = delta.num_rows
    of_row = typed_of(columns[BIN])
    starts = np.flatnonzero(np.append(rows > 0, of_row[1:] != of_row[:-1]))
    mine = of_row[starts].astype(np.int64)
    keys = spec.key.encode([columns[name] for name in spec.key.names])
    if not is_ascending(mine) or not np.array_equal(of_row, keys.bins(bins)):
        raise InvalidOption(
            f"a delta of table {spec.name!r} has rows out of the order of their bins, or in bins that are not those "
            "of their keys; it cannot be applied"
        )
    if not held[mine].all():
        missing = mine[held[mine] == 0]
        raise InvalidOption(f"bin {missing[0]} of table {spec.name!r} is not held here; install it before its rows")
    deleted = typed_of(columns[DELETED])
    values, texts, heap = _values(spec, layout, columns, rows)
    packed_keys = probe(keys, bins, secret)
    if texts.size:
        # Keys and values share one heap; the keys' records come behind the values'.
        shifted = packed_keys.words if not layout.wide else packed_keys.words + (np.int64(heap.size) << 32)
        packed_keys = Probe(packed_keys.hashes, shifted, np.concatenate([heap, packed_keys.heap]))
    marks = _marks(spec, layout, columns, rows)
    runs = np.append(starts, rows).astype(np.int64)
    return Changes(mine, runs, packed_keys, deleted, values, marks, _orders(spec, columns, rows))


def _checked_names(spec: TableSpec, delta: pa.Table) -> list[str]:
    for field in spec.schema:
        at = delta.schema.get_field_index(field.name)
        if at < 0 or delta.schema.field(at).type != field.type:
            was = "is missing" if at < 0 else f"is {delta.schema.field(at).type}"
            raise InvalidOption(
                f"a delta of table {spec.name!r} needs column {field.name!r} of {field.type}, which {was}"
            )
    return list(spec.schema.names)


def _values(spec: TableSpec, layout: Layout, columns: dict[str, pa.Array], rows: int) -> tuple[Words, Words, Words]:
    values = np.empty((len(spec.values), rows), np.int64)
    texts = []
    for at, (name, type_) in enumerate(spec.values):
        if is_record(type_):
            texts.append((*texts_of(columns[name]), valid_of(columns[name])))
        else:
            values[at] = to_words(typed_of(columns[name]))
    references, heap = packed(texts)
    for at, each in zip(layout.records, references, strict=True):
        values[at] = each
    return values, np.array(layout.records, np.int64), heap


def _marks(spec: TableSpec, layout: Layout, columns: dict[str, pa.Array], rows: int) -> NDArray[np.uint8]:
    if all(columns[name].null_count == 0 for name, _ in spec.values):
        bits = (1 << (len(spec.values) + 1)) - 1
        one = np.frombuffer(bits.to_bytes(layout.marks, "little"), np.uint8)
        return np.tile(one, rows)
    marks = np.zeros((rows, layout.marks), np.uint8)
    marks[:, 0] = 1
    for at, (name, _) in enumerate(spec.values):
        byte, bit = divmod(at + 1, 8)
        marks[:, byte] |= flags_of(columns[name]).astype(np.uint8) << np.uint8(bit)
    return marks.reshape(-1)


def _orders(spec: TableSpec, columns: dict[str, pa.Array], rows: int) -> Words:
    if spec.order is None:
        return np.empty(0, np.int64)
    column = columns[spec.order]
    words = to_words(typed_of(column))
    return np.where(flags_of(column), words, NEVER) if column.null_count else words


class Base(BinFiles):
    """The rows of one table that are committed. Open one with `Base.open`."""

    @classmethod
    def open(cls, path: Path, spec: TableSpec, bins: int) -> Base:
        """Open a table's files in a directory; creates empty ones where they are missing or of another table."""
        bits_of(bins)
        path.mkdir(0o700, parents=True, exist_ok=True)
        return cls(path, spec, bins)

    def apply(self, delta: pa.Table) -> None:
        """Write and delete the rows of a delta, whose keys are unique and whose bins, all held, ascend.

        Raises NoSpace before anything has changed. `grown` is how many bins have moved to another extent for it.
        """
        self.refresh()
        self.grown = 0
        for part in _parts(delta):
            self._write(changes(self.spec, self.layout, part, self.bins, self.secret, self.directory[:, HELD]))

    def find(self, keys: Probe) -> Words:
        """The handle of each key, or -1, valid until a change."""
        return self._lookup(keys, NO_WORDS, np.empty((self.layout.width - 1, 0), np.int64), NO_OCTETS)

    def load(self, keys: Probe, order: Words) -> tuple[Words, Words, NDArray[np.uint8]]:
        """The handle of each key, the words of its values, a row for each column, and the marks of its row, or 0."""
        values = np.empty((self.layout.width - 1, keys.hashes.size), np.int64)
        marks = np.empty(keys.hashes.size * self.layout.marks, np.uint8)
        return self._lookup(keys, order, values, marks), values, marks.reshape(-1, self.layout.marks)

    def texts(self, handles: Words, references: Words) -> tuple[Words, NDArray[np.uint8]]:
        """The records that these rows' words refer to: offsets from 0, and bytes."""
        offsets = np.empty(handles.size + 1, np.int64)
        lengths(references, offsets)
        data = np.empty(int(offsets[-1]), np.uint8)
        base_kernel.records(self.directory, self.extents.octets, handles, references, offsets, data)
        return offsets, data

    def keys(self, handles: Words) -> Keys:
        """The keys of these rows."""
        return self.spec.key.encode(self.spec.key.decode(self._bare_keys(handles)))

    def extract(self, bin_ids: Sequence[int] | Words) -> pa.Table:
        """All rows of these bins, in the columns of a delta, by bin."""
        self.refresh()
        wanted = np.unique(self.checked(bin_ids))
        parts = [self._extracted(each) for each in _pieces(self.directory[wanted], wanted)]
        return pa.concat_tables(parts) if parts else self.spec.schema.empty_table()

    def due(self, upto: int) -> Words:
        """The handles of the rows whose order column is below `upto`, by bin."""
        self.refresh()
        if not self.layout.ordered:
            raise InvalidOption(f"table {self.spec.name!r} has no order; name the column that rows fall due by")
        handles = NO_WORDS
        while True:
            count = base_kernel.due(self.directory, self.extents.words, self.shape, upto, handles)
            if count <= handles.size:
                return handles[:count]
            handles = np.empty(count, np.int64)

    def _write(self, delta: Changes) -> None:
        if not delta.bins.size:
            return
        handles = self.find(delta.keys)
        rows, heap_words = np.empty(delta.bins.size, np.int64), np.empty(delta.bins.size, np.int64)
        write_kernel.needs(
            self.directory, self.extents.words, self.shape, self.records, delta.runs, handles, delta.deleted,
            delta.keys.words, delta.values, rows, heap_words,
        )  # fmt: skip
        self.make_room(delta.bins, rows, heap_words)
        extents = self.extents
        refused, _ = write_kernel.write(
            self.directory, extents.words, extents.octets, self.shape, self.records, delta.runs, delta.bins,
            delta.keys.hashes, delta.keys.words, delta.keys.heap, handles, delta.deleted, delta.values, delta.marks,
            delta.orders,
        )  # fmt: skip
        if refused:
            raise InvalidOption(f"a delta of table {self.spec.name!r} names a key twice; it cannot be applied")
        self.trim(delta.bins)

    def _lookup(self, keys: Probe, order: Words, values: Words, marks: NDArray[np.uint8]) -> Words:
        self.refresh()
        handles = np.empty(keys.hashes.size, np.int64)
        base_kernel.find(
            self.directory, self.extents.words, self.extents.octets, self.shape, order, keys.hashes, keys.words,
            keys.heap, handles, values, marks,
        )  # fmt: skip
        return handles

    def _bare_keys(self, handles: Words) -> Keys:
        words = np.empty(handles.size, np.int64)
        base_kernel.key_words(self.directory, self.extents.words, self.shape, handles, words)
        unknown = np.zeros(handles.size, np.uint64)
        if not self.layout.wide:
            return Keys(self.spec.key, words, None, None, unknown)
        offsets, data = self.texts(handles, words)
        return Keys(self.spec.key, None, offsets, data, unknown)

    def _extracted(self, bin_ids: Words) -> pa.Table:
        handles = np.empty(int(self.directory[bin_ids, ROWS].sum()), np.int64)
        base_kernel.handles_in(self.directory, self.extents.octets, self.shape, bin_ids, handles)
        fixed = [fixed_column((handles >> 32).astype(np.int32), None, pa.int32())]
        fixed.append(fixed_column(np.zeros(handles.size, np.bool_), None, pa.bool_()))
        keys = self.spec.key.decode(self._bare_keys(handles))
        values = [self._values(handles, at, type_) for at, (_, type_) in enumerate(self.spec.values)]
        return pa.Table.from_arrays(fixed + keys + values, schema=self.spec.schema)

    def _values(self, handles: Words, at: int, type_: pa.DataType) -> pa.Array:
        """Value column `at` of these rows."""
        extents, words, valid = self.extents, np.empty(handles.size, np.int64), np.empty(handles.size, np.bool_)
        base_kernel.gather(self.directory, extents.words, extents.octets, self.shape, handles, at, words, valid)
        dtype = dtype_of(type_)
        if dtype is None:
            return record_column(*self.texts(handles, words), valid, type_)
        return fixed_column(from_words(words, dtype), valid, type_)


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
