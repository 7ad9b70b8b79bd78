"""Arrow columns as plain arrays for kernels, and back; without a copy where the layouts agree.

Every array is contiguous, aligned and flagged writable, because Numba compiles a kernel again for arrays that are
not. Do not write to them: the memory is Arrow's.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from meander.errors import InvalidOption, TooLarge

Octets = NDArray[np.uint8]
Words = NDArray[np.int64]

LARGEST_OFFSET = 2**31 - 1

ALLOWED = (
    "keys are boolean, tinyint, smallint, int, bigint, date, timestamp (of microseconds), string or binary, "
    "and tuples of them"
)

_NARROW: dict[pa.DataType, np.dtype[Any]] = {
    pa.int8(): np.dtype(np.int8),
    pa.int16(): np.dtype(np.int16),
    pa.int32(): np.dtype(np.int32),
    pa.date32(): np.dtype(np.int32),
}


_SMALL = {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}


def small(type_: pa.DataType) -> pa.DataType:
    """The type with small offsets of texts and binaries, of which keys and state are."""
    return _SMALL.get(type_, type_)


def is_octets(type_: pa.DataType) -> bool:
    """Whether a column holds texts or binaries, of small or large offsets."""
    kinds = (pa.types.is_string, pa.types.is_binary, pa.types.is_large_string, pa.types.is_large_binary)
    return any(is_kind(type_) for is_kind in kinds)


def is_narrow(type_: pa.DataType) -> bool:
    """Whether Spark hashes a column's values as 32-bit integers."""
    return bool(pa.types.is_boolean(type_) or type_ in _NARROW)


def is_word(type_: pa.DataType) -> bool:
    """Whether Spark hashes a column's values as 64-bit integers."""
    return bool(pa.types.is_int64(type_) or (pa.types.is_timestamp(type_) and type_.unit == "us"))


def whole_column(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """The column as one array; a copy only where it has several chunks."""
    if not isinstance(column, pa.ChunkedArray):
        return column
    if column.num_chunks == 1:
        return column.chunk(0)
    small = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}
    if column.type in small and column.nbytes > LARGEST_OFFSET:
        column = column.cast(small[column.type])
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def words_of(column: pa.Array) -> Words:
    """The values of a column of fixed width, as int64; anything where they are null."""
    if not (is_narrow(column.type) or is_word(column.type)):
        raise InvalidOption(f"a column of type {column.type} has no words; {ALLOWED}")
    if pa.types.is_boolean(column.type):
        column = pc.cast(column, pa.int8())
    dtype = _NARROW.get(column.type, np.dtype(np.int64))
    return view(column.buffers()[1], dtype, column.offset, len(column)).astype(np.int64, copy=False)


def octets_of(column: pa.Array) -> tuple[Words, Octets]:
    """The values of a text or binary column: offsets from 0, and the bytes they point into."""
    large = pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type)
    dtype = np.dtype(np.int64 if large else np.int32)
    _, ends, content = column.buffers()
    if not len(column):
        return np.zeros(1, np.int64), np.empty(0, np.uint8)
    offsets = view(ends, dtype, column.offset, len(column) + 1).astype(np.int64, copy=False)
    start, stop = int(offsets[0]), int(offsets[-1])
    data = view(content, np.dtype(np.uint8), start, stop - start)
    return offsets - start if start else offsets, data


def valid_of(column: pa.Array) -> Octets:
    """1 where a value is not null, else 0; empty where nothing is null."""
    if not column.null_count:
        return np.empty(0, np.uint8)
    flags = pc.cast(column.is_valid(), pa.uint8())
    return view(flags.buffers()[1], np.dtype(np.uint8), flags.offset, len(flags))


def column_of_words(words: Words, type_: pa.DataType) -> pa.Array:
    """The column of a type of fixed width that has these values; none of them is null."""
    if pa.types.is_boolean(type_):
        return pa.array(words != 0)
    exact = np.ascontiguousarray(words, dtype=_NARROW.get(type_, np.dtype(np.int64)))
    return pa.Array.from_buffers(type_, exact.size, [None, pa.py_buffer(exact)])


def column_of_octets(offsets: Words, data: Octets, type_: pa.DataType) -> pa.Array:
    """The text or binary column that has these values; none of them is null."""
    if data.size > LARGEST_OFFSET:
        raise TooLarge(f"a column of type {type_} cannot hold {data.size} bytes; take fewer rows at a time")
    buffers = [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(data)]
    return pa.Array.from_buffers(type_, offsets.size - 1, buffers)


def view(buffer: Any, dtype: np.dtype[Any], offset: int, count: int) -> NDArray[Any]:
    """`count` items of a buffer from item `offset` on."""
    if not count:
        return np.empty(0, dtype)
    address = buffer.address + offset * dtype.itemsize
    if (offset + count) * dtype.itemsize > buffer.size:
        raise InvalidOption(f"a column needs {(offset + count) * dtype.itemsize} bytes but has {buffer.size}")
    array = np.asarray(_Memory(buffer, address, dtype, count))
    return array if array.flags.aligned else array.copy()


class _Memory:
    # np.frombuffer gives read-only arrays for some buffers and writable ones for others; this is always the same.
    def __init__(self, buffer: Any, address: int, dtype: np.dtype[Any], count: int) -> None:
        self.buffer = buffer
        self.__array_interface__ = {
            "data": (address, False), "typestr": dtype.str, "shape": (count,), "version": 3,
        }  # fmt: skip
