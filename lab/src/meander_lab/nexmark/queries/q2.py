"""The bids on every 123rd auction, and their prices.

A row is a bid: auction, price.
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
COLUMNS = ("auction", "price")


def build(events: Events, options: Options) -> Stream:
    """The stream of answers."""
    bids = events.bids.where("auction % 123 = 0").select(*COLUMNS)
    return me.stream(bids).key_by("auction").process(passing("auction bigint, price bigint"))
