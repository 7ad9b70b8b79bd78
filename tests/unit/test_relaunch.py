"""A query that is stopped and started anew in place, as the lab's mode "restart" does: told to stop, and failing."""

from __future__ import annotations

import threading

import pyarrow as pa
import pytest

import meander as me
from meander.clock import ManualClock
from meander.engine.driver.run import QueryRun
from meander.engine.driver.settings import Settings
from meander.errors import QueryFailed
from meander.query import Query
from meander.store.location import Location
from meander.testing.inprocess import InProcessCluster, InProcessJobs, MemorySink
from meander.testing.stream import InProcessLaunch

SOON_S = 60


class Launch(InProcessLaunch):
    """Does something before it starts anew."""

    before_relaunch = staticmethod(lambda: None)

    def start(self, moved=(), before=None):
        if before is not None:
            self.before_relaunch()
        return super().start(moved, before)


class Case:
    """A query that counts words, with one batch processed."""

    def __init__(self, folder):
        stream = me.stream(me.testing.source("word string")).key_by("word").count()
        operators = [node.operator for node in stream.nodes]
        cluster, self.sink = InProcessCluster(folder / "executors", 2), MemorySink()
        jobs = InProcessJobs(operators, stream.source.schema, cluster, self.sink)
        settings = Settings(str(folder / "checkpoint"), 2, 16, copy_ms=1e9)
        clock = ManualClock()
        self.launch = Launch(operators, Location.of(folder / "checkpoint"), cluster, jobs, settings, clock, 2)
        self.run = QueryRun(self.launch, clock)
        self.query = Query(self.run, background=False)
        self.batch()

    def batch(self):
        self.run.stream.put(pa.table({"word": ["a", "b"]}))

    def restart(self):
        return self.query.move({0: 1}, mode="restart")


@pytest.fixture
def case(tmp_path):
    case = Case(tmp_path)
    yield case
    case.query.stop()


def test_a_query_that_is_started_anew_goes_on(case):
    assert case.restart().status == "done"
    case.batch()
    assert case.sink.rows()[-1]["count"] == 2
    assert case.query.assignment["0:count"][0] == 1


def test_a_stop_while_it_is_started_anew_stops_it(case):
    stopping = threading.Thread(target=case.query.stop)

    def stop():
        stopping.start()
        stopping.join(0.2)  # it need not wait for the start, but may

    case.launch.before_relaunch = stop
    move = case.restart()
    stopping.join(SOON_S)
    assert not stopping.is_alive()
    assert not case.run.stream.is_active, "what was started anew is stopped too"
    assert case.run.driver.loop.stopping
    assert not case.query.is_active
    assert case.query.exception() is None
    assert case.query.await_termination(0)
    assert move.is_over


def test_a_stop_that_comes_first_lets_nothing_start_anew(case):
    case.query.stop()
    with pytest.raises(QueryFailed, match="the query is being stopped"):
        case.run.relaunch()
    assert case.launch.starts == 1
    assert case.query.exception() is None


def test_a_start_that_fails_is_the_exception_of_the_query(case):
    problem = QueryFailed("2 workers need as many cores, and there are none")

    def fail():
        raise problem

    case.launch.before_relaunch = fail
    move = case.restart()
    assert (move.status, move.reason) == ("failed", str(problem))
    assert not case.query.is_active
    assert case.query.exception() is problem
    with pytest.raises(QueryFailed, match="2 workers need as many cores"):
        case.query.await_termination(1)
    with pytest.raises(QueryFailed, match="does not run"):
        case.query.rescale(3)
