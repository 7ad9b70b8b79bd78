"""The auctions with the most bids in each window: 10 seconds, a new one every 2 seconds.

A row is an auction that no other had more bids than: auction, num, and its window as starttime and endtime, which
Flink leaves out. All auctions of the highest number come, each window once, when it closes. A bid all of whose windows
are closed is late and goes to the side output.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

import meander as me
from meander_lab.nexmark.queries.groups import largest, numbered

if TYPE_CHECKING:
    from meander.streams import Stream
    from meander_lab.nexmark.queries.options import Options
    from meander_lab.nexmark.streams import Events

KEY = None
COLUMNS = ("auction", "num", "starttime", "endtime")
RENAMED = {"starttime": "window_start", "endtime": "window_end"}


class Hottest(me.Operator):
    """The counts of a window that none is above; they all come in the version in which it closes."""

    input = output = "auction bigint, window_start timestamp, window_end timestamp, num bigint"
    ordered = False

    def on_batch(self, rows: pa.RecordBatch, state: Any, now: Any) -> pa.RecordBatch:
        """Compare the counts of each window."""
        num = rows["num"].to_numpy()
        return rows.filter(pa.array(num == largest(num, numbered(rows, ["window_start"]))))


def build(events: Events, options: Options) -> Stream:
    """The stream of answers."""
    bids = me.stream(events.bids.select("auction", "dateTime")).key_by("auction")
    size, slide = options.window(10), options.slide(2)
    counts = bids.window("dateTime", size, slide=slide, lateness=options.lateness_s, emit="final").count("num")
    return counts.key_by("window_start").process(Hottest)
