"""What every fault test has: a stream of known batches, a driver program to run, and the check at the end."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from flow import Flow
from streams import Feed, Program, as_ints, by_batch, files_written, recounted, state_of, wait_until

DRIVER = Path(__file__).parent / "driver.py"


class Case:
    """One stream, one checkpoint, and the programs that work on it, one after the other or two at a time."""

    def __init__(self, root: Path, batches: int, rows: int, seed: int) -> None:
        rng = random.Random(seed)
        self.root, self.rng = root, rng
        self.batches = [as_ints([rng.randrange(700) for _ in range(rows)]) for _ in range(batches)]
        Feed(root / "in", self.batches[0].schema).add(*self.batches)
        self.signals = root / "signals"
        self.signals.mkdir()
        self.programs: list[Program] = []

    def start(self, **options) -> Program:
        """Start a driver on the stream."""
        told = {
            "input": str(self.root / "in"),
            "output": str(self.root / "out"),
            "checkpoint": str(self.root / "ck"),
            "signals": str(self.signals),
            **options,
        }
        program = Program(DRIVER, told, self.root / f"log{len(self.programs)}")
        self.programs.append(program)
        return program

    def finish(self, program: Program) -> None:
        """Wait for the end of all input, and check that nothing was lost and nothing counted twice."""
        assert program.wait() == 0, f"{program.told('failed')}\n{program.text()}"
        (done,) = program.told("done")
        assert done["misrouted"] == 0
        assert done["version"] == len(self.batches) - 1
        self.check()

    def check(self) -> None:
        """What the files sink has, and what the checkpoint has, is what a recount has."""
        expected = recounted(self.batches, ["key"])
        total = {each: n for found in expected for each, n in found.items()}
        assert {(row["key"],): row["count"] for row in state_of(self.root / "ck")} == total
        assert by_batch(files_written(self.root / "out"), ["key"]) == dict(enumerate(expected))
        assert not list((self.root / "out" / ".prepared").iterdir()), "nobody will commit it"


@pytest.fixture
def case(tmp_path):
    made: list[Case] = []

    def make(batches=12, rows=2000, seed=1) -> Case:
        made.append(Case(tmp_path, batches, rows, seed))
        return made[-1]

    yield make
    for each in made:
        for program in each.programs:
            program.end()


@pytest.fixture
def cluster(tmp_path):
    """A standalone cluster of one machine: its master's URL and the process of its worker."""
    import pyspark

    home = Path(pyspark.__file__).parent
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {
        **os.environ,
        "SPARK_HOME": str(home),
        "SPARK_WORKER_DIR": str(tmp_path / "work"),
        "SPARK_LOCAL_DIRS": str(tmp_path / "local"),
        "SPARK_NO_DAEMONIZE": "1",
        "PYSPARK_PYTHON": sys.executable,
    }
    roles = {
        "master.Master": ["--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"],
        "worker.Worker": [
            "--host",
            "127.0.0.1",
            "-c",
            "2",
            "-m",
            "3g",
            "--webui-port",
            "0",
            f"spark://127.0.0.1:{port}",
        ],
    }
    started = []
    with (tmp_path / "cluster.log").open("ab") as log:
        for role, options in roles.items():
            command = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{role}", *options]
            started.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True))
    wait_until(lambda: "Successfully registered with master" in (tmp_path / "cluster.log").read_text(), "the cluster")
    yield f"spark://127.0.0.1:{port}", started[1].pid
    for process in started:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.fixture
def flow(tmp_path):
    made: list[Flow] = []

    def make(seed, **options) -> Flow:
        made.append(Flow(tmp_path, seed, **options))
        return made[-1]

    yield make
    for each in made:
        each.end()
