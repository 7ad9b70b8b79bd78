"""What Spark calls for every batch, and the clock that ticks when it does not."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from meander.errors import CheckpointError, QueryFailed
from meander.spark import provenance
from meander.spark.engine import Engine, Stopped

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

STOP_WAIT_S = 0.5
"""Spark takes the end of a batch for an interruption only after it was told to stop."""


class Runner:
    """The driver's side of one run: batches from Spark, ticks from a clock, one at a time."""

    def __init__(self, engine: Engine, source: DataFrame) -> None:
        self.engine, self.source = engine, source
        self.holds_back = False
        """Whether rows of bins that move wait until their state is there."""
        self.rows_held = 0
        self.longest_hold_ms = 0.0
        self.session: SparkSession | None = None
        engine.empty_rows = self._nothing
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
            rows.sparkSession.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "1000000")
            self._process(rows, batch)
        except Stopped:
            raise
        except Exception as problem:
            engine.failure = problem
            # Spark parses long messages of failures with a regex that overflows its stack.
            raise QueryFailed(str(problem).splitlines()[0][:300]) from None
        finally:
            engine.lock.release()

    def _process(self, rows: DataFrame, batch: int) -> None:
        engine = self.engine
        offsets = provenance.offsets_of(engine.log.location, batch)
        if provenance.is_done(engine.log, batch, engine.query_id, offsets):
            waiting = engine.waiting
            if waiting is not None:  # the driver was lost between a batch and those of its rows that had to wait
                engine.advance(rows, batch, 1, offsets, only=waiting)
            return
        moving = self._moving() if self.holds_back else None
        if moving is None:
            engine.advance(rows, batch, 0, offsets)
            return
        began = time.perf_counter()
        kept = rows.persist()  # both parts must be of the same rows
        try:
            engine.advance(kept, batch, 0, offsets, only=~moving, waiting=moving)
            self.longest_hold_ms = max(self.longest_hold_ms, (time.perf_counter() - began) * 1000)
            engine.advance(kept, batch, 1, offsets, only=moving)
            self.rows_held += int(engine.progress[-1]["rows"])
        finally:
            kept.unpersist()

    def _moving(self) -> NDArray[np.bool_] | None:
        """The bins of the first operator whose state moves in this batch; None where none does."""
        steps = self.engine.moves.protocol.steps
        if not steps:
            return None
        flags = np.zeros(self.engine.settings.bins, np.bool_)
        flags[[shift.bin for shift in steps[0].shifts if shift.stage == 0]] = True
        return flags if flags.any() else None

    def tick(self) -> None:
        """Make a version without rows, here and now; the caller holds the lock."""
        last = self.engine.log.last
        assert last is not None
        self.engine.advance(self._nothing(), last.batch, last.tick + 1, last.offsets)

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
            if self.engine.settings.at_end == "close" and self.engine.log.last is not None:
                self._end_time()
        self.close()

    def _end_time(self) -> None:
        """Close every window and fire every timer; stage by stage, lest what one says last be late for the next."""
        for stage in range(len(self.engine.pipeline.stages)):
            with self.engine.lock:
                self.engine.end_time(stage)
            self.settle()

    def close(self) -> None:
        """End the clock and remove the local state."""
        self._ended.set()
        if self._clock.is_alive() and self._clock is not threading.current_thread():
            self._clock.join()
        self.engine.sweeper.join()
        self.engine.seats.leave()

    def _tick_when_idle(self) -> None:
        engine = self.engine
        while not self._ended.wait(min(0.2, engine.settings.idle_after_s / 4)):
            if engine.stopping or engine.failure:
                return
            if not self._is_alone():
                continue
            # A migration goes on at the pace of ticks once nothing comes.
            last = engine.log.last
            goes_on = engine.moves.protocol.busy and last is not None and last.tick > 0
            if (engine.is_idle() or goes_on) and engine.wants_tick():
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
            if engine.stopping or last is None or not engine.wants_tick() or engine.waiting is not None:
                return
            engine.advance_with_clock()
            self.tick()

    def _nothing(self) -> DataFrame:
        """No rows, in the source's schema, in a session that suits us."""
        if self.session is None:
            self.session = self.source.sparkSession.newSession()
            self.session.conf.set("spark.sql.adaptive.enabled", "false")
            self.session.conf.set("spark.sql.session.timeZone", "UTC")
        return self.engine.gateway.empty(self.session, self.source.schema)
