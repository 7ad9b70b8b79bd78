"""Old versions go and nothing else does: a checkpoint opens after every number of versions, whatever is retained."""

from dataclasses import replace

import pytest

import meander as me
from meander.clock import ManualClock
from meander.engine.driver.driver import Driver
from meander.engine.driver.settings import Settings
from meander.store.identity import check_spark_part
from meander.store.location import Location
from meander.store.manifest import Log
from meander.store.reader import Reader
from meander.testing.inprocess import InProcessCluster, InProcessJobs, MemorySink
from meander.testing.stream import InProcessLaunch

VERSIONS = 70
SECOND = 1_000_000


@pytest.fixture
def launch(tmp_path):
    source = me.testing.source("word string, ts timestamp")
    stream = me.stream(source).key_by("word").window("ts", "10s", emit="final").count()
    operators = [node.operator for node in stream.nodes]
    cluster = InProcessCluster(tmp_path / "executors", 1)
    jobs = InProcessJobs(operators, source.schema, cluster, MemorySink())
    place, settings = tmp_path / "ck", Settings(str(tmp_path / "ck"), 1, 2)
    return InProcessLaunch(operators, Location.of(place), cluster, jobs, settings, ManualClock(), 1)


def rows(launch, second):
    return launch.jobs.nothing().from_pylist([{"word": "duck", "ts": second * SECOND}], launch.jobs.schema)


def as_it_is(driver):
    return driver.loop.version, driver.event_time.frontiers, driver.event_time.seen


@pytest.mark.parametrize("retain", [1, 2, 3, 4])
def test_a_query_starts_again_after_any_number_of_versions(launch, retain):
    launch.settings = replace(launch.settings, retain=retain)
    driver, stream = launch.start()
    for version in range(VERSIONS):
        stream.put(rows(launch, 7 * version))
        log = Log.open(launch.location)
        check_spark_part(log)
        again = Driver(launch.operators, launch.cluster, launch.jobs, launch.settings, log)
        assert as_it_is(again) == as_it_is(driver)
        for kept in range(max(0, version - retain + 1), version + 1):
            past = log.at(kept)
            assert (past.commit.version, past.index.version) == (kept, kept)


@pytest.mark.parametrize("retain", [1, 4])
def test_a_query_can_be_started_again_after_every_version(launch, retain):
    launch.settings = replace(launch.settings, retain=retain)
    driver, stream = launch.start()
    for version in range(VERSIONS // 2):
        stream.put(rows(launch, 7 * version))
        before = as_it_is(driver)
        driver, stream = launch.start()
        assert as_it_is(driver) == before
    reader = Reader.open(launch.location.root)
    (state,) = reader.state(0, reader.table(0))
    assert state["count"].to_pylist() == [2], "the window that is open"


def test_the_time_that_operators_saw_last_outlives_a_restart_after_a_tick(launch):
    launch.settings = replace(launch.settings, idle_time="wall")
    driver, stream = launch.start()
    stream.put(rows(launch, 60))
    for _ in range(2):
        launch.clock.advance(5.0)
        assert driver.loop.tick_if_wanted()
    seen = driver.event_time.seen
    assert seen == [70 * SECOND]
    again, _ = launch.start()
    assert again.event_time.seen == seen
