"""The balancer on Spark: it finds the straggler, moves its bins while rows flow, and says why."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest

import meander as me
from joins import Case, all_pairs
from meander.errors import InvalidOption
from meander.route.keys import KeyType
from streams import PATIENCE_S, Feed, wait_until

pytestmark = pytest.mark.spark

BINS, WORKERS = 32, 4
KEY = pa.schema([("key", pa.int64())])


def keys_of(worker: int, count: int) -> list[int]:
    """Keys whose bins the worker owns at the start, all in other bins."""
    bins = KeyType.of(KEY).encode([pa.array(range(5000))]).bins(BINS)
    mine = range(worker * BINS // WORKERS, (worker + 1) * BINS // WORKERS)
    return [int(np.flatnonzero(bins == bin_)[0]) for bin_ in mine][:count]


def acted(balancer) -> list:
    return [each for each in balancer.decisions if each.action != "stay"]


def test_a_join_is_balanced_while_it_runs_and_no_pair_is_lost(spark, tmp_path):
    case = Case(spark, tmp_path, seed=5, rows=600, batches=12, cells=12)
    query = case.start(workers=WORKERS)
    balancer = query.keep_balanced(policy="straggler", alpha=0.8, window=3, rest=3)
    for number in range(12):
        case.feed(number)
        query.process_all_available()
    wait_until(lambda: query.migration is None or query.migration.is_over, "the migration to end")
    loads = query.loads["0:join"]
    query.stop()
    assert not balancer.is_active
    assert case.found() == all_pairs(case.orders, case.taxis, 10, 10)
    (first, *_) = acted(balancer)
    assert first.action == "balance"
    assert first.bins > 0
    assert first.imbalance > 0.8
    assert first.reason.startswith(f"LI {first.imbalance:.2f} is above alpha 0.8: worker ")
    assert next(each["reason"] for each in query.events if each["event"] == "balancer") == first.reason
    assert loads.imbalance < first.imbalance
    # What is visible beside the rows of each bin, and adds up.
    assert set(loads.stored) == set(loads.queued) == {"left", "right"}
    assert sum(loads) == sum(loads.queued["left"]) + sum(loads.queued["right"]) == 150
    assert sum(loads.stored["left"]) + sum(loads.stored["right"]) == 11 * 150
    sides = (loads.stored["left"], loads.queued["right"], loads.stored["right"], loads.queued["left"])
    product = [left * meets + right * met for left, meets, right, met in zip(*sides, strict=True)]
    assert loads.computing == product
    assert loads.gamma == 0.5
    assert set(loads.by_worker) == set(query.workers) == set(loads.sojourn_s)


@pytest.mark.parametrize(
    "planner",
    ["annealing", pytest.param("free", marks=pytest.mark.slow), pytest.param("ssm", marks=pytest.mark.slow)],
)
def test_an_operator_with_one_input_is_balanced_too(planner, spark, tmp_path):
    rng = random.Random(6)
    hot, cold = keys_of(1, 6), keys_of(0, 2) + keys_of(2, 2) + keys_of(3, 2)
    feed, sink, given = Feed(tmp_path / "in", KEY), me.sinks.memory(), Counter()
    counted = me.stream(feed.read(spark)).key_by("key").count()
    query = counted.start(tmp_path / "ck", sink, workers=WORKERS, bins=BINS, idle_after_s=0.3)
    balancer = query.keep_balanced(alpha=0.5, window=3, rest=3, planner=planner)
    for _ in range(9):
        rows = rng.choices([*hot, *cold], weights=[10] * 6 + [1] * 6, k=600)
        given.update(rows)
        feed.add(pa.table({"key": rows}, schema=KEY))
        query.process_all_available()
    wait_until(lambda: query.migration is not None and query.migration.is_over, "the migration to end", PATIENCE_S)
    after = query.loads["0:count"].imbalance
    query.stop()
    first = acted(balancer)[0]
    assert first.imbalance > 2 > 1 > after
    counts = sink.to_arrow()
    last = dict(zip(counts["key"].to_pylist(), counts["count"].to_pylist(), strict=True))
    assert last == given
    assert list(query.loads["0:count"].stored) == ["rows"]


def test_more_workers_come_where_balance_is_not_enough(spark, tmp_path):
    rng = random.Random(7)
    feed, sink = Feed(tmp_path / "in", KEY), me.sinks.memory()
    counted = me.stream(feed.read(spark)).key_by("key").count()
    query = counted.start(tmp_path / "ck", sink, workers=2, bins=BINS, idle_after_s=0.3)
    # However little two workers do, it is more than a ten-thousandth of their time.
    balancer = query.keep_balanced(window=2, rest=2, most=3, utilisation=0.0001)
    for _ in range(6):
        feed.add(pa.table({"key": [rng.randrange(5000) for _ in range(300)]}, schema=KEY))
        query.process_all_available()
    wait_until(lambda: len(query.workers) == 3, "the third worker", 60)
    query.stop()
    first = acted(balancer)[0]
    assert (first.action, first.workers) == ("rescale", 3)
    assert "3 workers are wanted" in first.reason


def test_what_cannot_fire_or_is_unknown_is_refused(spark, tmp_path):
    feed = Feed(tmp_path / "in", KEY)
    query = me.stream(feed.read(spark)).key_by("key").count().start(tmp_path / "ck", me.sinks.memory(), workers=2)
    for options, sentence in (
        ({"alpha": 1.0}, "alpha is 1 and would never fire: LI is at most 1 among 2 workers"),
        ({"policy": "wish"}, "there is no policy 'wish'"),
        ({"planner": "guess"}, "there is no planner 'guess'"),
        ({"windw": 3}, "has no option 'windw'"),
        ({"window": 0}, "window is 0"),
        ({"mode": "restart"}, "no option 'mode'"),
    ):
        with pytest.raises(InvalidOption) as told:
            query.keep_balanced(**options)
        assert sentence in str(told.value)
    query.stop()
