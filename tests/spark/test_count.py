"""Counts on real Spark: any stream, any kind of key, any cut into batches, equal to a recount."""

from __future__ import annotations

import datetime as dt
import random

import pyarrow as pa
import pytest

import meander as me
from streams import PATIENCE_S, Feed, by_batch, cut, recounted, state_of, tuples

pytestmark = pytest.mark.spark

EPOCH = dt.date(1970, 1, 1)
KINDS = {
    "bigint": {"key": (pa.int64(), lambda n: [-(2**63), 2**63 - 1, 0, -1][n] if n < 4 else n * 7919 - 50_000)},
    "string": {"word": (pa.string(), lambda n: ["", " ", "ß", "猫\0🦆"][n] if n < 4 else f"word {n % 61}" * (n % 5))},
    "date": {"day": (pa.date32(), lambda n: EPOCH + dt.timedelta(days=n * 37 - 20_000))},
    "binary": {"raw": (pa.binary(), lambda n: bytes([n % 251]) * (n % 40))},
    "tuple": {
        "user": (pa.string(), lambda n: "u" * (n % 7)),
        "shop": (pa.int32(), lambda n: n % 11 - 5),
        "at": (pa.timestamp("us", tz="UTC"), lambda n: dt.datetime(2024, 1, 1, n % 3, tzinfo=dt.UTC)),
    },
}


def random_rows(kind: str, rows: int, rng: random.Random) -> pa.Table:
    """Rows with skewed keys of this kind, and a column that nobody counts."""
    numbers = [int(rng.paretovariate(0.4)) % 300 for _ in range(rows)]
    columns = {
        name: pa.array([make(n + (11 * at if n > 9 else 0)) for n in numbers], type_)
        for at, (name, (type_, make)) in enumerate(KINDS[kind].items())
    }
    return pa.table({**columns, "ignored": pa.array([rng.random() for _ in range(rows)])})


@pytest.mark.parametrize(
    ("kind", "bins", "workers"),
    [("bigint", 256, 2), ("string", 16, 2), ("tuple", 4096, 2), ("date", 2, 2), ("binary", 1, 1)],
)
def test_counts_equal_a_recount(spark, tmp_path, kind, bins, workers):
    rng = random.Random(f"{kind} {bins}")
    key = list(KINDS[kind])
    rows = random_rows(kind, rng.randint(300, 2000), rng)
    batches = cut(rows, rng.randint(4, 7), rng)
    batches.insert(rng.randrange(len(batches)), rows.slice(0, 0))
    feed = Feed(tmp_path / "in", rows.schema, parts=2).add(*batches)
    sink = me.sinks.memory("counts")
    stream = me.stream(feed.read(spark)).key_by(*key).count()
    query = stream.start(
        tmp_path / "ck", sink, workers=workers, bins=bins, snapshot_every=3, trigger={"availableNow": True}
    )
    assert query.await_termination(PATIENCE_S)

    expected = recounted(batches, key)
    emitted = by_batch(sink.to_arrow(), key)
    assert {number: found for number, found in enumerate(expected) if found} == emitted
    total = {each: tuples(rows, key).count(each) for each in set(tuples(rows, key))}
    assert {tuple(row[name] for name in key): row["count"] for row in sink.latest(*key)} == total
    assert {tuple(row[name] for name in key): row["count"] for row in state_of(tmp_path / "ck")} == total
    assert query.misrouted == 0
    assert sum(progress["rows"] for progress in query.recent_progress) == rows.num_rows
    assert query.version == len(batches) - 1


def test_another_cut_of_the_same_stream_ends_the_same(spark, tmp_path):
    rng = random.Random(3)
    rows = random_rows("string", 1500, rng)
    ends = []
    for attempt, batches in enumerate((1, 6)):
        feed = Feed(tmp_path / f"in{attempt}", rows.schema).add(*cut(rows, batches, rng))
        sink = me.sinks.memory()
        stream = me.stream(feed.read(spark)).key_by("word").count()
        query = stream.start(tmp_path / f"ck{attempt}", sink, workers=2, trigger={"availableNow": True})
        query.await_termination(PATIENCE_S)
        assert query.misrouted == 0
        ends.append({row["word"]: row["count"] for row in sink.latest("word")})
    assert ends[0] == ends[1]
    assert sum(ends[0].values()) == 1500


def test_a_stream_without_a_key_has_one_count(spark, tmp_path):
    rows = random_rows("bigint", 200, random.Random(1))
    feed = Feed(tmp_path / "in", rows.schema).add(rows.slice(0, 150), rows.slice(150))
    sink = me.sinks.memory()
    query = (
        me.stream(feed.read(spark))
        .key_by()
        .count("n")
        .start(tmp_path / "ck", sink, workers=2, trigger={"availableNow": True})
    )
    query.await_termination(PATIENCE_S)
    assert sink.to_arrow()["n"].to_pylist() == [150, 200]
    assert query.misrouted == 0


def test_a_key_can_be_an_expression(spark, tmp_path):
    from pyspark.sql import functions as F

    rows = pa.table({"word": ["Duck", "duck", "DUCK", "goose"]})
    feed = Feed(tmp_path / "in", rows.schema).add(rows)
    sink = me.sinks.memory()
    stream = me.stream(feed.read(spark)).key_by(F.lower("word").alias("word")).count()
    stream.start(tmp_path / "ck", sink, workers=2, trigger={"availableNow": True}).await_termination(PATIENCE_S)
    assert {row["word"]: row["count"] for row in sink.latest("word")} == {"duck": 3, "goose": 1}


def test_a_batch_too_large_for_one_hand_over_goes_in_parts(spark, tmp_path):
    rng = random.Random(31)
    rows = pa.table({"word": [f"{rng.randrange(4000):>70}" for _ in range(20_000)]})
    batches = [rows.slice(0, 12_000), rows.slice(12_000, 10), rows.slice(12_010)]
    feed = Feed(tmp_path / "in", rows.schema, parts=2).add(*batches)
    sink = me.sinks.memory()
    stream = me.stream(feed.read(spark)).key_by("word").count().key_by().aggregate(total=("sum", "count"))
    query = stream.start(
        tmp_path / "ck", sink, workers=2, bins=64, hand_over_bytes=1 << 16, trigger={"availableNow": True}
    )
    query.await_termination(PATIENCE_S)
    assert query.misrouted == 0
    assert [progress["rows"] for progress in query.recent_progress] == [12_000, 10, 7_990]
    expected = recounted(batches, ["word"])
    total = {each: n for found in expected for each, n in found.items()}
    assert {(row["word"],): row["count"] for row in state_of(tmp_path / "ck", 0)} == total
    # Every update of a count is a row for the sum.
    sums = [sum(found.values()) for found in expected]
    assert sink.to_arrow()["total"].to_pylist() == [sum(sums[: at + 1]) for at in range(3)]
