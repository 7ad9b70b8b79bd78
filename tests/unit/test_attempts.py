"""Attempts at a version over jobs that answer as they are told to: what is tried again, and what never is."""

from pathlib import Path

import numpy as np
import pytest

from meander.clock import ManualClock
from meander.engine.driver.attempts import Attempts, Stopped
from meander.engine.driver.commit import EventTime
from meander.engine.driver.placement import Placement
from meander.engine.driver.ports import JobLost, JobResult
from meander.engine.driver.settings import Settings
from meander.engine.worker.messages import Fault, TaskReport, Token
from meander.engine.worker.output import ROWS
from meander.errors import QueryFailed
from meander.migration.coordinator import Coordinator
from meander.migration.events import EventLog
from meander.migration.ledger import BinRecord, Holdings
from meander.store.manifest import Log
from meander.testing.backends import graph_of
from meander.testing.faults import MemoryLocation
from meander.testing.inprocess import InProcessCluster
from meander.testing.model import SumOperator

BINS = 8


def reports_of(job):
    """What every worker of every operator says when all goes well."""
    return [
        TaskReport(control.token, control.operator, control.worker, held=control.held, bytes=5)
        for controls in job.controls
        for control in controls
    ]


class FakeJobs:
    """Jobs that answer one thing after the other: an exception is raised, a function gets the reports and changes them.

    Once there is no answer left, all goes well.
    """

    form = ROWS

    def __init__(self, *answers, waves=1):
        self.answers, self.count = list(answers), waves
        self.jobs, self.rows, self.outputs, self.freed = [], [], [], 0
        self.looked_at = None
        """The operators whose rows are too many; None: those of all are."""

    def waves(self, input, routing, max_bytes):
        rows = input.outputs.get(routing.operator - 1, input.batch)
        is_large = self.looked_at is None or routing.operator in self.looked_at
        return [rows] if self.count == 1 or not is_large else [(rows, at) for at in range(self.count)]

    def free(self, waves):
        self.freed += 1

    def run(self, input, job):
        first = job.routings[0].operator
        rows = input.pieces.get(first, input.outputs.get(first - 1, input.batch))
        self.jobs.append(job)
        self.outputs.append(dict(input.outputs))
        self.rows.append(rows)
        answer = self.answers.pop(0) if self.answers else None
        if isinstance(answer, Exception):
            raise answer
        reports = reports_of(job)
        return JobResult(tuple(reports if answer is None else answer(reports)), (f"output of {rows}",), 0.5)

    def read(self, output):
        return f"read {output.operator}"

    @property
    def tokens(self):
        return [control.token for job in self.jobs for control in job.controls[0][:1]]


@pytest.fixture
def attempts_over():
    def make(jobs, operators=1, workers=2, origins=None, **settings):
        cluster = InProcessCluster(Path("/nonexistent"), workers)
        log = Log.open(MemoryLocation.new())
        log.claim("test", 0)
        owner = np.arange(BINS, dtype=np.int64) * workers // BINS
        holdings, record = Holdings(), BinRecord([owner] * operators)
        graph = graph_of([SumOperator(BINS)] * operators, origins or [(at - 1,) for at in range(operators)])
        chosen = {"attempts": 4, "executors_within_s": 1.0, **settings}
        return Attempts(
            graph, jobs, Placement(cluster, holdings, "run", ManualClock()),
            Coordinator(record, holdings, EventLog(), workers, {}), EventTime([None] * operators, [None] * operators),
            log, Settings("memory://checkpoint", workers, BINS, **chosen),
        )  # fmt: skip

    return make


def with_fault(kind, worker=1, **more):
    """One worker reports a fault."""

    def changed(reports):
        fault = Fault(kind, "it went wrong", **more)
        return [each._replace(fault=fault) if each.worker == worker else each for each in reports]

    return changed


def test_an_attempt_that_succeeds_is_the_only_one(attempts_over):
    jobs = FakeJobs()
    attempts = attempts_over(jobs)
    result = attempts.run("rows", 0, 0)
    [job] = jobs.jobs
    assert job.tag == "meander-run-0-0-1"
    assert job.routings[0].slots == (0,) * 4 + (1,) * 4
    assert [place.executor for place in job.places] == ["1", "2"]
    assert job.barrier
    assert [control.worker for control in job.controls[0]] == [0, 1]
    assert [report.worker for report in result.reports] == [0, 1]
    assert result.inline == ("output of rows",)


def test_a_lost_job_is_tried_again_under_another_token(attempts_over):
    jobs = FakeJobs(JobLost("an executor is gone"), JobLost("again"))
    attempts_over(jobs).run("rows", 0, 0)
    assert jobs.tokens == [Token(0, 0, 1), Token(0, 0, 2), Token(0, 0, 3)]
    assert len({job.tag for job in jobs.jobs}) == 3


def test_a_lost_executor_is_replaced_before_the_next_attempt(attempts_over):
    jobs = FakeJobs(JobLost("an executor is gone"))
    attempts = attempts_over(jobs)
    attempts.settle()
    attempts.placement.cluster.lose("1", replace=True)
    attempts.run("rows", 0, 0)
    assert [[place.executor for place in job.places] for job in jobs.jobs] == [["1", "2"], ["3", "2"]]


def test_there_is_an_end_to_trying_again(attempts_over):
    jobs = FakeJobs(*[JobLost("gone")] * 9)
    with pytest.raises(QueryFailed, match="version 0 was tried 4 times; the last time a process was lost: gone"):
        attempts_over(jobs).run("rows", 0, 0)
    assert len(jobs.jobs) == 4


def test_the_users_own_exception_is_never_tried_again(attempts_over):
    jobs = FakeJobs(with_fault("user", trace="Traceback: here", bin=6))
    with pytest.raises(
        QueryFailed,
        match=r"sum \(operator 0, worker 1\) in bin 6 failed in version 0: it went wrong; correct .*\nTraceback: here$",
    ):
        attempts_over(jobs).run("rows", 0, 0)
    assert len(jobs.jobs) == 1


@pytest.mark.parametrize("kind", ["space", "damaged", "other"])
def test_what_another_attempt_cannot_mend_is_not_tried_again(attempts_over, kind):
    jobs = FakeJobs(with_fault(kind))
    with pytest.raises(QueryFailed, match="failed in version 0: it went wrong$"):
        attempts_over(jobs).run("rows", 0, 0)
    assert len(jobs.jobs) == 1


def test_what_a_job_fails_of_otherwise_is_not_tried_again(attempts_over):
    jobs = FakeJobs(QueryFailed("[DIVIDE_BY_ZERO]"))
    with pytest.raises(QueryFailed, match="DIVIDE_BY_ZERO"):
        attempts_over(jobs).run("rows", 0, 0)
    assert len(jobs.jobs) == 1


@pytest.mark.parametrize("kind", ["reload", "stale"])
def test_a_worker_whose_state_is_in_doubt_is_told_where_to_read_it(attempts_over, kind):
    jobs = FakeJobs(with_fault(kind))
    attempts = attempts_over(jobs)
    attempts.settle()
    for worker in (0, 1):
        attempts.placement.holdings.report(0, worker, attempts.coordinator.record.owners[0] == worker)
    home = attempts.placement.home(1)
    attempts.run("rows", 0, 0)
    first, second = ([bool(control.loadable.any()) for control in job.controls[0]] for job in jobs.jobs)
    assert first == [False, False]
    assert second == [False, True], "it is believed to hold nothing"
    assert attempts.placement.home(1) == home


def test_a_task_that_ran_elsewhere_gets_another_place(attempts_over):
    jobs = FakeJobs(with_fault("place"))
    attempts = attempts_over(jobs)
    attempts.settle()
    home = attempts.placement.home(1)
    attempts.run("rows", 0, 0)
    assert attempts.placement.home(1) != home
    assert len(jobs.jobs) == 2


def _doubled(reports):
    return [*reports, reports[0]]


def _one_missing(reports):
    return reports[:-1]


def _of_an_older_version(reports):
    return [each._replace(token=each.token._replace(version=each.token.version - 1)) for each in reports]


def _a_stranger(reports):
    return [*reports, reports[0]._replace(worker=77)]


@pytest.mark.parametrize("odd", [_doubled, _one_missing, _of_an_older_version, _a_stranger])
def test_reports_that_are_not_one_of_each_are_discarded(attempts_over, odd):
    jobs = FakeJobs(odd)
    result = attempts_over(jobs).run("rows", 0, 0)
    assert len(jobs.jobs) == 2
    assert [(each.worker, each.token) for each in result.reports] == [(0, Token(0, 0, 2)), (1, Token(0, 0, 2))]


def test_after_a_stop_nothing_is_tried(attempts_over):
    jobs = FakeJobs()
    attempts = attempts_over(jobs)

    def stop_and_lose(reports):
        attempts.stopping = True
        raise JobLost("gone")

    jobs.answers = [stop_and_lose]
    with pytest.raises(Stopped):
        attempts.run("rows", 0, 0)
    assert len(jobs.jobs) == 1
    with pytest.raises(Stopped):
        attempts.run("rows", 0, 0)
    assert len(jobs.jobs) == 1


def test_rows_that_are_too_many_come_in_waves_operator_by_operator(attempts_over):
    jobs = FakeJobs(waves=2)
    result = attempts_over(jobs, operators=2).run("rows", 0, 0)
    assert jobs.rows == [("rows", 0), ("rows", 1), ("read 0", 0), ("read 0", 1)]
    assert [job.controls[0][0].wave for job in jobs.jobs] == [(0, 2), (1, 2), (0, 2), (1, 2)]
    assert [(job.routings[0].operator, len(job.routings)) for job in jobs.jobs] == [(0, 1), (0, 1), (1, 1), (1, 1)]
    assert len(set(jobs.tokens)) == 4
    assert jobs.freed == 2
    assert len(result.reports) == 8
    assert result.inline == ("output of ('read 0', 0)", "output of ('read 0', 1)"), "of the last operator only"
    assert result.planned_s == 2.0


def test_waves_are_given_back_also_where_one_is_lost(attempts_over):
    jobs = FakeJobs(None, JobLost("gone"), waves=2)
    attempts_over(jobs).run("rows", 0, 0)
    assert jobs.freed == 2
    assert len(jobs.jobs) == 4


def test_small_batches_are_not_looked_at_again_until_one_is_lost(attempts_over):
    jobs = FakeJobs()
    attempts = attempts_over(jobs)
    attempts.run("rows", 0, 0)
    jobs.count = 2
    attempts.run("rows", 0, 0)
    assert jobs.rows == ["rows", "rows"]
    jobs.answers = [JobLost("gone")]
    attempts.run("rows", 0, 0)
    assert jobs.rows[2:] == ["rows", ("rows", 0), ("rows", 1)]


def test_too_few_executors_for_the_first_version_fail_the_query(attempts_over):
    attempts = attempts_over(FakeJobs(), workers=3)
    attempts.placement.cluster.lose("1")
    with pytest.raises(QueryFailed, match="3 workers need as many cores, and the executors had 2 within 1 s"):
        attempts.run("rows", 0, 0)


@pytest.mark.parametrize(
    ("origins", "jobs_of"),
    [
        ([(-1,), (0,), (1,)], [[0, 1, 2]]),
        ([(-1,), (-1,), (0, 1)], [[0, 1, 2]]),
        ([(-1,), (0, -1)], [[0, 1]]),
        ([(-1,), (0, 0)], [[0], [1]]),
        ([(-1,), (0,), (0,), (1, 2)], [[0], [1, 2, 3]]),
        ([(-1,), (-1,), (0, 1), (1, 2)], [[1], [0, 2, 3]]),
        ([(-1,), (0,), (0, 1), (1, 2)], [[0], [1], [2, 3]]),
    ],
)
def test_all_is_one_job_but_for_outputs_that_several_read(attempts_over, origins, jobs_of):
    """What was read once stays, whatever comes after it, and no operator runs twice."""
    jobs = FakeJobs()
    attempts_over(jobs, len(origins), origins=origins).run("rows", 0, 0)
    ran = [[routing.operator for routing in job.routings] for job in jobs.jobs]
    assert ran == jobs_of
    for job, outputs in zip(ran, jobs.outputs, strict=True):
        assert all(origin in {-1, *outputs, *job} for at in job for origin in origins[at])


def test_the_rows_of_one_operator_come_in_waves_and_those_of_others_as_they_are(attempts_over):
    jobs = FakeJobs(waves=2)
    jobs.looked_at = {1}
    attempts_over(jobs, 3, origins=[(-1,), (-1,), (0, 1)]).run("rows", 0, 0)
    ran = [[routing.operator for routing in job.routings] for job in jobs.jobs]
    assert ran == [[1], [1], [0, 2]]
    assert [job.controls[0][0].wave for job in jobs.jobs] == [(0, 2), (1, 2), (0, 1)]
    assert jobs.outputs[-1] == {1: "read 1"}
    assert jobs.freed == 1
