"""How fast NEXMark's events are made: by the generator alone on one core, and through the source into nothing.

`python benchmarks/nexmark_source.py`. The source is read with the trigger availableNow, so nothing waits for the rate;
all three kinds go into Spark's noop sink, with all columns and with those that most queries need. Batches after the
first count: the first one loads the kernels. The figure is the median batch's.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from functools import reduce
from time import perf_counter
from typing import TYPE_CHECKING

from rich.console import Console

import meander as me
from meander_lab.nexmark.generator.config import Config
from meander_lab.nexmark.generator.events import events as event_rows
from meander_lab.nexmark.model import KINDS
from meander_lab.nexmark.streams import Events

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CONSOLE = Console(highlight=False)
NEEDED = {
    "person": ("id", "name", "city", "state", "dateTime"),
    "auction": ("id", "dateTime", "expires", "seller", "category"),
    "bid": ("auction", "bidder", "price", "dateTime"),
}
BATCHES = 5


def generator_rate(events: int, at_once: int = 50_000) -> float:
    """Events a second of all kinds, made on one core, without Spark."""
    config = Config(count=events)
    for kind in KINDS:
        event_rows(kind, 0, min(events, at_once), config)
    began = perf_counter()
    for kind in KINDS:
        for first in range(0, events, at_once):
            event_rows(kind, first, min(first + at_once, events), config)
    return events / (perf_counter() - began)


def rate_of(spark: SparkSession, events: int, columns: Mapping[str, Sequence[str]] | None = None) -> float:
    """Events a second of all kinds, through the source into a sink that throws them away: the median batch."""
    streams = Events.at_rate(spark, 1_000_000, events, per_batch=-(-events // BATCHES), columns=columns)
    every = (streams.persons, streams.auctions, streams.bids)

    def both(one: DataFrame, other: DataFrame) -> DataFrame:
        return one.unionByName(other, allowMissingColumns=True)

    with tempfile.TemporaryDirectory(prefix="meander-bench-") as folder:
        writer = reduce(both, every).writeStream.format("noop").option("checkpointLocation", folder)
        query = writer.trigger(availableNow=True).start()
        try:
            query.awaitTermination()
            batches = [each for each in query.recentProgress if each["numInputRows"]][1:]
        finally:
            query.stop()
    rates = [each["numInputRows"] / each["durationMs"]["triggerExecution"] * 1000 for each in batches]
    return statistics.median(rates)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=10_000_000, help="how many events (default: %(default)s)")
    parser.add_argument("--master", default="local[2]", help="Spark's master (default: %(default)s)")
    options = parser.parse_args()
    CONSOLE.print(f"generator alone, one core      {generator_rate(options.events):12,.0f} events/s")
    spark = me.session(options.master)
    spark.sparkContext.setLogLevel("OFF")
    try:
        CONSOLE.print(f"through Spark, all columns     {rate_of(spark, options.events):12,.0f} events/s")
        CONSOLE.print(f"through Spark, those needed    {rate_of(spark, options.events, NEEDED):12,.0f} events/s")
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
