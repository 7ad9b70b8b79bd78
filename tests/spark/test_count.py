"""Counts on real Spark: keys of every type reach the right worker, whatever computes them, and nothing is lost."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

import meander as me
from keys import KEYS, random_rows
from streams import PATIENCE_S, Feed, by_batch, cut, recounted, state_of, tuples

pytestmark = pytest.mark.spark

NOW = {"availableNow": True}


def test_counts_by_a_key_of_every_type_equal_a_recount(spark, tmp_path):
    rng = random.Random("every type")
    columns = {}
    for kind in KEYS:
        rows = random_rows(kind, 60, random.Random(kind))
        columns |= {name: rows[name] for name in KEYS[kind]}
    key = list(columns)
    some = pa.table(columns)
    rows = some.take(pa.array([rng.randrange(60) for _ in range(900)]))
    rows = rows.append_column("ignored", pa.array([rng.random() for _ in range(900)]))
    batches = [*cut(rows, 3, rng), rows.slice(0, 0)]
    feed = Feed(tmp_path / "in", rows.schema, parts=2).add(*batches)
    sink = me.sinks.memory("counts")
    stream = me.stream(feed.read(spark)).key_by(*key).count()
    query = stream.start(tmp_path / "ck", sink, workers=2, snapshot_every=3, trigger=NOW)
    assert query.await_termination(PATIENCE_S)

    emitted = by_batch(sink.to_arrow(), key)
    assert {number: found for number, found in enumerate(recounted(batches, key)) if found} == emitted
    total = {each: tuples(rows, key).count(each) for each in set(tuples(rows, key))}
    assert {tuple(row[name] for name in key): row["count"] for row in sink.latest(*key)} == total
    assert {tuple(row[name] for name in key): row["count"] for row in state_of(tmp_path / "ck")} == total
    assert query.misrouted == 0
    assert sum(progress.rows for progress in query.recent_progress) == rows.num_rows
    assert query.version == len(batches) - 1


def test_a_stream_without_a_key_has_one_count(spark, tmp_path):
    rows = random_rows("bigint", 200, random.Random(1))
    feed = Feed(tmp_path / "in", rows.schema).add(rows.slice(0, 150), rows.slice(150))
    sink = me.sinks.memory()
    query = me.stream(feed.read(spark)).key_by().count("n").start(tmp_path / "ck", sink, workers=2, trigger=NOW)
    query.await_termination(PATIENCE_S)
    assert sink.to_arrow()["n"].to_pylist() == [150, 200]
    assert query.misrouted == 0


def test_a_key_can_be_an_expression(spark, tmp_path):
    from pyspark.sql import functions as F

    rows = pa.table({"word": ["Duck", "duck", "DUCK", "goose"]})
    feed = Feed(tmp_path / "in", rows.schema).add(rows)
    sink = me.sinks.memory()
    stream = me.stream(feed.read(spark)).key_by(F.lower("word").alias("word")).count()
    stream.start(tmp_path / "ck", sink, workers=2, trigger=NOW).await_termination(PATIENCE_S)
    assert {row["word"]: row["count"] for row in sink.latest("word")} == {"duck": 3, "goose": 1}


def test_a_batch_too_large_for_one_hand_over_goes_in_parts(spark, tmp_path):
    rng = random.Random(31)
    rows = pa.table({"word": [f"{rng.randrange(4000):>70}" for _ in range(20_000)]})
    batches = [rows.slice(0, 12_000), rows.slice(12_000, 10), rows.slice(12_010)]
    feed = Feed(tmp_path / "in", rows.schema, parts=2).add(*batches)
    sink = me.sinks.memory()
    stream = me.stream(feed.read(spark)).key_by("word").count().key_by().aggregate(total=("sum", "count"))
    query = stream.start(tmp_path / "ck", sink, workers=2, bins=64, hand_over_bytes=1 << 16, trigger=NOW)
    query.await_termination(PATIENCE_S)
    assert query.misrouted == 0
    assert [progress.rows for progress in query.recent_progress] == [12_000, 10, 7_990]
    expected = recounted(batches, ["word"])
    total = {each: n for found in expected for each, n in found.items()}
    assert {(row["word"],): row["count"] for row in state_of(tmp_path / "ck", 0)} == total
    # Every update of a count is a row for the sum.
    sums = [sum(found.values()) for found in expected]
    assert sink.to_arrow()["total"].to_pylist() == [sum(sums[: at + 1]) for at in range(3)]
