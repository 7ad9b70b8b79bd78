"""The files of a checkpoint: how they are named, sealed, stored and read, on disk or inline in a manifest.

The version in a name is that of the commit that names the file, for snapshots too: the sweep takes an unnamed file of
a committed version for a leftover of a failed attempt. A small JSON file is sealed: its last field is a checksum of all
bytes before it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, cast

import pyarrow as pa
from pyarrow import ipc

from meander.errors import Damaged
from meander.route.hashing import checksum
from meander.store import statefile
from meander.store.entries import FileRef, Kind
from meander.store.location import Location
from meander.types import WorkerId

_BEFORE = b',"checksum":"'
_AFTER = b'"}\n'
_LENGTH = len(_BEFORE) + 16 + len(_AFTER)
_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False, check_circular=False).encode

_PATH = re.compile(r"(deltas|snapshots|side)/v(\d{12})-s(\d+)-w(\d+)-(\d+)\.(\d+)\.[a-z0-9.]+")
_SUFFIX = {"deltas": "state", "snapshots": "state", "late": "late.arrow", "dead": "dead.arrow"}


def seal(fields: Mapping[str, Any]) -> bytes:
    """Return an object as JSON with its checksum.

    >>> seal({"bins": 256})
    b'{"bins":256,"checksum":"e2260e3416b36e39"}\\n'
    """
    body = _encode(fields).encode()[:-1]
    return body + _BEFORE + f"{checksum(body):016x}".encode() + _AFTER


def seal_of(data: bytes) -> str:
    """The checksum at the end of a sealed file, as 16 hexadecimal digits."""
    return data[-_LENGTH + len(_BEFORE) : -len(_AFTER)].decode("ascii", "replace")


def unseal(data: bytes, name: str) -> dict[str, Any]:
    """Return the object of a sealed file, without its checksum; Damaged, naming the file, where a byte has changed."""
    body, tail = data[:-_LENGTH], data[-_LENGTH:]
    if len(tail) != _LENGTH or tail != _BEFORE + f"{checksum(body):016x}".encode() + _AFTER:
        raise Damaged(f"{name} is torn or has been changed: its checksum does not match; restore it from a copy")
    try:
        return cast(dict[str, Any], json.loads(body + b"}"))
    except ValueError:
        raise Damaged(f"{name} is no JSON although its checksum matches; restore it from a copy") from None


class Attempt(NamedTuple):
    """The writer of a file: its version, operator, worker, driver's epoch and attempt."""

    version: int
    operator: int
    worker: WorkerId
    epoch: int
    attempt: int

    def path(self, what: str) -> str:
        """The path of one of the attempt's files: deltas, snapshots, late or dead.

        >>> Attempt(7, 0, WorkerId(3), 12, 1).path("deltas")
        'deltas/v000000000007-s0-w3-12.1.state'
        """
        folder = what if what in ("deltas", "snapshots") else "side"
        return (
            f"{folder}/v{self.version:012d}-s{self.operator}-w{self.worker}-{self.epoch}.{self.attempt}.{_SUFFIX[what]}"
        )


def attempt_of(path: str) -> Attempt | None:
    """The writer of a file, from its path; None for foreign paths.

    >>> attempt_of("side/v000000000007-s0-w3-12.1.late.arrow")
    Attempt(version=7, operator=0, worker=3, epoch=12, attempt=1)
    """
    match = _PATH.fullmatch(path)
    if match is None:
        return None
    version, operator, worker, epoch, attempt = map(int, match.groups()[1:])
    return Attempt(version, operator, WorkerId(worker), epoch, attempt)


def store(location: Location, path: str, file: statefile.StateFile, worker: WorkerId, inline_bytes: int = 0) -> FileRef:
    """Write a state file and return the reference to it; one of at most `inline_bytes` is kept in the reference."""
    if file.info.bytes <= inline_bytes:
        return FileRef.of(file.info, worker, inline=file.data.to_pybytes())
    location.write(path, file.data)
    return FileRef.of(file.info, worker, path=path)


def store_side(
    location: Location, path: str, rows: pa.Table, worker: WorkerId, kind: Kind, inline_bytes: int = 0
) -> FileRef:
    """Write late or dead rows as a plain Arrow file and return the reference to it."""
    data = to_arrow_file(rows)
    ref = FileRef(worker, data.size, rows.num_rows, checksum(data), path, kind=kind)
    if data.size <= inline_bytes:
        return replace(ref, path=None, inline=data.to_pybytes())
    location.write(path, data)
    return ref


def to_arrow_file(rows: pa.Table) -> pa.Buffer:
    """Return rows as an Arrow file."""
    sink = pa.BufferOutputStream()
    with ipc.new_file(sink, rows.schema) as file:
        file.write_table(rows)
    return sink.getvalue()


def source_of(location: Location, ref: FileRef) -> Any:
    """Return the source of a reference: an open file, or a buffer where its contents are inline."""
    return location.open_input(ref.path) if ref.path is not None else pa.py_buffer(ref.inline)


def read_state(location: Location, ref: FileRef, bins: Collection[int] | None = None) -> dict[str, pa.Table]:
    """Return the tables of a state file, all of it or only the rows of some bins; checked."""
    source = source_of(location, ref)
    try:
        return statefile.read(source, bins, name=ref.name, expected=ref.checksum)
    finally:
        if isinstance(source, pa.NativeFile):
            source.close()


def read_side(location: Location, ref: FileRef) -> pa.Table:
    """Return the rows of a side output; checked."""
    data = pa.py_buffer(ref.inline) if ref.path is None else location.read(ref.path)
    if data.size != ref.bytes or checksum(data) != ref.checksum:
        raise Damaged(f"{ref.name} is torn or has been changed: its checksum does not match; restore it from a copy")
    return read_rows(data, ref.name)


def read_rows(data: pa.Buffer, name: str) -> pa.Table:
    """Return the rows of an Arrow file; Damaged, naming it, where it is none."""
    try:
        return ipc.open_file(data).read_all()
    except (pa.ArrowException, OSError) as error:
        raise Damaged(f"{name} is no Arrow file ({error}); restore it from a copy") from None
