"""Every bid on an auction of category 10, with what is known of the auction.

A row is a bid and its auction: auction, bidder, price, channel, url, bid_dateTime, bid_extra, itemName, description,
initialBid, reserve, auction_dateTime, expires, seller, category, auction_extra. It comes as soon as both are there,
whichever is first; times do not matter. The join has no end: auctions and all bids are kept for ever. An auction id
that comes twice gives a row for each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import meander as me
from meander_lab.nexmark.queries.joining import joining

if TYPE_CHECKING:
    from meander.streams import Stream
    from meander_lab.nexmark.queries.options import Options
    from meander_lab.nexmark.streams import Events

BID = "bidder bigint, price bigint, channel string, url string, bid_dateTime timestamp, bid_extra string"
AUCTION = (
    "itemName string, description string, initialBid bigint, reserve bigint, auction_dateTime timestamp, "
    "expires timestamp, seller bigint, category bigint, auction_extra string"
)

KEY = None
COLUMNS = tuple(column.split()[0] for column in f"auction, {BID}, {AUCTION}".split(", "))


def build(events: Events, options: Options) -> Stream:
    """The stream of answers."""
    bids = events.bids.withColumnsRenamed({"dateTime": "bid_dateTime", "extra": "bid_extra"})
    named = {"id": "auction", "dateTime": "auction_dateTime", "extra": "auction_extra"}
    auctions = events.auctions.where("category = 10").withColumnsRenamed(named)
    operator = joining("auction bigint", left=BID, right=AUCTION, shown=f"auction bigint, {BID}, {AUCTION}")
    return me.stream(bids).key_by("auction").connect(me.stream(auctions).key_by("auction")).process(operator)
