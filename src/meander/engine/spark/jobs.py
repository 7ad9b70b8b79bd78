"""The operators of one query as Spark jobs, the driver's port `Jobs`: shuffle, operate, shuffle, .., reports.

Rows come to an operator along links, each with a shuffle of its own, and lie side by side before its tasks.

And the end of a job that cannot succeed: what it failed of, and a watchdog for executors that are gone.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from meander.engine.driver.ports import (
    Cluster,
    Job,
    JobInput,
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
from meander.engine.spark.nodes import Dataflow, Shape
from meander.engine.spark.sources import one_stream, rows_of
from meander.engine.worker.links import columns_of
from meander.engine.worker.messages import TaskReport
from meander.engine.worker.output import ROWS, OutputForm
from meander.engine.worker.rows import BAD, REPORT, passed_on, shown
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
    rf"|BarrierJob|EOFException|{OUTPUT_LOST}",
)

_LOSSES_OF_A_SINK = re.compile(r"ExecutorLostFailure|FetchFailed|[Ww]orker exited unexpectedly")
"""Fewer: what else a sink says may be about its own connections, and is its own failure."""


class SparkSink(OutputSink, Protocol):
    """A sink that says what it wants of the workers."""

    def form(self, spark: SparkSession, schema: pa.Schema) -> OutputForm:
        """In which form it wants the output of these columns."""


class SparkJobs:
    """The jobs of one query, built once and run for every batch with other control messages."""

    def __init__(
        self,
        gateway: Gateway,
        cluster: Cluster,
        flow: Dataflow,
        sink: SparkSink,
        shapes: Sequence[Shape] = (),
    ) -> None:
        self.gateway, self.cluster, self.flow, self.sink = gateway, cluster, flow, sink
        self.source = one_stream(flow.sources)
        """The stream whose batches hold the rows of all sources."""
        self.shapes = tuple(shapes)
        """What the last operator's rows go through on their way to the sink."""
        self._session: SparkSession = self.source.sparkSession
        self._idle_session: SparkSession | None = None
        self._tasks: dict[tuple[int, tuple[bool, ...]], Callable[[DataFrame, bool], DataFrame]] = {}
        self._last_tasks: dict[tuple[int, tuple[bool, ...]], Callable[[Any, bool], list[bytes]]] = {}
        self._routings: dict[int, tuple[Routing, RowRouting]] = {}
        self.form = self._form(sink)
        """In which form the output goes to the sink."""
        self._outputs = [shown(each.output) for each in flow.graph.operators]
        self._inputs = [
            [(_input(flow, at, link, False), _input(flow, at, link, True)) for link in range(len(links))]
            for at, links in enumerate(flow.graph.links)
        ]

    # --- the port --------------------------------------------------------------------------

    def nothing(self) -> DataFrame:
        """No rows, in the schema of the source, in a session that suits us."""
        if self._idle_session is None:
            self._idle_session = self.source.sparkSession.newSession()
            self._idle_session.conf.set("spark.sql.adaptive.enabled", "false")
            self._idle_session.conf.set("spark.sql.session.timeZone", "UTC")
        return self.gateway.empty(self._idle_session, self.source.schema)

    def waves(self, input: JobInput, routing: Routing, max_bytes: int) -> Sequence[Rows]:
        """The rows of an operator in one piece, or in as many waves of bins as its shuffles are too large."""
        from pyspark import StorageLevel
        from pyspark.sql import functions as F

        at, bins = routing.operator, len(routing.slots)
        links = self.flow.graph.links[at]
        with _losses_named():
            frames = [self._computed(input, at, link) for link in range(len(links))]
            routed = [self._routed(frame, routing, link, chained=False) for link, frame in enumerate(frames)]
            sizes = [sum(each) for each in zip(*map(self.gateway.shuffled_bytes, routed), strict=True)]
        count = 1
        while count * max_bytes < max(sizes) * UNPACKED and count < bins:
            count *= 2
        if count == 1:
            return [_Shuffled(routed)]
        # Every wave must see the same rows, also where the source or an expression would not give them twice.
        kept = [frame.persist(StorageLevel.DISK_ONLY) for frame in frames]
        return [
            _Wave(kept, [
                frame.where(bin_of(link.key, bins) % count == F.lit(wave))
                for link, frame in zip(links, kept, strict=True)
            ])
            for wave in range(count)
        ]  # fmt: skip

    def free(self, waves: Sequence[Rows]) -> None:
        """Give back the rows that waves keep."""
        if isinstance(waves[0], _Wave):
            for each in waves[0].kept:
                each.unpersist()

    def run(self, input: JobInput, job: Job) -> JobResult:
        """Run one attempt as one Spark job; ends it when an executor it needs is gone."""
        self._session = input.batch.sparkSession
        with _losses_named():
            if self.gateway.local:
                return self._run(input, job)
            needed = {place.executor for place in job.places}
            self.gateway.context.addJobTag(job.tag)
            try:
                with Watchdog(lambda: bool(needed - self.cluster.ids()), lambda: self.cancel(job.tag)):
                    return self._run(input, job)
            finally:
                self.gateway.context.removeJobTag(job.tag)

    def read(self, output: OperatorOutput) -> DataFrame:
        """The output of an operator as rows for those that read it."""
        return self._output(output).frame()

    def prepare(self, output: OperatorOutput, write: SinkWrite) -> SinkToken:
        """Give the output of a version to the sink."""
        try:
            return self.sink.prepare(replace(self._output(output, self.shapes), form=self.form), write)
        except Exception as problem:
            executors = {place.executor for _, place in output.files}
            if OUTPUT_LOST in str(problem) or (not self.cluster.is_local and executors - self.cluster.ids()):
                raise OutputLost(in_short(problem)) from problem
            if _LOSSES_OF_A_SINK.search(str(problem)[:20_000]):
                raise JobLost(in_short(problem)) from problem
            raise

    def rehearse(self, places: Sequence[Place], bins: int) -> None:
        """Run the job on new executors, on rows without meaning, so that their first batch is not slow."""
        rehearse(SparkJobs(self.gateway, self.cluster, self.flow, self.sink), len(self.flow.nodes), places, bins)

    def cancel(self, tag: str) -> None:
        """Cancel the running job of this tag."""
        self.gateway.cancel(tag)

    def _form(self, sink: SparkSink) -> OutputForm:
        """As the sink wants it; as rows where Spark has something to compute of them first."""
        names, schema = [each.names for each in self.shapes], shown(self.flow.graph.operators[-1].output)
        columns = names[-1] if names else tuple(schema.names)
        if columns is None or None in names or not set(columns) <= set(schema.names):
            return ROWS
        form = sink.form(self._session, pa.schema([schema.field(name) for name in columns]))
        return form._replace(columns=columns) if names else form

    # --- how ---------------------------------------------------------------------------------

    def _run(self, input: JobInput, job: Job) -> JobResult:
        began = time.perf_counter()
        locations = [place.location for place in job.places]
        emitted: dict[int, DataFrame] = {}
        for routing, controls in zip(job.routings, job.controls, strict=True):
            at = routing.operator
            chained = tuple(link.origin in emitted for link in self.flow.graph.links[at])
            messages = [control.to_bytes() for control in controls]
            routed = self._routed_to(replace(input, outputs={**input.outputs, **emitted}), routing, chained)
            if routing is not job.routings[-1]:
                rows = self.gateway.with_control(routed, self.gateway.pinned(messages, locations))
                emitted[at] = self._task(at, chained)(rows, job.barrier)
        beside = self.gateway.side_by_side(routed, messages, locations)
        last = self._last_task(at, chained)
        planned_s = time.perf_counter() - began
        return _result(last(beside, job.barrier), planned_s)

    def _routed_to(self, input: JobInput, routing: Routing, chained: Sequence[bool]) -> list[DataFrame]:
        """The rows of each link of an operator, each in the partition of its slot."""
        piece = input.pieces.get(routing.operator)
        if isinstance(piece, _Shuffled):
            return piece.routed
        frames = (
            piece.frames
            if isinstance(piece, _Wave)
            else [self._computed(input, routing.operator, link) for link in range(len(chained))]
        )
        return [self._routed(frame, routing, link, chained[link]) for link, frame in enumerate(frames)]

    def _computed(self, input: JobInput, at: int, link: int) -> DataFrame:
        """The rows of a link, with the columns that have to be computed first."""
        origin = self.flow.graph.links[at][link].origin
        frame = rows_of(input.batch, ~origin, self.flow.sources) if origin < 0 else input.outputs[origin]
        return self.flow.nodes[at].inputs[link].computed(frame)

    def _output(self, output: OperatorOutput, shapes: Sequence[Shape] = ()) -> SparkOutput:
        schema = self._outputs[output.operator]
        return SparkOutput(schema, output.inline, output.files, self.gateway, self._session, shapes)

    def _routed(self, frame: DataFrame, routing: Routing, link: int, chained: bool) -> DataFrame:
        at = routing.operator
        if at not in self._routings or self._routings[at][0] != routing:
            self._routings[at] = (routing, RowRouting(self.gateway, routing.slots, routing.count))
        columns = self._inputs[at][link][chained].names
        return self._routings[at][1].route(frame, self.flow.graph.links[at][link].key, columns)

    def _task(self, at: int, chained: tuple[bool, ...]) -> Callable[[DataFrame, bool], DataFrame]:
        """What an operator does whose rows go on to another one of the same job."""
        from pyspark.sql.pandas.types import from_arrow_schema

        if (at, chained) not in self._tasks:
            schema = from_arrow_schema(passed_on(self.flow.graph.operators[at]))
            self._tasks[at, chained] = self.gateway.task(self._operator_task(at, chained, last=False), schema)
        return self._tasks[at, chained]

    def _last_task(self, at: int, chained: tuple[bool, ...]) -> Callable[[Any, bool], list[bytes]]:
        """What the last operator of a job does."""
        if (at, chained) not in self._last_tasks:
            self._last_tasks[at, chained] = self.gateway.bytes_task(self._operator_task(at, chained, last=True).finish)
        return self._last_tasks[at, chained]

    def _operator_task(self, at: int, chained: tuple[bool, ...], last: bool) -> OperatorTask:
        operator, links = self.flow.graph.operators[at], self.flow.graph.links[at]
        schemas = tuple(each[is_chained] for each, is_chained in zip(self._inputs[at], chained, strict=True))
        return OperatorTask(operator, links, schemas, last)


@dataclass(frozen=True)
class _Wave:
    """Rows of some bins whose columns are computed already, by link, and what they were taken from."""

    kept: list[DataFrame]
    frames: list[DataFrame]


@dataclass(frozen=True)
class _Shuffled:
    """The plans, by link, whose shuffles have run to look at the rows: a job over them does not read these again."""

    routed: list[DataFrame]


def _input(flow: Dataflow, at: int, link: int, chained: bool) -> pa.Schema:
    """The columns that tasks take along a link; in the job of the operator that emits them, its reports come along."""
    bad = flow.nodes[at].inputs[link].bad
    marks = [name for name, is_there in ((REPORT, chained), (BAD, bad is not None)) if is_there]
    columns = columns_of(flow.graph.operators[at], flow.graph.links[at][link])
    return pa.schema(
        [*[pa.field(name, pa.string()) for name in marks], *(each.with_nullable(True) for each in columns)]
    )


@contextmanager
def _losses_named() -> Iterator[None]:
    """Turn a failure of Spark into what the driver knows: a loss, or a failure of the query in one sentence."""
    try:
        yield
    except MeanderError:
        raise
    except Exception as problem:
        raise (JobLost if is_loss(problem) else QueryFailed)(in_short(problem)) from problem


def _result(messages: Sequence[bytes], planned_s: float) -> JobResult:
    """What workers have answered: pairs of a report and small output."""
    reports, outputs = messages[::2], messages[1::2]
    inline = [pa.ipc.open_stream(output).read_all() for output in outputs if output]
    return JobResult(tuple(TaskReport.from_text(report.decode()) for report in reports), tuple(inline), planned_s)


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
