"""Where the output of a query goes.

    me.sinks.memory("counts")                     in this process, for notebooks and tests
    me.sinks.console()                            a few rows of every batch, printed
    me.sinks.files("out/", format="parquet")      any file format of Spark, exactly once
    me.sinks.kafka("host:9092", topic="counts")   through Spark, at least once
    lambda df, batch_id: ...                      a function of your own

A sink is called once for every version, before it is committed, with the rows that changed. If the process dies between
the two, it is called again with the same number and the same rows: a sink that replaces what it wrote under that
number is exactly once. The number is Spark's batch id, as long as no idle tick had to run.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from meander.errors import InvalidOption

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from meander.engine.spark.exchange import SparkOutput


class Sink:
    """Takes the output of every version."""

    def write(self, output: SparkOutput, version: int) -> None:
        """Take one version's output; raise, and the version is not committed."""
        self.write_frame(output.frame(), version)

    def write_frame(self, rows: DataFrame, version: int) -> None:
        """Take one version's output as a DataFrame."""
        raise NotImplementedError


class Call(Sink):
    """Calls a function with every version's rows and number."""

    def __init__(self, function: Callable[[DataFrame, int], Any]) -> None:
        self.function = function

    def write_frame(self, rows: DataFrame, version: int) -> None:
        """Call the function."""
        self.function(rows, version)


class Memory(Sink):
    """Keeps all output in this process, by version; for small results."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._lock = threading.Lock()
        self._versions: dict[int, pa.Table] = {}
        self._schema: pa.Schema | None = None

    def write(self, output: SparkOutput, version: int) -> None:
        """Keep one version's output."""
        rows = output.to_arrow()
        with self._lock:
            self._schema = output.schema
            self._versions[version] = rows

    def to_arrow(self) -> pa.Table:
        """Everything that was emitted, oldest first, with the number of its version as `batch`."""
        with self._lock:
            versions = sorted(self._versions.items())
            schema = self._schema
        tables = [
            rows.add_column(0, "batch", pa.array([version] * len(rows), pa.int64())) for version, rows in versions
        ]
        if not tables:
            return pa.table({"batch": pa.array([], pa.int64())})
        assert schema is not None
        return pa.concat_tables(tables)

    def latest(self, *key: str) -> list[dict[str, Any]]:
        """The last row that was emitted for every key, as dictionaries."""
        rows: dict[tuple[Any, ...], dict[str, Any]] = {}
        for row in self.to_arrow().to_pylist():
            row.pop("batch")
            rows[tuple(row[name] for name in key)] = row
        return list(rows.values())

    def to_df(self, spark: SparkSession) -> DataFrame:
        """Everything that was emitted as a DataFrame, also as a view under the sink's name."""
        frame = spark.createDataFrame(self.to_arrow().combine_chunks())
        frame.createOrReplaceTempView(self.name)
        return frame


class Console(Sink):
    """Prints some rows of every version."""

    def __init__(self, rows: int = 20) -> None:
        self.rows = rows

    def write(self, output: SparkOutput, version: int) -> None:
        """Print the first rows of one version."""
        from rich.console import Console as Terminal
        from rich.table import Table

        head = output.head(self.rows + 1)
        shown = Table(title=f"batch {version}", title_justify="left")
        for name in head.column_names:
            shown.add_column(name)
        for row in head.slice(0, self.rows).to_pylist():
            shown.add_row(*[str(value) for value in row.values()])
        Terminal().print(shown)
        if head.num_rows > self.rows:
            print(f"only the first {self.rows} rows")


class Files(Sink):
    """Writes each version to a folder `batch=N` of its own, replacing what an earlier attempt left there."""

    def __init__(self, path: str, format: str, mode: str, options: dict[str, str]) -> None:
        self.path, self.format, self.mode, self.options = path.rstrip("/"), format, mode, options

    def write_frame(self, rows: DataFrame, version: int) -> None:
        """Write one version."""
        rows.write.format(self.format).mode(self.mode).options(**self.options).save(f"{self.path}/batch={version}")


class Format(Sink):
    """Writes each version through any data source of Spark that takes batches; as exactly-once as that source is."""

    def __init__(
        self, format: str, mode: str, options: dict[str, str], shape: Callable[[DataFrame], DataFrame]
    ) -> None:
        self.format, self.mode, self.options, self.shape = format, mode, options, shape

    def write_frame(self, rows: DataFrame, version: int) -> None:
        """Write one version."""
        self.shape(rows).write.format(self.format).mode(self.mode).options(**self.options).save()


def memory(name: str = "output") -> Memory:
    """Keep all output in this process; read it with `to_arrow`, `latest` or `to_df`."""
    return Memory(name)


def console(rows: int = 20) -> Console:
    """Print the first rows of every batch."""
    return Console(rows)


def files(path: str, format: str = "parquet", **options: str) -> Files:
    """Write to a folder in any of Spark's file formats, one folder `batch=N` per version; replays replace theirs."""
    return Files(str(path), format, "overwrite", options)


def format(name: str, mode: str = "append", **options: str) -> Format:
    """Write through any batch data source of Spark: `format("noop", mode="overwrite")`, jdbc, delta, ..."""
    return Format(name, mode, options, lambda rows: rows)


def kafka(servers: str, topic: str, key: Sequence[str] = (), **options: str) -> Format:
    """Write to a Kafka topic through Spark's connector, values as JSON, keyed by columns; at least once.

    Needs Spark's Kafka package on the class path (`spark.jars.packages`).
    """

    def shape(rows: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F

        value = F.to_json(F.struct(*[F.col(f"`{name}`") for name in rows.columns])).alias("value")
        if not key:
            return rows.select(value)
        return rows.select(F.to_json(F.struct(*[F.col(f"`{name}`") for name in key])).alias("key"), value)

    return Format("kafka", "append", {"kafka.bootstrap.servers": servers, "topic": topic, **options}, shape)


def sink_of(sink: object) -> Sink:
    """The sink that was given to `start`: one of this module, or a function of a DataFrame and a number."""
    if isinstance(sink, Sink):
        return sink
    if callable(sink):
        return Call(sink)
    raise InvalidOption(
        f"the sink is {type(sink).__name__}; give one of me.sinks (memory, console, files, format, kafka) "
        "or a function of (df, batch_id)"
    )
