"""Mending what can be mended of a checkpoint without losing a row, and saying what cannot.

    a torn newest entry of the log     goes: its version is made again, from the same rows
    a damaged old entry of the log     goes with those before it: their versions cannot be read any more
    a rollback that was killed         is finished
    Spark's logs                       what a loss of power has torn of the newest batch is written again, or goes
    leftovers of failed attempts       go

State that is damaged cannot be made anew from the checkpoint; an older version may be whole. What goes is copied first.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from meander.errors import CheckpointError, Damaged
from meander.pictures import many
from meander.store import spark_logs
from meander.store.identity import check_spark_part
from meander.store.location import Location
from meander.store.manifest import FOLDER as LOG
from meander.store.manifest import Log, path_of, read_entry, sequences
from meander.store.retention import FOLDERS, sweep
from meander.store.rollback import FOLDER, finish, is_whole, restorable
from meander.store.verify import verify


@dataclass(frozen=True)
class Repair:
    """What was mended, and what is still damaged; a sentence each."""

    mended: tuple[str, ...]
    left: tuple[str, ...]


def mend_log(location: Location, copies: str) -> list[str]:
    """Make the log readable again; what goes is copied to a folder. Returns what was done, a sentence each."""
    numbers = sequences(location)
    mended = []
    if numbers and not _is_entry(location, numbers[-1]):
        mended.append(_drop_newest(location, numbers, f"{FOLDER}/{copies}"))
        numbers.pop()
    mended += _drop_before_damage(location, numbers, f"{FOLDER}/{copies}")
    return mended


def mend_rest(log: Log) -> list[str]:
    """Mend what is beside the log, which is claimed."""
    location, mended = log.location, []
    if log.is_owed:
        finish(log)
        mended.append(f"version {log.index.version}, a rollback, is carried out in Spark's logs")
    before = _spark_files(location)
    check_spark_part(log)
    if _spark_files(location) != before:
        mended.append("Spark's logs of the newest batch were torn, and are written again or removed")
    temporary = [f"{folder}/{name}" for folder in FOLDERS for name in location.list(folder) if name.endswith(".tmp")]
    location.delete(temporary)
    gone = {*temporary, *sweep(location, log, keep=1 << 60)}
    if gone:
        mended.append(f"{many(len(gone), 'file')} of failed attempts and old versions removed")
    return mended


def rest_of_damage(location: Location) -> list[str]:
    """What is damaged still, with the newest version that is whole, if an older one is."""
    damaged = verify(location).damaged
    try:
        log = Log.open(location)
        last = log.index.version
        if damaged and not is_whole(log, last):
            whole = (each for each in reversed(restorable(log)) if each < last and is_whole(log, each))
            damaged += [f"version {each} is whole: go back to it" for each in [*whole][:1]]
    except CheckpointError:
        pass  # it is among the damage
    return damaged


def _drop_newest(location: Location, numbers: list[int], copies: str) -> str:
    newest = path_of(numbers[-1])
    try:
        before = read_entry(location, numbers[-2])[0] if len(numbers) > 1 else None
    except Damaged:
        raise Damaged(f"{newest} and the entry before it are damaged; restore the checkpoint from a backup") from None
    last = _last_batch(location, numbers[:-1])
    if spark_logs.has_begun(location, last + 2):
        raise Damaged(
            f"{newest} is damaged, and a sink may have heard of a version after it; restore it from a copy, or the "
            "whole checkpoint from a backup"
        )
    _set_aside(location, [newest], copies)
    spark_logs.drop_strays(location, last)  # Spark brings the batch of that version again
    version = (
        "the first version" if before is None or before.version < 0 else f"what came after version {before.version}"
    )
    return f"{newest} was torn and is removed: {version} is made again"


def _last_batch(location: Location, numbers: list[int]) -> int:
    """The batch of the last commit among these entries, -1 if there is none."""
    for number in reversed(numbers):
        entry = read_entry(location, number)[0]
        if entry.commit is not None or entry.last is not None:
            return entry.state.batch
    return -1


def _drop_before_damage(location: Location, numbers: list[int], copies: str) -> list[str]:
    """Remove the entries up to the newest damaged one, and on to the next full index, from which reading can start."""
    child = full = None
    for number in reversed(numbers):
        try:
            entry, mark = read_entry(location, number)
            is_linked = child is None or (child.sequence == number + 1 and child.parent == mark)
        except Damaged:
            is_linked = False
        if not is_linked:
            if full is None:
                return []  # newer entries hang on it
            _set_aside(location, [path_of(each) for each in numbers if each < full.sequence], copies)
            return [f"{LOG}/ was damaged up to entry {number}: versions before {full.version} are gone"]
        child = entry
        full = entry if entry.index is not None else full
    return []


def _is_entry(location: Location, number: int) -> bool:
    try:
        read_entry(location, number)
    except Damaged:
        return False
    return True


def _set_aside(location: Location, paths: Iterable[str], copies: str) -> None:
    for path in paths:
        location.write(f"{copies}/{path}", location.read(path))
        location.delete(path)


def _spark_files(location: Location) -> dict[str, bytes]:
    folders = [f"{spark_logs.SPARK}/{name}" for name in ("offsets", "commits")]
    paths = [f"{folder}/{name}" for folder in folders for name in location.list(folder)]
    return {path: bytes(location.read(path).to_pybytes()) for path in paths}
