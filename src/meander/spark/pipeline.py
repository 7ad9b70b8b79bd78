"""The stages of one query as one Spark job: shuffle, operate, shuffle, operate, .., reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from meander.operators.operator import Stage
from meander.spark.exchange import Routing
from meander.spark.gateway import Gateway
from meander.spark.incoming import BAD, REPORT
from meander.spark.messages import Control, Report
from meander.spark.outgoing import FINAL, passed_on
from meander.spark.places import Place
from meander.spark.task import Work
from meander.types import WorkerId

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


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
    """What a job returned: a report from every worker of every stage, and output that was small enough to travel."""

    reports: tuple[Report, ...]
    inline: Mapping[WorkerId, pa.Table]


class Pipeline:
    """The job of one query, built once and run for every batch with other control messages."""

    def __init__(self, gateway: Gateway, steps: Sequence[Step]) -> None:
        from pyspark.sql.pandas.types import from_arrow_schema

        self.gateway, self.steps = gateway, tuple(steps)
        self._run = []
        for at, step in enumerate(self.steps):
            last = at + 1 == len(self.steps)
            schema = FINAL if last else passed_on(step.stage)
            work = Work(step.stage, self._takes(at), last)
            self._run.append(gateway.task(work, from_arrow_schema(schema)))
        self._routings: dict[int, tuple[tuple[int, ...], Routing]] = {}

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The operators, first to last."""
        return tuple(step.stage for step in self.steps)

    def _takes(self, at: int) -> pa.Schema:
        step = self.steps[at]
        marks = [name for name, is_there in ((REPORT, at > 0), (BAD, step.bad is not None)) if is_there]
        # An operator with two inputs has the key beside its columns: that of whichever input a row is of.
        apart = [pa.field(name, type_) for name, type_ in step.stage.key.fields if name not in step.stage.input.names]
        fields = [field.with_nullable(True) for field in (*step.stage.input, *apart)]
        return pa.schema([*[pa.field(name, pa.string()) for name in marks], *fields])

    def run(
        self,
        rows: DataFrame,
        slots: Sequence[Sequence[int]],
        controls: Sequence[Sequence[Control]],
        places: Mapping[WorkerId, Place],
        barrier: bool,
    ) -> Told:
        """Run one attempt; `slots` gives each stage's slot of every bin, `controls` its messages by slot."""
        frame = rows
        for at, step in enumerate(self.steps):
            count = len(controls[at])
            routed = self._routing(at, slots[at], count).route(_computed(frame, step), self._takes(at).names)
            locations = [places[WorkerId(control.worker)].location for control in controls[at]]
            messages = [control.to_bytes() for control in controls[at]]
            handed = self.gateway.with_control(routed, self.gateway.pinned(messages, locations))
            frame = self._run[at](handed, barrier)
        return _read([(row["report"], row["output"]) for row in frame.collect()])

    def _routing(self, at: int, slots: Sequence[int], count: int) -> Routing:
        wanted = tuple(slots)
        if at not in self._routings or self._routings[at][0] != wanted or self._routings[at][1].count != count:
            key = self.steps[at].stage.key.names
            self._routings[at] = (wanted, Routing(self.gateway, key, wanted, count))
        return self._routings[at][1]


def _computed(frame: DataFrame, step: Step) -> DataFrame:
    made = dict(step.made)
    if step.bad is not None:
        made[BAD] = step.bad
    return frame.withColumns(made) if made else frame


def _read(rows: Sequence[tuple[str, bytes | None]]) -> Told:
    reports, inline = [], {}
    for text, output in rows:
        report = Report.from_text(text)
        reports.append(report)
        if output is not None:
            inline[WorkerId(report.worker)] = pa.ipc.open_stream(pa.py_buffer(bytes(output))).read_all()
    return Told(tuple(reports), inline)
