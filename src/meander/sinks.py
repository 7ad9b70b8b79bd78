"""Where the output of a query goes.

    me.sinks.memory("counts")                     in this process, for notebooks and tests
    me.sinks.console()                            a few rows of every batch, printed
    me.sinks.files("out/", format="parquet")      any file format of Spark, exactly once
    me.sinks.kafka("host:9092", topic="counts")   through Spark, at least once
    lambda df, batch_id: ...                      a function of your own

A sink takes a version in two steps. `prepare` gets the rows before the version is committed, keeps them out of its
readers' sight and returns a token, which is committed with the version. Then `commit` gets the token and shows the
rows; after a restart it gets the last one again. `undo` hears which versions a rollback has undone. A sink with one
step returns None, and has to cope with a version that comes again, and with one that comes too late, from a driver that
was replaced. See `docs/write-to-a-sink.md`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from meander.engine.driver.ports import SinkToken, SinkWrite
from meander.engine.worker.output import ROWS, OutputForm, is_parquet
from meander.errors import InvalidOption
from meander.logs import logger
from meander.options import whole
from meander.pictures import many
from meander.prepared import OutputFolder, PreparedRows, undo_folders

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from meander.engine.spark.exchange import SparkOutput

CODECS = {"snappy": "snappy", "gzip": "gzip", "zstd": "zstd", "none": "none", "uncompressed": "none"}
"""Spark's names of compressions that workers can write Parquet with, and Arrow's."""

VERSION = pa.field("batch", pa.int64())
"""What the memory sink says beside each row: the number of its version."""


class Sink:
    """Takes the output of every version; of a sink of your own, one that overrides `prepare` alone has one step."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} sink>"

    def form(self, spark: SparkSession, schema: pa.Schema) -> OutputForm:
        """In which form it wants the output of a query that is about to start: rows, but for sinks of this module.

        Args:
            spark: the session of the query.
            schema: the columns of the output.

        Returns:
            The form.
        """
        return ROWS

    def begin(self, spark: SparkSession, schema: pa.Schema) -> None:
        """A query has started whose output comes here; called again when it starts again.

        Args:
            spark: the session of the query.
            schema: the columns of the output.
        """

    def prepare(self, output: SparkOutput, write: SinkWrite) -> SinkToken:
        """Take one version's output, out of its readers' sight; raise, and the version is not committed.

        Args:
            output: the rows, as `output.frame()` or `output.to_arrow()`.
            write: the number of the version, and of the driver that writes it.

        Returns:
            A token in JSON's types that names what is prepared, or None for a sink with one step.

        Raises:
            NotImplementedError: a sink of your own does not say what is to be done.
        """
        raise NotImplementedError

    def commit(self, token: SinkToken) -> None:
        """Show what was prepared; called again after a restart, whether or not it was done.

        Args:
            token: what `prepare` returned.
        """
        reason = "if its process was killed, start once with that sink"
        logger.warning("the last version was prepared for another sink, as %s; %s", token, reason)

    def abort(self, token: SinkToken) -> None:
        """Remove what was prepared; it will not be committed.

        Args:
            token: what `prepare` returned.
        """

    def sweep(self, last: SinkWrite) -> None:
        """Remove what was prepared in writes that are over, and is there still: nobody will commit it.

        Args:
            last: the last write that is committed.
        """

    def undo(self, first: int, last: int, tokens: Sequence[SinkToken]) -> None:
        """Hide versions that a rollback has undone; called at the start after it, and again if that start fails.

        Args:
            first: the first number that is undone.
            last: the last one.
            tokens: what `prepare` returned for them.
        """
        logger.warning("a rollback has undone versions %d to %d, and this sink keeps what it has of them", first, last)


class Call(Sink):
    """Calls a function with every version's rows and number."""

    def __init__(self, function: Callable[[DataFrame, int], Any]) -> None:
        self.function = function

    def prepare(self, output: SparkOutput, write: SinkWrite) -> None:
        """Call the function."""
        self.function(output.frame(), write.version)


class Memory(Sink):
    """Keeps the output of the last versions in this process, for small results; with a name also as a view in SQL."""

    def __init__(self, name: str | None = None, versions: int = 10_000) -> None:
        if name is not None and not re.fullmatch(r"[A-Za-z_]\w*", name):
            raise InvalidOption(
                f"the name of a memory sink is that of a view in Spark's SQL, and {name!r} cannot be one; write "
                "letters, digits and _"
            )
        self.name = name
        self._rows = PreparedRows[pa.Table](whole("versions", versions, 1))
        self._schema = pa.schema([VERSION])
        self._is_shown = False

    def __repr__(self) -> str:
        return f"<Memory sink{f' {self.name}' if self.name else ''}: {many(self.to_arrow().num_rows, 'row')}>"

    def begin(self, spark: SparkSession, schema: pa.Schema) -> None:
        """Let `spark.sql` read it under its name; the rows are those of the moment."""
        from meander.engine.spark.live_view import show_live

        self._schema = pa.schema([VERSION, *schema])
        if self.name is None:
            return
        try:
            before = show_live(spark, self.name, self._schema, self.to_arrow)
        except Exception as problem:
            logger.warning("Spark could not make a view of the memory sink %s: %s", self.name, problem)
            return
        if before == "other":
            logger.warning("there is another view called %s, which stays; read the sink with to_df(spark)", self.name)
        elif before == "live" and not self._is_shown:
            logger.warning("the view %s showed another memory sink; it shows this query from here on", self.name)
        self._is_shown = before != "other"

    def prepare(self, output: SparkOutput, write: SinkWrite) -> SinkToken:
        """Keep one version's output out of sight."""
        return self._rows.prepare(output.to_arrow(), write)

    def commit(self, token: SinkToken) -> None:
        """Show it; what another process has prepared is gone with it."""
        if isinstance(token, str):
            self._rows.commit(token)
        else:
            super().commit(token)

    def abort(self, token: SinkToken) -> None:
        """Forget it."""
        self._rows.abort(token)

    def sweep(self, last: SinkWrite) -> None:
        """Forget what was never committed."""
        self._rows.sweep(last)

    def undo(self, first: int, last: int, tokens: Sequence[SinkToken]) -> None:
        """Forget the versions."""
        self._rows.undo(first, last, tokens)

    def to_arrow(self) -> pa.Table:
        """Everything that is kept, oldest first, with the number of its version as `batch`.

        Returns:
            A table of the columns that the query emits, and `batch`.

        Example:
            >>> me.sinks.memory("counts").to_arrow().column_names
            ['batch']
        """
        tables = [
            rows.add_column(0, VERSION, pa.array([version] * len(rows), VERSION.type))
            for version, rows in self._rows.committed()
        ]
        return pa.concat_tables(tables) if tables else self._schema.empty_table()

    def latest(self, *key: str) -> list[dict[str, Any]]:
        """The last row that was emitted for every key.

        Args:
            key: the columns of the key.

        Returns:
            The rows, as dictionaries.

        Example:
            >>> me.sinks.memory("counts").latest("word")
            []
        """
        rows: dict[tuple[Any, ...], dict[str, Any]] = {}
        for row in self.to_arrow().to_pylist():
            row.pop("batch")
            rows[tuple(row[name] for name in key)] = row
        return list(rows.values())

    def to_df(self, spark: SparkSession) -> DataFrame:
        """Everything that is kept now, as a DataFrame.

        Args:
            spark: the session.

        Returns:
            The rows, with the number of their version as `batch`.

        Example:
            >>> me.sinks.memory().to_df(spark).columns
            ['batch']
        """
        return spark.createDataFrame(self.to_arrow().combine_chunks())


class Console(Sink):
    """Prints some rows of every version."""

    def __init__(self, rows: int = 20) -> None:
        self.rows = rows

    def prepare(self, output: SparkOutput, write: SinkWrite) -> None:
        """Print the first rows of one version."""
        from rich.console import Console as Terminal
        from rich.table import Table

        head = output.head(self.rows + 1)
        shown = Table(title=f"batch {write.version}", title_justify="left")
        for name in head.column_names:
            shown.add_column(name)
        for row in head.slice(0, self.rows).to_pylist():
            shown.add_row(*[str(value) for value in row.values()])
        Terminal().print(shown)
        if head.num_rows > self.rows:
            print("only the first row is shown" if self.rows == 1 else f"only the first {self.rows} rows are shown")


class Files(Sink):
    """Writes each version out of sight, and renames it to a folder `batch=N` when it is committed.

    Workers write Parquet themselves; other formats, and Parquet with options of Spark's writer, are a job of Spark.
    """

    def __init__(self, path: str, format: str, options: dict[str, str]) -> None:
        self.folder, self.format, self.options = OutputFolder.of(path), format, options

    def __repr__(self) -> str:
        return f"<Files sink {self.folder.root}: {self.format}>"

    def form(self, spark: SparkSession, schema: pa.Schema) -> OutputForm:
        """Parquet that workers write, where that is the same as what Spark would write."""
        options = {name.lower(): value for name, value in self.options.items()}
        name = options.pop("compression", spark.conf.get("spark.sql.parquet.compression.codec", "snappy"))
        codec = CODECS.get(str(name).lower())
        if self.format.lower() != "parquet" or options or codec is None:
            return ROWS
        has_twins = len({name.lower() for name in schema.names}) < len(schema.names)
        is_plain = not has_twins and all(is_parquet(each.type) for each in schema)
        return OutputForm(folder=str(self.folder.hidden), compression=codec) if is_plain else ROWS

    def prepare(self, output: SparkOutput, write: SinkWrite) -> SinkToken:
        """Write one version out of sight."""
        return self.folder.prepare(write, lambda folder: self.save(output, folder, write))

    def save(self, output: SparkOutput, folder: Path, write: SinkWrite) -> None:
        """Fill the new folder of a version: with what workers have written, or by a job of Spark."""
        form = output.form
        if form.folder is None:
            output.frame().write.format(self.format).options(**self.options).save(f"file://{folder}")
            return
        files = [path for path, _ in output.files]
        self.folder.take(write, files, folder)
        if output.inline or not files:  # a version without rows says which columns it has
            form.write_part(output.part, folder, f"{write.epoch}-{write.version}", write.fsync)
        (folder / "_SUCCESS").touch()

    def commit(self, token: SinkToken) -> None:
        """Show a version; also one that was prepared in another folder, before this one took its place."""
        if isinstance(token, dict):
            OutputFolder(token["folder"]).commit(token)
        else:
            super().commit(token)

    def abort(self, token: SinkToken) -> None:
        """Remove a version that will not be committed."""
        OutputFolder(token["folder"]).abort(token)

    def sweep(self, last: SinkWrite) -> None:
        """Remove what was never committed."""
        self.folder.sweep(last)

    def undo(self, first: int, last: int, tokens: Sequence[SinkToken]) -> None:
        """Move the versions to `.undone`, where readers do not look."""
        undo_folders(tokens)


class Format(Sink):
    """Writes each version through any data source of Spark that takes batches; as exactly-once as that source is."""

    def __init__(
        self, format: str, mode: str, options: dict[str, str], shape: Callable[[DataFrame], DataFrame]
    ) -> None:
        self.format, self.mode, self.options, self.shape = format, mode, options, shape

    def __repr__(self) -> str:
        return f"<Format sink {self.format}: {self.mode}>"

    def form(self, spark: SparkSession, schema: pa.Schema) -> OutputForm:
        """Not at all, where Spark's `noop` would drop it; else as rows."""
        return OutputForm(is_nothing=self.format == "noop")

    def prepare(self, output: SparkOutput, write: SinkWrite) -> None:
        """Write one version."""
        if output.form.is_nothing:
            return
        self.shape(output.frame()).write.format(self.format).mode(self.mode).options(**self.options).save()


def memory(name: str | None = None, versions: int = 10_000) -> Memory:
    """Keep the output of the last versions in this process; read it with `to_arrow`, `latest`, `to_df`, or as SQL.

    Args:
        name: a temporary view of the session that the query runs in: `spark.sql("select * from counts")` reads the
            rows that are committed when it is called, with the number of their version as `batch`. The view stays when
            the query has ended.
        versions: the output of so many versions is kept.

    Returns:
        The sink, to be given to `start` and to be read.

    Raises:
        InvalidOption: the name cannot be that of a view.

    Example:
        >>> import meander as me
        >>> counts = me.sinks.memory("counts", versions=100)
        >>> counts.to_arrow().num_rows
        0
    """
    return Memory(name, versions)


def console(rows: int = 20) -> Console:
    """Print the first rows of every version.

    Args:
        rows: how many.

    Returns:
        The sink, to be given to `start`.

    Example:
        >>> me.sinks.console(rows=5).rows
        5
    """
    return Console(rows)


def files(path: str, format: str = "parquet", **options: str) -> Files:
    """Write to a folder in any of Spark's file formats, exactly once.

    Args:
        path: the folder; each version appears in it at once, as a folder `batch=N`.
        format: parquet, json, csv, orc, ..
        options: what Spark's writer of that format takes, such as `compression="zstd"`.

    Returns:
        The sink, to be given to `start`.

    Raises:
        InvalidOption: the folder is neither local nor mounted.

    Example:
        >>> me.sinks.files(folder / "out", format="json").format
        'json'
    """
    return Files(str(path), format, options)


def format(name: str, mode: str = "append", **options: str) -> Format:
    """Write through any batch data source of Spark; as exactly-once as that source is.

    Args:
        name: noop, jdbc, delta, ..
        mode: append, or overwrite.
        options: what the source takes.

    Returns:
        The sink, to be given to `start`.

    Example:
        >>> me.sinks.format("noop", mode="overwrite").mode
        'overwrite'
    """
    return Format(name, mode, options, lambda rows: rows)


def kafka(servers: str, topic: str, key: Sequence[str] = (), **options: str) -> Format:
    """Write to a Kafka topic through Spark's connector, values as JSON; at least once.

    Needs Spark's Kafka package on the class path (`spark.jars.packages`).

    Args:
        servers: the brokers, as in "host:9092".
        topic: where to.
        key: the columns of the messages' keys; by default they have none.
        options: what Spark's connector takes.

    Returns:
        The sink, to be given to `start`.

    Example:
        >>> me.sinks.kafka("host:9092", topic="counts", key=["word"]).format
        'kafka'
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
