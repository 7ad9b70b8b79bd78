"""The queries of NEXMark in Spark's own streaming SQL, where it has words for them. For `./dev bench nexmark`.

Each gives the rows of Meander's query, once and final: windows come when the watermark, 4 seconds behind, has passed
them (append mode). Where Spark refuses a query, its own message says why.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meander_lab.benchmarks.engine_peers import STATE, STORE, Running

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from meander_lab.nexmark.streams import Events

LATENESS = "4 seconds"
SIZE, SLIDE = "10 seconds", "2 seconds"
MODES = ("append", "update", "complete")

Build = Callable[["Events"], "DataFrame"]


def q1(events: Events) -> DataFrame:
    """Prices in euros: a projection."""
    return events.bids.selectExpr(
        "auction", "bidder", "CAST(0.908 * price AS DECIMAL(23, 3)) AS price", "dateTime", "extra"
    )


def q2(events: Events) -> DataFrame:
    """Bids on some auctions: a filter."""
    return events.bids.where("auction % 123 = 0").select("auction", "price")


def q3(events: Events) -> DataFrame:
    """Local sellers: a join of two streams that keeps both for ever."""
    people = events.persons.where("state IN ('OR', 'ID', 'CA')").selectExpr("id AS person", "name", "city", "state")
    auctions = events.auctions.where("category = 10").select("id", "seller")
    return people.join(auctions, people.person == auctions.seller).select("name", "city", "state", "id")


def winning(events: Events) -> DataFrame:
    """The highest bid of each auction: a join and an aggregate, both with watermarks."""
    from pyspark.sql import functions as F

    auctions = events.auctions.withWatermark("dateTime", LATENESS).selectExpr(
        "id", "seller", "category", "dateTime AS opened", "expires"
    )
    bids = events.bids.withWatermark("dateTime", LATENESS).select("auction", "price", "dateTime")
    paired = auctions.join(bids, F.expr("auction = id AND dateTime BETWEEN opened AND expires"))
    return paired.groupBy("id", "seller", "category", "expires").agg(F.max("price").alias("price"))


def q4(events: Events) -> DataFrame:
    """The mean of winning bids: Spark refuses it.

    With its check of correctness switched off it runs in update mode, and the mean is over every change of a maximum.
    """
    from pyspark.sql import functions as F

    return winning(events).groupBy("category").agg(F.avg("price").alias("final"))


def q6(events: Events) -> DataFrame:
    """The mean of the last ten winning bids: Spark refuses it."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    last = Window.partitionBy("seller").orderBy("expires").rowsBetween(-9, 0)
    return winning(events).select("seller", F.avg("price").over(last).alias("avg_price"))


def q5(events: Events) -> DataFrame:
    """Hot auctions: counts in sliding windows, and of each window the largest ones."""
    from pyspark.sql import functions as F

    bids = events.bids.withWatermark("dateTime", LATENESS)
    counts = bids.groupBy(F.window("dateTime", SIZE, SLIDE), "auction").agg(F.count("*").alias("num"))
    every = F.collect_list(F.struct("auction", "num")).alias("every")
    windows = counts.groupBy("window").agg(F.max("num").alias("most"), every)
    hot = windows.select("window", F.explode(F.expr("filter(every, each -> each.num = most)")).alias("hot"))
    return hot.selectExpr("hot.auction", "hot.num", "window.start AS starttime", "window.end AS endtime")


def q7(events: Events) -> DataFrame:
    """Highest bids as SQL has it: the largest price of each window, joined with the bids; they are read twice."""
    from pyspark.sql import functions as F

    bids = events.bids.withWatermark("dateTime", LATENESS)
    most = bids.groupBy(F.window("dateTime", SIZE)).agg(F.max("price").alias("most"))
    # The last microsecond of the window is the one time of it that Spark keeps a watermark for.
    most = most.select("most", F.window_time("window").alias("last"))
    window = "dateTime BETWEEN last - INTERVAL '9.999999' SECOND AND last + INTERVAL '0.000001' SECOND"
    rows = bids.select("auction", "bidder", "price", "dateTime", "extra")
    return rows.join(most, F.expr(f"price = most AND {window}")).drop("most", "last")


def q7_single(events: Events) -> DataFrame:
    """One highest bid of each window: no join, but of several with the highest price only one comes."""
    from pyspark.sql import functions as F

    bids = events.bids.withWatermark("dateTime", LATENESS)
    best = F.max_by(F.struct("auction", "bidder", "price", "dateTime", "extra"), "price").alias("best")
    return bids.groupBy(F.window("dateTime", SIZE)).agg(best).select("best.*")


def q8(events: Events) -> DataFrame:
    """New sellers: people and sellers of each window, each once, joined."""
    from pyspark.sql import functions as F

    people = events.persons.withWatermark("dateTime", LATENESS)
    people = people.groupBy(F.window("dateTime", SIZE), "id", "name").agg(F.count("*").alias("_people"))
    sellers = events.auctions.withWatermark("dateTime", LATENESS)
    sellers = sellers.groupBy(F.window("dateTime", SIZE), "seller").agg(F.count("*").alias("_auctions"))
    joined = people.alias("p").join(sellers.alias("s"), F.expr("p.id = s.seller AND p.window = s.window"))
    return joined.selectExpr("p.id", "p.name", "p.window.start AS starttime")


PEERS: Mapping[str, Mapping[str, Build]] = {
    "q1": {"Spark": q1},
    "q2": {"Spark": q2},
    "q3": {"Spark": q3},
    "q5": {"Spark": q5},
    "q7": {"Spark": q7, "Spark, max_by": q7_single},
    "q8": {"Spark": q8},
}
"""What Spark can run, by query; the first one is the same question, also where rows tie."""

REFUSED: Mapping[str, Build] = {"q4": q4, "q6": q6}
"""What Spark cannot run as a stream."""


def refusal(build: Build, events: Events, folder: Path) -> dict[str, str]:
    """Spark's own words, for each output mode, on why it will not run a query; a mode without one would run."""
    from pyspark.errors import AnalysisException

    refusals: dict[str, str] = {}
    for mode in MODES:
        try:
            writer = build(events).writeStream.format("noop").outputMode(mode)
            writer.option("checkpointLocation", str(folder / f"refused-{mode}")).start().stop()
        except AnalysisException as problem:
            refusals[mode] = in_short(str(problem))
    return refusals


def in_short(message: str) -> str:
    """The first sentence of one of Spark's messages, without the plan that follows."""
    first = message.partition(";\n")[0].partition("\n")[0].strip()
    return first if len(first) <= 400 else f"{first[:397]}..."


def run(rows: DataFrame, folder: Path, to: str = "noop", rocksdb: bool = False, name: str | None = None) -> Running:
    """Start one of Spark's own queries over all that is there; it reads its store's name when it starts."""
    spark = rows.sparkSession
    jvm: Any = spark.sparkContext._jvm

    def unload() -> None:
        # Stopped queries' stores stay in memory for minutes and would burden whoever is measured next.
        jvm.org.apache.spark.sql.execution.streaming.state.StateStore.stop()
        jvm.java.lang.System.gc()

    spark.conf.set(STORE, f"{STATE}.{'RocksDBStateStoreProvider' if rocksdb else 'HDFSBackedStateStoreProvider'}")
    try:
        writer = rows.writeStream.format(to).outputMode("append").option("checkpointLocation", str(folder))
        if name:
            writer = writer.queryName(name)
        return Running(writer.trigger(availableNow=True).start(), stopped=unload)
    finally:
        spark.conf.unset(STORE)
