"""A query while it runs: the handle that shows it, changes it and stops it, and how it is started."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from meander.checkpoint.location import Location
from meander.checkpoint.manifest import Log
from meander.checkpoint.reader import Reader
from meander.errors import InvalidOption, QueryFailed
from meander.measure.transitions import Transitions
from meander.migration.steps import Step as MigrationStep
from meander.planning.ahead import Outlook
from meander.spark import provenance, steering
from meander.spark.balancer import Balancer, Choice
from meander.spark.engine import Engine
from meander.spark.foresight import look_ahead, outlooks_in
from meander.spark.gateway import Gateway
from meander.spark.happenings import Listener
from meander.spark.migrating import Migration
from meander.spark.monitor import Loads
from meander.spark.pipeline import Pipeline, Step
from meander.spark.request import Proposal, Request, made, proposed, stages_of
from meander.spark.runner import Runner
from meander.spark.settings import Settings
from meander.spark.sinks import Sink, sink_of
from meander.spark.steering import Steering
from meander.spark.watch import in_short
from meander.values import whole

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

TRIGGERS = ("processingTime", "availableNow", "once")


class Query:
    """A running query: what it did last, whether it still runs, how to move its bins, and how to stop it."""

    _relaunching = False

    def __init__(self, launch: Launch, asked: int | None) -> None:
        self._launch, self._asked = launch, asked
        self._engine: Engine
        self._inner: StreamingQuery
        self._runner: Runner
        self._engine, self._inner, self._runner = launch(asked, ())
        self._migration: Migration | None = None
        self._going = True
        if self._engine.moves.protocol.busy:
            self._migration = Migration.resumed(self)
        self._steering: Steering | None = None
        self._balancer: Balancer | None = None

    def _steer(self, control: DataFrame) -> None:
        """Take moves from a stream from here on."""
        self._steering = Steering(self, control).start()

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
        return self._going and (self._relaunching or bool(self._inner.isActive))

    @property
    def version(self) -> int:
        """The last committed version, -1 before the first."""
        return self._engine.version

    @property
    def workers(self) -> list[int]:
        """The workers that own bins."""
        return list(self._engine.workers)

    @property
    def operators(self) -> dict[int, str]:
        """The name of each operator, by its number in the chain."""
        return {at: f"{at}:{stage.name}" for at, stage in enumerate(self._engine.pipeline.stages)}

    @property
    def assignment(self) -> dict[str, list[int]]:
        """Who owns each bin, by operator."""
        return {self.operators[at]: owners.tolist() for at, owners in enumerate(self._engine.ledger.owners)}

    @property
    def loads(self) -> dict[str, Loads]:
        """How many rows each bin had in the last version, by operator; and beside that how the load is spread.

        `query.loads["0:join"].imbalance` is Ls-Stream's LI; see `meander.spark.monitor.Loads`.
        """
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

    @property
    def events(self) -> list[dict[str, Any]]:
        """What happened, oldest first: phases of migrations, workers that were lost, executors that came and went."""
        return list(self._engine.moves.happenings.told)

    def on_event(self, listener: Listener) -> None:
        """Call this with every event from here on, where and when it happens: a batch may wait for it."""
        self._engine.moves.happenings.listeners.append(listener)

    @property
    def migration(self) -> Migration | None:
        """The migration under way, or the last one."""
        return self._migration

    @property
    def is_shared(self) -> bool:
        """Whether other streams run on the same executors, so that none is let go."""
        mine = {self._inner.id}
        active = self._launch.source.sparkSession.streams.active
        return any(each.id not in mine and not (self._steering and self._steering.is_mine(each.id)) for each in active)

    def rescale(self, workers: int, *, operator: str | int | None = None, **options: Any) -> Any:
        """Go to so many workers while the query runs; returns the `Migration`, which can be waited for.

        More workers get executors first, which are warm before they get bins; fewer give their bins away first, and
        then their executors go. The planner chooses which bins move, and with fewer workers who leaves.

        Args:
            workers: how many there shall be.
            operator: one operator of a chain, by name or number; by default all, and they flip together.
            options: planner ("free"), schedule ("batched"), tau, mode ("live"), at (a batch number, a datetime or a
                time of day such as "02:00"), dry_run (return a `Proposal`, move nothing), what the planner and the
                schedule take (max_bins, max_bytes, gap, seed, ..), copy_bytes, copy_ms, release_after, keep_bytes,
                patience, executors_within_s, keep_executors.
        """
        whole("workers", workers, 1, self._engine.settings.bins)
        return self._migrate("rescale", operator, {**options, "workers": workers})

    def look_ahead(
        self,
        history: Transitions | str | os.PathLike[str] | None = None,
        *,
        lo: int | None = None,
        hi: int | None = None,
        tau: float = 0.2,
        gamma: float = 0.8,
        operator: str | int | None = None,
        **options: Any,
    ) -> dict[str, Outlook]:
        """Work out what migrations to come will cost, so that `rescale(n, planner="mtm")` can mind them.

        It looks at the bins as they are measured now, takes a minute or so of the executors the query runs on, and
        stays in the checkpoint: it is there after a restart. Call it again when the loads have changed; until then a
        plan says in its notes whether the outlook still fits.

        Args:
            history: how often n workers become n': `Transitions`, or a file with an arrival series, which is scaled to
                `lo` to `hi` workers. By default the query's own history, its events of this run.
            lo: the fewest workers there will be; by default the fewest there were.
            hi: the most.
            tau: the load cap that later migrations shall keep.
            gamma: how much the next migration counts against this one, from 0 to below 1.
            operator: one operator of a chain, by name or number; by default each of them.
            options: exactly, drift, effort and tell, as for `me.pmc`.

        Returns the outlook of each operator.
        """
        return look_ahead(self._engine, self.operators, history, lo, hi, tau, gamma, operator, options)

    def rebalance(self, tau: float = 0.2, *, operator: str | int | None = None, **options: Any) -> Any:
        """Spread the load over the workers that are there, so that none has more than (1 + tau) times its share.

        The options are those of `rescale`.
        """
        return self._migrate("rebalance", operator, {**options, "tau": tau})

    def move(self, targets: Mapping[int, int], *, operator: str | int | None = None, **options: Any) -> Any:
        """Move these bins to these workers: {bin: worker}. The options are those of `rescale`, without a planner."""
        for unfit in {"planner", "tau"} & set(options):
            raise InvalidOption(f"move has no option {unfit!r}: it is you who says which bins go where")
        return self._migrate("move", operator, {**options, "targets": dict(targets)})

    def keep_balanced(
        self,
        policy: str = "straggler",
        *,
        alpha: float | None = None,
        operator: str | int | None = None,
        **options: Any,
    ) -> Balancer:
        """Lighten stragglers whenever there are any, live, until the returned balancer is stopped or the query ends.

        It looks at every batch. Where the load imbalance degree LI (`query.loads[..].imbalance`) over a window of
        batches is above alpha, bins go from the straggler to those with little to do. Every decision is in its
        `decisions`, with the reason; those that move something are among `query.events` too.

        Args:
            policy: "straggler", Ls-Stream's; for joins and for any other operator.
            alpha: the LI that is left alone; by default min(1.0, (workers - 1) / 2). Among n workers LI is at most
                n - 1: an alpha that can never be exceeded is refused.
            operator: one operator of a chain, by name or number; by default each of them.
            options: aim (the LI that a plan is to reach: 0.2), window (batches that are looked back on: 8), gamma
                (weight of memory against computing, or "measured"), rest (batches that are left alone after a move),
                least and most (how many workers there may be, should balance not be enough, or fewer do), utilisation
                (how busy they are to be then: 0.8); planner ("annealing", or "ssm", "free") and what the planner and
                the schedule take, as for `rescale`.
        """
        if alpha is not None:
            options["alpha"] = alpha
        choice = Choice.of(self, policy, operator, options)
        if not self.is_active:
            raise QueryFailed("the query does not run; start it, and then keep it balanced") from self.exception()
        if self._balancer is not None:
            self._balancer.stop()
        self._balancer = Balancer(self, choice).start()
        return self._balancer

    def _migrate(self, kind: str, operator: str | int | None, options: dict[str, Any]) -> Migration | Proposal:
        dry_run = options.pop("dry_run", False)
        request = made(kind, self._engine.settings, stages_of(operator, self.operators), options)
        proposal = self._proposed(request)
        return proposal if dry_run else self._move(request, proposal)

    def _proposed(self, request: Request) -> Proposal:
        engine = self._engine
        return proposed(request, engine.ledger, self.operators, engine.moves.participants, engine.version)

    def _move(self, request: Request, proposal: Proposal) -> Migration:
        if not self.is_active:
            raise QueryFailed("the query does not run; start it, and then move its bins") from self.exception()
        if self._migration is not None:
            self._migration.give_way()
        self._migration = Migration(self, request, proposal).start()
        return self._migration

    def _relaunch(self, steps: Sequence[MigrationStep]) -> None:
        """Stop, and start again with other owners; for the mode `restart`."""
        self._relaunching = True
        try:
            before = self._engine
            self._halt()
            self._engine, self._inner, self._runner = self._launch(self._asked, steps, before)
        finally:
            self._relaunching = False

    def exception(self) -> Exception | None:
        """Why the query has failed, or None."""
        if self._engine.failure is not None:
            return self._engine.failure
        if self._engine.stopping:
            return None
        found = self._inner.exception()
        return None if found is None else QueryFailed(in_short(found))

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
        if self._steering is not None:
            self._steering.stop()
        if self._balancer is not None:
            self._balancer.stop()
        self._halt()
        self._going = False

    def _halt(self) -> None:
        self._engine.stopping = True
        with self._engine.lock:
            self._inner.stop()
        self._runner.close()


@dataclass(frozen=True)
class Launch:
    """Everything a query is started with, so that it can be started more than once."""

    source: DataFrame
    steps: Sequence[Step]
    settings: Settings
    sink: Sink
    trigger: Mapping[str, Any]

    def __call__(
        self, asked: int | None, moved: Sequence[MigrationStep], before: Engine | None = None
    ) -> tuple[Engine, StreamingQuery, Runner]:
        """Check everything, claim the checkpoint, and start; with bins moved to others than those who have them."""
        spark, settings = self.source.sparkSession, self.settings
        gateway = Gateway(spark)
        location = Location.of(settings.checkpoint, fsync=settings.fsync)
        if not location.is_local:
            uri = location.uri
            location = replace(location, exclusive=lambda path, data: gateway.create_exclusively(f"{uri}/{path}", data))
        provenance.check_identity(location, settings, [step.stage for step in self.steps])
        log = Log.open(location)
        query_id = provenance.check_spark_part(log)
        log.claim(socket.gethostname(), os.getpid())
        engine = Engine(gateway, Pipeline(gateway, self.steps), settings, log, self.sink.write)
        if before is not None:
            engine.moves.happenings = before.moves.happenings
            engine.progress, engine.misrouted = before.progress, before.misrouted
            engine.monitor, engine.rows_behind = before.monitor, before.rows_behind
            engine.moves.take_over(moved)
        engine.ledger.outlooks = outlooks_in(location, len(self.steps))
        engine.moves.rescale_to(asked)
        engine.warm_up()
        if not gateway.local:
            gateway.set_locality_wait("20s")  # shorter, and Spark would run a task elsewhere while its executor is busy
        runner = Runner(engine, self.source)
        folder = f"{location.uri}/{provenance.SPARK}"
        writer = self.source.writeStream.foreachBatch(runner).option("checkpointLocation", folder)
        if settings.name:
            writer = writer.queryName(settings.name)
        if self.trigger:
            writer = writer.trigger(**self.trigger)
        # Spark copies the session when a stream starts; with adaptive execution on, the shuffle would run outside our
        # job.
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
        return engine, inner, runner


def start(
    source: DataFrame,
    steps: Sequence[Step],
    settings: Settings,
    sink: object,
    trigger: Mapping[str, Any],
    asked: int | None = None,
    control: DataFrame | None = None,
) -> Query:
    """Start a query; `asked` is the number of workers its user has named, if any, `control` a stream of moves."""
    unknown = set(trigger) - set(TRIGGERS)
    if unknown or len(trigger) > 1:
        raise InvalidOption(f"the trigger {trigger} is none of Spark's that fit: one of {', '.join(TRIGGERS)}")
    if settings.at_end == "close" and not {"availableNow", "once"} & set(trigger):
        raise InvalidOption(
            "at_end='close' is for a query that ends; start it with trigger={'availableNow': True}, or leave at_end out"
        )
    if control is not None:
        steering.check(control)
    query = Query(Launch(source, steps, settings, sink_of(sink), trigger), asked)
    if control is not None:
        query._steer(control)
    return query
