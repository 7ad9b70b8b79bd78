"""Every phase of a migration, and everything that can befall it there: nothing lost, nothing twice, and it goes on.

The phases are entered by a hook: the query is held where a step enters one, the deed is done, the query goes on.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from contextlib import suppress

import pytest

from flow import wait_for_move
from streams import below, kill, python_workers

pytestmark = [pytest.mark.fault, pytest.mark.spark]

PHASES = ("copying", "ready", "flipping", "flipped", "released")
STOPPED_S = 20
JVM = "org.apache.spark.deploy.SparkSubmit"


def moves(phases=PHASES, step=1, **options):
    """One migration for each phase, up and down in turn, each of several steps."""
    return [
        {"workers": 3 - at % 2, "schedule": "batched", "max_bins": 3, "hold": [phase, step], **options}
        for at, phase in enumerate(phases)
    ]


def victim(held, whose: str) -> int:
    """The executor of the first worker that bins come from, or go to."""
    return held["seats"][str(held[whose][0])]


def tree(pid: int) -> list[int]:
    return [pid, *below(pid)]


def each_phase(flow, program, deed) -> None:
    """Do the deed in every phase, and see that each migration reaches its goal all the same."""
    for at, phase in enumerate(PHASES):
        held = program.wait_for("held", at + 1)
        assert held["phase"] == phase
        deed(held)
        ended = wait_for_move(program, at + 1)
        assert (ended["status"], ended["reason"]) == ("done", "")
        assert ended["assignment"] == held["goal"]
    assert flow.finish(program)["folders"] == []


@pytest.mark.soak
@pytest.mark.parametrize(("whose", "seed"), [("sources", 201), ("targets", 202)])
def test_executors_are_killed(flow, whose, seed):
    flow = flow(seed)
    program = flow.start(moves())
    killed = set()

    def deed(held):
        pid = victim(held, whose)
        assert kill(pid)
        killed.add(pid)
        flow.go_on(held)

    each_phase(flow, program, deed)
    assert len(killed) == len(PHASES)


@pytest.mark.soak
@pytest.mark.parametrize(("whose", "seed"), [("sources", 203), ("targets", 204)])
def test_python_workers_are_killed(flow, whose, seed):
    flow = flow(seed)
    program = flow.start(moves(), quick=True)

    def deed(held):
        found = python_workers(victim(held, whose))
        assert found, f"no Python worker at {whose} in {held['phase']}"
        for pid in found:
            assert kill(pid)
        flow.go_on(held)

    each_phase(flow, program, deed)


@pytest.mark.soak
@pytest.mark.parametrize(("whose", "seed"), [("sources", 205), ("targets", 206)])
def test_executors_are_stopped_for_a_while(flow, whose, seed):
    flow = flow(seed)
    program = flow.start(moves(), quick=True)

    def deed(held):
        asleep = tree(victim(held, whose))
        for pid in asleep:
            kill(pid, signal.SIGSTOP)
        flow.go_on(held)
        time.sleep(STOPPED_S)
        for pid in asleep:
            kill(pid, signal.SIGCONT)

    each_phase(flow, program, deed)


@pytest.mark.soak
def test_python_workers_are_killed_while_they_copy_and_while_they_catch_up(flow):
    flow = flow(207, rows=4000)
    phases = ("copying", "flipping", "copying", "flipping")
    program = flow.start(moves(phases, step=0), spark={"spark__python__daemon__module": "torn"}, quick=True)
    for at, (phase, what) in enumerate(zip(phases, ("install", "advance") * 2, strict=True)):
        held = program.wait_for("held", at + 1)
        assert held["phase"] == phase
        token = flow.signals / f"{what}-s0-w{held['targets'][0]}"
        token.touch()
        flow.go_on(held)
        ended = wait_for_move(program, at + 1)
        assert not token.exists(), f"no {what} was torn"
        assert (ended["status"], ended["assignment"]) == ("done", held["goal"])
    flow.finish(program)


def test_a_target_that_does_not_come_back_fails_the_migration_and_the_query_goes_on(flow):
    flow = flow(208)
    wishes = [*moves(["ready"]), {"workers": 3, "executors_within_s": 300}]
    program = flow.start(wishes, let_none_come=True, settings={"executors_within_s": 0.5}, quick=True)
    held = program.wait_for("held")
    assert kill(victim(held, "targets"))
    flow.go_on(held)
    ended = wait_for_move(program, 1)
    assert ended["status"] == "failed"
    assert "is gone, and others have taken over its bins" in ended["reason"]
    assert "\n" not in ended["reason"]
    again = wait_for_move(program, 2)
    assert (again["status"], len(again["workers"]), again["at_goal"]) == ("done", 3, True)
    flow.finish(program)


@pytest.mark.soak
def test_drivers_are_killed(flow):
    flow = flow(209)
    # The first step is copied in the version that begins the migration: killed there, it never happened.
    holds = [("copying", 0), ("copying", 5), *((phase, 1) for phase in PHASES[1:]), ("released", -1)]
    goal, workers = None, [0, 1]
    for at, (phase, step) in enumerate(holds):
        wish = {"workers": 5 - len(workers), "schedule": "fluid", "hold": [phase, step]}
        program = flow.start([wish], quick=True)
        started = program.wait_for("started")
        assert started["resumed"] == (goal is not None)
        if goal is not None:
            ended = wait_for_move(program, 1)
            assert (ended["status"], ended["assignment"]) == ("done", goal)
        held = program.wait_for("held")
        assert (held["phase"], held["steps"] > 5) == (phase, True)
        goal = None if step == 0 else held["goal"]
        if goal is not None:
            workers = sorted(set(goal[0]))
        if at % 2:
            assert kill(program.pid)
        else:
            found = [pid for pid, (_, command) in below(program.pid).items() if JVM in command]
            assert found
            for pid in found:
                assert kill(pid)
            flow.go_on(held)
        # What the killed driver leaves may still run when the next one starts.
        assert program.wait() != 0
        assert not program.told("moved")
    # The version that released the last step is committed: there is nothing to resume.
    program = flow.start([], quick=True)
    started = program.wait_for("started")
    assert (started["resumed"], list(started["assignment"].values())) == (False, goal)
    flow.finish(program)


@pytest.fixture
def small_disk(tmp_path):
    """A disk of a few megabytes."""
    place = tmp_path / "disk"
    place.mkdir()
    asked = ["mount", "-t", "tmpfs", "-o", "size=24m", "meander-test", str(place)]
    tried = subprocess.run(asked, capture_output=True, text=True)
    if tried.returncode:
        pytest.skip(f"a disk that can be full needs the right to mount one: {tried.stderr.strip()}")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def fill(disk) -> None:
    """Leave no byte on a disk."""
    with (disk / "ballast").open("ab", buffering=0) as ballast:
        for size in (1 << 20, 1 << 12, 1):
            with suppress(OSError):
                while True:
                    ballast.write(b"\0" * size)


@pytest.mark.soak
def test_the_checkpoints_disk_is_full(flow, small_disk):
    flow = flow(210, rows=6000, keys=5000, checkpoint=small_disk / "ck")
    options = {"quick": True, "master": "local[3]"}
    goal, workers = None, 2

    def start(wishes):
        program = flow.start(wishes, **options)
        assert program.wait_for("started")["resumed"] == (goal is not None)
        if goal is not None:
            ended = wait_for_move(program, 1)
            assert (ended["status"], ended["assignment"]) == ("done", goal)
        return program

    for phase in PHASES:
        # So many steps that some are left in every phase: a migration that has flipped them all is not resumed.
        program = start([{"workers": 5 - workers, "schedule": "fluid", "hold": [phase, 1]}])
        held = program.wait_for("held")
        assert (held["phase"], held["steps"] > 5) == (phase, True)
        fill(small_disk)
        assert os.statvfs(small_disk).f_bavail == 0
        flow.go_on(held)
        while not program.ended:
            # What the query itself deletes makes no room.
            fill(small_disk)
            time.sleep(0.05)
        assert program.wait() == 3, program.text()
        (failed,) = program.told("failed")
        assert failed["version"] <= held["version"], failed
        sentence, *more = failed["message"].splitlines()
        assert re.search(r"[Nn]o space( is)? left", sentence), failed
        # Spark writes to the checkpoint too; where that is what failed, its account of the query follows.
        assert not more, failed
        (small_disk / "ballast").unlink()
        # The version that begins the migration was not committed: it never happened.
        goal = None if phase == "copying" else held["goal"]
        workers = workers if goal is None else len(set(goal[0]))
    flow.finish(start([]))
