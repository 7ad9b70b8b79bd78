"""kill -9 of Python workers, executors and drivers: nothing lost, nothing twice."""

from __future__ import annotations

import time

import pytest

from streams import executors, kill, python_workers, wait_until

pytestmark = [pytest.mark.fault, pytest.mark.spark]


def versions(program) -> int:
    return max([each["version"] for each in program.told("sink")], default=-1)


def test_python_workers_at_random_moments(case):
    case = case(batches=14, seed=101)
    program = case.start(sink_s=0.2)
    program.wait_for("started")
    killed = 0
    while killed < 8 and not program.ended:
        time.sleep(case.rng.uniform(0.2, 2.5))
        found = python_workers(program.pid)
        killed += bool(found) and kill(case.rng.choice(found))
    case.finish(program)
    assert killed >= 3


@pytest.mark.soak
def test_python_workers_inside_a_kernel(case):
    case = case(batches=5, rows=400, seed=102)
    program = case.start(operator="spin")
    victims: list[int] = []
    while len(victims) < 4 and not program.ended:
        for mark in case.signals.glob("running-*"):
            mark.unlink()
            pid = int(mark.name.rpartition("-")[2])
            time.sleep(case.rng.uniform(0, 0.2))
            if len(victims) < 4 and case.rng.random() < 0.5 and kill(pid):
                victims.append(pid)
        time.sleep(0.01)
    case.finish(program)
    assert len(victims) == 4


@pytest.mark.soak
def test_python_workers_while_the_base_takes_a_delta(case):
    case = case(batches=8, rows=800, seed=103)
    for token in range(4):
        (case.signals / f"token-{token}").touch()
    program = case.start(operator="tear")
    case.finish(program)
    assert list(case.signals.iterdir()) == []


@pytest.mark.soak
def test_executors_of_a_local_cluster(case):
    case = case(batches=10, seed=104)
    program = case.start(master="local-cluster[2,1,1024]", sink_s=0.3)
    kill_executors(case, program, program.pid, 2)
    case.finish(program)


def kill_executors(case, program, above: int, count: int) -> None:
    """Kill executors at random moments, each when a batch more has been done since the last."""
    for _ in range(count):
        before = versions(program)
        wait_until(lambda: program.ended or versions(program) > before, "the query to go on")  # noqa: B023
        time.sleep(case.rng.uniform(0, 1.5))
        assert not program.ended, f"the input was too short:\n{program.text()}"
        found = wait_until(lambda: executors(above), "an executor")
        assert kill(case.rng.choice(found))


@pytest.mark.soak
def test_executors_of_a_standalone_cluster(case, cluster):
    master, worker = cluster
    case = case(batches=8, seed=105)
    settings = {"spark__executor__cores": "1", "spark__executor__memory": "1g", "spark__driver__host": "127.0.0.1"}
    program = case.start(master=master, sink_s=0.3, spark=settings)
    kill_executors(case, program, worker, 1)
    case.finish(program)


def test_drivers_at_random_moments_and_beside_the_manifest(case):
    case = case(batches=16, seed=106)
    jvm = "org.apache.spark.deploy.SparkSubmit"
    # Right before and right after a manifest, and when the sink has shown a version; then the driver's Python or its
    # JVM, at a random moment.
    deaths = [{"die": ["before", 2]}, {"die": ["after", 4]}, {"die": ["shown", 5]}, {"kill": "python"}, {"kill": "jvm"}]
    for options in deaths:
        victim = options.pop("kill", None)
        program = case.start(sink_s=0.2, **options)
        if victim is not None:
            before = program.wait_for("started")["version"]
            wait_until(lambda: program.ended or versions(program) > before, "the query to go on")  # noqa: B023
            time.sleep(case.rng.uniform(0, 2.0))
            assert not program.ended, f"the input was too short:\n{program.text()}"
            if victim == "python":
                kill(program.pid)
            else:
                from streams import below

                found = [pid for pid, (_, command) in below(program.pid).items() if jvm in command]
                assert found
                for pid in found:
                    kill(pid)
        # What the killed driver leaves may still run when the next one starts.
        assert program.wait() != 0
        assert not program.told("done")
    case.finish(case.start())
