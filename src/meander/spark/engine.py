"""One query on the driver: every batch from its rows to its manifest, all or nothing.

    operate (attempts) -> look for a fence -> sink -> manifest -> Spark's own commit

A version without a manifest never happened. Everything the next version needs to know of this one is in the manifest
or in `Seats`, which is what the driver believes the workers hold and may be wrong about: they check.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from meander.checkpoint.entries import Commit, FileRef, Json, SnapshotRef, StageCommit
from meander.checkpoint.manifest import Log
from meander.errors import MeanderError, QueryFailed
from meander.spark.frontier import Reached
from meander.spark.gateway import Gateway
from meander.spark.ledger import Ledger, Owners
from meander.spark.messages import Control, Part, Token, packed, read_numbers, unpacked
from meander.spark.monitor import Loads, Monitor
from meander.spark.moves import Moves
from meander.spark.orders import flags
from meander.spark.output import OUTPUT_LOST
from meander.spark.pipeline import Attempt, Pipeline, Told
from meander.spark.seats import Seats
from meander.spark.settings import Settings
from meander.spark.sweeper import Sweeper
from meander.spark.watch import Watchdog, in_short, is_loss
from meander.types import WorkerId

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

logger = logging.getLogger("meander")
Bins = NDArray[np.bool_]
RETRIED = ("place", "reload", "stale")
SWEEP_EVERY = 16
REMEMBERED = 1000
"""So many versions can be looked back on."""
END_OF_TIME = 253_402_300_799_999_999
"""Event time after which there is none: the last microsecond that a datetime can say."""


class Stopped(MeanderError):
    """The query is being stopped; the batch is left to the next start.

    Spark tells an interruption from a failure by the text of the error, and this is what it looks for.
    """

    def __init__(self) -> None:
        super().__init__(
            "py4j.protocol.Py4JJavaError: An error occurred while calling stop\n: java.lang.InterruptedException: stop"
        )


class Engine:
    """What runs behind one `Query`."""

    def __init__(self, gateway: Gateway, pipeline: Pipeline, settings: Settings, log: Log, sink: Callable[..., None]):
        self.gateway, self.pipeline, self.settings, self.log, self.sink = gateway, pipeline, settings, log, sink
        # Queries of one application share their executors' local directories, and have no id before they start.
        self.seats = Seats(gateway, uuid4().hex)
        self.lock = threading.Lock()
        self.stopping = False
        self.failure: Exception | None = None
        self.progress: list[dict[str, Any]] = []
        self.misrouted = 0
        self.monitor = Monitor(pipeline.stages, settings.bins)
        self.rows_behind: Callable[[], int] = lambda: 0
        """How many rows wait in the sources, as far as they tell."""
        self.query_id = ""
        self._attempt = 0
        self._largest: int | None = None
        last = log.last
        count = len(pipeline.stages)
        owners = [np.array(stage.owner, np.int64) for stage in last.stages] if last else self._first_owners(count)
        self.ledger = Ledger(owners, settings.bins)
        self.frontiers: list[int | None] = [stage.frontier for stage in last.stages] if last else [None] * count
        before = log.commits(last.version - 1)[0] if last and last.version > 0 else None
        self._used = [stage.frontier for stage in before.stages] if before else [None] * count
        self._worked = time.monotonic()
        noted = (last.journal if last else None) or {}
        self.waiting: Bins | None = unpacked(noted["waiting"], settings.bins) if noted.get("waiting") else None
        """Bins of the first stage whose rows of the last batch are still to come."""
        self.sweeper = Sweeper(log.location, settings.retain)
        self.moves = Moves(self.ledger, self.seats, log, settings, noted)
        self.empty_rows: Callable[[], DataFrame]
        """No rows, in the schema of the source."""

    def _first_owners(self, stages: int) -> list[Owners]:
        spread = np.arange(self.settings.bins) * self.settings.workers // self.settings.bins
        return [spread.astype(np.int64) for _ in range(stages)]

    @property
    def version(self) -> int:
        """The last committed version, -1 before the first."""
        return self.log.index.version

    @property
    def workers(self) -> list[WorkerId]:
        """The workers that own bins of some stage."""
        return self.ledger.workers

    def loads(self, stage: int) -> Loads:
        """How many rows each bin of a stage had in the last version, and how the load is spread."""
        return self.monitor.loads(stage, self.ledger.rows[stage].tolist(), self.ledger.workers_of(stage))

    # --- idle times ------------------------------------------------------------------------

    def is_idle(self) -> bool:
        """Whether nothing has come for a while."""
        return time.monotonic() - self._worked > self.settings.idle_after_s

    def needs_tick(self) -> bool:
        """Whether event time has moved since the operators last looked, so that timers may be due."""
        if self.log.last is None:
            return False
        if self.frontiers != self._used:
            return True
        # With the clock, time goes on by itself, and there is something to do as long as anything waits for it.
        waits = any(
            frontier is not None and self.ledger.state_rows[stage] != 0 for stage, frontier in enumerate(self.frontiers)
        )
        return self.settings.idle_time == "wall" and waits and self.is_idle()

    def wants_tick(self) -> bool:
        """Whether a version without rows has something to do: timers, or a migration that does not wait for a batch."""
        last = self.log.last
        return self.needs_tick() or (last is not None and self.moves.protocol.wants(last.batch))

    def advance_with_clock(self) -> None:
        """Let event time go on as the clock did since the last rows or tick."""
        if self.settings.idle_time == "wall":
            passed_us = int((time.monotonic() - self._worked) * 1e6)
            self.frontiers = [None if each is None else each + passed_us for each in self.frontiers]

    def end_time(self, stage: int) -> None:
        """Let event time be over for a stage; what it still has to say comes with the next tick."""
        self.frontiers[stage] = END_OF_TIME

    # --- one version -----------------------------------------------------------------------

    def advance(
        self,
        rows: DataFrame,
        batch: int,
        tick: int,
        offsets: str,
        only: Bins | None = None,
        waiting: Bins | None = None,
    ) -> None:
        """Make the next version of these rows, or only of those of some bins; the caller holds the lock.

        `waiting` are bins whose rows of this batch are to come in a version of their own, after this one.
        """
        began = time.perf_counter()
        version = self.version + 1
        for attempt in range(1, self.settings.attempts + 1):
            told = self._operate(rows, version, batch, only)
            operated = time.perf_counter()
            self.log.check()
            try:
                self._write(told, rows.sparkSession, version)
            except Exception as problem:
                # The operators run again only if their output is gone, never because a sink has failed.
                gone = OUTPUT_LOST in str(problem) or (
                    not self.gateway.local and self.seats.places.gone(self.seats.now)
                )
                if not gone or attempt == self.settings.attempts or self.stopping:
                    raise
                self._lost()
                continue
            break
        sunk = time.perf_counter()
        self.waiting = waiting
        commit = replace(self._commit(told, version, batch, tick, offsets), journal=self._noted())
        self.log.append(commit)
        self._committed(told, commit)
        if commit.version % SWEEP_EVERY == SWEEP_EVERY - 1:
            self.sweeper.sweep()
        ended = time.perf_counter()
        spent_s = {"plan": told.planned_s, "operate": operated - began - told.planned_s}
        self._tell(told, commit, {**spent_s, "sink": sunk - operated, "commit": ended - sunk})

    def _operate(self, rows: DataFrame, version: int, batch: int, only: Bins | None) -> Told:
        """Run attempts until one succeeds; never again after the user's own exception, never after `stop`."""
        problem: Exception = QueryFailed("no attempt was made")
        for _ in range(self.settings.attempts):
            if self.stopping:
                raise Stopped
            try:
                self._seat()
                self.moves.open(version, batch)
                told = self._try(rows, version, only)
            except MeanderError:
                raise
            except Exception as lost:
                if not is_loss(lost):
                    raise QueryFailed(in_short(lost)) from lost
                problem = QueryFailed(f"a process was lost: {in_short(lost)}")
                logger.warning("version %d, attempt %d: %s; trying again", version, self._attempt, problem)
                self._lost()
                continue
            faults = [report for report in told.reports if report.fault]
            for report in faults:
                fault = report.fault
                assert fault is not None
                if fault.kind not in RETRIED:
                    where = f" in bin {fault.bin}" if fault.bin is not None else ""
                    name = self.pipeline.stages[report.stage].name
                    raise QueryFailed(
                        f"{name} (stage {report.stage}, worker {report.worker}){where} failed in version {version}: "
                        f"{fault.message}\n{fault.trace}".rstrip()
                    )
                problem = QueryFailed(f"worker {report.worker}: {fault.message}")
                logger.warning("version %d, attempt %d: %s; trying again", version, self._attempt, problem)
                self.seats.doubt(report.stage, WorkerId(report.worker), place=fault.kind == "place")
            if not faults and self._is_whole(told, version):
                return told
        raise QueryFailed(f"version {version} was tried {self.settings.attempts} times; the last time {problem}")

    def _try(self, rows: DataFrame, version: int, only: Bins | None) -> Told:
        self._attempt += 1
        epoch = self.log.epoch
        assert epoch is not None
        workers = self.moves.participants
        slot_of = {worker: slot for slot, worker in enumerate(workers)}
        slots = [np.searchsorted(workers, owners).tolist() for owners in self.ledger.now]

        def control(stage: int, wave: tuple[int, int]) -> list[Control]:
            if wave[0] > 0:
                # Waves are attempts of their own: their files must not share names.
                self._attempt += 1
            token = Token(epoch, version, self._attempt)
            return [self._control(stage, worker, slot_of[worker], token, wave) for worker in workers]

        tag = f"meander-{self.query_id}-{epoch}-{version}-{self._attempt}"
        used = dict(self.seats.now)
        barrier = len(workers) <= self.seats.cores
        attempt = Attempt(slots, len(workers), control, used, barrier, self._split_above(), only)
        if self.gateway.local:
            return self.pipeline.run(rows, attempt)
        self.gateway.context.addJobTag(tag)
        try:
            with Watchdog(lambda: bool(self.seats.places.gone(used)), lambda: self.gateway.cancel(tag)):
                return self.pipeline.run(rows, attempt)
        finally:
            self.gateway.context.removeJobTag(tag)

    def _split_above(self) -> int | None:
        """The size above which a worker's rows go over in parts; None while batches are so small that none will.

        To look costs a job of its own. The first batch, one after larger ones, and one that was lost are looked at.
        """
        limit = self.settings.hand_over_bytes
        return limit if self._largest is None or self._largest * 8 > limit else None

    def _control(self, stage: int, worker: WorkerId, slot: int, token: Token, wave: tuple[int, int]) -> Control:
        seat, bins = (stage, worker), self.settings.bins
        owned = self.ledger.now[stage] == worker
        believed = self.seats.held(stage, worker)
        held = self.moves.orders.held_by(seat, owned)
        copied = self.moves.orders.copied.get(seat, ()) if wave[0] == 0 else ()
        wanted = owned | flags(copied, bins)
        missing = wanted if believed is None else wanted & ~believed
        load: tuple[Part, ...] = ()
        if missing.any() and token.version > 0:
            parts = self.log.index.parts(stage, np.flatnonzero(missing).tolist())
            load = tuple(Part(part.file.to_json(), packed(flags(part.bins, bins))) for part in parts)
        return Control(
            query=self.query_id, token=(token.epoch, token.version, token.attempt),
            stage=stage, worker=worker, slot=slot,
            place=self.seats.now[worker].process, directory=self.seats.home(worker),
            checkpoint=self.log.location.uri, bins=bins, owned=packed(owned), held=packed(held),
            advance=self._last_deltas(stage, held), loadable=packed(missing), load=load,
            copy=tuple(map(int, copied)), copy_ms=self.moves.copy_ms,
            snapshot=self._due_for_snapshot(stage, worker, owned, token.version) if wave[0] == 0 else None, wave=wave,
            frontier=self.frontiers[stage], previous=self._used[stage], fsync=self.settings.fsync,
        )  # fmt: skip

    def _last_deltas(self, stage: int, held: Bins) -> tuple[Json, ...]:
        """The deltas of the last version that speak of these bins, whoever wrote them."""
        last = self.log.last
        bits = np.packbits(held)
        deltas = last.stages[stage].deltas if last is not None else ()
        return tuple(ref.to_json() for ref in deltas if (np.frombuffer(ref.bins, np.uint8) & bits).any())

    def _due_for_snapshot(self, stage: int, worker: WorkerId, owned: Bins, version: int) -> str | None:
        """The bins whose turn it is, or that are about to move, of those that changed since their last snapshot."""
        if version == 0:
            return None
        cycle = self.settings.snapshot_every
        turn = np.arange(self.settings.bins) % cycle == version % cycle
        turn |= flags(self.moves.orders.written.get((stage, worker), ()), self.settings.bins)
        due = owned & turn & (self.log.index.chains(stage) > 0)
        return packed(due) if due.any() else None

    def _lost(self) -> None:
        self._largest = None
        self.seats.forget_lost()

    def _is_whole(self, told: Told, version: int) -> bool:
        """Whether every worker of every stage has reported exactly once, for this attempt and each of its waves."""
        seen = Counter((report.stage, report.token, report.worker) for report in told.reports)
        parts = {(report.stage, report.token) for report in told.reports}
        wanted = {(stage, token, worker) for stage, token in parts for worker in self.moves.participants}
        versions = {token[1] for _, token in parts}
        stages = {stage for stage, _ in parts}
        once = all(times == 1 for times in seen.values())
        return once and set(seen) == wanted and versions == {version} and len(stages) == len(self.ledger.owners)

    def warm_up(self) -> None:
        """See that there are places for all workers and that their Python has what it needs."""
        try:
            self._seat()
        except MeanderError:
            raise
        except Exception as problem:
            raise QueryFailed(in_short(problem)) from problem

    # --- places ----------------------------------------------------------------------------

    def _seat(self) -> None:
        """Give every worker a place; bins of workers for which none comes back go to the others."""
        lost = set(self.seats.settle(self.moves.participants, self.settings.executors_within_s))
        if not lost:
            return
        if (self.version < 0 and lost & set(self.workers)) or lost >= set(self.workers):
            raise QueryFailed(
                f"{len(self.workers)} workers need as many cores, and the executors had {self.seats.cores} within "
                f"{self.settings.executors_within_s:g} s; start with fewer workers or give Spark more executors"
            )
        logger.warning("workers %s have no executor any more; the others take over their bins", sorted(lost))
        self.moves.repair(lost)

    # --- sink and commit -------------------------------------------------------------------

    def _write(self, told: Told, session: SparkSession, version: int) -> None:
        output = self.pipeline.output(len(self.ledger.owners) - 1, told.reports, told.inline, self.seats.now)
        self.sink(output, self.gateway, session, version)

    def _commit(self, told: Told, version: int, batch: int, tick: int, offsets: str) -> Commit:
        stages = []
        for stage, operator in enumerate(self.pipeline.stages):
            mine = [report for report in told.reports if report.stage == stage]
            before = self.log.last.stages[stage].newest if self.log.last else ()
            reached = Reached(self.frontiers[stage], before).after(
                [report.newest for report in mine if report.newest], operator.lateness
            )
            stages.append(
                StageCommit(
                    frontier=reached.frontier,
                    newest=reached.newest,
                    owner=tuple(self.ledger.now[stage].tolist()),
                    deltas=tuple(FileRef.from_json(report.delta) for report in mine if report.delta),
                    snapshots=tuple(SnapshotRef.from_json(report.snapshot) for report in mine if report.snapshot),
                    side=tuple(FileRef.from_json(side) for report in mine for side in report.side),
                )
            )
        first = [report for report in told.reports if report.stage == 0]
        return Commit(
            version, batch, tick, self.query_id, offsets, tuple(stages),
            rows=sum(report.rows + report.dead for report in first),
            late=sum(report.late for report in told.reports),
            dead=sum(report.dead for report in told.reports),
            time_ms=int(time.time() * 1000),
        )  # fmt: skip

    def _committed(self, told: Told, commit: Commit) -> None:
        self._used = list(self.frontiers)
        self.frontiers = [stage.frontier for stage in commit.stages]
        for report in told.reports:
            self.seats.holds(report.stage, WorkerId(report.worker), unpacked(report.held, self.settings.bins))
            self.misrouted += report.misrouted
        self._largest = max(report.bytes for report in told.reports)
        self._worked = time.monotonic()
        self.ledger.note(told.reports)
        self.ledger.keep()
        behind = self.rows_behind() if self.monitor.watchers else 0
        self.monitor.note(commit.version, commit.time_ms, told.reports, self.ledger.owners, behind)
        self.moves.committed(commit.version, [report.trouble for report in told.reports if report.trouble])

    def _noted(self) -> Json:
        """What another driver has to know to go on after the version that is being committed."""
        noted = self.moves.noted()
        return noted if self.waiting is None else {**noted, "waiting": packed(self.waiting)}

    def _tell(self, told: Told, commit: Commit, spent_s: Mapping[str, float]) -> None:
        whole_s = sum(spent_s.values())
        self.progress.append(
            {
                "version": commit.version,
                "batch": commit.batch,
                "tick": commit.tick,
                "rows": commit.rows,
                "late": commit.late,
                "dead": commit.dead,
                "ended_ms": commit.time_ms,
                "emitted": sum(r.emitted for r in told.reports if r.stage == len(self.ledger.owners) - 1),
                "flipped": len(self.moves.orders.flips),
                "copied": sum(report.copied for report in told.reports),
                "misrouted": sum(report.misrouted for report in told.reports),
                "rows_per_s": commit.rows / whole_s,
                "spent_ms": {name: round(spent * 1000, 1) for name, spent in spent_s.items()},
                "workers": [
                    {
                        "stage": report.stage,
                        "worker": report.worker,
                        "rows": report.rows,
                        "state_rows": int(read_numbers(report.state_rows).sum()),
                        "state_bytes": int(read_numbers(report.state_bytes).sum()),
                        "spent_ms": dict(report.spent_ms),
                    }
                    for report in sorted(told.reports, key=lambda each: (each.stage, each.worker))
                ],
            }
        )
        del self.progress[:-REMEMBERED]
