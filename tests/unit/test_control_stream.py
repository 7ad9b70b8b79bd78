"""Rows of a control stream as steps of one long migration."""

import numpy as np
import pytest

from meander.migration.control_stream import ControlStream
from meander.migration.coordinator import Coordinator
from meander.migration.ledger import BinRecord, Holdings
from meander.migration.movable import EventLog
from meander.migration.steps import CopyBudget, OperatorMove, Step

HALVES = [0] * 4 + [1] * 4


@pytest.fixture
def coordinator():
    owners = [np.array(HALVES, np.int64)] * 2
    return Coordinator(BinRecord(owners, version=0), Holdings(), EventLog(), 2, {})


def row(batch, bin_, worker, **more):
    return {"batch": batch, "bin": bin_, "worker": worker, **more}


def steps(coordinator):
    return [
        (step.at, [(move.operator, move.bin, move.source, move.target) for move in step.moves])
        for step in coordinator.protocol.steps
    ]


def test_rows_become_a_step_for_each_batch(coordinator):
    stream = ControlStream(coordinator, CopyBudget(copy_bytes=77))
    assert stream.take([row(9, 1, 1), row(5, 0, 1), row(5, 7, 0, operator=1), row(5, 2, None)], None)
    assert steps(coordinator) == [(5, [(0, 0, 0, 1), (1, 7, 1, 0)]), (9, [(0, 1, 0, 1)])]
    assert coordinator.protocol.budget == CopyBudget(copy_bytes=77)
    assert coordinator.protocol.migration == 1


def test_a_bin_goes_from_whoever_has_it_when_its_turn_comes(coordinator):
    ControlStream(coordinator, CopyBudget()).take([row(5, 0, 1), row(6, 0, 0), row(7, 0, 0), row(6, 1, 0)], None)
    assert steps(coordinator) == [(5, [(0, 0, 0, 1)]), (6, [(0, 0, 1, 0)]), (7, [])]


def test_of_two_rows_for_one_bin_and_batch_the_later_counts(coordinator):
    stream = ControlStream(coordinator, CopyBudget())
    stream.take([row(5, 0, 1), row(5, 0, 2)], None)
    assert steps(coordinator) == [(5, [(0, 0, 0, 2)])]
    stream.take([row(5, 0, 0)], None)
    assert steps(coordinator) == [(5, [])], "also where it came later: back where it was"


def test_what_has_not_flipped_yet_is_not_lost_by_a_row_that_comes_later(coordinator):
    coordinator.begin([Step(0, (OperatorMove(0, 3, 0, 1),)), Step(1, (OperatorMove(1, 4, 1, 0),), 8)], CopyBudget())
    ControlStream(coordinator, CopyBudget()).take([row(6, 5, 0)], None)
    assert steps(coordinator) == [(0, [(0, 3, 0, 1)]), (6, [(0, 5, 1, 0)]), (8, [(1, 4, 1, 0)])]
    assert coordinator.state(1).outcome == "replaced"


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (row(5, None, 1), "a number is missing"),
        (row(5, 0, 1, operator=2), "there is no operator 2"),
        (row(5, 8, 1), "there is no bin 8: the bins are 0 to 7"),
        (row(5, -1, 1), "there is no bin -1"),
        (row(5, 0, -1), "-1 cannot be the number of a worker"),
        (row(5, 0, 1 << 31), "cannot be the number of a worker"),
        (row(5, 0, 2), "worker 2 needs a core, and all 2 have a worker; rescale first"),
    ],
)
def test_a_bad_row_is_an_event_and_the_others_count(coordinator, bad, reason):
    stream = ControlStream(coordinator, CopyBudget())
    assert not stream.take([bad], 2)
    [refused] = coordinator.events.entries
    assert refused["event"] == "refused"
    assert refused["row"] == bad
    assert reason in refused["reason"]
    assert not coordinator.protocol.busy
    assert stream.take([bad, row(5, 0, 1)], 2)
    assert steps(coordinator) == [(5, [(0, 0, 0, 1)])]
