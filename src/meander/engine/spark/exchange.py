"""Rows to the worker that owns their bin: hash, lookup and shuffle in the JVM, no Python.

bin  = the high bits of xxhash64(key columns)          the same in NumPy: `meander.route`
slot = one array literal, looked up at the bin         dense 0..n-1; worker ids travel in the control message
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from meander.engine.spark.gateway import Gateway
from meander.engine.worker.rows import REPORT, SLOT

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


def bin_of(key: Sequence[str | Column], bins: int) -> Column:
    """The bin of a row, as a Spark expression of its key's columns or of expressions for them."""
    from pyspark.sql import functions as F

    if bins == 1:
        return F.lit(0)
    columns = [F.col(f"`{each}`") if isinstance(each, str) else each for each in key]
    return F.shiftrightunsigned(F.xxhash64(*columns), 64 - (bins.bit_length() - 1)).cast("int")


class RowRouting:
    """The assignment of one operator as Spark sees it: which slot a bin goes to."""

    def __init__(self, gateway: Gateway, key: Sequence[str], slots: Sequence[int], count: int) -> None:
        self.key, self.bins, self.count = tuple(key), len(slots), count
        self.table = gateway.array(slots)

    def route(self, rows: DataFrame, columns: Sequence[str]) -> DataFrame:
        """These columns, each row in the partition of its slot; reports of an earlier operator stay in theirs.

        Few calls, because each makes Spark analyse a plan anew.
        """
        from pyspark.sql import functions as F

        slot = F.get(self.table, bin_of(self.key, self.bins))
        if REPORT in columns:
            slot = F.when(F.col(REPORT).isNotNull(), F.col(SLOT) % self.count).otherwise(slot)
        quoted = [F.col(f"`{name}`") for name in columns]
        return rows.select(*quoted, slot.alias(SLOT)).repartitionById(self.count, F.col(SLOT)).drop(SLOT)
