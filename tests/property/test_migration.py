"""The production driver in a stream in which everything goes wrong; and that the simulation sees what is wrong.

A test that fails names its seed: `Simulation(seed).run()` tells the same story again.
"""

import os
import subprocess
import sys
from collections import Counter
from dataclasses import fields, replace

import numpy as np
import pytest

from meander.engine.driver.batch_loop import BatchLoop
from meander.engine.driver.version import Version
from meander.engine.worker.catch_up import update
from meander.migration.coordinator import Coordinator
from meander.migration.movable import EventLog
from meander.migration.orders import Planned
from meander.migration.protocol import Protocol
from meander.migration.steps import NO_LIMIT
from meander.testing import model
from meander.testing.faults import FaultRates
from meander.testing.simulation import Simulation, Violation


def seeds(quick: int, count: int) -> list:
    """So many stories, the first ones of them in every run."""
    return [seed if seed < quick else pytest.param(seed, marks=pytest.mark.slow) for seed in range(count)]


MOST_SEEDS = 1000
"""Within so many seeds a driver that is broken must be found out; all of them are within ten."""


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


# --- the simulation sees what is wrong -----------------------------------------------------------


def killed_by():
    """What is said of the first seed at which a broken driver comes to grief."""
    for seed in range(MOST_SEEDS):
        try:
            Simulation(seed).run()
        except Violation as violation:
            return str(violation)
    return "nothing"


@pytest.fixture
def skips_repairs(monkeypatch):
    monkeypatch.setattr(Coordinator, "repair", lambda self, lost: None)


@pytest.fixture
def flips_before_the_last_delta(monkeypatch):
    real = Version.controls

    def hasty(self, *arguments):
        controls = real(self, *arguments)
        return tuple(control._replace(advance=()) for control in controls) if self.orders.flips else controls

    monkeypatch.setattr(Version, "controls", hasty)


@pytest.fixture
def keeps_released_copies(monkeypatch):
    real = Protocol.on

    def hoarding(self, event):
        if isinstance(event, Planned):
            event = replace(event, budget=replace(event.budget, release_after=1 << 20, keep_bytes=NO_LIMIT))
        return real(self, event)

    monkeypatch.setattr(Protocol, "on", hoarding)


@pytest.fixture
def forgets_the_journal(monkeypatch):
    real = Coordinator.note
    monkeypatch.setattr(
        Coordinator, "note", lambda self: {name: each for name, each in real(self).items() if name != "migration"}
    )


@pytest.fixture
def doubles_ticks(monkeypatch):
    real = BatchLoop.tick

    def twice(self):
        real(self)
        real(self)

    monkeypatch.setattr(BatchLoop, "tick", twice)


@pytest.fixture
def does_not_advance_copies(monkeypatch):
    """The deltas that others wrote do not reach whoever holds a copy."""
    real = Version.controls

    def own(self, *arguments):
        return tuple(
            control._replace(advance=tuple(ref for ref in control.advance if ref["worker"] == control.worker))
            for control in real(self, *arguments)
        )

    monkeypatch.setattr(Version, "controls", own)


@pytest.mark.parametrize(
    "mutant",
    [
        "skips_repairs", "flips_before_the_last_delta", "keeps_released_copies", "forgets_the_journal",
        "doubles_ticks", "does_not_advance_copies",
    ],
)  # fmt: skip
def test_a_broken_driver_is_caught(request, mutant):
    request.getfixturevalue(mutant)
    assert killed_by().startswith("seed ")


def _too_little(note, protocol):
    return {**note, "steps": note["steps"][1:]}


def _too_much(note, protocol):
    flip = protocol.flipping
    again = [] if flip is None else [{"number": flip.number, "moves": [list(move) for move in flip.moves]}]
    return {**note, "steps": [*again, *note["steps"]]}


@pytest.mark.parametrize("wrong", [_too_little, _too_much])
def test_a_journal_that_forgets_or_repeats_a_step_is_caught(monkeypatch, wrong):
    real = Protocol.to_json

    def written(protocol):
        note = real(protocol)
        return note if note is None else wrong(note, protocol)

    monkeypatch.setattr(Protocol, "to_json", written)
    assert killed_by().startswith("seed ")


none = np.empty(0, np.int64)


def keeps_what_it_should_release(held, version, wanted):
    return replace(update(held, version, wanted), release=none)


def takes_what_it_holds_to_be_current(held, version, wanted):
    return replace(update(held, wanted.version - 1, wanted), advance=False)


def installs_nothing(held, version, wanted):
    return replace(update(held, version, wanted), install=none)


@pytest.mark.parametrize("broken", [keeps_what_it_should_release, takes_what_it_holds_to_be_current, installs_nothing])
def test_a_broken_worker_is_caught(monkeypatch, broken):
    monkeypatch.setattr(model, "update", broken)
    assert killed_by().startswith("seed ")
