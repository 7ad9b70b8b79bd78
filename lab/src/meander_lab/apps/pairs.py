"""Both sides of a join as streams of Spark, at an open-loop rate: a row arrives when its time has come.

left, right = streams(spark, ZipfStreams(1.0), rate=5000)             5,000 rows a second on each side
left, right = streams(spark, Rides(), rate=(500, 5000), rows=20_000)  fewer orders than tracks, and an end

What has arrived is a function of the clock alone. An offset is a time after the beginning, with the number of rows that
come before it, and both sides are read up to the same time: a batch has what belongs together, and neither side runs
ahead of the other, whatever their rates. The beginning is kept in the offset too: a query that starts again goes on
with the times it had.
"""

from __future__ import annotations

import json
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow

from meander.errors import InvalidOption
from meander.options import amount, listed, positive, whole
from meander_lab.apps.rides import Rides
from meander_lab.apps.source import A_TASK, Stretch
from meander_lab.apps.zipf import LAST_ROW, ZipfStreams

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

Pairs = ZipfStreams | Rides

FORMAT = "meander-pairs"
SOURCES: dict[str, type[Pairs]] = {"zipf": ZipfStreams, "rides": Rides}
TICK_US = 20_000
"""Spark asks one side after the other what has arrived; both tell the time in whole ticks, so mostly the same one."""

LEAST_WAIT_S = 0.001
FOR_EVER_US = 2**62


def streams(
    spark: SparkSession,
    source: Pairs,
    *,
    rate: float | tuple[float, float],
    rows: int | tuple[int, int] | None = None,
    start: float | None = None,
    per_batch: int | None = None,
    paced: bool = False,
    partitions: int | None = None,
) -> tuple[DataFrame, DataFrame]:
    """The left stream and the right one, with the columns of `source.schema`.

    Row i of a side is row i of `source.rows(side, ..., since_us=start * 1e6)`, and arrives at its `ts`.

    Args:
        spark: a Spark session.
        source: what the rows are.
        rate: rows of a side in a second; a pair of them where the sides differ.
        rows: how many there are on each side; by default there is no end. With the trigger availableNow they are all
            there at once; without `rows`, those that have arrived when the query starts.
        start: when the first ones arrive, in seconds since 1970; by default now. A query takes some seconds to start,
            and what arrives meanwhile waits for its first batch: give a time to come, and nothing does.
        per_batch: about so many rows of both sides together in a batch at most; by default all that have arrived. It
            is a length of event time: with a demand that changes, batches differ.
        paced: keep the rate also with the trigger availableNow, so that the query ends by itself after `rows`.
        partitions: how many tasks make the rows of a side in a batch, at most; by default one for each core.
    """
    rates = [float(positive("rate", each)) for each in _each_side("rate", rate)]
    if per_batch is not None:
        per_batch = max(1, round(whole("per_batch", per_batch, 1) / sum(rates) * 1e6))
    began_us = round((time.time() if start is None else amount("start", start)) * 1e6)
    tasks = spark.sparkContext.defaultParallelism if partitions is None else partitions
    spark.dataSource.register(PairSource)
    sides = zip((0, 1), rates, _each_side("rows", rows), strict=True)
    loops = [PairStream(source, side, pace, began_us, many, per_batch, paced, tasks) for side, pace, many in sides]
    left, right = (spark.readStream.format(FORMAT).option("loop", each.text()).load() for each in loops)
    return left, right


@dataclass(frozen=True)
class PairStream:
    """One side at its rate.

    Args:
        source: what the rows are.
        side: 0 for the left one, 1 for the right one.
        rate: rows in a second.
        start_us: when it begins, in microseconds since 1970.
        rows: how many there are; None for no end.
        batch_us: how much event time a batch has at most; None for no limit.
        paced: with the trigger availableNow, whether rows keep their rate.
        tasks: how many make the rows of a batch, at most.
    """

    source: Pairs
    side: int
    rate: float
    start_us: int
    rows: int | None = None
    batch_us: int | None = None
    paced: bool = False
    tasks: int = 1

    def __post_init__(self) -> None:
        if self.rows is not None:
            whole("rows", self.rows, 0, LAST_ROW)
        elif self.paced:
            raise InvalidOption("paced streams must end somewhere; say how many rows there are")
        whole("partitions", self.tasks, 1, 1 << 15)

    def text(self) -> str:
        """All of it, to be read by `of`."""
        kind = next((name for name, each in SOURCES.items() if isinstance(self.source, each)), None)
        if kind is None:
            raise InvalidOption(f"there are no streams of {self.source!r}; give ZipfStreams or Rides")
        return json.dumps({**asdict(self), "kind": kind}, default=lambda number: number.item())

    @classmethod
    def of(cls, text: str) -> PairStream:
        """Read what `text` has written."""
        values: dict[str, Any] = json.loads(text)
        values["source"] = SOURCES[values.pop("kind")](**values["source"])
        return cls(**values)

    @property
    def end_us(self) -> int:
        """The time after the beginning by which all rows have come."""
        if self.rows is None:
            return FOR_EVER_US
        return self.comes_us(self.rows - 1) + 1 if self.rows else 0

    def comes_us(self, row: int) -> int:
        """When a row comes, in microseconds after the beginning."""
        return int(self.source.times(self.side, np.array([row]), self.rate)[0])

    def before(self, after_us: int) -> int:
        """How many rows come before a time."""
        most = 1
        while most < LAST_ROW and self.comes_us(most) < after_us:
            most *= 2
        number = bisect_left(range(most + 1), after_us, key=self.comes_us)
        return number if self.rows is None else min(number, self.rows)


class PairReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Tells Spark what has arrived on a side, and makes it in its tasks."""

    def __init__(
        self, loop: PairStream, clock: Callable[[], float] = time.time, wait: Callable[[float], None] = time.sleep
    ) -> None:
        self.loop = loop
        self._clock, self._wait = clock, wait
        self._start_us = loop.start_us
        self._prepared_us: int | None = None

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        """Nothing has arrived."""
        return self._offset(0)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Remember what there is by now; where the number of rows is given, all of them are."""
        self._prepared_us = self._now_us()

    def latestOffset(self, start: dict[str, int], limit: Any) -> dict[str, int]:  # noqa: N802
        """Where a batch that begins at `start` ends."""
        self._start_us = start["start_us"]
        paced = self.loop.paced and self._prepared_us is not None
        # With availableNow, Spark takes an offset that stays for the end, and asks both sides before it reads one: each
        # goes on with the time, whether or not it has rows, or one side would wait for the other's next row.
        while paced and self._there_us() <= start["us"] < self.loop.end_us:
            self._wait(max((TICK_US - (self._now_us() - self._start_us) % TICK_US) / 1e6, LEAST_WAIT_S))
        there_us = until_us = self._there_us()
        if (batch_us := self.loop.batch_us) is not None:
            # Ends lie on a grid, so both sides have the same ones also after one of them had nothing to read.
            until_us = min(until_us, (start["us"] // batch_us + 1) * batch_us)
        end = self._offset(max(until_us, start["us"]))
        nothing_yet = end["row"] == start["row"] and until_us == there_us
        return start if nothing_yet and not paced else end

    def reportLatestOffset(self) -> dict[str, int]:  # noqa: N802
        """What has arrived by now, for Spark's progress: the rest of it waits for the next batches."""
        return self._offset(self._there_us())

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """The rows of a batch, in as many parts as are worth a task."""
        first, last = start["row"], end["row"]
        tasks = max(1, min(self.loop.tasks, (last - first) // A_TASK))
        cuts = [first + (last - first) * task // tasks for task in range(tasks + 1)]
        return [Since(low, high, start["start_us"]) for low, high in pairwise(cuts) if high > low]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one task."""
        assert isinstance(partition, Since)
        for first in range(partition.first, partition.last, A_TASK):
            count = min(A_TASK, partition.last - first)
            table = self.loop.source.rows(self.loop.side, first, count, self.loop.rate, partition.start_us)
            yield from table.to_batches()

    def _offset(self, after_us: int) -> dict[str, int]:
        return {"us": after_us, "row": self.loop.before(after_us), "start_us": self._start_us}

    def _now_us(self) -> int:
        return int(self._clock() * 1e6)

    def _there_us(self) -> int:
        """The time after the beginning up to which rows are there."""
        now_us = self._now_us()
        if self._prepared_us is not None and not self.loop.paced:
            if self.loop.rows is not None:
                return self.loop.end_us
            now_us = self._prepared_us
        after_us = now_us - self._start_us
        return min(max(0, after_us - after_us % TICK_US), self.loop.end_us)


class Since(Stretch):
    """Rows `first` to `last` - 1 of streams that began at a time."""

    def __init__(self, first: int, last: int, start_us: int) -> None:
        super().__init__(first, last)
        self.start_us = start_us


class PairSource(DataSource):
    """The source behind `streams`."""

    @classmethod
    def name(cls) -> str:
        """What it is called in `format(...)`."""
        return FORMAT

    def schema(self) -> StructType:
        """The columns of the side."""
        loop = PairStream.of(self.options["loop"])
        return from_arrow_schema(loop.source.schema(loop.side))

    def streamReader(self, schema: StructType) -> PairReader:  # noqa: N802
        """What reads it as a stream."""
        return PairReader(PairStream.of(self.options["loop"]))


def _each_side(what: str, value: Any) -> list[Any]:
    """A value for both sides, or one for each."""
    if not isinstance(value, tuple | list):
        return [value, value]
    if len(value) != 2:
        raise InvalidOption(f"{what} has {len(value)} values; give one for both sides, or two")
    return listed(what, value)


Loop, Reader = PairStream, PairReader
"""Their former names, for those who still import them."""
