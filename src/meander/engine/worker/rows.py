"""Rows as a task takes them over, bad ones and earlier operators' reports set aside; and rows as they leave it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from meander.engine.worker.links import Link, together
from meander.engine.worker.messages import Control, Token
from meander.operators.operator import ALL, BinnedOperator, UnusableRows
from meander.route.keys import Keys
from meander.state.spec import TableSpec
from meander.state.table import Table

REPORT = "__report"
BAD = "__bad"
SLOT = "__slot"

DEAD = pa.schema([("kind", pa.string()), ("reason", pa.string()), ("row", pa.string())])
UNUSABLE, FAILED, TIMER = "unusable", "failed", "timer"
"""Kinds of dead letters: a row that could not be used; one of a key for which a function raised; a timer of such."""


@dataclass(frozen=True)
class Incoming:
    """The rows of one worker: good ones, dead letters with their reasons, and reports that travel along."""

    rows: pa.Table
    key_columns: list[pa.ChunkedArray]
    dead: pa.Table | None
    reports: list[str]
    new_rows: int
    """How many came of sources that are read here for the first time, good and bad."""

    @property
    def count(self) -> int:
        """How many rows came, good and bad."""
        return len(self.rows) + (0 if self.dead is None else len(self.dead))


def table_of(chunks: Iterable[pa.Buffer], schema: pa.Schema) -> pa.Table:
    """The Arrow chunks that Spark handed over, as one table."""
    return pa.Table.from_batches([pa.ipc.read_record_batch(chunk, schema) for chunk in chunks], schema)


def sort_out(tables: Sequence[pa.Table], operator: BinnedOperator, links: Sequence[Link]) -> Incoming:
    """Set bad rows and reports of earlier operators aside, and bring together what came along each link."""
    reports: list[str] = []
    dead: list[pa.Table] = []
    good: list[pa.Table] = []
    new_rows = 0
    for rows, link in zip(tables, links, strict=True):
        if REPORT in rows.column_names:
            texts = rows[REPORT]
            reports += texts.drop_null().to_pylist()
            rows = rows.filter(pc.is_null(texts)).drop_columns([REPORT])
        new_rows += len(rows) if link.is_new else 0
        reasons = _reasons(rows, link.key)
        if BAD in rows.column_names:
            rows = rows.drop_columns([BAD])
        if reasons is not None:
            is_dead = pc.is_valid(reasons)
            dead.append(letters(UNUSABLE, rows.filter(is_dead), reasons.filter(is_dead)))
            rows = rows.filter(pc.invert(is_dead))
        good.append(rows)
    return Incoming(*together(operator, links, good), pa.concat_tables(dead) if dead else None, reports, new_rows)


def set_aside(rows: pa.Table, keys: Keys, problem: UnusableRows) -> tuple[pa.Table, Keys, pa.Table]:
    """Rows and keys without those of the keys that an operator cannot take, and these rows as dead letters."""
    distinct = Table(None, TableSpec("unusable", keys.type), 1)
    unusable = distinct.touch(keys.type.encode(problem.keys))
    reasons = dict(zip(unusable.tolist(), problem.reasons, strict=True))
    count = distinct.size
    at = distinct.touch(keys)
    dead, good = np.flatnonzero(at < count), np.flatnonzero(at >= count)
    mine = pa.array([reasons[each] for each in at[dead].tolist()], pa.string())
    return rows.take(pa.array(good)), keys.take(good), letters(UNUSABLE, rows.take(pa.array(dead)), mine)


def _reasons(rows: pa.Table, key: Sequence[str]) -> pa.Array | None:
    """Why each row is bad, null where it is good; None when all are good."""
    reasons: pa.Array | None = None

    def note(bad: pa.Array, reason: str) -> None:
        nonlocal reasons
        before = pa.nulls(len(rows), pa.string()) if reasons is None else reasons
        reasons = pc.if_else(pc.and_(bad, pc.is_null(before)), reason, before)

    if BAD in rows.column_names and rows[BAD].null_count < len(rows):
        reasons = rows[BAD].combine_chunks()
    for name in key:
        if rows[name].null_count:
            note(pc.is_null(rows[name]).combine_chunks(), f"the key column {name} is null")
    for field in rows.schema:
        if pa.types.is_string(field.type) and field.name != BAD:
            broken = _undecodable(rows[field.name])
            if broken is not None:
                note(broken, f"column {field.name} is not valid UTF-8")
    return reasons


def _undecodable(column: pa.ChunkedArray) -> pa.Array | None:
    """Which strings are no UTF-8; None when all are."""
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        pass
    else:
        return None

    def is_broken(data: bytes | None) -> bool:
        try:
            (data or b"").decode()
        except UnicodeDecodeError:
            return True
        return False

    return pa.array([is_broken(data) for data in column.cast(pa.binary()).to_pylist()], pa.bool_())


def letters(kind: str, rows: pa.Table, reasons: pa.Array) -> pa.Table:
    """Dead letters of a kind: the reason, and the row as JSON."""
    for at, field in enumerate(rows.schema):
        if pa.types.is_string(field.type):
            # Broken text is shown with its bad bytes replaced: a letter must be readable.
            texts = [None if data is None else data.decode(errors="replace")
                     for data in rows.column(at).cast(pa.binary()).to_pylist()]  # fmt: skip
            rows = rows.set_column(at, field, pa.array(texts, pa.string()))
    shown = [json.dumps(row, default=str) for row in rows.to_pylist()]
    return pa.table([pa.array([kind] * len(shown), pa.string()), reasons, pa.array(shown, pa.string())], schema=DEAD)


def shown(schema: pa.Schema) -> pa.Schema:
    """The columns of an output that a sink sees."""
    return pa.schema([field for field in schema if field.name != ALL])


def passed_on(operator: BinnedOperator) -> pa.Schema:
    """The rows that an operator hands to the next one, with a slot and a report for rows that are reports."""
    fields = [field.with_nullable(True) for field in operator.output]
    return pa.schema([pa.field(SLOT, pa.int32()), pa.field(REPORT, pa.string()), *fields])


class Outgoing:
    """The rows of one worker on their way out.

    Those of the last operator of a job stay in a file, unless they are few, or the sink wants them in another form.
    """

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
        form, control = self.control.form, self.control
        if form.is_nothing:
            return
        rows = rows.select(shown(rows.schema).names)
        if rows.nbytes <= form.inline:
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, rows.schema) as writer:
                writer.write_table(rows)
            self.inline = sink.getvalue()
        elif form.folder is not None:
            wanted = rows if form.columns is None else rows.select(form.columns)
            self.path = form.write(wanted, control.token.folder, control.slot, control.fsync)
        else:
            self.path = _kept(rows, root, control.token)

    def clear(self) -> None:
        """Forget the rows: the attempt has failed."""
        self.path = self.inline = self.rows = None

    def messages(self, reports: Sequence[str]) -> Iterator[bytes]:
        """What leaves the task of a job's last operator: pairs of a report and small output, its own at the end."""
        for report in reports[:-1]:
            yield from (report.encode(), b"")
        yield from (reports[-1].encode(), b"" if self.inline is None else self.inline.to_pybytes())

    def batches(self, reports: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """What leaves the task of an operator before others: its rows, and the reports among them."""
        schema = passed_on(self.operator)
        if self.rows is not None:
            count = self.rows.num_rows
            marks = [pa.nulls(count, pa.int32()), pa.nulls(count, pa.string())]
            yield from pa.table([*marks, *self.rows.columns], schema=schema).to_batches()
        count = len(reports)
        nulls = [pa.nulls(count, field.type) for field in self.operator.output]
        slots = pa.array([self.control.slot] * count, pa.int32())
        yield pa.record_batch([slots, pa.array(reports, pa.string()), *nulls], schema=schema)


def _kept(rows: pa.Table, root: Path, token: Token) -> str:
    """A file beside the state that holds the rows until the sink has them; those of earlier versions go."""
    for old in root.glob("out-*.arrow"):
        if int(old.name.split("-")[1]) < token.version:
            old.unlink(missing_ok=True)
    path = root / f"out-{token.version}-{token.text}.arrow"
    path.touch(0o600)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, rows.schema) as writer:
        writer.write_table(rows)
    return str(path)
