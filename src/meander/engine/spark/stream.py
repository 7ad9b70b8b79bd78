"""Spark's streams: the batches of a query, as the driver's port `BatchStream`, and the rows of its control stream."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from meander.engine.driver.attempts import Stopped
from meander.engine.driver.driver import Driver
from meander.engine.driver.run import QueryRun
from meander.engine.spark.jobs import in_short
from meander.errors import InvalidOption, QueryFailed
from meander.logs import logger
from meander.migration.control_stream import COLUMNS, ControlStream
from meander.store.spark_logs import Durability, drop_torn

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

STOP_WAIT_S = 0.5
"""Spark takes the end of a batch for an interruption only after it was told to stop."""

INTERRUPTION = (
    "py4j.protocol.Py4JJavaError: An error occurred while calling stop\n: java.lang.InterruptedException: stop"
)
"""Spark tells an interruption from a failure by the text of the error, and this is what it looks for."""

CONTROL_FOLDER = "control"
LOOK_EVERY_S = 0.05


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
        self.id = str(inner.id)
        """Spark's id of the query; the same after a restart."""

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
        """Whether other streams run on the same executors; its own control stream is none of them."""
        others = [each for each in self.session.streams.active if str(each.id) != self.id]
        return any(each.name != control_name(self.id) for each in others)

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


def rows_behind(progress: Mapping[str, Any] | None) -> int:
    """The rows between where a query is and where its sources are, by Spark's progress of its last batch.

    Offsets are compared where they count rows: one for each partition of each topic, or under the name "row". Those of
    files, which count files, and of sources that do not say how far they are, count as nothing.

    >>> rows_behind({"sources": [{"endOffset": '{"t": {"0": 5, "1": 7}}', "latestOffset": '{"t": {"0": 9, "1": 7}}'}]})
    4
    """
    return sum(_behind(each) for each in (progress or {}).get("sources", ()))


def _behind(source: Mapping[str, Any]) -> int:
    reached, newest = (_rows(source.get(name)) for name in ("endOffset", "latestOffset"))
    return sum(max(0, newest[part] - reached.get(part, 0)) for part in newest) if reached else 0


def _rows(offset: object) -> dict[tuple[str, str], int]:
    """The rows that an offset counts, by topic and partition."""
    try:
        offsets = json.loads(offset) if isinstance(offset, str) else offset
    except ValueError:
        return {}
    if not isinstance(offsets, Mapping):
        return {}
    if isinstance(offsets.get("row"), int):
        return {("", "row"): offsets["row"]}
    return {
        (str(topic), str(part)): rows
        for topic, parts in offsets.items()
        if isinstance(parts, Mapping)
        for part, rows in parts.items()
        if isinstance(rows, int)
    }


def check_control(control: DataFrame) -> None:
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


def control_name(query_id: str) -> str:
    """What the control stream of a query is called."""
    return f"meander-control-{query_id}"


class ControlReader:
    """Brings the rows of a control stream to the driver."""

    def __init__(self, run: QueryRun, control: DataFrame) -> None:
        self._run = run
        location = run.driver.log.location
        drop_torn(location, CONTROL_FOLDER)  # its rows are read again
        self._logs = Durability(location, CONTROL_FOLDER)
        location.make_folder(CONTROL_FOLDER)
        folder = f"{location.hadoop_path}/{CONTROL_FOLDER}"
        writer = control.writeStream.foreachBatch(self._take).option("checkpointLocation", folder)
        self._inner: StreamingQuery = writer.queryName(control_name(run.stream.id)).start()

    def stop(self) -> None:
        """Read no more."""
        self._inner.stop()

    def _take(self, rows: DataFrame, _: int) -> None:
        """Take over some rows; returns when they are in the journal, so that they are not read again."""
        self._logs.sync()
        control = [row.asDict() for row in rows.collect()]
        while (version := self._accept(control)) is None:
            self._pause()
        while self._run.driver.loop.version == version:
            self._pause()

    def _accept(self, rows: Sequence[Mapping[str, Any]]) -> int | None:
        """Give rows to the driver; the version after which they are in the journal, None if it takes none now."""
        driver = self._run.driver
        cores = None if driver.cluster.is_local else sum(place.cores for place in driver.cluster.executors())
        with driver.loop.lock:
            if driver.loop.stopping:
                return None
            last, taker = driver.log.last, ControlStream(driver.coordinator, driver.settings.budget)
            is_any = taker.take(rows, cores, last.batch if last else -1)
            return driver.loop.version if is_any else driver.loop.version - 1

    def _pause(self) -> None:
        """Wait for the driver; where the query ends first, the rows are left to the next start."""
        if self._run.is_stopping or not self._run.is_active:
            time.sleep(STOP_WAIT_S)
            raise Interrupted
        time.sleep(LOOK_EVERY_S)
