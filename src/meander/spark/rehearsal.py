"""Running a query's job where new workers will sit, on rows without meaning, so that their first batch is not slow."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from meander.spark.messages import Control, packed
from meander.spark.pipeline import Attempt, Pipeline
from meander.spark.places import Place
from meander.types import WorkerId

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

logger = logging.getLogger("meander")

TIMES = 2
"""Spark's JVM loads most of its classes at the first time, and has compiled the warmest at the second."""

ROWS = 64


def rehearse(pipeline: Pipeline, nothing: DataFrame, places: Sequence[Place], bins: int) -> None:
    """Take the query's job through all its stages on each of these executors, touching no state.

    Its rows are null in every column. An expression of the user that does not bear that costs the rehearsal, no more.
    """
    apart = Pipeline(pipeline.gateway, pipeline.steps)
    none = packed(np.zeros(bins, np.bool_))
    slots = [[0] * bins for _ in pipeline.steps]
    worker = WorkerId(0)
    for place in places:

        def control(stage: int, wave: tuple[int, int], process: str = place.process) -> list[Control]:
            return [
                Control(
                    query="", token=(0, 0, 0), stage=stage, worker=worker, slot=0, place=process, directory="",
                    checkpoint="", bins=bins, owned=none, rehearsal=True, wave=wave,
                )
            ]  # fmt: skip

        try:
            for _ in range(TIMES):
                apart.run(_nulls(nothing), Attempt(slots, 1, control, {worker: place}, False, None))
        except Exception as problem:
            logger.info("executor %s could not rehearse: %s", place.executor, str(problem).splitlines()[0])


def _nulls(nothing: DataFrame) -> DataFrame:
    """Some rows in the schema of these, null in every column."""
    from pyspark.sql import functions as F

    columns = [F.lit(None).cast(field.dataType).alias(field.name) for field in nothing.schema]
    return nothing.sparkSession.range(0, ROWS, 1, 1).select(*columns)
