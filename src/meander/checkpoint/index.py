"""Where the state of each bin is: its newest snapshot and the deltas since. Immutable; grows commit by commit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from meander.checkpoint import bitmap
from meander.checkpoint.entries import Commit, FileRef, Json, OperatorCommit, SnapshotRef
from meander.types import BinId


class Part(NamedTuple):
    """A file, and the bins to read from it."""

    file: FileRef
    bins: list[BinId]


class _Files(NamedTuple):
    """Files that still matter, oldest version first, and the bins for which they do: bits[i] of file i."""

    refs: tuple[FileRef, ...]
    versions: NDArray[np.int64]
    bits: NDArray[np.uint8]

    @classmethod
    def none(cls, width: int) -> _Files:
        return cls((), np.empty(0, np.int64), np.empty((0, width), np.uint8))

    def with_more(self, refs: Iterable[FileRef], version: int) -> _Files:
        more = tuple(ref for ref in refs if any(ref.bins))
        if not more:
            return self
        added = bitmap.rows([ref.bins for ref in more], self.bits.shape[1])
        at = int(np.searchsorted(self.versions, version, side="right"))
        return _Files(
            self.refs[:at] + more + self.refs[at:],
            np.insert(self.versions, at, [version] * len(more)),
            np.concatenate([self.bits[:at], added, self.bits[at:]]),
        )

    def without(self, covered: NDArray[np.uint8], upto: int) -> _Files:
        """The files that still matter beside a snapshot of the covered bins after version `upto`."""
        old = int(np.searchsorted(self.versions, upto, side="right"))
        bits = np.concatenate([self.bits[:old] & ~covered, self.bits[old:]])
        kept = np.flatnonzero(bits.any(axis=1))
        return _Files(tuple(self.refs[row] for row in kept.tolist()), self.versions[kept], bits[kept])

    def parts(self, wanted: NDArray[np.uint8]) -> list[Part]:
        parts = []
        hits = self.bits & wanted
        for row in np.flatnonzero(hits.any(axis=1)).tolist():
            parts.append(Part(self.refs[row], [BinId(j) for j in bitmap.members(hits[row].tobytes()).tolist()]))
        return parts

    def to_json(self, bitmaps: dict[bytes, int]) -> list[Json]:
        files = []
        for ref, version in zip(self.refs, self.versions.tolist(), strict=True):
            at = bitmaps.setdefault(ref.bins, len(bitmaps))
            files.append({**ref.to_json(with_bins=False), "version": version, "bitmap": at})
        return files

    @classmethod
    def from_json(cls, fields: list[Json], bitmaps: list[bytes], width: int) -> _Files:
        refs = tuple(FileRef.from_json(each, bitmaps[each["bitmap"]]) for each in fields)
        versions = np.array([each["version"] for each in fields], np.int64)
        return cls(refs, versions, bitmap.rows([ref.bins for ref in refs], width).copy())


@dataclass(frozen=True, eq=False)
class _OperatorFiles:
    bins: int
    snapshots: _Files
    deltas: _Files
    chains: NDArray[np.int64]

    @property
    def width(self) -> int:
        return (self.bins + 7) // 8

    @classmethod
    def empty(cls, bins: int) -> _OperatorFiles:
        none = _Files.none((bins + 7) // 8)
        return cls(bins, none, none, np.zeros(bins, np.int64))

    def after(self, version: int, commit: OperatorCommit) -> _OperatorFiles:
        snapshots, deltas, chains = self.snapshots, self.deltas.with_more(commit.deltas, version), self.chains
        if commit.deltas:
            chains = chains + _count(bitmap.rows([ref.bins for ref in commit.deltas], self.width), self.bins)
        for at, group in groupby(sorted(commit.snapshots, key=_version), key=_version):
            taken = np.bitwise_or.reduce(snapshots.bits[snapshots.versions > at], axis=0, initial=0, dtype=np.uint8)
            covered, files = np.zeros(self.width, np.uint8), []
            for snapshot in group:
                mine = np.frombuffer(snapshot.file.bins, np.uint8) & ~taken
                taken, covered = taken | mine, covered | mine
                if mine.any():
                    files.append(replace(snapshot.file, bins=mine.tobytes()))
            snapshots = snapshots.without(covered, at).with_more(files, at)
            deltas = deltas.without(covered, at)
            since = _count(deltas.bits[deltas.versions > at], self.bins)
            chains = np.where(np.unpackbits(covered)[: self.bins] == 1, since, chains)
        return _OperatorFiles(self.bins, snapshots, deltas, chains)

    def to_json(self) -> Json:
        # Files as they were committed, each bitmap once: which of their bins still matter follows from the snapshots.
        bitmaps: dict[bytes, int] = {}
        snapshots, deltas = self.snapshots.to_json(bitmaps), self.deltas.to_json(bitmaps)
        texts = [bitmap.to_text(bits) for bits in bitmaps]
        return {"bins": self.bins, "bitmaps": texts, "snapshots": snapshots, "deltas": deltas}

    @classmethod
    def from_json(cls, fields: Json) -> _OperatorFiles:
        empty = cls.empty(fields["bins"])
        bitmaps = [bitmap.from_text(text) for text in fields["bitmaps"]]
        snapshots = _Files.from_json(fields["snapshots"], bitmaps, empty.width)
        deltas = _Files.from_json(fields["deltas"], bitmaps, empty.width)
        newer = np.zeros(empty.width, np.uint8)
        for row in range(len(snapshots.refs) - 1, -1, -1):
            covered = snapshots.bits[row] & ~newer
            snapshots.bits[row] = covered
            newer |= covered
            old = int(np.searchsorted(deltas.versions, snapshots.versions[row], side="right"))
            deltas.bits[:old] &= ~covered
        return cls(empty.bins, snapshots, deltas, _count(deltas.bits, empty.bins))


def _count(bits: NDArray[np.uint8], bins: int) -> NDArray[np.int64]:
    counts: NDArray[np.int64] = np.unpackbits(bits, axis=1)[:, :bins].sum(axis=0, dtype=np.int64)
    return counts


def _version(snapshot: SnapshotRef) -> int:
    return snapshot.version


@dataclass(frozen=True, eq=False)
class Index:
    """Per operator and bin, the files that rebuild the bin's state after `version`; -1 is before the first commit.

    >>> Index.empty().version
    -1
    """

    version: int
    operators: tuple[_OperatorFiles, ...]

    @classmethod
    def empty(cls) -> Index:
        """The index before anything was committed."""
        return cls(-1, ())

    def after(self, commit: Commit) -> Index:
        """Return the index after one more commit."""
        operators = self.operators or tuple(_OperatorFiles.empty(len(operator.owner)) for operator in commit.operators)
        now = tuple(old.after(commit.version, new) for old, new in zip(operators, commit.operators, strict=True))
        return Index(commit.version, now)

    def parts(self, operator: int, bins: Iterable[int]) -> list[Part]:
        """Return the files to read, in this order, to rebuild some bins: snapshots, then deltas from old to new."""
        if not self.operators:
            return []
        state = self.operators[operator]
        wanted = np.frombuffer(bitmap.bitmap(list(bins), state.bins), np.uint8)
        return state.snapshots.parts(wanted) + state.deltas.parts(wanted)

    def chains(self, operator: int) -> NDArray[np.int64]:
        """How many deltas must be applied to each bin's snapshot."""
        return self.operators[operator].chains

    def longest_chain(self, operator: int) -> int:
        """The most deltas that a bin of the operator has."""
        return int(self.chains(operator).max(initial=0))

    def snapshot_versions(self, operator: int) -> NDArray[np.int64]:
        """The version of each bin's newest snapshot, -1 where it has none."""
        state = self.operators[operator]
        versions = np.full(state.bins, -1, np.int64)
        for version, bits in zip(state.snapshots.versions.tolist(), state.snapshots.bits, strict=True):
            versions[bitmap.members(bits.tobytes())] = version
        return versions

    def files(self, operator: int | None = None) -> list[FileRef]:
        """Every file that some bin still needs, of one operator or of all."""
        states = self.operators if operator is None else self.operators[operator : operator + 1]
        return [ref for each in states for ref in (*each.snapshots.refs, *each.deltas.refs)]

    def to_json(self) -> Json:
        """Return the index as a JSON object."""
        return {"version": self.version, "stages": [operator.to_json() for operator in self.operators]}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Index:
        """Return the index that `to_json` wrote."""
        return cls(fields["version"], tuple(_OperatorFiles.from_json(each) for each in fields["stages"]))
