"""What the driver asks of the world outside: executors, jobs, a sink and the stream that feeds it. No callbacks.

Cluster      who is there              on Spark: `engine.spark.cluster`     in one process: `testing.inprocess`
Jobs         one attempt of a version  on Spark: `engine.spark.jobs`        in one process: `testing.inprocess`
OutputSink   where output goes         on Spark: `meander.sinks`            in one process: `testing.inprocess`
BatchStream  what brings batches       on Spark: `engine.spark.stream`      in one process: `testing.stream`
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import pyarrow as pa

from meander.engine.worker.messages import Control, TaskReport
from meander.engine.worker.output import OutputForm
from meander.errors import MeanderError

Rows = Any
"""The rows of a batch, or of a part of it, as the jobs know them: a DataFrame on Spark, a table in one process."""


@dataclass(frozen=True)
class Place:
    """One executor: its id, where its cluster prefers tasks for it, the process it is, and its cores."""

    executor: str
    location: str
    process: str
    cores: int


class Cluster(Protocol):
    """Who is there."""

    @property
    def is_local(self) -> bool:
        """Whether all workers share this process, however many there are."""

    def executors(self) -> list[Place]:
        """The executors that are there, in the order of their ids; one that is new is asked who it is."""

    def ids(self) -> set[str]:
        """The ids of the executors that are there; quickly."""

    def forget(self, executors: Collection[str]) -> None:
        """Ask these executors who they are when they are seen again."""

    def request(self, total: int) -> None:
        """Ask for so many executors in all."""

    def release(self, executors: Sequence[str]) -> None:
        """Let executors go for good."""

    def cores_per_executor(self) -> int | None:
        """The cores that a new executor will have, where that is known."""

    def clear(self, folders: Collection[str], executors: Collection[str] | None = None) -> None:
        """Remove these folders on these executors, or on all."""


@dataclass(frozen=True)
class Routing:
    """Where the rows of one operator go: the slot of each bin, and how many slots there are."""

    operator: int
    slots: tuple[int, ...]
    count: int


@dataclass(frozen=True, eq=False)
class JobInput:
    """What the operators of a version read that have not run yet.

    Args:
        batch: the rows of the batch.
        outputs: what operators that have run have emitted, by their number, as `Jobs.read` gives it.
        pieces: for operators that were looked at, all of their rows, or a wave of them, as `Jobs.waves` gives it.
    """

    batch: Rows
    outputs: Mapping[int, Rows] = field(default_factory=dict)
    pieces: Mapping[int, Rows] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Job:
    """One attempt at some operators of a version, first to last; the last one's output is that of the job.

    Args:
        tag: what to cancel it by.
        routings: one for each operator, in their order.
        controls: the control messages of each operator, by slot.
        places: where each slot is.
        barrier: start all tasks of an operator at once or none.
    """

    tag: str
    routings: tuple[Routing, ...]
    controls: tuple[tuple[Control, ...], ...]
    places: tuple[Place, ...]
    barrier: bool


@dataclass(frozen=True, eq=False)
class JobResult:
    """What a job returned: a report from every worker of every operator, and output small enough to travel."""

    reports: tuple[TaskReport, ...]
    inline: tuple[pa.Table, ...]
    planned_s: float = 0.0
    """How long it took to put the job together, before it ran."""


@dataclass(frozen=True, eq=False)
class OperatorOutput:
    """What one operator emitted in one version: small parts inline, others in files, in the form that is wanted."""

    operator: int
    inline: tuple[pa.Table, ...]
    files: tuple[tuple[str, Place], ...]


class JobLost(MeanderError):
    """A process or its files were lost while a job ran: running the version again can help."""


class OutputLost(MeanderError):
    """The files of an output are gone before the sink had them: the operators have to run again."""


SinkToken: TypeAlias = Any
"""What a sink has prepared, as a small JSON value for the manifest; None where nothing is left to commit."""


@dataclass(frozen=True)
class SinkWrite:
    """One driver's write of one version.

    Args:
        version: the number of the version.
        epoch: the epoch of the driver; that of a later driver is higher.
        fsync: survive a loss of power, not only of processes.
    """

    version: int
    epoch: int
    fsync: bool = False

    def is_over(self, last: SinkWrite) -> bool:
        """Whether this write is committed or in vain once `last` is committed: a later driver or version is at work."""
        return (self.epoch, self.version) <= (last.epoch, last.version)


class OutputSink(Protocol):
    """Takes the output of every version in two steps, before the manifest and after it.

    A driver that was replaced does not know it yet: it may still prepare, but it never commits.
    """

    def prepare(self, output: Any, write: SinkWrite) -> SinkToken:
        """Take one version's output, out of its readers' sight; raise, and the version is not committed."""

    def commit(self, token: SinkToken) -> None:
        """Show what was prepared: a manifest names it. Called again after a restart, whether or not it was done."""

    def abort(self, token: SinkToken) -> None:
        """Remove what was prepared: no manifest ever names it."""

    def sweep(self, last: SinkWrite) -> None:
        """Remove what was prepared in writes that are over, and is there still: nobody will commit it."""

    def undo(self, first: int, last: int, tokens: Sequence[SinkToken]) -> None:
        """Hide the versions from `first` to `last`, of which a rollback has undone all; may be called again.

        `tokens` are theirs, newest first; of a version that was never committed there is none.
        """


class Jobs(Protocol):
    """Runs one attempt. A job that fails otherwise than by `JobLost` raises `QueryFailed`."""

    @property
    def sink(self) -> OutputSink:
        """Where the output goes."""

    @property
    def form(self) -> OutputForm:
        """In which form it goes there."""

    def nothing(self) -> Rows:
        """No rows, in the schema of the stream."""

    def waves(self, input: JobInput, routing: Routing, max_bytes: int) -> Sequence[Rows]:
        """The rows of an operator as they can be handed over: in one piece, or in several of other bins each.

        Wave k of n has the rows of bins k, k + n, k + 2n, .. All see the same rows; `free` them afterwards.
        """

    def free(self, waves: Sequence[Rows]) -> None:
        """Give back what `waves` keeps."""

    def run(self, input: JobInput, job: Job) -> JobResult:
        """Run one attempt."""

    def read(self, output: OperatorOutput) -> Rows:
        """The output of an operator as rows for those that read it."""

    def prepare(self, output: OperatorOutput, write: SinkWrite) -> SinkToken:
        """Give the output of a version to the sink, and return what it has prepared.

        Raises `OutputLost`, `JobLost` where a job of the sink has lost a process, or what the sink raises.
        """

    def rehearse(self, places: Sequence[Place], bins: int) -> None:
        """Take the query's job through all its operators on new executors, touching no state."""

    def cancel(self, tag: str) -> None:
        """End the running job of this tag."""


class BatchStream(Protocol):
    """What brings batches to the driver."""

    @property
    def id(self) -> str:
        """The query's id; the same after a restart."""

    @property
    def is_active(self) -> bool:
        """Whether batches may still come."""

    @property
    def is_quiet(self) -> bool:
        """Whether no batch is running and no row is waiting."""

    @property
    def is_shared(self) -> bool:
        """Whether others use the same executors, so that none may be let go."""

    def rows_behind(self) -> int:
        """How many rows wait in the sources, as far as they say."""

    def process_all_available(self) -> None:
        """Wait until everything that is in the source now has been processed."""

    def wait(self, timeout_s: float) -> None:
        """Wait until it has ended, for so long at most."""

    def failure(self) -> Exception | None:
        """What it has failed of."""

    def stop(self) -> None:
        """Bring no more batches."""
