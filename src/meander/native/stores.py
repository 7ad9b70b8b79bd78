"""State partitions, the operators that have them, the tasks that serve them, and their files. Spark may not enter."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from meander.migration.steps import OperatorMove
from meander.types import WorkerId

_STATE_FILE = re.compile(r"(\d+)(?:_[0-9A-Za-z-]+)?\.(snapshot|zip|delta|changelog)")
_ENTRY = re.compile(r"\{path=([^;]*);.*?isDirectory=(\w+); length=(\d+)")


def worker_of(executor: str) -> WorkerId:
    """The worker that an executor of this id is; -1 for the driver, which is none."""
    return WorkerId(int(executor)) if executor.isdigit() else WorkerId(-1)


class Partition(NamedTuple):
    """One state partition of a group: what one task serves and what moves as one."""

    group: int
    number: int

    @classmethod
    def of(cls, move: OperatorMove) -> Partition:
        """The one that a move is of."""
        return cls(move.operator, move.bin)


@dataclass(frozen=True)
class StatefulOperator:
    """One stateful operator of a query: Spark's number and short name for it, its stores, and the group it is in."""

    number: int
    name: str
    stores: tuple[str, ...]
    partitions: int
    group: int


@dataclass(frozen=True)
class TaskRun:
    """One task that served a state partition in a batch.

    Args:
        loads: how often its stores had to read state from the checkpoint so far, where the store counts it, else 0.
        local: whether Spark ran it where the state was said to be.
    """

    executor: str
    ms: float
    rows: int = 0
    updated: int = 0
    removed: int = 0
    state_bytes: int = 0
    loads: int = 0
    local: bool = True
    speculative: bool = False

    @property
    def worker(self) -> WorkerId:
        """The worker that its executor is; -1 for the driver, which is none."""
        return worker_of(self.executor)


@dataclass(frozen=True)
class BatchRun:
    """One batch that has ended."""

    number: int
    took_ms: float
    rows_per_s: float
    rows: int
    tasks: Mapping[Partition, TaskRun] = field(default_factory=dict)
    interval_s: float = 0.0
    """The time from the end of the batch before to its own; 0 for the first one."""


@dataclass(frozen=True)
class Backlog:
    """What a partition's new owner would have to read: the newest snapshot, and the changes made since."""

    snapshot_bytes: int
    change_bytes: int
    changes: int

    @classmethod
    def of_listing(cls, listing: str) -> Backlog:
        """What one store would have to read, from its folder as Hadoop lists it.

        >>> state = "{path=file:/ck/state/0/1/%s; isDirectory=false; length=%d}"
        >>> Backlog.of_listing(state % ("7.snapshot", 50) + state % ("7.delta", 3) + state % ("8.delta", 4))
        Backlog(snapshot_bytes=50, change_bytes=4, changes=1)
        """
        files = list(_state_files(listing))
        snapshots = {version: size for version, kind, size in files if kind in ("snapshot", "zip")}
        newest = max(snapshots, default=0)
        since = [size for version, kind, size in files if version > newest and kind in ("delta", "changelog")]
        return cls(snapshots.get(newest, 0), sum(since), len(since))

    @classmethod
    def total(cls, backlogs: Iterable[Backlog]) -> Backlog:
        """That of all stores of a partition: bytes are added, and the longest row of changes counts."""
        parts = list(backlogs)
        return cls(
            sum(each.snapshot_bytes for each in parts),
            sum(each.change_bytes for each in parts),
            max((each.changes for each in parts), default=0),
        )


def _state_files(listing: str) -> Iterable[tuple[int, str, int]]:
    """Version, kind and size of every state file."""
    for path, is_folder, size in _ENTRY.findall(listing):
        name = _STATE_FILE.fullmatch(path.rpartition("/")[2])
        if name is not None and is_folder == "false":
            yield int(name[1]), name[2], int(size)
