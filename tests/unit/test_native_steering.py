"""How a native migration goes on, batch by batch, without Spark."""

import pytest

from meander.errors import InvalidOption
from meander.migration.steps import OperatorMove, SteeringPatience, Step
from meander.native.steering import (
    Arrived,
    BatchSight,
    Doubted,
    GivenUp,
    Steer,
    SteeringDone,
    SteeringProtocol,
    TakeSnapshot,
    TaskSight,
)

EVERYBODY = (1, 2, 3)
FIRST, SECOND = OperatorMove(0, 4, 1, 2, 10), OperatorMove(0, 5, 1, 3, 10)


def protocol(*steps, **patience):
    return SteeringProtocol([Step(at, moves) for at, moves in enumerate(steps)], SteeringPatience(**patience))


def seen(batch, tasks=None, alive=EVERYBODY, stale=None):
    sights = {key: task if isinstance(task, TaskSight) else TaskSight(task) for key, task in (tasks or {}).items()}
    return BatchSight(batch, sights, alive, stale or {})


def test_a_step_is_steered_and_the_next_one_only_when_it_was_seen_there():
    machine = protocol((FIRST,), (SECOND,))
    assert machine.under_way == ()
    assert machine.on(seen(0)) == [Steer((FIRST,))]
    assert machine.under_way == (FIRST,)
    assert machine.on(seen(1, {(0, 4): 2, (0, 5): 1})) == [Arrived(FIRST), Steer((SECOND,))]
    assert machine.on(seen(2, {(0, 4): 2, (0, 5): 3})) == [Arrived(SECOND)]
    assert not machine.is_finished, "the last one is looked at once more"
    assert machine.on(seen(3, {(0, 5): 3})) == [SteeringDone()]
    assert machine.is_finished
    assert machine.arrived == [FIRST, SECOND]


def test_a_batch_without_the_partition_is_waited_out():
    machine = protocol((FIRST,))
    machine.on(seen(0))
    assert machine.on(seen(1)) == []
    assert machine.on(seen(2, {(0, 4): 2})) == [Arrived(FIRST)]


def test_a_partition_that_runs_elsewhere_is_steered_again_and_then_given_up_with_the_reason():
    machine = protocol((FIRST, SECOND), tries=2)
    machine.on(seen(0))
    assert machine.on(seen(1, {(0, 4): 1, (0, 5): 3})) == [Arrived(SECOND), Steer((FIRST,))]
    late = TaskSight(1, why=": where it should was busy for longer than spark.locality.wait, 3s")
    instructions = machine.on(seen(2, {(0, 4): late, (0, 5): 3}))
    assert instructions == [GivenUp(FIRST, f"it ran on executor 1 2 times{late.why}"), SteeringDone()]
    assert [each.move for each in machine.given_up] == [FIRST]


@pytest.mark.parametrize("steered", [False, True])
def test_an_executor_that_is_gone_costs_its_partitions_alone(steered):
    machine = protocol((FIRST, SECOND))
    if steered:
        assert machine.on(seen(0)) == [Steer((FIRST, SECOND))]
        instructions = machine.on(seen(1, {(0, 4): 1, (0, 5): 3}, alive=(1, 3)))
        assert instructions == [GivenUp(FIRST, "executor 2 is gone"), Arrived(SECOND)]
    else:
        instructions = machine.on(seen(0, alive=(1, 3)))
        assert instructions == [GivenUp(FIRST, "executor 2 is gone"), Steer((SECOND,))]


def test_a_stale_partition_waits_for_a_snapshot_and_the_next_step_asks_ahead():
    machine = protocol((FIRST,), (SECOND,), fresh_bytes=100)
    stale = {(0, 4): 101, (0, 5): 5000}
    assert machine.concerns == [(0, 4), (0, 5)]
    assert machine.on(seen(0, stale=stale)) == [TakeSnapshot((FIRST,))]
    assert machine.on(seen(1, {(0, 4): 1}, stale=stale)) == [TakeSnapshot((FIRST,))]
    fresh = {(0, 4): 100, (0, 5): 5000}
    assert machine.on(seen(2, {(0, 4): 1}, stale=fresh)) == [Steer((FIRST,)), TakeSnapshot((SECOND,))]
    fresh = {(0, 5): 0}
    assert machine.on(seen(3, {(0, 4): 2}, stale=fresh)) == [Arrived(FIRST), Steer((SECOND,))]


def test_where_no_snapshot_comes_it_moves_all_the_same():
    machine = protocol((FIRST,), fresh_bytes=0, snapshot_batches=2)
    stale = {(0, 4): 1}
    instructions = [machine.on(seen(batch, stale=stale)) for batch in range(3)]
    assert instructions == [[TakeSnapshot((FIRST,))], [TakeSnapshot((FIRST,))], [Steer((FIRST,))]]


@pytest.mark.parametrize(
    ("rows", "updated", "removed", "fits"),
    [(100, 0, 0, True), (105, 5, 0, True), (106, 5, 0, False), (90, 5, 10, True), (89, 5, 10, False), (0, 0, 0, False)],
)
def test_rows_that_do_not_add_up_are_told(rows, updated, removed, fits):
    machine = protocol((FIRST,))
    machine.on(seen(0, {(0, 4): TaskSight(1, rows=100)}))
    instructions = machine.on(seen(1, {(0, 4): TaskSight(2, rows, updated, removed)}))
    doubts = [each for each in instructions if isinstance(each, Doubted)]
    assert bool(doubts) != fits
    assert all("100 rows before" in each.reason for each in doubts)
    assert instructions[0] == Arrived(FIRST)


@pytest.mark.parametrize(
    ("after", "word"),
    [
        (TaskSight(2, loads=1), None),
        (TaskSight(2, loads=2), "loaded again"),
        (TaskSight(3, loads=1), "ran on executor 3"),
    ],
)
def test_a_partition_that_does_not_stay_or_is_loaded_twice_is_told(after, word):
    machine = protocol((FIRST,))
    machine.on(seen(0))
    assert machine.on(seen(1, {(0, 4): TaskSight(2, loads=1)})) == [Arrived(FIRST)]
    instructions = machine.on(seen(2, {(0, 4): after}))
    assert instructions[-1] == SteeringDone()
    assert [word in each.reason for each in instructions[:-1]] == ([] if word is None else [True])


def test_nothing_to_move_is_done_at_once():
    assert protocol().on(seen(0)) == [SteeringDone()]
    assert protocol((), (FIRST,)).on(seen(0)) == [Steer((FIRST,))]


def test_a_partition_cannot_move_twice_in_one_migration():
    with pytest.raises(InvalidOption, match="twice"):
        protocol((FIRST,), (OperatorMove(0, 4, 2, 3),))


@pytest.mark.parametrize("patience", [{"fresh_bytes": -1}, {"tries": 0}, {"snapshot_batches": 1.5}])
def test_bad_patience_is_refused(patience):
    with pytest.raises(InvalidOption, match=next(iter(patience))):
        SteeringPatience(**patience)
