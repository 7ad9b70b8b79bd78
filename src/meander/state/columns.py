"""Arrow columns of state, and keys, as plain arrays for kernels, and back.

Columns of fixed width become words (int64) or arrays of their own type; texts, binaries and decimals become records.
A key becomes a word, or a reference to a record in words.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from meander.errors import InvalidOption
from meander.route.columns import LARGEST_OFFSET, octets_of, valid_of, view, whole_column
from meander.route.hashing import bits_of
from meander.route.keys import Keys
from meander.state.records_kernel import lengths, pack, unpack, words_for
from meander.state.slot_hash import Secret, hash_words, pack_keys
from meander.state.spec import dtype_of

Words = NDArray[np.int64]
Octets = NDArray[np.uint8]

DECIMAL_BYTES = 16
NO_OCTETS = np.empty(0, np.uint8)


def conformed(column: pa.Array | pa.ChunkedArray, type_: pa.DataType, name: str) -> pa.Array:
    """The column as one array of this type; refuses what cannot become one without loss."""
    whole = whole_column(column)
    if whole.type == type_:
        return whole
    try:
        return whole.cast(type_)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise InvalidOption(f"column {name!r} is {whole.type}, and state of type {type_} is wanted: {error}") from None


def plain(values: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """The values as kernels take them: contiguous, of this type, flagged writable; do not write to them."""
    exact = np.ascontiguousarray(values, dtype)
    if exact.flags.writeable or not exact.size:
        return exact if exact.size else np.empty(0, dtype)
    return view(pa.py_buffer(exact), dtype, 0, exact.size)


def typed_of(column: pa.Array) -> NDArray[Any]:
    """The values of a column of fixed width in their own NumPy type, 0 where they are null; do not write to it."""
    dtype = dtype_of(column.type)
    assert dtype is not None
    if dtype == np.bool_:
        column = column.cast(pa.uint8())
        dtype = np.dtype(np.uint8)
        values = view(column.buffers()[1], dtype, column.offset, len(column)).view(np.bool_)
    else:
        values = view(column.buffers()[1], dtype, column.offset, len(column))
    if column.null_count:
        return np.where(flags_of(column), values, np.zeros(1, values.dtype))
    return values


def flags_of(column: pa.Array) -> NDArray[np.bool_]:
    """True where a value is not null."""
    valid = valid_of(column)
    return valid.view(np.bool_) if valid.size else np.ones(len(column), np.bool_)


def to_words(values: NDArray[Any]) -> Words:
    """Values of fixed width as int64: whole numbers as they are, floats as their bits."""
    if values.dtype == np.float64:
        return values.view(np.int64)
    if values.dtype == np.float32:
        return values.view(np.int32).astype(np.int64)
    return values.astype(np.int64, copy=False)


def from_words(words: Words, dtype: np.dtype[Any]) -> NDArray[Any]:
    """The inverse of `to_words`."""
    if dtype == np.float64:
        return words.view(np.float64)
    if dtype == np.float32:
        return words.astype(np.int32).view(np.float32)
    return words.astype(dtype, copy=False)


def texts_of(column: pa.Array) -> tuple[Words, Octets]:
    """The bytes of a column of records: offsets from 0, and the bytes they point into."""
    if not pa.types.is_decimal128(column.type):
        return octets_of(column)
    count = len(column)
    data = view(column.buffers()[1], np.dtype(np.uint8), column.offset * DECIMAL_BYTES, count * DECIMAL_BYTES)
    return np.arange(0, (count + 1) * DECIMAL_BYTES, DECIMAL_BYTES, dtype=np.int64), data


def packed(parts: list[tuple[Words, Octets, Octets]]) -> tuple[list[Words], Words]:
    """Columns of (offsets, data, valid) as references into one heap of words that they share."""
    heap = np.empty(sum(words_for(offsets, valid) for offsets, _, valid in parts), np.int64)
    octets, at, columns = heap.view(np.uint8), 0, []
    for offsets, data, valid in parts:
        references = np.empty(offsets.size - 1, np.int64)
        at = pack(offsets, data, valid, heap, octets, at, references)
        columns.append(references)
    return columns, heap


def unpacked(references: Words, heap: Words) -> tuple[Words, Octets]:
    """Records as offsets and bytes, one after the other."""
    offsets = np.empty(references.size + 1, np.int64)
    lengths(references, offsets)
    data = np.empty(int(offsets[-1]), np.uint8)
    unpack(references, heap.view(np.uint8), offsets, data)
    return offsets, data


def fixed_column(values: NDArray[Any], valid: NDArray[np.bool_] | None, type_: pa.DataType) -> pa.Array:
    """A column of fixed width; nothing is null where `valid` is None."""
    nulls = _bitmap(valid)
    if pa.types.is_boolean(type_):
        bits = pa.py_buffer(np.packbits(values, bitorder="little"))
        return pa.Array.from_buffers(type_, values.size, [nulls, bits])
    return pa.Array.from_buffers(type_, values.size, [nulls, pa.py_buffer(np.ascontiguousarray(values))])


def record_column(offsets: Words, data: Octets, valid: NDArray[np.bool_] | None, type_: pa.DataType) -> pa.Array:
    """A column of texts, binaries or decimals; nothing is null where `valid` is None."""
    nulls = _bitmap(valid)
    count = offsets.size - 1
    if pa.types.is_decimal128(type_):
        fixed = np.zeros((count, DECIMAL_BYTES), np.uint8)
        rows = np.flatnonzero(np.diff(offsets))
        fixed[rows] = data.reshape(rows.size, DECIMAL_BYTES)
        return pa.Array.from_buffers(type_, count, [nulls, pa.py_buffer(fixed.reshape(-1))])
    if data.size > LARGEST_OFFSET:
        raise InvalidOption(f"a column of type {type_} cannot hold {data.size} bytes; take fewer rows at a time")
    return pa.Array.from_buffers(type_, count, [nulls, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(data)])


def _bitmap(valid: NDArray[np.bool_] | None) -> pa.Buffer | None:
    if valid is None or valid.all():
        return None
    return pa.py_buffer(np.packbits(valid, bitorder="little"))


@dataclass(frozen=True)
class Probe:
    """Keys to look for: their hashes, which begin with the bin, their words or references, and the records of these."""

    hashes: NDArray[np.uint64]
    words: Words
    heap: Words


def probe(keys: Keys, bins: int, secret: Secret) -> Probe:
    """Pack keys, for look-ups in an index of so many bins and of this secret."""
    hashes = np.empty(len(keys), np.uint64)
    if keys.words is not None:
        hash_words(keys.words, keys.spread, bits_of(bins), secret, hashes)
        return Probe(hashes, keys.words, np.empty(0, np.int64))
    offsets, data = keys.packed
    references, heap = np.empty(len(keys), np.int64), np.empty(words_for(offsets, NO_OCTETS), np.int64)
    pack_keys(offsets, data, keys.spread, bits_of(bins), secret, heap, references, hashes)
    return Probe(hashes, references, heap)
