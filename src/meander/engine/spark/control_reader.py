"""Reads the control stream of a query beside it, from any streaming DataFrame of (batch, bin, worker)."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from meander.engine.driver.run import QueryRun
from meander.errors import InvalidOption
from meander.migration.control_stream import COLUMNS, ControlStream

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

FOLDER = "control"
LOOK_EVERY_S = 0.05


def check(control: DataFrame) -> None:
    """Refuse a DataFrame that cannot be a control stream."""
    if not getattr(control, "isStreaming", False):
        raise InvalidOption("control is not a streaming DataFrame; make one with spark.readStream")
    whole = {"tinyint", "smallint", "int", "bigint"}
    types = dict(control.dtypes)
    wrong = [name for name in COLUMNS if types.get(name) not in whole]
    if wrong or types.get("operator", "int") not in whole:
        raise InvalidOption(
            f"control needs the columns {', '.join(COLUMNS)}, and may have operator, all of them whole numbers; it has "
            f"{', '.join(f'{name} {kind}' for name, kind in types.items())}"
        )


class ControlReader:
    """Brings the rows of a control stream to the driver."""

    def __init__(self, run: QueryRun, control: DataFrame) -> None:
        self._run = run
        folder = f"{run.driver.log.location.uri}/{FOLDER}"
        self._inner: StreamingQuery = (
            control.writeStream.foreachBatch(self._take).option("checkpointLocation", folder).start()
        )

    @property
    def id(self) -> str:
        """Spark's id of the stream."""
        return str(self._inner.id)

    def stop(self) -> None:
        """Read no more."""
        self._inner.stop()

    def _take(self, rows: DataFrame, _: int) -> None:
        """Take over some rows; returns when they are in the journal, so that they are not read again."""
        control = [row.asDict() for row in rows.collect()]
        driver = self._run.driver
        loop = driver.loop
        cores = None if driver.cluster.is_local else sum(place.cores for place in driver.cluster.executors())
        with loop.lock:
            taker = ControlStream(driver.coordinator, driver.settings.budget)
            if loop.stopping or not taker.take(control, cores):
                return
            version = loop.version
        while loop.version == version and not loop.stopping and loop.failure is None:
            time.sleep(LOOK_EVERY_S)
