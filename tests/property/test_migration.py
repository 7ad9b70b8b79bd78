"""The production driver in a stream in which everything goes wrong. That the simulation sees it: `test_mutants`.

A test that fails names its seed: `Simulation(seed).run()` tells the same story again.
"""

import os
import subprocess
import sys
from collections import Counter
from dataclasses import fields

import pytest

from meander.migration.events import EventLog
from meander.testing.faults import FaultRates
from meander.testing.simulation import Simulation


def seeds(quick: int, count: int) -> list:
    """So many stories, the first ones of them in every run."""
    return [seed if seed < quick else pytest.param(seed, marks=pytest.mark.slow) for seed in range(count)]


@pytest.fixture(autouse=True)
def _quiet(caplog):
    """Losses are what a simulation is about: nobody wants to read of each of them."""
    caplog.set_level("CRITICAL", logger="meander")


# --- everything goes wrong, and nothing is lost --------------------------------------------------


@pytest.mark.parametrize("seed", seeds(20, 60))
def test_over_modelled_workers_every_row_counts_once(seed):
    outcome = Simulation(seed).run()
    assert outcome.versions >= 40
    assert outcome.migrations >= 1
    assert outcome.faults >= 3


@pytest.mark.parametrize("seed", seeds(2, 6))
def test_over_the_real_worker_code_every_row_counts_once(seed):
    outcome = Simulation(seed, real=True).run()
    assert outcome.versions >= 40
    assert outcome.migrations >= 1
    assert outcome.faults >= 3


@pytest.mark.parametrize("real", [False, True], ids=["model", "real"])
def test_a_seed_is_a_story_that_can_be_told_again(real):
    one, two = (Simulation(5, real, versions=15) for _ in range(2))
    assert one.run() == two.run()
    if real:  # the files are named for the processes that wrote them, and timed
        assert [_told(commit) for commit in one.commits] == [_told(commit) for commit in two.commits]
    else:
        assert one.commits == two.commits


SEEDS_IN_ANOTHER_PROCESS = """
import hashlib, logging
from meander.testing.simulation import Simulation

logging.disable(logging.CRITICAL)
for seed, real in ((5, False), (11, False), (23, False), (5, True)):
    simulation = Simulation(seed, real)
    outcome = simulation.run()
    commits = [
        (each.version, each.batch, each.tick, [part.owner for part in each.operators], each.rows) if real else each
        for each in simulation.commits
    ]
    print(outcome, hashlib.sha256(repr(commits).encode()).hexdigest())
"""


def test_a_seed_is_the_same_story_in_every_process():
    stories = [
        subprocess.Popen(
            [sys.executable, "-c", SEEDS_IN_ANOTHER_PROCESS], env={**os.environ, "PYTHONHASHSEED": seed},
            stdout=subprocess.PIPE, text=True,
        )
        for seed in ("1", "2")
    ]  # fmt: skip
    one, two = (each.communicate()[0] for each in stories)
    assert len(one.splitlines()) == 4
    assert one == two


def _told(commit):
    return commit.version, commit.batch, commit.tick, [part.owner for part in commit.operators], commit.rows


def test_without_faults_and_without_luck_nothing_is_retried():
    simulation = Simulation(3, rates=FaultRates.none(), versions=20)
    simulation.run()
    assert not simulation.chance.counts
    assert simulation.restarts == 0


def test_all_that_can_happen_happens(monkeypatch):
    """Else the properties would be about less than they say."""
    seen, emit = Counter(), EventLog.emit

    def noted(self, event, **facts):
        seen.update([event, facts.get("outcome", event)])
        emit(self, event, **facts)

    monkeypatch.setattr(EventLog, "emit", noted)
    for seed in range(100, 110):
        simulation = Simulation(seed)
        simulation.run()
        seen.update(simulation.chance.counts)
        seen["ticks"] += sum(commit.tick > 0 for commit in simulation.commits)
        seen["two operators"] += len(simulation.commits[0].operators) == 2
        seen["resumed"] += simulation.restarts > 0 and simulation.finished > 0
        seen["journals"] += sum("migration" in (commit.journal or {}) for commit in simulation.commits)
    faults = {each.name for each in fields(FaultRates)} - {"zombie"}
    events = {"flipping", "released", "lost", "executors", "refused", "workers", "dismissed"}
    others = {"done", "replaced", "cancelled", "failed", "ticks", "two operators", "resumed", "journals"}
    assert not {name for name in faults | events | others if not seen[name]}, seen
