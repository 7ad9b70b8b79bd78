"""Where the rows of a stream come from: a streaming DataFrame of Spark, or a schema alone, whose rows a test brings.

Two inputs of one operator are one source: rows in the columns of both, null in those of the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from meander.engine.worker.links import in_columns_of_both
from meander.engine.worker.rows import BAD, REPORT, SLOT
from meander.errors import InvalidOption
from meander.operators.custom import SIDE, SIDES
from meander.operators.operator import ALL
from meander.sessions import check

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

UNDECODED = "__undecoded"
"""Why the reader of one of two inputs could not decode a row."""


@dataclass(frozen=True, eq=False)
class RowSource:
    """Rows of these columns, brought by a test. Each is a source of its own, whatever its columns."""

    schema: pa.Schema


@dataclass(frozen=True, eq=False)
class UnionSource(RowSource):
    """Rows of two sources that have the same columns."""

    sources: tuple[RowSource, RowSource]


@dataclass(frozen=True, eq=False)
class PairSource(RowSource):
    """Rows of two inputs in the columns of both, null in those of the other; the key beside them.

    Args:
        schema: the columns of both, as an operator with two inputs takes them.
        sides: the columns of each input.
        keys: the key columns of each input, in the same order.
        sources: where the rows of each come from.
    """

    sides: tuple[pa.Schema, pa.Schema]
    keys: tuple[tuple[str, ...], tuple[str, ...]]
    sources: tuple[RowSource, RowSource]

    def rows(self, inputs: Sequence[pa.Table | None]) -> pa.Table:
        """The rows of both inputs as one table."""
        tables = [self._side(side, rows) for side, rows in enumerate(inputs) if rows is not None]
        return pa.concat_tables(tables) if tables else self._side(0, self.sides[0].empty_table())

    def _side(self, side: int, rows: pa.Table) -> pa.Table:
        rows = rows.select(self.sides[side].names).cast(self.sides[side])
        pair = in_columns_of_both(rows, side, self.schema)
        for mine, own in zip(self.keys[0], self.keys[side], strict=True):
            pair = pair.append_column(mine, rows[own])
        return pair


def schema_of(source: DataFrame | RowSource) -> pa.Schema:
    """The columns of a source; refuses one that cannot be streamed, or has names that we need."""
    if isinstance(source, RowSource):
        return source.schema
    from pyspark.sql.pandas.types import to_arrow_schema

    if not getattr(source, "isStreaming", False):
        raise InvalidOption("this is not a streaming DataFrame; make one with spark.readStream")
    check(source.sparkSession)
    taken = {SLOT, REPORT, BAD, ALL} & set(source.columns)
    if taken:
        raise InvalidOption(f"the column name {sorted(taken)[0]!r} is reserved; rename the column")
    schema = to_arrow_schema(source.schema, timezone="UTC")
    return pa.schema([each for each in schema if each.name != _corrupt(source)])


def as_side(
    source: DataFrame | RowSource,
    computed: Mapping[str, Column],
    side: int,
    schemas: Sequence[pa.Schema],
    reasons: Sequence[Column | None],
) -> DataFrame:
    """The rows of one of two inputs in the columns of both, null in those of the other.

    Args:
        source: the rows.
        computed: columns that have to be computed first.
        side: 0 for the left input, 1 for the right.
        schemas: the columns of each input.
        reasons: for each input why a row cannot be used, None where its reader does not tell.
    """
    from pyspark.sql import functions as F
    from pyspark.sql.pandas.types import from_arrow_schema

    assert not isinstance(source, RowSource), "two sources of one kind"
    rows = source.withColumns(dict(computed)) if computed else source
    columns = [F.lit(side).cast("int").alias(SIDE)]
    for at, (name, schema) in enumerate(zip(SIDES, schemas, strict=True)):
        for each in from_arrow_schema(schema):
            value = F.col(f"`{each.name}`") if at == side else F.lit(None).cast(each.dataType)
            columns.append(value.alias(f"{name}.{each.name}"))
    if any(reason is not None for reason in reasons):
        mine = reasons[side]
        columns.append((F.lit(None).cast("string") if mine is None else mine).alias(UNDECODED))
    return rows.select(*columns)


def _corrupt(source: DataFrame) -> str:
    """The name of the column in which Spark's readers of JSON and CSV put text that they could not decode."""
    return str(source.sparkSession.conf.get("spark.sql.columnNameOfCorruptRecord"))


def undecoded_column(source: DataFrame | RowSource) -> str | None:
    """The column that is not null in rows that could not be decoded; None where the reader does not tell."""
    if isinstance(source, RowSource):
        return None
    column = _corrupt(source)
    return column if column in source.columns else None


def undecoded(source: DataFrame | RowSource) -> Column | None:
    """Why a row of this source cannot be used; None where its reader does not tell."""
    column = undecoded_column(source)
    if column is None:
        return None
    from pyspark.sql import functions as F

    text = F.col(f"`{column}`")
    return F.when(text.isNotNull(), F.concat(F.lit("the row could not be decoded: "), F.substring(text, 1, 1000)))


def check_of_one_kind(first: DataFrame | RowSource, second: DataFrame | RowSource) -> None:
    """Refuse to bring together what Spark reads and what a test brings."""
    if isinstance(first, RowSource) != isinstance(second, RowSource):
        raise InvalidOption("one source is a DataFrame of Spark and the other a schema alone; take two of one kind")


def united(first: Any, second: Any, schema: pa.Schema) -> DataFrame | RowSource:
    """The rows of two sources of one kind that have the same columns."""
    if isinstance(first, RowSource) and isinstance(second, RowSource):
        return UnionSource(schema, (first, second))
    # What only one of them has is where its reader puts text that it could not decode.
    frame: DataFrame = first.unionByName(second, allowMissingColumns=True)
    return frame
