"""While no rows come, time goes on: windows close and bins move."""

from __future__ import annotations

import pytest

from contract.kinds import moments
from contract.runtimes import BINS, BY_BATCHES
from streams import PATIENCE_S

pytestmark = pytest.mark.spark


def test_a_window_closes_without_further_rows(runtime):
    case = runtime.start("windows")
    case.add(moments([("a", 1), ("b", 2), ("a", 3), ("a", 12), ("b", 25)]))
    case.idle()
    windows = case.kind.read_output(case.output())
    assert windows == {("a", 0): 2, ("b", 0): 1, ("a", 10): 1}  # event time stands at 25: that one is open
    case.add(moments([("b", 29), ("c", 31)]))
    case.idle()
    assert case.kind.read_output(case.output()) == {**windows, ("b", 20): 2}
    assert [each.version for each in case.query.recent_progress] == [0, 2]
    assert [each.version for each in case.query.recent_ticks] == [1, 3]
    assert case.query.late_rows().num_rows == 0
    case.stop()
    case.restart(workers=1)  # as if there had been no versions without rows
    case.add(moments([("c", 32), ("a", 45)]))
    case.idle()
    case.finish()


def test_a_migration_completes_while_no_rows_come(runtime):
    case = runtime.start("count")
    case.flow()
    version = case.query.version
    move = case.query.rescale(3, schedule="batched", max_bins=3, keep_executors=True)
    assert move.wait(PATIENCE_S)
    assert (move.status, len(case.query.workers)) == ("done", 3)
    case.idle()
    later = [each for each in case.query.recent_ticks if each.version > version]
    assert len(later) >= len(move.steps)
    assert all(each.tick > 0 and each.rows == 0 for each in later)
    assert case.query.last_progress.version <= version
    case.flow()
    case.finish()


def test_windows_close_once_while_their_bins_move(runtime):
    """A worker holds copies of bins that are not its own yet, or no longer: their windows are not its to close."""
    case = runtime.start("windows", release_after=2, **BY_BATCHES)
    case.flow()
    move = case.query.move({0: 1, 1: 1, BINS - 1: 0}, schedule="all_at_once")
    case.await_event("planned")
    case.flow_until("finished")
    assert move.wait(PATIENCE_S)
    case.finish()
