"""A query people already have, seen and steered: `me.attach(query)`.

    attached = me.attach(query)          # what writeStream.start() returned
    print(attached.observe())            # which executor holds which of its state partitions, and how busy it is
    attached.spread().wait()             # as many partitions on every executor

The query is not changed and not stopped. Spark pins each state partition to the executor that first happened to load
it; here it is told of another one, and loads the state there from the checkpoint, as after a lost executor.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from meander.control.balancer import LOOK_EVERY_S, Balancer
from meander.control.policies import policy_factory
from meander.errors import InvalidOption, QueryFailed
from meander.migration.events import Event
from meander.migration.handle import Migration
from meander.migration.move_options import MoveOptions, options_of
from meander.migration.mover import Mover, operators_of
from meander.migration.request import Proposal
from meander.migration.steps import SteeringPatience
from meander.moves import Moves
from meander.native.batches import BatchWatch
from meander.native.engine import NativeEngine
from meander.native.internals import Internals
from meander.native.observation import Observation
from meander.native.placement import StatePlacement, is_loaded
from meander.native.publish import Publication
from meander.options import mapping, positive, whole, worker_id
from meander.pictures import many
from meander.types import WorkerId

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

PUBLISH_EVERY_S = 2.0
NOT_FOR_ATTACHED = ("mode", "at")
"""Options of Meander's own queries that partitions of Spark cannot follow."""


def attach(
    query: StreamingQuery, *, within_s: float = 60.0, publish: bool = True, locality_wait: str | None = None
) -> Attached:
    """See and steer where the state of a running query is; the query goes on as it is.

    Args:
        query: what `writeStream.start()` returned, with at least one stateful operator: an aggregate, dropDuplicates, a
            join of two streams, applyInPandasWithState, transformWithState.
        within_s: how long to wait for its first batch to end.
        publish: let `meander native top`, of the same user on this machine, show what is observed.
        locality_wait: for as long as it is attached, Spark waits so long for a task's place, as in "20s", before an
            idle executor takes the task and its state. For queries whose stages take longer than spark.locality.wait.

    Returns:
        The query, to be looked at and steered; also a context manager that detaches in the end.

    Raises:
        InvalidOption: it is no running query of a classic session, has no state, or a Spark we do not know.
        QueryFailed: it does not run, or has ended no batch within that time.

    Example:
        >>> attached = me.attach(counting)
        >>> attached.query is counting
        True
        >>> attached.detach()
    """
    internals = Internals.of(query)
    if locality_wait is not None:
        _check_wait(internals, locality_wait)
    deadline = time.monotonic() + positive("within_s", within_s)
    while not is_loaded(internals):
        if time.monotonic() > deadline or not internals.is_active:
            raise QueryFailed(
                f"the query has ended no batch within {within_s:g} s, so its state is nowhere yet; attach when rows "
                "come"
            )
        time.sleep(0.05)
    operators = internals.operators()
    placement = StatePlacement(internals, operators, BatchWatch(internals, operators))
    return Attached(NativeEngine(placement), publish, locality_wait)


def _check_wait(internals: Internals, wait: str) -> None:
    try:
        internals.gateway.seconds(wait)
    except Exception:
        raise InvalidOption(f"locality_wait is {wait!r}; it is a time as Spark writes it, such as '20s'") from None


class Attached(Moves[str | int]):
    """A running query of Spark's own, to look at and to steer. Made by `me.attach`."""

    def __init__(self, engine: NativeEngine, publish: bool, locality_wait: str | None) -> None:
        self._engine, self._placement = engine, engine.placement
        super().__init__(Mover(engine, SteeringPatience()))
        self._balancer: Balancer | None = None
        self._lock = threading.RLock()
        gateway = self._placement.gateway
        self._wait_before = None if locality_wait is None else gateway.locality_wait()
        if locality_wait is not None:
            gateway.set_locality_wait(locality_wait)
        publication = Publication(self.query.runId) if publish else None
        threading.Thread(target=self._follow, args=(publication,), name="meander-attached", daemon=True).start()

    def __enter__(self) -> Attached:
        return self

    def __exit__(self, *_: object) -> None:
        self.detach()

    def __repr__(self) -> str:
        state = "running" if self.query.isActive else "ended"
        executors, partitions = many(len(self.executors), "executor"), many(self._engine.bins, "partition")
        return f"<Attached {self._engine.name}: {executors}, {partitions}, {state}>"

    # --- what one sees -----------------------------------------------------------------------

    @property
    def query(self) -> StreamingQuery:
        """The query itself, as Spark knows it."""
        return self._placement.internals.query

    @property
    def operators(self) -> dict[int, str]:
        """The groups of stateful operators that are placed together, by number."""
        return dict(self._engine.operators)

    @property
    def executors(self) -> list[str]:
        """The ids of the executors that are there."""
        return [each.id for each in self._placement.workers]

    @property
    def assignment(self) -> dict[str, list[str]]:
        """The executor of each state partition, by group."""
        return {name: [str(each) for each in self._placement.owners(group)] for group, name in self.operators.items()}

    @property
    def events(self) -> list[Event]:
        """What happened, oldest first: partitions that were steered and arrived, executors that came and went."""
        return list(self._engine.events.entries)

    def observe(self) -> Observation:
        """Where each state partition is, how large, how busy, and how unevenly that is spread; print it.

        Returns:
            The query as it was after its last batch.

        Raises:
            QueryFailed: the query has ended, or was detached from.

        Example:
            >>> {each.executor for each in attached.observe().partitions}
            {'0'}
        """
        self._engine.check_active("look at it")
        return self._placement.observe()

    # --- what one does -----------------------------------------------------------------------

    def spread(
        self, options: MoveOptions | None = None, *, operator: str | int | None = None, **keywords: Any
    ) -> Migration:
        """Put as many partitions on every executor as can be, however busy they are; moves as little as it can.

        Args:
            options: how they are moved, as a value.
            operator: as for `rebalance`.
            keywords: as for `rebalance`, without tau.

        Returns:
            The migration, which runs beside the query.

        Raises:
            InvalidOption: an option is not one that can be, or Spark runs in local mode.
            QueryFailed: the query does not run any more.

        Example:
            >>> attached.spread().wait()
            True
            >>> sorted(attached.assignment["0:count"])
            ['0', '0', '1', '1', '2', '2']
        """
        return self._migrate("rebalance", operator, _evenly(options, keywords))

    def plan_spread(
        self, options: MoveOptions | None = None, *, operator: str | int | None = None, **keywords: Any
    ) -> Proposal:
        """What `spread` would move if it were asked now; moves nothing.

        Args:
            options: as for `spread`.
            operator: as for `spread`.
            keywords: as for `spread`.

        Returns:
            The plan, the steps, and what they cost.

        Raises:
            InvalidOption: as for `spread`.
            QueryFailed: the query does not run any more.

        Example:
            >>> attached.plan_spread().bins
            4
        """
        return self._plan("rebalance", operator, _evenly(options, keywords))

    def rescale(self, executors: int, options: MoveOptions | None = None, **keywords: Any) -> Migration:
        """Go to so many executors while the query runs.

        More: they are asked for, warmed and then given partitions. Fewer: those that leave give theirs away first and
        are then let go.

        Args:
            executors: how many there shall be.
            options: how they are moved, as a value.
            keywords: as for `rebalance`.

        Returns:
            The migration, which runs beside the query.

        Raises:
            InvalidOption: the number of executors, or an option, is not one that can be; or Spark runs in local mode.
            QueryFailed: the query does not run any more.

        Example:
            >>> attached.rescale(2).wait()
            True
            >>> len(attached.executors)
            2
        """
        return self._migrate("rescale", None, self._rescaled(executors, options, keywords))

    def plan_rescale(self, executors: int, options: MoveOptions | None = None, **keywords: Any) -> Proposal:
        """What `rescale` would move if it were asked now; executors that are not there yet get made-up numbers.

        Args:
            executors: as for `rescale`.
            options: as for `rescale`.
            keywords: as for `rescale`.

        Returns:
            The plan, the steps, and what they cost.

        Raises:
            InvalidOption: as for `rescale`.
            QueryFailed: the query does not run any more.

        Example:
            >>> attached.plan_rescale(2).bytes > 0
            True
        """
        return self._plan("rescale", None, self._rescaled(executors, options, keywords))

    def _rescaled(self, executors: int, options: MoveOptions | None, keywords: Mapping[str, Any]) -> dict[str, Any]:
        self._placement.check_placeable()
        if self._placement.internals.is_elastic:
            raise InvalidOption(
                "spark.dynamicAllocation.enabled is on, so Spark decides how many executors there are; turn it off to "
                "rescale, or call spread() when some have come"
            )
        count = whole("executors", executors, 1, 1 << 15)
        most = self._engine.bins
        if count > most:
            raise InvalidOption(
                f"{count} executors cannot share {many(most, 'state partition')}; the number of partitions is fixed by "
                "spark.sql.shuffle.partitions at the query's first start"
            )
        return {**options_of(options, keywords), "workers": count}

    def drain(
        self, executor: str | int, options: MoveOptions | None = None, *, release: bool = False, **keywords: Any
    ) -> Migration:
        """Move everything off an executor, and give it nothing again.

        Args:
            executor: its id, as `observe()` prints it.
            options: how they are moved, as a value.
            release: let it go then. Without it, it stays empty until `refill` is called for it.
            keywords: as for `rebalance`.

        Returns:
            The migration, which runs beside the query.

        Raises:
            InvalidOption: there is no such executor, it is the last one, or an option is not one that can be.
            QueryFailed: the query does not run any more.

        Example:
            >>> attached.drain("0").wait()
            True
            >>> "0" in attached.assignment["0:count"]
            False
        """
        self._placement.check_placeable()
        name = str(executor)
        if name not in self.executors:
            raise InvalidOption(f"there is no executor {name!r}; there are: {', '.join(self.executors)}")
        if set(self.executors) <= {*self._placement.draining, name}:
            raise InvalidOption(f"executor {name} is the last one; there is nowhere for its partitions to go")
        if release and self._placement.internals.is_elastic:
            raise InvalidOption(
                "spark.dynamicAllocation.enabled is on, so Spark decides which executors there are; drain without "
                "release, and Spark lets the empty one go"
            )
        leaving = frozenset({worker_id("executor", name)})
        chosen = {**options_of(options, keywords), "leaving": leaving, "releases": release}
        migration = self._migrate("rebalance", None, chosen)
        self._placement.draining.add(name)
        return migration

    def refill(self, executor: str | int) -> None:
        """Let an executor that was drained take part again, from the next rebalance on.

        Args:
            executor: its id.

        Example:
            >>> attached.refill("0")
        """
        self._placement.draining.discard(str(executor))

    def keep_balanced(
        self,
        policy: str = "straggler",
        *,
        alpha: float | None = None,
        operator: str | int | None = None,
        every: float | None = None,
        **options: Any,
    ) -> Balancer:
        """Move partitions whenever it is worth it, until the returned balancer is stopped or the query ends.

        It is the balancer of Meander's own queries: the same policies, the same options, the same defaults. Every
        decision is in its `decisions`, with the reason; those that move something are among `attached.events` too.

        Args:
            policy: "straggler", Ls-Stream's, goes by the rows of partitions; "threshold" by the time of their tasks.
            alpha: for "straggler", the load imbalance degree LI that is left alone; by default
                min(1.0, (executors - 1) / 2).
            operator: one group of operators, by name or number; by default each of them.
            every: seconds between looks; by default it looks at every batch.
            options: of "straggler" aim, window, gamma, rest, least, most, utilisation; of "threshold" tau, slack,
                looks, rest_batches, gain; planner, and what the planner and the schedule take, as for `rebalance`.

        Returns:
            The balancer, which looks in a thread of its own.

        Raises:
            InvalidOption: an option is not one that can be, or Spark runs in local mode.
            QueryFailed: the query does not run any more.

        Example:
            >>> balancer = attached.keep_balanced("threshold", every=60)
            >>> balancer.is_active
            True
            >>> balancer.stop()
        """
        self._engine.check_active("keep it balanced")
        self._placement.check_placeable()
        if alpha is not None:
            options["alpha"] = alpha
        if self._placement.internals.is_elastic and {"least", "most"} & set(options):
            raise InvalidOption(
                "spark.dynamicAllocation.enabled is on, so Spark decides how many executors there are; turn it off to "
                "give least or most"
            )
        every_s = LOOK_EVERY_S if every is None else positive("every", every)
        make = policy_factory(policy, options, self._engine.workers)
        policies = {group: make() for group in operators_of(operator, self.operators)}
        balancer = Balancer(self._engine, self._mover, policies, options, every_s)
        if self._balancer is not None:
            self._balancer.stop()
        self._balancer = balancer.start()
        return self._balancer

    def detach(self) -> None:
        """Look no more and steer no more; the query goes on, with its state where it is.

        Example:
            >>> attached.detach()
            >>> attached.query.isActive
            True
        """
        if self._balancer is not None:
            self._balancer.stop()
        if self.migration is not None:
            self.migration.cancel()
            self.migration.join()
        self._engine.close()
        self._engine.events.deliver()

    # --- how -----------------------------------------------------------------------------------

    def _migrate(self, kind: str, operator: str | int | None, options: Mapping[str, Any]) -> Migration:
        self._check(kind, options)
        with self._lock:
            return self._mover.migrate(kind, operator, options)

    def _plan(self, kind: str, operator: str | int | None, options: Mapping[str, Any]) -> Proposal:
        self._check(kind, options)
        return self._mover.plan(kind, operator, options)

    def _owners(self, targets: Mapping[Any, Any]) -> dict[int, int]:
        self._placement.check_placeable()
        owners = mapping("targets", targets, "{partition: executor}")
        return {each: WorkerId(worker_id(f"executor of partition {each}", to)) for each, to in owners.items()}

    def _check(self, kind: str, options: Mapping[str, Any]) -> None:
        self._engine.check_active("move its partitions")
        self._placement.check_placeable()
        for unfit in NOT_FOR_ATTACHED:
            if unfit in options:
                raise InvalidOption(f"{kind} has no option {unfit!r}: Spark's partitions move between batches, at once")

    def _follow(self, publication: Publication | None) -> None:
        """Write what is observed for others to see, every now and then, until the query ends; then clear up."""
        watch = self._engine.watch
        batch = -2
        while not watch.ended.wait(PUBLISH_EVERY_S):
            newest = watch.wait_ended(batch, PUBLISH_EVERY_S)
            if newest is not None and publication is not None:
                batch = newest.number
                with suppress(Exception):
                    publication.write(self._placement.observe(exact=False))
        self._engine.close()
        if publication is not None:
            publication.close()
        if self._wait_before is not None:
            with suppress(Exception):
                self._placement.gateway.set_locality_wait(self._wait_before)


def _evenly(options: MoveOptions | None, keywords: Mapping[str, Any]) -> dict[str, Any]:
    chosen = options_of(options, keywords)
    if "tau" in chosen:
        raise InvalidOption("spread has no option 'tau': it is as even as can be; rebalance(tau) goes by load")
    return {**chosen, "is_even": True}
