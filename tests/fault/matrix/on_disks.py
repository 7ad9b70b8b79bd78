"""Faults of files and disks."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from fault.matrix.faults import Fault, Held, Setup
from streams import kill, wait_until

if TYPE_CHECKING:
    from fault.matrix.cell import Scene


class DamagedFile(Fault):
    """A file of the checkpoint is torn or flipped while no driver runs: the query names it, and goes on with a copy."""

    is_of_driver = True

    def __init__(self, name: str, damage: Callable[[bytes], bytes]) -> None:
        super().__init__(name)
        self.damage = damage

    def strike(self, scene: Scene, held: Held) -> None:
        program = scene.engine.program
        kill(program.pid)
        program.wait()
        path = self._needed(scene)
        whole = path.read_bytes()
        path.write_bytes(self.damage(whole))
        scene.replace_driver(None)
        failed = scene.wait_for_failure()
        assert path.name in failed["message"], f"{path.name} is damaged, and the query fails of {failed}"
        path.write_bytes(whole)
        scene.start_again()

    def _needed(self, scene: Scene) -> Path:
        """The newest manifest, or a state file that the last version needs."""
        from meander.store.location import Location
        from meander.store.manifest import Log

        log = Log.open(Location.of(str(scene.checkpoint)))
        files = [ref.path for ref in log.index.files() if ref.path]
        manifests = sorted((scene.checkpoint / "manifests").glob("*.json"))
        return scene.checkpoint / sorted(files)[-1] if files else manifests[-1]


def torn(data: bytes) -> bytes:
    """The first half."""
    return data[: len(data) // 2]


def flipped(data: bytes) -> bytes:
    """One bit in the middle is another."""
    at = len(data) // 2
    return data[:at] + bytes([data[at] ^ 16]) + data[at + 1 :]


class FullDisk(Fault):
    """The checkpoint's disk is full: the query must end with that, and go on when there is room."""

    is_of_driver = True
    SIZE = "24m"

    def why_not(self, phase: str) -> str | None:
        if phase == "sweep":
            return "a full disk does not keep files from being deleted"
        return None if os.geteuid() == 0 else "to mount a small disk takes root"

    def prepare(self, scene: Scene) -> None:
        place = scene.root / "ck"
        place.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={self.SIZE}", "meander-test", str(place)], check=True)

    def strike(self, scene: Scene, held: Held) -> None:
        disk = scene.root / "ck"
        fill(disk)
        scene.go_on()
        scene.feeder.limit = len(scene.feeder.input.batches) + 1
        deadline = time.monotonic() + 100
        while scene.engine.failure is None:
            fill(disk)  # what the query deletes makes no room
            assert time.monotonic() < deadline, "the query runs on a full disk"
            time.sleep(0.05)
        failed = scene.wait_for_failure()
        assert re.search(r"[Nn]o space( is)? left", failed["message"]), failed
        (disk / "ballast").unlink()
        scene.start_again()

    def clean_up(self, scene: Scene) -> None:
        subprocess.run(["umount", "-l", str(scene.root / "ck")], check=False)
        kept = scene.root / "ck"
        shutil.rmtree(kept, ignore_errors=True)


def fill(disk: Path) -> None:
    """Leave no byte on a disk."""
    with (disk / "ballast").open("ab", buffering=0) as ballast:
        for size in (1 << 20, 1 << 12, 1):
            with suppress(OSError):
                while True:
                    ballast.write(b"\0" * size)


class FullLocalDisk(Fault):
    """The executors' disk is full for a while: the query ends with that or not, and loses nothing."""

    setup = Setup(disk="96m")
    FOR_S = 20

    def why_not(self, phase: str) -> str | None:
        return None if os.geteuid() == 0 else "to mount a small disk takes root"

    def strike(self, scene: Scene, held: Held) -> None:
        disk = scene.engine.local
        fill(disk)
        scene.go_on()
        with suppress(AssertionError):
            wait_until(lambda: scene.engine.failure, "the query to fail", self.FOR_S)
        (disk / "ballast").unlink()
        if scene.engine.failure is not None:
            scene.start_again()
