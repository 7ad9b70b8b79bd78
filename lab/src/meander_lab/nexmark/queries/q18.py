"""The last bid of each bidder on each auction.

A row is a bid: auction, bidder, price, channel, url, dateTime, extra. Of several bids of the same time it is the one of
the smallest price, then channel, url and extra. Every pair of bidder and auction is kept for ever; no bid is late.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import meander as me

if TYPE_CHECKING:
    from meander.streams import Stream
    from meander_lab.nexmark.queries.options import Options
    from meander_lab.nexmark.streams import Events

KEY = ("auction", "bidder")
COLUMNS = ("auction", "bidder", "price", "channel", "url", "dateTime", "extra")


def build(events: Events, options: Options) -> Stream:
    """The stream of answers."""
    return me.stream(events.bids.select(*COLUMNS)).key_by(*KEY).top_k(1, by="dateTime")
