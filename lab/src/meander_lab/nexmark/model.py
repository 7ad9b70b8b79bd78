"""The three streams of NEXMark: people, the auctions they open and the bids on them.

Columns are named as in Beam and Flink. Times are microseconds in UTC and, as Beam's, whole milliseconds where the
generator makes them. Bids have `channel` and `url` as in Flink; Beam has neither.
"""

from __future__ import annotations

import pyarrow as pa

TIME = pa.timestamp("us", tz="UTC")

PERSON = pa.schema(
    [
        ("id", pa.int64()),
        ("name", pa.string()),
        ("emailAddress", pa.string()),
        ("creditCard", pa.string()),
        ("city", pa.string()),
        ("state", pa.string()),
        ("dateTime", TIME),
        ("extra", pa.string()),
    ]
)

AUCTION = pa.schema(
    [
        ("id", pa.int64()),
        ("itemName", pa.string()),
        ("description", pa.string()),
        ("initialBid", pa.int64()),
        ("reserve", pa.int64()),
        ("dateTime", TIME),
        ("expires", TIME),
        ("seller", pa.int64()),
        ("category", pa.int64()),
        ("extra", pa.string()),
    ]
)

BID = pa.schema(
    [
        ("auction", pa.int64()),
        ("bidder", pa.int64()),
        ("price", pa.int64()),
        ("channel", pa.string()),
        ("url", pa.string()),
        ("dateTime", TIME),
        ("extra", pa.string()),
    ]
)

KINDS: dict[str, pa.Schema] = {"person": PERSON, "auction": AUCTION, "bid": BID}
"""The schema of each kind of event."""
