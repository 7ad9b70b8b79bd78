"""Where the state of each bin is: its newest snapshot and the deltas since. Immutable; grows commit by commit."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import compress, groupby
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from meander.store import bitmap
from meander.store.design import Design
from meander.store.entries import Commit, FileRef, Json, OperatorCommit, SnapshotRef
from meander.types import BinId

Flags = NDArray[np.bool_]
Members = NDArray[np.int32]
"""Bins, each by its number."""
Ends = NDArray[np.int64]
NO_BINS: Members = np.zeros(0, np.int32)
NO_ENDS: Ends = np.zeros(0, np.int64)


class Part(NamedTuple):
    """A file, and the bins to read from it."""

    file: FileRef
    bins: list[BinId]


class _Files(NamedTuple):
    """Files that still matter, oldest version first, and the bins for which they do, file after file.

    Those of file i are bins[ends[i - 1]:ends[i]]. A batch adds few of them to many: there is no step for each file.
    """

    refs: tuple[FileRef, ...] = ()
    versions: tuple[int, ...] = ()
    bins: Members = NO_BINS
    ends: Ends = NO_ENDS

    def with_more(self, files: Iterable[tuple[FileRef, Members]], version: int) -> _Files:
        more = [each for each in files if each[1].size]
        if not more:
            return self
        at = bisect_right(self.versions, version)
        cut = self._end(at)
        added = np.cumsum([members.size for _, members in more])
        return _Files(
            (*self.refs[:at], *(ref for ref, _ in more), *self.refs[at:]),
            (*self.versions[:at], *[version] * len(more), *self.versions[at:]),
            np.concatenate([self.bins[:cut], *(members for _, members in more), self.bins[cut:]], dtype=np.int32),
            np.concatenate([self.ends[:at], cut + added, added[-1] + self.ends[at:]]),
        )

    def without(self, covered: Flags, upto: int) -> _Files:
        """The files that still matter beside a snapshot of the covered bins after version `upto`."""
        old = bisect_right(self.versions, upto)
        kept = np.ones(self.bins.size, np.bool_)
        np.logical_not(covered[self.bins[: self._end(old)]], out=kept[: self._end(old)])
        return self.among(kept)

    def older(self, layout: int) -> Iterator[tuple[FileRef, Members]]:
        """The files that are of an older layout than this, each with its bins."""
        return (each for each in self.each() if each[0].layout < layout)

    def since(self, version: int) -> Members:
        """The bins of the files after a version, those of one file after those of another."""
        return self.bins[self._end(bisect_right(self.versions, version)) :]

    def parts(self, wanted: Flags) -> list[Part]:
        return [Part(ref, [BinId(j) for j in bins.tolist()]) for ref, bins in self.among(wanted[self.bins]).each()]

    def each(self) -> Iterator[tuple[FileRef, Members]]:
        """The files with their bins."""
        return zip(self.refs, np.split(self.bins, self.ends[:-1]) if self.refs else (), strict=True)

    def to_json(self, bitmaps: dict[str, int]) -> list[Json]:
        files = []
        for ref, version in zip(self.refs, self.versions, strict=True):
            at = bitmaps.setdefault(ref.bins_text, len(bitmaps))
            files.append({**ref.to_json(with_bins=False), "version": version, "bitmap": at})
        return files

    @classmethod
    def from_json(cls, fields: list[Json], bitmaps: list[bytes]) -> _Files:
        refs = tuple(FileRef.from_json(each, bitmaps[each["bitmap"]]) for each in fields)
        members = [NO_BINS, *(ref.covered for ref in refs)]
        ends = np.cumsum([each.size for each in members])[1:]
        versions = tuple(each["version"] for each in fields)
        return cls(refs, versions, np.concatenate(members, dtype=np.int32), ends)

    @property
    def sizes(self) -> Ends:
        """For how many bins each file matters."""
        return np.diff(self.ends, prepend=0)

    def among(self, kept: Flags) -> _Files:
        """The files that matter where only some of their bins do."""
        if kept.all():
            return self
        ends = np.concatenate([[0], np.cumsum(kept)])[self.ends]
        matter = np.diff(ends, prepend=0) > 0
        which = matter.tolist()
        refs, versions = tuple(compress(self.refs, which)), tuple(compress(self.versions, which))
        return _Files(refs, versions, self.bins[kept], ends[matter])

    def _end(self, at: int) -> int:
        """Up to where the bins of the files before this one go."""
        return int(self.ends[at - 1]) if at else 0


@dataclass(frozen=True, eq=False)
class _OperatorFiles:
    bins: int
    snapshots: _Files
    deltas: _Files
    chains: NDArray[np.int64]

    @classmethod
    def empty(cls, bins: int) -> _OperatorFiles:
        return cls(bins, _Files(), _Files(), np.zeros(bins, np.int64))

    def after(self, version: int, commit: OperatorCommit) -> _OperatorFiles:
        more = [(ref, ref.covered) for ref in commit.deltas]
        snapshots, deltas, chains = self.snapshots, self.deltas.with_more(more, version), self.chains.copy()
        if more:
            chains += _count(np.concatenate([members for _, members in more]), self.bins)
        for at, group in groupby(sorted(commit.snapshots, key=_version), key=_version):
            taken, covered = self._flags(snapshots.since(at)), self._flags(NO_BINS)
            files = []
            for snapshot in group:
                members = snapshot.file.covered
                mine = members[~taken[members]]
                taken[mine] = covered[mine] = True
                is_all = mine.size == members.size
                file = snapshot.file if is_all else replace(snapshot.file, bins=bitmap.bitmap(mine, self.bins))
                files.append((file, mine))
            snapshots = snapshots.without(covered, at).with_more(files, at)
            deltas = deltas.without(covered, at)
            chains[covered] = _count(deltas.since(at), self.bins)[covered]
        return _OperatorFiles(self.bins, snapshots, deltas, chains)

    def parts(self, wanted: Iterable[int]) -> list[Part]:
        chosen = self._flags(np.fromiter(wanted, np.int64))
        return self.snapshots.parts(chosen) + self.deltas.parts(chosen)

    def _flags(self, members: NDArray[Any]) -> Flags:
        chosen = np.zeros(self.bins, np.bool_)
        chosen[members] = True
        return chosen

    def to_json(self) -> Json:
        # Files as they were committed, each bitmap once: which of their bins still matter follows from the snapshots.
        bitmaps: dict[str, int] = {}
        snapshots, deltas = self.snapshots.to_json(bitmaps), self.deltas.to_json(bitmaps)
        return {"bins": self.bins, "bitmaps": list(bitmaps), "snapshots": snapshots, "deltas": deltas}

    @classmethod
    def from_json(cls, fields: Json) -> _OperatorFiles:
        bins, bitmaps = fields["bins"], [bitmap.from_text(text) for text in fields["bitmaps"]]
        snapshots = _Files.from_json(fields["snapshots"], bitmaps)
        deltas = _Files.from_json(fields["deltas"], bitmaps)
        # The newest snapshot of a bin is the last one that has it.
        numbers = np.repeat(np.arange(len(snapshots.refs)), snapshots.sizes)
        newest = np.full(bins, -1, np.int64)
        np.maximum.at(newest, snapshots.bins, numbers)
        upto = np.array([*snapshots.versions, -1], np.int64)[newest]
        of_delta = np.repeat(np.array(deltas.versions, np.int64), deltas.sizes)
        since = deltas.among(of_delta > upto[deltas.bins])
        whole = snapshots.among(newest[snapshots.bins] == numbers)
        return cls(bins, whole, since, _count(since.bins, bins))


def _count(members: Members, bins: int) -> NDArray[np.int64]:
    """How often each bin is there."""
    return np.bincount(members, minlength=bins).astype(np.int64, copy=False)


def _nothing(commit: Commit) -> tuple[_OperatorFiles, ...]:
    return tuple(_OperatorFiles.empty(len(operator.owner)) for operator in commit.operators)


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
    undone: tuple[tuple[int, int], ...] = ()
    """The versions that rollbacks have undone, from and to, oldest first."""
    design: Design | None = None
    """What the query is; None while it is as `meander.json` says."""

    @classmethod
    def empty(cls) -> Index:
        """The index before anything was committed."""
        return cls(-1, ())

    def after(self, commit: Commit) -> Index:
        """Return the index after one more commit."""
        new = commit.operators[len(self.operators) :]
        operators = (*self.operators, *(_OperatorFiles.empty(len(operator.owner)) for operator in new))
        now = tuple(old.after(commit.version, new) for old, new in zip(operators, commit.operators, strict=True))
        return Index(commit.version, now, self.undone, commit.design or self.design)

    def after_rollback(self, commit: Commit, past: Index) -> Index:
        """Return the index after a rollback to a version that had the index `past`."""
        assert commit.undoes is not None
        first, last = commit.undoes
        kept = tuple(each for each in self.undone if each[0] < first)
        operators = past.operators or _nothing(commit)
        return Index(commit.version, operators, (*kept, (first, last)), past.design)

    def after_rebin(self, commit: Commit) -> Index:
        """Return the index after a commit that has all state in other bins."""
        undone = self.undone if commit.undoes is None else (*self.undone, commit.undoes)
        return Index(-1, (), undone, self.design).after(commit)

    def is_undone(self, version: int) -> bool:
        """Whether a rollback has undone a version."""
        return any(first <= version <= last for first, last in self.undone)

    def parts(self, operator: int, bins: Iterable[int]) -> list[Part]:
        """Return the files to read, in this order, to rebuild some bins: snapshots, then deltas from old to new."""
        if not self.operators:
            return []
        return self.operators[operator].parts(bins)

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
        versions[state.snapshots.bins] = np.repeat(np.array(state.snapshots.versions, np.int64), state.snapshots.sizes)
        return versions

    def unconverted(self, operator: int, layout: int) -> NDArray[np.int64]:
        """The bins of an operator that have a file of an older layout than this, ascending."""
        if layout == 0 or operator >= len(self.operators):
            return np.zeros(0, np.int64)
        older = [bins for _, bins in self._older(operator, layout)]
        return np.unique(np.concatenate([NO_BINS, *older])).astype(np.int64)

    def oldest_layout(self, operator: int) -> int:
        """The number of the oldest layout that some file of an operator has; 0 where there is none."""
        return min((ref.layout for ref in self.files(operator)), default=0)

    @property
    def way_back(self) -> int | None:
        """The last version of the oldest layout that some file still has; None while no state is being converted."""
        if self.design is None:
            return None
        layouts = self.design.layouts
        ends = [
            layouts[operator][ref.layout + 1].before
            for operator in range(len(self.operators))
            for ref, _ in self._older(operator, self.design.number(operator))
        ]
        return min(ends, default=None)

    def _older(self, operator: int, layout: int) -> list[tuple[FileRef, Members]]:
        state = self.operators[operator]
        return [*state.snapshots.older(layout), *state.deltas.older(layout)]

    def files(self, operator: int | None = None) -> list[FileRef]:
        """Every file that some bin still needs, of one operator or of all."""
        states = self.operators if operator is None else self.operators[operator : operator + 1]
        return [ref for each in states for ref in (*each.snapshots.refs, *each.deltas.refs)]

    def to_json(self) -> Json:
        """Return the index as a JSON object."""
        fields: Json = {"version": self.version, "stages": [operator.to_json() for operator in self.operators]}
        if self.undone:
            fields["undone"] = [list(each) for each in self.undone]
        if self.design is not None:
            fields["design"] = self.design.to_json()
        return fields

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Index:
        """Return the index that `to_json` wrote."""
        undone = tuple((first, last) for first, last in fields.get("undone", ()))
        design = Design.from_json(fields["design"]) if "design" in fields else None
        operators = tuple(_OperatorFiles.from_json(each) for each in fields["stages"])
        return cls(fields["version"], operators, undone, design)
