"""Bins of a running query move: by plan, by hand, all the way or part of it; and everybody can see how."""

from __future__ import annotations

import json
from collections import Counter
from datetime import datetime, timedelta

import pytest

import meander as me
from contract.kinds import words
from contract.runtimes import BINS, BY_BATCHES, EVERYWHERE, ON_SPARK
from streams import PATIENCE_S, wait_until

pytestmark = pytest.mark.spark

PHASES = ["planned", "copying", "ready", "flipped", "released"]
EVERY_WORD = words(f"w{number}" for number in range(200))
"""As many rows for about every bin."""


NONSENSE = (
    (lambda query: query.rescale(0), "workers"),
    (lambda query: query.rescale(BINS + 1), "workers"),
    (lambda query: query.rescale(3, planner="best"), "there is no planner 'best'"),
    (lambda query: query.rescale(3, schedule="soon"), "there is no schedule 'soon'"),
    (lambda query: query.rescale(3, speed=3), "rescale has no option 'speed'"),
    (lambda query: query.rescale(3, operator="join"), "there is no operator 'join'"),
    (lambda query: query.move({BINS: 1}), "bin"),
    (lambda query: query.move({1: 1}, tau=0.1), "move has no option 'tau'"),
    (lambda query: query.keep_balanced(policy="wish"), "there is no policy 'wish'"),
)
"""Wishes that are refused at once, and what the refusal names."""


def plan_of(move):
    """The plan for the first operator."""
    return next(iter(move.plans.values()))


def under_way(case, move):
    """The same migration, once it is under way."""
    case.await_event("planned")
    assert move.status == "running"
    return move


def difference(before, after) -> dict[int, int]:
    """The bins that have another owner, and that owner."""
    return {bin_: new for bin_, (old, new) in enumerate(zip(before, after, strict=True)) if old != new}


# --- plans -----------------------------------------------------------------------------------------


def test_a_plan_is_a_proposal_and_nonsense_is_refused_and_nothing_moves(runtime):
    case = runtime.start("count")
    case.flow(2)
    query, before = case.query, (case.query.assignment, case.query.version, case.query.events)
    proposals = {
        "rescale": query.plan_rescale(3),
        "rebalance": query.plan_rebalance(0.5),
        "move": query.plan_move({0: 1, 1: 1, BINS - 1: 0}),
    }
    for wish, text in NONSENSE:
        with pytest.raises(me.InvalidOption, match=text):
            wish(query)
    for name, proposal in proposals.items():
        (plan,) = proposal.plans.values()
        moves = [move for step in proposal.steps for move in step.moves]
        assert plan.before == tuple(case.assignment), name
        assert {move.bin: move.target for move in moves} == difference(plan.before, plan.owner), name
        assert proposal.bins == len(plan.moves) == len(moves), name
        assert proposal.bytes == sum(step.bytes for step in proposal.steps), name
        assert proposal.workers == tuple(sorted(set(plan.owner))), name
        assert (proposal.versions > 0) == (proposal.bins > 0), name
    assert list(proposals["rescale"].plans) == list(query.assignment) == ["0:count"]
    assert proposals["rescale"].workers == (0, 1, 2)
    assert proposals["rescale"].bytes > 0
    assert difference(case.assignment, next(iter(proposals["move"].plans.values())).owner) == {0: 1, 1: 1, BINS - 1: 0}
    case.flow()
    assert (query.assignment, query.version, query.events) == (before[0], before[1] + 1, before[2])
    assert query.migration is None
    case.finish()


# --- rescale, rebalance, move ------------------------------------------------------------------------


@pytest.mark.parametrize("runtime", EVERYWHERE, indirect=True)
def test_rescale_out_and_in_while_rows_come(runtime):
    case = runtime.start("count")
    case.flow()
    for workers, options in ((3, {"schedule": "batched", "max_bins": 3}), (1, {"schedule": "all_at_once"})):
        before = case.assignment
        move = case.query.rescale(workers, keep_executors=True, **options)
        case.flow()
        assert move.wait(PATIENCE_S)
        assert (move.status, len(case.query.workers)) == ("done", workers)
        assert case.assignment == list(plan_of(move).owner)
        assert case.query.workers == sorted(set(case.assignment))
        assert len(difference(before, case.assignment)) == move.report.bins > 0
        assert case.query.migration is move
    case.flow()
    assert len(case.query.workers) == 1
    case.finish()


def test_rescale_before_the_first_row_takes_effect_at_once(runtime):
    case = runtime.start("count", **BY_BATCHES)
    move = case.query.rescale(3)
    assert move.wait(PATIENCE_S)
    assert (move.status, len(case.query.workers), case.query.version) == ("done", 3, -1)
    case.flow()
    assert len(case.query.workers) == 3
    case.finish()


def test_rebalance_brings_every_worker_within_the_cap(runtime):
    case = runtime.start("count")
    case.put(EVERY_WORD)
    crowd = case.query.move(dict.fromkeys(range(BINS - 1), 0), schedule="all_at_once")
    assert crowd.wait(PATIENCE_S)
    assert Counter(case.assignment) == {0: BINS - 1, 1: 1}
    tau = 0.25
    move = case.query.rebalance(tau)
    assert move.wait(PATIENCE_S)
    case.put(EVERY_WORD)
    assert not plan_of(move).over_cap
    rows = Counter()
    for worker, bin_rows in zip(case.assignment, case.query.loads["0:count"].rows, strict=True):
        rows[worker] += bin_rows
    assert sum(rows.values()) == EVERY_WORD.num_rows
    # Plans count every bin as one row more, lest an empty one be nothing.
    assert max(rows.values()) <= (1 + tau) * (EVERY_WORD.num_rows + BINS) / 2
    case.finish()


def test_move_by_hand_moves_what_it_names_and_nothing_else(runtime):
    case = runtime.start("count")
    case.flow()
    before = case.assignment
    targets = {0: 1, 1: 2, BINS - 1: 0}  # there is no worker 2 yet
    move = case.query.move(targets)
    assert move.wait(PATIENCE_S)
    assert difference(before, case.assignment) == targets
    assert case.query.workers == [0, 1, 2]
    assert (move.report.planner, move.report.bins) == ("by hand", 3)
    case.flow()
    case.finish()


def test_a_move_for_a_batch_takes_effect_with_that_batch(runtime):
    case = runtime.start("count", **BY_BATCHES)
    case.flow()
    move = under_way(case, case.query.move({0: 1}, at=3))
    case.flow(2)
    assert (case.query.last_progress.batch, case.assignment[0], move.progress.phase) == (2, 0, "ready")
    case.flow()
    assert (case.query.last_progress.batch, case.assignment[0]) == (3, 1)
    case.flow_until("finished")
    assert move.wait(PATIENCE_S)
    case.finish()


def test_a_move_for_a_time_waits_until_then_or_is_cancelled(runtime):
    case = runtime.start("count")
    case.flow()
    move = case.query.rescale(3, at=datetime.now() + timedelta(seconds=1.5), keep_executors=True)
    assert move.status == "waiting"
    assert move.wait(PATIENCE_S)
    assert (move.status, len(case.query.workers)) == ("done", 3)
    never = case.query.rescale(2, at=datetime.now() + timedelta(hours=1))
    never.cancel()
    assert never.wait(PATIENCE_S)
    assert (never.status, len(case.query.workers)) == ("cancelled", 3)
    case.finish()


def test_operators_of_a_chain_move_together_or_alone(runtime):
    case = runtime.start("chain")
    case.flow()
    together = case.query.rescale(3, keep_executors=True)
    assert together.wait(PATIENCE_S)
    owners = {name: set(owned) for name, owned in case.query.assignment.items()}
    assert owners == {"0:count": {0, 1, 2}, "1:count": {0, 1, 2}}
    assert len(case.events("flipped", migration=together.number)) == len(together.steps)
    first = case.assignment
    alone = case.query.rescale(1, operator=1, keep_executors=True)
    assert alone.wait(PATIENCE_S)
    assert case.assignment == first
    assert len(set(case.query.assignment["1:count"])) == 1
    case.flow()
    case.finish()


# --- what one sees of it -----------------------------------------------------------------------------


def test_progress_and_events_follow_every_phase_of_every_step(runtime):
    case = runtime.start("count", **BY_BATCHES)
    case.flow(2)
    calls = []
    case.query.on_event(calls.append)

    def fails(event):
        raise RuntimeError("a listener that fails must not hurt the query")

    case.query.on_event(fails)
    move = under_way(case, case.query.move({0: 1, BINS - 1: 0}, schedule="fluid", release_after=1))
    looks = [move.progress]
    assert not move.is_over
    while not case.events("finished"):
        case.flow()
        looks.append(move.progress)
    assert move.wait(PATIENCE_S)
    check_progress([*looks, move.progress])
    wait_until(lambda: calls[-1] == case.query.events[-1], "the last event")
    check_events(calls, case.query.events, move.number)
    case.finish()


def check_progress(looks):
    """From nothing to everything, one bin and one step at a time."""
    first, last = looks[0], looks[-1]
    assert (first.bins, first.steps, first.bytes, first.eta_s) == (0, 0, 0, None)
    assert (last.phase, last.bytes, last.eta_s) == ("done", last.of_bytes, 0)
    assert {(each.of_bins, each.of_steps, each.of_bytes) for each in looks} == {(2, 2, first.of_bytes)}
    counts = [(each.bins, each.steps, each.bytes) for each in looks]
    assert counts == sorted(counts)
    assert {(each.bins, each.steps) for each in looks} == {(0, 0), (1, 1), (2, 2)}
    assert {each.phase for each in looks} <= {"planned", "copying", "ready", "releasing", "done"}
    assert first.of_bytes > 0
    assert "2 of 2 bins" in str(last)


def check_events(calls, events, migration):
    """Each step goes through its phases, steps flip one after the other, and the end comes last, once."""
    assert calls == events[-len(calls) :]
    mine = [each for each in events if each.migration == migration]
    for step in range(2):
        assert [each.name for each in mine if each.step == step] == PHASES
    assert [each.step for each in mine if each.name == "flipped"] == [0, 1]
    assert (mine[-1].name, mine[-1].facts["outcome"], mine[-1].facts["reason"]) == ("finished", "done", "")
    assert [each.name for each in mine].count("finished") == 1
    versions = [each.version for each in mine[:-1]]
    assert versions == sorted(versions)
    assert all(isinstance(each.time_ms, int) for each in events)


def test_report_says_what_was_moved_and_what_it_did_to_the_stream(runtime):
    case = runtime.start("count")
    case.flow(2)  # what is known of its size is the state that the last version began with
    move = case.query.rescale(3, schedule="batched", max_bins=3, keep_executors=True)
    assert move.wait(PATIENCE_S)
    case.flow()
    report = move.report
    assert (report.outcome, report.reason, report.mode) == ("done", "", "live")
    assert (report.planner, report.schedule, report.remarks) == ("free", "batched", ())
    assert (report.workers_before, report.workers_after) == ((0, 1), (0, 1, 2))
    assert report.bins == len(plan_of(move).moves) == move.progress.bins > 0
    assert report.bytes == sum(step.bytes for step in move.steps) > 0
    assert report.steps == len(move.steps) == -(-report.bins // 3)
    assert (report.rows_held, report.longest_hold_ms, report.rows_misrouted) == (0, 0, 0)
    assert report.executors == {"asked": 0, "came": 0, "let_go": 0}
    assert report.before.count >= 2
    assert report.during.count == report.versions == len(move.versions) >= report.steps
    assert report.after.count >= 1
    assert report.duration_s > 0
    assert set(report.processes_before) <= set(report.processes_after)
    assert json.loads(json.dumps(report.to_dict()))["bins"] == report.bins
    assert f"2 -> 3 workers, {report.bins} bins" in str(report)
    case.finish()


# --- when it does not go all the way -------------------------------------------------------------------


def test_cancel_keeps_what_has_flipped_and_moves_nothing_more(runtime):
    case = runtime.start("count", **BY_BATCHES)
    case.flow()
    before = case.assignment
    targets = dict.fromkeys(range(BINS // 2), 1)
    move = under_way(case, case.query.move(targets, schedule="fluid"))
    case.flow_until("flipped")
    move.cancel()
    case.flow_until("finished")
    assert move.wait(PATIENCE_S)
    assert (move.status, move.report.outcome, move.report.reason) == ("cancelled", "cancelled", "cancelled by the user")
    changes = difference(before, case.assignment)
    assert changes.items() < targets.items()
    assert 0 < len(changes) == move.report.bins == move.progress.bins
    case.flow()
    assert difference(before, case.assignment) == changes
    move.cancel()  # what is over stays as it is
    assert move.status == "cancelled"
    case.finish()


def test_a_second_wish_replaces_the_first(runtime):
    case = runtime.start("count", **BY_BATCHES)
    case.flow()
    targets = dict.fromkeys(range(BINS // 2), 2)
    first = under_way(case, case.query.move(targets, schedule="fluid"))
    case.flow_until("flipped")
    second = case.query.rescale(3, keep_executors=True)
    case.await_event("finished", migration=first.number)
    assert first.wait(PATIENCE_S)
    assert (first.status, first.report.outcome) == ("replaced", "replaced")
    assert 0 < first.report.bins < len(targets)
    case.flow_until("finished", migration=second.number)
    assert second.wait(PATIENCE_S)
    assert (second.status, len(case.query.workers)) == ("done", 3)
    assert case.assignment == list(plan_of(second).owner)
    assert case.query.migration is second
    case.flow()
    case.finish()


@pytest.mark.parametrize("runtime", ON_SPARK, indirect=True)
def test_the_other_ways_to_move_give_the_same_results(runtime):
    case = runtime.start("count")
    case.flow()
    for workers, mode in ((3, "pause"), (2, "pause_bins"), (3, "restart")):
        move = case.query.rescale(workers, mode=mode, keep_executors=True)
        case.flow(2)
        assert move.wait(PATIENCE_S)
        report = move.report
        assert (report.mode, report.outcome, len(case.query.workers)) == (mode, "done", workers)
        assert report.longest_hold_ms > 0
        assert report.rows_misrouted == 0
    assert case.query.rescale(2, keep_executors=True).wait(PATIENCE_S)
    case.flow()
    case.finish()
