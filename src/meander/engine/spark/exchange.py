"""Rows on their way between Spark and workers: to the worker that owns their bin, and out of a version as a DataFrame.

bin  = the high bits of xxhash64(key columns)          the same in NumPy: `meander.route`
slot = one array literal, looked up at the bin         dense 0..n-1; worker ids travel in the control message

Hash, lookup and shuffle are in the JVM, no Python. The output reads files and never touches state: read twice or in
part, it is the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from meander.engine.driver.ports import Place
from meander.engine.spark.gateway import Gateway
from meander.engine.spark.nodes import Shape, shaped
from meander.engine.worker.output import ROWS, OutputForm
from meander.engine.worker.rows import REPORT, SLOT

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

OUTPUT_LOST = "meander-output-lost"


def bin_of(key: Sequence[str | Column], bins: int) -> Column:
    """The bin of a row, as a Spark expression of its key's columns or of expressions for them."""
    from pyspark.sql import functions as F

    if bins == 1:
        return F.lit(0)
    columns = [F.col(f"`{each}`") if isinstance(each, str) else each for each in key]
    return F.shiftrightunsigned(F.xxhash64(*columns), 64 - (bins.bit_length() - 1)).cast("int")


class RowRouting:
    """The assignment of one operator as Spark sees it: which slot a bin goes to."""

    def __init__(self, gateway: Gateway, slots: Sequence[int], count: int) -> None:
        self.bins, self.count = len(slots), count
        self.gateway, self.table = gateway, gateway.array(slots)
        self._ways: dict[tuple[tuple[str, ...], tuple[str, ...]], tuple[Column, Any]] = {}

    def route(self, rows: DataFrame, key: Sequence[str], columns: Sequence[str]) -> DataFrame:
        """These columns, each row in the partition of its slot; reports of an earlier operator stay in theirs.

        Few calls, because each makes Spark analyse a plan anew. It leaves the other columns out before the shuffle.
        """
        way = tuple(key), tuple(columns)
        if way not in self._ways:
            self._ways[way] = self._way(*way)
        return self.gateway.partitioned(rows, self.count, *self._ways[way])

    def _way(self, key: Sequence[str], columns: Sequence[str]) -> tuple[Column, Any]:
        from pyspark.sql import functions as F

        slot = F.get(self.table, bin_of(key, self.bins))
        if REPORT in columns:
            slot = F.when(F.col(REPORT).isNotNull(), F.col(SLOT) % self.count).otherwise(slot)
        return slot, self.gateway.columns([F.col(f"`{name}`") for name in columns])


@dataclass(frozen=True)
class SparkOutput:
    """What one version emits: inline, where every worker's part was small, else in files beside the state.

    `schema` is that of the operator; the output has gone through the shapes behind it. The files are in the form that
    the sink wants.
    """

    schema: pa.Schema
    inline: Sequence[pa.Table]
    files: Sequence[tuple[str, Place]]
    gateway: Gateway
    session: SparkSession
    shapes: Sequence[Shape] = ()
    form: OutputForm = ROWS

    @property
    def small(self) -> pa.Table | None:
        """All of it, where it came inline and Spark has nothing to compute of it."""
        return None if self.files or any(each.names is None for each in self.shapes) else self.part

    @property
    def part(self) -> pa.Table:
        """What of it came inline, where Spark has nothing to compute of it."""
        return self._inline().select(self.shapes[-1].names) if self.shapes else self._inline()

    def _inline(self) -> pa.Table:
        # createDataFrame loses what comes after an empty chunk.
        return pa.concat_tables([self.schema.empty_table(), *self.inline]).combine_chunks()

    def head(self, rows: int) -> pa.Table:
        """Its first rows."""
        small = self.small
        return self.frame().limit(rows).toArrow() if small is None else small.slice(0, rows)

    def to_arrow(self) -> pa.Table:
        """All of it, collected here."""
        small = self.small
        return self.frame().toArrow() if small is None else small

    def frame(self) -> DataFrame:
        """All of it as a DataFrame."""
        return shaped(self._emitted(), self.shapes) if self.form.folder is None else self._written()

    def _written(self) -> DataFrame:
        """All of it, where workers have written files for the sink: the sink looks at them before it takes them."""
        part = self.session.createDataFrame(self.part)
        if not self.files:
            return part
        return (
            self.session.read.schema(part.schema).parquet(*(f"file://{path}" for path, _ in self.files)).unionAll(part)
        )

    def _emitted(self) -> DataFrame:
        from pyspark.sql.pandas.types import from_arrow_schema

        schema, gateway = from_arrow_schema(self.schema), self.gateway
        inline = self.session.createDataFrame(self._inline(), schema)
        if not self.files:
            return inline
        messages = [path.encode() for path, _ in self.files]
        locations = [place.location for _, place in self.files]
        control = gateway.frame(self.session, gateway.pinned(messages, locations))
        stored = gateway.task(_read, schema)(control, False)
        return stored.unionAll(inline) if self.inline else stored


def _read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows of the files that the control messages name."""
    for batch in batches:
        for path in batch.column(0).to_pylist():
            try:
                with pa.memory_map(path.decode()) as file:
                    yield from pa.ipc.open_file(file).read_all().to_batches(max_chunksize=1 << 16)
            except FileNotFoundError:
                raise RuntimeError(f"{OUTPUT_LOST}: {Path(path.decode()).name} is not on this executor") from None
