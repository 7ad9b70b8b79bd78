"""Garbage: files that no kept version needs. Only the driver sweeps, beside its batches: they would feel it."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Collection, Iterable, Sequence

from meander.errors import InvalidOption
from meander.store.entries import Commit
from meander.store.files import attempt_of
from meander.store.index import Index
from meander.store.location import Location
from meander.store.manifest import FOLDER, Log, read_entry
from meander.store.side import tidy

logger = logging.getLogger("meander")

FOLDERS = ("deltas", "snapshots", "side", FOLDER)

_MANIFEST = re.compile(FOLDER + r"/(\d{12})\.json(\.[0-9a-f]+\.tmp)?")


def garbage(
    paths: Iterable[str],
    *,
    index: Index,
    commits: Sequence[Commit],
    last: int,
    start: int = 0,
    pinned: Collection[str] = (),
) -> list[str]:
    """Return the paths that can be deleted, in the order in which to delete them.

    A file is kept if the index or a later commit names it, if it is pinned, if it belongs to a version that is not
    committed yet, or if its name is foreign. All other files are leftovers of old versions or failed attempts. Side
    outputs are the user's rows: once a commit names them, what becomes of them is decided in `side`.

    Args:
        paths: the existing files.
        index: the index of the oldest version to keep.
        commits: the commits that the log still has, up to the last; at least those after that version.
        last: the last committed version.
        start: the first entry of the log to keep; it carries a full index of the oldest version or an older one.
        pinned: paths that are being read.
    """
    needed = {ref.path for ref in index.files()} | set(pinned)
    for commit in commits:
        needed |= {ref.path for ref in commit.files() if ref.kind != "state" or commit.version > index.version}
    known_from = min((commit.version for commit in commits), default=last + 1)
    manifests, files = [], []
    for path in sorted(set(paths)):
        if match := _MANIFEST.fullmatch(path):
            if int(match[1]) < start:
                manifests.append(path)
            continue
        attempt = attempt_of(path)
        if attempt is None or attempt.version > last:
            continue
        if path not in needed and not (path.startswith("side/") and attempt.version < known_from):
            files.append(path)
    # Entries go first and from the oldest on: a driver that was asleep tells from its parent whether it is fenced.
    return manifests + files


def sweep(
    location: Location, log: Log, keep: int, pinned: Collection[str] = (), side_from: int | None = None
) -> list[str]:
    """Delete the files that the last `keep` versions do not need, and return their paths.

    While state is being converted to a new layout, the last version of the old one is kept: it is the way back.
    """
    if keep < 1:
        raise InvalidOption(f"keep is {keep}; at least the last version must be kept")
    if log.last is None:
        return []
    first = log.first_version()
    commits = log.commits(first)
    if (way_back := log.index.way_back) is not None:
        keep = max(keep, sum(commit.version >= way_back for commit in commits))
    past = log.at(commits[-keep].version if keep <= len(commits) else first)
    entry, _ = read_entry(location, past.start)
    upto = entry.version if entry.commit is None else entry.version - 1  # the entries before it are to be deleted
    saved = _save_side(location, upto, commits, side_from)
    named = {*saved, *(ref.path for commit in commits for ref in commit.files() if ref.path)}
    merged = tidy(location, upto, named, first, side_from)
    paths = [f"{folder}/{name}" for folder in FOLDERS for name in location.list(folder)]
    unused = garbage(
        paths,
        index=past.index,
        commits=commits,
        last=log.last.version,
        start=past.start,
        pinned={*pinned, *saved},
    )
    unused += sorted({*merged} - {*unused, *pinned})
    location.delete(unused)
    return unused


def _save_side(location: Location, upto: int, commits: Sequence[Commit], side_from: int | None) -> list[str]:
    """Write side outputs that are inline in entries to be deleted to files."""
    saved: list[str] = []
    for commit in commits:
        if commit.version > upto or (side_from is not None and commit.version < side_from):
            continue
        for operator, part in enumerate(commit.operators):
            for number, ref in enumerate(part.side):
                if ref.inline is not None:
                    # The same name each time: a sweep that was interrupted is done again and leaves no second copy.
                    path = f"side/v{commit.version:012d}-s{operator}-w{ref.worker}-0.{number}.kept.{ref.kind}.arrow"
                    location.write(path, ref.inline)
                    saved.append(path)
    return saved


class Sweeper:
    """Sweeps a checkpoint in a thread of its own, one time after the other.

    It has a view of the log of its own, and what is meant for versions after the last one it sees it leaves alone: so
    it needs no lock, and does not see a batch that is being made.
    """

    def __init__(self, log: Log, retain: int, retain_side: int, background: bool = True) -> None:
        self._log, self._retain, self._retain_side, self._background = log, retain, retain_side, background
        self._thread: threading.Thread | None = None

    def sweep(self) -> None:
        """Begin to sweep, unless that is being done; called right after a commit."""
        if not self._background:
            self._sweep(self._log.view())
        elif self._thread is None or not self._thread.is_alive():
            view = self._log.view()
            self._thread = threading.Thread(target=self._sweep, args=(view,), name="meander-sweeper", daemon=True)
            self._thread.start()

    def join(self) -> None:
        """Wait until it is done."""
        if self._thread is not None:
            self._thread.join()

    def _sweep(self, log: Log) -> None:
        try:
            sweep(log.location, log, self._retain, side_from=log.index.version - self._retain_side + 1)
        except Exception as problem:
            # Nothing is lost by it: the next one takes what this one left.
            logger.warning("old files could not be removed: %s", problem)
