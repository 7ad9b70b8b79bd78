"""Tweets, or the lines of a text, as a stream at an open-loop rate: row n arrives n / rate seconds after the start.

What has arrived is a function of the clock alone. A query that falls behind finds more rows waiting, and one that is
started again finds those that came meanwhile.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition

from meander.errors import InvalidOption
from meander.options import positive, whole
from meander_lab.apps.tweets import Tweets

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

FORMAT = "meander-tweets"
COLUMNS = "id bigint, at timestamp, text string"
FOR_ALL_TIME = 2**62
A_TASK = 5_000
"""Rows that are worth a task of their own."""


def at_rate(
    spark: SparkSession,
    rate: float,
    *,
    tweets: Tweets | None = None,
    text: str | os.PathLike[str] | None = None,
    start: float | None = None,
    count: int | None = None,
    most: int | None = None,
) -> DataFrame:
    """A stream of tweets: `id`, `at`, when it arrived, and `text`.

    Args:
        spark: a Spark session.
        rate: tweets per second.
        tweets: what they are made of; by default `Tweets()`.
        text: a file; its lines are taken instead, again and again. Executors read it, so they must see it too.
        start: when the first one arrives, in seconds since 1970; by default now. A query that goes on after its process
            has ended needs the same one again.
        count: how many there are; by default there is no end.
        most: at most so many in one batch; by default all that have come. With a rate that is never kept up with,
            batches then follow one another without a pause.
    """
    options = {
        "rate": repr(float(positive("rate", rate))),
        "start": str(int((time.time() if start is None else start) * 1e6)),
        "count": str(FOR_ALL_TIME if count is None else whole("count", count, 0)),
        "most": str(FOR_ALL_TIME if most is None else whole("most", most, 1)),
        "tasks": str(spark.sparkContext.defaultParallelism),
    }
    if text is None:
        options["tweets"] = json.dumps(asdict(tweets or Tweets()))
    else:
        options["text"] = str(Path(text).absolute())
        lines_of(options["text"])
    spark.dataSource.register(TweetSource)
    return spark.readStream.format(FORMAT).options(**options).load()


def lines_of(path: str | os.PathLike[str]) -> pa.Array:
    """The lines of a text that are not blank.

    Raises:
        InvalidOption: it cannot be read, or has none.
    """
    try:
        return _lines(str(path), Path(path).stat().st_mtime_ns)
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror.lower() if isinstance(error, OSError) and error.strerror else "it is no text in UTF-8"
        raise InvalidOption(f"cannot read {path}: {why}") from None


@lru_cache(maxsize=2)
def _lines(path: str, changed: int) -> pa.Array:
    lines = [line.strip() for line in Path(path).read_text(encoding="utf-8").splitlines()]
    kept = [line for line in lines if line]
    if not kept:
        raise InvalidOption(f"{path} has only blank lines; give a text with words in it")
    return pa.array(kept, pa.string())


class TweetSource(DataSource):
    """The source behind `at_rate`."""

    @classmethod
    def name(cls) -> str:
        """What it is called in `format(...)`."""
        return FORMAT

    def schema(self) -> str:
        """The columns."""
        return COLUMNS

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """The reader."""
        return TweetReader(self.options)


class Stretch(InputPartition):
    """Tweets `first` to `last` - 1."""

    def __init__(self, first: int, last: int) -> None:
        self.first, self.last = first, last


class TweetReader(DataSourceStreamReader):
    """Which tweets have arrived, and what they are."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self.rate = float(options["rate"])
        self.start_us, self.count = int(options["start"]), int(options["count"])
        self.most, self.tasks = int(options["most"]), int(options["tasks"])
        self.text = options.get("text")
        self.tweets = Tweets(**json.loads(options["tweets"])) if self.text is None else None

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        """Nothing has arrived."""
        return {"next": 0}

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:  # noqa: N802
        """What has arrived by now."""
        arrived = int((time.time() * 1e6 - self.start_us) * self.rate / 1e6) + 1
        return {"next": max(start["next"], min(arrived, self.count, start["next"] + self.most))}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """Tasks of about equal length."""
        first, last = start["next"], end["next"]
        tasks = max(1, min(self.tasks, (last - first) // A_TASK))
        cuts = [first + (last - first) * task // tasks for task in range(tasks + 1)]
        return [Stretch(low, high) for low, high in pairwise(cuts) if high > low]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The tweets of one task."""
        assert isinstance(partition, Stretch)
        for first in range(partition.first, partition.last, A_TASK):
            number = np.arange(first, min(first + A_TASK, partition.last))
            at = self.start_us + np.floor(number * 1e6 / self.rate).astype(np.int64)
            columns = [
                pa.array(number, pa.int64()),
                pa.array(at, pa.int64()).cast(pa.timestamp("us", "UTC")),
                self._texts(number),
            ]
            yield pa.RecordBatch.from_arrays(columns, names=["id", "at", "text"])

    def _texts(self, number: np.ndarray[Any, np.dtype[np.int64]]) -> pa.Array:
        if self.tweets is not None:
            return self.tweets.texts(int(number[0]), int(number[-1]) + 1)
        assert self.text is not None
        lines = lines_of(self.text)
        return lines.take(pa.array(number % len(lines)))
