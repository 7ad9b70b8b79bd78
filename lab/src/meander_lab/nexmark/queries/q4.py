"""The mean price that the auctions of each category were sold for.

A row is a category and the mean so far: category, final. Flink cuts the mean to a whole number; here it is a double.
Auctions without a bid do not count. What a winning bid is, and what happens to late rows, stands in `winning`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import meander as me
from meander_lab.nexmark.queries.winning import winning

if TYPE_CHECKING:
    from meander.streams import Stream
    from meander_lab.nexmark.queries.options import Options
    from meander_lab.nexmark.streams import Events

KEY = ("category",)
COLUMNS = ("category", "final")


def build(events: Events, options: Options) -> Stream:
    """The stream of answers."""
    auctions = me.stream(events.auctions.select("id", "dateTime", "expires", "category")).key_by("id")
    bids = me.stream(events.bids.selectExpr("auction AS id", "price", "dateTime AS bid_dateTime")).key_by("id")
    sold = auctions.connect(bids).process(winning(", category bigint", "", ["category"], options.lateness_s))
    return sold.key_by("category").aggregate(final=("mean", "price"))
