"""How a native migration goes on, batch by batch, without Spark."""

import pytest

from meander.errors import InvalidOption
from meander.migration.steps import Shift, Step
from meander.native.course import Arrived, Course, Doubted, Finished, GivenUp, Rules, Seen, Sight, Snapshot, Steer

EVERYBODY = (1, 2, 3)
FIRST, SECOND = Shift(0, 4, 1, 2, 10), Shift(0, 5, 1, 3, 10)


def course(*steps, **rules):
    return Course([Step(at, shifts) for at, shifts in enumerate(steps)], Rules(**rules))


def seen(batch, ran=None, alive=EVERYBODY, stale=None):
    sights = {key: found if isinstance(found, Sight) else Sight(found) for key, found in (ran or {}).items()}
    return Seen(batch, sights, alive, stale or {})


def test_a_step_is_steered_and_the_next_one_only_when_it_was_seen_there():
    machine = course((FIRST,), (SECOND,))
    assert machine.under_way == ()
    assert machine.on(seen(0)) == [Steer((FIRST,))]
    assert machine.under_way == (FIRST,)
    assert machine.on(seen(1, {(0, 4): 2, (0, 5): 1})) == [Arrived(FIRST), Steer((SECOND,))]
    assert machine.on(seen(2, {(0, 4): 2, (0, 5): 3})) == [Arrived(SECOND)]
    assert not machine.is_finished, "the last one is looked at once more"
    assert machine.on(seen(3, {(0, 5): 3})) == [Finished()]
    assert machine.is_finished
    assert machine.arrived == [FIRST, SECOND]


def test_a_batch_without_the_partition_is_waited_out():
    machine = course((FIRST,))
    machine.on(seen(0))
    assert machine.on(seen(1)) == []
    assert machine.on(seen(2, {(0, 4): 2})) == [Arrived(FIRST)]


def test_a_partition_that_runs_elsewhere_is_steered_again_and_then_given_up_with_the_reason():
    machine = course((FIRST, SECOND), tries=2)
    machine.on(seen(0))
    assert machine.on(seen(1, {(0, 4): 1, (0, 5): 3})) == [Arrived(SECOND), Steer((FIRST,))]
    late = Sight(1, why=": where it should was busy for longer than spark.locality.wait, 3s")
    told = machine.on(seen(2, {(0, 4): late, (0, 5): 3}))
    assert told == [GivenUp(FIRST, f"it ran on executor 1 2 times{late.why}"), Finished()]
    assert [each.shift for each in machine.given_up] == [FIRST]


@pytest.mark.parametrize("steered", [False, True])
def test_an_executor_that_is_gone_costs_its_partitions_alone(steered):
    machine = course((FIRST, SECOND))
    if steered:
        assert machine.on(seen(0)) == [Steer((FIRST, SECOND))]
        told = machine.on(seen(1, {(0, 4): 1, (0, 5): 3}, alive=(1, 3)))
        assert told == [GivenUp(FIRST, "executor 2 is gone"), Arrived(SECOND)]
    else:
        told = machine.on(seen(0, alive=(1, 3)))
        assert told == [GivenUp(FIRST, "executor 2 is gone"), Steer((SECOND,))]


def test_a_stale_partition_waits_for_a_snapshot_and_the_next_step_asks_ahead():
    machine = course((FIRST,), (SECOND,), fresh_bytes=100)
    stale = {(0, 4): 101, (0, 5): 5000}
    assert machine.concerned == [(0, 4), (0, 5)]
    assert machine.on(seen(0, stale=stale)) == [Snapshot((FIRST,))]
    assert machine.on(seen(1, {(0, 4): 1}, stale=stale)) == [Snapshot((FIRST,))]
    fresh = {(0, 4): 100, (0, 5): 5000}
    assert machine.on(seen(2, {(0, 4): 1}, stale=fresh)) == [Steer((FIRST,)), Snapshot((SECOND,))]
    fresh = {(0, 5): 0}
    assert machine.on(seen(3, {(0, 4): 2}, stale=fresh)) == [Arrived(FIRST), Steer((SECOND,))]


def test_where_no_snapshot_comes_it_moves_all_the_same():
    machine = course((FIRST,), fresh_bytes=0, snapshot_batches=2)
    stale = {(0, 4): 1}
    told = [machine.on(seen(batch, stale=stale)) for batch in range(3)]
    assert told == [[Snapshot((FIRST,))], [Snapshot((FIRST,))], [Steer((FIRST,))]]


@pytest.mark.parametrize(
    ("rows", "updated", "removed", "fits"),
    [(100, 0, 0, True), (105, 5, 0, True), (106, 5, 0, False), (90, 5, 10, True), (89, 5, 10, False), (0, 0, 0, False)],
)
def test_rows_that_do_not_add_up_are_told(rows, updated, removed, fits):
    machine = course((FIRST,))
    machine.on(seen(0, {(0, 4): Sight(1, rows=100)}))
    told = machine.on(seen(1, {(0, 4): Sight(2, rows, updated, removed)}))
    doubts = [each for each in told if isinstance(each, Doubted)]
    assert bool(doubts) != fits
    assert all("100 rows before" in each.reason for each in doubts)
    assert told[0] == Arrived(FIRST)


@pytest.mark.parametrize(
    ("after", "word"),
    [(Sight(2, loads=1), None), (Sight(2, loads=2), "loaded again"), (Sight(3, loads=1), "ran on executor 3")],
)
def test_a_partition_that_does_not_stay_or_is_loaded_twice_is_told(after, word):
    machine = course((FIRST,))
    machine.on(seen(0))
    assert machine.on(seen(1, {(0, 4): Sight(2, loads=1)})) == [Arrived(FIRST)]
    told = machine.on(seen(2, {(0, 4): after}))
    assert told[-1] == Finished()
    assert [word in each.reason for each in told[:-1]] == ([] if word is None else [True])


def test_nothing_to_move_is_done_at_once():
    assert course().on(seen(0)) == [Finished()]
    assert course((), (FIRST,)).on(seen(0)) == [Steer((FIRST,))]


def test_a_partition_cannot_move_twice_in_one_migration():
    with pytest.raises(InvalidOption, match="twice"):
        course((FIRST,), (Shift(0, 4, 2, 3),))


@pytest.mark.parametrize("rules", [{"fresh_bytes": -1}, {"tries": 0}, {"snapshot_batches": 1.5}])
def test_bad_rules_are_refused(rules):
    with pytest.raises(InvalidOption, match=next(iter(rules))):
        Rules(**rules)
