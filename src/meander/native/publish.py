"""Observations as files, so that another terminal of the same machine and user can show them.

Each attached query has one file, in a folder that only its user can read. Files are written whole or not at all, and
what is read is not trusted: whatever is no observation is passed over.
"""

from __future__ import annotations

import json
import os
import re
import stat
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path

from meander.errors import InvalidOption
from meander.logs import logger
from meander.native.observation import Observation
from meander.options import whole

NAME = re.compile(r"[a-z0-9_-]{1,64}")
LARGEST_FILE = 64 * 2**20
LARGEST_PID = 2**31 - 1
DAY_S = 24 * 60 * 60


def folder() -> Path:
    """The folder of this user's observations; it need not exist yet.

    It is `native` in $MEANDER_RUNTIME_DIR, else in $XDG_RUNTIME_DIR/meander, else in meander-<uid> where temporary
    files go.

    Raises:
        InvalidOption: somebody else could put files there, or see to it that ours go elsewhere.
    """
    return _checked(_roots()[0])


class Publication:
    """The file of one run of a query. A write that fails is logged once, and never disturbs the query."""

    def __init__(self, run: str) -> None:
        if not NAME.fullmatch(run):
            raise InvalidOption(f"run is {run!r}; a name has 1 to 64 of the characters a-z, 0-9, _ and -")
        self.run = run
        self._written: Path | None = None
        self._is_closed = False
        self._has_complained = False
        self._lock = threading.Lock()

    def write(self, observation: Observation) -> None:
        """Publish an observation in place of the last one; after `close` this does nothing."""
        # Whoever writes is a listener of the query: nothing may come through to it.
        try:
            with self._lock:
                if not self._is_closed:
                    self._write({"pid": os.getpid(), "observation": observation.to_dict()})
        except Exception as error:
            if not self._has_complained:
                self._has_complained = True
                logger.warning(
                    "run %s goes on, but 'meander native top' cannot show it, for its figures cannot be written: %s",
                    self.run,
                    error,
                )

    def close(self) -> None:
        """Remove the file."""
        with self._lock:
            self._is_closed = True
            if self._written is not None:
                with suppress(OSError):
                    self._written.unlink(missing_ok=True)

    def _write(self, content: dict[str, object]) -> None:
        data = json.dumps(content, allow_nan=False).encode()
        place = folder()
        for each in (place.parent, place):
            each.mkdir(mode=0o700, exist_ok=True)
        # Checked again, for the one that was just made may have been somebody else's a moment before.
        target = folder() / f"{self.run}.json"
        # mkstemp makes a new file of mode 0600, and follows no link.
        handle, name = tempfile.mkstemp(dir=place, prefix=f"{self.run}.", suffix=".part")
        temporary = Path(name)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            temporary.replace(target)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        self._written = target


def published() -> list[Observation]:
    """What the attached queries of this user on this machine have published, newest first.

    Files that cannot be read are passed over. Those that nobody keeps up to date are removed: the process that wrote
    them is gone, or they are more than a day old.

    Raises:
        InvalidOption: there is nothing, and a folder cannot be trusted.
    """
    observations: list[Observation] = []
    refusals: list[InvalidOption] = []
    for root in _roots():
        try:
            place = _checked(root)
            files = sorted(place.iterdir()) if place.is_dir() else []
        except InvalidOption as refusal:
            refusals.append(refusal)
            continue
        except OSError:
            continue
        observations += [each for each in map(_read, files) if each is not None]
    if refusals and not observations:
        raise refusals[0]
    return sorted(observations, key=lambda each: (-each.time_ms, each.query, each.run))


def _roots() -> list[Path]:
    """Where observations may be, the place for our own first.

    A job without a session, such as one of cron, has no $XDG_RUNTIME_DIR: readers look at both places.
    """
    if own := os.environ.get("MEANDER_RUNTIME_DIR"):
        return [Path(own)]
    roots = [Path(tempfile.gettempdir()) / f"meander-{os.geteuid()}"]
    session = os.environ.get("XDG_RUNTIME_DIR")
    if session and Path(session).is_dir():
        roots.insert(0, Path(session) / "meander")
    return roots


def _checked(root: Path) -> Path:
    """The folder in this root, where both belong to this user alone as far as they exist."""
    place = root / "native"
    for each in (root, place):
        try:
            entry = each.lstat()
        except FileNotFoundError:
            continue
        except OSError as error:
            raise _refusal(each, f"cannot be looked at ({(error.strerror or str(error)).lower()})") from None
        if stat.S_ISLNK(entry.st_mode):
            raise _refusal(each, "is a symbolic link")
        if not stat.S_ISDIR(entry.st_mode):
            raise _refusal(each, "is not a folder")
        if entry.st_uid != os.geteuid():
            raise _refusal(each, f"belongs to user {entry.st_uid}")
        if entry.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise _refusal(each, "can be written by others")
    return place


def _refusal(place: Path, fault: str) -> InvalidOption:
    return InvalidOption(f"{place} {fault}; set MEANDER_RUNTIME_DIR to a folder of your own that nobody else can write")


def _read(path: Path) -> Observation | None:
    """The observation in a file; None where there is none, or none of a query that still runs."""
    with suppress(OSError):
        if path.suffix == ".part" and time.time() - path.lstat().st_mtime > DAY_S:
            path.unlink()
    if path.suffix != ".json" or not NAME.fullmatch(path.stem):
        return None
    try:
        content = json.loads(_bytes_of(path))
        pid = whole("pid", content["pid"], 1, LARGEST_PID)
        observation = Observation.from_dict(content["observation"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    if _is_running(pid) and time.time() - observation.time_ms / 1000 <= DAY_S:
        return observation
    with suppress(OSError):
        path.unlink()
    return None


def _bytes_of(path: Path) -> bytes:
    # Neither a link that leads elsewhere nor a pipe that never answers.
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as file:
        entry = os.fstat(handle)
        if not stat.S_ISREG(entry.st_mode) or entry.st_uid != os.geteuid() or entry.st_size > LARGEST_FILE:
            raise OSError(f"{path} is not a file of ours, or too large")
        return file.read(LARGEST_FILE)


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError as error:
        return not isinstance(error, ProcessLookupError)
    return True
