"""Queries of Spark's own, seen and steered on separate executors while rows come: the same answers as undisturbed."""

from __future__ import annotations

from collections import Counter

import pytest

import meander as me
from meander.native.internals import Internals
from pour import PARTITIONS, Load, counts, on, plain_session, started
from streams import PATIENCE_S, wait_until

pytestmark = [pytest.mark.spark, pytest.mark.slow]

ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


@pytest.fixture(scope="module")
def spark():
    session = plain_session("local-cluster[3,1,1024]")
    yield session
    session.stop()


@pytest.fixture(autouse=True)
def _published_elsewhere(monkeypatch, tmp_path):
    monkeypatch.setenv("MEANDER_RUNTIME_DIR", str(tmp_path / "runtime"))


def test_an_aggregate_is_seen_spread_drained_and_rescaled(spark, tmp_path):
    load = Load(tmp_path / "in", 1)
    query, latest = started(load, load.feed.read(spark).groupBy("key").count(), tmp_path, "update")
    with load, me.attach(query, within_s=PATIENCE_S, locality_wait="30s") as attached:
        assert attached.operators == {0: "0:stateStoreSave"}
        executors = attached.executors
        assert len(executors) == 3

        everything = dict.fromkeys(range(PARTITIONS), executors[0])
        crowded = attached.move(everything, schedule="all_at_once")
        assert crowded.wait(PATIENCE_S)
        assert (crowded.status, crowded.report.remarks) == ("done", ())
        assert on(attached) == {executors[0]: PARTITIONS}
        seen = attached.observe()
        assert sum(each.rows for each in seen.partitions) > 0
        assert {each.executor for each in seen.partitions} == {executors[0]}
        assert seen.imbalance() == pytest.approx(2.0)

        proposal = attached.plan_spread()
        assert (proposal.bins, len(proposal.workers)) == (PARTITIONS * 2 // 3, 3)
        spread = attached.spread()
        assert spread.wait(PATIENCE_S)
        assert on(attached) == dict.fromkeys(executors, PARTITIONS // 3)
        report = spread.report
        assert (report.outcome, report.mode, report.remarks) == ("done", "native", ())
        assert (report.bins, report.steps) == (proposal.bins, len(proposal.steps))
        # At most one partition comes to an executor in one batch.
        for step in proposal.steps:
            assert max(Counter(move.target for move in step.moves).values()) == 1
        assert spread.progress.eta_s == 0.0

        in_and_out(attached)
        shrunk = attached.rescale(2)
        assert shrunk.wait(PATIENCE_S)
        wait_until(lambda: len(attached.executors) == 2, "the third executor goes")
        assert len(on(attached)) == 2
        events = [each.name for each in attached.events]
        assert {"steered", "arrived", "executors", "migration"} <= set(events)
    query.processAllAvailable()
    query.stop()
    assert {key: row[1] for key, row in latest.items()} == counts(load)
    with pytest.raises(me.QueryFailed, match="attach again"):
        attached.observe()
    attached_again_refused(query)


def attached_again_refused(query):
    with pytest.raises(me.QueryFailed, match="does not run"):
        me.attach(query)


def in_and_out(attached):
    """One executor is emptied and goes, another comes and gets its share."""
    executors = attached.executors
    drained = attached.drain(executors[-1], release=True)
    assert drained.wait(PATIENCE_S)
    wait_until(lambda: executors[-1] not in attached.executors, "the drained executor goes")
    assert executors[-1] not in on(attached)
    assert drained.report.executors["let_go"] == 1
    grown = attached.rescale(len(executors), executors_within_s=PATIENCE_S)
    assert grown.wait(PATIENCE_S)
    assert grown.report.executors == {"asked": 1, "came": 1, "let_go": 0}
    assert len(attached.executors) == len(on(attached)) == len(executors)


def test_a_join_moves_with_its_four_stores(spark, tmp_path):
    from pyspark.sql import functions as F

    load = Load(tmp_path / "in", 2, rows=60)
    left = load.feed.read(spark).withWatermark("at", "1 hour")
    right = left.select(F.col("key").alias("other"), F.col("at").alias("then"), (F.col("n") * 2).alias("m"))
    joined = left.join(right, F.expr("key = other and at = then")).select(F.concat_ws(":", "key", "at"), "n", "m")
    query, latest = started(load, joined, tmp_path, "append")
    with load, me.attach(query, within_s=PATIENCE_S) as attached:
        assert attached.operators == {0: "0:symmetricHashJoin"}
        (operator,) = Internals.of(query).operators()
        assert len(operator.stores) == 4
        executors = attached.executors
        assert attached.move(dict.fromkeys(range(PARTITIONS), executors[-1]), schedule="all_at_once").wait(PATIENCE_S)
        assert on(attached) == {executors[-1]: PARTITIONS}
        balanced = attached.rebalance(max_bins=2)
        assert balanced.wait(PATIENCE_S)
        assert balanced.report.remarks == ()
        assert len(on(attached)) == len(executors)
        in_and_out(attached)
    query.processAllAvailable()
    query.stop()
    assert len(latest) == load.rows.num_rows
    assert all(m == 2 * n for _, n, m in latest.values())


def test_transform_with_state_is_kept_balanced(spark, tmp_path):
    import pandas as pd
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor

    class Total(StatefulProcessor):
        def init(self, handle):
            self.total = handle.getValueState("total", "total long")

        def handleInputRows(self, key, rows, timers):  # noqa: N802
            so_far = self.total.get()[0] if self.total.exists() else 0
            so_far += sum(len(each) for each in rows)
            self.total.update((so_far,))
            yield pd.DataFrame({"key": [key[0]], "total": [so_far]})

        def close(self):
            pass

    load = Load(tmp_path / "in", 3, rows=40)
    before = spark.conf.get("spark.sql.streaming.stateStore.providerClass")
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", ROCKSDB)
    try:
        grouped = load.feed.read(spark).groupBy("key")
        totals = grouped.transformWithStateInPandas(Total(), "key long, total long", "Update", "None")
        query, latest = started(load, totals, tmp_path, "update")
    finally:
        spark.conf.set("spark.sql.streaming.stateStore.providerClass", before)
    with load, me.attach(query, within_s=PATIENCE_S) as attached:
        executors = attached.executors
        assert attached.move(dict.fromkeys(range(PARTITIONS), executors[0]), schedule="all_at_once").wait(PATIENCE_S)
        balancer = attached.keep_balanced("threshold", tau=0.5, every=0.2, looks=2, rest_batches=2, gain=0.0)
        wait_until(lambda: len(on(attached)) == len(executors), "the balancer spreads what is on one executor")
        balancer.stop()
        assert any(each.name == "balancer" and each.facts["action"] == "balance" for each in attached.events)
        assert balancer.decision.reason
        assert attached.migration.wait(PATIENCE_S)
        in_and_out(attached)
    query.processAllAvailable()
    query.stop()
    assert {key: row[1] for key, row in latest.items()} == counts(load)


def test_operators_with_a_shuffle_between_them_are_placed_apart(spark, tmp_path):
    from pyspark.sql import functions as F

    load = Load(tmp_path / "in", 4)
    fewer = load.feed.read(spark).withWatermark("at", "1 hour").dropDuplicates(["key", "at"])
    counted = fewer.groupBy((F.col("key") % 7).alias("key"), F.window("at", "1 minute")).count()
    query, _ = started(load, counted.select(F.concat_ws(":", "key", "window.start"), "count"), tmp_path, "append")
    with load, me.attach(query, within_s=PATIENCE_S) as attached:
        assert attached.operators == {0: "0:stateStoreSave", 1: "1:dedupe"}
        executors = attached.executors
        everything = dict.fromkeys(range(PARTITIONS), executors[0])
        moved = attached.move(everything, operator="dedupe", schedule="all_at_once")
        assert moved.wait(PATIENCE_S)
        assert moved.report.remarks == ()
        assert on(attached, 1) == {executors[0]: PARTITIONS}
        assert on(attached, 0) != {executors[0]: PARTITIONS}
        seen = {each.group: 0 for each in attached.observe().partitions}
        for each in attached.observe().partitions:
            seen[each.group] += each.rows
        assert seen["1:dedupe"] > 0
    query.stop()
