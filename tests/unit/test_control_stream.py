"""Rows of a control stream: checked, accepted, and in effect at their batches, whatever else is planned."""

import json

import numpy as np
import pytest

import meander as me
from meander.errors import Damaged
from meander.migration.control_rows import ControlRow, ControlRows, due
from meander.migration.control_stream import ControlStream
from meander.migration.coordinator import Coordinator
from meander.migration.events import EventLog
from meander.migration.ledger import BinRecord, Holdings
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
        for step in coordinator.protocol.control
    ]


# --- rows are checked ------------------------------------------------------------------------------


def test_rows_become_a_step_for_each_batch(coordinator):
    stream = ControlStream(coordinator, CopyBudget(copy_bytes=77))
    assert stream.take([row(9, 1, 1), row(5, 0, 1), row(5, 7, 0, operator=1), row(5, 2, None)], None, 3)
    assert steps(coordinator) == [(5, [(0, 0, 0, 1), (1, 7, 1, 0)]), (9, [(0, 1, 0, 1)])]
    assert coordinator.protocol.budget == CopyBudget(copy_bytes=77)
    assert coordinator.protocol.migration is None
    [event] = [each.to_dict() for each in coordinator.events.entries if each.name == "accepted"]
    assert event["rows"] == [[9, 0, 1, 1], [5, 0, 0, 1], [5, 1, 7, 0]]


def test_a_bin_goes_from_whoever_has_it_when_its_turn_comes(coordinator):
    rows = [row(5, 0, 1), row(6, 0, 0), row(7, 0, 0), row(6, 1, 0)]
    ControlStream(coordinator, CopyBudget()).take(rows, None, 3)
    assert steps(coordinator) == [(5, [(0, 0, 0, 1)]), (6, [(0, 0, 1, 0)]), (7, [])]


def test_of_two_rows_for_one_bin_and_batch_the_later_counts(coordinator):
    stream = ControlStream(coordinator, CopyBudget())
    stream.take([row(5, 0, 1), row(5, 0, 2)], None, 3)
    assert steps(coordinator) == [(5, [(0, 0, 0, 2)])]
    stream.take([row(5, 0, 0)], None, 3)
    assert steps(coordinator) == [(5, [])], "also where it came later: back where it was"


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
        (row(4, 0, 1), "batch 4 has passed: the last one was 4; name a later batch"),
        (row(-1, 0, 1), "batch -1 has passed"),
    ],
)
def test_a_bad_row_is_an_event_and_the_others_count(coordinator, bad, reason):
    stream = ControlStream(coordinator, CopyBudget())
    assert not stream.take([bad], 2, 4)
    [refused] = [each.to_dict() for each in coordinator.events.entries]
    assert refused["event"] == "refused"
    assert refused["row"] == bad
    assert reason in refused["reason"]
    assert not coordinator.protocol.busy
    assert stream.take([bad, row(5, 0, 1)], 2, 4)
    assert steps(coordinator) == [(5, [(0, 0, 0, 1)])]


def test_rows_that_come_together_share_the_cores(coordinator):
    assert ControlStream(coordinator, CopyBudget()).take([row(5, 0, 2), row(5, 1, 3)], 3, 4)
    assert steps(coordinator) == [(5, [(0, 0, 0, 2)])]
    assert [each.name for each in coordinator.events.entries] == ["refused", "accepted"]


def test_rows_and_the_plan_are_two_lists(coordinator):
    plan = [Step(0, (OperatorMove(0, 3, 0, 1),)), Step(1, (OperatorMove(1, 4, 1, 0),), 8)]
    coordinator.begin(plan, CopyBudget())
    ControlStream(coordinator, CopyBudget()).take([row(6, 5, 0)], None, 4)
    assert coordinator.protocol.steps == tuple(plan)
    assert steps(coordinator) == [(6, [(0, 5, 1, 0)])]
    assert coordinator.state(1).outcome is None


def test_the_rows_are_in_the_journal_and_a_journal_that_makes_no_sense_is_named(coordinator):
    ControlStream(coordinator, CopyBudget(copy_ms=7.0)).take([row(6, 5, 0), row(5, 7, 0, operator=1)], None, 4)
    note = json.loads(json.dumps(coordinator.note()))
    after = Coordinator(coordinator.record, Holdings(), EventLog(), 2, note)
    assert after.control == coordinator.control
    assert steps(after) == steps(coordinator)
    with pytest.raises(Damaged, match="control rows cannot be read"):
        ControlRows.from_json({"rows": [[1, 2]], "rules": {}})


def test_steps_of_several_batches_that_are_due_at_once_are_one():
    rows = ControlRows().with_rows(
        [ControlRow(5, 0, 0, 1), ControlRow(6, 0, 0, 2), ControlRow(6, 0, 4, 1)], CopyBudget()
    )
    step = due(rows.steps([np.array(HALVES)], [[10] * 8]), 6)
    assert [(move.bin, move.source, move.target) for move in step.moves] == [(0, 0, 2)]
    assert step.bins == {(0, 0), (0, 4)}
    assert due(rows.steps([np.array(HALVES)], [[10] * 8]), 4) is None


# --- and take effect ---------------------------------------------------------------------------------


class Steered:
    """A stream of words in this process, steered by rows; what it counts is counted anew at the end."""

    def __init__(self, **options):
        stream = me.stream(me.testing.source("word string")).key_by("word").count()
        self.h = me.testing.harness(stream, 2, 16, retain=1000, **options)
        self.h.cluster.request(3)
        self.batches = 0
        self.go()

    def go(self, batches=1):
        for _ in range(batches):
            self.h.batch([{"word": f"w{number}"} for number in range(50)])
            self.batches += 1

    @property
    def owners(self):
        return self.h.query.assignment["0:count"]

    def owner_by_batch(self, bin_):
        """Who owned a bin in each batch, by the manifests."""
        log = self.h.driver.log
        return {each.batch: each.operators[0].owner[bin_] for each in log.commits(0) if each.tick == 0}

    def events(self, name):
        return [each.to_dict() for each in self.h.query.events if each.name == name]

    def check(self):
        assert {row["word"]: row["count"] for row in self.h.state()} == {
            f"w{number}": self.batches for number in range(50)
        }
        assert {row["word"]: row["count"] for row in self.h.latest("word")} == {
            f"w{number}": self.batches for number in range(50)
        }
        assert len(self.h.output()) == 50 * self.batches
        assert self.h.query.misrouted == 0


@pytest.fixture
def case():
    steered = Steered()
    with steered.h:
        yield steered
        steered.check()


EIGHT = dict.fromkeys(range(8), 1)


def test_a_row_for_a_far_batch_leaves_eight_fluid_steps_eight_steps(case):
    move = case.h.query.move(EIGHT, schedule="fluid")
    case.go()
    assert case.h.control(row(1000, 15, 0))
    while not move.poll():
        case.go()
    assert (move.status, len(move.steps)) == ("done", 8)
    assert [each["bins"] for each in case.events("flipping")] == [[bin_] for bin_ in range(8)]
    assert [each["step"] for each in case.events("flipped")] == list(range(8))
    ready = [each["step"] for each in case.events("ready")]
    assert ready == list(range(8)), "each was copied before it flipped"
    assert case.owners == [1] * 16
    assert case.h.driver.coordinator.control.rows == ((1000, 0, 15, 0),)
    copies = case.h.driver.holdings.of(0, 0)
    assert copies[15], "and the row's bin is copied ahead"


def test_a_row_takes_effect_at_its_batch_while_a_plan_is_under_way(case):
    move = case.h.query.move(EIGHT, schedule="fluid")
    case.h.control(row(4, 15, 0), row(6, 15, 1))
    while not move.poll():
        case.go()
    case.go(3)
    assert [case.owner_by_batch(15)[batch] for batch in range(8)] == [1, 1, 1, 1, 0, 0, 1, 1]
    assert sum(len(each["bins"]) for each in case.events("flipping")) == 10
    assert move.status == "done"


def test_a_rescale_after_a_row_was_accepted_does_not_drop_it(case):
    case.h.control(row(5, 0, 1))
    assert case.h.rescale(3).status == "done"
    case.go(6)
    owners = case.owner_by_batch(0)
    assert owners[5] == owners[6] == 1
    assert case.events("refused") == []


def test_a_row_is_copied_ahead_and_is_in_no_hurry(case):
    case.h.control(row(4, 0, 1))
    case.go()
    assert case.owners[0] == 0
    assert case.h.driver.holdings.of(0, 1)[0]
    case.go(2)
    assert case.owners[0] == 0
    case.go()
    assert case.owners[0] == 1
    assert case.h.query.last_progress.copied == 0
    case.go(4)
    assert not case.h.driver.holdings.of(0, 0)[0], "the old copy goes"
    assert not case.h.driver.coordinator.protocol.busy


def test_the_row_decides_about_a_bin_that_the_plan_would_still_move(case):
    move = case.h.query.move(EIGHT, schedule="fluid")
    case.h.control(row(3, 7, 0), row(3, 6, 2))
    while not move.poll():
        case.go()
    case.go(2)
    assert case.owners[:8] == [1, 1, 1, 1, 1, 1, 2, 0]
    assert move.status == "done"


def test_the_row_decides_about_a_bin_that_the_plan_would_move_in_the_same_version(case):
    case.h.query.move({0: 1, 1: 1}, schedule="all_at_once", at=3)
    case.h.control(row(3, 0, 0))
    case.go(4)
    assert [case.owner_by_batch(0)[batch] for batch in range(5)] == [0] * 5
    assert [case.owner_by_batch(1)[batch] for batch in range(5)] == [0, 0, 0, 1, 1]


def test_a_plan_that_is_made_after_the_row_starts_from_where_it_has_put_the_bin(case):
    case.h.control(row(2, 0, 1))
    case.go(3)
    assert case.owners[0] == 1
    move = case.h.move({0: 0})
    assert [each.source for each in move.steps[0].moves] == [1]
    assert case.owners[0] == 0


def test_a_row_of_the_past_is_refused_and_changes_nothing(case):
    case.go(3)
    assert not case.h.control(row(3, 0, 1), row(0, 1, 1))
    assert [each["reason"] for each in case.events("refused")] == [
        "batch 3 has passed: the last one was 3; name a later batch",
        "batch 0 has passed: the last one was 3; name a later batch",
    ]
    case.go(2)
    assert case.owners == [0] * 8 + [1] * 8
    assert case.h.control(row(6, 0, 1)), "the next batch is in time"
    case.go()
    assert case.owner_by_batch(0)[6] == 1


def test_plan_and_rows_survive_a_restart_and_a_takeover(case):
    move = case.h.query.move(EIGHT, schedule="fluid")
    case.h.control(row(12, 15, 0), row(6, 7, 0))
    while move.progress.steps < 3:
        case.go()
    case.h.query.stop()
    case.h.restart()  # stopped and started
    assert case.h.query.migration.progress.of_steps == 5
    case.go()
    case.h.restart()  # taken over
    case.go(16 - case.batches)
    assert [case.owner_by_batch(15)[batch] for batch in range(10, 14)] == [1, 1, 0, 0]
    assert case.owners[:8] == [1] * 7 + [0]
    assert not case.h.driver.coordinator.protocol.busy


def test_cancelling_the_plan_does_not_cancel_rows(case):
    move = case.h.query.move(EIGHT, schedule="fluid")
    case.h.control(row(3, 15, 0))
    move.cancel()
    case.go(4)
    assert case.owners == [0] * 8 + [1] * 7 + [0]


def test_a_row_for_a_worker_that_is_gone_is_refused(case):
    case.h.control(row(8, 0, 2), row(8, 1, 1))
    case.go()
    case.h.lose(2, replace=False)
    case.go(9)
    [refused] = case.events("refused")
    assert refused["row"] == {"batch": 8, "operator": 0, "bin": 0, "worker": 2}
    assert refused["reason"] == "worker 2 is gone"
    assert case.owners[:2] == [0, 1]


def test_a_query_that_rows_gave_a_third_worker_keeps_it_over_a_restart(case):
    case.h.control(row(2, 0, 2))
    case.go(4)
    assert case.h.query.workers == [0, 1, 2]
    case.h.restart()
    case.go()
    assert case.h.query.workers == [0, 1, 2]


def test_a_start_with_more_workers_keeps_the_rows_and_moves_from_the_new_owners(coordinator):
    ControlStream(coordinator, CopyBudget()).take([row(9, bin_, 0) for bin_ in range(4)], None, 4)
    assert steps(coordinator) == [(9, [])]
    coordinator.start(4, 4)
    moved = [(0, bin_, int(owner), 0) for bin_, owner in enumerate(coordinator.record.owners[0][:4]) if owner != 0]
    assert moved
    assert steps(coordinator) == [(9, moved)]
