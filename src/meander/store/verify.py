"""Whether a checkpoint is whole: every checksum, every link of the log, every full index against the commits."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from meander.errors import CheckpointError, Damaged
from meander.pictures import many
from meander.store.entries import Entry, FileRef
from meander.store.files import attempt_of, read_side, read_state
from meander.store.identity import Identity
from meander.store.index import Index
from meander.store.location import Location
from meander.store.manifest import path_of, read_entry, sequences
from meander.store.side import FOLDER as SIDE_FOLDER
from meander.store.side import side_files

_TRIES = 3


@dataclass
class Findings:
    """What was checked, and one sentence for everything that is damaged."""

    entries: int = 0
    files: int = 0
    bytes: int = 0
    unnamed: int = 0
    """Files that no kept version names: leftovers of old versions and failed attempts, which the driver sweeps."""
    damaged: list[str] = field(default_factory=list)


def verify(location: Location) -> Findings:
    """Read everything that the checkpoint names and compare it with what was written."""
    for _ in range(_TRIES):
        before = sequences(location)
        findings = _look(location, before)
        # A running driver may have swept files that were needed when this check began.
        if not findings.damaged or sequences(location) == before:
            break
    return findings


def _look(location: Location, numbers: list[int]) -> Findings:
    findings = Findings()
    try:
        if Identity.load(location) is None:
            findings.damaged.append("meander.json is missing")
    except CheckpointError as error:
        findings.damaged.append(str(error))
    line = _line(location, numbers, findings)
    findings.entries = len(line)
    needed = _index_after(line, findings)
    named = {ref.path: ref for entry in line if entry.commit for ref in entry.commit.files() if ref.path}
    inline = [ref for entry in line if entry.commit for ref in entry.commit.files() if ref.path is None]
    for entry in line:
        if entry.index is not None:
            # Files of the oldest version may have been committed before it; only its index names them.
            named |= {ref.path: ref for ref in Index.from_json(entry.index).files() if ref.path}
    present = [f"{folder}/{name}" for folder in ("deltas", "snapshots", "side") for name in location.list(folder)]
    for ref in needed.files():
        if ref.path is not None:
            named[ref.path] = ref
        else:
            inline.append(ref)
    # Older versions of the log may name files that are swept already; those are not missing.
    wanted = {*present, *(ref.path for ref in needed.files())}
    _check_files(location, [ref for path, ref in named.items() if path in wanted], findings)
    _check_files(location, inline, findings)
    _check_merged(location, findings)
    oldest = min((entry.commit.version for entry in line if entry.commit), default=0)
    findings.unnamed = sum(1 for path in present if path not in named and _is_leftover(path, oldest))
    return findings


def _is_leftover(path: str, oldest: int) -> bool:
    """Whether a file that the log does not name is of no use; late and dead rows outlast their version."""
    attempt = attempt_of(path)
    return attempt is not None and not (path.startswith(f"{SIDE_FOLDER}/") and attempt.version < oldest)


def _line(location: Location, numbers: list[int], findings: Findings) -> list[Entry]:
    """The entries from the oldest to the newest, without those that cannot be read."""
    line: list[Entry] = []
    child: Entry | None = None
    for sequence in range(numbers[-1], -1, -1) if numbers else ():
        if sequence not in numbers:
            if child is None or child.index is None:
                findings.damaged.append(f"{path_of(sequence)} is missing")
            break
        try:
            entry, mark = read_entry(location, sequence)
        except Damaged as error:
            findings.damaged.append(str(error))
            child = None
            continue
        if child is not None and child.parent != mark:
            if child.index is None:
                findings.damaged.append(f"{path_of(child.sequence)} does not follow {path_of(sequence)}")
            break
        line.append(entry)
        child = entry
    return line[::-1]


def _index_after(line: Iterable[Entry], findings: Findings) -> Index:
    """The index after the last entry, each full index on the way compared with the commits before it."""
    index: Index | None = None
    sequence = -1
    past: dict[int, Index] = {}
    for entry in line:
        full = Index.from_json(entry.index) if entry.index is not None else None
        follows = index is not None and entry.sequence == sequence + 1
        if entry.sequence == 0:
            index = Index.empty()
        elif follows and index is not None and entry.commit is not None:
            undoes = entry.commit.undoes
            if entry.commit.rebins is not None:
                index = index.after_rebin(entry.commit)
            elif undoes is None:
                index = index.after(entry.commit)
            elif undoes[0] - 1 in past:
                index = index.after_rollback(entry.commit, past[undoes[0] - 1])
            else:
                index = full
        elif not follows:
            index = full
        if full is not None and index is not None and full.to_json() != index.to_json():
            findings.damaged.append(f"{path_of(entry.sequence)} has an index that contradicts the commits before it")
        index, sequence = full or index, entry.sequence
        if index is not None:
            past[index.version] = index
    return index or Index.empty()


def _check_merged(location: Location, findings: Findings) -> None:
    """Late and dead rows of versions that the log has dropped."""
    for file in side_files(location):
        if file.level:
            findings.files += 1
            try:
                findings.bytes += file.read(location).nbytes
            except CheckpointError as error:
                findings.damaged.append(str(error))


def _check_files(location: Location, refs: Iterable[FileRef], findings: Findings) -> None:
    for ref in refs:
        findings.files += 1
        findings.bytes += ref.bytes
        try:
            if ref.kind == "state":
                rows = sum(table.num_rows for table in read_state(location, ref).values())
            else:
                rows = read_side(location, ref).num_rows
            if rows != ref.rows:
                findings.damaged.append(f"{ref.name} has {many(rows, 'row')}, and the manifest says {ref.rows}")
        except CheckpointError as error:
            findings.damaged.append(str(error))
