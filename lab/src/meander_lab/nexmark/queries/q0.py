"""Every bid, as it is: what the engine itself costs.

A row is a bid: auction, bidder, price, dateTime, extra.
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
    operator = passing("auction bigint, bidder bigint, price bigint, dateTime timestamp, extra string")
    return me.stream(events.bids.select(*COLUMNS)).key_by("auction").process(operator)
