"""A version's output as a DataFrame that reads files and never touches state: read twice or in part, it is the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from meander.spark.gateway import Gateway
from meander.spark.places import Place

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


OUTPUT_LOST = "meander-output-lost"


def _read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows of the files that the control messages name."""
    for batch in batches:
        for path in batch.column(0).to_pylist():
            try:
                with pa.memory_map(path.decode()) as file:
                    yield from pa.ipc.open_file(file).read_all().to_batches(max_chunksize=1 << 16)
            except FileNotFoundError:
                raise RuntimeError(f"{OUTPUT_LOST}: {Path(path.decode()).name} is not on this executor") from None


@dataclass(frozen=True)
class Output:
    """What one version emits: inline, where every worker's part was small, else in files beside the state."""

    schema: pa.Schema
    inline: Sequence[pa.Table]
    files: Sequence[tuple[str, Place]]

    @property
    def small(self) -> pa.Table | None:
        """All of it, where it came inline."""
        return None if self.files else self._inline()

    def _inline(self) -> pa.Table:
        # createDataFrame loses what comes after an empty chunk.
        return pa.concat_tables([self.schema.empty_table(), *self.inline]).combine_chunks()

    def frame(self, gateway: Gateway, session: SparkSession) -> DataFrame:
        """All of it as a DataFrame."""
        from pyspark.sql.pandas.types import from_arrow_schema

        schema = from_arrow_schema(self.schema)
        here = session.createDataFrame(self._inline(), schema)
        if not self.files:
            return here
        messages = [path.encode() for path, _ in self.files]
        control = gateway.frame(session, gateway.pinned(messages, [place.location for _, place in self.files]))
        there = gateway.task(_read, schema)(control, False)
        return there.unionAll(here) if self.inline else there
