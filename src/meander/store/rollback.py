"""Going back to an older version: the state and Spark's offsets together, by one entry of the log.

    1 claim           every driver that still runs commits nothing more
    2 copy            what Spark has noted of the undone batches, to undone/<number>/
    3 the log's entry    the rollback is a version of its own, with the state of the older one
    4 finish          Spark's notes of undone batches, and undone late and dead rows, go

Killed before 3, nothing has changed. Killed after it, all has: the log says that 4 is owed, and whoever claims next
does it, before Spark starts. No number is ever used twice, since a sink may have heard of it: the rollback's is above
every one that was begun.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from meander.errors import CheckpointError, InvalidOption
from meander.pictures import many
from meander.store import spark_logs
from meander.store.entries import Commit, OperatorCommit
from meander.store.files import read_state
from meander.store.index import Index
from meander.store.location import Location
from meander.store.manifest import Log, Past
from meander.store.side import side_files
from meander.store.spark_logs import SPARK

FOLDER = "undone"
"""Where copies of what a rollback removes are kept, by its number."""


@dataclass(frozen=True)
class Rollback:
    """A rollback, done or planned.

    Args:
        to: the version whose state comes back.
        number: its own number, which is above every one that a sink has heard of.
        undone: the committed versions that it undoes, oldest first.
        batch: the last of Spark's batches that stays; those after it come again.
        batches: how many of them do.
        rows: how many rows the undone versions had taken in.
    """

    to: int
    number: int
    undone: tuple[int, ...]
    batch: int
    batches: int
    rows: int

    @property
    def undoes(self) -> tuple[int, int]:
        """The first and the last number that is undone; the last one may have been begun and never committed."""
        return self.to + 1, self.number - 1

    @property
    def copies(self) -> str:
        """The folder in the checkpoint with what Spark had noted of the undone batches."""
        return f"{FOLDER}/{self.number}"

    def __str__(self) -> str:
        first, last = self.undone[0], self.undone[-1]
        which = f"version {first}" if first == last else f"versions {first} to {last}"
        again = (
            f"Spark brings {many(self.batches, 'batch', 'batches')} again" if self.batches else "no batch comes again"
        )
        return f"version {self.number} has the state of version {self.to} and undoes {which}; {again}"


def restorable(log: Log) -> list[int]:
    """The versions that can be gone back to: those that are kept, with their files and Spark's offsets."""
    if log.last is None:
        return []
    commits, there = log.commits(log.first_version()), _state_files(log.location)
    return [commit.version for commit in commits if _obstacle(log, log.at(commit.version), there) is None]


def is_whole(log: Log, version: int) -> bool:
    """Whether all state of a version is there and as it was written."""
    return _damage(log.location, log.at(version).index) is None


def plan(log: Log, to: int) -> Rollback:
    """What a rollback would do; raises, saying which versions can be reached, where it cannot be done."""
    last = log.last
    if last is None:
        raise InvalidOption(f"nothing is committed in {log.location.uri}, so there is nothing to undo")
    if to >= last.version:
        raise InvalidOption(f"the last version is {last.version}; give an older one than that, not {to}")
    try:
        past = log.at(to)
        obstacle = _obstacle(log, past, _state_files(log.location)) or _damage(log.location, past.index)
    except CheckpointError as error:
        obstacle = str(error)
    if obstacle is not None:
        others = [each for each in restorable(log) if each < last.version and each != to]
        raise CheckpointError(f"cannot go back to version {to}: {obstacle}; {_reach(others)}")
    undone = log.commits(to + 1)
    batches = last.batch - past.commit.batch + _is_begun(log)
    versions = tuple(commit.version for commit in undone)
    return Rollback(to, next_number(log), versions, past.commit.batch, batches, sum(commit.rows for commit in undone))


def next_number(log: Log) -> int:
    """The next version number that no sink has heard of."""
    return log.index.version + 1 + (_is_begun(log) or log.announced is not None)


def _is_begun(log: Log) -> bool:
    """Whether a batch was begun and is not committed; while a rollback is owed, no driver has begun anything since."""
    return log.last is not None and not log.is_owed and spark_logs.has_begun(log.location, log.last.batch + 1)


def roll_back(log: Log, to: int, time_ms: int) -> Rollback:
    """Go back to a version; the log is claimed. The next driver that claims tells the sink, and settles it."""
    finish(log)
    rollback = plan(log, to)
    spark_logs.rewind(log.location, rollback.batch, rollback.copies, is_decided=False)
    past, last = log.at(to), log.last
    assert last is not None
    log.rewind(_commit(rollback, past.commit, last, time_ms), past.index)
    finish(log)
    return rollback


def finish(log: Log) -> None:
    """Do what a rollback still owes to Spark's logs and to late and dead rows; the log is claimed."""
    last = log.last
    if last is None or not log.index.undone:
        return
    log.check()
    if not log.is_owed or last.undoes is None:
        # A driver that was replaced by a rollback, and did not know it yet, may have ended its batch in Spark's eyes.
        spark_logs.drop_strays(log.location, last.batch)
        return
    first, newest = last.undoes
    spark_logs.rewind(log.location, last.batch, f"{FOLDER}/{last.version}", is_decided=True)
    rows = [file.path for file in side_files(log.location) if not file.level and first <= file.first <= newest]
    log.location.delete(rows)


def _commit(rollback: Rollback, past: Commit, last: Commit, time_ms: int) -> Commit:
    """The version that a rollback is: state and event time of the older one, owners and plans of the last one."""
    operators = tuple(
        OperatorCommit(then.frontier, now.owner, newest=then.newest, seen=then.seen)
        for then, now in zip(past.operators, last.operators, strict=False)  # operators may have come since
    )
    dropped = {"hook"}
    if len(past.operators) < len(last.operators):  # what moves may be bins of an operator that goes
        dropped |= {"migration", "control"}
    journal = {name: value for name, value in (last.journal or {}).items() if name not in dropped}
    return Commit(
        rollback.number, past.batch, past.tick, past.query, past.offsets, operators,
        time_ms=time_ms, journal=journal, undoes=rollback.undoes,
    )  # fmt: skip


def _state_files(location: Location) -> set[str]:
    """The state files that are there."""
    return {f"{folder}/{name}" for folder in ("deltas", "snapshots") for name in location.list(folder)}


def _obstacle(log: Log, past: Past, there: Collection[str]) -> str | None:
    """Why one cannot go back to a version, given the state files that are there; None where one can."""
    commit, location = past.commit, log.location
    bins, now = (len(each.operators[0].owner) for each in (commit, log.last or commit))
    if bins != now:
        return f"it has {many(bins, 'bin')} and the checkpoint has {now} now"
    if location.folders(f"{SPARK}/state"):
        return "the source keeps state of its own in Spark's part of the checkpoint, which cannot go back"
    if (commit.journal or {}).get("hook"):
        return f"it is a part of batch {commit.batch}"
    if any(file.path not in there for file in past.index.files() if file.path):
        return "its state is not kept any more"
    if not spark_logs.has_begun(location, commit.batch):
        return f"Spark has dropped batch {commit.batch} from its logs"
    if not spark_logs.is_of(commit.offsets, spark_logs.offsets_of(location, commit.batch)):
        return f"Spark's logs have another batch {commit.batch}"
    return None


def _damage(location: Location, index: Index) -> str | None:
    """What is wrong with the files of an index."""
    try:
        for file in index.files():
            read_state(location, file)
    except CheckpointError as error:
        return str(error)
    return None


def _reach(versions: Sequence[int]) -> str:
    """Which versions can be reached, as the end of a sentence."""
    if not versions:
        return "no other version can be reached"
    return f"versions that can be reached: {', '.join(_runs(versions))}"


def _runs(versions: Sequence[int]) -> Iterator[str]:
    """Numbers, neighbours joined: 0 to 3, 7."""
    start = versions[0]
    for at, version in enumerate(versions):
        if at + 1 == len(versions) or versions[at + 1] != version + 1:
            yield f"{start}" if start == version else f"{start} to {version}"
            start = versions[at + 1] if at + 1 < len(versions) else start
