"""A loop over batches: what a version has found out comes back as rows of a later one, exactly once.

A sink takes a version's output apart. Results go to the user's sink. Feedback goes into a file, and that file is moved
into a folder which is a source of the same query as soon as the version is committed:

    version v -> waiting/epoch-v-..json -> v is committed -> rows/v.json -> version v + 1 or a later one

A version that was not committed leaves at most a file that waits, and is made again with another one. So what is read
is what was committed, and Spark's file source reads each file once.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from meander.engine.driver.ports import SinkToken, SinkWrite
from meander.errors import InvalidOption, QueryFailed
from meander.sinks import Sink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from meander.engine.spark.exchange import SparkOutput
    from meander.streams import Query

SETTLED_AFTER = 2
"""So often in turn there must be nothing to do."""

_NAME = re.compile(r"(\d+)-(\d+)-[0-9a-f]+\.json")

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
        try:
            for each in (self.waiting, self.rows):
                each.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            why = (error.strerror or str(error)).lower()
            raise InvalidOption(f"feedback cannot go round in {folder}: {why}; give a local checkpoint") from None

    def read(self, spark: SparkSession, columns: str) -> DataFrame:
        """What comes back, as a streaming DataFrame; a file is deleted when its batch is over."""
        return spark.readStream.schema(columns).option("cleanSource", "delete").json(str(self.rows))

    def prepare(self, output: SparkOutput, write: SinkWrite) -> SinkToken:
        """Let one version's feedback wait, and hand on its results."""
        results, back = self._divide(output.to_arrow().cast(output.schema))
        name = None
        if back:
            name = f"{write.epoch}-{write.version}-{secrets.token_hex(4)}.json"
            lines = sorted(json.dumps(row, ensure_ascii=False, sort_keys=True) for row in back)
            (self.waiting / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        token = self._results.prepare(replace(output, schema=results.schema, inline=[results], files=[]), write)
        return {"feedback": name, "version": write.version, "results": token}

    def commit(self, token: SinkToken) -> None:
        """Let one version's feedback go round, and show its results."""
        if token["feedback"] is not None:
            with suppress(FileNotFoundError):  # it has gone before
                (self.waiting / token["feedback"]).replace(self.rows / f"{token['version']:012d}.json")
        if token["results"] is not None:
            self._results.commit(token["results"])

    def abort(self, token: SinkToken) -> None:
        """Remove feedback and results of a version that will not be committed."""
        if token["feedback"] is not None:
            (self.waiting / token["feedback"]).unlink(missing_ok=True)
        if token["results"] is not None:
            self._results.abort(token["results"])

    def sweep(self, last: SinkWrite) -> None:
        """Remove feedback that waits in vain."""
        for path in self.waiting.iterdir():
            match = _NAME.fullmatch(path.name)
            if match is not None and SinkWrite(int(match[2]), int(match[1])).is_over(last):
                path.unlink(missing_ok=True)
        self._results.sweep(last)


def settle(query: Query, timeout_s: float) -> None:
    """Wait until all that is there is processed and nothing goes round any more."""
    deadline, quiet = time.monotonic() + timeout_s, 0
    while quiet < SETTLED_AFTER:
        if time.monotonic() > deadline:
            raise QueryFailed(f"rows still come or go round after {timeout_s:g} s; wait longer, or end the source")
        before = query.version
        query.process_all_available()
        quiet = quiet + 1 if query.version == before else 0


Loop = FeedbackLoop
"""Its former name, for those who still import it."""
