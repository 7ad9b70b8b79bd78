"""Starting on Spark, and starting again: what is refused, and what Spark's own part of a checkpoint must hold."""

from __future__ import annotations

import shutil

import pyarrow as pa
import pytest

import meander as me
from meander.errors import ChangedQuery, ForeignCheckpoint
from meander.store.reader import Reader
from streams import PATIENCE_S, Feed, as_ints, by_batch, side_of

pytestmark = pytest.mark.spark

NOW = {"availableNow": True}


def committed(checkpoint) -> int:
    """The last committed version, read from the checkpoint alone."""
    return Reader.open(checkpoint).log.index.version


def is_one_sentence(error: BaseException) -> bool:
    text = str(error)
    return bool(text) and "\n" not in text and len(text) < 500 and "Traceback" not in text


@pytest.fixture
def kept(spark, tmp_path):
    """A checkpoint with two versions, and the feed that it has read."""
    schema = pa.schema([("key", pa.int64()), ("word", pa.string())])
    rows = pa.table({"key": [1, 2, 1], "word": ["a", "b", "a"]}, schema=schema)
    feed = Feed(tmp_path / "in", schema).add(rows, rows)
    stream = me.stream(feed.read(spark)).key_by("key").count()
    stream.start(tmp_path / "ck", me.sinks.memory(), workers=2, bins=64, trigger=NOW).await_termination(PATIENCE_S)
    return feed


def test_another_query_or_a_reset_or_foreign_spark_part_is_refused_and_harms_nothing(spark, tmp_path, kept):
    ours, spare = tmp_path / "ck" / "spark", tmp_path / "spare"
    stream = me.stream(kept.read(spark)).key_by("key").count()
    other = stream.start(tmp_path / "other", me.sinks.memory(), workers=2, bins=64, trigger=NOW)
    other.await_termination(PATIENCE_S)

    def refused():
        with pytest.raises(ForeignCheckpoint) as caught:
            stream.start(tmp_path / "ck", me.sinks.memory(), workers=2, bins=64, trigger=NOW)
        assert is_one_sentence(caught.value)
        assert "new checkpoint" in str(caught.value)
        assert committed(tmp_path / "ck") == 1

    shutil.move(ours, spare)
    refused()
    shutil.copytree(tmp_path / "other" / "spark", ours)
    refused()
    shutil.rmtree(ours)
    shutil.copytree(spare, ours)
    # The id is right, and what Spark knows of its batches is gone.
    shutil.rmtree(ours / "offsets")
    shutil.rmtree(ours / "commits")
    refused()
    shutil.rmtree(ours)
    shutil.move(spare, ours)
    with pytest.raises(ChangedQuery, match="64 bins, not 128"):
        stream.start(tmp_path / "ck", me.sinks.memory(), workers=2, bins=128, trigger=NOW)
    kept.add(pa.table({"key": [2], "word": ["z"]}, schema=kept.schema))
    sink = me.sinks.memory()
    stream.start(tmp_path / "ck", sink, workers=2, bins=64, trigger=NOW).await_termination(PATIENCE_S)
    assert sink.latest("key") == [{"key": 2, "count": 3}]


def test_a_batch_committed_by_us_and_not_by_spark_is_not_done_twice(spark, tmp_path, kept):
    # As after a kill between our manifest and Spark's own commit.
    for path in (tmp_path / "ck" / "spark" / "commits").glob("*1*"):
        path.unlink()
    stream = me.stream(kept.read(spark)).key_by("key").count()
    kept.add(pa.table({"key": [2], "word": ["z"]}, schema=kept.schema))
    sink = me.sinks.memory()
    query = stream.start(tmp_path / "ck", sink, workers=2, bins=64, trigger=NOW)
    query.await_termination(PATIENCE_S)
    assert query.version == 2
    assert by_batch(sink.to_arrow(), ["key"]) == {2: {(2,): 3}}


def test_a_folder_with_spaces_and_percent_signs_holds_all_of_the_checkpoint(spark, tmp_path, kept, monkeypatch):
    monkeypatch.chdir(tmp_path)
    stream = me.stream(kept.read(spark)).key_by("key").count()
    for place in ("my check%20point", (tmp_path / "other check%point").as_uri()):
        sink = me.sinks.memory()
        stream.start(place, sink, workers=2, bins=64, trigger=NOW).await_termination(PATIENCE_S)
        assert {row["key"]: row["count"] for row in sink.latest("key")} == {1: 4, 2: 2}
    for name in ("my check%20point", "other check%point"):
        assert {each.name for each in (tmp_path / name).iterdir()} >= {"meander.json", "manifests", "spark"}
    assert sorted(each.name for each in tmp_path.iterdir()) == ["ck", "in", "my check%20point", "other check%point"]


def test_logs_of_spark_that_a_loss_of_power_has_torn_are_mended(spark, tmp_path, kept):
    one = pa.table({"key": [2], "word": ["z"]}, schema=kept.schema)
    stream = me.stream(kept.add(one).read(spark)).key_by("key").count()
    out = str(tmp_path / "out")

    def run():
        query = stream.start(tmp_path / "ck", me.sinks.files(out), workers=2, bins=64, trigger=NOW, fsync=True)
        query.await_termination(PATIENCE_S)
        return query.version

    assert run() == 2
    logs = tmp_path / "ck" / "spark"
    before = (logs / "offsets" / "2").read_bytes()
    (logs / "offsets" / "2").write_bytes(b"")
    (logs / "commits" / "2").unlink()
    kept.add(one)
    assert run() == 3
    assert (logs / "offsets" / "2").read_bytes() == before
    (logs / "offsets" / "3").unlink()
    (logs / "commits" / "3").write_bytes(b"")
    (logs / "offsets" / "4").write_bytes(before[:-3])
    kept.add(one)
    assert run() == 4
    rows = spark.read.parquet(out).collect()
    assert sorted((row["batch"], row["key"], row["count"]) for row in rows) == [(2, 2, 3), (3, 2, 4), (4, 2, 5)]
    reader = Reader.open(tmp_path / "ck")
    assert {row["key"]: row["count"] for piece in reader.state(0, "count") for row in piece.to_pylist()} == {1: 4, 2: 5}


def test_rows_without_a_key_are_dead_letters(spark, tmp_path):
    from pyspark.sql import functions as F

    schema = pa.schema([("user", pa.binary()), ("shop", pa.int32()), ("note", pa.string())])
    rows = pa.table(
        {
            "user": [b"ann", None, b"ann", b"bob", b"\xff\xfe", b"bob"],
            "shop": [1, 2, None, 3, 4, 3],
            "note": ["fine", "no user", "no shop", "fine", "no text", "fine"],
        },
        schema=schema,
    )
    feed = Feed(tmp_path / "in", schema).add(rows, rows.slice(0, 2))
    source = feed.read(spark).withColumn("user", F.col("user").cast("string"))
    sink = me.sinks.memory()
    query = me.stream(source).key_by("user", "shop").dedup().start(tmp_path / "ck", sink, workers=2, trigger=NOW)
    query.await_termination(PATIENCE_S)
    assert {(row["user"], row["shop"]) for row in sink.to_arrow().to_pylist()} == {("ann", 1), ("bob", 3)}
    letters = side_of(tmp_path / "ck", "dead")
    found = sorted((row["version"], row["reason"], "no user" in row["row"]) for row in letters)
    assert [each[0] for each in found] == [0, 0, 0, 1]
    assert [(reason, about) for _, reason, about in found] == [
        ("column user is not valid UTF-8", False),
        ("the key column shop is null", False),
        ("the key column user is null", True),
        ("the key column user is null", True),
    ]
    assert [progress.dead for progress in query.recent_progress if not progress.tick] == [3, 1]
    assert query.misrouted == 0


BAD_START = [
    ({"bins": 100}, "nearest: 64, 128"),
    ({"workers": 0}, "workers"),
    ({"workers": 8, "bins": 4}, "8 workers cannot share 4 bins"),
    ({"checkpont": "x"}, "checkpont"),
    ({"trigger": {"continuous": "1 second"}}, "continuous"),
    ({"trigger": {"once": True, "availableNow": True}}, "trigger"),
    ({"sink": "out.csv"}, "str"),
    ({"name": "My Query"}, "'My Query'"),
    ({"idle_time": "stop"}, "'stop'"),
    ({"attempts": 0}, "attempts"),
    ({"retain": -1}, "retain"),
    ({"at_end": "close"}, "at_end='close' is for a query that ends"),
]
"""Options of `start` that are refused, and what the refusal says."""


def test_bad_options_are_refused_in_one_sentence_before_anything_is_written(spark, tmp_path):
    stream = me.stream(Feed(tmp_path / "in", as_ints([]).schema).read(spark)).key_by("key").count()
    for options, sentence in BAD_START:
        with pytest.raises(me.InvalidOption) as refused:
            stream.start(tmp_path / "ck", **{"sink": me.sinks.memory(), **options})
        assert sentence in str(refused.value)
        assert is_one_sentence(refused.value)
        assert not (tmp_path / "ck").exists()


def test_bad_keys_and_columns_are_refused_in_one_sentence(spark, tmp_path):
    from pyspark.sql import functions as F

    schema = pa.schema([("key", pa.int64()), ("price", pa.float64()), ("tags", pa.list_(pa.string()))])
    stream = me.stream(Feed(tmp_path / "in", schema).read(spark))
    wrong = {
        "'nokey'": lambda: stream.key_by("nokey"),
        "price": lambda: stream.key_by("price").count(),
        "tags": lambda: stream.key_by("tags").count(),
        "alias": lambda: stream.key_by(F.col("key") + 1),
        "'cost'": lambda: stream.key_by("key").aggregate(total=("sum", "cost")),
        "median": lambda: stream.key_by("key").aggregate(middle=("median", "price")),
        "k ": lambda: stream.key_by("key").top_k(0, by="price"),
        "nothing to run": lambda: stream.start(tmp_path / "ck", me.sinks.memory()),
        "streaming": lambda: me.stream(spark.range(3)),
        "'__slot'": lambda: me.stream(spark.readStream.format("rate").load().withColumn("__slot", F.lit(1))),
    }
    for said, attempt in wrong.items():
        with pytest.raises(me.InvalidOption) as refused:
            attempt()
        assert said in str(refused.value)
        assert is_one_sentence(refused.value)
