"""A query that is started again on its checkpoint goes on as it was."""

from __future__ import annotations

import pytest

import meander as me
from contract.runtimes import BY_BATCHES, EVERYWHERE
from streams import PATIENCE_S

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("runtime", EVERYWHERE, indirect=True)
def test_a_migration_under_way_goes_on_after_a_restart(runtime):
    case = runtime.start("count", **BY_BATCHES)
    case.flow()
    move = case.query.rescale(3, schedule="fluid")
    case.await_event("planned")
    case.flow_until("flipped")
    (plan,) = move.plans.values()
    case.stop()
    assert set(plan.before) < set(plan.owner)
    assert plan.before != tuple(case.assignment) != plan.owner
    flips, moves = move.progress.bins, len(plan.moves)
    case.restart()
    again = case.query.migration
    assert (again.status, again.progress.bins, again.progress.of_bins) == ("running", 0, moves - flips)
    case.flow_until("finished")
    assert again.wait(PATIENCE_S)
    assert (again.report.outcome, again.report.bins) == ("done", moves - flips)
    assert tuple(case.assignment) == plan.owner
    case.finish()


def test_a_query_that_was_rescaled_stays_so(runtime):
    case = runtime.start("count")
    case.flow()
    assert case.query.rescale(3, keep_executors=True).wait(PATIENCE_S)
    assignment = case.assignment
    case.stop()
    case.restart()  # with as many workers as it was started with at first
    assert (case.assignment, case.query.migration) == (assignment, None)
    case.flow()
    case.stop()
    case.restart(workers=None)
    assert case.assignment == assignment
    case.stop()
    case.restart(workers=1)  # another number is a wish
    case.flow()
    assert len(case.query.workers) == 1
    case.finish()


@pytest.mark.parametrize("runtime", EVERYWHERE, indirect=True)
def test_each_start_may_have_another_number_of_workers(runtime):
    case = runtime.start("count", workers=2, snapshot_every=3)
    case.flow(2)
    for workers in (3, 1, 2):
        case.stop()
        case.restart(workers=workers)
        case.flow(2)
        assert len(case.query.workers) == workers
        # Only whoever owns bins has rows.
        assert {part.worker for part in case.query.last_progress.workers} == set(case.query.workers)
    case.finish()


@pytest.mark.parametrize("runtime", EVERYWHERE, indirect=True)
def test_a_start_that_is_refused_leaves_the_query_alone_that_runs(runtime):
    case = runtime.start("count", name="one", **BY_BATCHES)
    case.flow()
    endless = "99999999999999999999 seconds"
    slips: dict[str, dict] = {"the checkpoint has 16 bins, not 32": {"name": "two", "bins": 32}}
    if runtime.name != "inprocess":
        slips |= {
            f"Spark refuses the stream: .*{endless}": {"name": "two", "trigger": endless},
            "a query of the name 'one' runs in this session": {},
        }
    options = case.options
    for sentence, slip in slips.items():
        case.options = {**options, **slip}
        with pytest.raises(me.MeanderError, match=sentence):
            case.launch()
        case.flow()
        assert case.query.exception() is None
    case.options = options
    case.finish()
