"""Typed keys as bytes or words, for indexes to compare, and the hashes that choose their bins.

A key is a tuple of columns. The leading ones choose its bin; trailing ones, such as the start of a window or a
sequence number, only tell rows of the same bin apart.

In the kernels that pack, a `cursor` holds for each row where its next value stands in the packed data; each moves it
past the value.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from meander.errors import InvalidOption, TooLarge
from meander.kernel import kernel
from meander.options import whole
from meander.pictures import many
from meander.route.columns import (
    ALLOWED,
    LARGEST_OFFSET,
    column_of_octets,
    column_of_words,
    is_narrow,
    is_octets,
    is_word,
    octets_of,
    small,
    whole_column,
    words_of,
)
from meander.route.hashing import bins_of, xxhash64

Octets = NDArray[np.uint8]
Words = NDArray[np.int64]


ONE, EIGHT = np.uint64(1), np.uint64(8)


@dataclass(frozen=True)
class KeyType:
    """The columns of a key, by name and type, of which the first `leading` choose the bin (None: all of them).

    >>> visits = KeyType.of([pa.field("user", pa.string()), pa.field("start", pa.timestamp("us"))], leading=1)
    >>> visits.wide
    True
    >>> keys = visits.encode([pa.array(["ann"]), pa.array([0], pa.timestamp("us"))])
    >>> keys.data.tobytes()
    b'\\x03\\x00\\x00\\x00ann\\x00\\x00\\x00\\x00\\x00\\x00\\x00\\x00'
    >>> visits.decode(keys)[0].to_pylist()
    ['ann']
    """

    fields: tuple[tuple[str, pa.DataType], ...]
    leading: int | None = None

    def __post_init__(self) -> None:
        fields = tuple((name, small(type_)) for name, type_ in self.fields)
        if not fields:
            raise InvalidOption("a key needs at least one column")
        names = [name for name, _ in fields]
        for name, type_ in fields:
            if not (is_octets(type_) or is_narrow(type_) or is_word(type_)):
                raise InvalidOption(f"column {name!r} of type {type_} cannot be part of a key; {ALLOWED}")
            if names.count(name) > 1:
                raise InvalidOption(f"column {name!r} is twice in one key; name each column once")
        object.__setattr__(self, "fields", fields)
        if self.leading is not None:
            count = whole("leading", self.leading, 1, len(fields))
            object.__setattr__(self, "leading", count if count < len(fields) else None)

    @classmethod
    def of(cls, schema: pa.Schema | Iterable[pa.Field], leading: int | None = None) -> KeyType:
        """Return the key of all fields of a schema, or of a list of fields; refuses types that are no keys."""
        return cls(tuple((field.name, field.type) for field in schema), leading)

    def extended(self, *fields: tuple[str, pa.DataType]) -> KeyType:
        """Return the key with further columns, which do not choose the bin."""
        return KeyType((*self.fields, *fields), self.leading or len(self.fields))

    @property
    def names(self) -> tuple[str, ...]:
        """The columns' names."""
        return tuple(name for name, _ in self.fields)

    @property
    def types(self) -> tuple[pa.DataType, ...]:
        """The columns' types."""
        return tuple(type_ for _, type_ in self.fields)

    @property
    def wide(self) -> bool:
        """Whether a key is packed bytes; if not, it is one column of fixed width, as an int64."""
        return len(self.fields) > 1 or is_octets(self.fields[0][1])

    def encode(self, columns: Sequence[pa.Array | pa.ChunkedArray]) -> Keys:
        """Return the keys in these columns, one for each row; nulls are refused."""
        if len(columns) != len(self.fields):
            raise InvalidOption(
                f"the key {', '.join(self.names)} has {many(len(self.fields), 'column')}, not {len(columns)}"
            )
        arrays = [self._checked(*field, whole_column(each)) for field, each in zip(self.fields, columns, strict=True)]
        spread = xxhash64(arrays[: self.leading])
        if not self.wide:
            return Keys(self, words_of(arrays[0]), None, None, spread)
        offsets, data = octets_of(arrays[0]) if len(arrays) == 1 else _packed(arrays)
        return Keys(self, None, offsets, data, spread)

    def decode(self, keys: Keys) -> list[pa.Array]:
        """Return the columns of these keys."""
        if keys.words is not None:
            return [column_of_words(keys.words, self.types[0])]
        offsets, data = keys.packed
        if len(self.fields) == 1:
            return [column_of_octets(offsets, data, self.types[0])]
        return _unpacked(offsets, data, self.types)

    def _checked(self, name: str, type_: pa.DataType, column: pa.Array) -> pa.Array:
        same = small(column.type) == type_
        if not same and not (pa.types.is_timestamp(type_) and is_word(column.type) and column.type != pa.int64()):
            raise InvalidOption(f"key column {name!r} is {column.type}, not {type_}; cast it before it is encoded")
        if column.null_count:
            raise InvalidOption(f"key column {name!r} has {column.null_count} nulls; take those rows out first")
        return column


@dataclass(frozen=True, eq=False)
class Keys:
    """Encoded keys, one for each row: words, or offsets into packed bytes, and the hashes that choose their bins.

    The arrays may be Arrow's own memory: do not write to them. `offsets` starts at 0 and ends at the size of `data`.
    `spread` is the hash of the leading columns.
    """

    type: KeyType
    words: Words | None
    offsets: Words | None
    data: Octets | None
    spread: NDArray[np.uint64]

    def __len__(self) -> int:
        return self.spread.size

    @property
    def packed(self) -> tuple[Words, Octets]:
        """The offsets and the bytes of wide keys."""
        if self.offsets is None or self.data is None:
            raise InvalidOption(f"the key {', '.join(self.type.names)} is a word and has no packed bytes")
        return self.offsets, self.data

    def take(self, rows: NDArray[np.int64]) -> Keys:
        """Return the keys of these rows, in their order; a row may come several times."""
        rows = np.require(rows, np.int64, ["C", "A", "W"])
        if rows.size and (rows.min() < 0 or rows.max() >= len(self)):
            raise InvalidOption(
                f"rows {rows.min()} to {rows.max()} are wanted of {many(len(self), 'key')}; give rows of these"
            )
        spread = self.spread[rows]
        if self.words is not None:
            return Keys(self.type, self.words[rows], None, None, spread)
        offsets, data = self.packed
        picked = np.empty(rows.size + 1, dtype=np.int64)
        pick_lengths(offsets, rows, picked)
        target = np.empty(int(picked[-1]), dtype=np.uint8)
        pick_octets(offsets, data, rows, picked, target)
        return Keys(self.type, None, picked, target, spread)

    def bins(self, bins: int) -> NDArray[np.int32]:
        """Return the bin of each key, of so many bins."""
        return bins_of(self.spread, bins)


def _packed(arrays: Sequence[pa.Array]) -> tuple[Words, Octets]:
    rows = len(arrays[0])
    if not any(is_octets(each.type) for each in arrays):
        table = np.empty((rows, len(arrays)), dtype="<i8")
        for k, each in enumerate(arrays):
            table[:, k] = words_of(each)
        width = 8 * len(arrays)
        return np.arange(0, (rows + 1) * width, width, dtype=np.int64), table.reshape(-1).view(np.uint8)
    texts = {k: octets_of(each) for k, each in enumerate(arrays) if is_octets(each.type)}
    offsets = np.arange(rows + 1, dtype=np.int64) * (8 * len(arrays) - 4 * len(texts))
    for k, (ends, values) in texts.items():
        if values.size > LARGEST_OFFSET and np.diff(ends).max() > LARGEST_OFFSET:
            raise TooLarge(f"column {k} of a key has a value of more than {LARGEST_OFFSET} bytes; shorten it")
        offsets += ends
    data = np.empty(int(offsets[-1]), dtype=np.uint8)
    cursor = offsets[:-1].copy()
    for k, each in enumerate(arrays):
        if k in texts:
            pack_octets(*texts[k], cursor, data)
        else:
            pack_words(words_of(each), cursor, data)
    return offsets, data


def _unpacked(offsets: Words, data: Octets, types: Sequence[pa.DataType]) -> list[pa.Array]:
    columns = []
    cursor = offsets[:-1].copy()
    for type_ in types:
        if is_octets(type_):
            ends = np.empty(offsets.size, dtype=np.int64)
            unpack_lengths(data, cursor, ends)
            values = np.empty(int(ends[-1]), dtype=np.uint8)
            unpack_octets(data, cursor, ends, values)
            columns.append(column_of_octets(ends, values, type_))
        else:
            words = np.empty(cursor.size, dtype=np.int64)
            unpack_words(data, cursor, words)
            columns.append(column_of_words(words, type_))
    return columns


@kernel
def pack_words(words: Words, cursor: Words, data: Octets) -> None:
    """Write each word as 8 bytes, little endian."""
    for i in range(words.size):
        _write(np.uint64(words[i]), data, np.uint64(cursor[i]), EIGHT)
        cursor[i] += 8


@kernel
def pack_octets(offsets: Words, values: Octets, cursor: Words, data: Octets) -> None:
    """Write the length of each value as 4 bytes, little endian, and the value."""
    for i in range(cursor.size):
        start, stop = offsets[i], offsets[i + 1]
        _write(np.uint64(stop - start), data, np.uint64(cursor[i]), np.uint64(4))
        _copy(values, start, data, cursor[i] + 4, stop - start)
        cursor[i] += 4 + stop - start


@kernel
def unpack_words(data: Octets, cursor: Words, words: Words) -> None:
    """Read 8 bytes for each word."""
    for i in range(words.size):
        words[i] = np.int64(_read(data, np.uint64(cursor[i]), EIGHT))
        cursor[i] += 8


@kernel
def unpack_lengths(data: Octets, cursor: Words, offsets: Words) -> None:
    """Read the length of each value into offsets that add them up; the cursor stays."""
    offsets[0] = 0
    for i in range(cursor.size):
        offsets[i + 1] = offsets[i] + np.int64(_read(data, np.uint64(cursor[i]), np.uint64(4)))


@kernel
def unpack_octets(data: Octets, cursor: Words, offsets: Words, values: Octets) -> None:
    """Read the values that have these offsets."""
    for i in range(cursor.size):
        length = offsets[i + 1] - offsets[i]
        _copy(data, cursor[i] + 4, values, offsets[i], length)
        cursor[i] += 4 + length


@kernel
def pick_lengths(offsets: Words, rows: Words, picked: Words) -> None:
    """Fill the offsets that the picked rows have when they stand one after the other."""
    picked[0] = 0
    for i in range(rows.size):
        picked[i + 1] = picked[i] + offsets[rows[i] + 1] - offsets[rows[i]]


@kernel
def pick_octets(offsets: Words, data: Octets, rows: Words, picked: Words, target: Octets) -> None:
    """Copy the bytes of the picked rows to their new offsets."""
    for i in range(rows.size):
        _copy(data, offsets[rows[i]], target, picked[i], picked[i + 1] - picked[i])


@kernel
def _write(word: np.uint64, data: Octets, at: np.uint64, count: np.uint64) -> None:
    for k in range(count):
        data[at + k] = np.uint8((word >> (EIGHT * k)) & np.uint64(255))


@kernel
def _read(data: Octets, at: np.uint64, count: np.uint64) -> np.uint64:
    word = np.uint64(0)
    for k in range(count):
        word |= np.uint64(data[at + k]) << (EIGHT * k)
    return word


@kernel
def _copy(source: Octets, start: int, target: Octets, at: int, count: int) -> None:
    for k in range(np.uint64(count)):
        target[np.uint64(at) + k] = source[np.uint64(start) + k]
