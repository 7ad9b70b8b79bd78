"""Which executors there are, who they really are, and which worker sits on which."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from meander.errors import InvalidOption
from meander.spark import here
from meander.spark.gateway import ArrowTask, Executor, Gateway
from meander.types import WorkerId

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class Place:
    """One executor: its id for Spark, where it prefers tasks, and the process it is."""

    executor: str
    location: str
    process: str
    cores: int


def seat(workers: Sequence[WorkerId], places: Sequence[Place], now: Mapping[WorkerId, Place]) -> dict[WorkerId, Place]:
    """Give every worker a place, at most as many to an executor as it has cores; those that can stay, stay.

    Raises `InvalidOption` when there are more workers than cores.
    """
    cores = sum(place.cores for place in places)
    if len(workers) > cores:
        raise InvalidOption(
            f"{len(workers)} workers need as many cores and the executors have {cores}; start with workers={cores} "
            "or give Spark more executors"
        )
    there = {place.process: place for place in places}
    seated = {w: there[now[w].process] for w in workers if w in now and now[w].process in there}
    taken = dict.fromkeys(there, 0)
    for place in seated.values():
        taken[place.process] += 1
    for worker in workers:
        if worker not in seated:
            best = min(places, key=lambda place: (taken[place.process] / place.cores, place.executor))
            seated[worker] = best
            taken[best.process] += 1
    return seated


def _tell(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The process and task that a probe ran in; loads the compiled kernels on the way."""
    import pyarrow as pa
    from pyspark import TaskContext

    from meander.spark.warm import warm

    for _ in batches:
        pass
    here.sweep()
    warm()
    context = TaskContext.get()
    assert context is not None
    told = {"process": here.here(), "stage": context.stageId(), "task": context.partitionId()}
    yield pa.record_batch([pa.array([json.dumps(told)])], names=["told"])


def _clear(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Remove the folders that the messages name."""
    import pyarrow as pa

    for batch in batches:
        for message in batch.column(0).to_pylist():
            for name in json.loads(message):
                shutil.rmtree(here.directory(name), ignore_errors=True)
    yield pa.record_batch([pa.array(["done"])], names=["told"])


class Places:
    """The executors of one Spark application, asked for their process when they are first seen."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self.known: dict[str, Place] = {}

    def now(self) -> list[Place]:
        """The executors that are there, in the order of their ids."""
        listed = self.gateway.executors()
        new = [each for each in listed if each.id not in self.known]
        if new:
            self._probe(new)
        return [self.known[each.id] for each in sorted(listed, key=_order) if each.id in self.known]

    def gone(self, used: Mapping[WorkerId, Place]) -> set[str]:
        """The executors in use that Spark no longer lists."""
        listed = {each.id for each in self.gateway.executors()}
        return {place.executor for place in used.values()} - listed

    def clear(self, folders: Collection[str], executors: Collection[str] | None = None) -> None:
        """Remove these folders on these executors, or on every one."""
        places = [place for place in self.known.values() if executors is None or place.executor in executors]
        if not places or not folders:
            return
        message = json.dumps(sorted(folders)).encode()
        pinned = self.gateway.pinned([message] * len(places), [place.location for place in places])
        self._task(_clear)(self.gateway.frame(self.gateway.spark, pinned), False).collect()

    def _task(self, function: ArrowTask) -> Callable[[DataFrame, bool], DataFrame]:
        from pyspark.sql.types import StringType, StructField, StructType

        return self.gateway.task(function, StructType([StructField("told", StringType())]))

    def _probe(self, new: Sequence[Executor]) -> None:
        """Run one small task on each, and ask Spark where it ran."""
        locations = [f"executor_{each.host}_{each.id}" for each in new]
        run = self._task(_tell)
        frame = self.gateway.frame(self.gateway.spark, self.gateway.pinned([b"probe"] * len(new), locations))
        told = [json.loads(row.told) for row in run(frame, False).collect()]
        deadline = time.monotonic() + 5
        ran: dict[int, str] = {}
        while len(ran) < len(new) and time.monotonic() < deadline:
            # Spark's status store hears of finished tasks a moment later.
            ran = {task: where for task, where in self.gateway.executor_of_tasks(told[0]["stage"]).items() if where}
            time.sleep(0.01 if len(ran) == len(new) else 0.05)
        for each in told:
            task = each["task"]
            if ran.get(task) == new[task].id:
                self.known[new[task].id] = Place(new[task].id, locations[task], each["process"], new[task].cores)


def _order(executor: Executor) -> tuple[int, str]:
    return (int(executor.id) if executor.id.isdigit() else -1, executor.id)
