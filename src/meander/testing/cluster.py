"""Executors that are folders of this process, as the driver's port `Cluster`."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Sequence
from pathlib import Path

from meander.engine.driver.ports import Place
from meander.engine.worker.process import Host


class InProcessCluster:
    """Executors in one process. They come at once when they are asked for, up to a limit, and can be lost."""

    def __init__(self, folder: Path, executors: int, cores: int = 1, most: int = 1 << 15) -> None:
        self._folder, self._cores, self._most = folder, cores, most
        self._count = 0
        self._places: dict[str, Place] = {}
        self._add(executors)

    @property
    def is_local(self) -> bool:
        """Never: every worker has an executor of its own, as on a cluster."""
        return False

    def executors(self) -> list[Place]:
        """The executors that are there, in the order of their ids."""
        return list(self._places.values())

    def ids(self) -> set[str]:
        """The ids of the executors that are there."""
        return set(self._places)

    def forget(self, executors: Collection[str]) -> None:
        """There is nothing to forget: an id is never used twice."""

    def request(self, total: int) -> None:
        """Have so many executors in all."""
        self._add(min(total, self._most) - len(self._places))

    def release(self, executors: Sequence[str]) -> None:
        """Let executors go for good."""
        for executor in executors:
            self.lose(executor)

    def cores_per_executor(self) -> int | None:
        """The cores that a new executor has."""
        return self._cores

    def clear(self, folders: Collection[str], executors: Collection[str] | None = None) -> None:
        """Remove these folders on these executors, or on all."""
        for executor in self._places if executors is None else executors:
            for name in folders:
                shutil.rmtree(self._folder / executor / name, ignore_errors=True)

    def lose(self, executor: str, replace: bool = False) -> None:
        """An executor is gone, with everything it had; another one may come in its place."""
        if self._places.pop(executor, None) is not None:
            shutil.rmtree(self._folder / executor, ignore_errors=True)
            if replace:
                self._add(1)

    def host(self, place: Place) -> Host:
        """What a task on an executor knows of its process."""
        return Host(place.process, self._folder / place.executor)

    def _add(self, count: int) -> None:
        for _ in range(count):
            self._count += 1
            executor = str(self._count)
            self._places[executor] = Place(executor, f"executor-{executor}", f"inprocess:{executor}:0", self._cores)
