"""A start that is refused leaves the query alone that runs; one that is not takes over from its last commit."""

from __future__ import annotations

from dataclasses import replace

import pytest

import meander as me
from meander.clock import ManualClock
from meander.engine.driver.settings import Settings
from meander.errors import ChangedQuery, Fenced, ForeignCheckpoint, Infeasible, QueryFailed
from meander.migration.coordinator import Coordinator
from meander.store.location import Location
from meander.testing.inprocess import InProcessCluster, InProcessJobs, MemorySink
from meander.testing.stream import InProcessLaunch


@pytest.fixture
def launch(tmp_path):
    source = me.testing.source("word string")
    operators = [node.operator for node in me.stream(source).key_by("word").count().nodes]
    cluster = InProcessCluster(tmp_path / "executors", 2, most=2)
    jobs = InProcessJobs(operators, source.schema, cluster, MemorySink())
    settings = Settings(str(tmp_path / "ck"), 2, 8, executors_within_s=1.0)
    return InProcessLaunch(operators, Location.of(tmp_path / "ck"), cluster, jobs, settings, ManualClock(), 2)


def put(launch, stream, *words):
    stream.put(launch.jobs.nothing().from_pylist([{"word": word} for word in words], launch.jobs.schema))


def other_bins(launch, monkeypatch):
    return replace(launch, settings=replace(launch.settings, bins=4)), ChangedQuery


def foreign_spark_part(launch, monkeypatch):
    launch.location.write("spark/metadata", b'{"id": "another"}')
    return launch, ForeignCheckpoint


def too_few_cores(launch, monkeypatch):
    """Before the first version there is no state that others could take over."""
    launch.cluster.lose(launch.cluster.executors()[0].executor)
    launch.cluster.lose(launch.cluster.executors()[0].executor)
    return launch, QueryFailed


def no_plan(launch, monkeypatch):
    def start(*_):
        raise Infeasible("there is no such plan")

    monkeypatch.setattr(Coordinator, "start", start)
    return launch, Infeasible


@pytest.mark.parametrize("bad", [other_bins, foreign_spark_part, too_few_cores, no_plan])
def test_a_start_that_is_refused_leaves_the_query_alone_that_runs(launch, monkeypatch, bad):
    driver, stream = launch.start()
    put(launch, stream, "duck", "goose")
    before = launch.location.list("manifests")
    metadata = launch.location.read("spark/metadata").to_pybytes()
    with monkeypatch.context() as patch:
        other, error = bad(launch, patch)
        with pytest.raises(error):
            other.start()
    launch.location.write("spark/metadata", metadata)
    assert launch.location.list("manifests") == before, "nothing is claimed"
    launch.cluster.request(2)
    put(launch, stream, "duck")
    assert driver.loop.version == 1
    assert launch.jobs.sink.rows()[-1] == {"word": "duck", "count": 2}


def test_a_refused_start_of_a_new_query_leaves_a_checkpoint_that_any_query_may_have(launch, monkeypatch):
    with monkeypatch.context() as patch:
        other, error = no_plan(launch, patch)
        with pytest.raises(error):
            other.start()
    driver, stream = replace(launch, settings=replace(launch.settings, bins=4)).start()
    put(launch, stream, "duck")
    assert driver.loop.version == 0


def test_a_start_while_another_driver_commits_goes_on_from_its_last_commit(launch, monkeypatch):
    _, stream = launch.start()
    put(launch, stream, "duck")
    settle, settled = Coordinator.start, []

    def start(*arguments):
        """The old driver commits while the new one is being prepared."""
        if not settled:
            settled.append(True)
            put(launch, stream, "duck", "goose")
        return settle(*arguments)

    monkeypatch.setattr(Coordinator, "start", start)
    new, later = launch.start()
    assert (new.loop.version, new.record.version, later.next_batch) == (1, 1, 2)
    put(launch, later, "duck")
    assert launch.jobs.sink.rows()[-1] == {"word": "duck", "count": 3}
    with pytest.raises(Fenced):
        put(launch, stream, "duck")
