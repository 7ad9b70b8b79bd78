"""Executors come when workers need them and go when they have nothing to do; where none come, nothing changes."""

from __future__ import annotations

import pytest

import meander as me
from contract.runtimes import BY_BATCHES, HAS_EXECUTORS
from streams import PATIENCE_S

pytestmark = pytest.mark.spark

on_runtimes_with_executors = pytest.mark.parametrize("runtime", HAS_EXECUTORS, indirect=True)


@on_runtimes_with_executors
def test_rescale_lets_executors_go_and_asks_for_them_again(runtime):
    case = runtime.start("count", workers=3)
    case.flow()
    fewer = case.query.rescale(2)
    assert fewer.wait(PATIENCE_S)
    assert fewer.report.executors == {"asked": 0, "came": 0, "let_go": 1}
    assert set(fewer.report.processes_after) < set(fewer.report.processes_before)
    case.flow()
    more = case.query.rescale(3)
    assert more.wait(PATIENCE_S)
    assert more.report.executors == {"asked": 1, "came": 1, "let_go": 0}
    assert set(more.report.processes_before) < set(more.report.processes_after)
    assert len(case.query.workers) == 3
    case.flow()
    case.finish()


@on_runtimes_with_executors
def test_executors_that_do_not_come_leave_everything_as_it_was(runtime):
    case = runtime.start("count", workers=3)
    case.flow()
    before = case.query.assignment
    move = case.query.rescale(4, executors_within_s=1)
    with pytest.raises(me.MigrationFailed, match=r"asked for 1 more executors of 1 cores, 0 came within 1 s"):
        move.wait(PATIENCE_S)
    assert (move.status, case.query.assignment) == ("failed", before)
    case.flow(2)
    case.finish()


@on_runtimes_with_executors
def test_more_workers_than_cores_wait_and_then_make_do_or_give_up(runtime):
    with pytest.raises(me.QueryFailed, match="4 workers need as many cores, and the executors had 3"):
        runtime.start("count", workers=4, executors_within_s=0.5)
    case = runtime.start("count", workers=3, executors_within_s=0.5, **BY_BATCHES)
    case.flow()
    case.stop()
    case.restart(workers=4)
    case.flow()
    assert len(case.query.workers) == 3
    case.finish()
