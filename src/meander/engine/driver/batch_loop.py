"""The batch loop: every batch from its rows to its manifest, all or nothing.

    operate (attempts) -> announce -> sink prepares -> manifest -> sink commits -> the stream's own commit

A version without a manifest never happened. Everything the next version needs to know of this one is in the manifest,
or in what the driver believes of the workers, which may be wrong: they check.

A number stands for one version for good, since a sink may have heard of it: a driver that starts again makes the same
one first. Of a batch, the stream's own log of offsets says what it holds; what that does not say is announced in ours.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

from meander.clock import Clock
from meander.engine.driver.attempts import Attempts, Stopped
from meander.engine.driver.commit import VersionReports, operator_commits
from meander.engine.driver.delivery import Delivery
from meander.engine.driver.hook import BatchHook, pending_hook
from meander.engine.driver.monitor import Monitor
from meander.engine.driver.ports import BatchStream, OutputLost, Rows, SinkToken
from meander.engine.driver.settings import Settings
from meander.engine.driver.version_progress import VersionProgress
from meander.errors import CheckpointError, Fenced, QueryFailed
from meander.logs import about
from meander.migration.movable import VersionTime
from meander.store.entries import Announcement, Commit, Json
from meander.store.identity import is_done
from meander.store.manifest import Log
from meander.store.retention import Sweeper
from meander.store.spark_logs import Durability, has_begun, offsets_of
from meander.types import WorkerId

SWEEP_EVERY = 16
MAX_PROGRESS = 1000
"""So many versions can be looked back on."""
LOOK_EVERY_S = 0.05


@dataclass(frozen=True)
class Batch:
    """Rows to make a version of: a batch of the stream, or an idle tick after it.

    `is_part` says that rows of the same batch follow in the next version.
    """

    rows: Rows
    number: int
    tick: int
    offsets: str
    is_part: bool = False


class BatchLoop:
    """Makes versions, one at a time. Whoever calls a method that makes one holds the lock, but for `process`."""

    def __init__(
        self,
        attempts: Attempts,
        monitor: Monitor,
        clock: Clock,
        background: bool,
        before: BatchLoop | None = None,
    ) -> None:
        self.attempts, self.monitor, self.clock = attempts, monitor, clock
        self.settings: Settings = attempts.settings
        self.log: Log = attempts.log
        self.coordinator, self.event_time = attempts.coordinator, attempts.event_time
        self.conversion = attempts.conversion
        self.lock = threading.Lock()
        self.hook: BatchHook | None = pending_hook(self.log)
        """What makes the versions of a batch in its own way."""
        self.progress: list[VersionProgress] = before.progress if before else []
        self.times: list[VersionTime] = before.times if before else []
        """How long the last versions took."""
        self.misrouted: int = before.misrouted if before else 0
        self.stream: BatchStream | None = None
        """What brings the batches."""
        self.failure: Exception | None = None
        self.sweeper = Sweeper(self.log, self.settings.retain, self.settings.retain_side, background)
        self._spark_logs = Durability(self.log.location)
        self.delivery = Delivery(attempts)
        self._last_work_s = clock.now_s()
        self._may_owe_batch = True

    @property
    def version(self) -> int:
        """The last committed version, -1 before the first."""
        return self.log.index.version

    @property
    def stopping(self) -> bool:
        """Whether the query is being stopped."""
        return self.attempts.stopping

    def attach(self, stream: BatchStream) -> None:
        """Take batches from a stream."""
        self.stream = stream

    def use(self, hook: BatchHook | None) -> None:
        """Let a hook make the versions of a batch, or none; the caller holds the lock."""
        self.hook = hook

    def fail(self, problem: Exception) -> Exception:
        """The query has failed of this, unless it had failed before; the caller holds the lock.

        Where another driver has taken over, that is why, whatever this one met: its successor sweeps files and writes
        Spark's logs too.
        """
        if self.failure is None:
            self.failure = self._takeover() or problem
            if self.failure is not problem:
                self.failure.__cause__ = problem
        return self.failure

    def _takeover(self) -> Exception | None:
        try:
            self.log.check()
        except Fenced as fenced:
            return fenced
        except CheckpointError:
            return None
        return None

    # --- batches of the stream -------------------------------------------------------------

    def process(self, rows: Rows, batch: int) -> None:
        """Process a batch of the stream, or skip it where it is committed already."""
        while not self.lock.acquire(timeout=LOOK_EVERY_S):
            if self.stopping:
                raise Stopped("the query is being stopped")
        try:
            if self.stopping:
                raise Stopped("the query is being stopped")
            self._process(rows, batch)
        except Stopped:
            raise
        except Exception as problem:
            failure = self.fail(problem)
            if failure is problem:
                raise
            raise failure from problem
        finally:
            self.lock.release()

    def _process(self, rows: Rows, number: int) -> None:
        self._spark_logs.sync()  # before anything depends on what the batch holds
        offsets = offsets_of(self.log.location, number)
        if self.owes_tick:
            self.tick()
        is_made = is_done(self.log, number, self._query_id, offsets)
        batch = Batch(rows, number, 0, offsets)
        if self.hook is None:
            if not is_made:
                self.advance(batch)
        elif is_made:
            self.hook.finish(self, batch)
        else:
            self.hook.make(self, batch)
        self._may_owe_batch = False

    @property
    def _query_id(self) -> str:
        assert self.stream is not None, "batches come from a stream"
        return self.stream.id

    # --- ticks: versions without rows --------------------------------------------------------

    @property
    def owes_tick(self) -> bool:
        """Whether a tick is announced and not committed: it comes before anything else."""
        return self.log.announced is not None and not self._holds_ticks

    @property
    def owes_batch(self) -> bool:
        """Whether a batch comes before any new tick: an earlier driver has begun it, and the sink may have it."""
        last = self.log.last
        if self._may_owe_batch:
            self._may_owe_batch = last is not None and has_begun(self.log.location, last.batch + 1)
        return self._may_owe_batch

    @property
    def _holds_ticks(self) -> bool:
        return self.hook is not None and self.hook.holds_ticks

    @property
    def is_idle(self) -> bool:
        """Whether nothing has come for a while."""
        return self.clock.now_s() - self._last_work_s > self.settings.idle_after_s

    @property
    def has_due_timers(self) -> bool:
        """Whether event time has moved since the operators last looked, so that timers may be due."""
        if self.log.last is None:
            return False
        if self.event_time.has_moved:
            return True
        # With the clock, time goes on by itself, and there is something to do as long as anything waits for it.
        rows = self.coordinator.record.state_rows
        waits = any(each is not None and rows[at] != 0 for at, each in enumerate(self.event_time.frontiers))
        return self.settings.idle_time == "wall" and waits and self.is_idle

    @property
    def wants_tick(self) -> bool:
        """Whether a version without rows has something to do: timers, a migration that waits for no batch, a change."""
        last = self.log.last
        is_busy = last is not None and (self.coordinator.protocol.wants(last.batch) or self.conversion.is_open)
        return self.owes_tick or self.has_due_timers or is_busy

    @property
    def ticks_go_on(self) -> bool:
        """Whether a migration, or a conversion of state, goes on at the pace of ticks, since nothing comes."""
        last = self.log.last
        return (self.coordinator.protocol.busy or self.conversion.is_open) and last is not None and last.tick > 0

    def tick_if_wanted(self) -> bool:
        """Make a version without rows if it has something to do, and return whether it did; takes the lock."""
        with self.lock:
            if self.stopping or self.failure or self.log.last is None or not self.wants_tick:
                return False
            if self._holds_ticks:
                return False
            if self.owes_batch and not self.owes_tick:
                return False
            committed = self.event_time.frontiers
            if self.settings.idle_time == "wall":
                self.event_time.advance(int((self.clock.now_s() - self._last_work_s) * 1e6))
            try:
                self.tick()
            except Exception:
                self.event_time.resume(committed)  # a batch after it goes by what is committed, as after a restart
                raise
            return True

    def tick(self) -> None:
        """Make a version without rows, now: the one that is owed, or a new one."""
        last, announced = self.log.last, self.log.announced
        assert last is not None
        if announced is not None:
            self.event_time.resume(announced.frontiers)
        elif self.owes_batch:
            raise QueryFailed(
                f"batch {last.batch + 1} was begun before the query was started again; no version without rows can be "
                "made before it"
            )
        self.advance(Batch(self.attempts.jobs.nothing(), last.batch, last.tick + 1, last.offsets))

    def settle(self) -> None:
        """Make ticks until none is owed and no timer is due."""
        while (self.owes_tick or self.has_due_timers) and not self.stopping:
            if not self.tick_if_wanted():
                return

    # --- one version -------------------------------------------------------------------------

    def advance(self, batch: Batch) -> None:
        """Make the next version of these rows."""
        with about(query=self.settings.name or self._query_id, version=self.version + 1):
            self._advance(batch)

    def _advance(self, batch: Batch) -> None:
        clock = self.clock
        began = clock.now_s()
        version = self.version + 1
        for attempt in range(1, self.settings.attempts + 1):
            result = self.attempts.run(batch.rows, version, batch.number)
            operated = clock.now_s()
            self._announce(version, batch)
            try:
                token = self.delivery.prepare(result, version)
            except OutputLost:
                # The operators run again only if their output is gone, never because a sink has failed.
                if attempt == self.settings.attempts or self.stopping:
                    raise
                self.attempts.forget_lost()
                continue
            break
        written = clock.now_s()
        reports = VersionReports(result.reports, len(self.attempts.operators), self.settings.bins)
        commit = self._commit(reports, version, batch, token)
        self.delivery.commit(commit)
        self._committed(reports, commit)
        if version % SWEEP_EVERY == SWEEP_EVERY - 1:
            self.sweeper.sweep()
        spent_s = {"plan": result.planned_s, "operate": operated - began - result.planned_s}
        spent_s |= {"sink": written - operated, "commit": clock.now_s() - written}
        flipped = len(self.coordinator.orders.flips)
        record, took_ms = self.coordinator.record, sum(spent_s.values()) * 1000
        self.attempts.pace.note(took_ms, reports.reports, self.coordinator.orders, lambda: record.state_bytes)
        self.progress.append(VersionProgress.of(commit, reports, flipped, self.conversion.left, spent_s))
        self.times.append(VersionTime(version, self.progress[-1].took_ms))
        for history in (self.progress, self.times):
            del history[:-MAX_PROGRESS]

    def _announce(self, version: int, batch: Batch) -> None:
        """See that another driver would make the same version, before the sink hears of it; Fenced where one may."""
        hook = self._hook_note()
        if batch.tick == 0 and hook is None and self.log.announced is None:
            self.log.check()  # a whole batch, right after the last commit: Spark brings it again
        else:
            frontiers = tuple(self.event_time.frontiers)
            self.log.announce(Announcement(version, batch.number, batch.tick, batch.offsets, frontiers, hook))

    def _hook_note(self) -> Json | None:
        if self.hook is None or self.hook.note is None:
            return None
        return {"name": self.hook.name, "note": self.hook.note}

    def _commit(self, reports: VersionReports, version: int, batch: Batch, token: SinkToken) -> Commit:
        record, frontiers = self.coordinator.record, self.event_time.frontiers
        note = self.coordinator.note()
        if (hook := self._hook_note()) is not None:
            note["hook"] = hook
        design = self.conversion.design
        return Commit(
            version, batch.number, batch.tick, self._query_id, batch.offsets,
            operator_commits(
                reports, self.attempts.operators, record.now, frontiers, self.log.last, batch.is_part, design.numbers
            ),
            rows=reports.rows, late=reports.total("late"), dead=reports.total("dead"), time_ms=self.clock.wall_ms(),
            journal=note, sink=token, design=self.conversion.commit,
        )  # fmt: skip

    def _committed(self, reports: VersionReports, commit: Commit) -> None:
        self.event_time.commit([each.frontier for each in commit.operators])
        holdings, record = self.coordinator.holdings, self.coordinator.record
        for report in reports.reports:
            holdings.report(report.operator, WorkerId(report.worker), report.held)
        self.misrouted += reports.total("misrouted")
        self.attempts.errors += reports.total("errors")
        self._last_work_s = self.clock.now_s()
        record.commit(commit.version, reports.counts())
        behind = self.stream.rows_behind() if self.stream is not None and self.monitor.is_watched else 0
        self.monitor.note(commit.version, commit.time_ms, reports.reports, record.owners, behind)
        self.coordinator.committed(commit.version, reports.troubles())
        self.conversion.committed(commit.version)


class Ticker:
    """Looks for idle times, in a thread of its own or whenever it is asked to."""

    def __init__(self, loop: BatchLoop, clock: Clock) -> None:
        self._loop, self._clock = loop, clock
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="meander-ticker", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """Look no more."""
        self._ended.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()

    def look(self) -> bool:
        """Make a tick if the stream is quiet and there is something to do; whether to look again."""
        loop, stream = self._loop, self._loop.stream
        if loop.stopping or loop.failure:
            return False
        if stream is None or not stream.is_active:
            with loop.lock:  # or the version that is being made would look like another driver's
                try:
                    loop.log.check()  # it has ended without us: perhaps another driver has taken over
                except CheckpointError as fenced:
                    loop.fail(fenced)
            return False
        if stream.is_quiet and (loop.is_idle or loop.ticks_go_on) and loop.wants_tick:
            try:
                loop.tick_if_wanted()
            except Exception as problem:
                # Nobody else would notice: a query whose ticks have failed has failed, and brings no more batches.
                with loop.lock:
                    loop.fail(problem)
                stream.stop()
                return False
        return True

    def _run(self) -> None:
        every_s = min(0.2, self._loop.settings.idle_after_s / 4)
        while not self._ended.wait(every_s) and self.look():
            pass
