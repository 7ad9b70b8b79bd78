"""A query while it runs: the handle that shows it, changes it and stops it."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Protocol

import pyarrow as pa

from meander.control.balancer import Balancer
from meander.control.policies import policy_factory
from meander.engine.driver.monitor import Loads
from meander.engine.driver.run import QueryRun
from meander.engine.driver.version_progress import VersionProgress
from meander.errors import QueryFailed
from meander.foresight import look_ahead, outlooks_in
from meander.migration.events import Event
from meander.migration.handle import Migration
from meander.migration.move_options import MoveOptions, options_of
from meander.migration.mover import Mover, operators_of
from meander.migration.request import Proposal
from meander.moves import Moves
from meander.options import whole
from meander.outlook import Outlook, Transitions
from meander.pictures import bin_strip, facts, many
from meander.store.reader import Reader
from meander.types import OperatorId, WorkerId

SPARKS_NAMES = {
    "awaitTermination": "await_termination(timeout_s)",
    "isActive": "is_active",
    "lastProgress": "last_progress",
    "processAllAvailable": "process_all_available()",
    "recentProgress": "recent_progress",
    "runId": "id",
    "status": "is_active, last_progress and migration",
}
"""What Spark's users look for, and what it is called."""


class Companion(Protocol):
    """Something that runs beside a query and ends with it: the reader of its control stream."""

    def stop(self) -> None:
        """End."""


class Query(Moves[int]):
    """A running query: what it did last, whether it still runs, how to move its bins, and how to stop it."""

    def __init__(self, run: QueryRun, background: bool = True) -> None:
        self._run = run
        driver = run.driver
        within_s = driver.settings.executors_within_s
        super().__init__(Mover(run, driver.settings.budget, within_s, driver.clock, background))
        outlooks = outlooks_in(driver.log.location, len(driver.operators))
        self._mover.prefer("mtm", {operator: {"outlook": outlook} for operator, outlook in outlooks.items()})
        self._balancer: Balancer | None = None
        self._companions: list[Companion] = []
        protocol = driver.coordinator.protocol
        if protocol.migration is not None:
            bins = sum(len(step.moves) for step in protocol.steps)
            size = sum(step.bytes for step in protocol.steps)
            workers = tuple(sorted({*driver.record.workers, *protocol.workers}))
            proposal = Proposal({}, protocol.steps, bins, size, 0, workers)
            self._mover.resume(protocol.migration, proposal, protocol.budget)

    if not TYPE_CHECKING:  # a type checker shall find a slip itself

        def __getattr__(self, name: str) -> NoReturn:
            alias = f"; it is called {SPARKS_NAMES[name]} here" if name in SPARKS_NAMES else ""
            raise AttributeError(f"a query has no {name!r}{alias}", name=name, obj=self)

    def __repr__(self) -> str:
        state = "running" if self.is_active else "failed" if self.exception() else "stopped"
        return f"<Query {self.name or self.id}: version {self.version}, {many(len(self.workers), 'worker')}, {state}>"

    def _repr_html_(self) -> str:
        last, move = self.last_progress, self.migration
        shown = {"last batch": last or "none yet", "migration": "none" if move is None else move.progress}
        strips = [bin_strip(owners, name) for name, owners in self.assignment.items()]
        return facts(repr(self).strip("<>"), shown, *strips)

    @property
    def name(self) -> str | None:
        """The name given to `start`."""
        return self._run.driver.settings.name

    @property
    def id(self) -> str:
        """Spark's id of the query; the same after a restart."""
        return self._run.stream.id

    @property
    def is_active(self) -> bool:
        """Whether the query runs."""
        return self._run.is_active

    @property
    def version(self) -> int:
        """The last committed version, -1 before the first."""
        return self._run.driver.loop.version

    @property
    def workers(self) -> list[WorkerId]:
        """The workers that own bins."""
        return list(self._run.driver.record.workers)

    @property
    def places(self) -> dict[WorkerId, str]:
        """The executor that each worker is on: its host, process id and start time, with colons between them."""
        return {worker: place.process for worker, place in self._run.driver.placement.places.items()}

    @property
    def operators(self) -> dict[OperatorId, str]:
        """The name of each operator, by its number in the chain."""
        return {OperatorId(at): name for at, name in self._run.operators.items()}

    @property
    def assignment(self) -> dict[str, list[WorkerId]]:
        """Who owns each bin, by operator."""
        return {self._run.operators[at]: owners.tolist() for at, owners in enumerate(self._run.driver.record.owners)}

    @property
    def loads(self) -> dict[str, Loads]:
        """How many rows each bin had in the last version, by operator; and beside that how the load is spread.

        `query.loads["0:join"].imbalance` is Ls-Stream's LI; see `meander.engine.driver.monitor.Loads`.
        """
        return {name: self._run.driver.loads(at) for at, name in self.operators.items()}

    @property
    def misrouted(self) -> int:
        """How many rows came to a worker that does not own their bin: 0, or something is badly wrong."""
        return self._run.driver.loop.misrouted

    @property
    def last_progress(self) -> VersionProgress | None:
        """What the last batch did: rows, milliseconds, and each worker's part; None before the first."""
        return next((each for each in reversed(self._run.driver.loop.progress) if each.tick == 0), None)

    @property
    def recent_progress(self) -> list[VersionProgress]:
        """What the last batches did, oldest first."""
        return [each for each in list(self._run.driver.loop.progress) if each.tick == 0]

    @property
    def recent_ticks(self) -> list[VersionProgress]:
        """What the last versions of an idle stream did, which close windows and fire timers, oldest first."""
        return [each for each in list(self._run.driver.loop.progress) if each.tick > 0]

    @property
    def events(self) -> list[Event]:
        """What happened, oldest first: phases of migrations, workers that were lost, executors that came and went."""
        return list(self._run.driver.events.entries)

    @property
    def is_shared(self) -> bool:
        """Whether other streams run on the same executors, so that none is let go."""
        return self._run.stream.is_shared

    def rescale(
        self,
        workers: int,
        options: MoveOptions | None = None,
        *,
        operator: str | int | None = None,
        **keywords: Any,
    ) -> Migration:
        """Go to so many workers while the query runs.

        More workers get executors first, which are warm before they get bins; fewer give their bins away first, and
        then their executors go. The planner chooses which bins move, and with fewer workers who leaves.

        Args:
            workers: how many there shall be.
            options: how bins are moved, as a value.
            operator: one operator of a chain, by name or number; by default all, and they flip together.
            keywords: the same as keywords, and what the planner and the schedule take (max_bins, max_bytes, gap,
                seed, ..); see `me.MoveOptions`.

        Returns:
            The migration, which runs beside the query: `wait()` for it, look at its `progress`, or `cancel()` it.

        Raises:
            InvalidOption: the number of workers, or an option, is not one that can be.
            Infeasible: there is no plan that keeps the `tau` that was named.
            QueryFailed: the query does not run any more.

        Example:
            >>> migration = query.rescale(3, planner="ssm", max_bins=2)
            >>> migration.status, len(migration.steps) > 1
            ('running', True)
        """
        return self._migrate("rescale", operator, self._rescaled(workers, options, keywords))

    def plan_rescale(
        self,
        workers: int,
        options: MoveOptions | None = None,
        *,
        operator: str | int | None = None,
        **keywords: Any,
    ) -> Proposal:
        """What `rescale` would move if it were asked now; moves nothing.

        Args:
            workers: as for `rescale`.
            options: as for `rescale`.
            operator: as for `rescale`.
            keywords: as for `rescale`.

        Returns:
            The plan of each operator, the steps, and what they cost.

        Raises:
            InvalidOption: as for `rescale`.
            Infeasible: as for `rescale`.

        Example:
            >>> query.plan_rescale(3).workers
            (0, 1, 2)
        """
        return self._plan("rescale", operator, self._rescaled(workers, options, keywords))

    def _rescaled(self, workers: int, options: MoveOptions | None, keywords: Mapping[str, Any]) -> dict[str, Any]:
        whole("workers", workers, 1, self._run.driver.settings.bins)
        return {**options_of(options, keywords), "workers": workers}

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

        Returns:
            The outlook of each operator.

        Raises:
            InvalidOption: an argument is wrong, or the query has no history yet.
            TooLarge: the exact form was asked for and there are too many partitionings.
            QueryFailed: the query has measured nothing yet.
        """
        driver = self._run.driver
        outlooks = look_ahead(driver, operators_of(operator, self._run.operators), history, lo, hi, tau, gamma, options)
        self._mover.prefer("mtm", {at: {"outlook": outlook} for at, outlook in outlooks.items()})
        return {self._run.operators[at]: outlook for at, outlook in outlooks.items()}

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

        Returns:
            The balancer, which looks in a thread of its own.

        Raises:
            InvalidOption: there is no such policy, or an option is not one that can be.
            QueryFailed: the query does not run any more.

        Example:
            >>> balancer = query.keep_balanced(alpha=0.5, window=4)
            >>> balancer.is_active
            True
            >>> balancer.stop()
        """
        if alpha is not None:
            options["alpha"] = alpha
        make = policy_factory(policy, options, self.workers)
        policies = {at: make() for at in operators_of(operator, self._run.operators)}
        balancer = Balancer(self._run, self._mover, policies, options)
        self._run.check_active("keep it balanced")
        if self._balancer is not None:
            self._balancer.stop()
        self._balancer = balancer.start()
        return self._balancer

    def accompany(self, companion: Companion) -> None:
        """Stop this too when the query is stopped."""
        self._companions.append(companion)

    def exception(self) -> Exception | None:
        """Why the query has failed.

        Returns:
            The exception, or None.

        Example:
            >>> query.exception() is None
            True
        """
        return self._run.exception()

    def dead_letters(self) -> pa.Table:
        """The rows that could not be used.

        Returns:
            The rows, each with its kind, reason, operator and version. The kind is "unusable", or "failed" where a
            function raised for the row's key, and "timer" for a timer of such.

        Raises:
            CheckpointError: the checkpoint cannot be read.

        Example:
            >>> query.dead_letters().num_rows
            0
        """
        return self._side("dead")

    def late_rows(self) -> pa.Table:
        """The rows that came too late for their window.

        Returns:
            The rows, each with its operator and version.

        Raises:
            CheckpointError: the checkpoint cannot be read.

        Example:
            >>> query.late_rows().num_rows
            0
        """
        return self._side("late")

    def _side(self, kind: Literal["late", "dead"]) -> pa.Table:
        tables = list(Reader.open(self._run.driver.log.location.uri).side(kind))
        return pa.concat_tables(tables, promote_options="default") if tables else pa.table({})

    def await_termination(self, timeout_s: float | None = None) -> bool:
        """Wait until the query ends.

        Args:
            timeout_s: wait so many seconds at most.

        Returns:
            Whether it has ended.

        Raises:
            Exception: what the query has failed of: `QueryFailed`, or what a function or a sink of yours has raised.

        Example:
            >>> query.await_termination(timeout_s=0)
            False
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while self.is_active:
            if deadline is not None and time.monotonic() >= deadline:
                return False
            try:
                self._run.stream.wait(1.0 if deadline is None else max(0.05, min(1.0, deadline - time.monotonic())))
            except Exception:
                break
        self._run.driver.wind_down()
        self._run.driver.events.deliver()
        problem = self.exception()
        if problem is not None:
            raise problem
        return True

    def process_all_available(self) -> None:
        """Wait until everything that is in the source now has been committed, and due timers have fired.

        Raises:
            MeanderError: what the query has failed of, also before the call.

        Example:
            >>> query.process_all_available()
        """
        try:
            self._run.stream.process_all_available()
        except Exception:
            raise self.exception() or QueryFailed("the query has ended") from None
        self._run.driver.loop.settle()
        # Spark knows nothing of a tick that failed: its stream was stopped, which is no failure to it.
        if (problem := self.exception()) is not None:
            raise problem

    def stop(self) -> None:
        """Let the batch that runs end, then stop; starting again goes on from there.

        Example:
            >>> query.stop()
            >>> query.is_active
            False
        """
        self._run.begin_stop()
        for companion in self._companions:
            companion.stop()
        if self._balancer is not None:
            self._balancer.stop()
        self._run.stop()
        self._run.driver.events.deliver()
