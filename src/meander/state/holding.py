"""The state that one worker holds of one operator: its tables, in one directory, at one version.

A change is marked before it begins and unmarked when it is done. A mark in a holding that is opened
means that a process was killed in between. The holding is then emptied: the checkpoint has everything. The files
outlive their processes, not the machine: files of another boot are emptied too.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from meander.errors import InvalidOption
from meander.route.hashing import bits_of, checksum
from meander.state.base import Base
from meander.state.extents import create, identity, mapped
from meander.state.spec import BIN, TableSpec
from meander.state.table import Table

Words = NDArray[np.int64]

HEADER = 8
FORMAT, FINGERPRINT, BOOT, TORN, VERSION = range(5)
MADE_BY = 0x4D45414E44455202
NOTHING = -1
"""The version of a holding that holds nothing."""

MOST_OPEN = 8
_OPEN: dict[tuple[str, tuple[TableSpec, ...], int], Holding] = {}


class Holding:
    """The tables of one worker and operator. Open one with `Holding.open`; one process at a time may have it open."""

    def __init__(self, directory: Path, specs: Sequence[TableSpec], bins: int) -> None:
        self.directory, self.specs, self.bins = directory, tuple(specs), bins
        self._path, words = directory / "holding", HEADER + bins
        create(self._path, words)
        everything = mapped(self._path, words)
        self._header, self._held = everything[:HEADER], everything[HEADER:]
        self._file = identity(self._path)
        self.bases = {spec.name: Base.open(directory, spec, bins) for spec in self.specs}
        self._mine = (MADE_BY, self._fingerprint(), _boot())
        if any(base.is_new for base in self.bases.values()) or not self._is_mine:
            self.reset()
            self._header[[FORMAT, FINGERPRINT, BOOT]] = self._mine
        self.settle()

    @classmethod
    def open(cls, directory: Path, specs: Sequence[TableSpec], bins: int) -> Holding:
        """Open a worker's holding; an empty one where there is none, or it is torn, or of other tables.

        It stays mapped in this process until it is closed, its files are gone when any is opened, or newer ones
        replace it in the cache: the next call returns the same one, with its pages still mapped.
        """
        bits_of(bins)
        names = [spec.name for spec in specs]
        if len(set(names)) < len(names) or "holding" in names:
            raise InvalidOption(f"tables {', '.join(names)} cannot stand side by side; give each a name of its own")
        place = (os.path.realpath(directory), tuple(specs), bins)
        for other, each in list(_OPEN.items()):
            if not each.is_there:
                del _OPEN[other]
        holding = _OPEN.pop(place, None)
        if holding is None or not holding.is_current:
            directory.mkdir(0o700, parents=True, exist_ok=True)
            holding = cls(directory, specs, bins)
        _OPEN[place] = holding
        while len(_OPEN) > MOST_OPEN:
            del _OPEN[next(iter(_OPEN))]
        holding.settle()
        return holding

    def close(self) -> None:
        """Unmap the files. Applied changes stay."""
        for place, each in list(_OPEN.items()):
            if each is self:
                del _OPEN[place]
        for base in self.bases.values():
            base.close()

    @property
    def is_current(self) -> bool:
        """Whether the files that are mapped are those in the directory, and still of these tables."""
        return self.is_there and self._is_mine and all(base.is_current for base in self.bases.values())

    @property
    def is_there(self) -> bool:
        """Whether the file that is mapped is the one in the directory: what was removed is not to keep its space."""
        return identity(self._path) == self._file

    @property
    def version(self) -> int:
        """The version of the state that is held; -1 where nothing is."""
        self.settle()
        return int(self._header[VERSION])

    @property
    def held(self) -> NDArray[np.bool_]:
        """Which bins are held."""
        self.settle()
        return np.asarray(self._held != 0)

    def advance(self, version: int, deltas: Mapping[str, pa.Table]) -> None:
        """Apply the deltas of the next version; a table that is not named has not changed."""
        if version != self.version + 1:
            raise InvalidOption(f"{self.directory} holds version {self.version} and cannot go to {version} at once")
        self._check_names(deltas)
        with self._change():
            for name, delta in deltas.items():
                self.bases[name].apply(delta)
            self._header[VERSION] = version

    def install(self, bin_ids: Sequence[int] | Words, parts: Iterable[Mapping[str, pa.Table]], version: int) -> None:
        """Hold these bins at `version`, built from parts in their order: a snapshot, then deltas.

        The old contents of the bins are dropped, and rows of other bins are left out. Bins that are held already must
        be at that version.
        """
        wanted = np.unique(np.asarray(bin_ids, dtype=np.int64))
        if version != self.version and self.held.any():
            raise InvalidOption(
                f"{self.directory} holds version {self.version}; bins of version {version} cannot stand beside it"
            )
        with self._change():
            try:
                for base in self.bases.values():
                    base.install(wanted)
                for part in parts:
                    self._check_names(part)
                    for name, table in part.items():
                        self.bases[name].apply(_only(table, wanted, self.bins))
            except Exception:
                # Only these bins have been touched: the others stay as they are.
                self._drop(wanted)
                self._header[TORN] = 0
                raise
            self._held[wanted] = 1
            self._header[VERSION] = version

    def release(self, bin_ids: Sequence[int] | Words) -> None:
        """Release these bins and their space."""
        gone = np.unique(np.asarray(bin_ids, dtype=np.int64))
        with self._change():
            self._drop(gone)

    def _drop(self, bin_ids: Words) -> None:
        self._held[bin_ids] = 0
        for base in self.bases.values():
            base.release(bin_ids)

    def reset(self) -> None:
        """Release all bins and their space; the version is -1."""
        self._header[TORN] = 1
        self._held[:] = 0
        for base in self.bases.values():
            base.clear()
        self._header[VERSION] = NOTHING
        self._header[TORN] = 0

    def begin(self) -> dict[str, Table]:
        """The tables as one batch sees them; their deltas have its changes."""
        self.settle()
        return {spec.name: Table(self.bases[spec.name], spec, self.bins) for spec in self.specs}

    def extract(self, bin_ids: Sequence[int] | Words) -> dict[str, pa.Table]:
        """All rows of these bins, by table."""
        return {name: base.extract(bin_ids) for name, base in self.bases.items()}

    def rows(self, table: str | None = None, bin_ids: Words | None = None) -> Words:
        """The number of rows in each bin, or in each of these, of one table or of all."""
        wanted = np.arange(self.bins) if bin_ids is None else bin_ids
        bases = self.bases.values() if table is None else [self.bases[table]]
        return self._sum([base.rows_of(wanted) for base in bases], wanted.size)

    def bytes(self, bin_ids: Words | None = None) -> Words:
        """The bytes that each bin takes, or each of these."""
        wanted = np.arange(self.bins) if bin_ids is None else bin_ids
        return self._sum([base.bytes_of(wanted) for base in self.bases.values()], wanted.size)

    @property
    def _is_mine(self) -> bool:
        return tuple(self._header[[FORMAT, FINGERPRINT, BOOT]].tolist()) == self._mine

    def settle(self) -> None:
        """Hold nothing where a change was interrupted."""
        # Another process may have been killed in a change while this one has the files open.
        if self._header[TORN]:
            self.reset()

    @contextmanager
    def _change(self) -> Iterator[None]:
        self._header[TORN] = 1
        try:
            yield
        except BaseException:
            # Some tables may have changed and others not, unless the failed change has cleaned up.
            self.settle()
            raise
        self._header[TORN] = 0

    def _sum(self, parts: list[Words], count: int) -> Words:
        return np.sum(parts, axis=0, dtype=np.int64) if parts else np.zeros(count, np.int64)

    def _check_names(self, tables: Mapping[str, pa.Table]) -> None:
        for name in tables:
            if name not in self.bases:
                raise InvalidOption(f"there is no table {name!r} in {self.directory}; it has {', '.join(self.bases)}")

    def _fingerprint(self) -> int:
        return checksum(repr([(spec.name, str(spec.schema), spec.order) for spec in self.specs]).encode()) >> 1


def _boot() -> int:
    path = Path("/proc/sys/kernel/random/boot_id")
    return checksum(path.read_bytes()) >> 1 if path.exists() else 0


def _only(table: pa.Table, wanted: Words, bins: int) -> pa.Table:
    """The rows of these bins."""
    mine = np.zeros(bins, np.bool_)
    mine[wanted] = True
    rows = pc.is_in(table.column(BIN), pa.array(np.flatnonzero(mine), pa.int32()))
    return table if pc.all(rows, min_count=0).as_py() else table.filter(rows)
