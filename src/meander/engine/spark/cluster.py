"""The executors of a Spark application, as the driver's port `Cluster`.

Each is asked who it is when first seen, and runs the query's job on rows without meaning before it gets bins, so that
its first batch is not slow.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from meander.engine.driver.ports import Job, JobInput, Jobs, Place, Routing
from meander.engine.spark.gateway import ArrowTask, Executor, Gateway
from meander.engine.worker.messages import Control, Token
from meander.engine.worker.process import local_folder, spark_host
from meander.logs import logger

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

REHEARSALS = 2
"""Spark's JVM loads most of its classes at the first time, and has compiled the warmest at the second."""

REHEARSED_ROWS = 64


class SparkCluster:
    """The executors of one Spark application."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self._known: dict[str, Place] = {}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SparkCluster) and other.gateway.context is self.gateway.context

    def __hash__(self) -> int:
        return id(self.gateway.context)

    @property
    def is_local(self) -> bool:
        """Whether driver and executor are one process."""
        return self.gateway.local

    def executors(self) -> list[Place]:
        """The executors that are there, in the order of their ids."""
        listed = self.gateway.executors()
        new = [each for each in listed if each.id not in self._known]
        if new:
            self._probe(new)
            self._known = {each.id: self._known[each.id] for each in listed if each.id in self._known}
        return [self._known[each.id] for each in sorted(listed, key=_order) if each.id in self._known]

    def ids(self) -> set[str]:
        """The ids of the executors that are there."""
        return {each.id for each in self.gateway.executors()}

    def forget(self, executors: Collection[str]) -> None:
        """Ask these executors who they are when they are seen again."""
        for executor in executors:
            self._known.pop(executor, None)

    def request(self, total: int) -> None:
        """Tell the cluster manager how many executors the application shall have in all."""
        self.gateway.request_executors(total)

    def release(self, executors: Sequence[str]) -> None:
        """Let executors go for good; the cluster manager does not replace them."""
        self.gateway.release_executors(executors)

    def cores_per_executor(self) -> int | None:
        """The cores that a new executor has, where that is set."""
        return self.gateway.cores_of_executor()

    def clear(self, folders: Collection[str], executors: Collection[str] | None = None) -> None:
        """Remove these folders on these executors, or on every one."""
        places = [place for place in self._known.values() if executors is None or place.executor in executors]
        if not places or not folders:
            return
        message = json.dumps(sorted(folders)).encode()
        pinned = self.gateway.pinned([message] * len(places), [place.location for place in places])
        self._task(_clear)(self.gateway.frame(self.gateway.spark, pinned), False).collect()

    def _task(self, function: ArrowTask) -> Callable[[DataFrame, bool], DataFrame]:
        from pyspark.sql.types import StringType, StructField, StructType

        return self.gateway.task(function, StructType([StructField("answer", StringType())]))

    def _probe(self, new: Sequence[Executor]) -> None:
        """Run one small task on each, and ask Spark where it ran."""
        locations = [f"executor_{each.host}_{each.id}" for each in new]
        frame = self.gateway.frame(self.gateway.spark, self.gateway.pinned([b"probe"] * len(new), locations))
        answers = [json.loads(row.answer) for row in self._task(_identify)(frame, False).collect()]
        deadline = time.monotonic() + 5
        ran: dict[int, str] = {}
        while len(ran) < len(new) and time.monotonic() < deadline:
            # Spark's status store hears of finished tasks a moment later.
            ran = {task: where for task, where in self.gateway.executor_of_tasks(answers[0]["stage"]).items() if where}
            time.sleep(0.01 if len(ran) == len(new) else 0.05)
        for answer in answers:
            task = answer["task"]
            executor = new[task]
            if ran.get(task) == executor.id:
                self._known[executor.id] = Place(executor.id, locations[task], answer["process"], executor.cores)


def _identify(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The process and task that a probe ran in; loads the compiled kernels on the way."""
    import pyarrow as pa
    from pyspark import TaskContext

    from meander.engine.worker.process import warm

    for _ in batches:
        pass
    host = spark_host()
    host.sweep()
    warm()
    context = TaskContext.get()
    assert context is not None
    answer = {"process": host.identity, "stage": context.stageId(), "task": context.partitionId()}
    yield pa.record_batch([pa.array([json.dumps(answer)])], names=["answer"])


def _clear(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Remove the folders that the messages name."""
    import pyarrow as pa

    for batch in batches:
        for message in batch.column(0).to_pylist():
            for name in json.loads(message):
                shutil.rmtree(local_folder() / name, ignore_errors=True)
    yield pa.record_batch([pa.array(["done"])], names=["answer"])


def _order(executor: Executor) -> tuple[int, str]:
    return (int(executor.id) if executor.id.isdigit() else -1, executor.id)


def rehearse(jobs: Jobs, operators: int, places: Sequence[Place], bins: int) -> None:
    """Take a query's job through all its operators on each of these executors, touching no state.

    Its rows are null in every column. An expression of the user that does not bear that costs the rehearsal, no more.
    """
    none = np.zeros(bins, np.bool_)
    routings = tuple(Routing(at, (0,) * bins, 1) for at in range(operators))
    for place in places:
        controls = tuple(
            (
                Control(
                    token=Token(0, 0, 0), operator=at, worker=0, slot=0, place=place.process, directory="",
                    checkpoint="", bins=bins, owned=none, held=none, loadable=none, rehearsal=True,
                ),
            )
            for at in range(operators)
        )  # fmt: skip
        try:
            for _ in range(REHEARSALS):
                job = Job("meander-rehearsal", routings, controls, (place,), False)
                jobs.run(JobInput(_nulls(jobs.nothing())), job)
        except Exception as problem:
            logger.info("executor %s could not rehearse: %s", place.executor, str(problem).splitlines()[0])


def _nulls(nothing: DataFrame) -> DataFrame:
    """Some rows in the schema of these, null in every column."""
    from pyspark.sql import functions as F

    columns = [F.lit(None).cast(field.dataType).alias(field.name) for field in nothing.schema]
    return nothing.sparkSession.range(0, REHEARSED_ROWS, 1, 1).select(*columns)
