"""The queries as Beam defines them, where that is not what Flink's SQL says.

Beam's are programs, and what they emit decides: panes of the same key are rows of their own, and there is no newest one
that stands for all. Windows hold their start and not their end, sessions that touch are two, and means are rounded.

A sale is an auction with the bids that have its id, are made before it expires and reach its reserve. A bid may be made
before its auction, by up to twice the time that Beam expects an auction to last. The highest wins, of equal ones the
earliest. The sale happens one millisecond before the auction expires.

q0    every event of all kinds: kind, id (of the person, or of the auction that was opened or bid for), dateTime
q1    prices at 89 cents, rounded down
q4    the mean of the sales of each category in windows of 10 seconds, one every 5 seconds
q5    a window every 5 seconds
q6    the mean of the ten sales with the latest bids, at every sale of the seller, and once more at the end
q7    without the bids at the end of a window
q8    a row for each auction, with its reserve
q9    sales
q11   a bid exactly 10 seconds after the last begins a new session
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import meander as me
from meander_lab.nexmark.queries import q2, q3, q5, q7, q8, q9
from meander_lab.nexmark.queries.passing import passing
from meander_lab.nexmark.queries.times import micros
from meander_lab.nexmark.queries.winning import Rule, winning

if TYPE_CHECKING:
    from meander.streams import Stream
    from meander_lab.nexmark.queries.options import Options
    from meander_lab.nexmark.streams import Events

PATIENCE_MS = 33_334
"""Twice what Beam expects an auction to last, at the usual rate and with as many auctions open as usual."""

SALE = Rule(
    "dateTime timestamp, expires timestamp, reserve bigint",
    (pc.field("bid_dateTime") < pc.field("expires"))
    & (pc.field("price") >= pc.field("reserve"))
    & (
        pc.field("bid_dateTime").cast(pa.int64())
        > pc.subtract(pc.field("dateTime").cast(pa.int64()), pc.scalar(PATIENCE_MS * 1000))
    ),
    PATIENCE_MS * 1000,
)
LAST = 10
AT_THE_END = 253_402_300_700_000_000
"""A time that comes only when there is no more: shortly before the year 10000."""


def _q0(events: Events, options: Options) -> Stream:
    persons = events.persons.selectExpr("'person' AS kind", "id", "dateTime")
    auctions = events.auctions.selectExpr("'auction' AS kind", "id", "dateTime")
    bids = events.bids.selectExpr("'bid' AS kind", "auction AS id", "dateTime")
    every = persons.unionAll(auctions).unionAll(bids)
    return me.stream(every).key_by("id").process(passing("kind string, id bigint, dateTime timestamp"))


def _q1(events: Events, options: Options) -> Stream:
    bids = events.bids.selectExpr("auction", "bidder", "price * 89 DIV 100 AS price", "dateTime", "extra")
    operator = passing("auction bigint, bidder bigint, price bigint, dateTime timestamp, extra string")
    return me.stream(bids).key_by("auction").process(operator)


def _sales(events: Events, options: Options, column: str) -> Stream:
    """The winning bid of every auction, with one column more of the auction."""
    auctions = events.auctions.select("id", "dateTime", "expires", "reserve", column)
    bids = events.bids.selectExpr("auction AS id", "price", "dateTime AS bid_dateTime", "bidder")
    operator = winning(f", {column} bigint", ", bidder bigint", [column], options.lateness_s, SALE)
    return me.stream(auctions).key_by("id").connect(me.stream(bids).key_by("id")).process(operator)


def _q4(events: Events, options: Options) -> Stream:
    from pyspark.sql import functions as F

    sold = F.expr("expires - INTERVAL 1 MILLISECOND").alias("sold")
    timed = passing("category bigint, sold timestamp, price bigint")
    sales = _sales(events, options, "category").key_by("category", sold).process(timed)
    windows = sales.key_by("category").window(
        "sold", options.window(10), slide=options.slide(5), lateness=options.lateness_s, emit="final"
    )
    rounded = F.floor(F.col("mean") + 0.5).alias("price")
    shown = passing("window_start timestamp, category bigint, price bigint")
    return windows.aggregate(mean=("mean", "price")).key_by("category", rounded).process(shown)


class LatestSales(me.Operator):
    """The mean price of the sales with the latest bids of a seller, at every sale, and once more at the end."""

    input = "id bigint, expires timestamp, seller bigint, price bigint, bid_dateTime timestamp"
    output = "seller bigint, price bigint"
    state = {  # noqa: RUF012
        "sold": me.Multimap(key="seller bigint", value="bid_dateTime timestamp, price bigint"),
        "end": me.Timers(key="seller bigint"),
    }
    ordered = False

    def on_batch(self, rows: pa.RecordBatch, state: Any, now: Any) -> pa.Table:
        """Add the sales in their order: the first of each seller, then the second of each, and so on."""
        order = np.lexsort([rows["id"].to_numpy(), micros(rows["expires"]), rows["seller"].to_numpy()])
        rows = rows.take(pa.array(order))
        seller = rows["seller"].to_numpy()
        place = np.arange(seller.size) - np.searchsorted(seller, seller)
        means = [self._add(rows.filter(pa.array(place == turn)), state) for turn in range(int(place.max()) + 1)]
        sellers = pc.unique(rows["seller"])
        state["end"].set(pa.array(np.full(len(sellers), AT_THE_END), pa.timestamp("us", "UTC")), sellers)
        return pa.concat_tables(means)

    def on_time(self, due: Any, state: Any, now: Any) -> pa.Table:
        """Say it once more."""
        sellers = due["end"]["seller"]
        of, sold = state["sold"].get(sellers)
        return _means(sellers, of, sold)

    def _add(self, rows: pa.RecordBatch, state: Any) -> pa.Table:
        """Add one sale of each seller and keep the latest."""
        state["sold"].append(rows["seller"], rows)
        of, sold = state["sold"].get(rows["seller"])
        order = np.lexsort([sold["price"].to_numpy(), micros(sold["bid_dateTime"]), of])
        from_end = np.cumsum(np.bincount(of))[of[order]] - np.arange(order.size)
        kept = order[from_end <= LAST]
        of, sold = of[kept], sold.take(pa.array(kept))
        state["sold"].delete(rows["seller"])
        state["sold"].append(rows["seller"].take(pa.array(of)), sold)
        return _means(rows["seller"], of, sold)


def _means(sellers: pa.Array, of: Any, sold: pa.RecordBatch) -> pa.Table:
    mean = np.bincount(of, sold["price"].to_numpy()) / np.bincount(of)
    return pa.table({"seller": sellers, "price": np.floor(mean + 0.5).astype(np.int64)})


def _q6(events: Events, options: Options) -> Stream:
    return _sales(events, options, "seller").key_by("seller").process(LatestSales)


def each_auction(size_us: int, lateness_s: float) -> type[me.Operator]:
    """The operator over people (id, name, dateTime) and auctions (id of the seller, reserve, dateTime)."""

    class EachAuction(me.Operator):
        input = ("id bigint, name string, dateTime timestamp", "id bigint, reserve bigint, dateTime timestamp")
        output = "id bigint, name string, reserve bigint"
        time = "dateTime"
        lateness = lateness_s
        ordered = False
        state = {  # noqa: RUF012
            "people": me.Multimap(key="id bigint, starttime timestamp", value="name string"),
            "auctions": me.Multimap(key="id bigint, starttime timestamp", value="reserve bigint"),
            "ends": me.Timers(key="id bigint"),
        }

        def on_batch(self, people: pa.RecordBatch, auctions: pa.RecordBatch, state: Any, now: Any) -> None:
            for name, rows in (("people", people), ("auctions", auctions)):
                rows = q8.opened(rows, size_us, state["ends"], now.frontier)
                state[name].append(rows, rows)

        def on_time(self, due: Any, state: Any, now: Any) -> pa.Table:
            keys = q8.closed(due["ends"], size_us)
            of, people = state["people"].get(keys)
            at, auctions = state["auctions"].get(keys)
            state["people"].delete(keys)
            state["auctions"].delete(keys)
            people = pa.table({"at": of, "id": keys["id"].take(pa.array(of)), "name": people["name"]})
            pairs = people.join(pa.table({"at": at, "reserve": auctions["reserve"]}), "at", join_type="inner")
            return pairs.drop_columns(["at"])

    return EachAuction


def _q8(events: Events, options: Options) -> Stream:
    people = me.stream(events.persons.select("id", "name", "dateTime")).key_by("id")
    auctions = me.stream(events.auctions.selectExpr("seller AS id", "reserve", "dateTime")).key_by("id")
    operator = each_auction(round(options.window(10) * 1_000_000), options.lateness_s)
    return people.connect(auctions).process(operator)


def _q11(events: Events, options: Options) -> Stream:
    from pyspark.sql import functions as F

    # Our sessions join when they touch, so a gap that is shorter by the least there is keeps them apart.
    gap = options.window(10) - 1e-6
    bids = me.stream(events.bids.select("bidder", "dateTime")).key_by("bidder")
    sessions = bids.window("dateTime", gap=gap, lateness=options.lateness_s).count("bid_count")
    end = F.expr("window_end + INTERVAL 1 MICROSECOND").alias("window_end")
    shown = passing("bidder bigint, bid_count bigint, window_start timestamp, window_end timestamp")
    return sessions.key_by("bidder", end).process(shown)


def _q9(events: Events, options: Options) -> Stream:
    return q9.build(events, options, SALE)


def _q5(events: Events, options: Options) -> Stream:
    return q5.build(events, replace(options, slide_s=options.slide(5)))


def _q7(events: Events, options: Options) -> Stream:
    return q7.build(events, options, between=False)


BUILD: Mapping[str, Callable[[Events, Options], Stream]] = {
    "q0": _q0, "q1": _q1, "q2": q2.build, "q3": q3.build, "q4": _q4, "q5": _q5, "q6": _q6, "q7": _q7, "q8": _q8,
    "q9": _q9, "q11": _q11,
}  # fmt: skip
"""How each query is asked."""

COLUMNS: Mapping[str, tuple[str, ...]] = {
    "q0": ("kind", "id", "dateTime"),
    "q4": ("starttime", "category", "price"),
    "q6": ("seller", "price"),
    "q8": ("id", "name", "reserve"),
}
"""The columns of answers that are not those of Flink's."""

RENAMED: Mapping[str, Mapping[str, str]] = {"q4": {"starttime": "window_start"}}
"""What the streams of these call columns otherwise."""
