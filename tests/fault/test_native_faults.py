"""Executors that are killed while partitions of a plain Spark query move: it goes on, and says what did not arrive."""

from __future__ import annotations

import os
import re

import pytest

import meander as me
from pour import PARTITIONS, Load, counts, on, plain_session, started
from streams import PATIENCE_S, at_events, below, kill, wait_until

pytestmark = pytest.mark.fault


@pytest.fixture(scope="module")
def spark():
    session = plain_session("local-cluster[3,1,1024]")
    yield session
    session.stop()


def process_of(executor: str) -> int:
    """The process of an executor of this application."""
    commands = below(os.getpid())
    return next(
        pid for pid, (_, command) in commands.items()
        if "CoarseGrainedExecutorBackend" in command and re.search(rf"--executor-id {executor}\b", command)
    )  # fmt: skip


@pytest.mark.parametrize("whose", ["target", pytest.param("source", marks=pytest.mark.soak)])
def test_an_executor_is_killed_in_the_middle_of_a_migration(spark, tmp_path, monkeypatch, whose):
    monkeypatch.setenv("MEANDER_RUNTIME_DIR", str(tmp_path / "runtime"))
    load = Load(tmp_path / "in", 11)
    query, latest = started(load, load.feed.read(spark).groupBy("key").count(), tmp_path, "update")
    with load, me.attach(query, within_s=PATIENCE_S) as attached:
        source, target, _ = attached.executors
        everything = dict.fromkeys(range(PARTITIONS), source)
        assert attached.move(everything, schedule="all_at_once").wait(PATIENCE_S)
        victim = target if whose == "target" else source
        killed = []

        def strike(event):
            if event.name == "steered" and not killed:
                killed.append(kill(process_of(victim)))

        at_events(strike, monkeypatch.setattr)
        moving = attached.move(dict.fromkeys(range(PARTITIONS), target), schedule="fluid")
        assert moving.wait(PATIENCE_S)
        assert killed == [True]
        wait_until(lambda: victim not in attached.executors, "Spark notices")
        if whose == "target":
            assert any(f"executor {target} is gone" in each for each in moving.report.remarks)
        wait_until(lambda: len(attached.executors) >= 2, "another executor is there")
        assert attached.spread().wait(PATIENCE_S)
        assert victim not in on(attached)
    query.processAllAvailable()
    query.stop()
    assert {key: row[1] for key, row in latest.items()} == counts(load)
