"""A query while it runs on Spark: what it tells, beside others, and when another one takes its checkpoint.

How it waits, stops, fails and goes on without rows is in tests/contract.
"""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

import meander as me
from streams import PATIENCE_S, Feed, as_ints, by_batch

pytestmark = pytest.mark.spark


def test_a_running_query_tells_what_it_does_and_stops_when_it_is_told(spark, tmp_path):
    feed = Feed(tmp_path / "in", as_ints([]).schema).add(as_ints([1, 2, 2]))
    sink = me.sinks.memory()
    query = me.stream(feed.read(spark)).key_by("key").count().start(tmp_path / "ck", sink, workers=2, name="tells")
    assert query.name == "tells"
    query.process_all_available()
    assert by_batch(sink.to_arrow(), ["key"]) == {0: {(1,): 1, (2,): 2}}
    first = query.last_progress
    assert (first.version, first.batch, first.rows, first.emitted, first.misrouted) == (0, 0, 3, 2, 0)
    assert [part.worker for part in first.workers] == [0, 1]
    assert sum(part.rows for part in first.workers) == 3
    feed.add(as_ints([2, 3]), as_ints([3]))
    query.process_all_available()
    assert [progress.rows for progress in query.recent_progress] == [3, 2, 1]
    assert sum(part.state_rows for part in query.last_progress.workers) == 3
    assert query.version == 2
    assert query.is_active
    assert query.await_termination(0.3) is False
    assert query.exception() is None
    query.stop()
    assert not query.is_active
    assert query.await_termination(1) is True
    assert query.exception() is None
    assert query.misrouted == 0
    assert {row["key"]: row["count"] for row in sink.latest("key")} == {1: 1, 2: 3, 3: 2}
    query.stop()


def test_spark_counts_the_rows_of_every_batch_once(spark, tmp_path):
    """Also those of the first one, which is looked at before it is processed."""
    rows = pa.table({"key": list(range(90))})
    feed = Feed(tmp_path / "in", rows.schema).add(rows.slice(0, 40), rows.slice(40, 20), rows.slice(60))
    sink = me.sinks.memory()
    query = me.stream(feed.read(spark)).key_by("key").count().start(tmp_path / "ck", sink, workers=2)
    query.process_all_available()
    progress = [json.loads(each.json) for each in spark.streams.get(query.id).recentProgress]
    query.stop()
    assert [each["numInputRows"] for each in progress if each["numInputRows"]] == [40, 20, 30]
    assert len(sink.latest("key")) == 90


def test_two_queries_run_side_by_side(spark, tmp_path):
    feeds = [Feed(tmp_path / f"in{at}", as_ints([]).schema).add(*[as_ints([at, 7])] * 2) for at in range(2)]
    sinks = [me.sinks.memory() for _ in feeds]
    queries = [
        me.stream(feed.read(spark)).key_by("key").count()
        .start(tmp_path / f"ck{at}", sinks[at], workers=2, trigger={"availableNow": True})
        for at, feed in enumerate(feeds)
    ]  # fmt: skip
    for at, query in enumerate(queries):
        query.await_termination(PATIENCE_S)
        assert {row["key"]: row["count"] for row in sinks[at].latest("key")} == {at: 2, 7: 2}
        assert query.misrouted == 0


def test_a_second_start_on_a_checkpoint_takes_over(spark, tmp_path):
    feed = Feed(tmp_path / "in", as_ints([]).schema).add(as_ints([1, 2]))
    sinks = [me.sinks.memory(), me.sinks.memory()]
    stream = me.stream(feed.read(spark)).key_by("key").count()
    first = stream.start(tmp_path / "ck", sinks[0], workers=2)
    first.process_all_available()
    second = stream.start(tmp_path / "ck", sinks[1], workers=2)
    feed.add(as_ints([2, 3]))
    second.process_all_available()
    second.stop()
    first.stop()
    assert not first.is_active
    assert by_batch(sinks[0].to_arrow(), ["key"]) == {0: {(1,): 1, (2,): 1}}
    assert by_batch(sinks[1].to_arrow(), ["key"]) == {1: {(2,): 2, (3,): 1}}
    assert second.exception() is None
