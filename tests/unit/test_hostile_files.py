"""State files that lie, under right checksums: Damaged with the file's name, and never a crash in a kernel.

All of it happens in a child, since a wrong check would end the process. Run as a script, this module is that child: it
prints one line for each file that it has read.
"""

import json
import os
import struct
import subprocess
import sys
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from meander.errors import Damaged, InvalidOption
from meander.route.hashing import checksum
from meander.route.keys import KeyType
from meander.state.holding import Holding
from meander.state.spec import BIN, TableSpec
from meander.store import statefile

BINS = 8
NAME = "deltas/v000000000003-s0-w1-7.2.state"
TAIL = struct.Struct("<IQQ8s")
HOSTILE = (
    0,
    1,
    -1,
    7,
    2**31 - 1,
    2**31,
    2**32,
    2**62,
    2**63 - 1,
    2**63,
    2**64,
    -(2**63),
    10**30,
    1.5,
    None,
    True,
    "",
    [],
)

WORDS = TableSpec(
    "words", KeyType((("w", pa.string()), ("k", pa.int64())), 1),
    (("n", pa.int64()), ("text", pa.string()), ("flag", pa.bool_()), ("price", pa.decimal128(9, 2))),
)  # fmt: skip
COUNTS = TableSpec("counts", KeyType((("k", pa.int64()),)), (("n", pa.int64()),))


def tables():
    """The rows of two tables, by bin."""
    made = {}
    words, numbers = [f"word {k}" * (k % 3) for k in range(9)], list(range(9))
    for spec, columns in (
        (WORDS, [pa.array(words), pa.array(numbers)]),
        (COUNTS, [pa.array(numbers)]),
    ):
        bins = spec.key.encode(columns).bins(BINS)
        values = [
            pa.array(
                [{"n": k, "text": "ab" * k or None, "flag": k > 3, "price": Decimal(k)}[name] for k in numbers], kind
            )
            for name, kind in spec.values
        ]
        table = pa.Table.from_arrays(
            [pa.array(bins, pa.int32()), pa.array([False] * 9), *columns, *values], schema=spec.schema
        )
        made[spec.name] = table.take(np.argsort(bins, kind="stable"))
    return made


class File:
    """A state file taken apart, to be put together with other numbers and right checksums."""

    def __init__(self, data):
        length, _, _, self.magic = TAIL.unpack(data[-TAIL.size :])
        self.footer = json.loads(data[-TAIL.size - length : -TAIL.size])
        self.body = bytearray(data[: -TAIL.size - length])

    def stretches(self):
        for section in self.footer["sections"].values():
            yield from section["pieces"]
            yield section["index"]

    def sealed(self):
        """The file, every checksum made right as far as its numbers make sense."""
        for stretch in self.stretches():
            if all(isinstance(each, int) for each in stretch[:2]):
                part = bytes(self.body[slice(*_ends(stretch[0], stretch[1]))])
                stretch[-1] = f"{checksum(part):016x}"
        return self.closed(json.dumps(self.footer).encode())

    def closed(self, footer, length=None):
        size = len(self.body) + len(footer) + TAIL.size
        seal = checksum(footer + struct.pack("<Q", size))
        return bytes(self.body) + footer + TAIL.pack(len(footer) if length is None else length, size, seal, self.magic)


def _ends(offset, length):
    return max(0, offset), max(0, offset + length)


def numbers_of(place, path=()):
    """Where in the footer a number stands."""
    inside = place.items() if isinstance(place, dict) else enumerate(place) if isinstance(place, list) else ()
    for key, value in inside:
        if isinstance(value, int):
            yield (*path, key)
        else:
            yield from numbers_of(value, (*path, key))


def footers(data):
    """Every number of the footer with every hostile value, and footers of another shape."""
    for path in list(numbers_of(File(data).footer)):
        for value in HOSTILE:
            file = File(data)
            place = file.footer
            for key in path[:-1]:
                place = place[key]
            if place[path[-1]] != value or isinstance(value, bool):
                place[path[-1]] = value
                yield f"{'.'.join(map(str, path))} = {value!r}", file.sealed()
    for change in ("pieces", "index", "rows", "offset"):
        for value in ([], {}, None, [[]], "x", [[1, 2]]):
            file = File(data)
            file.footer["sections"]["words"][change] = value
            yield f"{change} = {value!r}", file.closed(json.dumps(file.footer).encode())
    for footer in (b"", b"[]", b"{}", b"null", b"7", b"\xff", b"[" * 100_000, b'{"bins":8,"sections":[]}'):
        yield f"footer {footer[:30]!r}", File(data).closed(footer)
    for length in (0, 1, len(data), 2**32 - 1):
        yield f"length of the footer = {length}", File(data).closed(json.dumps(File(data).footer).encode(), length)


def indexes(data):
    """Every entry of an index with hostile values, out of order and overlapping."""
    for name, section in File(data).footer["sections"].items():
        offset, length, _ = section["index"]
        count = length // 12
        for at in range(2 * count):
            width, kind = (8, "<q") if at < count else (4, "<i")
            place = offset + (8 * at if at < count else 8 * count + 4 * (at - count))
            for value in (0, -1, 1, 2**31 - 1, -(2**31), *((2**63 - 1, -(2**63)) if width == 8 else ())):
                file = File(data)
                if bytes(file.body[place : place + width]) != struct.pack(kind, value):
                    file.body[place : place + width] = struct.pack(kind, value)
                    yield f"index of {name}, entry {at} = {value}", file.sealed()


def words(data):
    """Every word of the Arrow streams with hostile values: offsets, lengths and counts, and values of rows."""
    stop = min(section["index"][0] for section in File(data).footer["sections"].values())
    for at in range(8, stop, 4):
        for value in (-1, 1 << 20):
            file = File(data)
            if bytes(file.body[at : at + 4]) != struct.pack("<i", value):
                file.body[at : at + 4] = struct.pack("<i", value)
                yield f"bytes from {at} = {value}", file.sealed()


def outcome(data, holding):
    """What reading a file comes to, whole and by bins, and taking its rows into state."""
    found = []
    for bins in (None, np.arange(1, 7)):
        try:
            rows = statefile.read(data, bins, name=NAME)
        except Damaged as problem:
            found.append("damaged" if NAME in str(problem) and "\n" not in str(problem) else f"unclear: {problem}")
            continue
        if bins is not None:
            found.append("read")
            continue
        holding.reset()
        try:
            holding.install(np.arange(BINS), [rows], 0)
            holding.extract(np.arange(BINS))
            found.append("taken")
        except InvalidOption:
            found.append("refused")
    return " ".join(found)


MADE = {"footers": footers, "indexes": indexes, "words": words}


@pytest.mark.parametrize("what", MADE)
def test_a_state_file_that_lies_is_damaged_and_ends_no_process(what, tmp_path):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, __file__, what, str(tmp_path)]
    child = subprocess.run(command, capture_output=True, text=True, env=environment)
    lines = child.stdout.splitlines()
    assert child.returncode == 0, f"{lines[-1:]} ended the process: {child.stderr[-2000:]}"
    results = dict(line.rsplit(": ", 1) for line in lines)
    assert len(results) > 100
    if what == "words":
        wrong = {
            case
            for case, result in results.items()
            if not set(result.split()) <= {"damaged", "read", "taken", "refused"}
        }
        assert sum("damaged" in result for result in results.values()) > len(results) / 4
    else:
        wrong = {case for case, result in results.items() if result != "damaged damaged"}
    assert not wrong, {case: results[case] for case in wrong}


def test_the_file_that_the_others_are_made_of_is_whole(tmp_path):
    data = statefile.write(tables(), BINS).data.to_pybytes()
    assert File(data).sealed() == data
    assert outcome(data, Holding.open(tmp_path, [WORDS, COUNTS], BINS)) == "taken read"


@pytest.mark.parametrize(
    ("data", "offsets", "is_whole"),
    [
        (b"abcd", [0, 3, 4], True),
        (b"abcd", [0, 9, 4], False),
        (b"abcd", [0, -1, 4], False),
        (b"\xc3\xa9ab", [0, 2, 4], True),
        (b"\xc3\xa9ab", [0, 1, 4], False),
        (b"\xc3\xa9ab", [0, 9, 4], False),
        (b"ab\xff\xfe", [0, 2, 4], False),
    ],
)
def test_texts_are_checked_whether_they_are_ascii_or_not(data, offsets, is_whole):
    buffers = [None, pa.py_buffer(np.array(offsets, np.int32)), pa.py_buffer(data)]
    bins, texts = pa.array([0, 1], pa.int32()), pa.Array.from_buffers(pa.string(), 2, buffers)
    file = statefile.write({"t": pa.table({BIN: bins, "text": texts})}, BINS).data
    if is_whole:
        expected = [data[: offsets[1]].decode(), data[offsets[1] :].decode()]
        assert statefile.read(file)["t"]["text"].to_pylist() == expected
    else:
        with pytest.raises(Damaged, match="no Arrow data"):
            statefile.read(file)


@pytest.mark.parametrize("deleted", [True, False], ids=["deleted", "written"])
def test_a_delta_that_names_a_key_twice_is_refused(tmp_path, deleted):
    """A longer text after a shorter one of the same row would need space that nobody has reserved."""
    holding = Holding.open(tmp_path, [WORDS], BINS)
    rows = tables()["words"]
    holding.install(np.arange(BINS), [{"words": rows}], 0)
    one = rows.filter(pa.compute.equal(rows["k"], 8))
    texts = [pa.array([text]) for text in ("", "a" * 16)]
    at = one.schema.get_field_index("text")
    twice = pa.concat_tables([one.set_column(at, one.schema.field("text"), text) for text in texts])
    if deleted:
        twice = twice.set_column(1, one.schema.field(1), pa.array([True, True]))
    for _ in range(40):
        try:
            holding.advance(holding.version + 1, {"words": twice})
        except InvalidOption as problem:
            assert "table 'words' names a key twice" in str(problem)  # noqa: PT017
            break
    else:
        pytest.fail("the delta was taken again and again")


def main(what, folder):
    holding = Holding.open(Path(folder), [WORDS, COUNTS], BINS)
    for case, data in MADE[what](statefile.write(tables(), BINS).data.to_pybytes()):
        print(case, end=": ", flush=True)
        print(outcome(data, holding), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
