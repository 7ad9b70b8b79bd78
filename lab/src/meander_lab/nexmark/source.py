"""Events as a source of Spark, `spark.readStream.format("nexmark")`, at a rate that does not wait for the query.

The loop is open: by the time t, (t - start) * rate events have happened, whatever the query does. Where a batch was
slow, the next one has more. An offset is the number of the next event, counted over all kinds, and the time when the
loop began; an event follows from its number alone. So a query that starts again goes on where it was committed, and
what has happened while it was down is waiting for it.

A query reads each kind by a source of its own, and Spark asks one after the other for its offset, all within two to
four milliseconds. Offsets are rounded down to ticks of 20 ms, so most batches end at the same event in all kinds. No
more is needed: where a tick came in between, one kind is ahead by 20 ms of event time for one batch (by 1.6 s where
event time runs 79 times as fast), and the queries take a row for late only after 4 s.

Why a data source in Python, and not ids from a source of Spark's own with `mapInArrow`: Spark's `rate` ends its batches
at whole seconds, and `rate-micro-batch` gives each batch as many rows, which is a closed loop. Both make a row for each
id first, and the ids come into Python before the events go out. This source hands over Arrow as the generator made it;
to ask it for an offset takes a millisecond, to start it one to two seconds. benchmarks/nexmark_source.py measures it:
most of the time goes into Spark's rows, so name the `columns` that are needed.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from meander.errors import InvalidOption
from meander.options import amount, positive, whole
from meander_lab.nexmark.generator.config import Config
from meander_lab.nexmark.model import KINDS

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

NAME = "nexmark"
TICK_S = 0.02
"""Offsets are cut to so many seconds of events."""

LEAST_WAIT_S = 0.001

TASK_ROWS = 10_000
"""A task of its own is worth its while from so many rows."""

BATCH_ROWS = 20_000
"""Rows that are made and handed over at once."""


@dataclass(frozen=True)
class EventStream:
    """One kind of event at an open-loop rate; the options of the source.

    Args:
        kind: person, auction or bid.
        rate: events of all kinds in a second.
        start: when the loop began, in seconds since 1970. A query that starts again keeps the one it began with.
        events: how many there are in all; None for no end.
        dilation: how many seconds of event time go by in a second.
        partitions: how many tasks make the events of a batch, at most.
        per_batch: how many events of all kinds a batch has, at most.
        paced: with the trigger availableNow, whether the events keep their rate. Otherwise all that there will be is
            there at once.
        columns: which columns to make, in this order; by default all.
        config: what is generated. Its count and rate follow from `events`, `rate` and `dilation`.
    """

    kind: str
    rate: float
    start: float
    events: int | None = None
    dilation: float = 1.0
    partitions: int = 1
    per_batch: int | None = None
    paced: bool = False
    columns: tuple[str, ...] = ()
    config: Config = field(default_factory=Config)

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InvalidOption(f"there are no events of the kind {self.kind!r}; kind is one of {', '.join(KINDS)}")
        positive("rate", self.rate)
        positive("dilation", self.dilation)
        amount("start", self.start)
        whole("partitions", self.partitions, 1, 1 << 15)
        if self.events is not None:
            whole("events", self.events, 0)
        if self.per_batch is not None:
            whole("per_batch", self.per_batch, 1)
        if self.paced and self.events is None:
            raise InvalidOption("a paced loop must end somewhere; say how many events there are in all")
        if self.config.next_rate_per_s is not None:
            raise InvalidOption("an open loop has one rate; leave next_rate_per_s out of the configuration")
        names = KINDS[self.kind].names
        for each in self.columns:
            if each not in names:
                raise InvalidOption(f"a {self.kind} has no column {each!r}; its columns: {', '.join(names)}")
        if len(set(self.columns)) != len(self.columns):
            raise InvalidOption(f"the columns {', '.join(self.columns)} name one of them twice")
        if (rate_per_s := round(self.rate / self.dilation)) < 1:
            raise InvalidOption(
                f"at rate {self.rate:g} and dilation {self.dilation:g} a second of event time has less than one event; "
                "raise the rate"
            )
        timed = replace(self.config, count=self.events, rate_per_s=rate_per_s)
        object.__setattr__(self, "config", timed)
        object.__setattr__(self, "columns", tuple(self.columns) or tuple(names))

    @classmethod
    def of(cls, options: Mapping[str, str]) -> EventStream:
        """Read the options of a source, all of them texts."""
        read: dict[str, Callable[[str], Any]] = {
            "kind": str, "rate": float, "start": float, "events": int, "dilation": float, "partitions": int,
            "per_batch": int, "paced": _truth, "columns": _names, "config": _config,
        }  # fmt: skip
        values: dict[str, Any] = {}
        for name, text in options.items():
            if name not in read:
                raise InvalidOption(f"the source {NAME} has no option {name!r}; its options: {', '.join(read)}")
            try:
                values[name] = read[name](text)
            except (TypeError, ValueError) as error:
                raise InvalidOption(f"the option {name} is {text!r}, which cannot be read: {error}") from None
        for name in ("kind", "rate", "start"):
            if name not in values:
                raise InvalidOption(f"the source {NAME} needs the option {name}")
        return cls(**values)

    def options(self) -> dict[str, str]:
        """The loop as options of the source."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        values |= {"columns": ",".join(self.columns), "config": json.dumps(asdict(self.config))}
        return {name: str(value) for name, value in values.items() if value is not None}

    @property
    def total(self) -> int:
        """How many events there are in all; without a number, as many as the generator can count."""
        return self.config.total

    @property
    def share(self) -> float:
        """Which part of all events is of this kind."""
        of_kind = {"person": self.config.persons, "auction": self.config.auctions, "bid": self.config.bids}
        return of_kind[self.kind] / self.config.round_events

    @property
    def lean(self) -> Config:
        """What to generate for the columns: `extra`, drawn last and three quarters of the work, only where wanted."""
        if "extra" in self.columns:
            return self.config
        # Without a count, the sizes decide over how many events there are, and that over their ids.
        counted = replace(self.config, count=self.config.total)
        return replace(counted, person_bytes=0, auction_bytes=0, bid_bytes=0)

    @property
    def tick(self) -> int:
        """The events of a tick."""
        return max(1, round(self.rate * TICK_S))

    def happened(self, seconds: float) -> int:
        """How many events have happened so many seconds after the beginning, in whole ticks."""
        due = math.floor(min(max(0.0, seconds) * self.rate, self.total))
        return due if due == self.total else due - due % self.tick

    def until_next(self, seconds: float) -> float:
        """How many seconds it is to the next tick, or 0 after the last one."""
        following = min(self.happened(seconds) + self.tick, self.total)
        return max(0.0, following / self.rate - seconds)


class EventReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Tells Spark how many events have happened, and makes them in its tasks."""

    def __init__(
        self, loop: EventStream, clock: Callable[[], float] = time.time, wait: Callable[[float], None] = time.sleep
    ) -> None:
        self.loop = loop
        self._clock, self._wait = clock, wait
        self._start_ms = round(loop.start * 1000)
        self._prepared_s: float | None = None

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        """The first event."""
        return self._offset(0)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """As many events as a batch may have; Spark calls them rows."""
        return ReadAllAvailable() if self.loop.per_batch is None else ReadMaxRows(self.loop.per_batch)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Remember what there is by now; where the number of events is given, all of them are."""
        self._prepared_s = self._clock()

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        """Where a batch that begins at `start` ends."""
        # The beginning is in the checkpoint: a program that starts again would name a later one.
        self._start_ms = start["start_ms"]
        # With availableNow, Spark takes an offset that stays for the end.
        while self.loop.paced and self._prepared_s is not None and self._there() <= start["event"] < self.loop.total:
            self._wait(max(self.loop.until_next(self._seconds()), LEAST_WAIT_S))
        end = self._there()
        if isinstance(limit, ReadMaxRows):
            end = min(end, start["event"] + limit.max_rows)
        return self._offset(max(end, start["event"]))

    def reportLatestOffset(self) -> dict[str, int]:  # noqa: N802
        """What has happened by now, for Spark's progress: the rest of it waits for the next batches."""
        return self._offset(self._there())

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """The events of a batch, in as many parts as are worth a task."""
        first, last = start["event"], end["event"]
        rows = (last - first) * self.loop.share
        parts = max(1, min(self.loop.partitions, math.ceil(rows / TASK_ROWS)))
        return [EventRange(low, high) for low, high in cut(first, last, parts)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Make the events of a part."""
        from meander_lab.nexmark.generator.events import events

        assert isinstance(partition, EventRange)
        first, last, config = partition.first, partition.last, self.loop.lean
        parts = math.ceil((last - first) * self.loop.share / BATCH_ROWS)
        for low, high in cut(first, last, max(1, parts)):
            yield events(self.loop.kind, low, high, config).select(list(self.loop.columns))

    def _offset(self, event: int) -> dict[str, int]:
        return {"event": event, "start_ms": self._start_ms}

    def _seconds(self) -> float:
        return self._clock() - self._start_ms / 1000

    def _there(self) -> int:
        """How many events there are for now."""
        if self._prepared_s is None or self.loop.paced:
            return self.loop.happened(self._seconds())
        if self.loop.events is not None:
            return self.loop.events
        return self.loop.happened(self._prepared_s - self._start_ms / 1000)


class EventRange(InputPartition):
    """The events `first` to `last - 1`, for one task."""

    def __init__(self, first: int, last: int) -> None:
        self.first, self.last = first, last


class Nexmark(DataSource):
    """The source `nexmark`; `EventStream` says what its options are."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return NAME

    def schema(self) -> StructType:
        """The columns of the kind that are wanted; times are Spark timestamps."""
        import pyarrow as pa

        loop = EventStream.of(self.options)
        return from_arrow_schema(pa.schema([KINDS[loop.kind].field(each) for each in loop.columns]))

    def streamReader(self, schema: StructType) -> EventReader:  # noqa: N802
        """What reads it as a stream."""
        return EventReader(EventStream.of(self.options))


def register(spark: SparkSession) -> None:
    """Make `spark.readStream.format("nexmark")` known to a session."""
    spark.dataSource.register(Nexmark)


def cut(first: int, last: int, parts: int) -> list[tuple[int, int]]:
    """The numbers `first`..`last - 1` in so many ranges of equal lengths, without empty ones."""
    ends = [first + (last - first) * part // parts for part in range(parts + 1)]
    return [(low, high) for low, high in pairwise(ends) if low < high]


def _truth(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("say true or false")
    return text.lower() == "true"


def _names(text: str) -> tuple[str, ...]:
    return tuple(each.strip() for each in text.split(",") if each.strip())


def _config(text: str) -> Config:
    values = json.loads(text)
    if not isinstance(values, dict):
        raise ValueError("a configuration is a JSON object")
    return Config(**values)


Loop = EventStream
"""Its former name, for those who still import it."""
