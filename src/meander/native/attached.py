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
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from meander.errors import Infeasible, InvalidOption, QueryFailed
from meander.migration.protocol import Rules as NoCopies
from meander.native.course import Rules
from meander.native.internals import Internals, Partition
from meander.native.moving import NativeMigration, Wish
from meander.native.observation import Observation
from meander.native.placement import Placement, executor_of
from meander.native.publish import Publication
from meander.native.watching import Watch
from meander.spark.happenings import Happenings, Listener
from meander.spark.ledger import Ledger
from meander.spark.request import NO_LIMIT, Proposal, Request, chosen, proposed, refuse_rest, stages_of
from meander.types import WorkerId
from meander.values import positive, whole, worker_id

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

    from meander.native.pilot import Pilot

PUBLISH_EVERY_S = 2.0
OTHERS = ("fresh_bytes", "snapshot_batches", "tries", "executors_within_s", "dry_run")


def attach(
    query: StreamingQuery, *, within_s: float = 60.0, publish: bool = True, locality_wait: str | None = None
) -> Attached:
    """See and steer where the state of a running query is; the query goes on as it is.

    Args:
        query: what `writeStream.start()` returned, with at least one stateful operator: an aggregate,
            dropDuplicates, a join of two streams, applyInPandasWithState, transformWithState.
        within_s: how long to wait for its first batch to end.
        publish: let `meander native top`, of the same user on this machine, show what is observed.
        locality_wait: for as long as it is attached, Spark waits so long for a task's place ("20s") before an idle
            executor takes it, and with it the state: for queries whose stages take longer than spark.locality.wait.
    """
    internals = Internals.of(query)
    if locality_wait is not None:
        _check_wait(internals, locality_wait)
    deadline = time.monotonic() + positive("within_s", within_s)
    while not _is_loaded(internals):
        if time.monotonic() > deadline or not internals.is_active:
            raise QueryFailed(
                f"the query has ended no batch within {within_s:g} s, so its state is nowhere yet; attach when rows "
                "come"
            )
        time.sleep(0.05)
    operators = internals.operators()
    return Attached(Placement(internals, operators, Watch(internals, operators)), publish, locality_wait)


def _is_loaded(internals: Internals) -> bool:
    """Whether the state of a query is on executors; refuses a query that has none."""
    if not internals.has_planned:
        return False
    operators = internals.operators()
    if not operators:
        raise InvalidOption("the query has no stateful operator, so there is no state to place")
    found = [internals.located([each], at) for each in operators for at in range(each.partitions)]
    # Where one task serves all partitions of an operator, the others are never loaded.
    return None not in found or (any(found) and internals.is_between_batches)


def _check_wait(internals: Internals, wait: str) -> None:
    try:
        internals.gateway.seconds(wait)
    except Exception:
        raise InvalidOption(f"locality_wait is {wait!r}; it is a time as Spark writes it, such as '20s'") from None


class Attached:
    """A running query of Spark's own, to look at and to steer. Made by `me.attach`."""

    def __init__(self, placement: Placement, publish: bool, locality_wait: str | None) -> None:
        self._placement = placement
        self._wait_before = None if locality_wait is None else placement.gateway.locality_wait()
        if locality_wait is not None:
            placement.gateway.set_locality_wait(locality_wait)
        self._happenings = Happenings()
        self._migration: NativeMigration | None = None
        self._pilot: Pilot | None = None
        self._lock = threading.RLock()
        placement.watch.on_lost = lambda executor, why: self._happenings.tell("lost", executor=executor, reason=why)
        publication = Publication(placement.internals.query.runId) if publish else None
        threading.Thread(target=self._follow, args=(publication,), name="meander-attached", daemon=True).start()

    def __enter__(self) -> Attached:
        return self

    def __exit__(self, *_: object) -> None:
        self.detach()

    # --- what one sees -----------------------------------------------------------------------

    @property
    def operators(self) -> dict[int, str]:
        """The groups of stateful operators that are placed together, by number."""
        return dict(self._placement.names)

    @property
    def executors(self) -> list[str]:
        """The ids of the executors that are there."""
        return [each.id for each in self._placement.workers]

    @property
    def assignment(self) -> dict[str, list[str]]:
        """The executor of each state partition, by group."""
        return {name: [str(each) for each in self._placement.owners(group)] for group, name in self.operators.items()}

    @property
    def events(self) -> list[dict[str, Any]]:
        """What happened, oldest first: partitions that were steered and arrived, executors that came and went."""
        return list(self._happenings.told)

    def on_event(self, listener: Listener) -> None:
        """Call this with every event from here on."""
        self._happenings.listeners.append(listener)

    @property
    def migration(self) -> NativeMigration | None:
        """The migration under way, or the last one."""
        return self._migration

    def observe(self) -> Observation:
        """Where each state partition is, how large, how busy, and how unevenly that is spread; print it."""
        self._check()
        return self._placement.observe()

    # --- what one does -----------------------------------------------------------------------

    def rebalance(self, tau: float | None = None, *, operator: str | int | None = None, **options: Any) -> Any:
        """Spread the measured time of the partitions over all executors that are there; returns the handle.

        Args:
            tau: no executor shall have more than (1 + tau) times its share; without it 0.2, or the smallest that can
                be kept with partitions as they are.
            operator: one group of operators, by name or number; by default all.
            options: planner ("free"), schedule ("batched": at most max_bins partitions and max_bytes bytes a batch,
                max_in of them to one executor), what these take, fresh_bytes, snapshot_batches, tries,
                executors_within_s, dry_run (return a `Proposal`, move nothing).
        """
        return self._migrate("rebalance", operator, {**options, "tau": tau})

    def spread(self, *, operator: str | int | None = None, **options: Any) -> Any:
        """Put as many partitions on every executor as can be, however busy they are; moves as little as it can.

        The options are those of `rebalance`.
        """
        if "tau" in options:
            raise InvalidOption("spread has no option 'tau': it is as even as can be; rebalance(tau) goes by load")
        return self._migrate("spread", operator, options)

    def rescale(self, executors: int, **options: Any) -> Any:
        """Go to so many executors while the query runs.

        More: they are asked for, warmed and then given partitions. Fewer: those that leave give theirs away first and
        are then let go. The options are those of `rebalance`.
        """
        if self._placement.internals.is_elastic:
            raise InvalidOption(
                "spark.dynamicAllocation.enabled is on, so Spark decides how many executors there are; turn it off to "
                "rescale, or call spread() when some have come"
            )
        wanted = whole("executors", executors, 1, 1 << 15)
        most = min(len(self._placement.partitions(group)) for group in self.operators)
        if wanted > most:
            raise InvalidOption(
                f"{wanted} executors cannot share {most} state partitions; the number of partitions is fixed by "
                "spark.sql.shuffle.partitions at the query's first start"
            )
        return self._migrate("rescale", None, {**options, "workers": wanted})

    def drain(self, executor: str | int, *, release: bool = False, **options: Any) -> Any:
        """Move everything off an executor, and give it nothing again; `release` then lets it go.

        The options are those of `rebalance`. Without `release` it stays empty until `refill` is called for it.
        """
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
        wish = {**options, "leaving": name, "releases": release}
        proposal = self._migrate("drain", None, {**wish, "dry_run": True})
        if options.get("dry_run"):
            return proposal
        self._placement.draining.add(name)
        return self._migrate("drain", None, wish)

    def refill(self, executor: str | int) -> None:
        """Let an executor that was drained take part again, from the next rebalance on."""
        self._placement.draining.discard(str(executor))

    def move(self, targets: Mapping[int, str | int], *, operator: str | int | None = None, **options: Any) -> Any:
        """Move these partitions to these executors: {partition: executor}."""
        for unfit in {"planner", "tau"} & set(options):
            raise InvalidOption(f"move has no option {unfit!r}: it is you who says which partitions go where")
        wanted = {each: WorkerId(worker_id(f"executor of partition {each}", to)) for each, to in targets.items()}
        unknown = sorted({str(each) for each in wanted.values()} - set(self.executors))
        if unknown:
            raise InvalidOption(f"there is no executor {unknown[0]!r}; there are: {', '.join(self.executors)}")
        return self._migrate("move", operator, {**options, "targets": wanted})

    def keep_balanced(self, tau: float = 0.2, every: float = 10.0, **rules: Any) -> Pilot:
        """Rebalance whenever it is worth it, looking every so many seconds, until the returned pilot is stopped.

        Args:
            tau: the share above the mean that no executor should be busy beyond.
            every: seconds between looks.
            rules: slack, looks, rest_batches, gain; see `meander.control.balance.Rules`.
        """
        from meander.control import Rules as BalanceRules
        from meander.native.pilot import Pilot

        self._check()
        try:
            chosen_rules = BalanceRules(tau=tau, **rules)
        except TypeError as error:
            known = ", ".join(BalanceRules.__dataclass_fields__)
            unknown = str(error).rpartition(" ")[2]
            raise InvalidOption(f"keep_balanced has no option {unknown}; there are: every, {known}") from None
        if self._pilot is not None:
            self._pilot.stop()
        self._pilot = Pilot(self, chosen_rules, positive("every", every)).start()
        return self._pilot

    def detach(self) -> None:
        """Look no more and steer no more; the query goes on, with its state where it is."""
        if self._pilot is not None:
            self._pilot.stop()
        if self._migration is not None:
            self._migration.cancel()
            self._migration.join()
        self._placement.watch.close()

    # --- how -----------------------------------------------------------------------------------

    def _check(self) -> None:
        if not self._placement.internals.is_active or self._placement.watch.ended.is_set():
            raise QueryFailed("the query has ended, or was detached from; start it, and attach again")

    def _migrate(self, kind: str, operator: str | int | None, options: dict[str, Any]) -> NativeMigration | Proposal:
        self._check()
        dry_run = options.pop("dry_run", False)
        wish = self._wish(kind, stages_of(operator, self.operators), options)
        with self._lock:
            if dry_run:
                return self._propose(wish, kind)
            if self._migration is not None and not self._migration.is_over:
                self._migration.give_way()
            self._migration = NativeMigration(
                self._placement, wish, partial(self._propose, wish, kind), self._happenings
            ).start()
            return self._migration

    def _wish(self, kind: str, groups: tuple[int, ...], given: Mapping[str, Any]) -> Wish:
        options = dict(given)
        patience = {name: options.pop(name) for name in ("fresh_bytes", "snapshot_batches", "tries") if name in options}
        leaving, releases = options.pop("leaving", None), bool(options.pop("releases", False))
        if options.get("schedule", "batched") == "batched":
            options = {"max_bins": max(1, len(self.executors)), "max_in": 1, **options}
        request = Request(
            "move" if kind == "move" else "rescale" if kind == "rescale" else "rebalance", groups,
            NoCopies(copy_bytes=NO_LIMIT, release_after=0),
            executors_within_s=positive("executors_within_s", options.pop("executors_within_s", 60.0)),
            workers=options.pop("workers", None), targets=options.pop("targets", {}), tau=options.pop("tau", None),
            **chosen(options),
        )  # fmt: skip
        refuse_rest(kind, options, request, OTHERS)
        gone = frozenset() if leaving is None else frozenset({leaving})
        return Wish(request, Rules(**patience), gone, releases or kind == "rescale")

    def _propose(self, wish: Wish, kind: str) -> Proposal:
        """Plan from where everything is now."""
        placement = self._placement
        out = {*placement.draining, *wish.leaving}
        there = [each for each in placement.workers if each.id not in out]
        workers = tuple(executor_of(each) for each in there)
        ledger = self._ledger(even=kind == "spread")
        if len({each.cores for each in there}) > 1:
            ledger.capacities = {executor_of(each): float(each.cores) for each in there}
        request = replace(wish.request, among=workers)
        propose = partial(
            proposed, ledger=ledger, names=placement.names, present=workers, version=placement.watch.batch
        )
        if kind != "spread":
            return propose(request)
        try:
            return propose(replace(request, tau=0.0))
        except Infeasible as error:
            return propose(replace(request, tau=(error.smallest_tau or 0.0) * (1 + 1e-9)))

    def _ledger(self, even: bool) -> Ledger:
        """What is known of every partition, in the form that plans are made of."""
        placement = self._placement
        owners = [np.array(placement.owners(group), np.int64) for group in placement.groups]
        ledger = Ledger(owners, len(owners[0]))
        for group in placement.groups:
            found = [placement.watch.last.get(Partition(group, each)) for each in placement.partitions(group)]
            ledger.state_bytes[group] = np.array([0 if each is None else each[1].state_bytes for each in found])
            if not even:
                ms = [placement.watch.ms.get(Partition(group, each), 0.0) for each in placement.partitions(group)]
                ledger.work[group] = np.array(ms)
        return ledger

    def _follow(self, publication: Publication | None) -> None:
        """Write what is observed for others to see, every now and then, until the query ends; then clear up."""
        watch = self._placement.watch
        batch = -2
        while not watch.ended.wait(PUBLISH_EVERY_S):
            found = watch.after(batch, PUBLISH_EVERY_S)
            if found is not None and publication is not None:
                batch = found.number
                with suppress(Exception):
                    publication.write(self._placement.observe(exact=False))
        watch.close()
        if publication is not None:
            publication.close()
        if self._wait_before is not None:
            with suppress(Exception):
                self._placement.gateway.set_locality_wait(self._wait_before)
