"""Faults of executors and of their Python processes."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from fault.matrix import namespaces
from fault.matrix.faults import PLAIN, STOPPED_S, Fault, Held, Setup
from streams import below, kill, python_workers, wait_until

if TYPE_CHECKING:
    from fault.matrix.cell import Scene

TIMEOUT_S = 15
IMPATIENT = Setup(
    spark=(
        ("spark__network__timeout", f"{TIMEOUT_S}s"),
        ("spark__network__timeoutInterval", f"{TIMEOUT_S // 5}s"),
        ("spark__executor__heartbeatInterval", f"{TIMEOUT_S // 5}s"),
    )
)
MOUNTED = Setup(namespace=namespaces.MOUNT)
NETWORKED = Setup(namespace=namespaces.NETWORK)


def victim(scene: Scene, held: Held, whose: str) -> int:
    """The executor of a worker that bins come from or go to; of one that is idle, where none of those has any."""
    seats = {int(worker): pid for worker, pid in held.get("seats", {}).items()}
    alive = scene.engine.executors()
    assert alive, "no executor is there"
    wanted = held.get(whose) or sorted(seats)[:: -1 if whose == "targets" else 1]
    seated = [seats[worker] for worker in wanted if seats.get(worker) in alive]
    free = [pid for pid in alive if pid not in seats.values()]
    if whose == "targets" and held.get("targets") and not seated:
        return free[0]
    return (seated or free)[0]


class OnExecutor(Fault):
    """Something that is done to the executor of a source or of a target."""

    def __init__(
        self, name: str, whose: str, deed: Callable[[Scene, int], None], setup: Setup = PLAIN, needs: str = ""
    ) -> None:
        super().__init__(name)
        self.whose, self.deed, self.setup, self._needs = whose, deed, setup, needs.split()

    def why_not(self, phase: str) -> str | None:
        return namespaces.why_not(*self._needs) if self._needs else None

    def strike(self, scene: Scene, held: Held) -> None:
        self.deed(scene, victim(scene, held, self.whose))


def expect_loss(scene: Scene, pid: int) -> None:
    """The local folder of this executor may stay behind: Spark removes it when the application ends."""
    environment = dict(each.partition("=")[::2] for each in Path(f"/proc/{pid}/environ").read_text().split("\0"))
    scene.lost_folders.append(environment["SPARK_EXECUTOR_DIRS"])


def kill_executor(scene: Scene, pid: int) -> None:
    """kill -9."""
    expect_loss(scene, pid)
    assert kill(pid)
    scene.go_on()


def kill_python_workers(scene: Scene, pid: int) -> None:
    """kill -9 of the Python processes of an executor; where none is there yet, as soon as one is."""
    found = python_workers(pid)
    if not found:
        scene.go_on()
        found = wait_until(lambda: python_workers(pid), "a Python worker", 60)
    for each in found:
        kill(each)
    scene.go_on()


def stop_executor(scene: Scene, pid: int) -> None:
    """SIGSTOP of an executor and its Python processes, for a while."""
    asleep = [pid, *below(pid)]
    for each in asleep:
        kill(each, signal.SIGSTOP)
    scene.go_on()
    time.sleep(STOPPED_S)
    for each in asleep:
        kill(each, signal.SIGCONT)


def outlast(scene: Scene, pid: int) -> None:
    """SIGSTOP for longer than Spark waits for an executor; it is continued when another one has its place."""
    expect_loss(scene, pid)
    asleep = [pid, *below(pid)]
    for each in asleep:
        kill(each, signal.SIGSTOP)
    scene.go_on()
    time.sleep(2 * TIMEOUT_S)
    for each in asleep:
        kill(each, signal.SIGCONT)
    if scene.engine.failure is not None:
        scene.start_again()


def cut_off(scene: Scene, pid: int) -> None:
    """No packet reaches the executor, or comes from it, for a while."""
    expect_loss(scene, pid)
    namespaces.set_link(pid, "down")
    scene.go_on()
    time.sleep(STOPPED_S)
    with suppress(subprocess.CalledProcessError):  # it may have given up, and its device with it
        namespaces.set_link(pid, "up")
    if scene.engine.failure is not None:
        scene.start_again()


def hide_checkpoint(scene: Scene, pid: int) -> None:
    """The executor neither finds nor writes anything in the checkpoint, for a while."""
    namespaces.hide(pid, scene.checkpoint)
    scene.go_on()
    with suppress(AssertionError):
        wait_until(lambda: scene.engine.failure, "the query to fail", STOPPED_S)
    with suppress(subprocess.CalledProcessError):
        namespaces.show(pid, scene.checkpoint)
    if scene.engine.failure is not None:
        scene.start_again()


class TornKernel(Fault):
    """A Python worker is killed when a kernel has applied half of a delta to its state; see `torn`."""

    def strike(self, scene: Scene, held: Held) -> None:
        tokens = [scene.engine.tokens / f"advance-s0-w{worker}" for worker in (0, 1)]
        for token in tokens:
            token.touch()
        scene.go_on()
        wait_until(lambda: not all(token.exists() for token in tokens), "a kernel to be torn", 120)
        for token in tokens:
            token.unlink(missing_ok=True)
