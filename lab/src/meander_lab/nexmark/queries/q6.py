"""The mean price of the last ten auctions that each seller has sold.

A row is a seller and that mean: seller, avg_price, a double. The last ten are those that closed last, by `expires`,
then by id. Auctions without a bid do not count. What a winning bid is, and what happens to late rows, stands in
`winning`. (Flink cannot run its own text of this query, which takes eleven.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import meander as me
from meander_lab.nexmark.queries.times import micros
from meander_lab.nexmark.queries.winning import winning

if TYPE_CHECKING:
    from meander.streams import Stream
    from meander_lab.nexmark.queries.options import Options
    from meander_lab.nexmark.streams import Events

KEY = ("seller",)
COLUMNS = ("seller", "avg_price")

LAST = 10


class LastSold(me.Operator):
    """The mean price of the last auctions of every seller who has sold another one; only these are kept."""

    input = "id bigint, expires timestamp, seller bigint, price bigint"
    output = "seller bigint, avg_price double"
    state = {"sold": me.Multimap(key="seller bigint", value="id bigint, expires timestamp, price bigint")}  # noqa: RUF012
    ordered = False

    def on_batch(self, rows: pa.RecordBatch, state: Any, now: Any) -> dict[str, Any]:
        """Add the auctions, and drop all but the last of each seller."""
        sellers = pc.unique(rows["seller"])
        state["sold"].append(rows["seller"], rows)
        of, sold = state["sold"].get(sellers)
        order = np.lexsort([sold["price"].to_numpy(), sold["id"].to_numpy(), micros(sold["expires"]), of])
        from_end = np.cumsum(np.bincount(of))[of[order]] - np.arange(order.size)
        kept = order[from_end <= LAST]
        sold, of = sold.take(pa.array(kept)), of[kept]
        state["sold"].delete(sellers)
        state["sold"].append(sellers.take(pa.array(of)), sold)
        return {"seller": sellers, "avg_price": np.bincount(of, sold["price"].to_numpy()) / np.bincount(of)}


def build(events: Events, options: Options) -> Stream:
    """The stream of answers."""
    auctions = me.stream(events.auctions.select("id", "dateTime", "expires", "seller")).key_by("id")
    bids = me.stream(events.bids.selectExpr("auction AS id", "price", "dateTime AS bid_dateTime")).key_by("id")
    sold = auctions.connect(bids).process(winning(", seller bigint", "", ["seller"], options.lateness_s))
    return sold.key_by("seller").process(LastSold)
