"""What a sink holds between the two steps of a version: prepared before the manifest, committed after it.

    out/.prepared/3-7-5f0c2a9d/    version 7, as the driver of epoch 3 writes it; readers of out/ do not look here
    out/batch=7/                   version 7, committed: the same folder, after one rename
    out/.undone/3-7-5f0c2a9d/      version 7, after a rollback has undone it; you may remove it

No two writes share a name. A driver that was replaced while it wrote leaves at most a folder that nobody reads.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Generic, TypeVar

from meander.engine.driver.ports import OutputLost, SinkToken, SinkWrite
from meander.engine.worker.output import make_folder, sync
from meander.errors import InvalidOption
from meander.store.uri import local_path, scheme_of

PREPARED = ".prepared"
"""Spark, pandas, Arrow and shells skip a name that begins with a dot."""

UNDONE = ".undone"

_NAME = re.compile(r"(\d+)-(\d+)-[0-9a-f]+(\.replaced)?")

Rows = TypeVar("Rows")


class PreparedRows(Generic[Rows]):
    """The output of versions in this process; of the last `most` versions, or of all."""

    def __init__(self, most: int | None = None) -> None:
        self.versions: dict[int, Rows] = {}
        """What is committed."""
        self._most = most
        self._prepared: dict[str, tuple[SinkWrite, Rows]] = {}
        self._writes = count()
        self._lock = threading.Lock()

    def prepare(self, output: Rows, write: SinkWrite) -> SinkToken:
        """Keep one version's output out of sight."""
        token = f"{write.epoch}-{write.version}-{next(self._writes)}"  # an epoch has one driver, in one process
        with self._lock:
            self._prepared[token] = write, output
        return token

    def commit(self, token: SinkToken) -> None:
        """Show it; nothing to do where that is done, or another process has prepared it."""
        with self._lock:
            if token in self._prepared:
                write, rows = self._prepared.pop(token)
                self.versions[write.version] = rows
                while self._most is not None and len(self.versions) > self._most:
                    del self.versions[min(self.versions)]

    def abort(self, token: SinkToken) -> None:
        """Forget it."""
        with self._lock:
            self._prepared.pop(token, None)

    def sweep(self, last: SinkWrite) -> None:
        """Forget what was prepared in writes that are over."""
        with self._lock:
            self._prepared = {
                token: (write, rows) for token, (write, rows) in self._prepared.items() if not write.is_over(last)
            }

    def undo(self, first: int, last: int, tokens: Sequence[SinkToken]) -> None:
        """Forget versions that a rollback has undone."""
        with self._lock:
            self.versions = {version: rows for version, rows in self.versions.items() if not first <= version <= last}
            for token in tokens:
                if isinstance(token, str):  # others are of a sink that was there before this one
                    self._prepared.pop(token, None)

    def committed(self) -> list[tuple[int, Rows]]:
        """What is committed now, by version."""
        with self._lock:
            return sorted(self.versions.items(), key=lambda each: each[0])


@dataclass(frozen=True)
class OutputFolder:
    """A folder of this machine, or mounted on it, that holds a folder `batch=N` for each committed version."""

    root: str

    @classmethod
    def of(cls, path: str) -> OutputFolder:
        """The folder of a path or a file: URI; refuses one of another kind."""
        scheme = scheme_of(path)
        if scheme not in (None, "file"):
            raise InvalidOption(
                f"me.sinks.files cannot write to {scheme}: it needs a folder with an atomic rename, local or "
                "mounted on all machines; for at least once, take me.sinks.format(name, path=...)"
            )
        return cls(local_path("the folder of me.sinks.files", path))

    def prepare(self, write: SinkWrite, save: Callable[[Path], None]) -> SinkToken:
        """Have a version written to a new folder out of sight, which is not there yet, and return its token."""
        name = f"{write.epoch}-{write.version}-{secrets.token_hex(4)}"
        folder = self.hidden / name
        try:
            if write.fsync:
                make_folder(self.hidden, fsync=True)
            save(folder)
            if write.fsync:
                _sync_all(folder)
                sync(self.hidden)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return {"folder": self.root, "name": name, "version": write.version, "fsync": write.fsync}

    def take(self, write: SinkWrite, files: Sequence[str], folder: Path) -> None:
        """Make the new folder of a version, and move the files there that workers have written out of sight."""
        folder.mkdir(parents=True)
        for file in map(Path, files):
            try:
                file.rename(folder / file.name)
            except FileNotFoundError:
                raise OutputLost(
                    f"{file.name} of version {write.version} was written by a worker and is not in {file.parent}: "
                    "the folder of me.sinks.files must be the same on all machines"
                ) from None
        for each in {Path(file).parent for file in files}:
            with suppress(OSError):
                each.rmdir()

    def commit(self, token: SinkToken) -> None:
        """Show what a token of this folder names, in place of whatever is there; nothing to do where that is done."""
        folder, target = self.hidden / token["name"], Path(self.root) / f"batch={token['version']}"
        try:
            _rename(folder, target)
        except FileNotFoundError:
            if not target.exists():
                raise OutputLost(
                    f"version {token['version']} is neither prepared in {folder} nor committed in {target}; let one "
                    "query alone write to a folder, and remove nothing that it prepares"
                ) from None
        if token["fsync"]:
            sync(Path(self.root))

    def abort(self, token: SinkToken) -> None:
        """Remove what a token of this folder names."""
        shutil.rmtree(self.hidden / token["name"], ignore_errors=True)

    def sweep(self, last: SinkWrite) -> None:
        """Remove what was prepared in writes that are over."""
        for path in self.prepared():
            match = _NAME.fullmatch(path.name)
            if match is not None and SinkWrite(int(match[2]), int(match[1])).is_over(last):
                shutil.rmtree(path, ignore_errors=True)

    def undo(self, token: SinkToken) -> None:
        """Take what a token of this folder names out of sight for good, shown or only prepared; it is kept aside."""
        aside = Path(self.root) / UNDONE / token["name"]
        # Prepared first: a driver that wakes up late then finds nothing to show.
        for path in (self.hidden / token["name"], Path(self.root) / f"batch={token['version']}"):
            if path.is_dir():
                aside.parent.mkdir(exist_ok=True)
                path.rename(aside)
                if token["fsync"]:
                    sync(aside.parent)
                    sync(Path(self.root))

    def prepared(self) -> list[Path]:
        """The folders that are out of sight."""
        return sorted(self.hidden.iterdir()) if self.hidden.is_dir() else []

    @property
    def hidden(self) -> Path:
        """Where what is prepared lies, in a folder for each attempt."""
        return Path(self.root) / PREPARED


def undo_folders(tokens: Sequence[SinkToken]) -> int:
    """Hide the versions of tokens that output folders have made, in this order, and return how many those are."""
    mine = [token for token in tokens if isinstance(token, dict) and {"folder", "name", "version"} <= token.keys()]
    for token in mine:
        OutputFolder(token["folder"]).undo(token)
    return len(mine)


def _rename(prepared: Path, target: Path) -> None:
    """Move a folder; one that is in its place goes away first: of another query, or of a version never committed."""
    try:
        prepared.rename(target)
        return
    except OSError as problem:
        if problem.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
    replaced = prepared.with_name(f"{prepared.name}.replaced")
    target.rename(replaced)
    try:
        prepared.rename(target)
    except FileNotFoundError:
        # Another driver has committed the same token meanwhile: it is there, or it is what went away.
        if not target.exists():
            replaced.rename(target)
            return
    shutil.rmtree(replaced, ignore_errors=True)


def _sync_all(folder: Path) -> None:
    for parent, _, files in os.walk(folder, topdown=False):
        for name in (*files, ""):
            sync(Path(parent) / name)
