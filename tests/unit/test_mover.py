"""Requests and migrations over a small engine that moves bins when it is told to."""

import numpy as np
import pytest

from meander.clock import ManualClock
from meander.errors import InvalidOption, MigrationFailed, QueryFailed
from meander.migration.handle import Migration
from meander.migration.ledger import Ledger
from meander.migration.movable import EngineStatus, MigrationState, Recruits, StaleLedger, VersionTime
from meander.migration.mover import Mover
from meander.migration.orders import Phase
from meander.migration.request import Live, Proposal, propose
from meander.migration.steps import CopyBudget

BINS = 8


class FakeEngine:
    """Two operators of eight bins; every version flips one step of the migration under way."""

    unit, mode, remainder = "bins", Live(), "started again, it goes on with the rest"
    name = "spend"
    operators, bins = {0: "0:count", 1: "1:sum"}, BINS

    def __init__(self, clock):
        self.clock, self.version, self.revision, self.is_active = clock, 4, 0, True
        self.owners = [np.array([0] * 4 + [1] * 4) for _ in self.operators]
        self.states, self.plans, self.events, self.recruited, self.let_go_for = {}, {}, [], [], []
        self.stale_times = 0
        self.no_executors = False

    def check_active(self, what):
        if not self.is_active:
            raise QueryFailed(f"the query does not run; start it, and then {what}")

    def status(self):
        workers = tuple(sorted({int(worker) for owner in self.owners for worker in owner}))
        times = tuple(VersionTime(number, 10.0 + number) for number in range(self.version + 1))
        return EngineStatus(self.version, self.is_active, workers, ("host:1",), times=times)

    def ledger(self):
        size = np.full(BINS, 100)
        return Ledger(self.revision, self.version, tuple(self.owners), (size, size), (None, None))

    def propose(self, request):
        return propose(request, self.ledger(), self.operators, self.status().workers)

    def draft(self, request):
        return self.propose(request)

    def submit(self, revision, steps, budget):
        if self.stale_times:
            self.stale_times -= 1
            self.revision += 1
        if revision != self.revision:
            raise StaleLedger("plan again")
        number = len(self.states) + 1
        for state in self.states:
            self.cancel(state, "replaced by another")
        self.states[number] = MigrationState(dict.fromkeys((step.number for step in steps), Phase.PLANNED))
        self.plans[number] = (list(steps), budget)
        return number

    def state(self, migration):
        return self.states[migration]

    def cancel(self, migration, reason):
        if self.states[migration].outcome is None:
            self.states[migration] = self.states[migration].finished("cancelled", reason, self.version)

    def subscribe(self, listener):
        raise AssertionError("nobody listens here")

    unsubscribe = subscribe

    def emit(self, event, **facts):
        self.events.append((event, facts))

    def recruit(self, request, workers, given_up):
        self.recruited.append(tuple(workers))
        if self.no_executors:
            raise MigrationFailed("no executor came within 60 s")
        return Recruits(1, ("9",)) if len(workers) > 2 else Recruits()

    def still_held(self, request, proposal):
        return set()

    def let_go(self, request, proposal, recruits, outcome):
        self.let_go_for.append(outcome)
        return 1 if outcome == "done" else 0, ()

    def make_version(self):
        """One step of the migration under way flips."""
        self.version += 1
        self.clock.advance(1.0)
        for number, state in self.states.items():
            steps, _ = self.plans[number]
            if state.outcome is not None or not steps:
                continue
            step = steps.pop(0)
            for move in step.moves:
                self.owners[move.operator][move.bin] = move.target
            self.revision += 1
            state = state.entered(step.number, Phase.FLIPPED)
            self.states[number] = state if steps else state.finished("done", "", self.version)


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def engine(clock):
    return FakeEngine(clock)


@pytest.fixture
def mover(engine, clock):
    return Mover(engine, CopyBudget(copy_bytes=400), 30.0, clock, background=False)


def finish(engine, migration):
    for _ in range(100):
        if migration.poll():
            return migration
        engine.make_version()
    raise AssertionError("it does not end")


def test_a_request_is_planned_submitted_and_followed_to_its_end(engine, mover, clock):
    migration = mover.migrate("rescale", None, {"workers": 4, "schedule": "fluid"})
    assert isinstance(migration, Migration)
    assert mover.migration is migration
    assert (migration.status, migration.number) == ("running", 1)
    assert engine.recruited == [(0, 1, 2, 3)]
    assert not migration.poll()
    engine.make_version()
    progress = migration.progress
    assert (progress.bins, progress.of_bins, progress.steps) == (2, 8, 1), "one bin of each operator"
    assert progress.eta_s == pytest.approx(3.0)
    finish(engine, migration)
    assert (migration.status, migration.is_over, migration.progress.phase) == ("done", True, "done")
    assert engine.status().workers == (0, 1, 2, 3)
    assert engine.let_go_for == ["done"]
    assert migration.wait()


def test_the_report_tells_what_happened_before_meanwhile_and_after(engine, mover):
    migration = finish(engine, mover.migrate("rescale", None, {"workers": 4, "schedule": "fluid"}))
    engine.make_version()
    report = migration.report
    assert (report.mode, report.outcome, report.schedule, report.planner) == ("live", "done", "fluid", "free")
    assert (report.workers_before, report.workers_after) == ((0, 1), (0, 1, 2, 3))
    assert (report.bins, report.bytes, report.steps) == (8, 800, 4)
    assert migration.versions == range(5, 9)
    assert (report.before.count, report.during.count, report.after.count) == (5, 4, 1)
    assert report.duration_s == pytest.approx(4.0)
    assert report.executors == {"asked": 1, "came": 1, "let_go": 1}


def test_a_plan_moves_nothing(engine, mover):
    proposal = mover.plan("rescale", "count", {"workers": 4})
    assert isinstance(proposal, Proposal)
    assert proposal.bins == 4
    assert list(proposal.plans) == ["0:count"]
    assert mover.plan("rescale", "count", {"workers": 4}).steps == proposal.steps
    assert mover.migration is None
    assert not engine.states


def test_options_go_to_whom_they_belong(mover):
    request = mover.request("move", "1:sum", {"targets": {3: 1}, "copy_bytes": 7, "executors_within_s": 5})
    assert request.operators == (1,)
    assert request.budget == CopyBudget(copy_bytes=7)
    assert request.executors_within_s == 5
    assert mover.request("rebalance", 0, {}).budget == CopyBudget(copy_bytes=400)
    assert mover.request("rebalance", 0, {}).executors_within_s == 30
    mover.prefer("free", {0: {"known": 1}})
    assert mover.request("rebalance", 0, {"planner": "free"}).operator_options == {0: {"known": 1}}
    for options, problem in [
        ({"speed": 1}, "rebalance has no option 'speed'"),
        ({"planner": "best"}, "there is no planner 'best'"),
        ({"schedule": "soon"}, "there is no schedule 'soon'"),
        ({"mode": "fast"}, "there is no mode 'fast'"),
        ({"copy_bytes": 0}, "copy_bytes"),
    ]:
        with pytest.raises(InvalidOption, match=problem):
            mover.request("rebalance", None, options)
    with pytest.raises(InvalidOption, match="there is no operator 'join'; there are: 0:count, 1:sum"):
        mover.request("rebalance", "join", {})


def test_a_query_that_does_not_run_moves_nothing(engine, mover):
    engine.is_active = False
    with pytest.raises(QueryFailed, match="start it, and then move its bins"):
        mover.migrate("rescale", None, {"workers": 4})
    assert mover.migration is None


def test_owners_that_change_between_plan_and_submission_make_another_plan(engine, mover):
    engine.stale_times = 2
    migration = mover.migrate("move", 0, {"targets": {0: 1}})
    assert migration.proposal.revision == 2
    finish(engine, migration)
    assert engine.owners[0][0] == 1


def test_a_migration_can_be_cancelled(engine, mover):
    migration = mover.migrate("rescale", None, {"workers": 4, "schedule": "fluid"})
    engine.make_version()
    migration.cancel()
    assert migration.poll()
    assert (migration.status, migration.reason) == ("cancelled", "cancelled by the user")
    assert migration.progress.bins == 2, "what has flipped stays"
    assert engine.let_go_for == ["cancelled"]
    migration.cancel()
    assert migration.status == "cancelled"


def test_executors_that_do_not_come_fail_it_before_it_begins(engine, mover):
    engine.no_executors = True
    migration = mover.migrate("rescale", None, {"workers": 4})
    assert migration.is_over
    assert (migration.status, migration.number) == ("failed", None)
    with pytest.raises(MigrationFailed, match="no executor came within 60 s"):
        migration.wait()
    assert not engine.states
    assert engine.let_go_for == ["failed"]


def test_what_fails_for_another_reason_is_told_in_one_line(engine, mover, monkeypatch, caplog):
    def broken(*_):
        raise RuntimeError("first line\nsecond line")

    monkeypatch.setattr(engine, "recruit", broken)
    migration = mover.migrate("rescale", None, {"workers": 4})
    assert (migration.status, migration.reason) == ("failed", "RuntimeError: first line")
    assert "a migration has failed" in caplog.text


def test_a_second_request_replaces_the_first(engine, mover):
    first = mover.migrate("rescale", None, {"workers": 4, "schedule": "fluid"})
    second = mover.migrate("rescale", None, {"workers": 3, "schedule": "fluid"})
    assert mover.migration is second
    assert first.poll()
    finish(engine, second)
    assert engine.status().workers == (0, 1, 2)


def test_a_migration_that_a_driver_before_has_begun_is_held_again(engine, mover):
    proposal = mover.plan("rescale", None, {"workers": 4, "schedule": "fluid"})
    number = engine.submit(0, proposal.steps, CopyBudget())
    mover.resume(number, proposal, CopyBudget())
    migration = mover.migration
    assert (migration.status, migration.number, migration.request.kind) == ("running", 1, "resume")
    for _ in range(4):
        assert not migration.poll()
        engine.make_version()
    assert migration.poll()
    assert (migration.status, migration.report.bins) == ("done", 8)


def test_it_is_held_again_in_a_thread_of_its_own_where_others_are(engine, mover, clock):
    proposal = mover.plan("rescale", None, {"workers": 4, "schedule": "fluid"})
    number = engine.submit(0, proposal.steps, CopyBudget())
    alone = Mover(engine, CopyBudget(), 30.0, clock)
    alone.resume(number, proposal, CopyBudget())
    for _ in range(4):
        engine.make_version()
    assert alone.migration.wait(timeout_s=30)
    alone.migration.join()
    assert alone.migration.status == "done"


def test_in_a_thread_of_its_own_it_needs_nobody_to_look(engine, clock):
    mover = Mover(engine, CopyBudget(), 30.0, clock)
    migration = mover.migrate("move", None, {"targets": {0: 1}})
    while migration.status == "waiting":
        assert not migration.wait(timeout_s=0.01)
    engine.make_version()
    assert migration.wait(timeout_s=30)
    migration.join()
    assert engine.let_go_for == ["done"]
