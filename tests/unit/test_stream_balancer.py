"""The balancer without Spark: it finds the straggler, moves its bins while rows flow, and says why."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest

import meander as me
from joins import ORDERS, TAXIS, Rows, all_pairs
from meander.errors import InvalidOption
from meander.route.keys import KeyType
from streams import wait_until

BINS, WORKERS = 32, 4
KEY = pa.schema([("key", pa.int64())])


def counted():
    return me.stream(me.testing.source(KEY)).key_by("key").count()


def keys_of(worker: int, count: int) -> list[int]:
    """Keys whose bins the worker owns at the start, all in other bins."""
    bins = KeyType.of(KEY).encode([pa.array(range(5000))]).bins(BINS)
    mine = range(worker * BINS // WORKERS, (worker + 1) * BINS // WORKERS)
    return [int(np.flatnonzero(bins == bin_)[0]) for bin_ in mine][:count]


def actions(balancer) -> list:
    return [each for each in balancer.decisions if each.action != "stay"]


def batch(h, balancer, *rows, **sides) -> None:
    """Process a batch, let the balancer look at it, and bring to an end what it begins."""
    version, migration = h.query.version + 1, h.query.migration
    h.batch(*rows, **sides)
    decision = wait_until(
        lambda: next((each for each in balancer.decisions if each.version >= version), None), "a decision"
    )
    if decision.bins:
        wait_until(lambda: h.query.migration is not migration, "the migration to begin")
        h.finish(h.query.migration)


def test_a_join_is_balanced_while_it_runs_and_no_pair_is_lost():
    case = Rows(seed=5, rows=600, batches=12, cells=12)
    left, right = (me.stream(me.testing.source(schema)) for schema in (ORDERS, TAXIS))
    joined = left.join(right, on="cell", within="10 seconds", lateness="2 minutes")
    with me.testing.harness(joined, WORKERS, BINS) as h:
        h.batch(**case.batch(0))  # nobody knows for how long the first batch stands, so nothing is decided on it
        balancer = h.query.keep_balanced(policy="straggler", alpha=0.8, window=3, rest=3)
        for number in range(1, 12):
            batch(h, balancer, **case.batch(number))
        loads = h.query.loads["0:join"]
        h.query.stop()
        assert not balancer.is_active
        pairs = Counter((row["cell"], row["order"], row["taxi"]) for row in h.output())
        assert pairs == all_pairs(case.orders, case.taxis, 10, 10)
        events = h.query.events
        workers = h.query.workers
    (first, *_) = actions(balancer)
    assert first.action == "balance"
    assert first.bins > 0
    assert first.imbalance > 0.8
    assert first.reason.startswith(f"LI {first.imbalance:.2f} is above alpha 0.8: worker ")
    assert next(each.facts["reason"] for each in events if each.name == "balancer") == first.reason
    assert loads.imbalance < first.imbalance
    # What is visible beside the rows of each bin, and adds up.
    assert set(loads.stored) == set(loads.queued) == {"left", "right"}
    assert sum(loads.rows) == sum(loads.queued["left"]) + sum(loads.queued["right"]) == 150
    assert sum(loads.stored["left"]) + sum(loads.stored["right"]) == 11 * 150
    sides = (loads.stored["left"], loads.queued["right"], loads.stored["right"], loads.queued["left"])
    product = [left * meets + right * met for left, meets, right, met in zip(*sides, strict=True)]
    assert loads.computing == product
    assert loads.gamma == 0.5
    assert set(loads.by_worker) == set(workers) == set(loads.sojourn_s)


@pytest.mark.parametrize("planner", ["annealing", "free", "ssm"])
def test_an_operator_with_one_input_is_balanced_too(planner):
    rng = random.Random(6)
    hot, cold = keys_of(1, 6), keys_of(0, 2) + keys_of(2, 2) + keys_of(3, 2)
    given = Counter(cold)
    with me.testing.harness(counted(), WORKERS, BINS) as h:
        h.batch([{"key": key} for key in cold])
        balancer = h.query.keep_balanced(alpha=0.5, window=3, rest=3, planner=planner)
        for _ in range(9):
            rows = rng.choices([*hot, *cold], weights=[10] * 6 + [1] * 6, k=600)
            given.update(rows)
            batch(h, balancer, pa.table({"key": rows}, schema=KEY))
        loads = h.query.loads["0:count"]
        assert h.query.migration.is_over
        assert {row["key"]: row["count"] for row in h.latest("key")} == given
        h.query.stop()
    first = actions(balancer)[0]
    assert first.imbalance > 2 > 1 > loads.imbalance
    assert list(loads.stored) == ["rows"]


def test_more_workers_come_where_balance_is_not_enough():
    rng = random.Random(7)
    with me.testing.harness(counted(), 2, BINS) as h:
        h.batch([{"key": 1}])
        # However little two workers do, it is more than a millionth of their time.
        balancer = h.query.keep_balanced(window=2, rest=2, most=3, utilisation=0.000001)
        for _ in range(6):
            batch(h, balancer, pa.table({"key": [rng.randrange(5000) for _ in range(300)]}, schema=KEY))
        assert len(h.query.workers) == 3
        h.query.stop()
    first = actions(balancer)[0]
    assert (first.action, first.workers) == ("rescale", 3)
    assert "3 workers are wanted" in first.reason


def test_what_cannot_fire_or_is_unknown_is_refused():
    with me.testing.harness(counted(), 2) as h:
        for options, sentence in (
            ({"alpha": 1.0}, "alpha is 1 and would never fire: LI is at most 1 among 2 workers"),
            ({"policy": "wish"}, "there is no policy 'wish'"),
            ({"planner": "guess"}, "there is no planner 'guess'"),
            ({"windw": 3}, "has no option 'windw'"),
            ({"window": 0}, "window is 0"),
            ({"mode": "restart"}, "no option 'mode'"),
        ):
            with pytest.raises(InvalidOption) as refusal:
                h.query.keep_balanced(**options)
            assert sentence in str(refusal.value)
