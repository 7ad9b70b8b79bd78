"""The native engine as a `Movable`, with Spark played by hand: requests, handles, events, balancer and executors."""

from collections import Counter

import pytest

import meander as me
from meander.migration.movable import StaleLedger
from meander.migration.steps import OperatorMove, SteeringPatience, Step
from plain_spark import PlainSpark
from streams import at_events, wait_until

WAIT_S = 20


@pytest.fixture
def spark():
    with PlainSpark() as running:
        yield running


def on(spark):
    return Counter(spark.places.values())


def events(attached, *names):
    return [each.to_dict() for each in attached.events if each.name in names]


def test_status_ledger_and_operators_are_those_of_what_was_watched(spark):
    engine = spark.engine
    assert (engine.unit, engine.mode.name, engine.bins) == ("partitions", "native", 6)
    assert engine.operators == {0: "0:count"}
    status = engine.status()
    assert (status.is_active, status.workers) == (True, (0,))
    assert status.times[-1].took_ms == 20.0
    assert status.version >= 1
    ledger = engine.ledger()
    assert ledger.owners[0].tolist() == [0] * 6
    assert ledger.state_bytes[0].tolist() == [1000, 1001, 1002, 1003, 1004, 1005]
    assert ledger.work[0].tolist() == [10.0] * 6
    assert engine.ledger().revision == ledger.revision, "as long as no owner changes"
    spark.places[3] = "2"
    assert engine.ledger().revision > ledger.revision


def test_a_plan_from_an_older_ledger_is_refused(spark):
    engine = spark.engine
    revision = engine.ledger().revision
    spark.places[0] = "1"
    step = Step(0, (OperatorMove(0, 1, 0, 2, 5),))
    with pytest.raises(StaleLedger, match="plan again"):
        engine.submit(revision, [step], SteeringPatience())
    number = engine.submit(engine.ledger().revision, [step], SteeringPatience())
    wait_until(lambda: engine.state(number).outcome, "the end")
    state = engine.state(number)
    assert (state.outcome, state.arrived, spark.places[1]) == ("done", (1, 5), "2")
    assert state.is_flipped(0)


def test_spread_is_even_and_its_report_says_how(spark):
    attached = spark.attached
    proposal = attached.plan_spread()
    assert (proposal.bins, proposal.workers) == (4, (0, 1, 2))
    assert attached.migration is None
    for step in proposal.steps:
        assert max(Counter(move.target for move in step.moves).values()) == 1, "one comes to an executor at a time"
    migration = attached.spread()
    assert migration.wait(WAIT_S, show=False)
    assert on(spark) == {"0": 2, "1": 2, "2": 2}
    report = migration.report
    assert (report.mode, report.outcome, report.remarks, report.planner) == ("native", "done", (), "free")
    assert (report.bins, report.steps) == (4, len(proposal.steps))
    assert (report.workers_before, report.workers_after) == ((0,), (0, 1, 2))
    assert report.during.count == report.versions > 0
    assert report.executors == {"asked": 0, "came": 0, "let_go": 0}
    progress = migration.progress
    assert (progress.phase, progress.bins, progress.of_bins, progress.unit) == ("done", 4, 4, "partitions")
    assert (progress.eta_s, progress.bytes) == (0.0, progress.of_bytes)
    assert events(attached, "migration")[-1] | {"time_ms": 0} == {
        "time_ms": 0, "event": "migration", "outcome": "done", "reason": "", "partitions": 4,
    }  # fmt: skip
    assert spark.wait == "3s", "Spark's own wait counts again"


def test_while_it_moves_spark_waits_for_places_and_the_phase_says_what_it_does(spark, monkeypatch):
    attached, waits, phases = spark.attached, [], []

    def look(event):
        if event.name == "steered":
            waits.append(spark.wait)
            phases.append(attached.migration.progress.phase)

    at_events(look, monkeypatch.setattr)
    assert attached.move({1: 1, 2: 2}, schedule="fluid").wait(WAIT_S, show=False)
    assert set(waits) == {"20s"}
    assert set(phases) <= {"moving", "waiting for a batch", "waiting", "planned"}


def test_a_second_request_replaces_the_first(spark):
    attached = spark.attached
    spark.refuses = {(each, "1") for each in range(6)}
    first = attached.move(dict.fromkeys(range(6), 1), schedule="fluid", tries=1000)
    wait_until(lambda: spark.steered, "something is steered")
    second = attached.spread()
    spark.refuses.clear()
    assert second.wait(WAIT_S, show=False)
    assert first.wait(WAIT_S, show=False)
    assert (first.status, second.status) == ("replaced", "done")
    assert [each["outcome"] for each in events(attached, "migration")] == ["replaced", "done"]
    assert on(spark) == {"0": 2, "1": 2, "2": 2}


def test_a_request_can_be_cancelled_by_a_listener(spark):
    attached = spark.attached

    def cancel(event):
        if event.name == "arrived":
            attached.migration.cancel()

    attached.on_event(cancel)
    migration = attached.move(dict.fromkeys(range(6), 1), schedule="fluid")
    assert migration.wait(WAIT_S, show=False)
    assert migration.status == "cancelled"
    assert 0 < migration.report.bins < 6


def test_what_does_not_follow_is_given_up_with_a_remark(spark):
    spark.refuses = {(0, "2")}
    migration = spark.attached.move({0: 2, 1: 2}, tries=2)
    assert migration.wait(WAIT_S, show=False)
    (remark,) = migration.report.remarks
    assert remark.startswith("partition 0 did not go to executor 2: it ran on executor 0 2 times")
    assert (migration.status, migration.progress.bins, migration.progress.of_bins) == ("done", 1, 2)
    assert [each["reason"] for each in events(spark.attached, "given_up")] == [remark.partition(": ")[2]]


def test_an_executor_is_drained_released_and_another_comes(spark):
    attached = spark.attached
    assert attached.spread().wait(WAIT_S, show=False)
    assert attached.drain(2).wait(WAIT_S, show=False)
    assert on(spark) == {"0": 3, "1": 3}
    assert attached.spread().wait(WAIT_S, show=False)
    assert on(spark) == {"0": 3, "1": 3}, "a drained one gets nothing"
    attached.refill(2)
    assert attached.spread().wait(WAIT_S, show=False)
    assert on(spark) == {"0": 2, "1": 2, "2": 2}
    gone = attached.drain(2, release=True)
    assert gone.wait(WAIT_S, show=False)
    assert attached.executors == ["0", "1"]
    assert gone.report.executors["let_go"] == 1
    assert events(attached, "executors")[-1]["let_go"] == ["2"]
    grown = attached.rescale(3)
    assert grown.wait(WAIT_S, show=False)
    assert grown.report.executors == {"asked": 1, "came": 1, "let_go": 0}
    assert (attached.executors, len(on(spark))) == (["0", "1", "2"], 3)
    shrunk = attached.rescale(1)
    assert shrunk.wait(WAIT_S, show=False)
    assert len(attached.executors) == len(on(spark)) == 1
    assert shrunk.report.executors == {"asked": 0, "came": 0, "let_go": 2}


def test_an_executor_that_gets_something_back_is_emptied_again(spark, monkeypatch):
    attached = spark.attached
    assert attached.spread().wait(WAIT_S, show=False)
    stray = []

    def give_back(event):
        # The last one has arrived elsewhere, and Spark gives a partition to the executor that was just emptied.
        if event.name == "arrived" and "2" not in spark.places.values() and not stray:
            spark.places[5] = "2"
            stray.append(5)

    at_events(give_back, monkeypatch.setattr)
    migration = attached.drain(2, release=True)
    assert migration.wait(WAIT_S, show=False)
    assert stray
    assert any("executor 2 still holds state and is emptied once more" in each for each in migration.report.remarks)
    assert "2" not in spark.places.values()
    assert (migration.report.bins, migration.progress.of_bins) == (3, 3)
    assert attached.executors == ["0", "1"]


def test_executors_that_do_not_come_are_called_off(spark):
    spark.can_grow = False
    migration = spark.attached.rescale(5, executors_within_s=0.1)
    with pytest.raises(me.MigrationFailed, match=r"5 executors were wanted and there are 3: asked for 2 more, 0 came"):
        migration.wait(WAIT_S, show=False)
    assert (migration.status, spark.total) == ("failed", 3)


def test_a_request_that_waits_for_executors_gives_way(spark):
    spark.can_grow = False
    waiting = spark.attached.rescale(5, executors_within_s=60)
    wait_until(lambda: spark.total == 5, "executors are asked for")
    assert waiting.status == "waiting"
    assert spark.attached.rescale(2).wait(WAIT_S, show=False)
    assert waiting.wait(WAIT_S, show=False)
    assert waiting.status == "replaced"
    assert len(spark.alive) == 2


def test_a_lost_executor_is_an_event_and_its_partitions_are_given_up(spark):
    attached = spark.attached
    spark.refuses = {(each, "1") for each in range(6)}
    migration = attached.move(dict.fromkeys(range(6), 1), tries=1000)
    wait_until(lambda: spark.steered, "something is steered")
    spark.lose("1")
    assert migration.wait(WAIT_S, show=False)
    assert any("executor 1 is gone" in each for each in migration.report.remarks)
    (loss,) = events(attached, "lost")
    assert (loss["executor"], loss["reason"]) == ("1", "killed")


def test_the_query_ends_while_something_moves(spark):
    spark.refuses = {(each, "1") for each in range(6)}
    migration = spark.attached.move(dict.fromkeys(range(6), 1), tries=1000)
    wait_until(lambda: spark.steered, "something is steered")
    spark.stop()
    with pytest.raises(me.MigrationFailed, match="nothing was lost, and Spark places its state anew"):
        migration.wait(WAIT_S, show=False)
    assert migration.status == "failed"
    wait_until(lambda: spark.wait == "3s", "Spark's own wait counts again")
    with pytest.raises(me.QueryFailed, match="attach again"):
        spark.attached.keep_balanced()


def test_the_straggler_policy_spreads_what_one_executor_has(spark):
    balancer = spark.attached.keep_balanced(window=2, rest=2)
    wait_until(lambda: len(on(spark)) == 3, "every executor has something")
    balancer.stop()
    acts = [each for each in balancer.decisions if each.action == "balance"]
    assert acts[0].reason == "LI 2.00 is above alpha 1: worker 0 has 300% of the mean load, worker 1 has 0%"
    assert (acts[0].operator, acts[0].workers) == ("0:count", 3)
    event = events(spark.attached, "balancer")[0]
    assert (event["action"], event["operator"], event["reason"]) == ("balance", "0:count", acts[0].reason)


def test_the_threshold_policy_has_reasons_and_rests_after_its_migration(spark):
    attached = spark.attached
    balancer = attached.keep_balanced("threshold", tau=0.2, every=0.01, looks=2, rest_batches=50, gain=0.0)
    wait_until(lambda: len(on(spark)) == 3, "every executor has something")
    wait_until(lambda: any("batches of rest" in each.reason for each in balancer.decisions), "the rest")
    reasons = [each.reason for each in balancer.decisions]
    act = next(each for each in balancer.decisions if each.action == "balance")
    assert "out of balance for 1 of 2 looks" in reasons[: reasons.index(act.reason)]
    assert act.reason.startswith("the busiest worker is 200% above the mean, 2 workers are idle, and balance would")
    rest = next(each for each in balancer.decisions if "batches of rest" in each.reason)
    assert rest.version >= attached.migration.versions[-1], "it rests from the end of the migration on"
    spark.stop()
    wait_until(lambda: not balancer.is_active, "it ends with the query")


def test_the_balancer_brings_executors_where_balance_is_not_enough(spark):
    balancer = spark.attached.keep_balanced(window=2, rest=2, most=4, utilisation=0.0001)
    wait_until(lambda: len(on(spark)) == 4, "a fourth executor has partitions")
    balancer.stop()
    assert any(each.action == "rescale" and each.workers == 4 for each in balancer.decisions)


def test_cores_are_capacities(spark):
    spark.alive = {"0": 1, "1": 1, "2": 4}
    assert spark.engine.view(0).capacities == {0: 1.0, 1: 1.0, 2: 4.0}
    assert spark.attached.rebalance().wait(WAIT_S, show=False)
    assert on(spark)["2"] == 4


def test_detaching_by_a_listener_does_not_wait_for_itself(spark):
    attached = spark.attached
    attached.on_event(lambda event: event.name == "steered" and attached.detach())
    attached.spread()
    wait_until(lambda: spark.watch.ended.is_set(), "it is detached")
    wait_until(lambda: attached.migration.is_over, "and steers no more")


def test_slips_of_a_request_are_named(spark):
    handle = spark.attached
    slips = {
        "there is no executor '7'; there are: 0, 1, 2": lambda: handle.drain(7),
        "rescale has no option 'planer'": lambda: handle.rescale(1, planer="free"),
        "7 executors cannot share 6 state partitions": lambda: handle.rescale(7),
        "there is no operator 'sum'; there are: 0:count": lambda: handle.spread(operator="sum"),
        "tries is 0": lambda: handle.spread(tries=0),
        "it is you who says": lambda: handle.move({0: 0}, planner="free"),
        "no option 'tao'": lambda: handle.keep_balanced(tao=0.1),
        "there is no policy 'pilot'; there are: straggler, threshold": lambda: handle.keep_balanced("pilot"),
        "slack is -1": lambda: handle.keep_balanced("threshold", slack=-1),
        "keep_balanced has no option 'at'": lambda: handle.keep_balanced(at="02:00"),
        "every is 0": lambda: handle.keep_balanced(every=0),
        "spread has no option 'tau'": lambda: handle.spread(tau=0.1),
        "has no option 'at'": lambda: handle.spread(at=7),
        "has no option 'mode'": lambda: handle.spread(mode="live"),
        "'dry_run': plan_rebalance takes the same": lambda: handle.rebalance(dry_run=True),
        "options is a text; give me.MoveOptions": lambda: handle.spread("free"),
    }
    for sentence, slip in slips.items():
        with pytest.raises(me.InvalidOption) as refused:
            slip()
        assert sentence in str(refused.value)
    assert attached_is_still(spark)


def attached_is_still(spark):
    """Whether nothing has moved and nothing moves."""
    return spark.attached.migration is None and set(spark.places.values()) == {"0"}
