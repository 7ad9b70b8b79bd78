"""A checkpoint in your hands: what it holds, whether it is whole, a copy of it, and the way back to an older version.

    checkpoint = me.checkpoint("/data/words")
    checkpoint.versions()                  what was committed, and what can be gone back to
    checkpoint.state("count", spark)       the state as a DataFrame
    checkpoint.verify()                    every checksum and every link of the log
    checkpoint.copy_to("/backup/words")    a backup, also while the query runs
    checkpoint.rollback(to=12)             state and Spark's offsets, together
    checkpoint.rebin(4096)                 the same state in another number of bins
    checkpoint.repair()                    mend what can be mended

Only `rollback`, `rebin` and `repair` change anything, and only while no query runs on it.
"""

from __future__ import annotations

import datetime
import os
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import pyarrow as pa

from meander.clock import SystemClock
from meander.engine.driver.run import runs_here
from meander.errors import CheckpointError, Damaged, InvalidOption
from meander.operators.operator import ALL
from meander.options import whole
from meander.prepared import undo_folders
from meander.store import rebin as rebins
from meander.store import rollback as rollbacks
from meander.store.backup import Backup, back_up
from meander.store.entries import Commit, LogWriter, sizes
from meander.store.identity import renew
from meander.store.location import Location
from meander.store.lookup import conditions
from meander.store.manifest import Log, read_entry, sequences
from meander.store.reader import Reader, place_of
from meander.store.rebin import Rebin, Tell
from meander.store.repair import Repair, mend_log, mend_rest, rest_of_damage
from meander.store.rollback import Rollback
from meander.store.verify import Findings, verify
from meander.types import WorkerId

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Kind = Literal["batch", "tick", "rollback", "skip", "rebin"]


@dataclass(frozen=True)
class VersionSummary:
    """A committed version, as its manifest knows it.

    Args:
        number: its number; a sink got its rows under it.
        time: when it was committed.
        kind: rows of a batch, a tick without rows, a rollback to an older version, a batch that was
            skipped, or another number of bins.
        batch: Spark's id of the batch; of a tick, that of the batch before it.
        rows: how many rows came in; of those, `late` came too late and `dead` could not be used.
        workers: who owned bins.
        written_bytes: how many bytes of state, late and dead rows it has written.
        undoes: of a rollback, the first and the last number that it undoes.
        is_restorable: whether one can go back to it.
    """

    number: int
    time: datetime.datetime
    kind: Kind
    batch: int
    rows: int
    late: int
    dead: int
    workers: tuple[WorkerId, ...]
    written_bytes: int
    undoes: tuple[int, int] | None
    is_restorable: bool

    @classmethod
    def of(cls, commit: Commit, is_restorable: bool) -> VersionSummary:
        """The version of a commit."""
        plain: Kind = "tick" if commit.tick else "batch"
        kind: Kind = "skip" if commit.skips else "rebin" if commit.rebins else "rollback" if commit.undoes else plain
        workers = tuple(sorted({worker for operator in commit.operators for worker in operator.owner}))
        return cls(
            commit.version, datetime.datetime.fromtimestamp(commit.time_ms / 1000, datetime.UTC), kind, commit.batch,
            commit.rows, commit.late, commit.dead, workers, sizes(commit.files())[1], commit.undoes, is_restorable,
        )  # fmt: skip


class Checkpoint:
    """A checkpoint, looked at from outside its query."""

    def __init__(self, location: Location) -> None:
        self._location = location

    def __repr__(self) -> str:
        return f"<Checkpoint {self.path}>"

    @property
    def path(self) -> str:
        """Its folder."""
        return self._location.root

    def versions(self) -> list[VersionSummary]:
        """The versions that the log still has, oldest first, without those that were undone.

        Returns:
            A summary of each.

        Raises:
            CheckpointError: the log cannot be read.

        Example:
            >>> [(each.number, each.rows, each.is_restorable) for each in checkpoint.versions()]
            [(0, 10, True)]
        """
        log = self._reader().log
        if log.last is None:
            return []
        restorable = set(rollbacks.restorable(log))
        return [VersionSummary.of(each, each.version in restorable) for each in log.commits(log.first_version())]

    def state(
        self,
        operator: str | int,
        spark: SparkSession,
        *,
        table: str | None = None,
        version: int | None = None,
        where: str | None = None,
    ) -> DataFrame:
        """The state of an operator as a DataFrame, read bin by bin.

        Args:
            operator: its name, or its number in the chain.
            spark: the session.
            table: which of its tables, where it has several.
            version: as of this version instead of the last.
            where: conditions such as `user = 'u1'`; one on the whole key reads one bin.

        Returns:
            A DataFrame with the columns of the table and the bin of each row.

        Raises:
            InvalidOption: there is no such operator, table, version or column.

        Example:
            >>> checkpoint.state("count", spark).where("word = 'to'").collect()[0]["count"]
            2
        """
        from meander.datasource import register

        reader = register(spark).read.format("meander").option("operator", operator)
        for name, value in (("table", table), ("version", version), ("where", where)):
            if value is not None:
                reader = reader.option(name, value)
        return reader.load(self.path)

    def to_arrow(
        self,
        operator: str | int,
        *,
        table: str | None = None,
        version: int | None = None,
        where: str | None = None,
    ) -> pa.Table:
        """The state of an operator as an Arrow table, without Spark, sorted by bin and key.

        Args:
            operator: its name, or its number in the chain.
            table: which of its tables, where it has several.
            version: as of this version instead of the last.
            where: conditions such as `user = 'u1'`; one on the whole key reads one bin.

        Returns:
            The columns of the table, and the bin of each row.

        Raises:
            InvalidOption: there is no such operator, table, version or column.

        Example:
            >>> checkpoint.to_arrow("count", where="word = 'to'")["count"].to_pylist()
            [2]
        """
        reader = self._reader()
        at = reader.operator(str(operator))
        name = reader.table(at, table, version)
        pieces = reader.state(at, name, version, conditions(where) if where is not None else ())
        tables = [each for each in pieces if each.num_rows]
        return pa.concat_tables(tables) if tables else reader.schema(at, name, version).empty_table()

    def verify(self) -> Findings:
        """Whether it is whole: every checksum and every link of the log.

        Returns:
            What was read, and the damage, file by file.

        Example:
            >>> checkpoint.verify().damaged
            []
        """
        return verify(self._location)

    def copy_to(self, place: str | os.PathLike[str]) -> Backup:
        """Copy it to a new folder, as of one moment, also while its query runs; the copy is checked.

        Args:
            place: the new folder.

        Returns:
            What was copied.

        Raises:
            CheckpointError: the folder is there already, or the checkpoint is damaged.

        Example:
            >>> backup = checkpoint.copy_to(folder / "backup")
            >>> me.checkpoint(folder / "backup").verify().damaged
            []
        """
        return back_up(self._location, place)

    def rollback(self, to: int, *, dry_run: bool = False, take_over: bool = False) -> Rollback:
        """Go back to an older version: the state and Spark's offsets together, so that what came since comes again.

        It is a version of its own, with the next number that no sink has heard of. What `me.sinks.files` shows of the
        undone versions is hidden; see `docs/go-back.md` for other sinks. A kill at any moment leaves the old version
        or the new one; what else is to be done then, the next start does.

        Args:
            to: the number of the version.
            dry_run: only say what would be done.
            take_over: do it although the driver that wrote last may still run; it then commits nothing more.

        Returns:
            What was undone, or would be.

        Raises:
            InvalidOption: there is no such version any more.
            CheckpointError: a query runs on it, or cannot be seen to have ended.

        Example:
            >>> more = h.batch([{"word": "oops"}])
            >>> checkpoint.rollback(to=0, dry_run=True).undoes
            (1, 1)
        """
        whole("to", to, 0)
        log = self._reader().log
        if dry_run:
            return rollbacks.plan(log, to)
        self._refuse_running(log.writer, take_over)
        rollbacks.plan(log, to)  # a refusal leaves everything as it is
        renew(self._location)
        log.claim(socket.gethostname(), os.getpid())
        rollback = rollbacks.roll_back(log, to, SystemClock().wall_ms())
        undo_folders(log.tokens(*rollback.undoes))
        return rollback

    def rebin(
        self, bins: int, *, dry_run: bool = False, take_over: bool = False, progress: Tell | None = None
    ) -> Rebin:
        """Write all state again in another number of bins, more or fewer, spread evenly over the same workers.

        It is a version of its own. `start` then takes the new number, or none. A kill at any moment leaves the old
        bins or the new ones. One cannot go back to a version with other bins: take a backup first.

        Args:
            bins: how many; a power of two.
            dry_run: only say what would be done.
            take_over: do it although the driver that wrote last may still run; it then commits nothing more.
            progress: is called with how many pieces are done, and of how many.

        Returns:
            What was done, with the sizes.

        Raises:
            InvalidOption: the checkpoint has so many bins already, more workers than that, or no key.
            CheckpointError: a query runs on it, or it cannot be read.

        Example:
            >>> import tempfile
            >>> import meander as me
            >>> folder = tempfile.mkdtemp()
            >>> words = me.stream(me.testing.source("word string")).key_by("word").count()
            >>> with me.testing.harness(words, bins=16, checkpoint=folder) as h:
            ...     emitted = h.batch([{"word": "duck"}])
            >>> done = me.checkpoint(folder).rebin(64, take_over=True)
            >>> (done.before, done.bins, done.number)
            (16, 64, 1)
            >>> with me.testing.harness(words, bins=64, checkpoint=folder) as h:
            ...     h.batch([{"word": "duck"}])
            [{'word': 'duck', 'count': 2}]
        """
        reader = self._reader()
        if all([name for name, _ in operator["key"]] == [ALL] for operator in reader.operators()):
            raise InvalidOption("the stream has no key: all rows are in one bin, however many there are")
        planned = rebins.plan(reader.log, reader.identity, bins)
        if dry_run:
            return planned
        self._refuse_running(reader.log.writer, take_over)
        log = reader.log
        renew(self._location)
        log.claim(socket.gethostname(), os.getpid())
        self._settle(log)
        rebins.finish(self._location)
        identity = self._reader().identity
        done = rebins.rebin(log, identity, bins, SystemClock().wall_ms(), progress or (lambda done, of: None))
        self._settle(log)
        return done

    def _settle(self, log: Log) -> None:
        """Do what a rollback still owes, all but what only a sink of the query's can do; the log is claimed."""
        rollbacks.finish(log)
        if log.is_owed and log.last is not None and log.last.undoes is not None:
            undo_folders(log.tokens(*log.last.undoes))

    def repair(self, *, take_over: bool = False) -> Repair:
        """Mend what can be mended without losing a row; what is removed is copied first.

        Args:
            take_over: do it although the driver that wrote last may still run; it then commits nothing more.

        Returns:
            What was mended, and what is left.

        Raises:
            CheckpointError: a query runs on it, or cannot be seen to have ended.

        Example:
            >>> h.query.stop()
            >>> checkpoint.repair(take_over=True).mended
            ()
        """
        location, wall_ms = self._location, SystemClock().wall_ms()
        self._refuse_running(_newest_writer(location), take_over)
        mended = mend_log(location, f"repair-{wall_ms}")
        log = self._reader().log
        renew(location)
        log.claim(socket.gethostname(), os.getpid())
        rebins.finish(location)
        if log.is_owed and log.last is not None and log.last.undoes is not None:
            undo_folders(log.tokens(*log.last.undoes))
        mended += mend_rest(log)
        return Repair(tuple(mended), tuple(rest_of_damage(location)))

    def _reader(self) -> Reader:
        return Reader.open(self._location.root)

    def _refuse_running(self, writer: LogWriter | None, take_over: bool) -> None:
        """Raise where the driver that wrote last runs, or cannot be seen from here."""
        root = self._location.root
        if take_over or writer is None:
            return
        anyway = "take_over=True (--take-over) goes on all the same: that driver then commits nothing more"
        if runs_here(root):
            raise CheckpointError(f"a query of this process runs on {root}; stop it first")
        if writer.host != socket.gethostname():
            raise CheckpointError(
                f"the last driver of {root} ran on {writer.host} with pid {writer.pid}, and whether it still does "
                f"cannot be seen from here; see that it has ended, and then {anyway}"
            )
        if writer.pid != os.getpid() and _is_alive(writer.pid):
            raise CheckpointError(
                f"the process {writer.pid}, which ran the query on {root}, is alive; stop the query and end it, or if "
                f"the number is another process's now, {anyway}"
            )


def checkpoint(path: str | os.PathLike[str]) -> Checkpoint:
    """A checkpoint by its folder: its versions and its state, a check, a copy, and the way back.

    Args:
        path: the folder that was given to `start`.

    Returns:
        What looks into it; nothing is changed by that.

    Raises:
        CheckpointError: there is none.

    Example:
        >>> me.checkpoint(folder / "checkpoint").versions()[0].rows
        10
    """
    return Checkpoint(place_of(path))


def _newest_writer(location: Location) -> LogWriter | None:
    """Who wrote the newest entry of the log that can be read."""
    for number in reversed(sequences(location)):
        try:
            return read_entry(location, number)[0].driver
        except Damaged:
            continue
    return None


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
