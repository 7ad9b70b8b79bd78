"""The three streams that a NEXMark query reads: from a folder of events, or made at a rate.

events = Events.of_files(spark, "events/")           a part of each kind in each batch
events = Events.at_rate(spark, 100_000)              100,000 events a second, of all kinds together
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from meander.errors import InvalidOption
from meander_lab.nexmark.generator.config import Config
from meander_lab.nexmark.model import KINDS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BEAM = Config()


@dataclass(frozen=True)
class Events:
    """Persons, auctions and bids as streaming DataFrames, with the columns of `model`; times are Spark timestamps."""

    persons: DataFrame
    auctions: DataFrame
    bids: DataFrame

    @classmethod
    def of_files(cls, spark: SparkSession, folder: str | Path) -> Events:
        """Return the events of a folder that `files` has written: one part of each kind in each batch."""
        from pyspark.sql.pandas.types import from_arrow_schema

        frames = []
        for kind, schema in KINDS.items():
            part = Path(folder) / kind
            if not part.is_dir():
                raise InvalidOption(f"{folder} has no folder {kind}/; write one with meander_lab.nexmark.files")
            reader = spark.readStream.schema(from_arrow_schema(schema)).option("maxFilesPerTrigger", 1)
            frames.append(reader.parquet(str(part)))
        return cls(*frames)

    @classmethod
    def at_rate(
        cls,
        spark: SparkSession,
        rate: float,
        events: int | None = None,
        config: Config = BEAM,
        *,
        start: float | None = None,
        dilation: float = 1.0,
        partitions: int | None = None,
        per_batch: int | None = None,
        paced: bool = False,
        columns: Mapping[str, Sequence[str]] | None = None,
    ) -> Events:
        """Return events that are made at a rate, whatever the query does: an open loop.

        Event time begins at the configuration's base time and goes on as real time does. The time from one event to
        the next is a whole number of microseconds, so it does so exactly where the rate divides a million.

        Args:
            spark: the session.
            rate: events a second, of all kinds together: 46 of 50 are bids.
            events: how many there are in all; None for no end. With the trigger availableNow they are all there at
                once; without `events`, those that have happened when the query starts.
            config: what is generated. Its count and its rate follow from `events` and `rate`.
            start: when the loop begins, in seconds since 1970; by default now. A query takes some seconds to start,
                and what happens meanwhile waits for its first batch: give a time to come, and nothing does.
            dilation: event time runs so many times as fast as real time.
            partitions: how many tasks make the events of one kind in a batch, at most; by default one for each core.
            per_batch: how many events of all kinds a batch has, at most; by default what has happened.
            paced: keep the rate also with the trigger availableNow, so that the query ends by itself after `events`.
            columns: by kind, the columns to make, where not all of them are needed.
        """
        from meander_lab.nexmark import source

        start = time.time() if start is None else start
        wanted = dict(columns or {})
        if unknown := set(wanted) - set(KINDS):
            raise InvalidOption(f"there are no events of the kind {min(unknown)!r}; kinds: {', '.join(KINDS)}")
        tasks = spark.sparkContext.defaultParallelism if partitions is None else partitions
        loops = [
            source.EventStream(
                kind, rate, start, events, dilation, tasks, per_batch, paced, tuple(wanted.get(kind, ())), config
            )
            for kind in KINDS
        ]
        source.register(spark)
        return cls(*(spark.readStream.format(source.NAME).options(**loop.options()).load() for loop in loops))
