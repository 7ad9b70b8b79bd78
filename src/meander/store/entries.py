"""The contents of the log: a commit and the files of each operator, an announcement, as frozen values and as JSON."""

from __future__ import annotations

import base64
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from meander.store import bitmap
from meander.store.design import Design
from meander.store.statefile import Info
from meander.types import BinId, WorkerId, runs

Json: TypeAlias = dict[str, Any]
Octets: TypeAlias = bytes
Kind = Literal["state", "late", "dead"]


@dataclass(frozen=True)
class FileRef:
    """A file of the checkpoint: its path, or its contents where they are small enough to be kept inline."""

    worker: WorkerId
    bytes: int
    rows: int
    checksum: int
    path: str | None = None
    inline: Octets | None = None
    bins: Octets = b""
    """Bitmap of the bins that a state file covers; empty for side outputs."""
    kind: Kind = "state"
    layout: int = 0
    """The number of the layout that the tables of a state file have."""

    def __post_init__(self) -> None:
        if (self.path is None) == (self.inline is None):
            raise ValueError(f"a file has either a path or its contents inline: {self.path!r}")

    @classmethod
    def of(cls, info: Info, worker: WorkerId, *, path: str | None = None, inline: Octets | None = None) -> FileRef:
        """Return the reference to a state file that was written to a path, or is kept inline."""
        return cls(worker, info.bytes, info.rows, info.checksum, path, inline, info.bins)

    @property
    def name(self) -> str:
        """The name of the file in messages."""
        return self.path or f"an inline file of worker {self.worker}"

    @cached_property
    def covered(self) -> NDArray[np.int32]:
        """The bins that the file covers, ascending, as an array that is not to be written to."""
        return bitmap.members(self.bins).astype(np.int32)

    def members(self) -> list[BinId]:
        """The bins that the file covers, ascending."""
        return [BinId(each) for each in self.covered.tolist()]

    def to_json(self, with_bins: bool = True) -> Json:
        """Return the reference as a JSON object, with its bitmap unless that is kept elsewhere."""
        fields: Json = {"worker": self.worker, "bytes": self.bytes, "rows": self.rows}
        fields["checksum"] = f"{self.checksum:016x}"
        if self.path is not None:
            fields["path"] = self.path
        if self.inline is not None:
            fields["inline"] = self._inline_text
        if self.bins and with_bins:
            fields["bins"] = self.bins_text
        if self.kind != "state":
            fields["kind"] = self.kind
        if self.layout:
            fields["layout"] = self.layout
        return fields

    @cached_property
    def _inline_text(self) -> str:
        return base64.b64encode(self.inline or b"").decode()

    @cached_property
    def bins_text(self) -> str:
        """The bitmap as text."""
        return bitmap.to_text(self.bins)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any], bins: Octets | None = None) -> FileRef:
        """Return the reference that `to_json` wrote, with a bitmap that was kept elsewhere."""
        inline, text = fields.get("inline"), fields.get("bins", "")
        ref = cls(
            WorkerId(fields["worker"]),
            fields["bytes"],
            fields["rows"],
            int(fields["checksum"], 16),
            fields.get("path"),
            None if inline is None else base64.b64decode(inline, validate=True),
            bitmap.from_text(text) if bins is None else bins,
            fields.get("kind", "state"),
            fields.get("layout", 0),
        )
        # Most references are written again as they were read: the driver commits what workers have reported.
        if bins is None:
            vars(ref)["bins_text"] = text
        if inline is not None:
            vars(ref)["_inline_text"] = inline
        return ref


@dataclass(frozen=True)
class SnapshotRef:
    """A snapshot of all the bins in `file.bins`, also the empty ones, as they are after a version."""

    file: FileRef
    version: int

    def to_json(self) -> Json:
        """Return the reference as a JSON object."""
        return {**self.file.to_json(), "version": self.version}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> SnapshotRef:
        """Return the reference that `to_json` wrote."""
        return cls(FileRef.from_json(fields), fields["version"])


@dataclass(frozen=True)
class OperatorCommit:
    """The commit of one operator in a version: its frontier, the owner of each bin, and the files with its changes.

    At most one delta of a version covers a bin. The frontier is event time in microseconds after the version, or None;
    `seen` is the one that the version ran with; `newest` is the newest time of each input, for an operator that waits
    for the slowest of several.
    """

    frontier: int | None
    owner: tuple[WorkerId, ...]
    deltas: tuple[FileRef, ...] = ()
    snapshots: tuple[SnapshotRef, ...] = ()
    side: tuple[FileRef, ...] = ()
    newest: tuple[int | None, ...] = ()
    seen: int | None = None

    def to_json(self) -> Json:
        """Return the operator's part as a JSON object."""
        fields: Json = {"frontier": self.frontier, "owner": _owner_to_text(self.owner)}
        if self.newest:
            fields["newest"] = list(self.newest)
        if self.seen is not None:
            fields["seen"] = self.seen
        for name in ("deltas", "snapshots", "side"):
            if refs := getattr(self, name):
                fields[name] = [each.to_json() for each in refs]
        return fields

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> OperatorCommit:
        """Return the part that `to_json` wrote."""
        return cls(
            fields["frontier"],
            _owner_from_text(fields["owner"]),
            tuple(FileRef.from_json(each) for each in fields.get("deltas", ())),
            tuple(SnapshotRef.from_json(each) for each in fields.get("snapshots", ())),
            tuple(FileRef.from_json(each) for each in fields.get("side", ())),
            tuple(fields.get("newest", ())),
            fields.get("seen"),
        )


@dataclass(frozen=True)
class Commit:
    """One committed version: its Spark batch, and the files of each operator.

    Args:
        version: dense counter from 0.
        batch: Spark's id of the batch.
        tick: 0 for the batch itself, 1, 2, .. for idle ticks after it.
        query: Spark's id of the query.
        offsets: the text of Spark's offsets/<batch>.
        operators: one part per operator.
        rows: how many rows came in.
        late: how many of them came too late.
        dead: how many of them could not be used.
        time_ms: wall time, milliseconds since 1970.
        journal: what else the driver of the next version needs: the migration under way.
        sink: what the sink has prepared, to be committed now that this is.
        undoes: of a rollback, the first and the last version that it undoes; its state is that of the one before.
        rebins: of a version with another number of bins, the number before it.
        skips: whether its batch was left out: it undoes the version that was begun of it.
        design: what the query is from this version on, where that is not what it was before.
    """

    version: int
    batch: int
    tick: int
    query: str
    offsets: str
    operators: tuple[OperatorCommit, ...]
    rows: int = 0
    late: int = 0
    dead: int = 0
    time_ms: int = 0
    journal: Json | None = None
    sink: Any = None
    undoes: tuple[int, int] | None = None
    skips: bool = False
    rebins: int | None = None
    design: Design | None = None

    def to_json(self) -> Json:
        """Return the commit as a JSON object."""
        plain = ("version", "batch", "tick", "query", "offsets", "rows", "late", "dead", "time_ms")
        fields: Json = {name: getattr(self, name) for name in plain}
        for name in ("journal", "sink"):
            if (value := getattr(self, name)) is not None:
                fields[name] = value
        if self.undoes is not None:
            fields["undoes"] = list(self.undoes)
        if self.rebins is not None:
            fields["rebins"] = self.rebins
        if self.skips:
            fields["skips"] = True
        if self.design is not None:
            fields["design"] = self.design.to_json()
        return {**fields, "stages": [operator.to_json() for operator in self.operators]}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Commit:
        """Return the commit that `to_json` wrote."""
        rest = {name: value for name, value in fields.items() if name != "stages"}
        if "undoes" in rest:
            rest["undoes"] = tuple(rest["undoes"])
        if "design" in rest:
            rest["design"] = Design.from_json(rest["design"])
        return cls(**rest, operators=tuple(OperatorCommit.from_json(each) for each in fields["stages"]))

    @property
    def is_plain(self) -> bool:
        """Whether it only adds to the version before it."""
        return self.undoes is None and self.rebins is None

    def files(self) -> list[FileRef]:
        """Every file that the commit names: deltas, snapshots and side outputs of all operators."""
        return [
            file
            for operator in self.operators
            for file in (*operator.deltas, *(snapshot.file for snapshot in operator.snapshots), *operator.side)
        ]


@dataclass(frozen=True)
class Announcement:
    """What the next version is, where the last commit and Spark's offsets do not say it: a tick, or part of a batch.

    It is in the log before the sink hears of the version, so that nobody ever makes another one of this number.

    Args:
        version: its number.
        batch: Spark's id of the batch.
        tick: 0 for the batch itself, 1, 2, .. for versions after it.
        offsets: the text of Spark's offsets/<batch>.
        frontiers: the frontier that each operator sees in it.
        hook: name and note of the hook that makes it of some rows of the batch only.
    """

    version: int
    batch: int
    tick: int
    offsets: str
    frontiers: tuple[int | None, ...]
    hook: Json | None = None

    def to_json(self) -> Json:
        """Return the announcement as a JSON object."""
        return {**vars(self), "frontiers": list(self.frontiers)}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Announcement:
        """Return the announcement that `to_json` wrote."""
        return cls(**{**fields, "frontiers": tuple(fields["frontiers"])})

    def is_kept_by(self, commit: Commit) -> bool:
        """Whether a commit is of the version that was announced."""
        seen = tuple(operator.seen for operator in commit.operators)
        hook = (commit.journal or {}).get("hook")
        return self.is_of(Announcement(commit.version, commit.batch, commit.tick, commit.offsets, seen, hook))

    def is_of(self, other: Announcement) -> bool:
        """Whether another announcement is of the same version; it may have operators that came since, without time."""
        since = other.frontiers[len(self.frontiers) :]
        return replace(self, frontiers=self.frontiers + (None,) * len(since)) == other


@dataclass(frozen=True)
class LogWriter:
    """A writer of the log; its epoch is the sequence number of its claim."""

    epoch: int
    host: str
    pid: int


@dataclass(frozen=True)
class Entry:
    """One file of the log: a claim, an announcement or a commit; with a full index in some, where reading can stop.

    `version` is the last one committed, this entry included; -1 before the first. A claim repeats what was announced
    and is not committed yet, and that a rollback is not carried out everywhere; a settlement says that it now is.
    """

    sequence: int
    parent: str
    driver: LogWriter
    version: int
    commit: Commit | None
    index: Json | None = None
    last: Commit | None = None
    """In an entry with an index that is no commit: the last commit before it."""
    announced: Announcement | None = None
    is_owed: bool = False
    """Whether the last commit is a rollback that Spark's logs and the sink may not know of yet."""

    @property
    def kind(self) -> str:
        """What it is: the epoch of a driver is the number of its claim."""
        if self.commit is not None:
            return "commit"
        if self.sequence == self.driver.epoch:
            return "claim"
        return "settlement" if self.announced is None else "announcement"

    def to_json(self) -> Json:
        """Return the entry as a JSON object."""
        who = self.driver
        fields: Json = {"kind": self.kind, "sequence": self.sequence}
        fields |= {"parent": self.parent, "epoch": who.epoch, "host": who.host, "pid": who.pid}
        fields["version"] = self.version
        for name in ("commit", "last", "announced"):
            if (part := getattr(self, name)) is not None:
                fields[name] = part.to_json()
        if self.index is not None:
            fields["index"] = self.index
        if self.is_owed:
            fields["owed"] = True
        return fields

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Entry:
        """Return the entry that `to_json` wrote."""
        commit, last = (Commit.from_json(fields[name]) if name in fields else None for name in ("commit", "last"))
        announced = Announcement.from_json(fields["announced"]) if "announced" in fields else None
        driver, index = LogWriter(fields["epoch"], fields["host"], fields["pid"]), fields.get("index")
        entry = cls(
            fields["sequence"], fields["parent"], driver, fields["version"], commit, index, last, announced,
            fields.get("owed", False),
        )  # fmt: skip
        if entry.kind != fields["kind"]:
            raise ValueError(f"it is of the kind {fields['kind']!r}")
        return entry

    @property
    def state(self) -> Commit:
        """The last commit, this entry included, of an entry that has one."""
        commit = self.commit or self.last
        assert commit is not None, f"entry {self.sequence} is no commit"
        return commit

    def without_index(self) -> Entry:
        """The same entry without the index."""
        return self if self.index is None else replace(self, index=None)


_OWNER_TEXTS: deque[tuple[tuple[WorkerId, ...], str]] = deque(maxlen=16)
"""The last owners written, with their text; found by what they are, since to compare them takes a step for each bin."""


def _owner_to_text(owner: tuple[WorkerId, ...]) -> str:
    for known, text in tuple(_OWNER_TEXTS):
        if known is owner:
            return text
    text = ",".join(f"{run.worker}*{run.stop - run.start}" for run in runs(owner))
    _OWNER_TEXTS.appendleft((owner, text))
    return text


@lru_cache(maxsize=64)
def _owner_from_text(text: str) -> tuple[WorkerId, ...]:
    owner: list[WorkerId] = []
    for run in text.split(",") if text else ():
        worker, _, count = run.partition("*")
        owner.extend([WorkerId(int(worker))] * int(count))
    return tuple(owner)


def sizes(files: Sequence[FileRef]) -> tuple[int, int]:
    """Rows and bytes of some files together."""
    return sum(file.rows for file in files), sum(file.bytes for file in files)
