"""The operators of one query as Spark jobs, the driver's port `Jobs`: shuffle, operate, shuffle, .., reports.

And the end of a job that cannot succeed: what it failed of, and a watchdog for executors that are gone.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from meander.engine.driver.ports import (
    Cluster,
    Job,
    JobLost,
    JobResult,
    OperatorOutput,
    OutputLost,
    OutputSink,
    Place,
    Routing,
    Rows,
    SinkToken,
    SinkWrite,
)
from meander.engine.spark.cluster import rehearse
from meander.engine.spark.exchange import OUTPUT_LOST, RowRouting, SparkOutput, bin_of
from meander.engine.spark.gateway import Gateway
from meander.engine.spark.nodes import OperatorNode, Shape
from meander.engine.worker.messages import TaskReport
from meander.engine.worker.rows import BAD, FINAL, REPORT, passed_on, shown
from meander.engine.worker.task import OperatorTask
from meander.errors import MeanderError, QueryFailed
from meander.store.uri import masked

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

UNPACKED = 4
"""About how many bytes of Arrow come of one byte of Spark's compressed shuffle, on the safe side."""

_LOSSES = re.compile(
    r"ExecutorLostFailure|[Ee]xecutor lost|Lost executor|FetchFailed|Worker exited unexpectedly|worker exited"
    r"|crashed|cancelled|Connection reset|Broken pipe|MetadataFetchFailed|Could not recover from a failed barrier"
    r"|BarrierJob|EOFException",
)

_LOSSES_OF_A_SINK = re.compile(r"ExecutorLostFailure|FetchFailed|[Ww]orker exited unexpectedly")
"""Fewer: what else a sink says may be about its own connections, and is its own failure."""


class SparkJobs:
    """The jobs of one query, built once and run for every batch with other control messages."""

    def __init__(
        self,
        gateway: Gateway,
        cluster: Cluster,
        source: DataFrame,
        nodes: Sequence[OperatorNode],
        sink: OutputSink,
        shapes: Sequence[Shape] = (),
    ) -> None:
        self.gateway, self.cluster, self.source, self.nodes, self.sink = gateway, cluster, source, tuple(nodes), sink
        self.shapes = tuple(shapes)
        """What the last operator's rows go through on their way to the sink."""
        self._session: SparkSession = source.sparkSession
        self._idle_session: SparkSession | None = None
        self._tasks: dict[tuple[int, bool, bool], Callable[[DataFrame, bool], DataFrame]] = {}
        self._routings: dict[int, tuple[Routing, RowRouting]] = {}
        self._outputs = [shown(node.operator.output) for node in self.nodes]
        self._inputs = [(_input(node, False), _input(node, True)) for node in self.nodes]
        self._keys = [tuple(node.operator.key.names) for node in self.nodes]

    # --- the port --------------------------------------------------------------------------

    def nothing(self) -> DataFrame:
        """No rows, in the schema of the source, in a session that suits us."""
        if self._idle_session is None:
            self._idle_session = self.source.sparkSession.newSession()
            self._idle_session.conf.set("spark.sql.adaptive.enabled", "false")
            self._idle_session.conf.set("spark.sql.session.timeZone", "UTC")
        return self.gateway.empty(self._idle_session, self.source.schema)

    def waves(self, rows: DataFrame, routing: Routing, max_bytes: int) -> Sequence[Rows]:
        """The rows in one piece, or in as many waves of bins as its shuffle is too large."""
        from pyspark import StorageLevel
        from pyspark.sql import functions as F

        at, bins = routing.operator, len(routing.slots)
        with _losses_named():
            routed = self._routed(self.nodes[at].computed(rows), routing, chained=False)
            sizes = self.gateway.shuffled_bytes(routed)
        count = 1
        while count * max_bytes < max(sizes) * UNPACKED and count < bins:
            count *= 2
        if count == 1:
            return [_Shuffled(rows, routed)]
        # Every wave must see the same rows, also where the source or an expression would not give them twice.
        kept = self.nodes[at].computed(rows).persist(StorageLevel.DISK_ONLY)
        bin_ = bin_of(self._keys[at], bins)
        return [_Wave(kept, kept.where(bin_ % count == F.lit(wave))) for wave in range(count)]

    def free(self, waves: Sequence[Rows]) -> None:
        """Give back the rows that waves keep."""
        if isinstance(waves[0], _Wave):
            waves[0].kept.unpersist()

    def run(self, rows: Rows, job: Job) -> JobResult:
        """Run one attempt as one Spark job; ends it when an executor it needs is gone."""
        self._session = (rows.frame if isinstance(rows, _Wave | _Shuffled) else rows).sparkSession
        with _losses_named():
            if self.gateway.local:
                return self._run(rows, job)
            needed = {place.executor for place in job.places}
            self.gateway.context.addJobTag(job.tag)
            try:
                with Watchdog(lambda: bool(needed - self.cluster.ids()), lambda: self.cancel(job.tag)):
                    return self._run(rows, job)
            finally:
                self.gateway.context.removeJobTag(job.tag)

    def read(self, output: OperatorOutput) -> DataFrame:
        """The output of an operator as rows for the next one."""
        return self._output(output).frame()

    def prepare(self, output: OperatorOutput, write: SinkWrite) -> SinkToken:
        """Give the output of a version to the sink."""
        try:
            return self.sink.prepare(self._output(output, self.shapes), write)
        except Exception as problem:
            executors = {place.executor for _, place in output.files}
            if OUTPUT_LOST in str(problem) or (not self.cluster.is_local and executors - self.cluster.ids()):
                raise OutputLost(in_short(problem)) from problem
            if _LOSSES_OF_A_SINK.search(str(problem)[:20_000]):
                raise JobLost(in_short(problem)) from problem
            raise

    def rehearse(self, places: Sequence[Place], bins: int) -> None:
        """Run the job on new executors, on rows without meaning, so that their first batch is not slow."""
        apart = SparkJobs(self.gateway, self.cluster, self.source, self.nodes, self.sink)
        rehearse(apart, len(self.nodes), places, bins)

    def cancel(self, tag: str) -> None:
        """Cancel the running job of this tag."""
        self.gateway.cancel(tag)

    # --- how ---------------------------------------------------------------------------------

    def _run(self, rows: Rows, job: Job) -> JobResult:
        began = time.perf_counter()
        is_wave = isinstance(rows, _Wave)
        frame = rows.frame if isinstance(rows, _Wave | _Shuffled) else rows
        for at, (routing, controls) in enumerate(zip(job.routings, job.controls, strict=True)):
            chained, last = at > 0, at + 1 == len(job.routings)
            if isinstance(rows, _Shuffled) and not chained:
                routed = rows.routed
            else:
                frame = frame if is_wave and not chained else self.nodes[routing.operator].computed(frame)
                routed = self._routed(frame, routing, chained)
            messages = [control.to_bytes() for control in controls]
            pinned = self.gateway.pinned(messages, [place.location for place in job.places])
            task = self._task(routing.operator, chained, last)
            frame = task(self.gateway.with_control(routed, pinned), job.barrier)
        planned_s = time.perf_counter() - began
        return _result([(row["report"], row["output"]) for row in frame.collect()], planned_s)

    def _output(self, output: OperatorOutput, shapes: Sequence[Shape] = ()) -> SparkOutput:
        schema = self._outputs[output.operator]
        return SparkOutput(schema, output.inline, output.files, self.gateway, self._session, shapes)

    def _routed(self, frame: DataFrame, routing: Routing, chained: bool) -> DataFrame:
        at = routing.operator
        if at not in self._routings or self._routings[at][0] != routing:
            self._routings[at] = (routing, RowRouting(self.gateway, self._keys[at], routing.slots, routing.count))
        return self._routings[at][1].route(frame, self._inputs[at][chained].names)

    def _task(self, at: int, chained: bool, last: bool) -> Callable[[DataFrame, bool], DataFrame]:
        from pyspark.sql.pandas.types import from_arrow_schema

        if (at, chained, last) not in self._tasks:
            operator = self.nodes[at].operator
            schema = FINAL if last else passed_on(operator)
            task = OperatorTask(operator, self._inputs[at][chained], last)
            self._tasks[at, chained, last] = self.gateway.task(task, from_arrow_schema(schema))
        return self._tasks[at, chained, last]


@dataclass(frozen=True)
class _Wave:
    """Rows of some bins whose columns are computed already, and what they were taken from."""

    kept: DataFrame
    frame: DataFrame


@dataclass(frozen=True)
class _Shuffled:
    """Rows that were looked at, and the plan whose shuffle has run for that: a job over it does not read them again."""

    frame: DataFrame
    routed: DataFrame


def _input(node: OperatorNode, chained: bool) -> pa.Schema:
    """The columns that the tasks of an operator take; of one that is chained, reports of the one before come along."""
    operator = node.operator
    marks = [name for name, is_there in ((REPORT, chained), (BAD, node.bad is not None)) if is_there]
    # An operator with two inputs has the key beside its columns: that of whichever input a row is of.
    apart = [pa.field(name, type_) for name, type_ in operator.key.fields if name not in operator.input.names]
    fields = [field.with_nullable(True) for field in (*operator.input, *apart)]
    return pa.schema([*[pa.field(name, pa.string()) for name in marks], *fields])


@contextmanager
def _losses_named() -> Iterator[None]:
    """Turn a failure of Spark into what the driver knows: a loss, or a failure of the query in one sentence."""
    try:
        yield
    except MeanderError:
        raise
    except Exception as problem:
        raise (JobLost if is_loss(problem) else QueryFailed)(in_short(problem)) from problem


def _result(rows: Sequence[tuple[str, bytes | None]], planned_s: float) -> JobResult:
    outputs = [output for _, output in rows if output is not None]
    inline = [pa.ipc.open_stream(pa.py_buffer(bytes(output))).read_all() for output in outputs]
    return JobResult(tuple(TaskReport.from_text(text) for text, _ in rows), tuple(inline), planned_s)


def is_loss(problem: BaseException) -> bool:
    """Whether a job failed because a process or its files were lost, so that running the batch again can help."""
    return bool(_LOSSES.search(str(problem)[:20_000]))


def in_short(problem: BaseException) -> str:
    """The sentence of a Spark failure that a person wants to read, without the stacks of the JVM and of Python."""
    text = str(problem)
    if "No module named 'meander'" in text:
        return (
            "the executors' Python has no meander: install it there, and set PYSPARK_PYTHON to that Python before "
            "Spark starts (me.session does)"
        )
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    raised = [line for line in lines if re.match(r"[\w.]*(Error|Exception|Interrupt)\b.*: ", line)]
    others = [line for line in lines if not line.startswith(("at ", "...", "Driver stacktrace", "An error occurred"))]
    return masked((raised[0] if raised else others[0] if others else type(problem).__name__)[:500])


class Watchdog:
    """Looks every now and then, while a job runs, whether an executor it needs is gone, and then cancels the job.

    Without it a lost executor's task waits out Spark's locality timer.
    """

    def __init__(self, gone: Callable[[], bool], cancel: Callable[[], None], every_s: float = 0.25) -> None:
        self._gone, self._cancel, self._every_s = gone, cancel, every_s
        self._ended = threading.Event()
        self.barked = False

    def __enter__(self) -> Watchdog:
        self._thread = threading.Thread(target=self._look, name="meander-watchdog", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._ended.wait(self._every_s):
            # Again and again: the job may not have been submitted when the executor went.
            if self._gone():
                self.barked = True
                self._cancel()
