"""Where the state of each bin is: its newest snapshot and the deltas since. Immutable; grows commit by commit."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from itertools import accumulate, compress, groupby
from operator import or_
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from meander.store import bitmap
from meander.store.design import Design
from meander.store.entries import Commit, FileRef, Json, OperatorCommit, SnapshotRef
from meander.types import BinId


class Part(NamedTuple):
    """A file, and the bins to read from it."""

    file: FileRef
    bins: list[BinId]


class _Files(NamedTuple):
    """Files that still matter, oldest version first, and the bins for which they do: bits[i] of file i."""

    refs: tuple[FileRef, ...] = ()
    versions: tuple[int, ...] = ()
    bits: tuple[int, ...] = ()

    def with_more(self, refs: Iterable[FileRef], version: int) -> _Files:
        more = tuple(ref for ref in refs if any(ref.bins))
        if not more:
            return self
        at = bisect_right(self.versions, version)
        return _Files(
            self.refs[:at] + more + self.refs[at:],
            self.versions[:at] + (version,) * len(more) + self.versions[at:],
            self.bits[:at] + tuple(bitmap.to_int(ref.bins) for ref in more) + self.bits[at:],
        )

    def without(self, covered: int, upto: int) -> _Files:
        """The files that still matter beside a snapshot of the covered bins after version `upto`."""
        old = bisect_right(self.versions, upto)
        bits = [*(each & ~covered for each in self.bits[:old]), *self.bits[old:]]
        return _Files(tuple(compress(self.refs, bits)), tuple(compress(self.versions, bits)), tuple(filter(None, bits)))

    def older(self, layout: int) -> Iterator[tuple[FileRef, int]]:
        """The files that are of an older layout than this, each with its bins."""
        return ((ref, bits) for ref, bits in zip(self.refs, self.bits, strict=True) if ref.layout < layout)

    def since(self, version: int) -> tuple[int, ...]:
        """The bins of the files after a version."""
        return self.bits[bisect_right(self.versions, version) :]

    def parts(self, wanted: int, width: int) -> list[Part]:
        return [
            Part(ref, [BinId(j) for j in bitmap.members(bitmap.from_int(hits, width)).tolist()])
            for ref, bits in zip(self.refs, self.bits, strict=True)
            if (hits := bits & wanted)
        ]

    def to_json(self, bitmaps: dict[bytes, int]) -> list[Json]:
        files = []
        for ref, version in zip(self.refs, self.versions, strict=True):
            at = bitmaps.setdefault(ref.bins, len(bitmaps))
            files.append({**ref.to_json(with_bins=False), "version": version, "bitmap": at})
        return files

    @classmethod
    def from_json(cls, fields: list[Json], bitmaps: list[bytes]) -> _Files:
        refs = tuple(FileRef.from_json(each, bitmaps[each["bitmap"]]) for each in fields)
        versions = tuple(each["version"] for each in fields)
        return cls(refs, versions, tuple(bitmap.to_int(ref.bins) for ref in refs))


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
        return cls(bins, _Files(), _Files(), np.zeros(bins, np.int64))

    def after(self, version: int, commit: OperatorCommit) -> _OperatorFiles:
        snapshots, deltas, chains = self.snapshots, self.deltas.with_more(commit.deltas, version), self.chains
        if commit.deltas:
            chains = chains + bitmap.counts([ref.bins for ref in commit.deltas], self.bins)
        for at, group in groupby(sorted(commit.snapshots, key=_version), key=_version):
            taken, covered, files = reduce(or_, snapshots.since(at), 0), 0, []
            for snapshot in group:
                all_of_it = bitmap.to_int(snapshot.file.bins)
                mine = all_of_it & ~taken
                taken, covered = taken | mine, covered | mine
                if mine == all_of_it:
                    files.append(snapshot.file)
                elif mine:
                    files.append(replace(snapshot.file, bins=bitmap.from_int(mine, self.width)))
            snapshots = snapshots.without(covered, at).with_more(files, at)
            deltas = deltas.without(covered, at)
            chains = chains.copy()
            fresh = bitmap.members(bitmap.from_int(covered, self.width))
            chains[fresh] = _count(deltas.since(at), self.bins)[fresh]
        return _OperatorFiles(self.bins, snapshots, deltas, chains)

    def to_json(self) -> Json:
        # Files as they were committed, each bitmap once: which of their bins still matter follows from the snapshots.
        bitmaps: dict[bytes, int] = {}
        snapshots, deltas = self.snapshots.to_json(bitmaps), self.deltas.to_json(bitmaps)
        texts = [bitmap.to_text(bits) for bits in bitmaps]
        return {"bins": self.bins, "bitmaps": texts, "snapshots": snapshots, "deltas": deltas}

    @classmethod
    def from_json(cls, fields: Json) -> _OperatorFiles:
        bitmaps = [bitmap.from_text(text) for text in fields["bitmaps"]]
        snapshots = _Files.from_json(fields["snapshots"], bitmaps)
        deltas = _Files.from_json(fields["deltas"], bitmaps)
        # covered[i]: the bins of snapshot i and of all newer ones.
        covered = [*accumulate(reversed(snapshots.bits), or_, initial=0)][::-1]
        newest = tuple(bits & ~newer for bits, newer in zip(snapshots.bits, covered[1:], strict=True))
        since = tuple(
            bits & ~covered[bisect_left(snapshots.versions, version)]
            for bits, version in zip(deltas.bits, deltas.versions, strict=True)
        )
        bins = fields["bins"]
        return cls(bins, snapshots._replace(bits=newest), deltas._replace(bits=since), _count(since, bins))


def _count(bits: Iterable[int], bins: int) -> NDArray[np.int64]:
    return bitmap.counts([bitmap.from_int(each, (bins + 7) // 8) for each in bits], bins)


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
        state = self.operators[operator]
        wanted = bitmap.to_int(bitmap.bitmap(list(bins), state.bins))
        return state.snapshots.parts(wanted, state.width) + state.deltas.parts(wanted, state.width)

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
        for version, bits in zip(state.snapshots.versions, state.snapshots.bits, strict=True):
            versions[bitmap.members(bitmap.from_int(bits, state.width))] = version
        return versions

    def unconverted(self, operator: int, layout: int) -> NDArray[np.int64]:
        """The bins of an operator that have a file of an older layout than this, ascending."""
        if layout == 0 or operator >= len(self.operators):
            return np.zeros(0, np.int64)
        bits = reduce(or_, (bits for _, bits in self._older(operator, layout)), 0)
        return bitmap.members(bitmap.from_int(bits, self.operators[operator].width)).astype(np.int64)

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

    def _older(self, operator: int, layout: int) -> list[tuple[FileRef, int]]:
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
