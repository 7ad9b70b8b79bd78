"""Where a checkpoint lives: a folder of immutable files on a local disk, or on a `pyarrow.fs` filesystem.

It gives two guarantees: a file under its final name is whole, and of several writers that create the same name exactly
one succeeds.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import fs as pafs

from meander.errors import CheckpointError, Damaged, Exists, InvalidOption, NoSpace
from meander.store.uri import local_path

Exclusive = Callable[[str, bytes], None]
"""Creates a file, whole or not at all, under a path relative to the location; raises Exists where it is there."""

_NAME = re.compile(r"[A-Za-z0-9_.-]+")
_WHOLE_ON_CLOSE = ("s3", "gcs", "abfs")  # an object appears when it is complete, and a rename would be a copy


@dataclass(frozen=True)
class Location:
    """A folder, in which files are read, written whole, and created by exactly one writer.

    Paths are relative, with / between names of letters, digits, `_`, `.` and `-`.
    """

    root: str
    uri: str
    filesystem: Any
    exclusive: Exclusive | None = None
    fsync: bool = False

    @classmethod
    def of(
        cls,
        place: str | os.PathLike[str],
        *,
        exclusive: Exclusive | None = None,
        fsync: bool = False,
        filesystem: Any = None,
    ) -> Location:
        """Return the location of a local path or a file: URI.

        Args:
            place: the folder; it need not exist yet. With `filesystem`, the path in it.
            exclusive: how to create a file exclusively where the filesystem itself cannot (all but local disks).
            fsync: make every write survive a loss of power, not only of the process. For local disks.
            filesystem: a `pyarrow.fs` filesystem to use instead of the one that the place names.
        """
        if filesystem is not None:
            text = os.fspath(place).rstrip("/")
            root = os.path.abspath(text) if isinstance(filesystem, pafs.LocalFileSystem) else text  # noqa: PTH100
            return cls(root or "/", text, filesystem, exclusive, fsync)
        root = local_path("the checkpoint", place)
        return cls(root, Path(root).as_uri(), pafs.LocalFileSystem(), exclusive, fsync)

    @property
    def hadoop_path(self) -> str:
        """The location as Hadoop spells it: it takes %20 for three characters, not for a space."""
        return f"file:{self.root}" if self.is_local else self.uri

    @property
    def is_local(self) -> bool:
        """Whether this is a folder of this machine (or mounted on it)."""
        return isinstance(self.filesystem, pafs.LocalFileSystem)

    def full(self, path: str) -> str:
        """The path of a file in its filesystem; refuses one that could lead out of the location."""
        for name in path.split("/"):
            if not _NAME.fullmatch(name) or not name.strip("."):
                raise InvalidOption(f"{path!r} is not a path in a checkpoint; names have letters, digits, _ . and -")
        return f"{self.root}/{path}" if self.root else path

    def read(self, path: str) -> pa.Buffer:
        """Return the whole contents of a file; Damaged where it is missing or cannot be read."""
        with self._reading(path):
            if self.is_local:
                with open(self.full(path), "rb") as local:  # noqa: PTH123 (called for every file of every version)
                    return pa.py_buffer(local.read())
            with self.filesystem.open_input_stream(self.full(path)) as file:
                return pa.py_buffer(file.read())

    def open_input(self, path: str) -> pa.NativeFile:
        """Open a file to read parts of it; Damaged where it is missing. The caller closes it."""
        with self._reading(path):
            return self.filesystem.open_input_file(self.full(path))

    def write(self, path: str, data: Any, *, fsync: bool | None = None) -> None:
        """Write a file, whole or not at all; replaces an existing one."""
        full, durable = self.full(path), self.fsync if fsync is None else fsync
        with self._writing(path):
            if self.is_local:
                temporary = _temporary(full)
                try:
                    _write_local(temporary, data, durable)
                    os.replace(temporary, full)  # noqa: PTH105
                except BaseException:
                    _forget(temporary)
                    raise
                if durable:
                    _sync_folder(full)
            elif self.filesystem.type_name in _WHOLE_ON_CLOSE:
                self._write_elsewhere(full, data)
            else:
                temporary = _temporary(full)
                self._write_elsewhere(temporary, data)
                self.filesystem.move(temporary, full)

    def create(self, path: str, data: Any, *, fsync: bool | None = None) -> None:
        """Write a new file, whole or not at all; raises Exists in all processes but one."""
        full, durable = self.full(path), self.fsync if fsync is None else fsync
        with self._writing(path):
            if self.exclusive is not None:
                self.exclusive(path, bytes(data))
                return
            if not self.is_local:
                raise CheckpointError(
                    f"{self.uri} has no exclusive create of its own, so two drivers could both commit; "
                    "give Location.of an exclusive= function for it"
                )
            # A link appears at once, with all its contents, and never replaces: a kill leaves at most the temporary.
            temporary = _temporary(full)
            try:
                _write_local(temporary, data, durable)
                os.link(temporary, full)
            finally:
                _forget(temporary)
            if durable:
                _sync_folder(full)

    def make_folder(self, folder: str) -> None:
        """Make a folder that nobody else can read, for others of this user to write to; on local disks."""
        if self.is_local:
            with self._writing(folder):
                _make_folder(self.full(folder), self.fsync)

    def list(self, folder: str) -> list[str]:
        """Return the names of the files in a folder, sorted; none where the folder is missing."""
        full = self.full(folder)
        with self._reading(folder):
            if self.is_local:
                with suppress(FileNotFoundError, NotADirectoryError), os.scandir(full) as entries:
                    return sorted(entry.name for entry in entries if not entry.is_dir())
                return []
            selector = pafs.FileSelector(full, allow_not_found=True)
            return sorted(info.base_name for info in self.filesystem.get_file_info(selector) if info.is_file)

    def folders(self, folder: str) -> Sequence[str]:
        """Return the names of the folders in a folder, sorted; none where it is missing."""
        full = self.full(folder)
        with self._reading(folder):
            if self.is_local:
                with suppress(FileNotFoundError, NotADirectoryError), os.scandir(full) as entries:
                    return sorted(entry.name for entry in entries if entry.is_dir())
                return []
            selector = pafs.FileSelector(full, allow_not_found=True)
            infos = self.filesystem.get_file_info(selector)
            return sorted(info.base_name for info in infos if info.type == pafs.FileType.Directory)

    def exists(self, path: str) -> bool:
        """Whether a file is there."""
        full = self.full(path)
        with self._reading(path):
            return Path(full).is_file() if self.is_local else bool(self.filesystem.get_file_info(full).is_file)

    def delete(self, paths: str | Iterable[str]) -> None:
        """Delete files in this order; missing ones are skipped."""
        for path in [paths] if isinstance(paths, str) else paths:
            with self._writing(path), suppress(FileNotFoundError):
                if self.is_local:
                    Path(self.full(path)).unlink()
                elif self.exists(path):
                    self.filesystem.delete_file(self.full(path))

    def _write_elsewhere(self, full: str, data: Any) -> None:
        if self.filesystem.type_name not in _WHOLE_ON_CLOSE:
            self.filesystem.create_dir(full.rpartition("/")[0] or "/", recursive=True)
        with self.filesystem.open_output_stream(full) as file:
            file.write(data)

    @contextmanager
    def _reading(self, path: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise Damaged(f"{path} of the checkpoint {self.uri} is missing; restore it from a copy") from None
        except OSError as error:
            raise CheckpointError(f"cannot read {path} of the checkpoint {self.uri}: {_reason(error)}") from None

    @contextmanager
    def _writing(self, path: str) -> Iterator[None]:
        try:
            yield
        except FileExistsError:
            raise Exists(f"{path} of the checkpoint {self.uri} is there already") from None
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise NoSpace(f"no space is left to write {path} of the checkpoint {self.uri}; free some") from None
            raise CheckpointError(f"cannot write {path} of the checkpoint {self.uri}: {_reason(error)}") from None


def _reason(error: Exception) -> str:
    return (getattr(error, "strerror", None) or str(error) or type(error).__name__).strip().split("\n")[0].rstrip(".")


def _temporary(full: str) -> str:
    return f"{full}.{secrets.token_hex(6)}.tmp"


def _write_local(full: str, data: Any, durable: bool) -> None:
    try:
        descriptor = os.open(full, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileNotFoundError:
        _make_folder(full.rpartition("/")[0], durable)
        descriptor = os.open(full, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        rest = memoryview(data).cast("B")
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        if durable:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _make_folder(folder: str, durable: bool) -> None:
    parent = folder.rpartition("/")[0]
    if parent and not Path(parent).is_dir():
        _make_folder(parent, durable)
    Path(folder).mkdir(0o700, exist_ok=True)
    if durable:
        _sync_folder(folder)


def _sync_folder(full: str) -> None:
    # The name of a file is in its folder: without this sync a loss of power loses the file.
    descriptor = os.open(full.rpartition("/")[0] or "/", os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _forget(temporary: str) -> None:
    with suppress(OSError):
        Path(temporary).unlink()
