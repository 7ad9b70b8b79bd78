"""A query while it runs: Spark's stream drives the engine, a clock drives it when nothing comes, a handle shows it."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from meander.checkpoint.location import Location
from meander.checkpoint.manifest import Log
from meander.checkpoint.reader import Reader
from meander.errors import CheckpointError, InvalidOption, QueryFailed
from meander.spark import provenance
from meander.spark.engine import Engine, Stopped
from meander.spark.gateway import Gateway
from meander.spark.pipeline import Pipeline, Step
from meander.spark.settings import Settings
from meander.spark.sinks import sink_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

STOP_WAIT_S = 0.5
"""Spark takes the end of a batch for an interruption only after it was told to stop."""

TRIGGERS = ("processingTime", "availableNow", "once")


class Query:
    """A running query: what it did last, whether it still runs, and how to stop it."""

    def __init__(self, engine: Engine, inner: StreamingQuery, runner: Runner) -> None:
        self._engine, self._inner, self._runner = engine, inner, runner

    @property
    def name(self) -> str | None:
        """The name given to `start`."""
        return self._engine.settings.name

    @property
    def id(self) -> str:
        """Spark's id of the query; the same after a restart."""
        return self._engine.query_id

    @property
    def is_active(self) -> bool:
        """Whether the query runs."""
        return bool(self._inner.isActive)

    @property
    def version(self) -> int:
        """The last committed version, -1 before the first."""
        return self._engine.version

    @property
    def workers(self) -> list[int]:
        """The workers that own bins."""
        return list(self._engine.workers)

    @property
    def assignment(self) -> dict[str, list[int]]:
        """Who owns each bin, by operator."""
        names = [f"{at}:{stage.name}" for at, stage in enumerate(self._engine.pipeline.stages)]
        return {name: owners.tolist() for name, owners in zip(names, self._engine.owners, strict=True)}

    @property
    def loads(self) -> dict[str, list[int]]:
        """How many rows each bin had in the last version, by operator."""
        return {name: self._engine.loads(at) for at, name in enumerate(self.assignment)}

    @property
    def misrouted(self) -> int:
        """How many rows came to a worker that does not own their bin: 0, or something is badly wrong."""
        return self._engine.misrouted

    @property
    def last_progress(self) -> dict[str, Any] | None:
        """What the last version did: rows, milliseconds, and each worker's part."""
        return self._engine.progress[-1] if self._engine.progress else None

    @property
    def recent_progress(self) -> list[dict[str, Any]]:
        """What the last versions did, oldest first."""
        return list(self._engine.progress)

    def exception(self) -> Exception | None:
        """Why the query has failed, or None."""
        if self._engine.failure is not None:
            return self._engine.failure
        if self._engine.stopping:
            return None
        return self._inner.exception()

    def dead_letters(self) -> pa.Table:
        """The rows that could not be used, each with its reason, operator and version."""
        return self._side("dead")

    def late_rows(self) -> pa.Table:
        """The rows that came too late for their window, each with its operator and version."""
        return self._side("late")

    def _side(self, kind: Literal["late", "dead"]) -> pa.Table:
        tables = list(Reader.open(self._engine.log.location.uri).side(kind))
        return pa.concat_tables(tables, promote_options="default") if tables else pa.table({})

    def await_termination(self, timeout_s: float | None = None) -> bool:
        """Wait until the query ends and return whether it has; raises what it failed of."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while self.is_active:
            if deadline is not None and time.monotonic() >= deadline:
                return False
            try:
                left_s = 1.0 if deadline is None else max(0.05, min(1.0, deadline - time.monotonic()))
                self._inner.awaitTermination(left_s)  # type: ignore[arg-type]
            except Exception:
                break
        self._runner.wind_down()
        problem = self.exception()
        if problem is not None:
            raise problem
        return True

    def process_all_available(self) -> None:
        """Wait until everything that is in the source now has been committed, and due timers have fired."""
        try:
            self._inner.processAllAvailable()
        except Exception:
            raise self.exception() or QueryFailed("the query has ended") from None
        self._runner.settle()

    def stop(self) -> None:
        """Let the batch that runs end, then stop; starting again goes on from there."""
        self._engine.stopping = True
        with self._engine.lock:
            self._inner.stop()
        self._runner.close()


class Runner:
    """What Spark calls for every batch, and the clock that ticks when it does not."""

    def __init__(self, engine: Engine, source: DataFrame) -> None:
        self.engine, self.source = engine, source
        self.session: SparkSession | None = None
        self.inner: StreamingQuery | None = None
        self._ended = threading.Event()
        self._clock = threading.Thread(target=self._tick_when_idle, name="meander-clock", daemon=True)

    def __call__(self, rows: DataFrame, batch: int) -> None:
        """Process one of Spark's batches, or skip it where it is committed already."""
        engine = self.engine
        while not engine.lock.acquire(timeout=0.05):
            if engine.stopping:
                time.sleep(STOP_WAIT_S)
                raise Stopped
        try:
            if engine.stopping:
                raise Stopped
            offsets = provenance.offsets_of(engine.log.location, batch)
            if provenance.is_done(engine.log, batch, engine.query_id, offsets):
                return
            rows.sparkSession.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "1000000")
            engine.advance(rows, batch, 0, offsets)
        except Stopped:
            raise
        except Exception as problem:
            engine.failure = problem
            # Spark parses long messages of failures with a regex that overflows its stack.
            raise QueryFailed(str(problem).splitlines()[0][:300]) from None
        finally:
            engine.lock.release()

    def start_clock(self) -> None:
        """Begin to look for idle times."""
        self._clock.start()

    def settle(self) -> None:
        """Run ticks until no timer is due."""
        while self.engine.needs_tick() and not self.engine.stopping:
            self._tick()

    def wind_down(self) -> None:
        """After the source has ended: fire what is due, then give everything back."""
        if self.engine.failure is None and not self.engine.stopping:
            self.settle()
        self.close()

    def close(self) -> None:
        """End the clock and remove the local state."""
        self._ended.set()
        if self._clock.is_alive() and self._clock is not threading.current_thread():
            self._clock.join()
        self.engine.seats.leave()

    def _tick_when_idle(self) -> None:
        engine = self.engine
        while not self._ended.wait(min(0.2, engine.settings.idle_after_s / 4)):
            if engine.stopping or engine.failure:
                return
            if not self._is_alone():
                continue
            if engine.is_idle() and engine.needs_tick():
                try:
                    self._tick()
                except Exception as problem:
                    engine.failure = engine.failure or problem
                    return

    def _is_alone(self) -> bool:
        """Whether Spark has nothing to do; notices as well when it has ended without us."""
        if self.inner is None or not self.inner.isActive:
            self._ended.set()
            try:
                self.engine.log.check()
            except CheckpointError as fenced:
                self.engine.failure = self.engine.failure or fenced
            return False
        status = self.inner.status
        return not status["isTriggerActive"] and not status["isDataAvailable"]

    def _tick(self) -> None:
        engine = self.engine
        with engine.lock:
            last = engine.log.last
            if engine.stopping or last is None or not engine.needs_tick():
                return
            engine.advance_with_clock()
            engine.advance(self._nothing(), last.batch, last.tick + 1, last.offsets)

    def _nothing(self) -> DataFrame:
        """No rows, in the source's schema, in a session that suits us."""
        if self.session is None:
            self.session = self.source.sparkSession.newSession()
            self.session.conf.set("spark.sql.adaptive.enabled", "false")
            self.session.conf.set("spark.sql.session.timeZone", "UTC")
        return self.session.createDataFrame([], self.source.schema)


def start(source: DataFrame, steps: Sequence[Step], settings: Settings, sink: object, trigger: dict[str, Any]) -> Query:
    """Check everything, claim the checkpoint, and start."""
    spark = source.sparkSession
    unknown = set(trigger) - set(TRIGGERS)
    if unknown or len(trigger) > 1:
        raise InvalidOption(f"the trigger {trigger} is none of Spark's that fit: one of {', '.join(TRIGGERS)}")
    taker = sink_of(sink)
    gateway = Gateway(spark)
    location = Location.of(settings.checkpoint, fsync=settings.fsync)
    if not location.is_local:
        uri = location.uri
        location = replace(location, exclusive=lambda path, data: gateway.create_exclusively(f"{uri}/{path}", data))
    provenance.check_identity(location, settings, [step.stage for step in steps])
    log = Log.open(location)
    query_id = provenance.check_spark_part(log)
    pipeline = Pipeline(gateway, steps)
    log.claim(socket.gethostname(), os.getpid())
    engine = Engine(gateway, pipeline, settings, log, taker.write)
    engine.rescale_to(settings.workers)
    engine.warm_up()
    if not gateway.local:
        gateway.set_locality_wait("20s")  # shorter, and Spark would run a task elsewhere while its executor is busy
    runner = Runner(engine, source)
    writer = source.writeStream.foreachBatch(runner).option("checkpointLocation", f"{location.uri}/{provenance.SPARK}")
    if settings.name:
        writer = writer.queryName(settings.name)
    if trigger:
        writer = writer.trigger(**trigger)
    # Spark copies the session when a stream starts; with adaptive execution on, the shuffle would run outside our job.
    adaptive = str(spark.conf.get("spark.sql.adaptive.enabled"))
    spark.conf.set("spark.sql.adaptive.enabled", "false")
    try:
        with engine.lock:
            inner = writer.start()
            engine.query_id = inner.id
            if query_id and query_id != inner.id:
                inner.stop()
                raise provenance.foreign(location, query_id, inner.id)
    finally:
        spark.conf.set("spark.sql.adaptive.enabled", adaptive)
    runner.inner = inner
    runner.start_clock()
    return Query(engine, inner, runner)
