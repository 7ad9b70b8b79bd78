"""What can be thrown away: files that no kept version needs. The driver sweeps, between batches, and nobody else."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence

from meander.checkpoint.entries import Commit
from meander.checkpoint.files import attempt_of
from meander.checkpoint.index import Index
from meander.checkpoint.location import Location
from meander.checkpoint.manifest import FOLDER, Log
from meander.errors import InvalidOption

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
    side_from: int | None = None,
) -> list[str]:
    """Return the paths that can be deleted, in the order in which to delete them.

    A file is kept if the index or a later commit names it, if it is pinned, if it is meant for a version that is not
    committed yet, or if its name is none of ours. Everything else is the leaving of an old version or a failed attempt.

    Args:
        paths: what is there.
        index: the index of the oldest version to keep.
        commits: the commits after that version, up to the last.
        last: the last committed version.
        start: the first entry of the log to keep; it carries a full index of the oldest version or an older one.
        pinned: paths that somebody is reading.
        side_from: the oldest version whose side outputs are kept. By default all that were ever named: they are the
            user's rows, not ours.
    """
    needed = {ref.path for ref in index.files()} | {ref.path for commit in commits for ref in commit.files()}
    needed |= set(pinned)
    manifests, files = [], []
    for path in sorted(set(paths) - needed):
        if match := _MANIFEST.fullmatch(path):
            if int(match[1]) < start:
                manifests.append(path)
            continue
        attempt = attempt_of(path)
        if attempt is None or attempt.version > last:
            continue
        version = attempt.version
        if path.startswith("side/") and version <= index.version and (side_from is None or version >= side_from):
            continue
        files.append(path)
    # Entries go first and from the oldest on: a driver that was asleep tells from its parent whether it is fenced.
    return manifests + files


def sweep(
    location: Location, log: Log, keep: int, pinned: Collection[str] = (), side_from: int | None = None
) -> list[str]:
    """Delete what the last `keep` versions do not need, and return the paths."""
    if keep < 1:
        raise InvalidOption(f"keep is {keep}; at least the last version must be kept")
    if log.last is None:
        return []
    oldest = max(log.last.version - keep + 1, log.first_version())
    past = log.at(oldest)
    paths = [f"{folder}/{name}" for folder in FOLDERS for name in location.list(folder)]
    found = garbage(
        paths,
        index=past.index,
        commits=log.commits(oldest + 1),
        last=log.last.version,
        start=past.start,
        pinned=pinned,
        side_from=side_from,
    )
    location.delete(found)
    return found
