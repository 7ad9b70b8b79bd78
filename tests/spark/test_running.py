"""A query while it runs: what it tells, how it waits and stops, and what it does when nothing comes."""

from __future__ import annotations

import datetime as dt
import threading

import pyarrow as pa
import pytest

import meander as me
from streams import PATIENCE_S, Feed, as_ints, by_batch, wait_until

pytestmark = pytest.mark.spark

UTC = pa.timestamp("us", tz="UTC")
START = dt.datetime(2024, 5, 1, tzinfo=dt.UTC)


def ticking(seconds: list[int]) -> pa.Table:
    """Rows of one user at these seconds."""
    times = pa.array([START + dt.timedelta(seconds=s) for s in seconds], UTC)
    return pa.table({"user": pa.array(["a"] * len(seconds), pa.string()), "ts": times})


def closed(sink) -> dict[int, int]:
    """The windows that came out: their start in seconds, and their count; none twice."""
    rows = sink.to_arrow().to_pylist()
    found = {int((row["window_start"] - START).total_seconds()): row["count"] for row in rows}
    assert len(found) == len(rows)
    return found


def test_a_running_query_tells_what_it_does_and_stops_when_it_is_told(spark, tmp_path):
    feed = Feed(tmp_path / "in", as_ints([]).schema).add(as_ints([1, 2, 2]))
    sink = me.sinks.memory()
    query = me.stream(feed.read(spark)).key_by("key").count().start(tmp_path / "ck", sink, workers=2, name="tells")
    assert query.name == "tells"
    query.process_all_available()
    assert by_batch(sink.to_arrow(), ["key"]) == {0: {(1,): 1, (2,): 2}}
    first = query.last_progress
    assert (first["version"], first["batch"], first["rows"], first["emitted"], first["misrouted"]) == (0, 0, 3, 2, 0)
    assert [part["worker"] for part in first["workers"]] == [0, 1]
    assert sum(part["rows"] for part in first["workers"]) == 3
    feed.add(as_ints([2, 3]), as_ints([3]))
    query.process_all_available()
    assert [progress["rows"] for progress in query.recent_progress] == [3, 2, 1]
    assert sum(part["state_rows"] for part in query.last_progress["workers"]) == 3
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


def test_stop_lets_the_batch_that_runs_end(spark, tmp_path):
    feed = Feed(tmp_path / "in", as_ints([]).schema).add(as_ints([1, 2]), as_ints([2, 3]))
    entered, go_on = threading.Event(), threading.Event()
    taken = {}

    def slow(df, version):
        taken[version] = {(row.key,): row["count"] for row in df.collect()}
        if version == 0:
            entered.set()
            assert go_on.wait(PATIENCE_S)

    stream = me.stream(feed.read(spark)).key_by("key").count()
    query = stream.start(tmp_path / "ck", slow, workers=2)
    assert entered.wait(PATIENCE_S)
    stopper = threading.Thread(target=query.stop)
    stopper.start()
    stopper.join(0.5)
    assert stopper.is_alive()
    assert query.version == -1
    go_on.set()
    stopper.join(PATIENCE_S)
    assert not stopper.is_alive()
    assert query.version == 0
    assert query.exception() is None

    query = stream.start(tmp_path / "ck", slow, workers=2, trigger={"availableNow": True})
    query.await_termination(PATIENCE_S)
    assert taken == {0: {(1,): 1, (2,): 1}, 1: {(2,): 2, (3,): 1}}
    assert query.version == 1


def test_an_idle_stream_closes_the_windows_that_are_due_and_no_others(spark, tmp_path):
    feed = Feed(tmp_path / "in", ticking([]).schema).add(ticking([1, 2, 12, 25]))
    sink = me.sinks.memory()
    stream = me.stream(feed.read(spark)).key_by("user").window("ts", "10s", emit="final").count()
    query = stream.start(tmp_path / "ck", sink, workers=2, idle_after_s=0.2)
    # The sink has the rows a moment before the version is committed and told of.
    wait_until(lambda: query.version == 1 or query.exception(), "the windows to close by themselves")
    assert query.exception() is None
    assert closed(sink) == {0: 2, 10: 1}
    wait_until(lambda: len(query.recent_progress) == 2, "the tick to be told of")
    assert [progress["tick"] for progress in query.recent_progress] == [0, 1]
    feed.add(ticking([31]))
    wait_until(lambda: len(closed(sink)) == 3 or query.exception(), "the next window to close by itself")
    query.stop()
    assert closed(sink) == {0: 2, 10: 1, 20: 1}
    assert query.exception() is None
    assert query.misrouted == 0
    # A restart after ticks goes on as if there had been none.
    feed.add(ticking([32, 45]))
    query = stream.start(tmp_path / "ck", sink, workers=1, trigger={"availableNow": True})
    query.await_termination(PATIENCE_S)
    assert closed(sink) == {0: 2, 10: 1, 20: 1, 30: 2}


def test_an_idle_stream_can_let_event_time_go_on_with_the_clock(spark, tmp_path):
    feed = Feed(tmp_path / "in", ticking([]).schema).add(ticking([0, 1]))
    sink = me.sinks.memory()
    stream = me.stream(feed.read(spark)).key_by("user").window("ts", "2s", emit="final").count()
    query = stream.start(tmp_path / "ck", sink, workers=2, idle_after_s=0.2, idle_time="wall")
    wait_until(lambda: closed(sink) or query.exception(), "the last window to close by the clock")
    query.stop()
    assert query.exception() is None
    assert closed(sink) == {0: 2}


def test_the_end_of_the_input_can_be_the_end_of_event_time(spark, tmp_path):
    feed = Feed(tmp_path / "in", ticking([]).schema).add(ticking([0, 1]), ticking([11, 12, 25]))
    stream = me.stream(feed.read(spark)).key_by("user").window("ts", "10s", emit="final").count()
    # What the first windows say last must still be in time for the second ones.
    stream = stream.key_by("user").window("window_start", "20s", emit="final").aggregate(n=("sum", "count"))
    sink = me.sinks.memory()
    for _ in range(2):  # the second time there is nothing left to close
        query = stream.start(tmp_path / "ck", sink, workers=2, trigger={"availableNow": True}, at_end="close")
        query.await_termination(PATIENCE_S)
        assert sorted(sink.to_arrow()["n"].to_pylist()) == [1, 4]
        assert query.late_rows().num_rows == 0
    feed.add(ticking([40]))
    query = stream.start(tmp_path / "ck", sink, workers=2, trigger={"availableNow": True}, at_end="close")
    query.await_termination(PATIENCE_S)
    assert query.late_rows().num_rows == 1
    with pytest.raises(me.InvalidOption, match="at_end='close' is for a query that ends"):
        stream.start(tmp_path / "other", sink, workers=2, at_end="close")


def test_waiting_for_input_raises_what_the_query_failed_of(spark, tmp_path):
    def fails(df, version):
        raise LookupError("no such table")

    feed = Feed(tmp_path / "in", as_ints([]).schema).add(as_ints([1]))
    query = me.stream(feed.read(spark)).key_by("key").count().start(tmp_path / "ck", fails, workers=2)
    with pytest.raises(LookupError, match="no such table"):
        query.process_all_available()
    with pytest.raises(LookupError, match="no such table"):
        query.await_termination(PATIENCE_S)
    assert not query.is_active
    query.stop()
    assert isinstance(query.exception(), LookupError)


def test_two_queries_run_side_by_side(spark, tmp_path):
    feeds = [Feed(tmp_path / f"in{at}", as_ints([]).schema).add(*[as_ints([at, 7])] * 3) for at in range(2)]
    sinks = [me.sinks.memory() for _ in feeds]
    queries = [
        me.stream(feed.read(spark)).key_by("key").count()
        .start(tmp_path / f"ck{at}", sinks[at], workers=2, trigger={"availableNow": True})
        for at, feed in enumerate(feeds)
    ]  # fmt: skip
    for at, query in enumerate(queries):
        query.await_termination(PATIENCE_S)
        assert {row["key"]: row["count"] for row in sinks[at].latest("key")} == {at: 3, 7: 3}
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
