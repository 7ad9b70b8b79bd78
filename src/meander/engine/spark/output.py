"""A version's output as a DataFrame that reads files and never touches state: read twice or in part, it is the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from meander.engine.driver.ports import Place
from meander.engine.spark.gateway import Gateway

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


OUTPUT_LOST = "meander-output-lost"


@dataclass(frozen=True)
class SparkOutput:
    """What one version emits: inline, where every worker's part was small, else in files beside the state."""

    schema: pa.Schema
    inline: Sequence[pa.Table]
    files: Sequence[tuple[str, Place]]
    gateway: Gateway
    session: SparkSession

    @property
    def small(self) -> pa.Table | None:
        """All of it, where it came inline."""
        return None if self.files else self._inline()

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
