"""The bids of each auction and day: how many, of which of three ranks of price, and their prices.

A row is an auction and a day (UTC), with the figures so far: auction, day, total_bids, rank1_bids (below 10,000),
rank2_bids (below 1,000,000), rank3_bids, min_price, max_price, avg_price, sum_price. Flink cuts the mean to a whole
number; here it is a double. Every auction and day is kept for ever; no bid is late.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import meander as me

if TYPE_CHECKING:
    from meander.streams import Stream
    from meander_lab.nexmark.queries.options import Options
    from meander_lab.nexmark.streams import Events

KEY = ("auction", "day")
COLUMNS = (
    "auction", "day", "total_bids", "rank1_bids", "rank2_bids", "rank3_bids",
    "min_price", "max_price", "avg_price", "sum_price",
)  # fmt: skip


def build(events: Events, options: Options) -> Stream:
    """The stream of answers."""
    bids = events.bids.selectExpr(
        "auction",
        "CAST(DATE_FROM_UNIX_DATE(CAST(FLOOR(UNIX_SECONDS(dateTime) / 86400) AS INT)) AS STRING) AS day",
        "price",
        "CAST(price < 10000 AS TINYINT) AS rank1",
        "CAST(price >= 10000 AND price < 1000000 AS TINYINT) AS rank2",
        "CAST(price >= 1000000 AS TINYINT) AS rank3",
    )
    return (
        me.stream(bids)
        .key_by(*KEY)
        .aggregate(
            total_bids="count",
            rank1_bids=("sum", "rank1"),
            rank2_bids=("sum", "rank2"),
            rank3_bids=("sum", "rank3"),
            min_price=("min", "price"),
            max_price=("max", "price"),
            avg_price=("mean", "price"),
            sum_price=("sum", "price"),
        )
    )
