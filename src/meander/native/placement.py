"""Where the state partitions of one query are, and how they come to be elsewhere.

The native engine's side of what both engines do: who the workers are, what is observed of them, and a step's way,
prepare (a fresh snapshot, a warm executor), ready, flip, and release of executors that nothing needs any more.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property

from meander.errors import InvalidOption, QueryFailed
from meander.migration.steps import Shift
from meander.native.course import Key, Seen, Sight
from meander.native.internals import Internals, Partition, StatefulOperator
from meander.native.observation import ExecutorSeen, Observation, PartitionSeen
from meander.native.watching import Batch, Ran, Watch
from meander.spark.gateway import Executor
from meander.spark.seats import Seats
from meander.types import BinId, WorkerId

logger = logging.getLogger("meander")

AHEAD = 64
"""For so many versions a partition that does not move is shielded at once."""

PATIENT_S = 20
"""Seconds that Spark waits for a task's place while partitions move."""


class Placement:
    """The state partitions of one run of a query."""

    def __init__(self, internals: Internals, operators: Sequence[StatefulOperator], watch: Watch) -> None:
        self.internals, self.operators, self.watch = internals, tuple(operators), watch
        self.gateway = internals.gateway
        self.draining: set[str] = set()
        """Executors that shall hold nothing."""
        self.warm: set[str] = set()
        self._believed: dict[Key, int] = {}
        self._listed: tuple[str | None, list[Executor]] = (None, [])

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
        if ids != self._listed[0]:
            # What an executor is takes several calls for each, so it is asked only when others are there.
            there = [each for each in self.gateway.executors() if each.id == "driver" or each.id in ids.split(",")]
            found = sorted(there, key=lambda each: (len(each.id), each.id))
            if ids and len(found) < len(ids.split(",")):
                return found  # Spark's status store has not heard of all of them yet
            self._listed = (ids, found)
        return list(self._listed[1])

    def partitions(self, group: int) -> range:
        """The state partitions of a group."""
        return range(self.watch.partitions[group])

    def owners(self, group: int) -> list[WorkerId]:
        """The executor of each partition of a group."""
        if self.watch.odd_tasks is not None:
            raise InvalidOption(
                f"a stage of this query runs {self.watch.odd_tasks} tasks for {len(self.partitions(group))} state "
                "partitions (an aggregate without a key, a union, a coalesce): they cannot be placed one by one"
            )
        found = [self.internals.located(self.groups[group], partition) for partition in self.partitions(group)]
        if None in found:
            raise InvalidOption(
                f"partition {found.index(None)} of {self.names[group]} is not on an executor yet; let a batch end, and "
                "try again"
            )
        if "driver" in found:
            raise InvalidOption("in local mode there is one process and nothing to place; use executors")
        return [WorkerId(int(each)) for each in found if each is not None]

    def observe(self, exact: bool = True) -> Observation:
        """What is known now, with the places as Spark's scheduler will see them at the next batch.

        Not exact: with the places where partitions ran last, which costs Spark nothing.
        """
        query, batches = self.internals.query, self.watch.batches
        last = batches[-1] if batches else Batch(-1, 0.0, 0.0, 0)
        seen = []
        for group, operators in self.groups.items():
            for number in self.partitions(group):
                batch, ran = self.watch.last.get(Partition(group, number), (-1, Ran("", 0.0)))
                where = self.internals.located(operators, number) if exact or batch < 0 else ran.executor
                ms = self.watch.ms.get(Partition(group, number), ran.ms)
                seen.append(PartitionSeen(self.names[group], number, where, ran.rows, ran.state_bytes, ms, batch))
        executors = [ExecutorSeen(each.id, each.host, each.cores, each.id in self.draining) for each in self.workers]
        return Observation(
            query=query.name or query.id, run=query.runId, batch=last.number, batch_ms=last.took_ms,
            trigger_ms=self.internals.trigger_ms, rows_per_s=last.rows_per_s, time_ms=int(time.time() * 1000),
            partitions=tuple(seen), executors=tuple(executors),
        )  # fmt: skip

    def seen(self, batch: Batch, concerned: Collection[Key]) -> Seen:
        """What a migration wants to know when a batch has ended."""
        wait = self.gateway.locality_wait()
        ran = {}
        for key in concerned:
            task = batch.ran.get(Partition(*key))
            if task is not None:
                why = ""
                if task.speculative:
                    why = ", as a speculative copy: spark.speculation is on"
                elif not task.local:
                    why = f": where it should was busy for longer than spark.locality.wait, {wait}"
                ran[key] = Sight(worker_of(task.executor), task.rows, task.updated, task.removed, task.loads, why)
        alive = {executor_of(each) for each in self.workers if each.id != "driver"}
        return Seen(batch.number, ran, alive, self.ready(concerned))

    # --- a step's way ------------------------------------------------------------------------

    def ready(self, keys: Iterable[Key]) -> dict[Key, int]:
        """The bytes of changes since their last snapshot that loading these partitions elsewhere would read again."""
        return {
            (group, number): self.internals.backlog(self.groups[group], number).change_bytes for group, number in keys
        }

    def prepare(self, shifts: Sequence[Shift], moving: Collection[Key], batch: int) -> None:
        """Have these partitions, and no others, write a snapshot with the batch after this one.

        Where Spark is set not to write snapshots on request, it is left to its maintenance. `moving` are all partitions
        of the migration: the others need not be shielded again with its next step.
        """
        if not self.internals.takes_snapshots_on_request:
            return
        wanted = {(shift.stage, shift.bin) for shift in shifts}
        # The version of the next batch's commit, which no snapshot has yet, or above what was said of these before.
        version = max([batch + 2, *(1 + self._believed.get(key, 0) for key in wanted)])
        for group, operators in self.groups.items():
            for number in self.partitions(group):
                key = (group, BinId(number))
                if key not in wanted and self._believed.get(key, 0) < version:
                    self._believed[key] = version if key in moving else version + AHEAD
                    self.internals.shield(operators, [number], self._believed[key])
        self.internals.ask_for_snapshots(version)

    def flip(self, shifts: Sequence[Shift]) -> None:
        """Have the next tasks of these partitions run on their new executors."""
        if not shifts:
            return
        there = {executor_of(each): each for each in self.workers}
        for shift in shifts:
            if shift.target in there:
                self.internals.steer(self.groups[shift.stage], shift.bin, there[shift.target])

    def warm_up(self, executors: Collection[WorkerId]) -> None:
        """Load the smallest partition of every group on executors that have not run one yet, and forget it again."""
        cold = [each for each in self.workers if executor_of(each) in executors and each.id not in self.warm]
        busy = {ran.executor for _, ran in self.watch.last.values()}
        for executor in cold:
            self.warm.add(executor.id)
            if executor.id in busy:
                continue
            if any("Pandas" in each.name or "Python" in each.name for each in self.operators):
                with suppress(Exception):
                    self.internals.warm_python(executor)
            for group, operators in self.groups.items():
                sizes = {each: self.watch.last.get(Partition(group, each), (0, Ran("", 0.0)))[1].rows
                         for each in self.partitions(group)}  # fmt: skip
                try:
                    self.internals.warm(operators[0], min(sizes, key=lambda each: (sizes[each], each)), executor)
                except Exception as problem:
                    # Then the first partition that moves there takes a little longer.
                    logger.info("executor %s could not be warmed: %s", executor.id, str(problem).splitlines()[0])

    def held(self, executors: Collection[str]) -> set[str]:
        """Those of these executors on which state of this query is."""
        return _holding(self.internals, self.operators) & set(executors)

    def held_by_others(self, executors: Collection[str]) -> dict[str, str]:
        """Those of these executors on which another stream of this session has state, and which stream that is."""
        found = {}
        for query in self.gateway.spark.streams.active:
            if query.runId != self.internals.query.runId:
                with suppress(InvalidOption, QueryFailed):
                    other = Internals.of(query)
                    for each in _holding(other, other.operators()) & set(executors):
                        found[each] = query.name or query.id
        seats = [each for each in Seats.everywhere if each.gateway.context is self.gateway.context]
        taken = {place.executor for each in seats for place in each.now.values()}
        return {**dict.fromkeys(taken & set(executors), "one of Meander's own"), **found}

    @contextmanager
    def held_together(self) -> Iterator[None]:
        """Have Spark wait for a task's place for longer, meanwhile.

        Otherwise an executor without work takes what others have not begun within spark.locality.wait: one that was
        just emptied gets everything back, and one that loads a partition loses the others it has.
        """
        before = self.gateway.locality_wait()
        if self.gateway.seconds(before) < PATIENT_S:
            self.gateway.set_locality_wait(f"{PATIENT_S}s")
        try:
            yield
        finally:
            self.gateway.set_locality_wait(before)

    def release(self, executors: Sequence[str]) -> None:
        """Let executors go for good."""
        if executors:
            self.gateway.release_executors(executors)


def _holding(internals: Internals, operators: Sequence[StatefulOperator]) -> set[str]:
    """The executors on which the state of these operators is."""
    found = {internals.located([each], number) for each in operators for number in range(each.partitions)}
    return {each for each in found if each is not None}


def worker_of(executor: str) -> WorkerId:
    """The worker that an executor of this id is; the driver is none."""
    return WorkerId(int(executor)) if executor.isdigit() else WorkerId(-1)


def executor_of(executor: Executor) -> WorkerId:
    """The worker that an executor is."""
    return worker_of(executor.id)
