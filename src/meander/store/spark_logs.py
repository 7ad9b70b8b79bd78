"""Spark's own logs inside the checkpoint: made durable before anything depends on them, and mended at a start.

    spark/metadata         whose logs these are        spark/commits/N      batch N has ended
    spark/offsets/N        what batch N holds          spark/sources/S/N    files that a file source has read

Spark writes them without fsync. After a loss of power the newest ones may be empty, torn or missing. A version's commit
holds the text of its offsets, so that those can be written again. What is torn and newer is removed: nobody has heard
of that batch, and Spark makes it anew.
"""

from __future__ import annotations

import json
import os
import re
import zlib
from collections.abc import Mapping
from pathlib import Path

from meander.errors import Damaged, ForeignCheckpoint
from meander.route.hashing import checksum
from meander.store.location import Location

SPARK = "spark"
"""Where Spark's part of the checkpoint is: its metadata and the offsets of each batch."""

_NUMBER = re.compile(r"(\d+)(\.compact)?")
_CHECKSUM = re.compile(r"\.(\d+(?:\.compact)?)\.crc")
_MARK = re.compile(r"[0-9a-f]{16}")
_CHUNK = 512


class Durability:
    """Makes the logs of one of Spark's queries survive a loss of power, each file once."""

    def __init__(self, location: Location, folder: str = SPARK) -> None:
        self._root = Path(location.full(folder)) if location.fsync and location.is_local else None
        self._synced: set[Path] = set()

    def sync(self) -> None:
        """Write what Spark has written since the last time to the disk, and the names of it."""
        if self._root is None:
            return
        present = {path for path in self._root.rglob("*") if not path.name.endswith(".tmp")} | {self._root}
        new = present - self._synced
        # The name of a file is in its folder, and the folder's in the one above.
        for path in sorted(new | {path.parent for path in new}):
            _sync(path)
        self._synced = present


def offsets_of(location: Location, batch: int) -> str:
    """What Spark says that batch `batch` holds, as it wrote it."""
    return _bytes(location, f"{SPARK}/offsets/{batch}").decode()


def is_of(committed: str, offsets: str) -> bool:
    """Whether a committed or announced version is of these offsets; format 1 has noted their checksum alone."""
    return committed in (offsets, f"{checksum(offsets.encode()):016x}")


def has_begun(location: Location, batch: int) -> bool:
    """Whether Spark has fixed what a batch holds; one that is not committed comes first after a start."""
    return location.exists(f"{SPARK}/offsets/{batch}")


def query_of(location: Location, committed: str | None = None) -> str | None:
    """Spark's id of the query whose logs these are, None where there are none; the committed one if torn."""
    path = f"{SPARK}/metadata"
    if not location.exists(path):
        return None
    metadata = _json(_bytes(location, path))
    if isinstance(metadata, dict):
        return str(metadata.get("id"))
    _remove(location, SPARK, "metadata")
    if committed is not None:
        location.write(path, json.dumps({"id": committed}, separators=(",", ":")).encode())
    return committed


def restore(location: Location, batch: int, committed: str) -> str:
    """The offsets of the last committed batch, written again where they are torn or missing.

    Raises:
        ForeignCheckpoint: the logs hold something else, or nothing, and so were reset or replaced.
        Damaged: a file source's log of the files it has read is torn.
    """
    folder = f"{SPARK}/offsets"
    there = _bytes(location, f"{folder}/{batch}") if location.exists(f"{folder}/{batch}") else b""
    offsets = there.decode(errors="replace")
    if not is_of(committed, offsets):
        # Whoever resets the logs removes all of them; a loss of power takes the newest ones.
        is_reset = _is_like(there, committed) or (batch > 0 and not location.exists(f"{folder}/{batch - 1}"))
        if is_reset or _MARK.fullmatch(committed):
            raise ForeignCheckpoint(
                f"{location.uri}/{SPARK} does not hold batch {batch} as it was committed; it was reset or replaced: "
                "restore it, or start with a new checkpoint"
            )
        offsets = committed
        location.write(f"{folder}/{batch}", offsets.encode())
        location.delete(f"{folder}/.{batch}.crc")
    _check_sources(location, offsets)
    return offsets


def rewind(location: Location, batch: int, copies: str, *, is_decided: bool) -> list[str]:
    """Copy what Spark has noted of the batches after `batch`, and where that is decided remove it; returns the paths.

    The log of a file source stays as it is. Spark goes on from the entry that the offsets of `batch` name, and reads
    the files of later entries again.
    """
    paths: list[str] = []
    for log in ("offsets", "commits"):
        folder = f"{SPARK}/{log}"
        for number, name in reversed(_numbered(location, folder)):
            if number > batch:
                location.write(f"{copies}/{log}/{name}", _bytes(location, f"{folder}/{name}"))
                paths.append(f"{folder}/{name}")
                if is_decided:
                    _remove(location, folder, name)
    return paths


def drop_strays(location: Location, batch: int) -> None:
    """Remove what Spark cannot have noted itself when `batch` is the last one committed, or the next one is begun."""
    for log, last in (("offsets", batch + 1), ("commits", batch)):
        for number, name in _numbered(location, f"{SPARK}/{log}"):
            if number > last:
                _remove(location, f"{SPARK}/{log}", name)


def drop_torn(location: Location, folder: str = SPARK, batch: int = -1, offsets: str = "") -> None:
    """Remove what is torn of the batches after `batch`, the last one committed, which has these offsets."""
    torn = _drop_torn_sources(location, f"{folder}/sources", _files_read(offsets.encode()))
    later = [(number, name) for number, name in _numbered(location, f"{folder}/offsets") if number > batch]
    for _, name in later:
        data = _bytes(location, f"{folder}/offsets/{name}")
        names_torn = any(torn.get(source, entry + 1) <= entry for source, entry in _files_read(data).items())
        if names_torn or not _is_like(data, offsets):
            _remove(location, f"{folder}/offsets", name)
    for _, name in reversed(_numbered(location, f"{folder}/commits")):
        if _is_log(_bytes(location, f"{folder}/commits/{name}"), 1):
            break  # Spark reads the newest one alone
        _remove(location, f"{folder}/commits", name)
    for part in ("offsets", "commits", *(f"sources/{source}" for source in location.folders(f"{folder}/sources"))):
        _drop_wrong_checksums(location, f"{folder}/{part}")


def _drop_torn_sources(location: Location, folder: str, known: Mapping[str, int]) -> dict[str, int]:
    """Remove torn entries of file sources' logs after those that are known; the first one of each source."""
    torn: dict[str, int] = {}
    for source in location.folders(folder):
        for number, name in _numbered(location, f"{folder}/{source}"):
            if number > known.get(source, -1) and not _is_log(_bytes(location, f"{folder}/{source}/{name}")):
                _remove(location, f"{folder}/{source}", name)
                torn.setdefault(source, number)
    return torn


def _check_sources(location: Location, offsets: str) -> None:
    for source, number in _files_read(offsets.encode()).items():
        folder = f"{SPARK}/sources/{source}"
        # A compact entry holds all those before it, which Spark may have removed.
        entries = _numbered(location, folder)
        names = [name for each, name in entries if each == number or (each > number and name.endswith(".compact"))]
        if not any(_is_log(_bytes(location, f"{folder}/{name}")) for name in names):
            raise Damaged(
                f"{folder}/{number} of the checkpoint {location.uri} is torn or missing, and with it which files have "
                "been read; restore it from a copy, or start with a new checkpoint"
            )


def _files_read(offsets: bytes) -> dict[str, int]:
    """The newest entry of the log of each file source that offsets name."""
    ends = {str(at): _json(line) for at, line in enumerate(_lines(offsets)[2:])}
    numbers = {source: end.get("logOffset") for source, end in ends.items() if isinstance(end, dict)}
    return {source: number for source, number in numbers.items() if isinstance(number, int) and number >= 0}


def _is_like(data: bytes, offsets: str) -> bool:
    """Whether offsets are whole: lines of the same kinds as those that were committed."""
    lines, known = _lines(data), _lines(offsets.encode())
    if not known:
        return len(lines) > 2 and _is_log(b"\n".join(lines[:2]), 1) and all(lines)
    alike = (_json(line) is not None for line, other in zip(lines, known, strict=False) if _json(other) is not None)
    return len(lines) == len(known) and lines[0] == known[0] and all(alike)


def _is_log(data: bytes, entries: int = 0) -> bool:
    """Whether a log of Spark is whole: its version, then JSON in every line, in so many of them at least."""
    lines = _lines(data)
    return len(lines) > entries and re.fullmatch(rb"v\d+", lines[0]) is not None and None not in map(_json, lines[1:])


def _lines(data: bytes) -> list[bytes]:
    return data.split(b"\n") if data else []


def _json(line: bytes) -> object:
    try:
        return json.loads(line)
    except ValueError:
        return None


def _numbered(location: Location, folder: str) -> list[tuple[int, str]]:
    names = [(match, name) for name in location.list(folder) if (match := _NUMBER.fullmatch(name))]
    return sorted((int(match[1]), name) for match, name in names)


def _bytes(location: Location, path: str) -> bytes:
    return bytes(location.read(path).to_pybytes())


def _remove(location: Location, folder: str, name: str) -> None:
    location.delete([f"{folder}/{name}", f"{folder}/.{name}.crc"])


def _drop_wrong_checksums(location: Location, folder: str) -> None:
    """Remove checksums of Hadoop's that are torn, or of no file: it would refuse to read or to write the file."""
    names = set(location.list(folder))
    for side in sorted(names):
        match = _CHECKSUM.fullmatch(side)
        if match is None:
            continue
        data = _bytes(location, f"{folder}/{match[1]}") if match[1] in names else b""
        sums = [zlib.crc32(data[at : at + _CHUNK]).to_bytes(4, "big") for at in range(0, len(data), _CHUNK)]
        expected = b"crc\0" + _CHUNK.to_bytes(4, "big") + b"".join(sums)
        if match[1] not in names or _bytes(location, f"{folder}/{side}") != expected:
            location.delete(f"{folder}/{side}")


def _sync(path: Path) -> None:
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return  # Spark has removed it since
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
