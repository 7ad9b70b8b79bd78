"""Stopping, failing and starting again: what goes on, and what is refused."""

from __future__ import annotations

import random
import shutil

import pyarrow as pa
import pytest

import meander as me
from meander.errors import ChangedQuery, ForeignCheckpoint
from streams import PATIENCE_S, Feed, as_ints, by_batch, cut, recounted, side_of, state_of

pytestmark = pytest.mark.spark

NOW = {"availableNow": True}


def committed(checkpoint) -> int:
    """The last committed version, read from the checkpoint alone."""
    from meander.checkpoint.reader import Reader

    return Reader.open(checkpoint).log.index.version


def is_one_sentence(error: BaseException) -> bool:
    text = str(error)
    return bool(text) and "\n" not in text and len(text) < 500 and "Traceback" not in text


def test_each_start_may_have_another_number_of_workers(spark, tmp_path):
    rng = random.Random(12)
    batches = cut(as_ints([rng.randrange(200) for _ in range(1200)]), 8, rng)
    feed = Feed(tmp_path / "in", batches[0].schema)
    sink = me.sinks.memory()
    for at, workers in enumerate((2, 3, 1, 2)):
        feed.add(*batches[2 * at : 2 * at + 2])
        stream = me.stream(feed.read(spark)).key_by("key").count()
        query = stream.start(tmp_path / "ck", sink, workers=workers, snapshot_every=3, trigger=NOW)
        query.await_termination(PATIENCE_S)
        assert len(query.workers) == workers
        assert query.misrouted == 0
        # Only whoever owns bins has rows.
        assert {part["worker"] for part in query.last_progress["workers"]} == set(query.workers)
    expected = recounted(batches, ["key"])
    assert by_batch(sink.to_arrow(), ["key"]) == {number: found for number, found in enumerate(expected) if found}
    total = {each: n for found in expected for each, n in found.items()}
    assert {(row["key"],): row["count"] for row in state_of(tmp_path / "ck")} == total


def test_nothing_to_do_is_done_at_once_and_changes_nothing(spark, tmp_path):
    feed = Feed(tmp_path / "in", as_ints([]).schema).add(as_ints([1, 1, 2]))
    stream = me.stream(feed.read(spark)).key_by("key").count()
    stream.start(tmp_path / "ck", me.sinks.memory(), workers=2, trigger=NOW).await_termination(PATIENCE_S)
    sink = me.sinks.memory()
    query = stream.start(tmp_path / "ck", sink, workers=2, trigger=NOW)
    query.await_termination(PATIENCE_S)
    assert (query.version, sink.to_arrow().num_rows) == (0, 0)


@pytest.fixture
def kept(spark, tmp_path):
    """A checkpoint with two versions, and the feed that it has read."""
    schema = pa.schema([("key", pa.int64()), ("word", pa.string())])
    rows = pa.table({"key": [1, 2, 1], "word": ["a", "b", "a"]}, schema=schema)
    feed = Feed(tmp_path / "in", schema).add(rows, rows)
    stream = me.stream(feed.read(spark)).key_by("key").count()
    stream.start(tmp_path / "ck", me.sinks.memory(), workers=2, bins=64, trigger=NOW).await_termination(PATIENCE_S)
    return feed


def test_another_query_is_refused_and_harms_nothing(spark, tmp_path, kept):
    stream = me.stream(kept.read(spark))
    sink = me.sinks.memory()
    others = {
        "64 bins, not 128": (stream.key_by("key").count(), 128),
        "key int64": (stream.key_by("word").count(), 64),
        "count": (stream.key_by("key").dedup(), 64),
        "count -> top_k": (stream.key_by("key").count().key_by().top_k(2, by="count"), 64),
    }
    for said, (other, bins) in others.items():
        with pytest.raises(ChangedQuery) as refused:
            other.start(tmp_path / "ck", sink, workers=2, bins=bins, trigger=NOW)
        assert said in str(refused.value)
        assert is_one_sentence(refused.value)
    kept.add(pa.table({"key": [1], "word": ["z"]}, schema=kept.schema))
    query = stream.key_by("key").count().start(tmp_path / "ck", sink, workers=2, bins=64, trigger=NOW)
    query.await_termination(PATIENCE_S)
    assert sink.latest("key") == [{"key": 1, "count": 5}]


def test_a_reset_or_foreign_spark_part_is_refused(spark, tmp_path, kept):
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
    assert [progress["dead"] for progress in query.recent_progress if not progress["tick"]] == [3, 1]
    assert query.misrouted == 0


def test_the_users_exception_stops_the_query_with_his_traceback_and_bin(spark, tmp_path):
    from meander.route.keys import KeyType

    def picky(rows, state):
        import pyarrow as pa

        def refuse_unlucky(keys):
            if 13 in keys:
                raise ArithmeticError("thirteen is unlucky")

        refuse_unlucky(rows["key"].to_pylist())
        return pa.table({"seen": [True] * state.num_rows}), state.select(["key"])

    def patient(rows, state):
        import pyarrow as pa

        return pa.table({"seen": [True] * state.num_rows}), state.select(["key"])

    feed = Feed(tmp_path / "in", as_ints([]).schema).add(as_ints(list(range(10))), as_ints(list(range(30))))
    keyed = me.stream(feed.read(spark)).key_by("key")
    sink = me.sinks.memory()
    query = keyed.fold(picky, "seen boolean", "key bigint").start(tmp_path / "ck", sink, workers=2, trigger=NOW)
    with pytest.raises(me.QueryFailed) as stopped:
        query.await_termination(PATIENCE_S)
    told = str(stopped.value)
    unlucky = KeyType.of([pa.field("key", pa.int64())]).encode([pa.array([13], pa.int64())])
    assert told.splitlines()[0].startswith("fold (operator 0, worker ")
    assert f"in bin {int(unlucky.bins(256)[0])} failed in version 1: ArithmeticError: thirteen is unlucky" in told
    assert "in refuse_unlucky" in told
    assert "in picky" in told
    assert not query.is_active
    assert query.exception() is stopped.value
    assert committed(tmp_path / "ck") == query.version == 0
    assert set(sink.to_arrow()["batch"].to_pylist()) == {0}

    query = keyed.fold(patient, "seen boolean", "key bigint").start(tmp_path / "ck", sink, workers=2, trigger=NOW)
    query.await_termination(PATIENCE_S)
    assert sorted(row["key"] for row in state_of(tmp_path / "ck")) == list(range(30))
    assert query.misrouted == 0


BAD_START = {
    "bins": ({"bins": 100}, "nearest: 64, 128"),
    "no worker": ({"workers": 0}, "workers"),
    "few bins": ({"workers": 8, "bins": 4}, "8 workers cannot share 4 bins"),
    "option": ({"checkpont": "x"}, "checkpont"),
    "trigger": ({"trigger": {"continuous": "1 second"}}, "continuous"),
    "two triggers": ({"trigger": {"once": True, "availableNow": True}}, "trigger"),
    "sink": ({"sink": "out.csv"}, "str"),
    "name": ({"name": "My Query"}, "'My Query'"),
    "idle": ({"idle_time": "stop"}, "'stop'"),
    "attempts": ({"attempts": 0}, "attempts"),
    "retain": ({"retain": -1}, "retain"),
}


@pytest.mark.parametrize("what", BAD_START)
def test_bad_options_are_refused_in_one_sentence_before_anything_is_written(spark, tmp_path, what):
    options, said = BAD_START[what]
    feed = Feed(tmp_path / "in", as_ints([]).schema)
    given = {"sink": me.sinks.memory(), **options}
    with pytest.raises(me.InvalidOption) as refused:
        me.stream(feed.read(spark)).key_by("key").count().start(tmp_path / "ck", **given)
    assert said in str(refused.value)
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
