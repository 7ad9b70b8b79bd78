"""Running a query's job where new workers will be, on rows without meaning, so that their first batch is not slow."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from meander.engine.driver.ports import Job, Jobs, Place, Routing
from meander.engine.worker.messages import Control, Token

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

logger = logging.getLogger("meander")

TIMES = 2
"""Spark's JVM loads most of its classes at the first time, and has compiled the warmest at the second."""

ROWS = 64


def rehearse(jobs: Jobs, operators: int, places: Sequence[Place], bins: int) -> None:
    """Take a query's job through all its operators on each of these executors, touching no state.

    Its rows are null in every column. An expression of the user that does not bear that costs the rehearsal, no more.
    """
    none = np.zeros(bins, np.bool_)
    routings = tuple(Routing(at, (0,) * bins, 1) for at in range(operators))
    for place in places:
        controls = tuple(
            (
                Control(
                    query="", token=Token(0, 0, 0), operator=at, worker=0, slot=0, place=place.process, directory="",
                    checkpoint="", bins=bins, owned=none, held=none, loadable=none, rehearsal=True,
                ),
            )
            for at in range(operators)
        )  # fmt: skip
        try:
            for _ in range(TIMES):
                job = Job("meander-rehearsal", routings, controls, (place,), False)
                jobs.run(_nulls(jobs.nothing()), job)
        except Exception as problem:
            logger.info("executor %s could not rehearse: %s", place.executor, str(problem).splitlines()[0])


def _nulls(nothing: DataFrame) -> DataFrame:
    """Some rows in the schema of these, null in every column."""
    from pyspark.sql import functions as F

    columns = [F.lit(None).cast(field.dataType).alias(field.name) for field in nothing.schema]
    return nothing.sparkSession.range(0, ROWS, 1, 1).select(*columns)
