"""Keys of any types and values: hashes against XXH64 written out plainly, and encode and decode as inverses."""

import datetime as dt
import struct

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from effort import examples
from meander.route.hashing import bins_of, checksum, xxhash64
from meander.route.keys import KeyType

MASK = 2**64 - 1
P = (0, 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5)


def rotate(x: int, bits: int) -> int:
    x &= MASK
    return (x << bits | x >> (64 - bits)) & MASK


def xxh64(data: bytes, seed: int) -> int:
    """XXH64 as its specification says it, in numbers without end."""

    def mix(lane: int, word: int) -> int:
        return rotate(lane + word * P[2], 31) * P[1] & MASK

    rest = data
    if len(data) >= 32:
        lanes = [seed + P[1] + P[2], seed + P[2], seed, seed - P[1]]
        while len(rest) >= 32:
            lanes = [mix(lane, word) for lane, word in zip(lanes, struct.unpack("<4Q", rest[:32]), strict=True)]
            rest = rest[32:]
        x = sum(rotate(lane, bits) for lane, bits in zip(lanes, (1, 7, 12, 18), strict=True))
        for lane in lanes:
            x = (x ^ mix(0, lane)) * P[1] + P[4] & MASK
    else:
        x = seed + P[5]
    x = x + len(data) & MASK
    while len(rest) >= 8:
        x = rotate(x ^ mix(0, struct.unpack("<Q", rest[:8])[0]), 27) * P[1] + P[4] & MASK
        rest = rest[8:]
    if len(rest) >= 4:
        x = rotate(x ^ struct.unpack("<I", rest[:4])[0] * P[1], 23) * P[2] + P[3] & MASK
        rest = rest[4:]
    for octet in rest:
        x = rotate(x ^ octet * P[5], 11) * P[1] & MASK
    x = (x ^ x >> 33) * P[2] & MASK
    x = (x ^ x >> 29) * P[3] & MASK
    return x ^ x >> 32


def spoken(value: object, type_: pa.DataType) -> bytes:
    """The bytes of a value that Spark hashes: 4 for the narrow types, 8 for the others, or its own."""
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes):
        return value
    if isinstance(value, dt.date) and not isinstance(value, dt.datetime):
        value = (value - dt.date(1970, 1, 1)).days
    if isinstance(value, dt.datetime):
        value = (value - dt.datetime(1970, 1, 1)) // dt.timedelta(microseconds=1)
    return int(value).to_bytes(8 if type_.bit_width == 64 else 4, "little", signed=True)


def integers(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


LETTERS = "\0az ßé猫🦆"

VALUES = {
    pa.bool_(): st.booleans(),
    pa.int8(): integers(8),
    pa.int16(): integers(16),
    pa.int32(): integers(32),
    pa.int64(): integers(64),
    pa.date32(): st.dates(),
    pa.timestamp("us"): st.datetimes(),
    pa.string(): st.text(LETTERS, max_size=70),
    pa.large_string(): st.text(LETTERS, max_size=10),
    pa.binary(): st.binary(max_size=70),
    pa.large_binary(): st.binary(max_size=10),
}
SMALL = {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}


@st.composite
def tables(draw, nulls: bool = False) -> list[pa.Array | pa.ChunkedArray]:
    """One to four columns of equal length, some of them slices, some in chunks."""
    types = draw(st.lists(st.sampled_from(list(VALUES)), min_size=1, max_size=4))
    rows = draw(st.integers(0, 6))
    columns = []
    for type_ in types:
        value = VALUES[type_] | st.none() if nulls else VALUES[type_]
        before, after = draw(st.integers(0, 9)), draw(st.integers(0, 2))
        values = draw(st.lists(value, min_size=rows, max_size=rows))
        other = draw(VALUES[type_])
        column = pa.array([other] * before + values + [other] * after, type_).slice(before, rows)
        cut = draw(st.none() | st.integers(0, rows))
        columns.append(column if cut is None else pa.chunked_array([column.slice(0, cut), column.slice(cut)]))
    return columns


@given(tables(nulls=True))
def test_hashes_are_xxh64_chained_over_the_columns(columns):
    expected = []
    for row in zip(*(column.to_pylist() for column in columns), strict=True):
        hash_ = 42
        for value, column in zip(row, columns, strict=True):
            hash_ = hash_ if value is None else xxh64(spoken(value, column.type), hash_)
        expected.append(hash_)
    assert xxhash64(columns).tolist() == expected


@given(st.binary(max_size=200))
def test_checksums_are_xxh64(data):
    assert checksum(data) == xxh64(data, 0)


@examples(200)
@given(tables(), st.data())
def test_decode_undoes_encode_whole_and_in_part(columns, data):
    fields = [pa.field(f"c{i}", column.type) for i, column in enumerate(columns)]
    key = KeyType.of(fields, data.draw(st.none() | st.integers(1, len(fields))))
    keys = key.encode(columns)
    wanted = [pa.array(column.to_pylist(), SMALL.get(column.type, column.type)) for column in columns]
    decoded = key.decode(keys)
    for column in decoded:
        column.validate(full=True)
    assert decoded == wanted
    assert keys.spread.tolist() == xxhash64(columns[: key.leading]).tolist()
    assert keys.bins(1024).tolist() == bins_of(keys.spread, 1024).tolist()

    rows = data.draw(st.lists(st.integers(0, len(keys) - 1), max_size=9)) if len(keys) else []
    some = keys.take(np.array(rows, dtype=np.int64))
    again = key.encode([column.take(pa.array(rows, pa.int64())) for column in wanted])
    assert key.decode(some) == key.decode(again)
    for name in ("words", "offsets", "data", "spread"):
        one, other = getattr(some, name), getattr(again, name)
        assert (one is None) == (other is None)
        assert one is None or (one.dtype == other.dtype and one.tolist() == other.tolist())


@given(st.data())
def test_equal_bytes_mean_equal_keys(data):
    """Packed tuples are told apart however their texts are cut: ("a", "bc") is not ("ab", "c")."""
    pieces = st.text("ab", max_size=3)
    rows = data.draw(st.lists(st.tuples(pieces, pieces, st.integers(-1, 1)), min_size=2, max_size=12))
    key = KeyType((("a", pa.string()), ("b", pa.string()), ("c", pa.int8())))
    keys = key.encode(
        [pa.array(column, type_) for column, type_ in zip(zip(*rows, strict=True), key.types, strict=True)]
    )
    packed = [keys.data[keys.offsets[i] : keys.offsets[i + 1]].tobytes() for i in range(len(keys))]
    assert [[one == other for other in rows] for one in rows] == [[one == other for other in packed] for one in packed]
