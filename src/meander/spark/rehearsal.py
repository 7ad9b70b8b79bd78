"""Running a query's job without rows where new workers will sit, so that their first batch is not slow."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from meander.spark.messages import Control, packed
from meander.spark.pipeline import Attempt, Pipeline
from meander.spark.places import Place
from meander.types import WorkerId

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame

TIMES = 2
"""Spark's JVM loads most of its classes at the first time, and has compiled the warmest at the second."""


def rehearse(pipeline: Pipeline, rows: DataFrame, places: Sequence[Place], bins: int) -> None:
    """Take the query's job through all its stages on these executors, touching no state."""
    seated = {WorkerId(at): place for at, place in enumerate(places)}
    none = packed(np.zeros(bins, np.bool_))

    def control(stage: int, wave: tuple[int, int]) -> list[Control]:
        return [
            Control(
                query="",
                token=(0, 0, 0),
                stage=stage,
                worker=worker,
                slot=worker,
                place=place.process,
                directory="",
                checkpoint="",
                bins=bins,
                owned=none,
                rehearsal=True,
                wave=wave,
            )
            for worker, place in seated.items()
        ]

    apart = Pipeline(pipeline.gateway, pipeline.steps)
    for _ in range(TIMES):
        apart.run(rows, Attempt([[0] * bins for _ in pipeline.steps], len(places), control, seated, False, None))
