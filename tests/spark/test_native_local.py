"""What can be attached to, what is seen of it, and what is refused, each in one sentence."""

from __future__ import annotations

import pytest

import meander as me
from pour import Load, started
from streams import PATIENCE_S, Feed

pytestmark = pytest.mark.spark


@pytest.fixture(autouse=True)
def _published_elsewhere(monkeypatch, tmp_path):
    monkeypatch.setenv("MEANDER_RUNTIME_DIR", str(tmp_path / "runtime"))


@pytest.fixture
def attached(spark, tmp_path):
    """Attach to a query over the rows of a load, made by a function of its stream."""
    handles = []

    def to(make, mode="update"):
        load = Load(tmp_path / "in", 5, rows=30)
        query, _ = started(load, make(load.feed.read(spark)), tmp_path, mode)
        load.add()
        query.processAllAvailable()
        handles.append(me.attach(query, within_s=PATIENCE_S))
        return handles[-1]

    yield to
    for each in handles:
        each.detach()


def counted_in_pandas(rows):
    def count(key, rows, state):
        import pandas as pd

        so_far = (state.getOption or (0,))[0] + sum(len(each) for each in rows)
        state.update((so_far,))
        yield pd.DataFrame({"key": [key[0]], "n": [so_far]})

    return rows.groupBy("key").applyInPandasWithState(count, "key long, n long", "n long", "update", "NoTimeout")


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda rows: rows.groupBy("key").count(), "0:stateStoreSave"),
        (lambda rows: rows.dropDuplicates(["key"]), "0:dedupe"),
        (counted_in_pandas, "0:applyInPandasWithState"),
    ],
    ids=["aggregate", "dedup", "applyInPandasWithState"],
)
def test_stateful_operators_are_found_and_seen(attached, make, name):
    handle = attached(make)
    assert handle.operators == {0: name}
    seen = handle.observe()
    assert {each.group for each in seen.partitions} == {name}
    assert {each.executor for each in seen.partitions} == {"driver"}
    assert str(seen)


def test_in_local_mode_everything_is_seen_and_nothing_moves(attached):
    handle = attached(lambda rows: rows.groupBy("key").count())
    calls = [
        handle.spread, handle.rebalance, handle.keep_balanced, handle.plan_spread, handle.plan_rebalance,
        lambda: handle.rescale(1), lambda: handle.plan_rescale(3), lambda: handle.drain("driver"),
        lambda: handle.drain(7),
        lambda: handle.move({0: "driver"}), lambda: handle.plan_move({0: 0}), lambda: handle.spread(tries=0),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(me.InvalidOption, match="^in local mode there is one process and nothing to place"):
            call()


def test_a_stage_with_one_task_for_all_partitions_cannot_be_placed(spark, tmp_path, attached):
    handle = attached(lambda rows: rows.groupBy().count())
    load = Feed(tmp_path / "in", Load(tmp_path / "other", 5).feed.schema)
    query = handle.query
    load.add(Load(tmp_path / "more", 6).batches[0])
    query.processAllAvailable()
    with pytest.raises(me.InvalidOption, match="runs 1 tasks for 2 state partitions"):
        handle.spread()


def test_what_is_not_a_running_stateful_query_is_refused(spark, tmp_path, monkeypatch):
    from pyspark import SparkContext

    with pytest.raises(me.InvalidOption, match="attach takes what writeStream.start\\(\\) returns, not str"):
        me.attach("my query")
    load = Load(tmp_path / "in", 7)
    query, _ = started(load, load.feed.read(spark), tmp_path, "append")
    query.processAllAvailable()
    with pytest.raises(me.InvalidOption, match="no stateful operator"):
        me.attach(query, within_s=PATIENCE_S)
    monkeypatch.setattr(SparkContext, "version", "5.0.0")
    with pytest.raises(me.InvalidOption, match="knows Spark 4.3 and this is 5.0.0"):
        me.attach(query)
    monkeypatch.undo()
    query.stop()
    with pytest.raises(me.QueryFailed, match="does not run"):
        me.attach(query)
    remote = type("StreamingQuery", (), {"__module__": "pyspark.sql.connect.streaming.query"})()
    with pytest.raises(me.InvalidOption, match="Spark Connect"):
        me.attach(remote)
    own = me.stream(load.feed.read(spark)).key_by("key").count().start(tmp_path / "own", me.sinks.memory())
    with pytest.raises(me.InvalidOption, match="a query of Meander's own"):
        me.attach(own)
    own.stop()


def test_a_query_without_a_batch_is_waited_for_and_then_refused(spark, tmp_path):
    feed = Feed(tmp_path / "in", Load(tmp_path / "other", 5).feed.schema)
    query = feed.read(spark).groupBy("key").count().writeStream.format("noop").outputMode("update")
    query = query.option("checkpointLocation", str(tmp_path / "ck")).start()
    with pytest.raises(me.QueryFailed, match="ended no batch within 0.2 s"):
        me.attach(query, within_s=0.2)
    query.stop()
