"""Hashes, bins and checksums: numbers that Spark gave, and the edges of Arrow's layouts."""

import datetime as dt

import numpy as np
import pyarrow as pa
import pytest

from meander import InvalidOption
from meander.route import hashing
from meander.route import keys as keys_module
from meander.route.columns import view
from meander.route.hashing import bins_of, bits_of, checksum, xxhash64
from meander.route.keys import KeyType

TS = dt.datetime(2024, 2, 29, 12, 34, 56, 789012)

FROM_SPARK = [
    ([pa.array([True])], -6698625589789238999),
    ([pa.array([False])], 3614696996920510707),
    ([pa.array([-128], pa.int8())], 4160238337661960656),
    ([pa.array([-32768], pa.int16())], -904511417458573795),
    ([pa.array([0], pa.int32())], 3614696996920510707),
    ([pa.array([-1], pa.int32())], 2017008487422258757),
    ([pa.array([2**31 - 1], pa.int32())], 1508894993788531228),
    ([pa.array([0])], -5252525462095825812),
    ([pa.array([-1])], 3858142552250413010),
    ([pa.array([2**63 - 1])], -3246596055638297850),
    ([pa.array([dt.date(1969, 12, 31)])], 2017008487422258757),
    ([pa.array([TS], pa.timestamp("us"))], -2021281541725647388),
    ([pa.array([TS], pa.timestamp("us", tz="UTC"))], -2021281541725647388),
    ([pa.array([""])], -7444071767201028348),
    ([pa.array(["a"])], -8582455328737087284),
    ([pa.array(["abcd"])], -6810745876291105281),
    ([pa.array(["Meander 猫"])], -3569162999679572905),
    ([pa.array(["Meander 猫"], pa.large_string())], -3569162999679572905),
    ([pa.array(["x" * 31])], -1716462135722163746),
    ([pa.array(["xyz" * 33])], -8350225959625166037),
    ([pa.array([b"\x00\xff"])], 879945414100663330),
    ([pa.array([b"\x00\xff"], pa.large_binary())], 879945414100663330),
    ([pa.array(["ab"]), pa.array([7])], 436516240496923136),
    ([pa.array([1]), pa.array([None], pa.string()), pa.array(["b"])], 4647124895845870768),
    ([pa.array([None], pa.int32())], 42),
]


@pytest.mark.parametrize(("columns", "hash_"), FROM_SPARK)
def test_hashes_are_those_that_spark_gave(columns, hash_):
    assert xxhash64(columns).dtype == np.uint64
    assert xxhash64(columns).view(np.int64).tolist() == [hash_]


@pytest.mark.parametrize(
    "column",
    [
        pa.array([True, None, False, True, None, True]),
        pa.array([5, None, -7, 2**40, None, 1]),
        pa.array([5, None, -7, 2, None, 1], pa.int16()),
        pa.array(["", None, "abc", "é" * 40, None, "z"]),
        pa.array(["", None, "abc", "é" * 40, None, "z"], pa.large_string()),
    ],
)
def test_slices_and_chunks_hash_like_single_values(column):
    alone = [int(xxhash64([pa.array([value], column.type)])[0]) for value in column.to_pylist()]
    assert xxhash64([column]).tolist() == alone
    assert xxhash64([column.slice(1, 4)]).tolist() == alone[1:5]
    assert xxhash64([pa.chunked_array([column.slice(3), column.slice(0, 2)])]).tolist() == alone[3:] + alone[:2]
    assert xxhash64([pa.chunked_array([column.slice(2)])]).tolist() == alone[2:]
    assert xxhash64([column.slice(6)]).tolist() == []
    assert xxhash64([pa.chunked_array([], column.type)]).tolist() == []


def test_what_cannot_be_hashed_is_refused():
    with pytest.raises(InvalidOption, match="at least one column"):
        xxhash64([])
    with pytest.raises(InvalidOption, match="columns of 2 and 1 rows"):
        xxhash64([pa.array([1, 2]), pa.array([1])])
    for type_ in (pa.float64(), pa.uint8(), pa.timestamp("ms"), pa.date64(), pa.list_(pa.int64()), pa.decimal128(5, 2)):
        with pytest.raises(InvalidOption, match=r"cannot be hashed; keys are boolean, .* string or binary"):
            xxhash64([pa.array([], type_)])


def test_bins_are_the_high_bits():
    hashes = np.array([0, 1, 2**48 - 1, 2**48, 2**63, 2**64 - 1], dtype=np.uint64)
    for bits in range(17):
        bins = bins_of(hashes, 2**bits)
        assert bins.dtype == np.int32
        assert bins.tolist() == [int(each) >> (64 - bits) for each in hashes]
        assert bits_of(2**bits) == bits


@pytest.mark.parametrize(
    ("bins", "words"), [(100, "power of two, such as 64 or 128"), (0, "from 1 to 65536"), (131072, "from 1 to 65536")]
)
def test_numbers_of_bins_that_cannot_be_are_refused(bins, words):
    with pytest.raises(InvalidOption, match=words):
        bins_of(np.zeros(1, dtype=np.uint64), bins)


def test_checksums_are_the_published_xxh64_of_every_kind_of_buffer():
    assert checksum(b"") == 0xEF46DB3751D8E999
    assert checksum(b"a") == 0xD24EC4F1A98C6E5B
    assert checksum(b"abc") == 0x44BC2CF5AD770999
    text = b"Nobody inspects the spammish repetition"
    assert checksum(text) == 0xFBCEA83C8A378BF1
    assert checksum(bytearray(text)) == checksum(text)
    assert checksum(memoryview(b"." + text)[1:]) == checksum(text)
    assert checksum(pa.py_buffer(text)) == checksum(text)
    assert checksum(np.frombuffer(text, np.uint8)) == checksum(text)


def test_a_buffer_that_is_too_short_is_refused_and_an_unaligned_one_is_copied():
    buffer = pa.py_buffer(bytes(range(17)))
    with pytest.raises(InvalidOption, match="needs 24 bytes but has 17"):
        view(buffer, np.dtype(np.int64), 1, 2)
    words = view(buffer.slice(1), np.dtype("<i8"), 0, 2)
    assert words.flags.aligned
    assert words.tobytes() == bytes(range(1, 17))


def test_no_layout_of_arrow_makes_a_kernel_compile_again():
    """Numba has another type for read-only, for unaligned and for strided arrays, and would compile at run time."""
    owned, shared = np.arange(9), pa.py_buffer(bytes(80))
    locked = np.frombuffer(bytes(24), dtype=np.int64)
    ints = [pa.array(owned), pa.Array.from_buffers(pa.int64(), 9, [None, shared.slice(8)])]
    ints += [pa.Array.from_buffers(pa.int64(), 9, [None, shared.slice(3)]), pa.array(owned).slice(0, 9)]
    small = [pa.array(owned, pa.int32()), pa.array(owned % 2 == 0), pa.array([None, *owned[1:]], pa.int8())]
    text = [str(each) for each in owned]
    texts = [pa.array(text), pa.array(["", *text]).slice(1), pa.array(text, pa.large_string()), pa.array([""] * 9)]
    for column in [*ints, *small, *texts]:
        xxhash64([column])
        if not column.null_count:
            for columns in ([column], [column, ints[0]], [column, texts[0]]):
                key = KeyType(tuple((f"c{k}", each.type) for k, each in enumerate(columns)), leading=1)
                keys = key.encode(columns).take(owned[::2]).take(locked).take(owned[:0])
                assert len(key.decode(keys)) == len(columns)
    for module in (hashing, keys_module):
        kernels = [
            each for name, each in vars(module).items() if hasattr(each, "compiled") and not name.startswith("_")
        ]
        assert len(kernels) >= 4
        for each in kernels:
            assert len(each.compiled.signatures) <= 1, each.__name__
