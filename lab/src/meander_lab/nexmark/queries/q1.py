"""Every bid with its price in euros, 0.908 to the dollar.

A row is a bid: auction, bidder, price, dateTime, extra. The price is exact, a decimal(23,3).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import meander as me
from meander_lab.nexmark.queries.passing import passing

if TYPE_CHECKING:
    from meander.streams import Stream
    from meander_lab.nexmark.queries.options import Options
    from meander_lab.nexmark.streams import Events

KEY = None
COLUMNS = ("auction", "bidder", "price", "dateTime", "extra")


def build(events: Events, options: Options) -> Stream:
    """The stream of answers."""
    euros = "CAST(0.908 * price AS DECIMAL(23, 3)) AS price"
    bids = events.bids.selectExpr("auction", "bidder", euros, "dateTime", "extra")
    operator = passing("auction bigint, bidder bigint, price decimal(23,3), dateTime timestamp, extra string")
    return me.stream(bids).key_by("auction").process(operator)
