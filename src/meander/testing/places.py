"""Where a simulated checkpoint is: in memory, or in a folder; and where a driver may end while it commits."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from meander.checkpoint.location import Location
from meander.errors import Damaged, Exists
from meander.testing.faults import Chance

MANIFESTS = "manifests/"


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
        return sorted(path[len(start) :] for path in self.files if path.startswith(start))

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
