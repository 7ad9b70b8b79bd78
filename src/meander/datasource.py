"""Spark's data source `meander`: the state of a checkpoint as a DataFrame, read bin by bin.

    spark.read.format("meander").option("operator", "count").option("where", "word = 'duck'").load("/data/words")

`register(spark)` comes first, or any `me.checkpoint(..).state(..)`, which calls it. Conditions that name the whole key
read one bin, of the few files that hold it. They are an option, and no filters that Spark pushes down: Spark 4.3 keeps
what it has pushed down to a Python data source for the next query over the same DataFrame, which then lacks rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema

from meander.errors import InvalidOption
from meander.store.lookup import conditions
from meander.store.reader import Reader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

PARTITIONS = 64
"""The bins of an operator are read in so many parts at most."""


def register(spark: SparkSession) -> SparkSession:
    """Let a session read with `format("meander")`; takes Spark a second or two, once, to start a Python process."""
    spark.dataSource.register(StateSource)
    return spark


class StateSource(DataSource):
    """The state of one operator; options: path, operator, table, version, where."""

    @classmethod
    def name(cls) -> str:
        """What it is called in `format`."""
        return "meander"

    def schema(self) -> StructType:
        """The columns of the table, and the bin of each row."""
        return from_arrow_schema(StateReader(self.options).columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        """What reads it."""
        return StateReader(self.options)


class StateReader(DataSourceReader):
    """Reads one version of a table, fixed when the read is planned."""

    def __init__(self, options: Any) -> None:
        path = options.get("path")
        if not path or "operator" not in options:
            raise InvalidOption('name the checkpoint and the operator: .option("operator", "count").load(checkpoint)')
        reader = Reader.open(path)
        self.path = reader.location.root
        self.operator = reader.operator(options["operator"])
        wanted = options.get("version")
        if wanted is not None and not str(wanted).isdecimal():
            raise InvalidOption(f"version is {wanted!r}; give the number of a version")
        self.version = reader.log.index.version if wanted is None else int(wanted)
        self.known = None if wanted is None else self.version
        self.table = reader.table(self.operator, options.get("table"), self.known)
        self.columns: pa.Schema = reader.schema(self.operator, self.table, self.known)
        self.bins = reader.count(self.known)
        self.where = conditions(options["where"]) if "where" in options else ()
        self.wanted = reader.bins(self.operator, self.table, self.where, self.known)

    def partitions(self) -> Sequence[InputPartition]:
        """Runs of bins; the bin of the key alone where that is known."""
        if self.version < 0:
            return []
        if self.wanted is not None:
            return [InputPartition(tuple(self.wanted))]
        count = min(self.bins, PARTITIONS)
        return [
            InputPartition(tuple(range(self.bins * at // count, self.bins * (at + 1) // count))) for at in range(count)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of some bins."""
        reader = Reader.open(self.path)
        for piece in reader.state(self.operator, self.table, self.version, self.where, partition.value):
            yield from piece.select(self.columns.names).cast(self.columns).to_batches()
