"""The runtimes of the contract: the whole engine in this process, on local Spark, and on separate executors."""

from __future__ import annotations

import os
import re
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest

import meander as me
from contract.cases import BINS, BY_BATCHES, BY_ITSELF, CONTROL, Case, Gate, Runtime
from contract.inprocess import InProcess
from contract.kinds import Rows
from streams import BRIEF, Feed, below, kill, wait_until

__all__ = [
    "ALL", "BINS", "BY_BATCHES", "BY_ITSELF", "CONTROL", "EVERYWHERE", "HAS_EXECUTORS", "LOSES_WORKERS", "ON_SPARK",
    "RUNTIMES", "USUAL", "close",
]  # fmt: skip


class SharedSession:
    """The one Spark of this process: it is kept for the next test as long as that wants the same one."""

    master: ClassVar[str | None] = None
    session: ClassVar[Any] = None

    @classmethod
    def of(cls, master: str, **settings: Any) -> Any:
        """The session on this master."""
        if cls.master != master:
            cls.close()
            cls.session = me.session(master, **BRIEF, **settings)
            cls.session.sparkContext.setLogLevel("OFF")
            cls.master = master
        return cls.session

    @classmethod
    def close(cls) -> None:
        """Stop it, so that another one can start."""
        if cls.session is not None:
            cls.session.stop()
        cls.session, cls.master = None, None


class GatedMemory(me.sinks.Memory):
    """A sink in memory behind a gate."""

    def __init__(self, gate: Gate) -> None:
        super().__init__("output")
        self.gate = gate

    def prepare(self, *version: Any) -> Any:
        self.gate.pass_through()
        return super().prepare(*version)


class SparkCase(Case):
    """A query over files that Spark reads, one file a batch."""

    def __init__(self, runtime: Spark, folder: Path, kind: str, control: pa.Schema | None, options: dict[str, Any]):
        super().__init__(folder, kind, options)
        self.runtime = runtime
        self._feed = Feed(folder / "in", self.kind.schema)
        self._control = None if control is None else Feed(folder / "control", control)
        self._sink = GatedMemory(self.gate)

    def launch(self) -> Any:
        session = self.runtime.session()
        options = dict(self.options)
        if self._control is not None:
            options["control"] = self._control.read(session)
        stream = self.kind.describe(me.stream(self._feed.read(session)))
        return stream.start(self.checkpoint, self._sink, **options)

    def feed(self, batch: pa.Table) -> None:
        self._feed.add(batch)

    def output(self) -> Rows:
        return self._sink.to_arrow().to_pylist()

    def steer(self, *moves: tuple[int, int, int]) -> None:
        assert self._control is not None
        columns = [list(column) for column in zip(*moves, strict=True)]
        self._control.add(pa.table(columns, schema=CONTROL))

    def lose_worker(self, worker: int, for_good: bool = False) -> None:
        self.runtime.lose_executor(worker, for_good)


class Spark(Runtime):
    """Meander's engine on Spark."""

    @abstractmethod
    def session(self) -> Any:
        """The Spark session, with everything a query needs."""

    def case(self, folder: Path, kind: str, control: pa.Schema | None, options: dict[str, Any]) -> Case:
        return SparkCase(self, folder, kind, control, options)

    def lose_executor(self, worker: int, for_good: bool) -> None:
        """Kill the executor that a worker sits on."""
        raise NotImplementedError


class Local(Spark):
    """Everything in threads of this process and in Python processes beside it."""

    name = "local"

    def session(self) -> Any:
        return SharedSession.of("local[2]")


class Cluster(Spark):
    """Executors in processes of their own, one worker on each."""

    name = "cluster"
    loses_workers = has_executors = True
    EXECUTORS = 3

    def session(self) -> Any:
        """The session, with all executors there: a test before may have lost or dismissed some."""
        session = SharedSession.of(f"local-cluster[{self.EXECUTORS},1,1024]", spark__executor__memory="1g")
        if self._registered(session) < self.EXECUTORS:
            self._ask_for(session, self.EXECUTORS)
        wait_until(lambda: self._registered(session) == self.EXECUTORS, f"{self.EXECUTORS} executors")
        return session

    def lose_executor(self, worker: int, for_good: bool) -> None:
        """Kill the executor of a worker.

        Who sits where is not public: workers are taken to sit on the executors in the order of their ids, as those of
        a query do that has started when all executors were there.
        """
        processes = executor_processes()
        if for_good:
            self._ask_for(self.session(), len(processes) - 1)
        executor = sorted(processes)[worker]
        assert kill(processes[executor])
        wait_until(lambda: executor not in executor_processes(), "the executor's process to end")

    def _registered(self, session: Any) -> int:
        """How many executors Spark knows of."""
        ids = str(session.sparkContext._jsc.sc().getExecutorIds().mkString(","))
        return len(ids.split(",")) if ids else 0

    def _ask_for(self, session: Any, total: int) -> None:
        context = session.sparkContext
        no_hosts = context._jvm.PythonUtils.toScalaMap({})
        context._jsc.sc().requestTotalExecutors(total, 0, no_hosts)


def executor_processes() -> dict[str, int]:
    """The process of each executor of this process's Spark, by the executor's id."""
    commands = [(pid, command) for pid, (_, command) in below(os.getpid()).items()]
    executors = [(pid, command) for pid, command in commands if "CoarseGrainedExecutorBackend" in command]
    return {re.search(r"--executor-id (\S+)", command)[1]: pid for pid, command in executors}


RUNTIMES: dict[str, type[Runtime]] = {each.name: each for each in (InProcess, Local, Cluster)}
"""Every runtime that the contract is checked on, in the order in which they are."""

ALL: Sequence[str] = list(RUNTIMES)
EVERYWHERE: Sequence[str] = ALL
"""For tests that separate executors may fail where others pass: these run on them by default too."""
LOSES_WORKERS: Sequence[str] = [name for name, each in RUNTIMES.items() if each.loses_workers]
HAS_EXECUTORS: Sequence[str] = [name for name, each in RUNTIMES.items() if each.has_executors]
USUAL: Sequence[Any] = [pytest.param(name, marks=pytest.mark.slow) if name == Cluster.name else name for name in ALL]
"""For all other tests: on separate executors they run with --all."""
ON_SPARK: Sequence[Any] = [each for each in USUAL if each != InProcess.name]


def close() -> None:
    """Leave nothing running: the last test of the contract is over."""
    SharedSession.close()
