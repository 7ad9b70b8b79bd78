"""Keys as words and bytes: what the layouts are, what is refused and what is not copied."""

import pickle
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest

from meander import InvalidOption, TooLarge
from meander.route import columns
from meander.route import keys as keys_module
from meander.route.hashing import xxhash64
from meander.route.keys import KeyType

US = pa.timestamp("us", tz="UTC")


def key(*types: pa.DataType, leading: int | None = None) -> KeyType:
    """The key of columns a, b, c... of these types."""
    return KeyType(tuple(zip("abcdef", types, strict=False)), leading)


def test_one_column_of_fixed_width_is_a_word():
    for type_, values in [
        (pa.bool_(), [True, False]), (pa.int8(), [-128, 127]), (pa.int32(), [-(2**31), 5]), (pa.int64(), [-(2**63), 5]),
    ]:  # fmt: skip
        keys = key(type_).encode([pa.array(values, type_)])
        assert not key(type_).wide
        assert keys.words.dtype == np.int64
        assert keys.words.tolist() == [int(each) for each in values]
        assert keys.offsets is None
        assert keys.data is None
        with pytest.raises(InvalidOption, match="the key a is a word"):
            _ = keys.packed


def test_one_text_is_its_bytes_and_arrows_memory():
    column = pa.array(["skipped", "ab", "", "é"])
    keys = key(pa.string()).encode([column.slice(1)])
    assert key(pa.string()).wide
    assert keys.words is None
    assert keys.offsets.tolist() == [0, 2, 2, 4]
    assert keys.data.tobytes() == "abé".encode()
    assert keys.data.ctypes.data == column.buffers()[2].address + len("skipped")
    numbers = pa.array([1, 2, 3])
    assert key(pa.int64()).encode([numbers]).words.ctypes.data == numbers.buffers()[1].address


def test_a_tuple_is_eight_bytes_or_a_length_and_bytes_for_each_column():
    keys = key(pa.int16(), pa.binary(), US).encode(
        [pa.array([-2], pa.int16()), pa.array([b"xyz"]), pa.array([258], pa.int64()).cast(US)]
    )
    assert keys.data.tobytes() == b"\xfe" + b"\xff" * 7 + b"\x03\0\0\0xyz" + b"\x02\x01" + b"\0" * 6
    assert keys.offsets.tolist() == [0, 23]
    fixed = key(pa.int64(), pa.bool_()).encode([pa.array([1, 2]), pa.array([True, False])])
    assert fixed.data.tobytes() == np.array([1, 1, 2, 0], dtype="<i8").tobytes()
    assert fixed.offsets.tolist() == [0, 16, 32]


def test_leading_columns_alone_choose_the_bin():
    columns_ = [pa.array(["u", "u", "v"]), pa.array([1, 2, 1])]
    keys = key(pa.string(), pa.int64(), leading=1).encode(columns_)
    assert keys.spread.tolist() == xxhash64(columns_[:1]).tolist()
    assert keys.bins(256).tolist() == [int(each) >> 56 for each in xxhash64(columns_[:1])]
    assert keys.bins(256)[0] == keys.bins(256)[1]
    assert keys.take(np.array([2, 0])).spread.tolist() == [keys.spread[2], keys.spread[0]]
    everything = key(pa.string(), pa.int64()).encode(columns_)
    assert everything.spread.tolist() == xxhash64(columns_).tolist()
    assert everything.take(np.array([1])).spread.tolist() == [everything.spread[1]]


def test_key_types_are_values():
    large = KeyType.of(pa.schema([("a", pa.large_string()), ("b", pa.large_binary())]), leading=2)
    assert large == key(pa.string(), pa.binary())
    assert large.leading is None
    assert large.names == ("a", "b")
    assert large.types == (pa.string(), pa.binary())
    assert hash(large) == hash(key(pa.string(), pa.binary()))
    assert key(pa.string(), pa.int64(), leading=1) != key(pa.string(), pa.int64())
    assert pickle.loads(pickle.dumps(large)) == large


@pytest.mark.parametrize(
    "type_",
    [pa.float64(), pa.uint32(), pa.date64(), pa.timestamp("ns"), pa.decimal128(9, 2), pa.list_(pa.int8()), pa.null()],
)
def test_types_that_are_no_keys_are_refused_by_name(type_):
    with pytest.raises(InvalidOption) as refusal:
        KeyType.of([pa.field("user", pa.string()), pa.field("price", type_)])
    assert f"column 'price' of type {type_} cannot be part of a key; keys are boolean" in str(refusal.value)


def test_key_types_that_make_no_sense_are_refused():
    with pytest.raises(InvalidOption, match="at least one column"):
        KeyType(())
    with pytest.raises(InvalidOption, match="'user' is twice"):
        KeyType((("user", pa.int64()), ("user", pa.string())))
    for leading in (0, 3):
        with pytest.raises(InvalidOption, match=f"leading is {leading}; .* from 1 to 2"):
            key(pa.int64(), pa.string(), leading=leading)


def test_columns_that_do_not_fit_are_refused():
    two = key(pa.int64(), pa.string())
    with pytest.raises(InvalidOption, match="the key a, b has 2 columns, not 1"):
        two.encode([pa.array([1])])
    with pytest.raises(InvalidOption, match="key column 'a' is int32, not int64"):
        two.encode([pa.array([1], pa.int32()), pa.array(["x"])])
    with pytest.raises(InvalidOption, match="key column 'b' is binary, not string"):
        two.encode([pa.array([1]), pa.array([b"x"])])
    with pytest.raises(InvalidOption, match="key column 'b' has 2 nulls"):
        two.encode([pa.array([1, 2, 3]), pa.array([None, "x", None])])
    with pytest.raises(InvalidOption, match="columns of 1 and 2 rows"):
        two.encode([pa.array([1]), pa.array(["x", "y"])])
    with pytest.raises(InvalidOption, match=r"key column 'a' is int64, not timestamp\[us, tz=UTC\]"):
        key(US).encode([pa.array([1])])


def test_only_the_instant_of_a_timestamp_counts_and_the_declared_zone_comes_back():
    other = pa.array([7], pa.timestamp("us", tz="Asia/Tokyo"))
    keys = key(US).encode([other])
    assert keys.words.tolist() == [7]
    assert key(US).decode(keys)[0].equals(pa.array([7], US))


@pytest.mark.parametrize("rows", [[-1], [3], [0, 3]])
@pytest.mark.parametrize("column", [pa.array([1, 2, 3]), pa.array(["a", "b", "c"])])
def test_rows_that_are_not_there_cannot_be_taken(rows, column):
    with pytest.raises(InvalidOption, match="of 3 keys"):
        key(column.type).encode([column]).take(np.array(rows))


def test_columns_beyond_two_gigabytes_are_joined_or_refused(monkeypatch):
    monkeypatch.setattr(columns, "LARGEST_OFFSET", 10)
    monkeypatch.setattr(keys_module, "LARGEST_OFFSET", 10)
    halves = pa.chunked_array([["abcdef"], ["ghijkl", "m"]])
    assert columns.whole_column(halves).type == pa.large_string()
    keys = key(pa.string()).encode([halves])
    assert keys.data.tobytes() == b"abcdefghijklm"
    with pytest.raises(TooLarge, match="cannot hold 13 bytes; take fewer rows"):
        key(pa.string()).decode(keys)
    pair = key(pa.string(), pa.int64())
    assert len(pair.encode([halves, pa.array([1, 2, 3])])) == 3
    with pytest.raises(TooLarge, match="column 0 of a key has a value of more than 10 bytes"):
        pair.encode([pa.array(["abcdefghijklm"]), pa.array([1])])


def test_decoded_columns_outlive_everything_they_were_made_of():
    decoded = key(pa.string()).decode(key(pa.string()).encode([pa.array([f"user {i}" for i in range(1000)])]))[0]
    np.full(20000, 255, np.uint8)
    decoded.validate(full=True)
    assert decoded[999].as_py() == "user 999"


def test_the_room_loads_neither_numba_nor_spark():
    code = (
        "import sys, meander.route, meander.route.schema;"
        "print([m for m in ('numba', 'pyspark', 'pandas') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
