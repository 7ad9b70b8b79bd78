"""The stages of one query as one Spark job: shuffle, operate, shuffle, operate, .., reports."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from meander.operators.operator import Stage
from meander.spark.exchange import Routing, bin_of
from meander.spark.gateway import Gateway
from meander.spark.incoming import BAD, REPORT
from meander.spark.messages import Control, Report
from meander.spark.outgoing import FINAL, passed_on, shown
from meander.spark.output import Output
from meander.spark.places import Place
from meander.spark.task import Work
from meander.types import WorkerId

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


UNPACKED = 4
"""About how many bytes of Arrow come of one byte of Spark's compressed shuffle, on the safe side."""


@dataclass(frozen=True)
class Step:
    """One operator of the chain, and how its rows come out of what is before it.

    `made` are columns that have to be computed first, as Spark expressions; `bad` is an expression that says why a
    row cannot be used, null where it can.
    """

    stage: Stage
    made: Mapping[str, Column]
    bad: Column | None = None


@dataclass(frozen=True)
class Told:
    """What jobs returned: a report from every worker of every stage, and output that was small enough to travel."""

    reports: tuple[Report, ...]
    inline: tuple[pa.Table, ...]
    planned_s: float = 0.0
    """How long the driver took to put the jobs together, before they ran."""


@dataclass(frozen=True)
class Attempt:
    """What one attempt is run with: each stage's slot of every bin, its control messages by slot, and their places."""

    slots: Sequence[Sequence[int]]
    workers: int
    control: Callable[[int, tuple[int, int]], Sequence[Control]]
    places: Mapping[WorkerId, Place]
    barrier: bool
    split_above: int | None
    """A worker's rows of more bytes than this are handed over in waves; None: do not even look."""
    only: NDArray[np.bool_] | None = None
    """The bins of the first stage whose rows are taken; None: all of them."""


class Pipeline:
    """The job of one query, built once and run for every batch with other control messages."""

    def __init__(self, gateway: Gateway, steps: Sequence[Step]) -> None:
        self.gateway, self.steps = gateway, tuple(steps)
        self._tasks: dict[tuple[int, bool, bool], Callable[[DataFrame, bool], DataFrame]] = {}
        self._routings: dict[int, tuple[tuple[int, ...], Routing]] = {}

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The operators, first to last."""
        return tuple(step.stage for step in self.steps)

    def run(self, rows: DataFrame, attempt: Attempt) -> Told:
        """Run one attempt: one job, unless a worker's rows are too many to hand over at once.

        Then the stage they are for is run alone, in several waves of bins, and the stages after it over its output.
        """
        told: list[Told] = []
        frame, first = rows, 0
        while first < len(self.steps):
            waves = self._waves(frame, first, attempt)
            if waves == 1:
                told.append(self._job(frame, first, len(self.steps), attempt, (0, 1)))
                break
            parts = self._in_waves(frame, first, attempt, waves)
            reports = [report for part in parts for report in part.reports]
            if any(report.fault for report in reports):
                return Told(tuple(reports), ())
            inline = tuple(table for part in parts for table in part.inline)
            last = first + 1 == len(self.steps)
            told.append(Told(tuple(reports), inline if last else (), sum(part.planned_s for part in parts)))
            if not last:
                frame = self.output(first, told[-1].reports, inline, attempt.places).frame(
                    self.gateway, rows.sparkSession
                )
            first += 1
        return Told(
            tuple(report for each in told for report in each.reports),
            tuple(table for each in told for table in each.inline),
            sum(each.planned_s for each in told),
        )

    def output(
        self, stage: int, reports: Sequence[Report], inline: Sequence[pa.Table], places: Mapping[WorkerId, Place]
    ) -> Output:
        """What a stage has emitted, where it lies."""
        files = [
            (report.output, places[WorkerId(report.worker)])
            for report in reports
            if report.stage == stage and report.output
        ]
        return Output(shown(self.stages[stage].output), inline, files)

    def _job(
        self,
        frame: DataFrame,
        first: int,
        end: int,
        attempt: Attempt,
        wave: tuple[int, int],
        is_taken: bool = False,
    ) -> Told:
        """Run the stages from `first` up to `end` as one Spark job."""
        began = time.perf_counter()
        for at in range(first, end):
            chained, last = at > first, at + 1 == end
            controls = attempt.control(at, wave)
            taken = frame if is_taken and not chained else self._taken(frame, at, attempt)
            routed = self._routed(taken, at, attempt, chained)
            locations = [attempt.places[WorkerId(control.worker)].location for control in controls]
            messages = [control.to_bytes() for control in controls]
            handed = self.gateway.with_control(routed, self.gateway.pinned(messages, locations))
            frame = self._task(at, chained, last)(handed, attempt.barrier)
        planned_s = time.perf_counter() - began
        return _read([(row["report"], row["output"]) for row in frame.collect()], planned_s)

    def _in_waves(self, frame: DataFrame, at: int, attempt: Attempt, waves: int) -> list[Told]:
        from pyspark import StorageLevel
        from pyspark.sql import functions as F

        key = self.steps[at].stage.key.names
        # Every wave must see the same rows, also where the source or an expression would not give them twice.
        kept = self._taken(frame, at, attempt).persist(StorageLevel.DISK_ONLY)
        try:
            bin_ = bin_of(key, len(attempt.slots[at]))
            parts = [kept.where(bin_ % waves == F.lit(wave)) for wave in range(waves)]
            return [
                self._job(part, at, at + 1, attempt, (wave, waves), is_taken=True) for wave, part in enumerate(parts)
            ]
        finally:
            kept.unpersist()

    def _waves(self, frame: DataFrame, at: int, attempt: Attempt) -> int:
        """How many waves the rows of a stage need, by the size of its shuffle, which then need not run again."""
        if attempt.split_above is None:
            return 1
        size = (
            max(self.gateway.shuffled_bytes(self._routed(self._taken(frame, at, attempt), at, attempt, chained=False)))
            * UNPACKED
        )
        waves = 1
        while waves * attempt.split_above < size and waves < len(attempt.slots[at]):
            waves *= 2
        return waves

    def _taken(self, frame: DataFrame, at: int, attempt: Attempt) -> DataFrame:
        """The rows of a stage with the columns that have to be computed first; of some bins only, where it says so."""
        from pyspark.sql import functions as F

        step = self.steps[at]
        frame = _computed(frame, step)
        if at > 0 or attempt.only is None:
            return frame
        flags = self.gateway.array(attempt.only.astype(int).tolist())
        return frame.where(F.get(flags, bin_of(step.stage.key.names, attempt.only.size)) == F.lit(1))

    def _routed(self, frame: DataFrame, at: int, attempt: Attempt, chained: bool) -> DataFrame:
        table = (attempt.workers, *attempt.slots[at])
        if at not in self._routings or self._routings[at][0] != table:
            key = self.steps[at].stage.key.names
            self._routings[at] = (table, Routing(self.gateway, key, attempt.slots[at], attempt.workers))
        return self._routings[at][1].route(frame, self._takes(at, chained).names)

    def _task(self, at: int, chained: bool, last: bool) -> Callable[[DataFrame, bool], DataFrame]:
        from pyspark.sql.pandas.types import from_arrow_schema

        if (at, chained, last) not in self._tasks:
            stage = self.steps[at].stage
            schema = FINAL if last else passed_on(stage)
            work = Work(stage, self._takes(at, chained), last)
            self._tasks[at, chained, last] = self.gateway.task(work, from_arrow_schema(schema))
        return self._tasks[at, chained, last]

    def _takes(self, at: int, chained: bool) -> pa.Schema:
        step = self.steps[at]
        marks = [name for name, is_there in ((REPORT, chained), (BAD, step.bad is not None)) if is_there]
        # An operator with two inputs has the key beside its columns: that of whichever input a row is of.
        apart = [pa.field(name, type_) for name, type_ in step.stage.key.fields if name not in step.stage.input.names]
        fields = [field.with_nullable(True) for field in (*step.stage.input, *apart)]
        return pa.schema([*[pa.field(name, pa.string()) for name in marks], *fields])


def _computed(frame: DataFrame, step: Step) -> DataFrame:
    made = dict(step.made)
    if step.bad is not None:
        made[BAD] = step.bad
    return frame.withColumns(made) if made else frame


def _read(rows: Sequence[tuple[str, bytes | None]], planned_s: float) -> Told:
    outputs = [output for _, output in rows if output is not None]
    inline = [pa.ipc.open_stream(pa.py_buffer(bytes(output))).read_all() for output in outputs]
    return Told(tuple(Report.from_text(text) for text, _ in rows), tuple(inline), planned_s)
