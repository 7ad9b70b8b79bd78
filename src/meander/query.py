"""The user's way in: a stream, its key, an operator, and the query that runs.

    query = me.stream(words).key_by("word").count().start(checkpoint="...", sink=me.sinks.memory("counts"))

Everything is checked before anything runs; the work itself is in `meander.spark`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from meander.errors import InvalidOption
from meander.operators.aggregate import Aggregate
from meander.operators.count import Count
from meander.operators.dedup import Dedup
from meander.operators.operator import Stage
from meander.spark.gateway import Gateway
from meander.spark.incoming import BAD, REPORT
from meander.spark.outgoing import SLOT
from meander.spark.pipeline import Step
from meander.spark.running import Query, start
from meander.spark.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["KeyedStream", "Query", "Stream", "stream"]

ALL = "__all"
"""The key column of a stream that has no key: one for all rows."""

Shape = Callable[["DataFrame"], "DataFrame"]


@dataclass(frozen=True)
class Stream:
    """Rows on their way: those of a streaming DataFrame, or the output of operators over it."""

    source: DataFrame
    schema: pa.Schema
    steps: tuple[Step, ...] = ()

    def key_by(self, *key: str | Column) -> KeyedStream:
        """The same rows, cut into bins by these columns; without any, all rows have one key.

        A key is made of integers, strings, binary, dates and timestamps. An expression needs a name:
        `key_by(F.lower("word").alias("word"))`.
        """
        from pyspark.sql import functions as F

        made: dict[str, Column] = {}
        names: list[str] = []
        if not key:
            made[ALL] = F.lit(0)
            names = [ALL]
        for each in key:
            if isinstance(each, str):
                if each not in self.schema.names:
                    have = ", ".join(name for name in self.schema.names)
                    raise InvalidOption(f"there is no column {each!r} to key by; there are: {have}")
                names.append(each)
            else:
                name = _name_of(each)
                made[name] = each
                names.append(name)
        return KeyedStream(self, tuple(names), made)

    def start(
        self,
        checkpoint: str | os.PathLike[str],
        sink: object,
        *,
        workers: int | None = None,
        bins: int = 256,
        trigger: Mapping[str, Any] | None = None,
        name: str | None = None,
        **settings: Any,
    ) -> Query:
        """Start the query; it runs until it is stopped, fails, or its trigger says it is done.

        Args:
            checkpoint: folder or URI for state and progress. Starting again with the same one goes on where it ended.
            sink: one of `me.sinks`, or a function of (df, batch_id).
            workers: how many workers own the bins; by default one for each core of the executors.
            bins: into how many slices the keys are cut, for good; a power of two.
            trigger: as in Spark: `{"processingTime": "1 second"}`, `{"availableNow": True}`.
            name: the query's name, a-z, 0-9, _ and -.
            settings: snapshot_every, retain, fsync, idle_after_s, idle_time, attempts, hand_over_bytes;
                see `meander.spark.settings.Settings`.
        """
        if not self.steps:
            raise InvalidOption("there is nothing to run yet; add .key_by(...) and an operator such as .count()")
        gateway = Gateway(self.source.sparkSession)
        if workers is None:
            workers = max(1, sum(each.cores for each in gateway.executors()))
        try:
            chosen = Settings(str(os.fspath(checkpoint)), workers, bins, name, **settings)
        except TypeError as error:
            unknown = str(error).rpartition(" ")[2]
            known = ", ".join(each for each in Settings.__dataclass_fields__)
            raise InvalidOption(f"start has no option {unknown}; there are: sink, trigger, {known}") from None
        return start(self.source, self.steps, chosen, sink, dict(trigger or {}))

    def _with(self, stage: Stage, shape: Shape) -> Stream:
        output = pa.schema([each for each in stage.output])
        return replace(self, schema=output, steps=(*self.steps, Step(stage, shape)))


@dataclass(frozen=True)
class KeyedStream:
    """Rows cut into bins by their key, waiting for an operator."""

    stream: Stream
    key: tuple[str, ...]
    made: Mapping[str, Column] = field(default_factory=dict)

    def count(self, name: str = "count") -> Stream:
        """How many rows each key has had so far."""
        return self._add(lambda schema: Count(schema, self.key, name), columns=[])

    def aggregate(self, **named: Any) -> Stream:
        """Several aggregates at once: `aggregate(total=("sum", "price"), top=("max", "price"), n="count")`."""
        return self._add(lambda schema: Aggregate(schema, self.key, **named))

    def dedup(self, **options: Any) -> Stream:
        """The first row of every key, once."""
        return self._add(lambda schema: Dedup(schema, self.key, **options))

    def _add(self, build: Callable[[pa.Schema], Stage], columns: Sequence[str] | None = None) -> Stream:
        """Add an operator that reads the key and these columns; None: all of them."""
        schema = self._keyed_schema()
        if columns is not None:
            wanted = {*self.key, *columns}
            schema = pa.schema([each for each in schema if each.name in wanted])
        stage = build(schema)
        made, first = dict(self.made), not self.stream.steps

        def shape(rows: DataFrame) -> DataFrame:
            from pyspark.sql import functions as F

            if made:
                rows = rows.withColumns(made)
            return rows.withColumn(BAD, F.lit(None).cast("string")) if first else rows

        return self.stream._with(stage, shape)

    def _keyed_schema(self) -> pa.Schema:
        from pyspark.sql.pandas.types import to_arrow_schema

        kept = [each for each in self.stream.schema if each.name not in self.made]
        if not self.made:
            return pa.schema(kept)
        from pyspark.sql.pandas.types import from_arrow_schema

        source = self.stream.source
        if self.stream.steps:
            source = source.sparkSession.createDataFrame([], from_arrow_schema(self.stream.schema))
        new = to_arrow_schema(source.select(*[made.alias(name) for name, made in self.made.items()]).schema, timezone="UTC")
        return pa.schema([*kept, *new])


def stream(source: DataFrame) -> Stream:
    """A stream over a streaming DataFrame of any of Spark's sources."""
    from pyspark.sql.pandas.types import to_arrow_schema

    from meander.spark.session import check

    if not getattr(source, "isStreaming", False):
        raise InvalidOption("this is not a streaming DataFrame; make one with spark.readStream")
    check(source.sparkSession)
    taken = {SLOT, REPORT, BAD, ALL} & set(source.columns)
    if taken:
        raise InvalidOption(f"the column name {sorted(taken)[0]!r} is reserved; rename the column")
    return Stream(source, to_arrow_schema(source.schema, timezone="UTC"))


def _name_of(column: Column) -> str:
    """The name an expression was given with `alias`, or that of the plain column it is."""
    described = column._jc.toString()  # type: ignore[attr-defined]
    name = described.rpartition(" AS ")[2].strip("`") if " AS " in described else described
    if not name.isidentifier():
        raise InvalidOption(f"the key expression {described} needs a name: add .alias('...')")
    return str(name)
