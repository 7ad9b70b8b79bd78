"""The highest bids of every window of 10 seconds.

A row is a bid whose price is the highest of a window: auction, bidder, price, dateTime, extra. All such bids come, when
the window closes. SQL's BETWEEN takes a bid at the very end of the window too, if its price is the window's highest,
though it counts for the next one; a bid that is the highest of both comes twice. A bid whose window is closed is lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

import meander as me
from meander_lab.nexmark.queries.groups import largest, numbered
from meander_lab.nexmark.queries.times import Words, micros, stamps

if TYPE_CHECKING:
    from meander.streams import Stream
    from meander_lab.nexmark.queries.options import Options
    from meander_lab.nexmark.streams import Events

KEY = None
COLUMNS = ("auction", "bidder", "price", "dateTime", "extra")

BID = "auction bigint, bidder bigint, price bigint, dateTime timestamp, extra string"
PARTS = 256
"""Bids are cut into so many parts by their auction; the highest of each part compete in the end."""


def highest(size_us: int, lateness_s: float, between: bool = True) -> type[me.Operator]:
    """The operator for the highest bids of each part and window, and `between`, those at its end not below them."""

    class Highest(me.Operator):
        input = f"part bigint, {BID}"
        output = f"start timestamp, at_end boolean, {BID}"
        time = "dateTime"
        lateness = lateness_s
        ordered = False
        state = {  # noqa: RUF012
            "bids": me.Multimap(key="part bigint, start timestamp", value=f"at_end boolean, {BID}"),
            "ends": me.Timers(key="part bigint"),
        }

        def on_batch(self, rows: pa.RecordBatch, state: Any, now: Any) -> None:
            time = micros(rows["dateTime"])
            first = np.flatnonzero(time % size_us == 0) if between else np.empty(0, np.int64)
            bid = np.append(np.arange(time.size), first)
            start = np.append(time - time % size_us, time[first] - size_us)
            open_ = np.arange(bid.size) if now.frontier is None else np.flatnonzero(start + size_us >= now.frontier)
            bid, start = bid[open_], start[open_]
            placed = {"start": stamps(start), "at_end": pa.array(time[bid] == start + size_us)}
            bids = _beside(placed, rows.take(pa.array(bid)))
            keys = bids.group_by(["part", "start"]).aggregate([])
            of, held = state["bids"].get(keys)
            bids = pa.concat_tables([bids, _beside(keys.take(pa.array(of)), held).select(bids.column_names)])
            price, top = _prices(bids, ["part", "start"])
            state["bids"].delete(keys)
            state["bids"].append(kept := bids.filter(pa.array(price >= top)), kept)
            state["ends"].set(micros(keys["start"]) + size_us, keys["part"])

        def on_time(self, due: Any, state: Any, now: Any) -> pa.Table:
            start = stamps(micros(due["ends"]["time"]) - size_us)
            keys = pa.table({"part": due["ends"]["part"], "start": start})
            of, bids = state["bids"].get(keys)
            state["bids"].delete(keys)
            return _beside({"start": start.take(pa.array(of))}, bids)

    return Highest


class HighestOfAll(me.Operator):
    """The highest bids of a window over all parts; they all come in the version in which it closes."""

    input = f"start timestamp, at_end boolean, {BID}"
    output = BID
    ordered = False

    def on_batch(self, rows: pa.RecordBatch, state: Any, now: Any) -> pa.Table:
        """Compare the bids of each window."""
        bids = pa.Table.from_batches([rows])
        price, top = _prices(bids, ["start"])
        return bids.filter(pa.array(price == top)).drop_columns(["start", "at_end"])


def _prices(bids: pa.Table, window: list[str]) -> tuple[Words, Words]:
    """The price of each bid, and the highest one within its window, of those before its end."""
    price = bids["price"].to_numpy()
    before = np.where(bids["at_end"].to_numpy(), np.iinfo(np.int64).min, price)
    return price, largest(before, numbered(bids, window))


def _beside(columns: Any, rows: pa.RecordBatch) -> pa.Table:
    """These columns, and those of the rows."""
    names = columns.column_names if isinstance(columns, pa.Table) else columns
    return pa.table({**{name: columns[name] for name in names}, **{name: rows[name] for name in rows.schema.names}})


def build(events: Events, options: Options, between: bool = True) -> Stream:
    """The stream of answers."""
    bids = me.stream(events.bids.selectExpr(f"pmod(auction, {PARTS}) AS part", *COLUMNS)).key_by("part")
    operator = highest(round(options.window(10) * 1_000_000), options.lateness_s, between)
    return bids.process(operator).key_by("start").process(HighestOfAll)
