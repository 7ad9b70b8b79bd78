"""The driver of one run of a query: everything that decides about its versions, put together.

Stream -> BatchLoop -> Attempts -> Version -> Jobs        the way of a batch
Movable -> Coordinator -> protocol                        the way of a change
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from uuid import uuid4

import numpy as np

from meander.clock import Clock, SystemClock
from meander.engine.driver.attempts import Attempts
from meander.engine.driver.batch_loop import BatchLoop, Ticker
from meander.engine.driver.commit import EventTime
from meander.engine.driver.conversion import StateConversion, check_converters
from meander.engine.driver.graph import Graph
from meander.engine.driver.monitor import Loads, Monitor
from meander.engine.driver.placement import Placement
from meander.engine.driver.ports import Cluster, Jobs
from meander.engine.driver.settings import Settings
from meander.logs import about, logger
from meander.migration.coordinator import Coordinator
from meander.migration.events import EventLog
from meander.migration.ledger import BinRecord, Holdings, Owners
from meander.migration.steps import COPY_BYTES, Step
from meander.operators.operator import BinnedOperator
from meander.store import rebin as rebins
from meander.store.design import Design
from meander.store.evolution import Evolution, Ruling
from meander.store.identity import Identity, check_spark_part
from meander.store.location import Location
from meander.store.manifest import Log
from meander.store.rollback import finish
from meander.store.skip import skip, wants_skip


class Driver:
    """Makes the versions of one run of a query; a run ends with a stop, a failure or the end of the stream."""

    def __init__(
        self,
        operators: Sequence[BinnedOperator] | Graph,
        cluster: Cluster,
        jobs: Jobs,
        settings: Settings,
        log: Log,
        clock: Clock | None = None,
        run: str | None = None,
        background: bool = True,
        before: Driver | None = None,
        design: Design | None = None,
    ) -> None:
        """Go on from the last commit of a log, once this driver has claimed it.

        Args:
            operators: what the query computes: operators, first to last, that are a chain, or a graph of them.
            cluster: who is there.
            jobs: what runs attempts.
            settings: how the query runs.
            log: what is committed.
            clock: time.
            run: a name that no other run has: queries of one application share their executors' local directories.
            background: sweep the checkpoint and call listeners beside the batches.
            before: a driver of the same query in this process that has ended, whose history goes on.
            design: what the query is from its next version on, where that is not what the log says.
        """
        self.graph = Graph.of(operators)
        self.operators, self.cluster, self.jobs = self.graph.operators, cluster, jobs
        self.settings, self.log = settings, log
        self.clock = clock or SystemClock()
        last, count = log.last, len(self.operators)
        note = (last.journal if last else None) or {}
        done = last.operators if last else ()
        new = count - len(done)  # operators that the last version had not: they begin where the one before them is
        owners = [np.array(each.owner, np.int64) for each in done]
        owners += [owners[-1] if owners else _spread(settings)] * new
        self.event_time = EventTime(
            [*(each.frontier for each in done), *[None] * new], [*(each.seen for each in done), *[None] * new]
        )
        self.name = settings.name or (last.query if last else None)
        """What the query is called; its id where it has no name, None before its first version."""
        self.events: EventLog = before.events if before else EventLog(self.clock, background, self.name)
        self.record = BinRecord(owners, log.index.version)
        self.holdings = Holdings()
        self.coordinator: Coordinator = Coordinator(
            self.record, self.holdings, self.events, settings.workers, note, before.coordinator if before else None
        )  # fmt: skip
        self.placement = Placement(cluster, self.holdings, run or uuid4().hex, self.clock)
        known = design or log.index.design or Design.first(self.graph.fingerprints)
        self.conversion = StateConversion(
            known, log, self.events, settings.copy_bytes or COPY_BYTES, design is not None
        )
        self.attempts = Attempts(
            self.graph, jobs, self.placement, self.coordinator, self.event_time, log, settings, self.conversion
        )  # fmt: skip
        self.attempts.errors = before.attempts.errors if before else 0
        self.monitor: Monitor = before.monitor if before else Monitor(self.operators, settings.bins)
        self.loop: BatchLoop = BatchLoop(
            self.attempts, self.monitor, self.clock, background, before.loop if before else None
        )  # fmt: skip
        self.ticker = Ticker(self.loop, self.clock)

    def settle(self, requested: int | None, moved: Sequence[Step] | None = None) -> Driver:
        """Before the first version: spread the bins over the workers, and find places for them.

        Args:
            requested: the number of workers that the user named, if any.
            moved: steps that take effect at once.
        """
        with about(query=self.name):
            if moved is not None:
                self.coordinator.take_over(moved)
            self.coordinator.start(requested, self.settings.workers)
            self.attempts.settle()
        return self

    def loads(self, operator: int) -> Loads:
        """How many rows each bin of an operator had in the last version, and how the load is spread."""
        workers = self.record.ledger().workers_of(operator)
        return self.monitor.loads(operator, self.record.rows[operator].tolist(), workers)

    def stop(self) -> None:
        """Begin no further attempt."""
        self.attempts.stop()

    def wind_down(self) -> None:
        """After the stream has ended: fire what is due, then give everything back."""
        loop = self.loop
        if loop.failure is None and not loop.stopping:
            loop.settle()
            if self.settings.at_end == "close" and self.log.last is not None:
                # One operator after the other, lest what one says last be late for the next.
                for operator in range(len(self.operators)):
                    with loop.lock:
                        self.event_time.end(operator)
                    loop.settle()
        self.close()

    def close(self) -> None:
        """End the ticks and remove the local state."""
        self.ticker.stop()
        self.loop.sweeper.join()
        self.loop.delivery.sweep()
        self.placement.leave()


def claim(
    location: Location,
    settings: Settings,
    operators: Sequence[BinnedOperator] | Graph,
    settled: Callable[[Log, Design | None], Driver],
    host: str,
    pid: int,
    evolution: Evolution | None = None,
) -> Driver:
    """A driver that has claimed the checkpoint: from here on no other one commits.

    The claim comes after everything that may refuse: a start that fails leaves the query alone that runs.

    Args:
        location: where the checkpoint is; one of a query that has changed too much is refused.
        settings: how the query runs.
        operators: what it computes, as `Driver` takes it.
        settled: makes a driver from what is committed in a log, and of a new design where there is one, and finds
            places for its workers.
        host: where this process runs.
        pid: its number.
        evolution: how the query may differ from what it was.
    """
    graph = Graph.of(operators)
    identity = Identity.of(settings.bins, graph.fingerprints)
    log = Log.open(location)

    def ruling_now() -> Ruling:
        ruling = identity.judged(location, log, evolution, [each.rules for each in graph.operators])
        check_converters(ruling.design, log.index, graph.operators)
        return ruling

    ruling = ruling_now()
    check_spark_part(log)
    if settings.skip_batch is not None:
        wants_skip(log, settings.skip_batch)
    driver = settled(log, ruling.change)
    identity.settle(location)
    ruling_now()  # another first driver may have been quicker
    known = log.next_sequence
    if log.claim(host, pid) != known:  # another driver has gone on since the log was read
        driver.close()
        ruling = ruling_now()
        driver = settled(log, ruling.change)
    for note in ruling.notes:
        logger.info("since the last start, %s", note, extra={"query": driver.name})
    rebins.finish(location)
    finish(log)  # before Spark reads its logs
    driver.loop.delivery.recover()
    log.settle()
    if settings.skip_batch is not None and _skip(driver, settings.skip_batch):
        driver.close()
        driver = settled(log, ruling.change)
        driver.loop.delivery.recover()
        log.settle()
        driver.events.emit("skipped", version=log.index.version, batch=settings.skip_batch)
    return driver


def _skip(driver: Driver, batch: int) -> bool:
    """Leave out a batch, unless it was left out before; whether the log has gone on."""
    log = driver.log
    if not wants_skip(log, batch):
        logger.info("batch %d is not skipped again: the next one is %d", batch, log.last.batch + 1 if log.last else 0)
        return False
    commit = skip(log, batch, [owner.tolist() for owner in driver.record.owners], driver.clock.wall_ms())
    finish(log)
    logger.warning("batch %d is skipped: version %d has the state before it", batch, commit.version)
    return True


def _spread(settings: Settings) -> Owners:
    return (np.arange(settings.bins) * settings.workers // settings.bins).astype(np.int64)
