"""Rows that nobody expects, and what they come to: a result as in Spark, a dead letter, or one clear sentence.

With `test_bad_files` these are the inputs that a query must survive; the tests are named after them.
"""

import datetime as dt
import math
from zoneinfo import ZoneInfo

import pyarrow as pa
import pytest

import meander as me

BERLIN = ZoneInfo("Europe/Berlin")
LARGEST = 2**63 - 1


def keyed(columns, *key):
    return me.stream(me.testing.source(columns)).key_by(*(key or ("k",)))


def counted(columns, *key):
    return keyed(columns, *key).count()


def aggregated(kind, *functions):
    return keyed(f"k bigint, v {kind}").aggregate(**{each: (each, "v") for each in functions})


def hourly():
    return keyed("k bigint, at timestamp").window("at", "1 hour", lateness="1 day").count()


def of_bytes(*texts):
    """A column of strings of any bytes."""
    return pa.array(texts, pa.binary()).view(pa.string())


def utc(*when):
    return dt.datetime(*when, tzinfo=dt.UTC)


def hour(*when):
    """The window of an hour with one row of key 1."""
    return {"k": 1, "window_start": utc(*when), "window_end": utc(*when) + dt.timedelta(hours=1), "count": 1}


TAKEN = {
    "empty key": (counted("k string"), [{"k": ""}, {"k": "a"}] * 2, [{"k": "", "count": 2}, {"k": "a", "count": 2}]),
    "key of 1 MiB": (counted("k string"), [{"k": "x" * 2**20}] * 2, [{"k": "x" * 2**20, "count": 2}]),
    "key of NUL bytes": (
        counted("k binary"), [{"k": b"\0"}, {"k": b"\0\0"}], [{"k": b"\0", "count": 1}, {"k": b"\0\0", "count": 1}],
    ),
    "NaN": (
        aggregated("double", "sum", "min", "max"), [{"k": 1, "v": math.nan}, {"k": 1, "v": 2.0}],
        [{"k": 1, "sum": math.nan, "min": 2.0, "max": math.nan}],
    ),
    "-0.0": (
        aggregated("double", "min", "max"), [{"k": 1, "v": -0.0}, {"k": 1, "v": 0.0}],
        [{"k": 1, "min": 0.0, "max": 0.0}],
    ),
    "infinities of both signs": (
        aggregated("double", "sum"), [{"k": 1, "v": math.inf}, {"k": 1, "v": -math.inf}], [{"k": 1, "sum": math.nan}],
    ),
    "nothing but nulls": (
        aggregated("bigint", "sum", "count"), [{"k": 1, "v": None}], [{"k": 1, "sum": None, "count": 0}],
    ),
    "year 0001": (
        hourly(), [{"k": 1, "at": utc(1, 1, 1, 0, 30)}],
        [hour(1, 1, 1, 0)],
    ),
    "year 9999": (
        hourly(), [{"k": 1, "at": utc(9999, 12, 31, 22, 59)}],
        [hour(9999, 12, 31, 22)],
    ),
    "dates of the years 0001 and 9999": (
        counted("k date"), [{"k": dt.date(1, 1, 1)}, {"k": dt.date(9999, 12, 31)}],
        [{"k": dt.date(1, 1, 1), "count": 1}, {"k": dt.date(9999, 12, 31), "count": 1}],
    ),
    "the hour that summer time has twice": (
        hourly(), [{"k": 1, "at": dt.datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN, fold=fold)} for fold in (0, 1)],
        [hour(2026, 10, 25, 0), hour(2026, 10, 25, 1)],
    ),
    "the hour that summer time leaves out": (
        hourly(), [{"k": 1, "at": dt.datetime(2026, 3, 29, h, m, tzinfo=BERLIN)} for h, m in ((1, 59), (3, 0))],
        [hour(2026, 3, 29, 0), hour(2026, 3, 29, 1)],
    ),
    "a nested column that nobody asks for": (
        counted("k bigint, v array<struct<a:bigint>>"), [{"k": 1, "v": [{"a": 1}, None]}], [{"k": 1, "count": 1}],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TAKEN)
def test_taken(name):
    stream, rows, expected = TAKEN[name]
    with me.testing.harness(stream) as h:
        found = h.batch(rows)
        assert sorted(map(repr, found)) == sorted(repr(row) for row in _as_emitted(expected, h))
        assert h.dead() == h.late() == []
        h.rescale(3)
        h.lose(0)
        assert len(h.state()) == len(expected)


def _as_emitted(rows, h):
    """The rows with times as Arrow gives them."""
    schema = h.sink.versions[0].schema
    return pa.Table.from_pylist(rows, schema).to_pylist()


DEAD = {
    "null key": (counted("k string"), {"k": [None, "a"]}, "the key column k is null", '{"k": null}'),
    "null in a part of a key": (
        counted("a string, b bigint", "a", "b"), {"a": ["x", "x"], "b": [None, 1]}, "the key column b is null",
        '{"a": "x", "b": null}',
    ),
    "key that is no UTF-8": (
        counted("k string"), {"k": of_bytes(b"\xff\xfe", b"a")}, "column k is not valid UTF-8",
        '{"k": "\\ufffd\\ufffd"}',
    ),
    "text that is no UTF-8": (
        keyed("k bigint, v string").aggregate(v=("max", "v")), {"k": [1, 2], "v": of_bytes(b"\xc3\x28", b"a")},
        "column v is not valid UTF-8", '{"k": 1, "v": "\\ufffd("}',
    ),
    "sum that leaves the range of bigint": (
        aggregated("bigint", "sum"), {"k": [1, 2], "v": [LARGEST, 5]},
        "the sum 'sum' of column 'v' leaves the range of bigint for the key 1 in bin", f'{{"k": 1, "v": {LARGEST}}}',
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DEAD)
def test_dead_letter(name):
    """The row is set aside with its reason, every time that it comes; the others go on."""
    stream, columns, reason, shown = DEAD[name]
    with me.testing.harness(stream) as h:
        if "sum" in name:
            h.batch([{"k": 1, "v": 1}])
        for count in (1, 2):
            assert len(h.batch(pa.table(columns))) == 1
            letters = h.dead()
            assert len(letters) == count
            assert all(letter["reason"].startswith(reason) and letter["row"] == shown for letter in letters)
            assert h.query.last_progress.dead == 1
            h.restart()
        assert h.query.is_active


def test_a_sum_in_a_window_that_overflows_takes_the_rows_of_its_key_alone_along():
    """All rows of the key in that batch: which of them is one too many depends on their order."""
    stream = keyed("k bigint, at timestamp, v bigint").window("at", "1 hour").aggregate(total=("sum", "v"))
    at = utc(2026, 1, 1, 10)
    with me.testing.harness(stream) as h:
        first = h.batch(
            [{"k": 1, "at": at, "v": LARGEST}, {"k": 2, "at": at, "v": LARGEST}, {"k": 3, "at": at, "v": 1}]
        )
        assert sorted(row["k"] for row in first) == [1, 2, 3]
        second = h.batch([{"k": k, "at": at, "v": v} for k, v in ((1, 1), (1, -1), (2, 1), (2, 1), (3, 1))])
        assert sorted((row["k"], row["total"]) for row in second) == [(1, LARGEST), (3, 2)]
        assert [letter["row"].count('"k": 2') for letter in h.dead()] == [1, 1]
        assert {row["k"]: row["total"] for row in h.state()} == {1: LARGEST, 2: LARGEST, 3: 2}
        h.restart()
        assert [row["total"] for row in h.batch([{"k": 2, "at": at, "v": -1}])] == [LARGEST - 1]


def nested():
    return pa.schema([("k", pa.list_(pa.int64())), ("v", pa.map_(pa.string(), pa.int64()))])


REFUSED = {
    "a double as a key": (lambda: counted("k double"), "column 'k' of type double cannot be part of a key; keys are"),
    "a decimal as a key": (lambda: counted("k decimal(9,2)"), "column 'k' of type decimal128"),
    "an array as a key": (lambda: counted(nested()), "column 'k' of type list<item: int64> cannot be part of a key"),
    "a map as a key": (lambda: counted(nested(), "v"), "cannot be part of a key"),
    "the sum of decimals": (lambda: aggregated("decimal(9,2)", "sum"), "of type decimal128(9, 2); cast it to double"),
    "the sum of arrays": (lambda: aggregated("array<bigint>", "sum"), "it needs numbers"),
    "the sum of a column that is not there": (
        lambda: keyed("k bigint").aggregate(n=("sum", "v")), "names the column 'v'; the columns are k",
    ),
    "a key that is not there": (lambda: counted("k bigint", "z"), "there is no column 'z' to key by; there are: k"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    build, sentence = REFUSED[name]
    with pytest.raises(me.InvalidOption) as refusal:
        me.testing.harness(build())
    assert sentence in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        (pa.table({"k": ["a"]}), "the rows have no column 'v'; the columns are k, v"),
        ([{"k": "a", "w": 1}], "there is no column 'w'; the columns are k, v"),
        (pa.table({"k": ["a"], "v": ["x"]}), "the rows do not fit the columns of the source: "),
        ([{"k": "a", "v": "x"}], "the rows do not fit the columns of the source: "),
    ],
    ids=["a column that vanishes", "a column that comes", "a column of another type", "a value of another type"],
)
def test_columns_that_change(rows, sentence):
    with me.testing.harness(counted("k string, v bigint")) as h:
        with pytest.raises(me.InvalidOption) as refusal:
            h.batch(rows)
        assert str(refusal.value).startswith(sentence)
        assert h.batch([{"k": "a", "v": 1}]) == [{"k": "a", "count": 1}]


def test_a_row_without_a_time_is_late():
    with me.testing.harness(hourly()) as h:
        assert h.batch([{"k": 1, "at": None}]) == []
        assert [row["k"] for row in h.late()] == [1]
