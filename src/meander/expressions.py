"""Spark's expressions in a stream: their names and types, checked by Spark before anything runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from meander.engine.spark.gateway import Gateway
from meander.engine.spark.jobs import in_short
from meander.engine.spark.nodes import Shape, of_rows
from meander.engine.worker.rows import BAD, REPORT, SLOT
from meander.errors import InvalidOption
from meander.operators.operator import ALL, listing
from meander.options import kind
from meander.sources import RowSource, undecoded_column

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

RESERVED = frozenset({SLOT, REPORT, BAD, ALL})


def is_column(value: object) -> bool:
    """Whether a value is an expression of Spark, without importing it."""
    return any(each.__name__ == "Column" and each.__module__.startswith("pyspark.sql") for each in type(value).__mro__)


def name_of(column: Column, what: str) -> str:
    """The name an expression was given with `alias`, or that of the plain column it is."""
    described = str(column).removeprefix("Column<'").removesuffix("'>")
    name = described.rpartition(" AS ")[2].strip("`")
    if not name.isidentifier():
        raise InvalidOption(f"the {what} expression {described} needs a name: add .alias('...')")
    return name


def literal(value: int) -> Column:
    """A constant, as an expression."""
    from pyspark.sql import functions as F

    return F.lit(value)


def apart(named: Mapping[str, Any], source: DataFrame | RowSource) -> tuple[dict[str, Column], dict[str, Any]]:
    """The expressions that aggregates take, as columns to compute first, and the aggregates of these columns."""
    computed: dict[str, Column] = {}
    plain = dict(named)
    for name, wanted in named.items():
        if is_column(wanted):
            raise InvalidOption(
                f"the aggregate {name!r} is an expression of Spark; write its function and what it takes as a pair: "
                f'{name}=("sum", F.col("price") * 2)'
            )
        if isinstance(wanted, tuple | list) and len(wanted) > 1 and is_column(wanted[1]):
            if isinstance(source, RowSource):
                raise InvalidOption(
                    f"the aggregate {name!r} takes an expression of Spark; in a test without Spark, aggregate a column"
                )
            computed[f"{name}.of"] = wanted[1]
            plain[name] = (wanted[0], f"{name}.of", *wanted[2:])
    return computed, plain


class Rows:
    """The rows of a source, or those that an operator emits: what expressions over them are."""

    def __init__(self, source: DataFrame | RowSource, schema: pa.Schema, emitted: bool) -> None:
        self.source, self.schema, self.emitted = source, schema, emitted

    def with_columns(self, columns: Mapping[str, Any], what: str) -> pa.Schema:
        """The columns of the rows and these, which replace those of the same name."""
        from pyspark.sql.pandas.types import to_arrow_schema

        kept = [each for each in self.schema if each.name not in columns]
        aside = REPORT if self.emitted else None
        computed = {name: of_rows(column, aside) for name, column in columns.items()}
        new = self._checked(what, lambda frame: frame.withColumns(computed).select(*map(_quoted, columns)))
        return pa.schema([*kept, *to_arrow_schema(new.schema, timezone="UTC")])

    def selection(self, columns: Mapping[str, Column | None]) -> Shape:
        """The shape of rows that have these columns."""
        for name in columns:
            if name in RESERVED:
                raise InvalidOption(f"the column name {name!r} is reserved; choose another")
            if columns[name] is None and name not in self.schema.names:
                raise InvalidOption(f"there is no column {name!r} to select; there are: {listing(self.schema.names)}")
            if columns[name] is not None and isinstance(self.source, RowSource):
                raise InvalidOption(
                    f"the column {name!r} is an expression of Spark; in a test without Spark, select columns by name"
                )
        if not columns:
            raise InvalidOption('nothing is selected; name columns as in select("user", "price")')
        return Shape(columns=columns)

    def condition(self, condition: Any) -> Shape:
        """The shape of the rows for which a condition holds."""
        if isinstance(self.source, RowSource):
            raise InvalidOption(
                "where takes an expression of Spark, and a test without Spark has none; filter the rows it feeds"
            )
        if isinstance(condition, str):
            from pyspark.sql import functions as F

            condition = F.expr(condition)
        if not is_column(condition):
            raise InvalidOption(f'where is {kind(condition)}; give an expression such as F.col("price") > 5')
        return Shape(condition=condition)

    def after(self, shape: Shape, what: str) -> tuple[DataFrame | RowSource, pa.Schema]:
        """The source and the columns after a shape, which Spark has checked; what an operator emits stays behind it."""
        if shape.names is not None and (self.emitted or isinstance(self.source, RowSource)):
            return self.source, pa.schema([self.schema.field(name) for name in shape.names])
        from pyspark.sql.pandas.types import to_arrow_schema

        aside = REPORT if self.emitted else undecoded_column(self.source)
        new = self._checked(what, lambda frame: shape.applied(frame, aside))
        schema = to_arrow_schema(new.schema, timezone="UTC")
        return (self.source if self.emitted else new), pa.schema([each for each in schema if each.name != aside])

    def _checked(self, what: str, change: Callable[[DataFrame], DataFrame]) -> DataFrame:
        """The rows after a change; refuses what Spark refuses, of streams as of tables."""
        frame = self._frame()
        try:
            new = change(frame)
            Gateway(frame.sparkSession).check_streaming(new)
        except InvalidOption:
            raise
        except Exception as problem:
            raise InvalidOption(f"Spark refuses {what}: {in_short(problem)}") from problem
        return new

    def _frame(self) -> DataFrame:
        """A stream with these columns; of what an operator emits there is none, and nulls stand for it."""
        assert not isinstance(self.source, RowSource)
        if not self.emitted:
            return self.source
        from pyspark.sql import functions as F
        from pyspark.sql.pandas.types import from_arrow_schema

        nulls = [F.lit(None).cast(each.dataType).alias(each.name) for each in from_arrow_schema(self.schema)]
        nulls.append(F.lit(None).cast("string").alias(REPORT))
        return self.source.sparkSession.readStream.format("rate").load().select(*nulls)


def _quoted(name: str) -> str:
    return f"`{name}`"
