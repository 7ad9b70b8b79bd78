"""A copy of a whole checkpoint, of one moment, also while its query runs: whole and checked, or not there at all."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from meander.errors import CheckpointError, Damaged, InvalidOption
from meander.store.entries import Entry
from meander.store.identity import PATH
from meander.store.index import Index
from meander.store.location import Location
from meander.store.manifest import Log, path_of, read_entry
from meander.store.spark_logs import SPARK
from meander.store.uri import local_path
from meander.store.verify import verify

_TRIES = 5
_KNOWN = ("deltas", "snapshots", "side", "manifests", SPARK)
"""Folders of which a part is copied; others are copied as they are."""
_NUMBER = re.compile(r"\.?(\d+)(\.crc)?")


@dataclass(frozen=True)
class Backup:
    """What was copied: the last version in it, files and bytes."""

    place: str
    version: int
    files: int
    bytes: int


def back_up(location: Location, to: str | os.PathLike[str]) -> Backup:
    """Copy a checkpoint to a new folder; it is there under its name when it is whole and its checksums are checked."""
    target = Path(local_path("the folder of the backup", to))
    if target.exists():
        raise InvalidOption(f"{target} is there already; name a folder that does not exist yet")
    if target.is_relative_to(location.root):
        raise InvalidOption(f"{target} is in the checkpoint itself; name a folder elsewhere")
    hidden = target.with_name(f".{target.name}.part")
    shutil.rmtree(hidden, ignore_errors=True)
    copy = replace(Location.of(hidden), fsync=location.fsync)
    try:
        version, files, size = _copy(location, copy)
        if damaged := verify(copy).damaged:
            raise Damaged(f"the checkpoint {location.uri} is not whole, so there is no backup of it: {damaged[0]}")
        hidden.rename(target)
    except OSError as error:
        raise CheckpointError(f"cannot write the backup {target}: {(error.strerror or str(error)).lower()}") from None
    finally:
        shutil.rmtree(hidden, ignore_errors=True)
    return Backup(str(target), version, files, size)


def _copy(location: Location, copy: Location) -> tuple[int, int, int]:
    for attempt in range(_TRIES):
        log = Log.open(location)
        try:
            files = size = 0
            for path in _paths(log):
                data = location.read(path)
                copy.write(path, data)
                files, size = files + 1, size + data.size
            return log.index.version, files, size
        except Damaged:
            # A running driver, or Spark, may have swept a file meanwhile.
            if attempt + 1 == _TRIES:
                raise
            shutil.rmtree(copy.root, ignore_errors=True)
    raise AssertionError("unreachable")


def _paths(log: Log) -> Iterator[str]:
    """The files of the checkpoint as of the last entry of a log, what they depend on first."""
    location = log.location
    entries = [read_entry(location, sequence)[0] for sequence in range(log.oldest(), log.next_sequence)]
    needed = {file.path for file in log.index.files() if file.path}
    known = needed | _named(entries)
    for folder in ("deltas", "snapshots"):
        there = {f"{folder}/{name}" for name in location.list(folder)}
        # Old versions may name files that are swept; what the last one needs has to be there.
        yield from sorted(there & known | {path for path in needed if path.startswith(f"{folder}/")})
    yield from (f"side/{name}" for name in location.list("side") if not name.endswith(".tmp"))
    last = log.last.batch if log.last else -1
    for path in _walk(location, SPARK):
        if not path.endswith(".tmp") and _is_of(path, last):
            yield path
    others = sorted(path.name for path in Path(location.root).iterdir() if path.is_dir() and path.name not in _KNOWN)
    for folder in others:
        yield from _walk(location, folder)
    yield from (path_of(entry.sequence) for entry in entries)
    if location.exists(PATH):
        yield PATH


def _named(entries: list[Entry]) -> set[str]:
    """All files that entries name."""
    refs = [ref for entry in entries if entry.commit for ref in entry.commit.files()]
    refs += [ref for entry in entries if entry.index for ref in Index.from_json(entry.index).files()]
    return {ref.path for ref in refs if ref.path}


def _is_of(path: str, last: int) -> bool:
    """Whether a file of Spark's is of a batch that the log knows, or of the one after it, which may be begun."""
    _, folder, name = path.split("/", 2) if path.count("/") > 1 else ("", "", path)
    match = _NUMBER.fullmatch(name)
    if match is None or folder not in ("offsets", "commits"):
        return True
    return int(match[1]) <= last + (folder == "offsets")


def _walk(location: Location, folder: str) -> Iterator[str]:
    for name in location.list(folder):
        yield f"{folder}/{name}"
    for name in location.folders(folder):
        yield from _walk(location, f"{folder}/{name}")
