"""Faults of the driver, and of the sink that it calls."""

from __future__ import annotations

import resource
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from fault.matrix.faults import STOPPED_S, Fault, Held
from streams import below, kill, wait_until

if TYPE_CHECKING:
    from fault.matrix.cell import Scene

JVM = "org.apache.spark.deploy.SparkSubmit"


class KillDriver(Fault):
    """kill -9 of the driver's Python, or of its JVM; another one goes on."""

    is_of_driver = True

    def __init__(self, name: str, is_jvm: bool = False) -> None:
        super().__init__(name)
        self.is_jvm = is_jvm

    def strike(self, scene: Scene, held: Held) -> None:
        program = scene.engine.program
        if self.is_jvm:
            jvms = [pid for pid, (_, command) in below(program.pid).items() if JVM in command]
            assert jvms
            for pid in jvms:
                assert kill(pid)
            scene.go_on()
            time.sleep(1)  # its Python must find out by itself that nothing can be committed
        kill(program.pid)
        program.wait()
        scene.replace_driver(None)
        scene.engine.wait("started")


class StopDriver(Fault):
    """SIGSTOP of the driver, for a while; or until another one has taken over, and then it must be fenced."""

    is_of_driver = True

    def __init__(self, name: str, is_replaced: bool) -> None:
        super().__init__(name)
        self.is_replaced = is_replaced

    def strike(self, scene: Scene, held: Held) -> None:
        first = scene.engine
        asleep = [first.program.pid, *below(first.program.pid)]
        for pid in asleep:
            kill(pid, signal.SIGSTOP)
        try:
            if self.is_replaced:
                scene.go_on()
                scene.replace_driver(None)
                scene.engine.wait("started")
                scene.feeder.limit = None  # an idle query gets rows again, so that the new driver has batches
                scene.wait_for_batches(scene.feeder.begun + 2)
            else:
                time.sleep(STOPPED_S)
                scene.go_on()
        finally:
            for pid in asleep:
                kill(pid, signal.SIGCONT)
        if self.is_replaced:
            wait_until(lambda: first.failure or first.program.ended, "the first driver to be fenced", 90)
            assert first.failure is not None, f"the first driver died:\n{first.program.text()}"
            assert first.failure["kind"] == "Fenced", first.failure


class SinkFails(Fault):
    """The sink raises; the query must end with that, be it in a batch or a tick, and go on when it is started again."""

    def strike(self, scene: Scene, held: Held) -> None:
        switch = scene.root / "fail-sink"
        switch.touch()
        scene.go_on()
        scene.feeder.limit = None  # a tick may have nothing for its sink; the next batch has
        failed = scene.wait_for_failure()
        assert "the sink is out of order" in failed["message"], failed
        switch.unlink()
        scene.start_again()


class OpenFiles(Fault):
    """The driver may open no more files for a while: the query ends with that or not, and loses nothing."""

    is_of_driver = True
    FOR_S = 5

    def strike(self, scene: Scene, held: Held) -> None:
        pid = scene.engine.program.pid
        before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        used = max(int(each.name) for each in Path(f"/proc/{pid}/fd").iterdir()) + 1
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (used, before[1]))
        scene.go_on()
        scene.feeder.limit = None
        with suppress(AssertionError):
            wait_until(lambda: scene.engine.failure, "the query to fail", self.FOR_S)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
        time.sleep(1)
        if scene.engine.failure is not None:
            scene.start_again()
