"""Where the state partitions of one query are, and how they come to be elsewhere.

The native engine's side of what both engines do: who the workers are, what is observed of them, and a step's way,
prepare (a fresh snapshot, a warm executor), ready, flip, and release of executors that nothing needs any more.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from functools import cached_property

from meander.engine.driver.placement import occupied
from meander.engine.spark.cluster import SparkCluster
from meander.engine.spark.gateway import Executor
from meander.errors import InvalidOption, QueryFailed
from meander.logs import logger
from meander.migration.steps import OperatorMove
from meander.native.batches import BatchWatch
from meander.native.internals import Internals
from meander.native.observation import ExecutorFigures, Observation, PartitionFigures
from meander.native.steering import BatchSight, TaskSight
from meander.native.stores import BatchRun, Partition, StatefulOperator, TaskRun, worker_of
from meander.types import WorkerId

AHEAD = 64
"""For so many versions a partition that does not move is shielded at once."""

PATIENT_S = 20
"""Seconds that Spark waits for a task's place while partitions move."""


class StatePlacement:
    """The state partitions of one run of a query."""

    def __init__(self, internals: Internals, operators: Sequence[StatefulOperator], watch: BatchWatch) -> None:
        self.internals, self.operators, self.watch = internals, tuple(operators), watch
        self.gateway = internals.gateway
        self.draining: set[str] = set()
        """Executors that shall hold nothing."""
        self.warm: set[str] = set()
        self._believed: dict[Partition, int] = {}
        self._listing: tuple[str | None, list[Executor]] = (None, [])
        self._wait_before: str | None = None

    @cached_property
    def groups(self) -> dict[int, tuple[StatefulOperator, ...]]:
        """What moves together, by number."""
        numbers = sorted({each.group for each in self.operators})
        return {number: tuple(each for each in self.operators if each.group == number) for number in numbers}

    @cached_property
    def names(self) -> dict[int, str]:
        """The name of each group."""
        return {number: f"{number}:{'+'.join(each.name for each in group)}" for number, group in self.groups.items()}

    @property
    def workers(self) -> list[Executor]:
        """The executors that are there, in the order of their ids."""
        ids = self.gateway.executor_ids()
        if ids != self._listing[0]:
            # What an executor is takes several calls for each, so it is asked only when others are there.
            there = [each for each in self.gateway.executors() if each.id == "driver" or each.id in ids.split(",")]
            there.sort(key=lambda each: (len(each.id), each.id))
            if ids and len(there) < len(ids.split(",")):
                return there  # Spark's status store has not heard of all of them yet
            self._listing = (ids, there)
        return list(self._listing[1])

    @property
    def participants(self) -> list[Executor]:
        """The executors that are there and may hold something."""
        return [each for each in self.workers if each.id not in self.draining]

    def partitions(self, group: int) -> range:
        """The state partitions of a group."""
        return range(self.watch.partitions[group])

    def check_placeable(self) -> None:
        """Raise `InvalidOption` where partitions cannot be placed one by one."""
        if self.watch.odd_tasks is not None:
            raise InvalidOption(
                f"a stage of this query runs {self.watch.odd_tasks} tasks for {self.count} state partitions (an "
                "aggregate without a key, a union, a coalesce): they cannot be placed one by one"
            )
        if self.gateway.local:
            raise InvalidOption("in local mode there is one process and nothing to place; use executors")

    @property
    def count(self) -> int:
        """How many state partitions a group has: the same number for all groups."""
        return min(self.watch.partitions.values())

    def owners(self, group: int) -> list[WorkerId]:
        """The executor of each partition of a group."""
        self.check_placeable()
        places = [self.internals.place(self.groups[group], partition) for partition in self.partitions(group)]
        if None in places:
            raise InvalidOption(
                f"partition {places.index(None)} of {self.names[group]} is not on an executor yet; let a batch end, "
                "and try again"
            )
        return [WorkerId(int(each)) for each in places if each is not None]

    def observe(self, exact: bool = True) -> Observation:
        """What is known now, with the places as Spark's scheduler will see them at the next batch.

        Not exact: with the places where partitions ran last, which costs Spark nothing.
        """
        query, batches = self.internals.query, self.watch.batches
        last = batches[-1] if batches else BatchRun(-1, 0.0, 0.0, 0)
        partitions = []
        for group, operators in self.groups.items():
            for number in self.partitions(group):
                batch, task = self.watch.last.get(Partition(group, number), (-1, TaskRun("", 0.0)))
                where = self.internals.place(operators, number) if exact or batch < 0 else task.executor
                ms = self.watch.ms.get(Partition(group, number), task.ms)
                partitions.append(
                    PartitionFigures(self.names[group], number, where, task.rows, task.state_bytes, ms, batch)
                )
        executors = [ExecutorFigures(each.id, each.host, each.cores, each.id in self.draining) for each in self.workers]
        return Observation(
            query=query.name or query.id, run=query.runId, batch=last.number, batch_ms=last.took_ms,
            trigger_ms=self.internals.trigger_ms, rows_per_s=last.rows_per_s, time_ms=int(time.time() * 1000),
            partitions=tuple(partitions), executors=tuple(executors),
        )  # fmt: skip

    def sight(self, batch: BatchRun, concerns: Collection[Partition]) -> BatchSight:
        """What a migration wants to know when a batch has ended."""
        wait = self.gateway.locality_wait()
        tasks = {}
        for key in concerns:
            task = batch.tasks.get(key)
            if task is not None:
                why = ""
                if task.speculative:
                    why = ", as a speculative copy: spark.speculation is on"
                elif not task.local:
                    why = f": where it should was busy for longer than spark.locality.wait, {wait}"
                tasks[key] = TaskSight(task.worker, task.rows, task.updated, task.removed, task.loads, why)
        alive = {executor_of(each) for each in self.workers if each.id != "driver"}
        return BatchSight(batch.number, tasks, alive, self.stale(concerns))

    # --- a step's way ------------------------------------------------------------------------

    def stale(self, keys: Iterable[Partition]) -> dict[Partition, int]:
        """The bytes of changes since their last snapshot that loading these partitions elsewhere would read again."""
        return {key: self.internals.backlog(self.groups[key.group], key.number).change_bytes for key in keys}

    def prepare(self, moves: Sequence[OperatorMove], moving: Collection[Partition], batch: int) -> None:
        """Have these partitions, and no others, write a snapshot with the batch after this one.

        Where Spark is set not to write snapshots on request, it is left to its maintenance. `moving` are all partitions
        of the migration: the others need not be shielded again with its next step.
        """
        if not self.internals.takes_snapshots_on_request:
            return
        stale = {Partition.of(move) for move in moves}
        # The version of the next batch's commit, which no snapshot has yet, or above what was said of these before.
        version = max([batch + 2, *(1 + self._believed.get(key, 0) for key in stale)])
        for group, operators in self.groups.items():
            for number in self.partitions(group):
                key = Partition(group, number)
                if key not in stale and self._believed.get(key, 0) < version:
                    self._believed[key] = version if key in moving else version + AHEAD
                    self.internals.shield(operators, [number], self._believed[key])
        self.internals.ask_for_snapshots(version)

    def flip(self, moves: Sequence[OperatorMove]) -> None:
        """Have the next tasks of these partitions run on their new executors."""
        if not moves:
            return
        there = {executor_of(each): each for each in self.workers}
        for move in moves:
            if move.target in there:
                self.internals.steer(self.groups[move.operator], move.bin, there[move.target])

    def warm_up(self, executors: Collection[WorkerId]) -> None:
        """Load the smallest partition of every group on executors that have not run one yet, and forget it again."""
        cold = [each for each in self.workers if executor_of(each) in executors and each.id not in self.warm]
        busy = {task.executor for _, task in self.watch.last.values()}
        for executor in cold:
            self.warm.add(executor.id)
            if executor.id in busy:
                continue
            if any("Pandas" in each.name or "Python" in each.name for each in self.operators):
                with suppress(Exception):
                    self.internals.warm_python(executor)
            for group, operators in self.groups.items():
                sizes = {each: self.watch.last.get(Partition(group, each), (0, TaskRun("", 0.0)))[1].rows
                         for each in self.partitions(group)}  # fmt: skip
                try:
                    self.internals.warm(operators[0], min(sizes, key=lambda each: (sizes[each], each)), executor)
                except Exception as problem:
                    # Then the first partition that moves there takes a little longer.
                    logger.info("executor %s could not be warmed: %s", executor.id, str(problem).splitlines()[0])

    def held(self, executors: Collection[str]) -> set[str]:
        """Those of these executors on which state of this query is."""
        return _holders(self.internals, self.operators) & set(executors)

    def held_by_others(self, executors: Collection[str]) -> dict[str, str]:
        """Those of these executors on which another stream of this session has state, and which stream that is."""
        queries = {}
        for query in self.gateway.spark.streams.active:
            if query.runId != self.internals.query.runId:
                with suppress(InvalidOption, QueryFailed):
                    other = Internals.of(query)
                    for each in _holders(other, other.operators()) & set(executors):
                        queries[each] = query.name or query.id
        own = occupied(SparkCluster(self.gateway)) & set(executors)
        return {**dict.fromkeys(own, "one of Meander's own"), **queries}

    def hold_together(self) -> None:
        """Have Spark wait for a task's place for longer, until `let_apart`.

        Otherwise an executor without work takes what others have not begun within spark.locality.wait: one that was
        just emptied gets everything back, and one that loads a partition loses the others it has.
        """
        wait = self.gateway.locality_wait()
        if self._wait_before is None and self.gateway.seconds(wait) < PATIENT_S:
            self._wait_before = wait
            self.gateway.set_locality_wait(f"{PATIENT_S}s")

    def let_apart(self) -> None:
        """Have Spark wait for as long as before."""
        before, self._wait_before = self._wait_before, None
        if before is not None:
            self.gateway.set_locality_wait(before)

    def release(self, executors: Sequence[str]) -> None:
        """Let executors go for good."""
        if executors:
            self.gateway.release_executors(executors)


def is_loaded(internals: Internals) -> bool:
    """Whether the state of a query is on executors; refuses a query that has none."""
    if not internals.has_planned:
        return False
    operators = internals.operators()
    if not operators:
        raise InvalidOption("the query has no stateful operator, so there is no state to place")
    places = [internals.place([each], at) for each in operators for at in range(each.partitions)]
    # Where one task serves all partitions of an operator, the others are never loaded.
    return None not in places or (any(places) and internals.is_between_batches)


def _holders(internals: Internals, operators: Sequence[StatefulOperator]) -> set[str]:
    """The executors on which the state of these operators is."""
    places = {internals.place([each], number) for each in operators for number in range(each.partitions)}
    return {each for each in places if each is not None}


def executor_of(executor: Executor) -> WorkerId:
    """The worker that an executor is."""
    return worker_of(executor.id)
