"""A checkpoint in one's hands, on Spark: its state as a DataFrame, and going back with a source of files."""

from __future__ import annotations

import random
from collections import Counter

import pyarrow as pa
import pytest

import meander as me
from meander.datasource import register
from meander.store.reader import Reader
from streams import PATIENCE_S, Feed, as_ints

pytestmark = pytest.mark.spark

NOW = {"availableNow": True}


def run(stream, folder, out):
    query = stream.start(folder / "ck", me.sinks.files(str(out)), workers=2, bins=16, trigger=NOW)
    query.await_termination(PATIENCE_S)


def recount(batches):
    return dict(Counter(key for batch in batches for key in batch["key"].to_pylist()))


def test_what_a_source_of_files_brings_again_gives_the_same_state_and_output(spark, tmp_path):
    rng = random.Random(3)
    batches = [as_ints([rng.randrange(30) for _ in range(40)]) for _ in range(13)]
    feed = Feed(tmp_path / "in", batches[0].schema).add(*batches[:12])
    out = tmp_path / "out"
    stream = me.stream(feed.read(spark)).key_by("key").count()
    run(stream, tmp_path, out)
    checkpoint = me.checkpoint(tmp_path / "ck")
    assert [each.batch for each in checkpoint.versions()] == list(range(12)), "so Spark has compacted its log of files"

    frame = checkpoint.state("count", spark)
    assert {row["key"]: row["count"] for row in frame.collect()} == recount(batches[:12])
    old = checkpoint.state("count", spark, version=4)
    assert {row["key"]: row["count"] for row in old.collect()} == recount(batches[:5])
    assert old.count() == len(recount(batches[:5]))

    rollback = checkpoint.rollback(4)
    assert (rollback.number, rollback.batches) == (12, 7)
    assert {row["key"]: row["count"] for row in checkpoint.state("count", spark).collect()} == recount(batches[:5])
    assert sorted(spark.read.parquet(str(out)).select("batch").distinct().toPandas()["batch"]) == [0, 1, 2, 3, 4]

    feed.add(batches[12])
    run(stream, tmp_path, out)
    run(stream, tmp_path, out)
    assert {row["key"]: row["count"] for row in checkpoint.state("count", spark).collect()} == recount(batches)
    rows = sorted(spark.read.parquet(str(out)).collect(), key=lambda row: row["batch"])
    assert {row["key"]: row["count"] for row in rows} == recount(batches)
    assert min(row["batch"] for row in rows if row["batch"] > 4) == 13
    assert not checkpoint.verify().damaged


def test_conditions_on_the_key_read_one_bin(spark, tmp_path):
    register(spark)
    schema = pa.schema([("user", pa.string()), ("day", pa.int64())])
    rows = pa.table({"user": [f"u{n % 50}" for n in range(200)], "day": [n % 2 for n in range(200)]}, schema=schema)
    stream = me.stream(Feed(tmp_path / "in", schema).add(rows).read(spark)).key_by("user", "day").count()
    run(stream, tmp_path, tmp_path / "out")
    frame = spark.read.format("meander").option("operator", "count").load(str(tmp_path / "ck"))
    assert frame.columns == ["bin", "user", "day", "count"]
    one = me.checkpoint(tmp_path / "ck").state("count", spark, where="user = 'u8' AND day = 0")
    assert [(row["user"], row["day"], row["count"]) for row in one.collect()] == [("u8", 0, 4)]
    assert one.rdd.getNumPartitions() == 1
    assert frame.rdd.getNumPartitions() == 16
    assert frame.where("user = 'u8'").count() == 1
    assert frame.count() == 50, "what one query filters by is not left to the next"
    assert frame.where("count > 3 AND user = 'u9' AND day = 1").count() == 1
    half = spark.read.format("meander").option("operator", 0).option("where", "day = 1").load(str(tmp_path / "ck"))
    assert (half.count(), half.rdd.getNumPartitions()) == (25, 16)
    bins = {row["user"]: row["bin"] for row in frame.collect()}
    pieces = Reader.open(tmp_path / "ck").state(0, "count")
    assert bins == {row["user"]: row["bin"] for piece in pieces for row in piece.to_pylist()}


def test_slips_are_one_sentence(spark, tmp_path):
    register(spark)
    with pytest.raises(Exception, match="name the checkpoint and the operator"):
        spark.read.format("meander").load(str(tmp_path))
    with pytest.raises(Exception, match="there is no checkpoint at"):
        spark.read.format("meander").option("operator", "count").load(str(tmp_path / "none"))
