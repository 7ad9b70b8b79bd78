"""A user's own stream or operator, tested without Spark: batches in, output out, workers that come, go and get lost."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from meander.clock import ManualClock
from meander.engine.driver.conversion import with_converters
from meander.engine.driver.driver import Driver
from meander.engine.driver.run import QueryRun
from meander.engine.driver.settings import Settings
from meander.errors import InvalidOption, MigrationFailed
from meander.migration.control_stream import ControlStream
from meander.migration.handle import Migration
from meander.operators.times import microseconds
from meander.options import whole
from meander.query import Query
from meander.sources import RowSource
from meander.store.evolution import Evolution, Evolve
from meander.store.location import Location
from meander.store.reader import Reader
from meander.streams import Stream
from meander.testing.inprocess import InProcessCluster, InProcessJobs, MemorySink
from meander.testing.rows import Rows, rows_of
from meander.testing.stream import InProcessLaunch, InProcessStream
from meander.types import WorkerId

MAX_TICKS = 1000
MAX_WORKERS = 1 << 10


def harness(stream: Stream, workers: int = 2, bins: int = 16, **settings: Any) -> Harness:
    """Run a stream in this process, without Spark: the real driver, the real workers, real state files.

    Args:
        stream: a stream over `me.testing.source`, with at least one operator.
        workers: how many workers own the bins.
        bins: into how many slices the keys are cut; a power of two.
        settings: as for `start`: snapshot_every, retain, idle_after_s, idle_time, on_error, .., and checkpoint.

    Returns:
        A harness, to be used as a context manager.

    Raises:
        InvalidOption: the stream has no operator, or reads a DataFrame of Spark.

    Example:
        >>> import meander as me
        >>> words = me.stream(me.testing.source("word string"))
        >>> with harness(words.key_by("word").count(), workers=3) as h:
        ...     first = h.batch([{"word": "duck"}, {"word": "goose"}, {"word": "duck"}])
        ...     move = h.rescale(4)
        ...     second = h.batch([{"word": "duck"}])
        >>> sorted((row["word"], row["count"]) for row in first), second
        ([('duck', 2), ('goose', 1)], [{'word': 'duck', 'count': 3}])
    """
    return Harness(stream, workers, bins, settings)


class Harness:
    """A stream that runs in this process, with control of batches, time, workers and restarts."""

    def __init__(self, stream: Stream, workers: int, bins: int, settings: Mapping[str, Any]) -> None:
        if not isinstance(stream.source, RowSource):
            raise InvalidOption("a harness runs without Spark: build the stream over me.testing.source(...)")
        stream.check_end()
        whole("workers", workers, 1, MAX_WORKERS)
        self._folder = tempfile.TemporaryDirectory(prefix="meander-test-")
        self._sources: tuple[RowSource, ...] = stream.flow.sources
        self.clock = ManualClock()
        self.sink = MemorySink()
        self.cluster = InProcessCluster(Path(self._folder.name) / "executors", workers)
        try:
            self._stream, self._options = stream, (workers, bins, dict(settings))
            self._launch = self._launch_of(stream, Evolution())
            self._run = QueryRun(self._launch, self.clock)
        except BaseException:
            self._folder.cleanup()
            raise
        self.query = Query(self._run, background=False)
        """The same handle that `start` returns: assignment, loads, events, rescale, .."""

    def _launch_of(self, stream: Stream, evolution: Evolution) -> InProcessLaunch:
        workers, bins, settings = self._options
        options = dict(settings)
        checkpoint = str(options.pop("checkpoint", Path(self._folder.name) / "checkpoint"))
        graph = stream.flow.graph
        graph = replace(graph, operators=tuple(with_converters(graph.operators, evolution)))
        columns = stream.schema.names if stream.branches[0].shapes else None
        rows = rows_of(stream.flow.sources, None, None, None)
        jobs = InProcessJobs(graph, rows.schema, self.cluster, self.sink, columns)
        chosen = Settings.of(checkpoint, workers, bins, **{"copy_ms": 1e9, **options})
        location = Location.of(checkpoint, fsync=chosen.fsync)
        return InProcessLaunch(graph, location, self.cluster, jobs, chosen, self.clock, workers, evolution=evolution)

    @property
    def driver(self) -> Driver:
        """What makes the versions, for tests of the engine itself."""
        return self._run.driver

    def __repr__(self) -> str:
        return f"<Harness of {self.query}>"

    def __enter__(self) -> Harness:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- rows ----------------------------------------------------------------------------------

    def batch(self, rows: Rows = None, *, left: Rows = None, right: Rows = None) -> list[dict[str, Any]]:
        """Process one batch and return what it emits.

        Args:
            rows: a table or dictionaries, in the columns of the source; where there are several sources, a dictionary
                of these by source: `{orders: [...], clicks: [...]}`, where `orders = me.testing.source(...)`.
            left: where there are two sources, the rows of the first, such as the left one of a join.
            right: and those of the second.

        Returns:
            The rows, as dictionaries.

        Raises:
            InvalidOption: the rows do not fit the columns of the source.
            QueryFailed: an operator has failed.

        Example:
            >>> h.batch([{"word": "to"}])
            [{'word': 'to', 'count': 3}]
        """
        stream = self._run.stream
        assert isinstance(stream, InProcessStream)
        self.clock.advance(1.0)
        stream.put(rows_of(self._sources, rows, left, right))
        self._deliver()
        return self.emitted()

    def emitted(self) -> list[dict[str, Any]]:
        """What the last version emitted.

        Returns:
            The rows, as dictionaries.

        Example:
            >>> sorted(row["count"] for row in h.emitted())
            [1, 1, 1, 1, 1, 1, 2, 2]
        """
        return list(self.sink.versions[self.query.version].to_pylist()) if self.sink.versions else []

    def output(self) -> list[dict[str, Any]]:
        """Everything that committed versions have emitted, oldest first.

        Returns:
            The rows, as dictionaries.

        Example:
            >>> len(h.output())
            8
        """
        return self.sink.rows()

    def latest(self, *key: str) -> list[dict[str, Any]]:
        """The last row that was emitted for every key.

        Args:
            key: the columns of the key.

        Returns:
            The rows, as dictionaries.

        Example:
            >>> again = h.batch([{"word": "to"}])
            >>> [row for row in h.latest("word") if row["word"] == "to"]
            [{'word': 'to', 'count': 3}]
        """
        rows = {tuple(row[name] for name in key): row for row in self.output()}
        return list(rows.values())

    def state(self, operator: int = 0, table: str | None = None) -> list[dict[str, Any]]:
        """The committed rows of a state table, read from the checkpoint alone.

        Args:
            operator: the number of the operator in the chain.
            table: which of its tables, where it has several.

        Returns:
            The rows, as dictionaries.

        Raises:
            InvalidOption: there is no such operator or table.

        Example:
            >>> sum(row["count"] for row in h.state())
            10
        """
        reader = Reader.open(self._launch.settings.checkpoint)
        pieces = reader.state(operator, reader.table(operator, table))
        return [row for piece in pieces for row in piece.drop_columns(["bin"]).to_pylist()]

    def late(self) -> list[dict[str, Any]]:
        """The rows that came too late.

        Returns:
            The rows, as dictionaries.

        Example:
            >>> h.late()
            []
        """
        return list(self.query.late_rows().to_pylist())

    def dead(self) -> list[dict[str, Any]]:
        """The rows that could not be used, each with its reason.

        Returns:
            The rows, as dictionaries.

        Example:
            >>> nothing = h.batch([{"word": None}])
            >>> len(h.dead())
            1
        """
        return list(self.query.dead_letters().to_pylist())

    # --- time ----------------------------------------------------------------------------------

    def idle(self, seconds: float = 2.0) -> list[dict[str, Any]]:
        """Let the clock go on without rows: idle ticks run as they would.

        Args:
            seconds: for how long.

        Returns:
            What they emit.

        Example:
            >>> h.idle(60)
            []
        """
        before = self.query.version
        self.clock.advance(max(seconds, self._launch.settings.idle_after_s * 1.01))
        for _ in range(MAX_TICKS):
            if not self.driver.loop.wants_tick or not self.driver.loop.tick_if_wanted():
                break
            self._deliver()
        return self._since(before)

    def advance(self, by: str | float) -> list[dict[str, Any]]:
        """Let event time go on by so much, as if rows had come, and fire what is due.

        Args:
            by: a duration such as "10 minutes", or seconds.

        Returns:
            What is emitted then.

        Raises:
            InvalidOption: the duration is none.

        Example:
            >>> [row["count"] for row in visits.advance("1 hour")]
            [2]
        """
        before = self.query.version
        driver = self.driver
        driver.loop.settle()
        with driver.loop.lock:
            driver.event_time.advance(microseconds("by", by))
        driver.loop.settle()
        self._deliver()
        return self._since(before)

    def end(self) -> list[dict[str, Any]]:
        """Let event time be over: every window closes, every timer fires.

        Returns:
            What is emitted then.

        Example:
            >>> [row["count"] for row in visits.end()]
            [2]
        """
        before = self.query.version
        driver = self.driver
        driver.loop.settle()
        for operator in range(len(driver.operators)):
            with driver.loop.lock:
                driver.event_time.end(operator)
            driver.loop.settle()
        self._deliver()
        return self._since(before)

    def _deliver(self) -> None:
        """Call who listens to events: here between two versions, so that a test is the same every time."""
        self.driver.events.deliver()

    def _since(self, version: int) -> list[dict[str, Any]]:
        tables = [rows for number, rows in sorted(self.sink.versions.items()) if number > version]
        return [row for rows in tables for row in rows.to_pylist()]

    # --- workers -------------------------------------------------------------------------------

    def rescale(self, workers: int, **options: Any) -> Migration:
        """Go to so many workers, and return when all bins have moved.

        Args:
            workers: how many there shall be.
            options: those of `query.rescale`.

        Returns:
            The migration, which is over.

        Raises:
            InvalidOption: the number of workers, or an option, is not one that can be.
            MigrationFailed: it has failed.

        Example:
            >>> h.rescale(3).report.workers_after
            (0, 1, 2)
        """
        return self.finish(self.query.rescale(workers, **options))

    def rebalance(self, tau: float | None = None, **options: Any) -> Migration:
        """Spread the load over the workers that are there, and return when all bins have moved.

        Args:
            tau: as for `query.rebalance`.
            options: those of `query.rebalance`.

        Returns:
            The migration, which is over.

        Raises:
            InvalidOption: an option is not one that can be.
            MigrationFailed: it has failed.

        Example:
            >>> h.rebalance().status
            'done'
        """
        return self.finish(self.query.rebalance(tau, **options))

    def move(self, targets: Mapping[int, int], **options: Any) -> Migration:
        """Move these bins to these workers, and return when they have moved.

        Args:
            targets: the new owner of each bin.
            options: those of `query.move`.

        Returns:
            The migration, which is over.

        Raises:
            InvalidOption: a bin, an owner or an option is not one that can be.
            MigrationFailed: it has failed.

        Example:
            >>> move = h.move({0: 1})
            >>> h.query.assignment["0:count"][0]
            1
        """
        return self.finish(self.query.move(targets, **options))

    def control(self, *rows: Mapping[str, Any]) -> bool:
        """Take rows of a control stream.

        Args:
            rows: each with batch, bin and worker, and operator if there are several.

        Returns:
            Whether any of them was good.

        Example:
            >>> h.control({"batch": 5, "bin": 0, "worker": 1})
            True
        """
        stream = self._run.stream
        assert isinstance(stream, InProcessStream)
        with self.driver.loop.lock:
            taker = ControlStream(self.driver.coordinator, self.driver.settings.budget)
            is_any = taker.take(rows, None, stream.next_batch - 1)
        self._deliver()
        return is_any

    def finish(self, migration: Migration) -> Migration:
        """Make ticks until a migration is over.

        Args:
            migration: what `h.query.rescale` or another verb has returned.

        Returns:
            The same migration.

        Raises:
            MigrationFailed: it has failed.

        Example:
            >>> move = h.query.rescale(3)
            >>> h.finish(move).status
            'done'
        """
        for _ in range(MAX_TICKS):
            self._deliver()
            if migration.poll():
                break
            with self.driver.loop.lock:
                self.driver.loop.tick()
        self._deliver()
        if migration.status == "failed":
            raise MigrationFailed(migration.reason)
        return migration

    def lose(self, worker: int, replace: bool = True) -> None:
        """The executor of a worker is gone, with all its state.

        Args:
            worker: whose.
            replace: whether another executor comes; if none does, others take over the bins.

        Raises:
            InvalidOption: there is no such worker.

        Example:
            >>> h.lose(0)
            >>> h.batch([{"word": "to"}])
            [{'word': 'to', 'count': 3}]
        """
        place = self.driver.placement.places.get(WorkerId(worker))
        if place is None:
            known = ", ".join(str(each) for each in sorted(self.driver.placement.places))
            raise InvalidOption(f"there is no worker {worker}; there are: {known}")
        self.cluster.lose(place.executor, replace)

    def restart(
        self,
        stream: Stream | None = None,
        *,
        evolve: Evolve | None = None,
        renames: Mapping[str, str] | None = None,
        defaults: Mapping[str, Any] | None = None,
    ) -> None:
        """The driver is gone, as after a crash; another one goes on from the checkpoint.

        Args:
            stream: the stream as it is now, where it has changed.
            evolve: how it may differ from what it was, as for `start`.
            renames: new names by old ones, as for `start`.
            defaults: the values that new columns begin with, as for `start`.

        Raises:
            ChangedQuery: the state would get another meaning.

        Example:
            >>> import meander as me
            >>> clicks = me.stream(me.testing.source("user string, ms bigint")).key_by("user")
            >>> with harness(clicks.aggregate(n="count")) as h:
            ...     _ = h.batch([{"user": "ann", "ms": 3}])
            ...     h.restart(clicks.aggregate(n="count", longest=("max", "ms")), evolve="add")
            ...     h.batch([{"user": "ann", "ms": 2}])
            [{'user': 'ann', 'n': 2, 'longest': 2}]
        """
        stream = self._stream if stream is None else stream
        launch = replace(
            self._launch_of(stream, Evolution.of(evolve, renames, defaults)), starts=self._launch.starts
        )  # fmt: skip
        self._run = QueryRun(launch, self.clock)
        self._launch, self._stream, self._sources = launch, stream, stream.flow.sources
        self.query = Query(self._run, background=False)

    def close(self) -> None:
        """End, and remove everything; `with` does it.

        Example:
            >>> h.close()
        """
        self._run.stop()
        self._folder.cleanup()
