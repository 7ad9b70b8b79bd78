"""A delta as plain arrays: what the base writes, checked against the table it is meant for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from meander.errors import InvalidOption
from meander.state.columns import flags_of, packed, texts_of, to_words, typed_of, valid_of, whole_column
from meander.state.layout import NEVER, Layout
from meander.state.records import Probe, probe
from meander.state.records_kernel import is_ascending
from meander.state.spec import BIN, DELETED, TableSpec, is_record

Words = NDArray[np.int64]


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


def changes(spec: TableSpec, layout: Layout, delta: pa.Table, bins: int, held: Words) -> Changes:
    """Read a delta; refuses other columns, bins that do not ascend or do not fit their keys, and bins not held."""
    columns = {name: whole_column(delta.column(name)) for name in _checked_names(spec, delta)}
    rows = delta.num_rows
    of_row = typed_of(columns[BIN])
    starts = np.flatnonzero(np.diff(of_row, prepend=np.int32(-1))) if rows else np.empty(0, np.int64)
    mine = of_row[starts].astype(np.int64)
    keys = spec.key.encode([columns[name] for name in spec.key.names])
    if not is_ascending(of_row) or not np.array_equal(of_row, keys.bins(bins)):
        raise InvalidOption(
            f"a delta of table {spec.name!r} has rows out of the order of their bins, or in bins that are not those "
            "of their keys; it cannot be applied"
        )
    if not held[mine].all():
        missing = mine[held[mine] == 0]
        raise InvalidOption(f"bin {missing[0]} of table {spec.name!r} is not held here; install it before its rows")
    deleted = typed_of(columns[DELETED])
    values, texts, heap = _values(spec, layout, columns, rows)
    packed_keys = probe(keys, of_row)
    if texts.size:
        # Keys and values share one heap; the keys' records come behind the values'.
        shifted = packed_keys.words if not layout.wide else packed_keys.words + (np.int64(heap.size) << 32)
        packed_keys = Probe(packed_keys.bins, packed_keys.hashes, shifted, np.concatenate([heap, packed_keys.heap]))
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
