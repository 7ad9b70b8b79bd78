"""A checkpoint for reading: its state and side outputs as Arrow tables. Claims nothing, changes nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
from pyarrow import compute as pc

from meander.errors import CheckpointError, Damaged, InvalidOption
from meander.pictures import many
from meander.state.spec import BIN, DELETED
from meander.store.convert import converted
from meander.store.design import Design, Json, StateLayout
from meander.store.entries import Commit
from meander.store.files import read_side, read_state
from meander.store.identity import PATH, Identity
from meander.store.index import Index, Part
from meander.store.location import Location
from meander.store.lookup import Equal, bins_of, fields_of, matching, typed
from meander.store.manifest import Log, sequences
from meander.store.side import FOLDER, VERSION, side_files, uncovered, with_version

_ROW = "meander row"
_GROUP_BYTES = 128 << 20


def place_of(place: str | os.PathLike[str]) -> Location:
    """Return the location of a checkpoint; CheckpointError where there is none."""
    location = Location.of(place)
    if location.is_local and not Path(location.root).is_dir():
        raise CheckpointError(f"there is no checkpoint at {place}: no such folder")
    if not location.exists(PATH) and not location.list("manifests"):
        raise CheckpointError(f"{place} is not a checkpoint of meander: it has no {PATH}")
    return location


@dataclass(frozen=True)
class Reader:
    """A checkpoint as it is now."""

    location: Location
    identity: Identity
    log: Log

    @classmethod
    def open(cls, place: str | os.PathLike[str]) -> Reader:
        """Open a checkpoint by its folder or URI."""
        location = place_of(place)
        identity = Identity.load(location)
        if identity is None:
            raise Damaged(f"{PATH} of the checkpoint {place} is missing; restore it from a copy")
        return cls(location, identity, Log.open(location))

    def operators(self, version: int | None = None) -> tuple[Json, ...]:
        """The fingerprints of the operators as of a version; by default the last."""
        return self._design(self.at(version)[1]).operators

    def _design(self, index: Index) -> Design:
        return index.design or Design.first(self.identity.operators)

    def name(self, operator: int) -> str:
        """The name of an operator."""
        return str(self.operators()[operator].get("operator"))

    def operator(self, wanted: str) -> int:
        """The number of an operator, by its name or number."""
        names = [self.name(operator) for operator in range(len(self.operators()))]
        if wanted.isascii() and wanted.isdigit() and int(wanted) < len(names):
            return int(wanted)
        matches = [operator for operator, name in enumerate(names) if name == wanted]
        if len(matches) == 1:
            return matches[0]
        choices = ", ".join(f"{operator} ({name})" for operator, name in enumerate(names))
        if matches:
            raise InvalidOption(f"{many(len(matches), 'operator')} are named {wanted}; give the number: {choices}")
        raise InvalidOption(f"there is no operator {wanted!r}; there are {choices}")

    def table(self, operator: int, wanted: str | None = None, version: int | None = None) -> str:
        """The name of one of an operator's tables; the only one by default."""
        tables = [str(name) for name in self._described(operator, version).get("tables", {})]
        if wanted is None and len(tables) == 1:
            return tables[0]
        if wanted is None:
            raise InvalidOption(f"operator {operator} has the tables {', '.join(tables) or 'none'}; choose one")
        if wanted not in tables:
            raise InvalidOption(f"operator {operator} has no table {wanted!r}; there are {', '.join(tables) or 'none'}")
        return wanted

    def at(self, version: int | None = None) -> tuple[Commit | None, Index]:
        """A version's commit and index; by default those of the last, None and an empty one before the first."""
        if version is None:
            return self.log.last, self.log.index
        past = self.log.at(version)
        return past.commit, past.index

    def _described(self, operator: int, version: int | None) -> Json:
        """The fingerprint of an operator as of a version."""
        operators = self.operators(version)
        if operator >= len(operators):
            raise InvalidOption(f"version {version} has no operator {operator}: it came later; choose a newer version")
        return operators[operator]

    def schema(self, operator: int, table: str, version: int | None = None) -> pa.Schema:
        """The columns of a state table as `state` yields them."""
        fields = fields_of(self._described(operator, version)["tables"][table])
        first = BIN if "bin" in fields else "bin"
        return pa.schema([(first, pa.int32()), *fields.items()])

    def bins(
        self, operator: int, table: str, where: Sequence[Equal], version: int | None = None
    ) -> Sequence[int] | None:
        """The bins that can hold rows of a table that meet conditions; None for all."""
        described = self._described(operator, version)
        fields = fields_of(described["tables"][table])
        key = [*fields.items()][: len(described["key"])]
        return bins_of(typed(where, fields), key, self.count(version))

    def count(self, version: int | None = None) -> int:
        """How many bins a version has, by default the last."""
        if version is None:
            return self.identity.bins
        commit, _ = self.at(version)
        return self.identity.bins if commit is None else len(commit.operators[0].owner)

    def state(
        self,
        operator: int,
        table: str,
        version: int | None = None,
        where: Sequence[Equal] = (),
        bins: Sequence[int] | None = None,
    ) -> Iterator[pa.Table]:
        """The rows of a state table that meet conditions, sorted by bin and key, in pieces.

        Where conditions name the whole key, only the parts of files are read that hold the key's bin.
        """
        index = self.at(version)[1]
        described = self._described(operator, version)["tables"][table]
        key = [name for name, _ in described["key"]]
        wanted = self.bins(operator, table, where, version) if bins is None else bins
        pieces = rebuild(self.location, index, operator, table, key, wanted)
        values = typed(where, fields_of(described))
        return (matching(piece, values) for piece in pieces)

    def side(
        self, kind: Literal["late", "dead"], operator: int | None = None, version: int | None = None
    ) -> Iterator[pa.Table]:
        """Late or dead rows with version and operator, of one operator and version or of all, oldest first."""
        for at, rows in self._settled_side(kind, operator, version):
            wanted = rows if version is None else rows.filter(pc.equal(rows[VERSION], version))
            named = wanted.drop_columns([VERSION])
            operators = pa.array([at] * named.num_rows, pa.int64())
            for name, values in (("operator", operators), ("version", wanted[VERSION])):
                if name not in rows.schema.names:
                    named = named.add_column(0, name, values)
            yield named

    def _settled_side(self, kind: str, operator: int | None, version: int | None) -> list[tuple[int, pa.Table]]:
        """All files, read again where a running driver has merged or dropped some of them meanwhile."""
        while True:
            before = self.location.list(FOLDER), sequences(self.location)
            try:
                return [*self._side(kind, operator, version)]
            except CheckpointError:
                if (self.location.list(FOLDER), sequences(self.location)) == before:
                    raise
                self.log.refresh()

    def _side(self, kind: str, operator: int | None, version: int | None) -> Iterator[tuple[int, pa.Table]]:
        """The operator and the rows of each file, oldest first; the rows have their version."""
        if self.log.last is None:
            return
        first = self.log.first_version()
        files = [file for file in uncovered(side_files(self.location)) if file.kind == kind]
        merged = [file for file in files if file.level]
        for file in files:
            # The log drops old versions; their side outputs stay, and the sweep deletes files that no version names.
            is_wanted = operator in (None, file.operator) and (version is None or file.first <= version <= file.last)
            if is_wanted and (file.level or file.last < first):
                yield file.operator, file.read(self.location)
        for commit in self.log.commits(first):
            for at, part in enumerate(commit.operators):
                is_merged = any(each.operator == at and each.first <= commit.version <= each.last for each in merged)
                if is_merged or operator not in (None, at) or version not in (None, commit.version):
                    continue
                for ref in part.side:
                    if ref.kind == kind:
                        yield at, with_version(read_side(self.location, ref), commit.version)


def rebuild(
    location: Location, index: Index, operator: int, table: str, key: Sequence[str], bins: Sequence[int] | None = None
) -> Iterator[pa.Table]:
    """Return the rows of one state table, sorted by bin and key, a group of bins at a time.

    Args:
        location: the checkpoint.
        index: the index of the wanted version.
        operator: the number of the operator.
        table: the name of its table.
        key: the names of the table's key columns.
        bins: those whose rows are wanted; all by default.
    """
    if operator >= len(index.operators):
        return
    layouts = () if index.design is None else index.design.layouts[operator]
    every = np.arange(index.operators[operator].bins) if bins is None else np.array(bins, np.int64)
    share = every.size / index.operators[operator].bins
    stored = sum(file.bytes for file in index.files(operator)) * share
    groups = min(every.size, max(1, int(-(-stored // _GROUP_BYTES))))
    for wanted in np.array_split(every, groups):
        pieces = []
        for part in index.parts(operator, wanted.tolist()):
            rows = _in_newest_layout(read_state(location, part.file, part.bins), part, layouts, index).get(table)
            if rows is not None:
                pieces.append(rows)
        if pieces:
            yield _newest(pa.concat_tables(pieces), key)


def _in_newest_layout(
    tables: Mapping[str, pa.Table], part: Part, layouts: Sequence[StateLayout], index: Index
) -> Mapping[str, pa.Table]:
    """The tables of a file in their newest layout; refused where only a function of the user's can bring them there."""
    for layout in layouts[part.file.layout + 1 :]:
        if layout.functions:
            raise CheckpointError(
                f"the table {layout.functions[0]!r} is being converted by a function, and bin {part.bins[0]} waits for "
                f"it; read version {index.way_back}, which is before that, or wait until it has ended"
            )
    return converted(tables, layouts, part.file.layout, {})


def _newest(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    """The last row of each key, unless it deletes the key."""
    numbered = rows.select(list(key)).append_column(_ROW, pa.array(np.arange(rows.num_rows)))
    last = numbered.group_by(list(key)).aggregate([(_ROW, "max")]).column(f"{_ROW}_max")
    latest = rows.take(last)
    live = latest.filter(pc.invert(latest.column(DELETED))).drop_columns([DELETED])
    live = live.sort_by([(BIN, "ascending"), *((name, "ascending") for name in key)])
    if "bin" in live.column_names:
        return live
    return live.rename_columns(["bin" if name == BIN else name for name in live.column_names])
