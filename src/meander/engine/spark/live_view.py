"""A temporary view over rows in this process: Spark asks for them anew whenever a query over the view is planned.

Spark sees a table of its second data source API whose scan is local, so that the rows are read in the driver, and by
no job. Nothing is copied when rows come, however many there are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from meander.engine.spark.gateway import Gateway

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CONNECTOR = "org.apache.spark.sql.connector"
KIND = "rows in memory of"
"""What the plan of such a view says; nobody else's does."""


def show_live(
    spark: SparkSession, view: str, schema: pa.Schema, read: Callable[[], pa.Table]
) -> Literal["nothing", "live", "other"]:
    """Register a view under this name, and return what was there before: nothing, such a view, or another one.

    Another one stays, and nothing is registered. `read` gives the rows of the moment, in the schema.
    """
    gateway = Gateway(spark)
    before = gateway.plan_of_view(view)
    if before is not None and f"{KIND} {view}" not in before:
        return "other"
    gateway.show_table(LiveTable(gateway, view, schema, read), view)
    return "nothing" if before is None else "live"


class LiveTable:
    """What Spark calls: a table, how to scan it, and the scan. py4j knows no default methods, so all are here."""

    class Java:
        """The interfaces that it is."""

        implements = (
            f"{CONNECTOR}.catalog.SupportsRead",
            f"{CONNECTOR}.read.ScanBuilder",
            f"{CONNECTOR}.read.LocalScan",
        )

    def __init__(self, gateway: Gateway, view: str, schema: pa.Schema, read: Callable[[], pa.Table]) -> None:
        from pyspark.sql.pandas.types import from_arrow_schema

        self._gateway, self._view, self._columns, self._read = gateway, view, schema, read
        self._type = from_arrow_schema(schema)
        self._struct = gateway.struct(self._type)

    def rows(self) -> Any:
        """Its rows now."""
        rows = self._read().cast(self._columns).combine_chunks()
        return self._gateway.rows_inside(self._gateway.spark.createDataFrame(rows, self._type))

    def name(self) -> str:
        """What plans call it."""
        return f"{KIND} {self._view}"

    def schema(self) -> Any:
        """Its columns, as the scan has them."""
        return self._struct

    def columns(self) -> Any:
        """Its columns, as the table has them."""
        return self._gateway.table_columns(self._struct)

    def capabilities(self) -> Any:
        """It can be read in a batch."""
        return self._gateway.table_capabilities()

    def partitioning(self) -> Any:
        """None."""
        return self._gateway.array_of(self._gateway.connector.expressions.Transform, 0)

    def constraints(self) -> Any:
        """None."""
        return self._gateway.array_of(self._gateway.connector.catalog.constraints.Constraint, 0)

    def properties(self) -> Any:
        """None."""
        return self._gateway.no_properties()

    def version(self) -> None:
        """Unknown."""

    def scan(self, *_: object) -> LiveTable:
        """What reads it."""
        return self

    def is_same(self, other: object) -> bool:
        """Whether another one is this one."""
        return self is other

    def number(self) -> int:
        """One that others hardly have."""
        return hash(id(self)) % (1 << 31)

    # As Java calls them.
    readSchema, newScanBuilder, build, id = schema, scan, scan, version  # noqa: N815
    toString = description = name  # noqa: N815
    hashCode, equals = number, is_same  # noqa: N815
