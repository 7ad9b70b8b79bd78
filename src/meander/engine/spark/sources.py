"""Several sources of one query as one stream, since Spark brings its batches as one DataFrame, and back again.

Each row has the number of its source, and the columns of all sources, which are null but for its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

NUMBER = "__source"
"""The column that says which source a row is of."""


def one_stream(sources: Sequence[DataFrame]) -> DataFrame:
    """The rows of all sources; of a single one, they are as they are."""
    from pyspark.sql import functions as F

    if len(sources) == 1:
        return sources[0]
    frames = []
    for number, source in enumerate(sources):
        columns = [F.lit(number).alias(NUMBER)]
        for at, each in enumerate(sources):
            for field in each.schema:
                value = F.col(f"`{field.name}`") if at == number else F.lit(None).cast(field.dataType)
                columns.append(value.alias(_name(at, field.name)))
        frames.append(source.select(*columns))
    return reduce(lambda one, other: one.unionAll(other), frames)


def rows_of(batch: DataFrame, number: int, sources: Sequence[DataFrame]) -> DataFrame:
    """The rows of one source in a batch of the stream that `one_stream` makes, in its own columns."""
    from pyspark.sql import functions as F

    if len(sources) == 1:
        return batch
    columns = [F.col(f"`{_name(number, name)}`").alias(name) for name in sources[number].columns]
    return batch.where(F.col(NUMBER) == F.lit(number)).select(*columns)


def _name(number: int, column: str) -> str:
    return f"{number}.{column}"
