"""The ten highest bids of each auction.

A row is a bid and its place: auction, bidder, price, channel, url, dateTime, extra, rank_number, from 1. Of equal
prices the earlier bid is first, then the one of the smaller bidder, channel, url and extra. The ten of every auction
are kept for ever; no bid is late.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import meander as me

if TYPE_CHECKING:
    from meander.streams import Stream
    from meander_lab.nexmark.queries.options import Options
    from meander_lab.nexmark.streams import Events

KEY = ("auction",)
COLUMNS = ("auction", "bidder", "price", "channel", "url", "dateTime", "extra", "rank_number")


def build(events: Events, options: Options) -> Stream:
    """The stream of answers."""
    # Equal prices are told apart by the other columns, in this order.
    bids = events.bids.select("auction", "price", "dateTime", "bidder", "channel", "url", "extra")
    return me.stream(bids).key_by("auction").top_k(10, by="price", rank="rank_number")
