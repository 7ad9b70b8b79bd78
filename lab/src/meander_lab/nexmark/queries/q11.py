"""How many bids each bidder made in each session: until there was none for 10 seconds.

A row is a session: bidder, bid_count, starttime, endtime; it comes when the session is over. It ends 10 seconds after
its last bid, and a bid at exactly that time still belongs to it, as in Flink. A bid that could reach back into a closed
session is late and goes to the side output.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import meander as me

if TYPE_CHECKING:
    from meander.streams import Stream
    from meander_lab.nexmark.queries.options import Options
    from meander_lab.nexmark.streams import Events

KEY = None
COLUMNS = ("bidder", "bid_count", "starttime", "endtime")
RENAMED = {"starttime": "window_start", "endtime": "window_end"}


def build(events: Events, options: Options) -> Stream:
    """The stream of answers."""
    bids = me.stream(events.bids.select("bidder", "dateTime")).key_by("bidder")
    return bids.window("dateTime", gap=options.window(10), lateness=options.lateness_s).count("bid_count")
