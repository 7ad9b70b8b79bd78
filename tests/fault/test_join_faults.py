"""Joins on executors of their own, whose bins move and whose processes are killed: every pair once."""

from __future__ import annotations

import os
import random

import pytest

import meander as me
from joins import Case, all_pairs
from streams import PATIENCE_S, executors, kill, python_workers, wait_until

pytestmark = [pytest.mark.fault, pytest.mark.spark]

BATCHES = 16


@pytest.fixture(scope="module")
def spark():
    session = me.session("local-cluster[2,2,1024]", spark__executor__memory="1g")
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.mark.soak
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_random_moves_on_separate_executors(seed, spark, tmp_path):
    rng = random.Random(seed)
    how = rng.choice(["inner", "left"])
    case = Case(spark, tmp_path, seed, rows=500, batches=BATCHES, how=how)
    query = case.start(workers=2)
    for number in range(BATCHES):
        case.feed(number)
        if number % 4 == 1:
            schedule = rng.choice(["all_at_once", "fluid", "batched", "matching"])
            move = query.rescale(rng.choice([2, 3, 4]), schedule=schedule, planner=rng.choice(["free", "ssm", "even"]))
        query.process_all_available()
        if number % 4 == 3:
            assert move.wait(PATIENCE_S)
    query.stop()
    found = {pair: times for pair, times in case.found().items() if pair[2] is not None}
    assert found == all_pairs(case.orders, case.taxis, 10, 10)
    assert query.misrouted == 0


def test_processes_are_killed_while_the_balancer_moves_bins(spark, tmp_path):
    rng = random.Random(9)
    case = Case(spark, tmp_path, 9, rows=700, batches=BATCHES, cells=12)
    query = case.start(workers=4)
    balancer = query.keep_balanced(alpha=0.3, window=2, rest=2)
    killed = 0
    for number in range(BATCHES):
        case.feed(number)
        if number % 5 == 3:
            victims = python_workers(os.getpid()) if number % 2 else executors(os.getpid())
            killed += bool(victims) and kill(rng.choice(victims))
        wait_until(lambda: not query.is_active or query.version >= number, "the batch")  # noqa: B023
        assert query.is_active, query.exception()
    query.process_all_available()
    wait_until(lambda: query.migration is None or query.migration.is_over, "the migration to end")
    query.stop()
    assert case.found() == all_pairs(case.orders, case.taxis, 10, 10)
    assert killed >= 2
    assert [each for each in balancer.decisions if each.bins]
