"""A worker's process ends without a word: the query goes on, and nothing is lost and nothing counted twice."""

from __future__ import annotations

import pytest

from contract.runtimes import BY_BATCHES, LOSES_WORKERS
from streams import PATIENCE_S

pytestmark = pytest.mark.spark

on_runtimes_that_lose_workers = pytest.mark.parametrize("runtime", LOSES_WORKERS, indirect=True)


@on_runtimes_that_lose_workers
def test_a_lost_worker_comes_back_and_the_query_goes_on(runtime):
    case = runtime.start("count", workers=3, executors_within_s=PATIENCE_S)
    case.flow(2)
    assignment = case.assignment
    case.lose_worker(1)
    case.flow(2)
    assert case.assignment == assignment
    assert case.events("lost") == []
    case.finish()


@on_runtimes_that_lose_workers
def test_a_migration_goes_on_when_the_worker_it_moves_bins_to_is_lost(runtime):
    case = runtime.start("count", executors_within_s=PATIENCE_S, **BY_BATCHES)
    case.flow()
    move = case.query.rescale(3, schedule="fluid")
    case.await_event("planned")
    case.flow_until("flipped")
    case.lose_worker(2)
    case.flow_until("finished")
    assert move.wait(PATIENCE_S)
    (plan,) = move.plans.values()
    assert (move.status, tuple(case.assignment)) == ("done", plan.owner)
    case.flow()
    case.finish()


@on_runtimes_that_lose_workers
def test_others_take_over_the_bins_of_a_worker_that_is_lost_for_good(runtime):
    case = runtime.start("count", workers=3, executors_within_s=0.5)
    case.flow(2)
    case.lose_worker(1, for_good=True)
    case.flow(2)
    (event,) = case.events("lost")
    (lost_worker,) = event["workers"]
    assert case.query.workers == sorted({0, 1, 2} - {lost_worker})
    case.finish()
