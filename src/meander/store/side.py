"""Late and dead rows after the log has dropped their versions: few files, and rows of so many versions alone.

    side/v000000000007-s0-w3-12.1.late.arrow                      what worker 3 set aside in version 7
    side/v000000000000-v000000000015-s0-1-0123456789abcdef.late.arrow    all late rows of operator 0 in versions 0 to 15

Sixteen files of a level, here 1, are merged into one of the next, so that a row is written a few times and there are
few files however old a query is. A merged file has its checksum in its name. It stands for all files of its versions:
those that an interrupted sweep has left beside it are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import cast

import pyarrow as pa
import pyarrow.compute as pc

from meander.errors import Damaged
from meander.route.hashing import checksum
from meander.store.entries import Kind
from meander.store.files import attempt_of, read_rows, to_arrow_file
from meander.store.location import Location

FOLDER = "side"
VERSION = "__version"
"""The column of a merged file that says which version set a row aside."""
FAN_IN = 16
FULL_BYTES = 32 << 20
FULL = 99
"""The level of a merged file that is so large that it is not merged again."""

_MERGED = re.compile(r"v(\d{12})-v(\d{12})-s(\d+)-(\d+)-([0-9a-f]{16})\.(late|dead)\.arrow")
_OF_ATTEMPT = re.compile(r".*\.(late|dead)\.arrow")


@dataclass(frozen=True)
class SideFile:
    """A file of rows that some versions of an operator have set aside; level 0 is a file of one worker."""

    name: str
    kind: Kind
    operator: int
    first: int
    last: int
    level: int = 0
    checksum: int | None = None
    """Of a merged file; of others the log has it."""

    @classmethod
    def of(cls, name: str) -> SideFile | None:
        """The file of a name; None for foreign ones."""
        if match := _MERGED.fullmatch(name):
            first, last, operator, level = map(int, match.groups()[:4])
            return cls(name, cast(Kind, match[6]), operator, first, last, level, int(match[5], 16))
        attempt, match = attempt_of(f"{FOLDER}/{name}"), _OF_ATTEMPT.fullmatch(name)
        if attempt is None or match is None:
            return None
        return cls(name, cast(Kind, match[1]), attempt.operator, attempt.version, attempt.version)

    @property
    def path(self) -> str:
        """Where it is in the checkpoint."""
        return f"{FOLDER}/{self.name}"

    def covers(self, other: SideFile) -> bool:
        """Whether its rows are also those of another file."""
        same = (self.kind, self.operator) == (other.kind, other.operator)
        wider = self.level > other.level or self.last - self.first > other.last - other.first
        return self.level > 0 and same and wider and self.first <= other.first and other.last <= self.last

    def read(self, location: Location) -> pa.Table:
        """Its rows, with their version."""
        data = location.read(self.path)
        if self.checksum not in (None, checksum(data)):
            raise Damaged(f"{self.path} is torn or has been changed: its checksum does not match; restore it")
        rows = read_rows(data, self.path)
        return rows if self.level else with_version(rows, self.first)


def with_version(rows: pa.Table, version: int) -> pa.Table:
    """Rows with the version that set them aside."""
    return rows.append_column(VERSION, pa.array([version] * rows.num_rows, pa.int64()))


def side_files(location: Location) -> list[SideFile]:
    """All files of late and dead rows, oldest first."""
    files = [file for name in location.list(FOLDER) if (file := SideFile.of(name)) is not None]
    return sorted(files, key=lambda file: (file.first, file.operator, file.name))


def uncovered(files: Sequence[SideFile]) -> list[SideFile]:
    """The files whose rows are in no other file."""
    merged = [file for file in files if file.level]
    return [file for file in files if not any(other.covers(file) for other in merged)]


def tidy(location: Location, upto: int, named: Collection[str], known_from: int, keep_from: int | None) -> list[str]:
    """Merge the files of versions up to `upto`, drop rows that are too old, and return the paths to delete.

    Args:
        location: the checkpoint.
        upto: the last version that the log is about to drop.
        named: the files that commits of the log name.
        known_from: the first of those commits; of older versions, all files are good.
        keep_from: the oldest version whose rows are kept; None keeps all. A merged file is cut when half of its
            versions are older.
    """
    files = side_files(location)
    current = uncovered(files)
    gone = {file.path for file in files} - {file.path for file in current}
    old: list[SideFile] = []
    for file in current:
        if keep_from is not None and file.last < keep_from:
            gone.add(file.path)
        elif file.last <= upto and (file.level or file.last < known_from or file.path in named):
            old.append(file)
    for _, mine in groupby(sorted(old, key=_place), key=lambda file: (file.kind, file.operator)):
        gone |= _merge_levels(location, list(mine))
    if keep_from is not None:
        gone |= _cut(location, [file for file in side_files(location) if file.path not in gone], keep_from)
    return sorted(gone)


def _place(file: SideFile) -> tuple[str, int, int]:
    return file.kind, file.operator, file.first


def _merge_levels(location: Location, files: list[SideFile]) -> set[str]:
    """Merge the files of one operator and kind, and return the paths of those that were merged."""
    gone: set[str] = set()
    level = 0
    while any(file.level >= level for file in files if file.level != FULL):
        inputs = [file for file in files if file.level == level]
        if len(inputs) >= FAN_IN:
            others = [file for file in files if file.level != level]
            merged = list(_merge(location, inputs, [file.first for file in others if file.level == FULL]))
            gone |= {file.path for file in inputs} - {file.path for file in merged}
            files = others + merged
        level += 1
    return gone


def _merge(location: Location, files: Sequence[SideFile], full: Collection[int]) -> Iterator[SideFile]:
    """Write all rows of some files, oldest first, to fewer files of the next level; `full` ones stay."""
    pieces: list[tuple[SideFile, pa.Table]] = []
    for first, group in groupby(files, key=lambda file: file.first):
        version = list(group)
        rows = pa.concat_tables([file.read(location) for file in version], promote_options="permissive")
        if pieces:
            newest, known = pieces[-1]
            # A file between them that is not merged would lie in the versions that the merged file stands for.
            is_apart = any(newest.last < other < first for other in full)
            if is_apart or rows.schema != known.schema or _bytes(pieces) + rows.nbytes > 2 * FULL_BYTES:
                # One that has no neighbour to be merged with never gets one.
                yield _write(location, pieces, FULL if len(pieces) == 1 else None)
                pieces = []
        pieces.append((version[-1], rows))
    if len(pieces) == 1 and files[-1].level:
        yield files[-1]
    else:
        yield _write(location, pieces)


def _bytes(pieces: Iterable[tuple[SideFile, pa.Table]]) -> int:
    return sum(rows.nbytes for _, rows in pieces)


def _write(location: Location, pieces: Sequence[tuple[SideFile, pa.Table]], level: int | None = None) -> SideFile:
    (oldest, _), (newest, _) = pieces[0], pieces[-1]
    if level is None:
        level = FULL if _bytes(pieces) >= FULL_BYTES else oldest.level + 1
    return _put(location, pa.concat_tables([rows for _, rows in pieces]), oldest, oldest.first, newest.last, level)


def _put(location: Location, rows: pa.Table, like: SideFile, first: int, last: int, level: int) -> SideFile:
    data = to_arrow_file(rows)
    mark = checksum(data)
    name = f"v{first:012d}-v{last:012d}-s{like.operator}-{level}-{mark:016x}.{like.kind}.arrow"
    file = SideFile(name, like.kind, like.operator, first, last, level, mark)
    location.write(file.path, data)
    return file


def _cut(location: Location, files: Iterable[SideFile], keep_from: int) -> set[str]:
    """Write merged files of which half is too old again without that, and return their paths."""
    cut = [file for file in files if file.level and 2 * (keep_from - file.first) > file.last - file.first + 1]
    for file in cut:
        rows = file.read(location)
        kept = rows.filter(pc.greater_equal(rows[VERSION], keep_from))
        if kept.num_rows:
            _put(location, kept, file, keep_from, file.last, file.level)
    return {file.path for file in cut}
