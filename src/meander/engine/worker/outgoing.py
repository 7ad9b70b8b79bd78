"""What a task gives back: rows for the next operator, or output for the sink, and always the reports."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from meander.engine.worker.incoming import REPORT
from meander.engine.worker.messages import Control
from meander.operators.operator import BinnedOperator

SLOT = "__slot"
ALL = "__all"
"""The key column of a stream without a key; it never reaches a sink."""

FINAL = pa.schema([("report", pa.string()), ("output", pa.binary())])


def shown(schema: pa.Schema) -> pa.Schema:
    """The columns of an output that a sink sees."""
    return pa.schema([field for field in schema if field.name != ALL])


def passed_on(operator: BinnedOperator) -> pa.Schema:
    """The rows that an operator hands to the next one, with a slot and a report for rows that are reports."""
    fields = [field.with_nullable(True) for field in operator.output]
    return pa.schema([pa.field(SLOT, pa.int32()), pa.field(REPORT, pa.string()), *fields])


class Outgoing:
    """The rows of one worker on their way out; those of the last operator stay in a file unless they are few."""

    def __init__(self, operator: BinnedOperator, control: Control, last: bool) -> None:
        self.operator, self.control, self.last = operator, control, last
        self.path: str | None = None
        self.inline: pa.Buffer | None = None
        self.rows: pa.Table | None = None

    def add(self, rows: pa.Table | None, root: Path) -> None:
        """Take the operator's output over."""
        if rows is None or not rows.num_rows:
            return
        if not self.last:
            self.rows = rows
            return
        rows = rows.select(shown(rows.schema).names)
        if rows.nbytes <= self.control.inline:
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, rows.schema) as writer:
                writer.write_table(rows)
            self.inline = sink.getvalue()
            return
        version = self.control.token.version
        for old in root.glob("out-*.arrow"):
            if int(old.name.split("-")[1]) < version:
                old.unlink(missing_ok=True)
        path = root / f"out-{version}-{self.control.token.text}.arrow"
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, rows.schema) as writer:
            writer.write_table(rows)
        self.path = str(path)

    def clear(self) -> None:
        """Forget the rows: the attempt has failed."""
        self.path = self.inline = self.rows = None

    def batches(self, reports: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Everything that leaves the task; the last report is this worker's own."""
        if self.last:
            outputs = [None] * (len(reports) - 1) + [None if self.inline is None else self.inline.to_pybytes()]
            yield pa.record_batch([pa.array(reports, pa.string()), pa.array(outputs, pa.binary())], schema=FINAL)
            return
        schema = passed_on(self.operator)
        if self.rows is not None:
            count = self.rows.num_rows
            marks = [pa.nulls(count, pa.int32()), pa.nulls(count, pa.string())]
            yield from pa.table([*marks, *self.rows.columns], schema=schema).to_batches()
        count = len(reports)
        nulls = [pa.nulls(count, field.type) for field in self.operator.output]
        slots = pa.array([self.control.slot] * count, pa.int32())
        yield pa.record_batch([slots, pa.array(reports, pa.string()), *nulls], schema=schema)
