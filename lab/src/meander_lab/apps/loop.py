"""A loop over batches: what a version has found out comes back as rows of a later one, exactly once.

A sink takes a version's output apart. Results go to the user's sink. Feedback goes into a file named by the version,
and that file is moved into a folder which is a source of the same query as soon as the version is committed:

    version v -> waiting/v.json -> v is committed -> rows/v.json -> version v + 1 or a later one

A version that was not committed is made again, and with it its file, before anybody has read it. One that was committed
is never made again. So what is read is what was committed, and Spark's file source reads each file once.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from meander.errors import InvalidOption, QueryFailed
from meander.sinks import Sink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from meander.engine.spark.exchange import SparkOutput
    from meander.streams import Query

LOOK_EVERY_S = 0.02
SETTLED_AFTER = 2
"""So often in turn there must be nothing to do."""

Divide = Callable[[pa.Table], tuple[pa.Table, list[dict[str, Any]]]]
"""From a version's output to the results and the rows that go back."""


class FeedbackLoop(Sink):
    """The sink and the source of a loop.

    Args:
        folder: where feedback waits and lies; the same at every start, local or shared by all executors.
        divide: takes a version's output apart.
        results: gets the results.
    """

    def __init__(self, folder: str | os.PathLike[str], divide: Divide, results: Sink) -> None:
        self.waiting, self.rows = Path(folder) / "waiting", Path(folder) / "rows"
        self._divide, self._results = divide, results
        self._turn = threading.Lock()
        try:
            for each in (self.waiting, self.rows):
                each.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            why = (error.strerror or str(error)).lower()
            raise InvalidOption(f"feedback cannot go round in {folder}: {why}; give a local checkpoint") from None

    def read(self, spark: SparkSession, columns: str) -> DataFrame:
        """What comes back, as a streaming DataFrame; a file is deleted when its batch is over."""
        return spark.readStream.schema(columns).option("cleanSource", "delete").json(str(self.rows))

    def write(self, output: SparkOutput, version: int) -> None:
        """Keep one version's feedback until it is committed, and hand on its results."""
        self.release(version - 1)
        results, back = self._divide(output.to_arrow().cast(output.schema))
        path = self.waiting / f"{version:012d}.json"
        if back:
            # In order, so that a version that is made again leaves the very same file.
            lines = sorted(json.dumps(row, ensure_ascii=False, sort_keys=True) for row in back)
            hidden = path.with_suffix(".part")
            hidden.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
            hidden.replace(path)
        else:
            path.unlink(missing_ok=True)  # an attempt that was never committed may have left one
        self._results.write(replace(output, schema=results.schema, inline=[results], files=[]), version)

    def release(self, committed: int) -> int:
        """Let the feedback of versions up to this one go round, and return how many files went."""
        gone = 0
        with self._turn:
            for path in sorted(self.waiting.glob("*.json")):
                if int(path.stem) <= committed:
                    path.replace(self.rows / path.name)
                    gone += 1
        return gone


class Round:
    """Keeps a loop going while its query runs."""

    def __init__(self, loop: FeedbackLoop, query: Query) -> None:
        self._loop, self._query = loop, query
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._go, name="meander-loop", daemon=True)
        self._thread.start()

    def _go(self) -> None:
        while not self._ended.wait(LOOK_EVERY_S) and self._query.is_active:
            # A disk that is full for a moment is no reason to stop: what waits goes the next time.
            with suppress(OSError):
                self._loop.release(self._query.version)

    def settle(self, timeout_s: float) -> None:
        """Wait until all that is there is processed and nothing goes round any more."""
        deadline, quiet = time.monotonic() + timeout_s, 0
        while quiet < SETTLED_AFTER:
            if time.monotonic() > deadline:
                raise QueryFailed(f"rows still come or go round after {timeout_s:g} s; wait longer, or end the source")
            before = self._query.version
            self._query.process_all_available()
            went = self._loop.release(self._query.version)
            quiet = 0 if went or self._query.version != before else quiet + 1

    def end(self) -> None:
        """Let go what is committed, and end."""
        self._ended.set()
        self._thread.join()
        self._loop.release(self._query.version)


Loop = FeedbackLoop
"""Its former name, for those who still import it."""
