"""Every auction with its winning bid, when it has closed.

A row is an auction and the bid: id, itemName, description, initialBid, reserve, dateTime, expires, seller, category,
extra, auction, bidder, price, bid_dateTime, bid_extra. The highest bid wins, of equal ones the earliest, then the one
of the smallest bidder, then of the smallest extra. Auctions without a bid leave no row; the reserve does not matter.
What a winning bid is, and what happens to late rows and to ids that come twice, stands in `winning`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import meander as me
from meander_lab.nexmark.queries.winning import SQL, Rule, winning

if TYPE_CHECKING:
    from meander.streams import Stream
    from meander_lab.nexmark.queries.options import Options
    from meander_lab.nexmark.streams import Events

FURTHER = (
    "itemName string", "description string", "initialBid bigint", "reserve bigint", "seller bigint", "category bigint",
    "extra string",
)  # fmt: skip
AUCTION = (
    "id", "itemName", "description", "initialBid", "reserve", "dateTime", "expires", "seller", "category", "extra",
)  # fmt: skip

KEY = None
COLUMNS = (*AUCTION, "auction", "bidder", "price", "bid_dateTime", "bid_extra")
RENAMED = {"auction": "id"}


def build(events: Events, options: Options, rule: Rule = SQL) -> Stream:
    """The stream of answers."""
    auctions = me.stream(events.auctions.select(*AUCTION)).key_by("id")
    columns = ("auction AS id", "bidder", "price", "dateTime AS bid_dateTime", "extra AS bid_extra")
    bids = me.stream(events.bids.selectExpr(*columns)).key_by("id")
    further = "".join(f", {column}" for column in FURTHER if column not in rule.span)
    operator = winning(further, ", bidder bigint, bid_extra string", [], options.lateness_s, rule)
    return auctions.connect(bids).process(operator)
