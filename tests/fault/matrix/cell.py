"""One cell from its first row to its result: a query on a driver of its own, held, broken, and recounted."""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fault.matrix import namespaces, oracle
from fault.matrix.faults import Fault, Setup
from fault.matrix.phases import MIGRATION
from fault.matrix.workloads import WORKLOADS, Input
from streams import PATIENCE_S, Feed, Program, executors, kill, wait_until

PROGRAM = Path(__file__).parent / "program.py"
AHEAD = 2
"""So many batches wait to be read: there is always another one."""
BATCHES_BEFORE_IDLE, BATCHES_AFTER = 4, 3


@dataclass(frozen=True)
class Cell:
    """A fault in a phase, under an operator and a sink."""

    fault: str
    phase: str
    operator: str
    sink: str

    def __str__(self) -> str:
        return f"{self.fault} / {self.phase} / {self.operator} / {self.sink}"


class Engine:
    """A driver program with its Spark, which serves one cell after the other as long as it lives."""

    def __init__(self, folder: Path, setup: Setup) -> None:
        self.folder, self.setup, self.tokens, self.local = folder, setup, folder / "tokens", folder / "local"
        for each in (folder / "orders", self.tokens, self.local):
            each.mkdir(parents=True)
        variables, spark = {}, dict(setup.spark)
        if setup.namespace is not None:
            variables["JAVA_HOME"] = str(namespaces.java_home(folder, setup.namespace))
        if setup.is_networked:
            self.bridge = namespaces.Bridge.of(folder)
            self.bridge.add()
            spark["spark__driver__host"] = self.bridge.driver
        if setup.disk is not None:
            asked = ["mount", "-t", "tmpfs", "-o", f"size={setup.disk}", "meander-test", str(self.local)]
            subprocess.run(asked, check=True)
        folders = {"orders": str(folder / "orders"), "tokens": str(self.tokens)}
        options = {**folders, "master": setup.master, "spark": spark}
        self.program = Program(PROGRAM, options, folder / "log", variables)
        self._orders = 0
        self._mark = 0

    @property
    def is_free(self) -> bool:
        """Whether it can serve another cell."""
        return not self.program.ended and [each["event"] for each in self.program.events[-1:]] in ([], ["ready"])

    def order(self, **fields: Any) -> None:
        """Have a query run."""
        self._mark = len(self.program.events)
        hidden = self.folder / "orders" / "next"
        hidden.write_text(json.dumps(fields))
        hidden.rename(self.folder / "orders" / f"{self._orders}.json")
        self._orders += 1

    def wait(self, *wanted: str) -> dict[str, Any]:
        """The first event of these names since the last order; fails with what the query has failed of."""

        def look() -> Any:
            for each in self.program.events[self._mark :]:
                if each["event"] in wanted:
                    return each
                assert each["event"] != "failed", f"the query has failed: {each['kind']}: {each['message']}"
            assert not self.program.ended, f"the driver ended before {wanted}:\n{self.program.text()}"
            return None

        event: dict[str, Any] = wait_until(look, " or ".join(wanted), PATIENCE_S / 2)
        return event

    @property
    def failure(self) -> dict[str, Any] | None:
        """What the query of the last order has failed of."""
        return next((each for each in self.program.events[self._mark :] if each["event"] == "failed"), None)

    def executors(self) -> list[int]:
        """The processes of its executors."""
        return executors(self.program.pid)

    def end(self) -> None:
        """Kill what is left of it."""
        for pid in self.program.tree():
            kill(pid)
        self.program.end()
        if self.setup.disk is not None:
            subprocess.run(["umount", "-l", str(self.local)], check=False)
        if self.setup.is_networked:
            self.bridge.remove(self.folder)


class Feeder:
    """Feeds a query, always a little ahead of it."""

    def __init__(self, scene: Scene) -> None:
        self.input = Input(scene.workload, scene.seed)
        self.limit = BATCHES_BEFORE_IDLE if scene.cell.phase == "idle tick" else None
        self._feeds = [Feed(scene.root / f"in{at}", each) for at, each in enumerate(scene.workload.inputs)]
        self._offsets = scene.checkpoint / "spark" / "offsets"
        self._dry = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def begun(self) -> int:
        """The last batch that Spark has begun, -1 before the first."""
        return max((int(each.name) for each in self._offsets.glob("[0-9]*")), default=-1)

    def _run(self) -> None:
        while not self._dry.wait(0.03):
            wanted = self.begun + 1 + AHEAD
            for _ in range(len(self.input.batches), wanted if self.limit is None else min(wanted, self.limit)):
                for feed, rows in zip(self._feeds, self.input.next(), strict=True):
                    feed.add(rows)

    def end(self) -> None:
        """Feed no more."""
        self._dry.set()
        self._thread.join()


class Scene:
    """A cell while it runs."""

    def __init__(self, cell: Cell, fault: Fault, root: Path, engine: Engine, seed: int) -> None:
        self.cell, self.fault, self.root, self.engine, self.seed = cell, fault, root, engine, seed
        self.workload = WORKLOADS[cell.operator]
        self.checkpoint = root / "ck" / "q"
        self.engines = [engine]
        """The drivers of this cell, the first one first."""
        self.lost_folders: list[str] = []
        """The local folders of processes that were killed: Spark removes them when the application ends."""
        self._runs = 0

    def play(self) -> dict[str, Any]:
        """Run the cell, and return what the oracle has compared."""
        self.root.mkdir(parents=True)
        self.fault.prepare(self)
        self.feeder = Feeder(self)
        try:
            held = self._reach()
            self.fault.strike(self, held)
            self.feeder.limit = None
            self.wait_for_batches(self.feeder.begun + BATCHES_AFTER)
            self.feeder.end()
            (self.root / "finish").touch()
            done = self.engine.wait("done")
            assert done["misrouted"] == 0
            left = [each for each in done["folders"] if not each.startswith(tuple(self.lost_folders))]
            assert not left, f"local folders are left over: {left}"
            compared = oracle.check(self.root, self.workload, self.feeder.input.batches, self.cell.sink)
            return {**compared, "migration": done["migration"]}
        finally:
            self.feeder.end()
            self.fault.clean_up(self)

    def _reach(self) -> dict[str, Any]:
        """Start the query and wait until it is held in the phase of the cell."""
        phase = self.cell.phase
        if phase == "takeover":
            self.start("copying", moves="rescale")
            self.engine.wait("held")
            self.fault.leave_first_driver(self)
            self.replace_driver(phase)
        elif phase == "claim":
            self.start(None)
            self.engine.wait("started")
            self.wait_for_batches(2)
            (self.root / f"stop-{self._runs - 1}").touch()
            self.engine.wait("stopped")
            self.start(phase)
        else:
            moves = "cancel" if phase == "cancel" else "rescale" if phase in (*MIGRATION, "idle tick") else None
            self.start(phase, moves)
        return self.engine.wait("held")

    def start(self, phase: str | None, moves: str | None = None) -> None:
        """Start the query on the driver that is there."""
        self.engine.order(
            root=str(self.root), run=self._runs, operator=self.cell.operator, sink=self.cell.sink, phase=phase,
            moves=moves, go=str(self._go), is_before_job=not self.fault.is_of_driver,
        )  # fmt: skip
        self._runs += 1

    @property
    def _go(self) -> Path:
        return self.root / f"go-{self._runs}"

    def go_on(self) -> None:
        """Let the driver go on that is held."""
        (self.root / f"go-{self._runs - 1}").touch()

    def start_again(self) -> None:
        """Start the query once more, on the same driver if that still lives, and see that it does."""
        if self.engine.program.ended:
            self.replace_driver(None)
        else:
            self.start(None)
        self.engine.wait("started")

    def replace_driver(self, phase: str | None) -> None:
        """Start another driver, and the query on it."""
        self.engine = Engine(
            self.engine.folder.parent / f"{self.root.name}-driver-{len(self.engines)}", self.engine.setup
        )
        self.engines.append(self.engine)
        self.engine.program.wait_for("ready")
        self.start(phase)

    def wait_for_failure(self) -> dict[str, Any]:
        """The exception that the query must end with."""

        failure: dict[str, Any] = wait_until(lambda: self.engine.failure, "the query to fail", PATIENCE_S / 4)
        return failure

    def wait_for_batches(self, number: int) -> None:
        """Wait until Spark has begun this batch."""

        def look() -> bool:
            assert self.engine.failure is None, self.engine.failure
            assert not self.engine.program.ended, self.engine.program.text()
            return self.feeder.begun >= number

        wait_until(look, f"batch {number}", PATIENCE_S / 2)


def play(cell: Cell, fault: Fault, folder: Path, engine: Engine, seed: int) -> tuple[dict[str, Any], Engine | None]:
    """Run a cell, and return its result and the driver, if that can serve another one."""
    began = time.monotonic()
    root = folder / f"cell-{seed}"
    scene = Scene(cell, fault, root, engine, seed)
    try:
        result = {"result": "held", **scene.play()}
    except Exception as problem:
        result = {"result": "broken", "why": f"{type(problem).__name__}: {problem}"[:2000]}
    result["seconds"] = round(time.monotonic() - began)
    for each in scene.engines[:-1]:
        each.end()
    is_fit = result["result"] == "held"
    if is_fit:
        wait_until(lambda: scene.engine.is_free or scene.engine.program.ended, "the driver to be free")
        shutil.rmtree(root)
    if is_fit and scene.engine.is_free:
        return result, scene.engine
    scene.engine.end()
    return result, None
