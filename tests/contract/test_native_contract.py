"""What `me.attach` promises for a query of Spark's own: its state partitions are seen and moved, its results stay.

The oracle is the same as for Meander's own queries: sink and state, as Spark itself reads it, equal a recount.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress

import pytest

import meander as me
from contract import runtimes
from pour import PARTITIONS, Load, counts, on, plain_session, started
from streams import BRIEF, PATIENCE_S, at_events, kill, wait_until

pytestmark = pytest.mark.spark

EXECUTORS = 3


@pytest.fixture(scope="module")
def plain():
    """A Spark of somebody who has never heard of us."""
    runtimes.close()
    session = plain_session(f"local-cluster[{EXECUTORS},1,1024]", **BRIEF)
    yield session
    session.stop()


class Attachment:
    """A count by key over rows that keep coming, with `me.attach` on it."""

    def __init__(self, session, folder):
        self.session, self.checkpoint = session, folder / "ck"
        self.load = Load(folder / "in", seed=1, rows=60)
        frame = self.load.feed.read(session).groupBy("key").count()
        self.query, self.latest = started(self.load, frame, folder, "update")
        self.load.__enter__()

    def attach(self):
        """Attach, and wait until all executors are there: a test before may have lost one."""
        self.attached = me.attach(self.query, within_s=PATIENCE_S)
        wait_until(lambda: len(self.attached.executors) == EXECUTORS, f"{EXECUTORS} executors")

    def crowd(self):
        """Put every partition on the first executor, and return the executors."""
        executors = self.attached.executors
        everything = dict.fromkeys(range(PARTITIONS), executors[0])
        assert self.attached.move(everything, schedule="all_at_once").wait(PATIENCE_S)
        assert on(self.attached) == {executors[0]: PARTITIONS}
        return executors

    def events(self, *names):
        """The events of these names, so far."""
        return [each.to_dict() for each in self.attached.events if each.name in names]

    def finish(self):
        """Let all rows be counted, and compare sink and state with a recount."""
        self.attached.detach()
        self.load.__exit__()
        self.query.processAllAvailable()
        self.query.stop()
        recount = counts(self.load)
        assert {key: row[1] for key, row in self.latest.items()} == recount
        rows = self.session.read.format("statestore").load(str(self.checkpoint)).collect()
        assert {row["key"]["key"]: row["value"]["count"] for row in rows} == recount

    def end(self):
        """Stop everything, however it stands."""
        with suppress(Exception):
            self.attached.detach()
        self.load.__exit__()
        self.query.stop()


@pytest.fixture
def attachment(plain, tmp_path, monkeypatch):
    monkeypatch.setenv("MEANDER_RUNTIME_DIR", str(tmp_path / "runtime"))
    case = Attachment(plain, tmp_path)
    try:
        case.attach()
        yield case
    finally:
        case.end()


def test_a_plan_is_a_proposal_and_moves_nothing(attachment):
    attached = attachment.attached
    first = attached.executors[0]
    before = attached.assignment
    everything = attached.plan_move(dict.fromkeys(range(PARTITIONS), first))
    (plan,) = everything.plans.values()
    assert everything.bins == len(plan.moves) == PARTITIONS - on(attached)[first]
    assert everything.bytes == sum(step.bytes for step in everything.steps)
    assert everything.workers == (int(first),)
    for proposal in (attached.plan_spread(), attached.plan_rebalance()):
        assert proposal.bins == sum(len(step.moves) for step in proposal.steps)
        assert set(proposal.workers) <= {int(each) for each in attached.executors}
    with pytest.raises(me.InvalidOption, match="there is no executor '99'"):
        attached.move({0: 99})
    assert attached.assignment == before
    assert (attached.migration, attachment.events("steered", "migration")) == (None, [])
    attachment.finish()


def test_spread_puts_as_many_partitions_on_every_executor_and_reports_it(attachment):
    attached = attachment.attached
    executors = attachment.crowd()
    calls = []
    attached.on_event(calls.append)
    spread = attached.spread()
    assert spread.wait(PATIENCE_S)
    assert on(attached) == dict.fromkeys(executors, PARTITIONS // EXECUTORS)
    look = attached.observe()
    assert len(look.partitions) == PARTITIONS
    assert {each.executor for each in look.partitions} == set(executors)
    moves = PARTITIONS - PARTITIONS // EXECUTORS
    report = spread.report
    assert (report.mode, report.outcome, report.reason, report.remarks) == ("native", "done", "", ())
    assert (report.bins, report.steps) == (moves, len(spread.steps))
    assert report.bytes == sum(step.bytes for step in spread.steps) > 0
    assert report.workers_before == (int(executors[0]),)
    assert report.workers_after == tuple(sorted(int(each) for each in executors))
    assert (report.rows_held, report.rows_misrouted) == (0, 0)
    assert report.executors == {"asked": 0, "came": 0, "let_go": 0}
    assert report.during.count == report.versions > 0
    assert attached.migration is spread
    # Events: each partition is steered and then arrives, and the end of the migration comes last.
    wait_until(lambda: calls[-1].name == "migration", "the last event")
    assert calls == attached.events[-len(calls) :]
    order = {}
    for each in calls:
        for _, partition, _, target in each.facts.get("partitions", []) if each.name in ("steered", "arrived") else []:
            order.setdefault((partition, str(target)), []).append(each.name)
    assert len(order) == moves
    for names in order.values():
        assert (names[0], names[-1], names.count("arrived")) == ("steered", "arrived", 1)
    assert (calls[-1].facts["outcome"], calls[-1].facts["partitions"]) == ("done", moves)
    attachment.finish()


def test_rebalance_gives_every_executor_its_share(attachment):
    attached = attachment.attached
    executors = attachment.crowd()
    assert attached.observe().imbalance() == pytest.approx(EXECUTORS - 1)
    # By measured time. A partition that has taken longer than all others together, as on a busy machine, is a share of
    # its own: then one executor has it, one has the others, and one may have nothing.
    move = attached.rebalance()
    assert move.wait(PATIENCE_S)
    assert (move.status, move.report.remarks) == ("done", ())
    (plan,) = move.plans.values()
    assert not plan.over_cap
    assert attached.assignment[attached.operators[0]] == [str(each) for each in plan.owner]
    assert attached.observe().imbalance() < EXECUTORS - 1
    # By loads that are known: every executor gets a large partition and a small one.
    loads = [3, 3, 3, 1, 1, 1]
    move = attached.rebalance(load=loads)
    assert move.wait(PATIENCE_S)
    assert (move.status, move.report.remarks) == ("done", ())
    shares = Counter()
    for executor, load in zip(attached.assignment[attached.operators[0]], loads, strict=True):
        shares[executor] += load
    assert shares == dict.fromkeys(executors, 4)
    attachment.finish()


@pytest.mark.slow
def test_move_and_progress_from_nothing_to_everything(attachment, monkeypatch):
    attached = attachment.attached
    executors = attachment.crowd()
    looks = []
    targets = {0: executors[1], 1: executors[2]}
    before = attached.assignment[attached.operators[0]]
    at_events(lambda _: looks.append(attached.migration.progress), monkeypatch.setattr)
    move = attached.move(targets, schedule="fluid")
    assert move.wait(PATIENCE_S)
    after = attached.assignment[attached.operators[0]]
    assert {at: new for at, (old, new) in enumerate(zip(before, after, strict=True)) if old != new} == targets
    last = move.progress
    assert (last.phase, last.bins, last.of_bins, last.steps, last.of_steps) == ("done", 2, 2, 2, 2)
    assert (last.bytes, last.eta_s, last.unit) == (last.of_bytes, 0.0, "partitions")
    mine = [each for each in looks if each.of_bins == 2]
    assert [each.bins for each in mine] == sorted(each.bins for each in mine)
    assert {each.bins for each in mine} == {0, 1, 2}
    attachment.finish()


def test_cancel_moves_nothing_more_and_a_second_wish_replaces_the_first(attachment):
    attached = attachment.attached
    executors = attachment.crowd()
    arrivals = []

    def cancel_at_the_first_arrival(event):
        if event.name == "arrived" and not arrivals:
            arrivals.append(event)
            attached.migration.cancel()

    attached.on_event(cancel_at_the_first_arrival)
    first = attached.move(dict.fromkeys(range(PARTITIONS), executors[1]), schedule="fluid")
    assert first.wait(PATIENCE_S)
    assert (first.status, first.report.outcome) == ("cancelled", "cancelled")
    assert 0 < first.report.bins < PARTITIONS
    second = attached.move(dict.fromkeys(range(PARTITIONS), executors[1]), schedule="fluid")
    third = attached.spread()
    assert third.wait(PATIENCE_S)
    assert (second.status, third.status) == ("replaced", "done")
    assert second.wait(PATIENCE_S)
    assert on(attached) == dict.fromkeys(executors, PARTITIONS // EXECUTORS)
    ends = wait_until(lambda: attachment.events("migration")[3:] and attachment.events("migration"), "the last event")
    assert [each["outcome"] for each in ends] == ["done", "cancelled", "replaced", "done"]
    attachment.finish()


@pytest.mark.slow
def test_drain_empties_an_executor_until_it_is_refilled(attachment):
    attached = attachment.attached
    executor = attached.executors[0]
    assert attached.drain(executor).wait(PATIENCE_S)
    assert executor not in on(attached)
    assert attached.spread().wait(PATIENCE_S)
    assert executor not in on(attached)
    attached.refill(executor)
    assert attached.spread().wait(PATIENCE_S)
    assert on(attached) == dict.fromkeys(attached.executors, PARTITIONS // EXECUTORS)
    attachment.finish()


@pytest.mark.slow
def test_keep_balanced_decides_with_reasons_and_ends_with_the_query(attachment):
    attached = attachment.attached
    executors = attachment.crowd()
    balancer = attached.keep_balanced("threshold", tau=0.5, every=0.1, looks=2, rest_batches=3, gain=0.0)
    assert balancer.is_active
    wait_until(lambda: set(on(attached)) == set(executors), "the balancer gives every executor something")
    assert attached.migration.wait(PATIENCE_S)
    wait_until(lambda: any("batches of rest" in each.reason for each in balancer.decisions), "the rest")
    decisions = balancer.decisions
    reasons = [each.reason for each in decisions]
    assert "out of balance for 1 of 2 looks" in reasons
    act = next(each for each in decisions if each.action == "balance")
    assert act.reason.startswith("the busiest worker is 200% above the mean, 2 workers are idle, and balance would")
    assert reasons.index("out of balance for 1 of 2 looks") < reasons.index(act.reason)
    assert act.reason in [each["reason"] for each in attachment.events("balancer")]
    balancer.stop()
    assert not balancer.is_active
    attachment.finish()
    with pytest.raises(me.QueryFailed, match="attach again"):
        attached.keep_balanced()


def test_an_executor_that_is_lost_is_noticed_and_the_query_goes_on(attachment):
    attached = attachment.attached
    assert attached.spread().wait(PATIENCE_S)
    victim = attached.executors[0]
    assert kill(runtimes.executor_processes()[victim])
    event = wait_until(lambda: attachment.events("lost"), "the loss to be noticed")[0]
    assert event["executor"] == victim
    wait_until(lambda: len(attached.executors) == EXECUTORS, "another executor")
    assert victim not in attached.executors
    again = attached.spread()
    assert again.wait(PATIENCE_S)
    assert again.status == "done"
    assert victim not in on(attached)
    attachment.finish()
