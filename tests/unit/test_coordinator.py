"""The migrations of one query by hand: what the protocol's orders do to the bins, and what a loss does to both."""

import json

import numpy as np
import pytest

from meander.clock import ManualClock
from meander.errors import Infeasible
from meander.migration.coordinator import MAX_STATES, Coordinator
from meander.migration.events import EventLog
from meander.migration.ledger import RECENT_WEIGHT, BinCounts, BinRecord, Holdings
from meander.migration.orders import Copy, Entered, Flip, Hold, Orders, Phase, Snapshot, flags
from meander.migration.steps import CopyBudget, OperatorMove, Step

BINS = 8
A, B, C = 0, 1, 2
HALVES = [A] * 4 + [B] * 4


def record_of(*owners, version=0):
    return BinRecord([np.array(each, np.int64) for each in owners or (HALVES,)], version)


def counts(rows=None, state=None):
    zeros = np.zeros(BINS, np.int64)
    rows = zeros if rows is None else np.array(rows, np.int64)
    state = zeros if state is None else np.array(state, np.int64)
    return BinCounts(rows, int(state.sum()), lambda: state * 10)


def coordinator_of(*owners, version=0, workers=2, before=None, **note):
    record, events = record_of(*owners, version=version), EventLog(ManualClock())
    return Coordinator(record, Holdings(), events, workers, note, before)


def step(number, *bins, source=A, target=C, operator=0):
    return Step(number, tuple(OperatorMove(operator, bin_, source, target, 10) for bin_ in bins))


def version(coordinator, number, beside=None, troubles=()):
    """One version from its opening to its commit: everybody does what it is told, and holds `beside` too."""
    coordinator.open(number, number)
    record, orders = coordinator.record, coordinator.orders
    for operator in record.operators:
        for worker in coordinator.participants:
            held = orders.held_by((operator, worker), record.now[operator] == worker)
            coordinator.holdings.report(operator, worker, held | flags((beside or {}).get(worker, ()), BINS))
    record.commit(number, [counts() for _ in record.operators])
    coordinator.committed(number, troubles)
    return orders


def through_json(coordinator):
    """The coordinator that another driver has after the last commit."""
    note = json.loads(json.dumps(coordinator.note()))
    owners = [each.tolist() for each in coordinator.record.owners]
    return coordinator_of(*owners, version=coordinator.record.version, workers=9, **note)


def told(coordinator, event):
    return [each.to_dict() for each in coordinator.events.entries if each.name == event]


# --- what is written down of bins ----------------------------------------------------------------


def test_a_flip_counts_in_its_version_and_stays_only_if_it_is_committed():
    record = record_of()
    record.flip(step(0, 1, 2).moves)
    assert record.now[0].tolist() == [0, 2, 2, 0, 1, 1, 1, 1]
    assert record.owners[0].tolist() == HALVES
    record.flip(())
    assert record.now is record.owners, "another attempt has no flips: it is as the version before"
    record.flip(step(0, 1).moves)
    record.commit(1, [counts()])
    assert record.owners[0].tolist() == [0, 2, 0, 0, 1, 1, 1, 1]
    assert record.version == 1
    assert record.workers == [A, B, C]


def test_a_revision_is_another_one_only_where_an_owner_has_changed():
    record = record_of()
    record.commit(1, [counts()])
    assert record.revision == 0
    before = record.ledger()
    record.assign([np.array([B] * BINS)])
    assert record.revision == 1
    assert (before.revision, before.owners[0].tolist()) == (0, HALVES), "a ledger is of its moment"


def test_loads_are_smoothed_and_idle_versions_do_not_count():
    record = record_of()
    assert record.ledger().work == (None,)
    record.commit(1, [counts([10] * BINS, [3] * BINS)])
    record.commit(2, [counts([0] * BINS, [4] * BINS)])
    assert record.work[0].tolist() == [10.0] * BINS
    record.commit(3, [counts([20] * BINS, [5] * BINS)])
    assert record.work[0].tolist() == [10 + RECENT_WEIGHT * 10] * BINS
    assert record.rows[0].tolist() == [20] * BINS
    assert record.state_rows == [5 * BINS]
    load, state = record.ledger().measured(0)
    assert load.tolist() == [13.0] * BINS, "no bin counts for nothing"
    assert state.tolist() == [51] * BINS


# --- what plans are made of ----------------------------------------------------------------------


def test_a_ledger_plans_for_workers_that_are_named_or_counted():
    ledger = record_of().ledger()
    assert len(set(ledger.plan(0, 4).owner)) == 4
    assert set(ledger.plan(0, [A, B, 7]).owner) == {A, B, 7}
    assert set(ledger.plan(0, [B], must_leave=[A]).owner) == {B}
    assert ledger.plan(0, 2).moves == ()
    assert (ledger.bins, ledger.operators, ledger.workers_of(0)) == (BINS, range(1), [A, B])


def test_without_a_cap_of_the_users_a_ledger_takes_the_smallest_that_can_be_kept():
    record = record_of()
    record.commit(0, [counts([1000] + [1] * 7)])
    ledger = record.ledger()
    with pytest.raises(Infeasible):
        ledger.plan(0, 2, tau=0.2)
    assert ledger.plan(0, 2).owner.count(ledger.plan(0, 2).owner[0]) == 1, "the heavy bin is alone"


def test_a_ledger_plans_with_other_owners_and_loads_where_told_to():
    ledger = record_of().ledger()
    assert ledger.plan(0, 2, owner=np.array([A, B] * 4)).moves == ()
    assert ledger.plan(0, 2, load=[4, 0, 0, 0, 1, 1, 1, 1]).moves == ()
    assert ledger.plan(0, 2, load=[0, 0, 0, 0, 1, 1, 1, 1]).moves


# --- orders --------------------------------------------------------------------------------------


def test_instructions_are_sorted_by_whom_they_are_about():
    moves = step(0, 3).moves
    orders = Orders.of(
        [Entered(1, 0, Phase.READY), Flip(4, moves), Hold(0, A, (3,)), Copy(0, C, (5, 1)), Snapshot(0, B, (5,))]
    )
    assert orders == Orders(moves, {(0, A): (3,)}, {(0, C): (5, 1)}, {(0, B): (5,)})
    owned = flags([0, 1], BINS)
    assert np.flatnonzero(orders.held_by((0, A), owned)).tolist() == [0, 1, 3]
    assert np.flatnonzero(orders.held_by((0, C), ~owned & False)).tolist() == [1, 5]
    assert orders.held_by((0, 77), owned).tolist() == owned.tolist()
    assert Orders.of([]) == Orders()


# --- a migration ---------------------------------------------------------------------------------


def test_bins_are_copied_flip_and_are_released():
    coordinator = coordinator_of()
    number = coordinator.begin([step(0, 0, 1), step(1, 2)], CopyBudget(release_after=1))
    assert number == 1
    assert coordinator.participants == [A, B, C]
    assert [move.bin for move in coordinator.next_moves] == [0, 1, 2]
    assert version(coordinator, 1).copied == {(0, C): (0, 1, 2)}
    assert coordinator.state(1).phases == {0: Phase.READY, 1: Phase.READY}
    assert version(coordinator, 2).flips == step(0, 0, 1).moves
    assert coordinator.record.owners[0].tolist() == [C, C, A, A, B, B, B, B]
    assert coordinator.state(1).is_flipped(0)
    assert not coordinator.state(1).is_flipped(1)
    version(coordinator, 3)
    version(coordinator, 4)
    state = coordinator.state(1)
    assert (state.outcome, state.last_version) == ("done", 4)
    assert set(state.phases.values()) == {Phase.RELEASED}
    assert [each["bins"] for each in told(coordinator, "flipping")] == [[0, 1], [2]]
    assert told(coordinator, "finished")[0]["outcome"] == "done"
    assert told(coordinator, "workers")[-1]["workers"] == [A, B, C]
    assert coordinator.wanted == [3]


def test_nothing_under_way_means_no_orders():
    coordinator = coordinator_of()
    assert version(coordinator, 1) == Orders()
    assert coordinator.note() == {"wanted": [2], "asked": None, "migrations": 0}
    assert not told(coordinator, "flipping")


def test_whose_holdings_are_unknown_counts_as_lost():
    coordinator = coordinator_of()
    coordinator.begin([step(0, 0)], CopyBudget())
    version(coordinator, 1)
    assert coordinator.state(1).phases == {0: Phase.READY}
    coordinator.holdings.forget({C})
    coordinator.open(2, 2)
    assert coordinator.orders.flips == ()
    assert coordinator.orders.copied == {(0, C): (0,)}


def test_a_later_request_replaces_the_one_under_way():
    coordinator = coordinator_of()
    coordinator.begin([step(0, 0)], CopyBudget())
    assert coordinator.begin([step(0, 1)], CopyBudget()) == 2
    assert (coordinator.state(1).outcome, coordinator.state(1).reason) == ("replaced", "by migration 2")
    coordinator.cancel(1, "too late")
    assert coordinator.state(2).outcome is None, "another one is under way"
    coordinator.cancel(2, "enough")
    assert (coordinator.state(2).outcome, coordinator.state(2).reason) == ("cancelled", "enough")
    assert coordinator.wanted == [2], "there are as many as there were"


def test_trouble_ends_a_migration_with_its_reason():
    coordinator = coordinator_of()
    coordinator.begin([step(0, 0)], CopyBudget())
    version(coordinator, 1, troubles=["no such file"])
    assert (coordinator.state(1).outcome, coordinator.state(1).reason) == ("failed", "no such file")


def test_only_the_last_migrations_are_known():
    coordinator = coordinator_of()
    for _ in range(MAX_STATES + 1):
        coordinator.begin([], CopyBudget())
    assert coordinator.state(2).outcome == "done"
    with pytest.raises(KeyError):
        coordinator.state(1)


# --- starts --------------------------------------------------------------------------------------


def test_the_first_start_spreads_the_bins_over_the_workers_wanted():
    coordinator = coordinator_of([A] * BINS, version=-1, workers=2)
    coordinator.start(4, 4)
    assert len(set(coordinator.record.owners[0].tolist())) == 4
    assert (coordinator.wanted, coordinator.requested) == ([4], 4)


def test_a_start_with_the_same_number_keeps_what_it_was_rescaled_to():
    coordinator = coordinator_of(wanted=[2], asked=4)
    coordinator.start(4, 4)
    assert coordinator.record.owners[0].tolist() == HALVES
    coordinator.start(None, 7)
    assert coordinator.record.owners[0].tolist() == HALVES
    coordinator.start(3, 3)
    assert len(set(coordinator.record.owners[0].tolist())) == 3


def test_another_number_at_the_start_ends_the_migration_under_way():
    before = coordinator_of()
    before.begin([step(0, 0), step(1, 1)], CopyBudget())
    after = through_json(before)
    after.start(3, 3)
    assert not after.protocol.busy
    assert after.state(1).outcome == "cancelled"


def test_another_driver_goes_on_with_what_was_committed():
    before = coordinator_of()
    before.begin([step(0, 0), step(1, 1)], CopyBudget(release_after=0))
    version(before, 1)
    version(before, 2)
    after = through_json(before)
    assert after.protocol.steps == (step(1, 1),)
    assert after.wanted == [3]
    assert after.count == 1
    assert after.state(1).phases == {0: Phase.RELEASED, 1: Phase.PLANNED}
    after.start(None, 2)
    version(after, 3)
    assert version(after, 4).flips == step(1, 1).moves
    assert after.state(1).outcome == "done"


def test_in_one_process_the_next_driver_knows_what_was_before():
    before = coordinator_of()
    before.begin([step(0, 0)], CopyBudget())
    version(before, 1)
    version(before, 2)
    before.begin([step(0, 1)], CopyBudget())  # never committed
    after = coordinator_of(before=before)
    assert after.count == 2
    assert after.state(1).outcome == "done"
    assert (after.state(2).outcome, after.state(2).reason) == ("replaced", "the query was started anew")


def test_steps_can_take_effect_at_once():
    coordinator = coordinator_of()
    coordinator.begin([step(0, 0)], CopyBudget())
    assert coordinator.take_over([step(0, 3, target=B)]) == 2
    assert coordinator.record.owners[0].tolist() == [A, A, A, B, B, B, B, B]
    assert coordinator.state(1).outcome == "cancelled"
    assert coordinator.state(2).outcome == "done"
    assert coordinator.state(2).is_flipped(0)


# --- losses --------------------------------------------------------------------------------------


def test_others_take_over_the_bins_of_a_worker_that_is_lost():
    coordinator = coordinator_of([A, A, B, B, C, C, C, C], [A] * BINS)
    coordinator.repair({B})
    assert set(coordinator.record.owners[0].tolist()) == {A, C}
    assert coordinator.record.owners[0].tolist()[:2] == [A, A]
    assert coordinator.record.owners[1].tolist() == [A] * BINS, "nobody was lost here"
    assert coordinator.record.revision == 1
    assert told(coordinator, "lost") == [{"time_ms": 1_700_000_000_000, "event": "lost", "version": 1, "workers": [B]}]
    assert coordinator.wanted == [2, 2], "a loss does not change how many there shall be"


def test_a_loss_ends_a_migration_in_which_the_lost_take_part():
    coordinator = coordinator_of([A] * 3 + [B] * 3 + [7] * 2)
    coordinator.begin([step(0, 0)], CopyBudget())
    coordinator.repair({7})
    assert coordinator.state(1).outcome is None
    coordinator.repair({C})
    assert coordinator.state(1).outcome == "failed"
    assert "worker 2 is gone" in coordinator.state(1).reason


def test_an_old_owner_that_still_has_its_copy_takes_its_bins_back():
    coordinator = coordinator_of()
    coordinator.begin([step(0, 0, 1)], CopyBudget(release_after=5))
    version(coordinator, 1)
    version(coordinator, 2)
    assert coordinator.record.owners[0].tolist()[:2] == [C, C]
    coordinator.repair({C})
    assert coordinator.record.owners[0].tolist() == HALVES
    assert not coordinator.protocol.kept, "it is its own again: no copy that may go"
