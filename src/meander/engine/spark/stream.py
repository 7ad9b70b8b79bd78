"""What Spark calls for every batch, as the driver's port `Stream`."""

from __future__ import annotations

import json
import logging
import time
from typing import TYPE_CHECKING

from meander.engine.driver.attempts import Stopped
from meander.engine.driver.driver import Driver
from meander.engine.spark.backlog import rows_behind
from meander.engine.spark.losses import in_short
from meander.errors import QueryFailed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

logger = logging.getLogger("meander")

STOP_WAIT_S = 0.5
"""Spark takes the end of a batch for an interruption only after it was told to stop."""

INTERRUPTION = (
    "py4j.protocol.Py4JJavaError: An error occurred while calling stop\n: java.lang.InterruptedException: stop"
)
"""Spark tells an interruption from a failure by the text of the error, and this is what it looks for."""


class Interrupted(Exception):
    """The batch is left to the next start."""

    def __init__(self) -> None:
        super().__init__(INTERRUPTION)


class SparkBatches:
    """The function that Spark calls with every batch."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver

    def __call__(self, rows: DataFrame, batch: int) -> None:
        """Process one of Spark's batches."""
        rows.sparkSession.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "1000000")
        try:
            self.driver.loop.process(rows, batch)
        except Stopped:
            time.sleep(STOP_WAIT_S)
            raise Interrupted from None
        except Exception as problem:
            # Spark parses long messages of failures with a regex that overflows its stack.
            raise QueryFailed(str(problem).splitlines()[0][:300]) from None


class SparkStream:
    """A started query of Structured Streaming whose batches go to a driver."""

    def __init__(self, inner: StreamingQuery, session: SparkSession) -> None:
        self.inner, self.session = inner, session
        self.companions: set[str] = set()
        """Ids of other streams that belong to this query: its control stream."""

    @property
    def id(self) -> str:
        """Spark's id of the query; the same after a restart."""
        return str(self.inner.id)

    @property
    def is_active(self) -> bool:
        """Whether batches may still come."""
        return bool(self.inner.isActive)

    @property
    def is_quiet(self) -> bool:
        """Whether Spark has nothing to do."""
        status = self.inner.status
        return not status["isTriggerActive"] and not status["isDataAvailable"]

    @property
    def is_shared(self) -> bool:
        """Whether other streams run on the same executors."""
        mine = {self.id, *self.companions}
        return any(str(each.id) not in mine for each in self.session.streams.active)

    def rows_behind(self) -> int:
        """How far the sources are ahead; what goes wrong with asking must not hurt the batch."""
        try:
            progress = self.inner.lastProgress
            return 0 if progress is None else rows_behind(json.loads(progress.json))
        except Exception:
            logger.debug("the sources did not tell how far they are", exc_info=True)
            return 0

    def process_all_available(self) -> None:
        """Wait until everything that is in the source now has been processed."""
        self.inner.processAllAvailable()

    def wait(self, timeout_s: float) -> None:
        """Wait until it has ended, for so long at most."""
        self.inner.awaitTermination(timeout_s)  # type: ignore[arg-type]

    def failure(self) -> Exception | None:
        """What Spark says that it has failed of."""
        problem = self.inner.exception()
        return None if problem is None else QueryFailed(in_short(problem))

    def stop(self) -> None:
        """Bring no more batches."""
        self.inner.stop()
