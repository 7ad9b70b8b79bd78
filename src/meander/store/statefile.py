"""State files: the rows of several tables, each sorted by bin, of which single bins can be read. No pickle, no code.

One format serves deltas and snapshots:

    magic
    per table: an Arrow IPC stream, cut into pieces: the schema, then record batches that end between bins
    index:     per table, the bins that have rows (int32) and the number of rows up to the end of each (int64)
    footer:    JSON: where each table, its pieces and its index are, with the checksum of each
    tail:      length of the footer, length of the file, checksum of the footer, magic

Every byte is under a checksum, and the checksum of the footer, which a manifest names, covers all others. A reader
that wants a few bins fetches the footer and the pieces with those bins, nothing else. It checks all that it reads
before anyone uses it: kernels trust the offsets of a text and the bins of rows.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import ipc

from meander.errors import Damaged, InvalidOption
from meander.kernel import kernel
from meander.route.columns import view
from meander.route.hashing import checksum
from meander.state.spec import BIN
from meander.store.bitmap import bitmap
from meander.store.footer import BinIndex, Footer, Section, StreamPart, Stretch

MAGIC = b"MEANDER1"
PIECE_BYTES = 1 << 20
"""About how large a piece is: small enough to fetch for one bin, large enough that its checksum costs nothing."""

ONE, ASCII = np.uint64(1), np.uint8(128)
_TAIL = struct.Struct("<IQQ8s")
_FIRST_READ_BYTES = 1 << 16


Bitmap: TypeAlias = bytes


class Info(NamedTuple):
    """The figures of a state file that its manifest keeps."""

    bytes: int
    rows: int
    checksum: int
    bins: Bitmap
    """Bitmap of the bins that the file covers."""


@dataclass(frozen=True)
class StateFile:
    """A state file in memory, and its figures for the manifest."""

    data: pa.Buffer
    info: Info


def write(sections: Mapping[str, pa.Table], bins: int, covers: Collection[int] | None = None) -> StateFile:
    """Return the state file of some tables, each with a column of bins by which it is sorted.

    Args:
        sections: the tables by name.
        bins: how many bins there are.
        covers: the bins that the file covers, also those without rows. A snapshot must name them: a covered bin
            without rows is empty. By default the bins that have rows.
    """
    plans = [_Section(name, table, bins) for name, table in sections.items()]
    size = len(MAGIC) + sum(plan.size for plan in plans)
    data = pa.allocate_buffer(size + _footer_bytes(plans))
    sink = pa.FixedSizeBufferWriter(data)
    sink.write(MAGIC)
    for plan in plans:
        plan.write_to(sink, data)
    for plan in plans:
        plan.write_index_to(sink)
    footer = Footer(bins, {plan.name: plan.section for plan in plans}).to_bytes()
    length = sink.tell() + len(footer) + _TAIL.size
    sealed = footer + struct.pack("<Q", length)
    seal = checksum(sealed)
    sink.write(footer + _TAIL.pack(len(footer), length, seal, MAGIC))
    if covers is None:
        covered = np.concatenate([plan.present for plan in plans]) if plans else np.empty(0, np.int32)
    else:
        covered = np.fromiter(covers, np.int64, len(covers))
    info = Info(length, sum(plan.table.num_rows for plan in plans), seal, bitmap(covered, bins))
    return StateFile(data.slice(0, length), info)


def read(
    source: Any, bins: Collection[int] | None = None, *, name: str = "the state file", expected: int | None = None
) -> dict[str, pa.Table]:
    """Return the tables of a state file, or only the rows of some bins; Damaged, naming the file, if a byte is wrong.

    Args:
        source: an open `pa.NativeFile`, or a buffer; of a file only what is needed is read.
        bins: the wanted bins, or None for all of them.
        name: the name of the file in errors.
        expected: the checksum that the manifest has for it.
    """
    try:
        file = _Opened(source, name, expected)
        if bins is None and file.fetch(0, len(MAGIC)).to_pybytes() != MAGIC:
            raise file.damaged("its first bytes are wrong")
        return {each: _read_section(file, section, bins) for each, section in file.footer.sections.items()}
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError, pa.ArrowException) as error:
        raise Damaged(f"{name} is not a state file that this version can read ({error}); restore it") from None


class _Section:
    """The layout of one table, and its place in the file."""

    def __init__(self, name: str, table: pa.Table, bins: int) -> None:
        wrong = [field.name for field in table.schema if pa.types.is_dictionary(field.type)]
        if wrong or BIN not in table.schema.names:
            raise InvalidOption(f"table {name!r} needs {BIN}, and no dictionary may be in it: {table.schema}")
        self.name, self.table = name, table
        column = _numbers(table.column(BIN))
        starts = np.flatnonzero(np.concatenate([[True], column[1:] != column[:-1]])) if column.size else column[:0]
        self.present = column[starts].astype(np.int32)
        self.ends = np.append(starts[1:], column.size).astype(np.int64) if column.size else np.empty(0, np.int64)
        if self.present.size and (
            np.any(np.diff(self.present) <= 0) or not 0 <= self.present[0] <= self.present[-1] < bins
        ):
            raise InvalidOption(f"table {name!r} is not sorted by bin, or has a bin that is none of 0 to {bins - 1}")
        self.batches = list(_cut(table, self.ends))
        self.head = table.schema.serialize().size
        self.size = self.head + sum(ipc.get_record_batch_size(batch) for batch in self.batches) + 8
        self.pieces: list[StreamPart] = []
        self.index = Stretch(0, 0, "")

    def write_to(self, sink: Any, data: pa.Buffer) -> None:
        cuts = [sink.tell(), sink.tell() + self.head]
        with ipc.new_stream(sink, self.table.schema) as stream:
            for batch in self.batches:
                stream.write_batch(batch)
                cuts.append(sink.tell())
        cuts[-1] = sink.tell()  # the stream's end mark belongs to its last piece
        rows = [0, *(batch.num_rows for batch in self.batches)]
        for start, stop, count in zip(cuts, cuts[1:], rows, strict=False):
            self.pieces.append(StreamPart(start, stop - start, count, _seal(data.slice(start, stop - start))))

    def write_index_to(self, sink: Any) -> None:
        index = BinIndex(self.present, self.ends).to_bytes()
        self.index = Stretch(sink.tell(), len(index), _seal(index))
        sink.write(index)

    @property
    def section(self) -> Section:
        return Section(self.table.num_rows, self.pieces, self.index)


def _seal(data: Any) -> str:
    return f"{checksum(data):016x}"


def _numbers(column: pa.ChunkedArray) -> NDArray[Any]:
    return cast(NDArray[Any], column.to_numpy())


def _cut(table: pa.Table, ends: NDArray[np.int64]) -> Iterator[pa.RecordBatch]:
    """Batches of about PIECE_BYTES that end where a bin ends; a bin larger than that is not cut."""
    if not table.num_rows:
        return
    wanted = max(1, -(-table.nbytes // PIECE_BYTES))
    if max(column.num_chunks for column in table.columns) > 2 * wanted:
        table = table.combine_chunks()
    goals = np.arange(1, wanted + 1) * table.num_rows // wanted
    cuts = np.unique(ends[np.minimum(np.searchsorted(ends, goals), ends.size - 1)])
    start = 0
    for stop in cuts.tolist():
        yield from table.slice(start, stop - start).to_batches()
        start = stop


def _footer_bytes(plans: list[_Section]) -> int:
    described = sum(300 + 6 * len(plan.name) + 96 * (len(plan.batches) + 2) for plan in plans)
    return 64 + _TAIL.size + described + sum(12 * plan.present.size for plan in plans)


class _Opened:
    """A state file whose footer has been read and checked."""

    def __init__(self, source: Any, name: str, expected: int | None) -> None:
        self.source, self.name = source, name
        self.size = source.size() if isinstance(source, pa.NativeFile) else pa.py_buffer(source).size
        if not isinstance(source, pa.NativeFile):
            self.source = pa.py_buffer(source)
        first = min(self.size, _FIRST_READ_BYTES)
        end = self.fetch(self.size - first, first)
        if first < len(MAGIC) + _TAIL.size:
            raise self.damaged("it is torn")
        footer_length, length, seal, magic = _TAIL.unpack(end.slice(first - _TAIL.size))
        if self._is_newer(magic):
            mine, its = MAGIC[-1:].decode(), magic[-1:].decode()
            raise Damaged(
                f"{name} was written by a newer version of Meander (its format is {its}, this one reads {mine}); "
                "upgrade Meander"
            )
        if magic != MAGIC or length != self.size or footer_length > self.size - _TAIL.size - len(MAGIC):
            raise self.damaged("it is torn, or no state file")
        if footer_length + _TAIL.size > first:
            first = footer_length + _TAIL.size
            end = self.fetch(self.size - first, first)
        footer = end.slice(first - _TAIL.size - footer_length, footer_length).to_pybytes()
        if checksum(footer + struct.pack("<Q", length)) != seal:
            raise self.damaged("the checksum of its footer does not match")
        if expected is not None and seal != expected:
            raise self.damaged("it is not the file that the manifest names")
        self.cached = (self.size - first, end)
        self.footer = Footer.from_bytes(footer, len(MAGIC), self.size - _TAIL.size - footer_length)

    def _is_newer(self, magic: bytes) -> bool:
        """Whether both ends of the file name the same later format; where they differ, one of them is damaged."""
        is_later = magic[:-1] == MAGIC[:-1] and magic[-1:].isdigit() and magic > MAGIC
        return is_later and self.fetch(0, len(MAGIC)).to_pybytes() == magic

    def damaged(self, what: str) -> Damaged:
        return Damaged(f"{self.name} is damaged: {what}; restore it from a copy")

    def fetch(self, offset: int, length: int) -> pa.Buffer:
        if isinstance(self.source, pa.NativeFile):
            cached_from, end = getattr(self, "cached", (self.size, None))
            if offset >= cached_from and end is not None:
                return end.slice(offset - cached_from, length)
            self.source.seek(offset)
            data = self.source.read_buffer(length)
            while data.size < length and (more := self.source.read_buffer(length - data.size)).size:
                # A read may return less than there is.
                data = pa.py_buffer(data.to_pybytes() + more.to_pybytes())
        else:
            data = self.source.slice(offset, length)
        if data.size != length:
            raise self.damaged("it is shorter than its footer says")
        return data

    def fetch_checked(self, stretch: Stretch | StreamPart) -> pa.Buffer:
        """Bytes of the file; they have been checked."""
        return self.checked(self.fetch(stretch.offset, stretch.length), stretch)

    def checked(self, data: pa.Buffer, stretch: Stretch | StreamPart) -> pa.Buffer:
        """These bytes of the file; Damaged where they are not what was written."""
        if _seal(data) != stretch.seal:
            last = stretch.offset + stretch.length - 1
            raise self.damaged(f"the checksum of bytes {stretch.offset} to {last} does not match")
        return data

    def stream_part(self, read: Callable[[], Any]) -> Any:
        """What a part of an Arrow stream holds; Damaged where it is none."""
        try:
            return read()
        except (pa.ArrowException, OSError, EOFError) as error:
            # Arrow has OSError for bytes that end too soon; they are in memory, so it is no disk that fails.
            raise self.damaged(f"a part of it is no Arrow data ({error})") from None


def _read_section(file: _Opened, section: Section, bins: Collection[int] | None) -> pa.Table:
    head, *pieces = section.pieces
    data = file.fetch_checked(head)
    schema = file.stream_part(lambda: ipc.read_schema(data))
    if BIN not in schema.names or schema.field(BIN).type != pa.int32():
        raise file.damaged(f"a table of it has no column {BIN} of bins")
    index = BinIndex.from_bytes(file.fetch_checked(section.index), section.rows, file.footer.bins)
    texts = [at for at, type_ in enumerate(schema.types) if type_ == pa.string()]
    lasts = np.cumsum([piece.rows for piece in pieces], dtype=np.int64)
    everything = [(0, section.rows)] if section.rows else []
    ranges = everything if bins is None else _ranges(index, bins)
    batches = []
    for start, stop in _neighbours(_touched(lasts, ranges)):
        group = pieces[start:stop]
        data = file.fetch(group[0].offset, sum(piece.length for piece in group))
        for number, piece in zip(range(start, stop), group, strict=True):
            first = int(lasts[number]) - piece.rows
            # One piece after the other, so that the cache still has the bytes whose checksum is right.
            part = file.checked(data.slice(piece.offset - group[0].offset, piece.length), piece)
            batch = _batch(file, part, schema, texts)
            if batch.num_rows != piece.rows or not _is_of(batch, index, first):
                raise file.damaged(f"rows {first} to {first + piece.rows - 1} of a table are not those of its index")
            batches.append(_rows(batch, [(max(a - first, 0), min(b - first, piece.rows)) for a, b in ranges]))
    return pa.Table.from_batches(batches, schema)


def _batch(file: _Opened, data: pa.Buffer, schema: pa.Schema, texts: Collection[int]) -> pa.RecordBatch:
    """A piece's rows, all of whose offsets, bitmaps and texts have been checked."""
    batch = file.stream_part(lambda: ipc.read_record_batch(data, schema))
    file.stream_part(lambda: _validate(batch, texts))
    return batch


def _validate(batch: pa.RecordBatch, texts: Collection[int]) -> None:
    """Check every offset, bitmap and text; an ArrowException where one is wrong."""
    batch.validate()
    for at in texts:
        column = batch.column(at)
        valid, offsets, data = column.buffers()
        if not len(column) or data is None:
            continue
        ends = view(offsets, np.dtype(np.int32), column.offset, len(column) + 1)
        if _are_ascii(ends, view(data, np.dtype(np.uint8), 0, data.size)):
            # Its bitmap is left to check: Arrow does so without its texts, one by one, when offsets pass for numbers.
            numbers = pa.Array.from_buffers(pa.int32(), len(column), [valid, offsets], column.null_count, column.offset)
            batch = batch.set_column(at, str(at), numbers)
    batch.validate(full=True)


@kernel
def _are_ascii(offsets: NDArray[np.int32], data: NDArray[np.uint8]) -> bool:
    """Whether offsets ascend inside of data that is text wherever they cut it; False says nothing."""
    if offsets[0] < 0 or offsets[-1] > data.size:
        return False
    # Unsigned positions and numbers of few bits: only then the compiler takes many at a time.
    falls, octets = np.int32(0), np.uint8(0)
    for i in range(np.uint64(offsets.size - 1)):
        falls = np.int32(falls | np.int32(offsets[i + ONE] < offsets[i]))
    for k in range(np.uint64(data.size)):
        octets = np.uint8(octets | data[k])
    return bool(falls == 0 and octets < ASCII)


def _is_of(batch: pa.RecordBatch, index: BinIndex, first: int) -> bool:
    column = batch.column(batch.schema.get_field_index(BIN))
    bins = view(column.buffers()[1], np.dtype(np.int32), column.offset, len(column))
    return not column.null_count and index.is_of(bins, first)


def _ranges(index: BinIndex, bins: Collection[int]) -> list[tuple[int, int]]:
    """Rows of the wanted bins, as few stretches (start, stop) as possible, ascending."""
    hits = np.flatnonzero(np.isin(index.bins, np.fromiter(bins, np.int64, len(bins))))
    if not hits.size:
        return []
    starts = np.concatenate([[0], index.ends])[hits]
    breaks = np.flatnonzero(np.diff(hits) > 1) + 1
    firsts, final = starts[np.concatenate([[0], breaks])], index.ends[hits][np.append(breaks - 1, hits.size - 1)]
    return list(zip(firsts.tolist(), final.tolist(), strict=True))


def _touched(lasts: NDArray[np.int64], ranges: list[tuple[int, int]]) -> list[int]:
    """The pieces that hold rows of the ranges, ascending; piece i has the rows before lasts[i]."""
    if not ranges:
        return []
    spans = np.searchsorted(lasts, np.array(ranges, dtype=np.int64) - [0, 1], side="right")
    return sorted({piece for first, last in spans.tolist() for piece in range(first, last + 1)})


def _neighbours(numbers: list[int]) -> Iterator[tuple[int, int]]:
    """Ascending numbers as stretches (start, stop), each read from the file at once."""
    start = 0
    for at, number in enumerate(numbers):
        if at + 1 == len(numbers) or numbers[at + 1] != number + 1:
            yield numbers[start], number + 1
            start = at + 1


def _rows(batch: pa.RecordBatch, ranges: list[tuple[int, int]]) -> pa.RecordBatch:
    inside = [(start, stop) for start, stop in ranges if start < stop]
    if len(inside) == 1:
        return batch.slice(inside[0][0], inside[0][1] - inside[0][0])
    wanted = np.zeros(batch.num_rows, dtype=bool)
    for start, stop in inside:
        wanted[start:stop] = True
    return batch.filter(pa.array(wanted))
