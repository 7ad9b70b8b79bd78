"""The driver's ports `Cluster` and `Jobs` in one process: executors are folders, attempts run the real worker code."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from meander.engine.driver.graph import Graph
from meander.engine.driver.ports import (
    Job,
    JobInput,
    JobLost,
    JobResult,
    OperatorOutput,
    OutputLost,
    OutputSink,
    Place,
    Routing,
    SinkToken,
    SinkWrite,
)
from meander.engine.worker.messages import Control, TaskReport
from meander.engine.worker.output import ROWS, OutputForm
from meander.engine.worker.process import Host
from meander.engine.worker.rows import REPORT, SLOT, shown
from meander.engine.worker.task import OperatorTask
from meander.operators.operator import BinnedOperator
from meander.prepared import PreparedRows
from meander.testing.tables import rows_of_links

Tables: TypeAlias = Sequence[pa.Table]
"""The rows of an operator, a table for each of its links."""


class InProcessCluster:
    """Executors in one process. They come at once when they are asked for, up to a limit, and can be lost."""

    def __init__(self, folder: Path, executors: int, cores: int = 1, most: int = 1 << 15) -> None:
        self._folder, self._cores, self._most = folder, cores, most
        self._count = 0
        self._places: dict[str, Place] = {}
        self._add(executors)

    @property
    def is_local(self) -> bool:
        """Never: every worker has an executor of its own, as on a cluster."""
        return False

    def executors(self) -> list[Place]:
        """The executors that are there, in the order of their ids."""
        return list(self._places.values())

    def ids(self) -> set[str]:
        """The ids of the executors that are there."""
        return set(self._places)

    def forget(self, executors: Collection[str]) -> None:
        """There is nothing to forget: an id is never used twice."""

    def request(self, total: int) -> None:
        """Have so many executors in all."""
        self._add(min(total, self._most) - len(self._places))

    def release(self, executors: Sequence[str]) -> None:
        """Let executors go for good."""
        for executor in executors:
            self.lose(executor)

    def cores_per_executor(self) -> int | None:
        """The cores that a new executor has."""
        return self._cores

    def clear(self, folders: Collection[str], executors: Collection[str] | None = None) -> None:
        """Remove these folders on these executors, or on all."""
        for executor in self._places if executors is None else executors:
            for name in folders:
                shutil.rmtree(self._folder / executor / name, ignore_errors=True)

    def lose(self, executor: str, replace: bool = False) -> None:
        """An executor is gone, with everything it had; another one may come in its place."""
        if self._places.pop(executor, None) is not None:
            shutil.rmtree(self._folder / executor, ignore_errors=True)
            if replace:
                self._add(1)

    def host(self, place: Place) -> Host:
        """What a task on an executor knows of its process."""
        return Host(place.process, self._folder / place.executor)

    def _add(self, count: int) -> None:
        for _ in range(count):
            self._count += 1
            executor = str(self._count)
            self._places[executor] = Place(executor, f"executor-{executor}", f"inprocess:{executor}:0", self._cores)


class MemorySink(PreparedRows[Any]):
    """Keeps the output of every version, and shows what is committed."""

    def rows(self) -> list[dict[str, Any]]:
        """Everything that was emitted, oldest first."""
        return [row for _, rows in self.committed() for row in rows.to_pylist()]


class InProcessJobs:
    """Runs the tasks of all workers, one after the other."""

    def __init__(
        self,
        operators: Sequence[BinnedOperator] | Graph,
        schema: pa.Schema,
        cluster: InProcessCluster,
        sink: OutputSink,
        columns: Sequence[str] | None = None,
    ) -> None:
        self.graph = Graph.of(operators)
        self.operators, self.schema, self.cluster, self.sink = self.graph.operators, schema, cluster, sink
        self.columns = columns
        """The columns that the sink gets, where those are not all."""

    @property
    def form(self) -> OutputForm:
        """As rows."""
        return ROWS

    def nothing(self) -> pa.Table:
        """No rows, in the schema of the stream."""
        return self.schema.empty_table()

    def waves(self, input: JobInput, routing: Routing, max_bytes: int) -> Sequence[Tables]:
        """The rows of an operator in one piece, or in waves of bins where one worker would get too many bytes."""
        at, bins = routing.operator, len(routing.slots)
        tables = rows_of_links(self.graph, at, input, {})
        count = 1
        while count * max_bytes < sum(rows.nbytes for rows in tables) and count < bins:
            count *= 2
        if count == 1:
            return [tables]
        wave_of = [bins_of % count for bins_of in self._bins(at, tables, bins)]
        return [
            [rows.filter(pa.array(mine == wave)) for rows, mine in zip(tables, wave_of, strict=True)]
            for wave in range(count)
        ]

    def of_bins(self, batch: pa.Table, bins: np.ndarray[Any, np.dtype[np.bool_]]) -> pa.Table:
        """The rows of some bins of the first operator, which is the only one that reads the source."""
        (mine,) = self._bins(0, rows_of_links(self.graph, 0, JobInput(batch), {}), bins.size)
        return batch.filter(pa.array(bins[mine]))

    def free(self, waves: Sequence[pa.Table]) -> None:
        """Tables need not be given back."""

    def run(self, input: JobInput, job: Job) -> JobResult:
        """Run every worker of every operator; raises `JobLost` where one of their executors is gone."""
        reports: list[TaskReport] = []
        inline: list[pa.Table] = []
        emitted: dict[int, pa.Table] = {}
        for routing, controls in zip(job.routings, job.controls, strict=True):
            at, last = routing.operator, routing is job.routings[-1]
            rows = input.pieces[at] if at in input.pieces else rows_of_links(self.graph, at, input, emitted)
            outputs: list[pa.Table] = []
            for control, part, place in zip(controls, self._routed(rows, routing), job.places, strict=True):
                report, output = self.run_task(at, control, part, place, last)
                reports.append(report)
                if output is not None:
                    (inline if last else outputs).append(output)
            emitted[at] = pa.concat_tables(outputs) if outputs else self.operators[at].output.empty_table()
        return JobResult(tuple(reports), tuple(inline))

    def run_task(
        self, at: int, control: Control, rows: Tables, place: Place, last: bool
    ) -> tuple[TaskReport, pa.Table | None]:
        """One worker's part of an operator: its report, and rows for the next ones or small output."""
        if place.executor not in self.cluster.ids():
            raise JobLost(f"executor {place.executor} is gone")
        control = Control.from_bytes(control.to_bytes())  # as it would travel
        task = OperatorTask(self.operators[at], self.graph.links[at], tuple(each.schema for each in rows), last)
        outgoing, reports = task.run(control, lambda: list(rows), self.cluster.host(place))
        if last:
            *_, report, output = outgoing.messages(reports)
            table = pa.ipc.open_stream(output).read_all() if output else None
            return TaskReport.from_text(report.decode()), table
        passed = pa.Table.from_batches(outgoing.batches(reports))
        texts = passed[REPORT].drop_null().to_pylist()
        return TaskReport.from_text(texts[0]), passed.filter(pc.is_null(passed[REPORT])).drop_columns([SLOT, REPORT])

    def read(self, output: OperatorOutput) -> pa.Table:
        """The output of an operator as rows for those that read it."""
        tables = [shown(self.operators[output.operator].output).empty_table(), *output.inline]
        for path, place in output.files:
            if place.executor not in self.cluster.ids():
                raise OutputLost(f"executor {place.executor} is gone, and what it emitted with it")
            with pa.memory_map(path) as file:
                tables.append(pa.ipc.open_file(file).read_all())
        return pa.concat_tables(tables)

    def prepare(self, output: OperatorOutput, write: SinkWrite) -> SinkToken:
        """Give the output of a version to the sink."""
        rows = self.read(output)
        return self.sink.prepare(rows if self.columns is None else rows.select(self.columns), write)

    def rehearse(self, places: Sequence[Place], bins: int) -> None:
        """All is warm."""

    def cancel(self, tag: str) -> None:
        """Jobs end before anyone could cancel them."""

    def _routed(self, tables: Tables, routing: Routing) -> list[list[pa.Table]]:
        """The rows of each slot, by link."""
        slots = [np.array(routing.slots)[each] for each in self._bins(routing.operator, tables, len(routing.slots))]
        return [
            [rows.filter(pa.array(mine == slot)) for rows, mine in zip(tables, slots, strict=True)]
            for slot in range(routing.count)
        ]

    def _bins(self, at: int, tables: Tables, bins: int) -> list[np.ndarray[Any, np.dtype[np.int64]]]:
        """The bin of each row, by link; a row without a key goes anywhere, and becomes a dead letter there."""
        key, answers = self.operators[at].key, []
        for rows, link in zip(tables, self.graph.links[at], strict=True):
            columns = [rows[name].cast(type_) for name, type_ in zip(link.key, key.types, strict=True)]
            good = np.ones(len(rows), np.bool_)
            for column in columns:
                good &= column.is_valid().to_numpy()
            bin_of_row = np.zeros(len(rows), np.int64)
            if good.any():
                mask = pa.array(good)
                bin_of_row[good] = key.encode([column.filter(mask) for column in columns]).bins(bins)
            answers.append(bin_of_row)
        return answers
