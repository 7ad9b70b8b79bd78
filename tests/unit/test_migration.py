"""The machine by hand: every transition, and what a worker does with what it is told."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meander.engine.worker.catch_up import Wanted, update
from meander.errors import Damaged
from meander.migration.orders import (
    Cancelled,
    Committed,
    Copy,
    Entered,
    Finished,
    Flip,
    Gone,
    Hold,
    Lost,
    Opened,
    Phase,
    Planned,
    Snapshot,
)
from meander.migration.protocol import Protocol
from meander.migration.report import Latency, Progress, Report
from meander.migration.steps import COPY_BYTES, CopyBudget, OperatorMove, Step, joined
from meander.types import Move

BINS = 8
A, B, C = 0, 1, 5


def move(bin_, source=A, target=B, size=10, operator=0):
    return OperatorMove(operator, bin_, source, target, size)


def step(number, *bins, **more):
    return Step(number, tuple(move(bin_) if isinstance(bin_, int) else bin_ for bin_ in bins), **more)


def flags(*bins):
    found = np.zeros(BINS, np.bool_)
    found[list(bins)] = True
    return found


def held(**workers):
    """held(A=[1, 2]): what workers report to hold of operator 0."""
    return {(0, globals()[name]): flags(*bins) for name, bins in workers.items()}


def begun(*steps, number=1, **budget):
    machine = Protocol()
    told = machine.on(Planned(number, steps, CopyBudget(**budget)))
    assert told[: len(steps)] == [Entered(number, each.number, Phase.PLANNED) for each in steps]
    return machine


def opened(machine, version, batch=None, stale=()):
    return machine.on(Opened(version, version if batch is None else batch, frozenset(stale)))


def orders(told):
    return [each for each in told if not isinstance(each, Entered)]


def version(machine, number, reported, **more):
    """One version from its opening to its commit; what was ordered, and what came of it."""
    told = orders(opened(machine, number))
    return told, machine.on(Committed(number, reported, **more))


# --- one step, from plan to release --------------------------------------------------------------


def test_a_step_is_copied_flipped_and_released():
    machine = begun(step(0, 3, 4), release_after=2)
    assert machine.busy
    assert machine.workers == {A, B}
    assert opened(machine, 10) == [Entered(1, 0, Phase.COPYING), Copy(0, B, (3, 4))]
    assert machine.on(Committed(10, held(B=[3]))) == []
    assert opened(machine, 11) == [Hold(0, B, (3,)), Copy(0, B, (4,))]
    assert machine.on(Committed(11, held(B=[3, 4]))) == [Entered(1, 0, Phase.READY)]
    flips = step(0, 3, 4).moves
    assert opened(machine, 12) == [Flip(12, flips), Hold(0, A, (3, 4))]
    assert machine.flipping == (step(0, 3, 4),)
    assert machine.on(Committed(12, held(B=[3, 4]))) == [Entered(1, 0, Phase.FLIPPED)]
    assert machine.workers == {A}
    assert opened(machine, 13) == [Hold(0, A, (3, 4))]
    assert machine.on(Committed(13, held(A=[3, 4], B=[3, 4]))) == []
    assert opened(machine, 14) == []
    assert machine.on(Committed(14, held(B=[3, 4]))) == [Entered(1, 0, Phase.RELEASED), Finished(1, "done")]
    assert not machine.busy
    assert opened(machine, 15) == []


def test_what_is_ordered_counts_only_when_it_is_committed():
    machine = begun(step(0, 3))
    version(machine, 5, held(B=[3]))
    first = opened(machine, 6)
    assert opened(machine, 6) == first
    assert machine.steps == (step(0, 3),)
    assert machine.phases[0] is Phase.READY
    assert machine.on(Committed(6, held(B=[3]))) == [Entered(1, 0, Phase.FLIPPED)]
    assert machine.steps == ()


def test_a_commit_that_is_told_again_or_late_says_nothing_new():
    machine = begun(step(0, 3), step(1, 4), patience=3)
    version(machine, 5, held(B=[3]))
    machine.on(Lost(frozenset({B})))
    assert machine.on(Committed(5, held(B=[3]))) == []
    assert machine.on(Committed(4, held(B=[3, 4]))) == []
    assert machine.phases == {0: Phase.PLANNED, 1: Phase.PLANNED}
    assert Flip not in {type(each) for each in opened(machine, 6)}
    for _ in range(5):
        machine.on(Committed(5, {}))
    assert orders(opened(machine, 6)) == [Copy(0, B, (3, 4))]


def test_a_worker_that_reports_less_than_before_takes_the_step_back():
    machine = begun(step(0, 3, 4))
    assert Entered(1, 0, Phase.READY) in version(machine, 1, held(B=[3, 4]))[1]
    told = machine.on(Committed(2, held(B=[3])))
    assert told == [Entered(1, 0, Phase.COPYING)]
    assert orders(opened(machine, 3)) == [Hold(0, B, (3,)), Copy(0, B, (4,))]


# --- order, budgets, limits ----------------------------------------------------------------------


def test_steps_flip_in_order_and_one_in_a_version():
    machine = begun(step(0, 1), step(1, 2), release_after=0)
    told, _ = version(machine, 1, held(B=[2]))
    assert told == [Copy(0, B, (1, 2))]
    assert machine.phases[1] is Phase.READY
    assert orders(opened(machine, 2)) == [Hold(0, B, (2,)), Copy(0, B, (1,))]
    machine.on(Committed(2, held(B=[1, 2])))
    assert version(machine, 3, held(B=[1, 2]))[0] == [Flip(3, (move(1),)), Hold(0, B, (2,))]
    told, after = version(machine, 4, held(B=[1, 2]))
    assert told == [Flip(4, (move(2),))]
    assert after == [Entered(1, 1, Phase.FLIPPED), Entered(1, 1, Phase.RELEASED), Finished(1, "done")]


def test_steps_that_may_join_flip_with_the_one_before_as_far_as_they_are_ready():
    machine = begun(step(0, 1), step(1, 2, joins=True), step(2, 3, joins=True), step(3, 4), release_after=0)
    version(machine, 1, held(B=[1, 2, 4]))
    told, after = version(machine, 2, held(B=[1, 2, 4]))
    assert told == [Flip(2, (move(1), move(2))), Hold(0, B, (4,)), Copy(0, B, (3,))]
    ended = [Entered(1, number, phase) for phase in (Phase.FLIPPED, Phase.RELEASED) for number in (0, 1)]
    assert set(after) == set(ended)
    assert machine.steps == (step(2, 3, joins=True), step(3, 4))
    version(machine, 3, held(B=[1, 2, 3, 4]))
    assert orders(opened(machine, 4)) == [Flip(4, (move(3),)), Hold(0, B, (4,))]


def test_steps_that_flip_together_while_another_plan_comes_go_back_in_one_step():
    machine = begun(step(0, 1), step(1, 2, joins=True), release_after=0)
    version(machine, 1, held(B=[1, 2]))
    opened(machine, 2)
    machine.on(Planned(2, (step(0, 3),), CopyBudget(release_after=0)))
    back = step(1, move(1, B, A), move(2, B, A))
    assert machine.left == (step(0, 3), back)
    machine.on(Committed(2, held(B=[1, 2])))
    assert machine.steps == (step(0, 3), back)
    assert machine.phases == {0: Phase.PLANNED, 1: Phase.PLANNED}


def test_a_bin_that_moves_twice_flips_twice():
    machine = begun(step(0, 1), step(1, move(1, B, C), joins=True))
    everywhere = held(B=[1], C=[1])
    version(machine, 1, everywhere)
    assert version(machine, 2, everywhere)[0][0] == Flip(2, (move(1),))
    assert version(machine, 3, everywhere)[0][0] == Flip(3, (move(1, B, C),))


def test_each_target_copies_within_its_budget_and_at_least_one_bin():
    big, small = move(1, size=90), move(2, size=20)
    other = move(3, target=C, size=500)
    machine = begun(step(0, big, small, move(4, size=10), other), copy_bytes=100)
    assert orders(opened(machine, 1)) == [Copy(0, B, (1, 4)), Copy(0, C, (3,))]


def test_without_a_budget_as_much_is_copied_as_was_measured():
    machine = begun(*(step(number, move(number, size=COPY_BYTES)) for number in range(4)))
    assert orders(opened(machine, 1)) == [Copy(0, B, (0,))]
    assert orders(machine.on(Opened(1, 1, copy_bytes=3 * COPY_BYTES))) == [Copy(0, B, (0, 1, 2))]


def test_what_was_copied_stays_when_less_can_be_copied_than_before():
    large = [step(number, move(number, size=4 * COPY_BYTES), joins=number > 0) for number in range(4)]
    machine = begun(*large)
    machine.on(Opened(1, 1, copy_bytes=16 * COPY_BYTES))
    machine.on(Committed(1, held(B=[1, 2, 3])))
    assert orders(machine.on(Opened(2, 2, copy_bytes=COPY_BYTES))) == [Hold(0, B, (1, 2, 3)), Copy(0, B, (0,))]


def test_only_so_many_steps_are_copied_ahead():
    machine = begun(*(step(number, number, **{}) for number in range(8)), copy_bytes=1000)
    assert orders(opened(machine, 1)) == [Copy(0, B, (0, 1, 2, 3))]
    narrow = begun(*(step(number, move(number, size=100)) for number in range(8)), copy_bytes=60)
    assert orders(opened(narrow, 1)) == [Copy(0, B, (0,))]
    assert sum(phase is Phase.COPYING for phase in narrow.phases.values()) == 1


def test_stale_bins_are_written_whole_before_they_are_copied():
    machine = begun(step(0, 1, 2, 3), copy_bytes=10)
    told = opened(machine, 1, stale={(0, 1), (0, 2)})
    assert told == [Entered(1, 0, Phase.COPYING), Copy(0, B, (3,)), Snapshot(0, A, (1,))]
    machine.on(Committed(1, held(B=[3])))
    assert orders(opened(machine, 2, stale={(0, 2)})) == [Hold(0, B, (3,)), Copy(0, B, (1,)), Snapshot(0, A, (2,))]


def test_a_step_that_gains_nothing_is_forced_when_patience_ends():
    machine = begun(step(0, 1, 2), patience=2)
    for number in (1, 2):
        assert version(machine, number, {})[0] == [Copy(0, B, (1, 2))]
    assert orders(opened(machine, 3))[0] == Flip(3, (move(1), move(2)))


def test_a_bin_gained_renews_patience():
    machine = begun(step(0, 1, 2), patience=2)
    version(machine, 1, {})
    version(machine, 2, held(B=[1]))
    assert version(machine, 3, held(B=[1]))[0] == [Hold(0, B, (1,)), Copy(0, B, (2,))]
    assert version(machine, 4, held(B=[1]))[0] == [Hold(0, B, (1,)), Copy(0, B, (2,))]
    assert isinstance(opened(machine, 5)[0], Flip)


def test_a_forced_step_is_not_copied_and_flips_in_its_turn():
    machine = begun(step(0, 1), step(1, 2, forced=True), step(2, 3), release_after=0)
    assert version(machine, 1, held(B=[1]))[0] == [Copy(0, B, (1,))]
    assert version(machine, 2, held(B=[1]))[0] == [Flip(2, (move(1),))]
    assert version(machine, 3, held(B=[1, 2]))[0] == [Flip(3, (move(2),)), Copy(0, B, (3,))]


def test_a_step_with_a_batch_waits_for_it_and_then_waits_for_nothing():
    machine = begun(step(0, 1, 2, at=7))
    assert orders(opened(machine, 1, batch=5)) == [Copy(0, B, (1, 2))]
    machine.on(Committed(1, held(B=[1, 2])))
    assert orders(opened(machine, 2, batch=6)) == [Hold(0, B, (1, 2))]
    machine.on(Committed(2, held(B=[1])))
    assert orders(opened(machine, 3, batch=7))[0] == Flip(3, (move(1), move(2)))


def test_empty_steps_take_a_version_each_and_an_empty_plan_none():
    machine = begun(step(0), step(1, 1), step(2), release_after=0)
    assert machine.phases == {0: Phase.READY, 1: Phase.PLANNED, 2: Phase.READY}
    told, after = version(machine, 1, held(B=[1]))
    assert told == [Copy(0, B, (1,))]
    assert Entered(1, 0, Phase.FLIPPED) in after
    assert version(machine, 2, held(B=[1]))[0][0] == Flip(2, (move(1),))
    assert version(machine, 3, held(B=[1]))[1][-1] == Finished(1, "done")
    assert Protocol().on(Planned(4, ())) == [Finished(4, "done")]


def test_kept_copies_have_a_limit_in_bytes_and_the_oldest_go_first():
    machine = begun(*(step(number, number) for number in range(3)), release_after=9, keep_bytes=20)
    everything = held(B=[0, 1, 2])
    version(machine, 1, everything)
    assert version(machine, 2, everything)[0][1] == Hold(0, A, (0,))
    assert version(machine, 3, everything)[0][1] == Hold(0, A, (0, 1))
    told, after = version(machine, 4, everything)
    assert told == [Flip(4, (move(2),)), Hold(0, A, (1, 2))]
    assert after == [Entered(1, 2, Phase.FLIPPED), Entered(1, 0, Phase.RELEASED)]


def test_nothing_is_kept_that_is_larger_than_all_that_may_be_kept():
    machine = begun(step(0, 1), release_after=9, keep_bytes=9)
    version(machine, 1, held(B=[1]))
    told, after = version(machine, 2, held(B=[1]))
    assert told == [Flip(2, (move(1),))]
    assert after[-1] == Finished(1, "done")


def test_operators_flip_together():
    steps = joined({0: [[Move(3, A, B, 10)]], 1: [[Move(5, A, C, 10)], [Move(6, A, C, 10)]]})
    machine = begun(*steps)
    half = {(0, B): flags(3), (1, C): flags(6)}
    assert version(machine, 1, half)[0] == [Copy(0, B, (3,)), Copy(1, C, (5, 6))]
    assert version(machine, 2, half)[0] == [Hold(0, B, (3,)), Hold(1, C, (6,)), Copy(1, C, (5,))]
    version(machine, 3, {(0, B): flags(3), (1, C): flags(5, 6)})
    assert orders(opened(machine, 4))[0] == Flip(4, (move(3), move(5, target=C, operator=1)))


# --- what comes in between -----------------------------------------------------------------------


def test_a_lost_target_returns_its_step():
    machine = begun(step(0, 3, move(4, target=C)), step(1, 5))
    version(machine, 1, held(B=[3, 5], C=[4]))
    assert machine.phases == {0: Phase.READY, 1: Phase.READY}
    assert opened(machine, 2)[0] == Flip(2, (move(3), move(4, target=C)))
    assert machine.on(Lost(frozenset({B}))) == [Entered(1, 0, Phase.COPYING), Entered(1, 1, Phase.PLANNED)]
    assert orders(opened(machine, 2)) == [Hold(0, C, (4,)), Copy(0, B, (3, 5))]
    assert machine.on(Lost(frozenset({A, 77}))) == []


def test_a_flip_is_done_if_its_version_was_committed_after_all():
    machine = begun(step(0, 3))
    version(machine, 1, held(B=[3]))
    opened(machine, 2)
    machine.on(Lost(frozenset({B})))
    assert Entered(1, 0, Phase.FLIPPED) in machine.on(Committed(2, held(B=[3])))
    assert machine.steps == ()


def test_a_worker_that_is_gone_fails_the_migration_if_it_takes_part():
    machine = begun(step(0, 3), step(1, move(4, target=C)), release_after=5)
    version(machine, 1, held(B=[3]))
    version(machine, 2, held(B=[3]))
    assert machine.on(Gone(frozenset({77}))) == []
    assert machine.on(Gone(frozenset({C}))) == [Entered(1, 1, Phase.PLANNED)]
    assert not machine.steps
    assert machine.busy, "what is kept is still to be released"
    reason = "worker 5 is gone, and others have taken over its bins"
    assert machine.on(Gone(frozenset({B}))) == [Entered(1, 0, Phase.RELEASED), Finished(1, "failed", reason)]


def test_who_takes_over_a_bin_that_it_still_keeps_does_not_keep_it_as_a_copy_any_more():
    machine = begun(step(0, 3), step(1, move(3, B, C)), release_after=5)
    machine.on(Committed(1, held(B=[3], C=[3])))
    version(machine, 2, held(B=[3], C=[3]))
    version(machine, 3, held(A=[3], B=[3], C=[3]))
    told = machine.on(Gone(frozenset({C})))
    assert told == [Entered(1, 0, Phase.RELEASED), Entered(1, 1, Phase.RELEASED), Finished(1, "done")]


def test_a_cancelled_migration_flips_nothing_more_and_still_releases():
    machine = begun(step(0, 3), step(1, 4), release_after=2)
    assert Protocol().on(Cancelled()) == []
    version(machine, 1, held(B=[3]))
    version(machine, 2, held(B=[3, 4]))
    assert machine.on(Cancelled("enough")) == []
    assert version(machine, 3, held(B=[3, 4]))[0] == [Hold(0, A, (3,))]
    told, after = version(machine, 4, held(B=[3]))
    assert told == []
    assert after == [Entered(1, 0, Phase.RELEASED), Finished(1, "cancelled", "enough")]
    fresh = begun(step(0, 3))
    assert fresh.on(Cancelled("no")) == [Finished(1, "cancelled", "no")]


def test_a_cancellation_does_not_undo_the_flip_that_is_under_way():
    machine = begun(step(0, 3), release_after=0)
    version(machine, 1, held(B=[3]))
    opened(machine, 2)
    assert machine.on(Cancelled("late")) == []
    after = machine.on(Committed(2, held(B=[3])))
    assert after[0] == Entered(1, 0, Phase.FLIPPED)
    assert after[-1] == Finished(1, "cancelled", "late")
    again = begun(step(0, 3))
    version(again, 1, held(B=[3]))
    opened(again, 2)
    again.on(Cancelled("in time"))
    assert orders(opened(again, 2)) == []
    assert again.on(Committed(2, held(B=[3]))) == [Finished(1, "cancelled", "in time")]


def test_troubles_fail_the_migration_with_their_reason():
    machine = begun(step(0, 3))
    opened(machine, 1)
    assert machine.on(Committed(1, {}, ("no such file", "other"))) == [Finished(1, "failed", "no such file")]


def test_another_plan_replaces_the_one_under_way():
    machine = begun(step(0, 3), step(1, 4))
    version(machine, 1, held(B=[3, 4]))
    told = machine.on(Planned(2, (step(0, 4), step(1, move(3, A, C)))))
    assert told[0] == Finished(1, "replaced", "by migration 2")
    assert machine.phases == {0: Phase.READY, 1: Phase.PLANNED}, "what was copied for the old plan is of use"
    assert orders(opened(machine, 2)) == [Flip(2, (move(4),)), Hold(0, A, (4,)), Copy(0, C, (3,))]


def test_a_migration_that_only_waits_for_its_release_was_done():
    machine = begun(step(0, 3))
    version(machine, 1, held(B=[3]))
    version(machine, 2, held(B=[3]))
    assert machine.on(Planned(2, (step(0, 4),)))[0] == Finished(1, "done")
    assert Hold(0, A, (3,)) in opened(machine, 3)


def test_a_plan_that_comes_while_a_flip_is_under_way_starts_where_that_leads():
    machine = begun(step(0, 1, 2, 3, 4), release_after=0)
    version(machine, 1, held(B=[1, 2, 3, 4]))
    opened(machine, 2)
    plan = (step(0, move(1, A, C), move(2, A, B), 6), step(1, move(5, A, C)))
    machine.on(Planned(2, plan))
    wanted = (step(0, move(1, B, C), 6), step(1, move(5, A, C)), step(2, move(3, B, A), move(4, B, A)))
    assert machine.left == wanted
    assert Protocol.from_json(machine.to_json()).steps == wanted
    after = machine.on(Committed(2, held(A=[5, 6, 7], B=[1, 2, 3, 4])))
    assert after[:2] == [Entered(1, 0, Phase.FLIPPED), Entered(2, 2, Phase.PLANNED)]
    assert (machine.steps, machine.total) == (wanted, 3)


def test_a_plan_that_comes_before_an_attempt_is_lost_starts_from_what_is_committed():
    machine = begun(step(0, 1))
    version(machine, 1, held(B=[1]))
    opened(machine, 2)
    plan = (step(0, move(1, A, C)),)
    machine.on(Planned(2, plan))
    assert orders(opened(machine, 2)) == [Copy(0, C, (1,))]
    machine.on(Committed(2, held(C=[1])))
    assert machine.steps == plan


def test_a_bin_that_flips_back_to_a_kept_copy_is_neither_read_nor_released():
    machine = begun(step(0, 3), release_after=3)
    version(machine, 1, held(B=[3]))
    version(machine, 2, held(A=[3], B=[3]))
    machine.on(Planned(2, (step(0, move(3, B, A)),), CopyBudget(release_after=3)))
    assert machine.phases == {0: Phase.READY}
    told, _ = version(machine, 3, held(A=[3], B=[3]))
    assert told == [Flip(3, (move(3, B, A),)), Hold(0, B, (3,))]
    assert version(machine, 4, held(A=[3], B=[3]))[0] == [Hold(0, B, (3,))]
    told, after = version(machine, 5, held(A=[3], B=[3]))
    assert told == [Hold(0, B, (3,))], "the first flip's copy is the owner's again"
    assert after == [Entered(1, 0, Phase.RELEASED)]
    assert version(machine, 6, held(A=[3]))[0] == []


def test_a_kept_copy_on_its_way_back_is_held_although_its_time_is_up():
    machine = begun(step(0, 3), release_after=1)
    version(machine, 1, held(B=[3]))
    version(machine, 2, held(A=[3], B=[3]))
    back = step(0, move(3, B, A), at=9)
    machine.on(Planned(2, (back,), CopyBudget(release_after=1)))
    assert version(machine, 3, held(A=[3], B=[3]))[0] == [Hold(0, A, (3,))]


def test_whether_there_is_something_to_do_without_a_batch():
    assert not Protocol().wants(3)
    machine = begun(step(0, 1, at=5))
    assert machine.wants(3), "there is something to copy"
    version(machine, 1, held(B=[1]))
    assert not machine.wants(3)
    assert machine.wants(5)


# --- the journal ---------------------------------------------------------------------------------


def through_json(machine):
    return Protocol.from_json(json.loads(json.dumps(machine.to_json())))


def test_an_idle_machine_has_no_journal():
    assert Protocol().to_json() is None
    assert not Protocol.from_json(None).busy


def test_the_journal_is_what_is_left_once_the_open_version_is_committed():
    steps = (step(0, 1), step(1, 2, forced=True), step(2, 3, at=9))
    machine = begun(*steps, number=4, copy_bytes=77, patience=6)
    assert through_json(machine).steps == steps
    version(machine, 1, held(B=[1]))
    opened(machine, 2)
    open_, machine_after = through_json(machine), machine
    machine_after.on(Committed(2, held(B=[1])))
    for resumed in (open_, through_json(machine_after)):
        assert (resumed.migration, resumed.total, resumed.steps) == (4, 3, steps[1:])
        assert resumed.budget == CopyBudget(copy_bytes=77, patience=6)
        assert resumed.phases == {0: Phase.RELEASED, 1: Phase.PLANNED, 2: Phase.PLANNED}
        assert resumed.kept == ()
        assert through_json(resumed).steps == steps[1:]
        assert isinstance(opened(resumed, 3)[0], Flip)
        assert resumed.to_json()["total"] == 3


def test_a_migration_of_which_nothing_is_left_is_over_after_a_restart():
    machine = begun(step(0, 1))
    version(machine, 1, held(B=[1]))
    opened(machine, 2)
    assert not through_json(machine).busy


@pytest.mark.parametrize(
    "broken", [{}, {"migration": 1, "steps": [{}]}, {"migration": 1, "steps": [], "rules": {"x": 1}}]
)
def test_a_journal_that_makes_no_sense_is_named(broken):
    with pytest.raises(Damaged, match="journal of the migration cannot be read"):
        Protocol.from_json(broken)


def test_the_journal_does_not_lend_out_the_budget():
    machine = begun(step(0, 1))
    machine.to_json()["rules"]["patience"] = 0
    assert machine.budget == CopyBudget()


# --- what a worker does --------------------------------------------------------------------------


def wanted(number, owned=(), held=(), loadable=(), copied=()):
    return Wanted(number, flags(*owned), flags(*owned, *held), flags(*loadable), np.array(copied, np.int64))


def plainly(found):
    told = {"reset": found.reset, "advance": found.advance}
    return told | {name: getattr(found, name).tolist() for name in ("release", "install", "lacking", "copy")}


def doing(**more):
    return {"reset": False, "advance": False, "release": [], "install": [], "lacking": [], "copy": []} | more


@pytest.mark.parametrize(
    ("held", "version", "told", "todo"),
    [
        ([1, 2], 4, wanted(5, [1, 2]), doing()),
        ([1, 2], 3, wanted(5, [1, 2]), doing(advance=True)),
        ([1, 2], 3, wanted(5, [1]), doing(advance=True, release=[2])),
        ([1, 2], 4, wanted(5, [1], held=[2]), doing()),
        ([1, 2], 2, wanted(5, [1], held=[2], loadable=[1]), doing(reset=True, install=[1])),
        ([1, 2], 7, wanted(5, [1]), doing(reset=True, lacking=[1])),
        ([], -1, wanted(5, [1], loadable=[1]), doing(reset=True, install=[1])),
        ([], 3, wanted(5), doing(reset=True)),
        ([], -1, wanted(0, [1], loadable=[1]), doing(install=[1])),
        ([1], -1, wanted(1, [1]), doing(advance=True)),
        ([1], 4, wanted(5, [1, 2, 3], loadable=[2]), doing(install=[2], lacking=[3])),
        ([1, 4], 4, wanted(5, [1], held=[4, 6], loadable=[6, 7], copied=[7, 6, 4, 3]), doing(copy=[7, 6])),
        ([6], 4, wanted(5, [6], loadable=[6, 7], copied=[6]), doing()),
        ([6], 4, wanted(5, [1], loadable=[1, 6], copied=[6]), doing(release=[6], install=[1], copy=[6])),
    ],
)
def test_what_a_worker_does_is_the_difference(held, version, told, todo):
    assert plainly(update(flags(*held), version, told)) == todo


some = st.lists(st.integers(0, BINS - 1), unique=True)


@given(some, st.integers(-1, 8), st.integers(0, 8), some, some, some, some)
def test_a_message_that_comes_twice_does_nothing_the_second_time(has, version, number, owned, beside, loadable, copied):
    told = wanted(number, owned, beside, loadable, copied)
    todo = update(flags(*has), version, told)
    kept = set() if todo.reset else set(has) - set(todo.release.tolist())
    after = kept | set(todo.install.tolist()) | set(todo.copy.tolist())
    assert set(todo.install.tolist()) | set(todo.lacking.tolist()) | kept >= set(owned)
    assert kept <= set(owned) | set(beside)
    told = told._replace(held=told.held | flags(*copied))
    again = plainly(update(flags(*after), number - 1, told))
    assert again == doing(lacking=todo.lacking.tolist())


# --- numbers for people --------------------------------------------------------------------------


def test_progress_in_a_line():
    now = Progress("copying", 3, 16, 2048, 1_000_000, 1, 4)
    assert str(now) == "copying: 3 of 16 bins, 2,048 of 1,000,000 bytes, step 1 of 4"
    assert str(replace(now, eta_s=7.4)).endswith("step 1 of 4, about 7 s left")


def test_latency_is_the_smallest_value_that_enough_do_not_exceed():
    assert Latency.of([]) is None
    assert Latency.of([5.0]) == Latency(1, 5.0, 5.0, 5.0)
    assert Latency.of([4.0, 1.0, 3.0, 2.0]) == Latency(4, 2.0, 4.0, 4.0)
    many = [float(each) for each in range(1, 201)]
    assert Latency.of(many[::-1]) == Latency(200, 100.0, 198.0, 200.0)


def test_a_report_tells_what_it_did_to_the_stream():
    report = Report(
        mode="live", outcome="failed", reason="worker 3 is gone", planner="ssm", planner_ms=1.25, schedule="batched",
        workers_before=(0, 1), workers_after=(0, 1, 2), bins=7, bytes=12_345, steps=2, versions=9, duration_s=3.14,
        before=Latency(20, 10.0, 20.0, 30.0), during=Latency(9, 11.0, 21.0, 31.0), after=None, rows_held=4,
        longest_hold_ms=15.0,
    )  # fmt: skip
    assert str(report).splitlines() == [
        "failed (worker 3 is gone): 2 -> 3 workers, 7 bins, 12,345 bytes in 2 steps and 9 versions, 3.1 s",
        "  planned by ssm in 1.2 ms, moved live, batched",
        "  before  median 10 ms, p99 20 ms, worst 30 ms (20 versions)",
        "  during  median 11 ms, p99 21 ms, worst 31 ms (9 versions)",
        "  after   none",
        "  rows held 4, for 15 ms at most, misrouted 0",
    ]
    assert str(replace(report, outcome="done", reason="")).startswith("done: 2 -> 3 workers")
    told = json.loads(json.dumps(report.to_dict()))
    assert told["before"] == {"count": 20, "median_ms": 10.0, "p99_ms": 20.0, "max_ms": 30.0}
    assert told["workers_after"] == [0, 1, 2]
