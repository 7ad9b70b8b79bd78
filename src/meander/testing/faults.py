"""What can go wrong in a simulation, how likely it is, and checkpoints and a sink in which a driver may end.

One source of chance decides about everything.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import Any

import pyarrow as pa

from meander.engine.driver.ports import JobLost, SinkToken, SinkWrite
from meander.errors import Damaged, Exists, MeanderError
from meander.store.location import Location
from meander.testing.inprocess import MemorySink

MANIFESTS = "manifests/"


class Crashed(MeanderError):
    """The driver is gone."""


@dataclass(frozen=True)
class FaultRates:
    """How likely things are at each moment at which they can happen.

    Args:
        task_lost: a Python process ends before or after its task, and the job with it.
        torn: it ends in the middle of a change of its state.
        zombie: tasks of a lost job run later, when the driver has long gone on.
        doubled: a task reports twice.
        crash: the driver ends: before or after the sink, before or after an entry of the log.
        late: the driver is stopped in its sink, another one takes over, and long after that the sink gets the rows.
        executor_lost: an executor is gone before a batch, and another one comes.
        executor_gone: it does not come back.
        usurp: another driver takes over, and the old one does not know.
        restart: the query is stopped and started again.
    """

    task_lost: float = 0.01
    torn: float = 0.01
    zombie: float = 0.5
    doubled: float = 0.01
    crash: float = 0.005
    late: float = 0.005
    executor_lost: float = 0.02
    executor_gone: float = 0.005
    usurp: float = 0.01
    restart: float = 0.01

    @classmethod
    def none(cls) -> FaultRates:
        """Nothing goes wrong."""
        return cls(**{each.name: 0.0 for each in fields(cls)})


class Chance:
    """Decides by a seed whether a fault happens, and counts those that did."""

    def __init__(self, seed: int, rates: FaultRates) -> None:
        self.rng = random.Random(seed)
        self.rates = rates
        self.counts: Counter[str] = Counter()

    def happens(self, fault: str) -> bool:
        """Whether this fault happens now."""
        rate = getattr(self.rates, fault)
        if rate and self.rng.random() < rate:
            self.counts[fault] += 1
            return True
        return False

    def lose_task(self) -> None:
        """Raise `JobLost` by chance."""
        if self.happens("task_lost"):
            raise JobLost("a Python process is gone")

    def crash(self) -> None:
        """Raise `Crashed` by chance."""
        if self.happens("crash"):
            raise Crashed("the driver is gone")

    @contextmanager
    def paused(self) -> Iterator[None]:
        """For a while nothing goes wrong."""
        rates = self.rates
        self.stop()
        yield
        self.rates = rates

    def stop(self) -> None:
        """From here on nothing goes wrong."""
        self.rates = FaultRates.none()


class RiskySink(MemorySink):
    """A sink in which a driver may end, or sleep until another one has gone on.

    What is committed is what a sink of two steps shows. One of one step shows any of its calls: the first one if it
    ignores numbers that it has seen, the last one if it replaces what it has.
    """

    def __init__(self, chance: Chance) -> None:
        super().__init__()
        self.chance = chance
        self.calls: defaultdict[int, list[Any]] = defaultdict(list)
        """What each call has brought, by number."""
        self._sleeping: list[tuple[Any, SinkWrite]] = []

    def prepare(self, output: Any, write: SinkWrite) -> SinkToken:
        """Take one version's output."""
        self.chance.crash()
        if self.chance.happens("late"):
            self._sleeping.append((output, write))
            raise Crashed("the driver sleeps in its sink")
        token = self._take(output, write)
        self.chance.crash()
        return token

    def wake(self) -> None:
        """Let the drivers that sleep go on: the sink gets their rows, and they find out that they were replaced."""
        sleeping, self._sleeping = self._sleeping, []
        for output, write in sleeping:
            self.abort(self._take(output, write))

    def _take(self, output: Any, write: SinkWrite) -> SinkToken:
        self.calls[write.version].append(output)
        return super().prepare(output, write)


@dataclass(frozen=True)
class MemoryLocation(Location):
    """A checkpoint in memory. A file is its bytes, or any value that a model of a worker keeps in its place."""

    chance: Chance | None = None
    files: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def new(cls, chance: Chance | None = None) -> MemoryLocation:
        """An empty one."""
        return cls("memory", "memory://checkpoint", None, chance=chance)

    @property
    def is_local(self) -> bool:
        """It is no folder."""
        return False

    def read(self, path: str) -> pa.Buffer:
        """The contents of a file."""
        return pa.py_buffer(self.value(path))

    def value(self, path: str) -> Any:
        """What is kept under a path."""
        if path not in self.files:
            raise Damaged(f"{path} of the checkpoint is missing")
        return self.files[path]

    def write(self, path: str, data: Any, *, fsync: bool | None = None) -> None:
        """Write a file; one that is there is replaced."""
        self.files[path] = bytes(data)

    def create(self, path: str, data: Any, *, fsync: bool | None = None) -> None:
        """Write a file that is not there yet."""
        _may_crash(self.chance, path)
        if path in self.files:
            raise Exists(f"{path} is there already")
        self.files[path] = bytes(data)
        _may_crash(self.chance, path)

    def list(self, folder: str) -> list[str]:
        """The names of the files in a folder, sorted."""
        start = f"{folder}/"
        return sorted([path[len(start) :] for path in self.files if path.startswith(start)])

    def folders(self, folder: str) -> Sequence[str]:
        """The names of the folders in a folder, sorted."""
        start = f"{folder}/"
        inside = [path[len(start) :] for path in self.files if path.startswith(start)]
        return sorted({path.partition("/")[0] for path in inside if "/" in path})

    def exists(self, path: str) -> bool:
        """Whether a file is there."""
        return path in self.files

    def delete(self, paths: str | Iterable[str]) -> None:
        """Delete files."""
        for path in [paths] if isinstance(paths, str) else paths:
            self.files.pop(path, None)


@dataclass(frozen=True)
class RiskyFolder(Location):
    """A checkpoint in a folder, in which a driver may end before or after it commits."""

    chance: Chance | None = None

    @classmethod
    def at(cls, folder: str, chance: Chance) -> RiskyFolder:
        """The one at a path."""
        place = Location.of(folder)
        return cls(place.root, place.uri, place.filesystem, chance=chance)

    def create(self, path: str, data: Any, *, fsync: bool | None = None) -> None:
        """Write a file that is not there yet."""
        _may_crash(self.chance, path)
        super().create(path, data, fsync=fsync)
        _may_crash(self.chance, path)


def _may_crash(chance: Chance | None, path: str) -> None:
    if chance is not None and path.startswith(MANIFESTS):
        chance.crash()
