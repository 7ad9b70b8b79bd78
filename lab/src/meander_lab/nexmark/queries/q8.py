"""Who has registered and opened an auction in the same window of 10 seconds.

A row is a person and a window: id, name, starttime; each once, when the window closes. An id that has come with two
names in the window gives both. A person or an auction whose window is closed is lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

import meander as me
from meander_lab.nexmark.queries.times import micros, stamps

if TYPE_CHECKING:
    from meander.streams import Stream
    from meander_lab.nexmark.queries.options import Options
    from meander_lab.nexmark.streams import Events

KEY = None
COLUMNS = ("id", "name", "starttime")


def new_sellers(size_us: int, lateness_s: float) -> type[me.Operator]:
    """The operator over people (id, name, dateTime) and auctions (id of the seller, dateTime)."""

    class NewSellers(me.Operator):
        input = ("id bigint, name string, dateTime timestamp", "id bigint, dateTime timestamp")
        output = "id bigint, name string, starttime timestamp"
        time = "dateTime"
        lateness = lateness_s
        ordered = False
        state = {  # noqa: RUF012
            "people": me.Multimap(key="id bigint, starttime timestamp", value="name string"),
            "sellers": me.KeyedTable(key="id bigint, starttime timestamp", value=""),
            "ends": me.Timers(key="id bigint"),
        }

        def on_batch(self, people: pa.RecordBatch, auctions: pa.RecordBatch, state: Any, now: Any) -> None:
            people, auctions = (opened(rows, size_us, state["ends"], now.frontier) for rows in (people, auctions))
            state["people"].append(people, people)
            state["sellers"].put(auctions, auctions)

        def on_time(self, due: Any, state: Any, now: Any) -> pa.Table:
            keys = closed(due["ends"], size_us)
            of, people = state["people"].get(keys)
            rows = keys.take(pa.array(of)).append_column("name", people["name"])
            rows = rows.filter(state["sellers"].found(keys).take(pa.array(of)))
            state["people"].delete(keys)
            state["sellers"].delete(keys)
            return rows.group_by(list(COLUMNS)).aggregate([])

    return NewSellers


def opened(rows: pa.RecordBatch, size_us: int, ends: Any, frontier: int | None) -> pa.RecordBatch:
    """The rows whose window is open, with its start; a timer is set for its end."""
    time = micros(rows["dateTime"])
    start = time - time % size_us
    open_ = pa.array(np.full(start.size, True) if frontier is None else start + size_us > frontier)
    rows = rows.append_column("starttime", stamps(start)).filter(open_)
    ends.set(micros(rows["starttime"]) + size_us - 1, rows["id"])
    return rows


def closed(ends: pa.RecordBatch, size_us: int) -> pa.Table:
    """The ids and the starts of the windows whose timers are due."""
    return pa.table({"id": ends["id"], "starttime": stamps(micros(ends["time"]) - size_us + 1)})


def build(events: Events, options: Options) -> Stream:
    """The stream of answers."""
    people = me.stream(events.persons.select("id", "name", "dateTime")).key_by("id")
    auctions = me.stream(events.auctions.selectExpr("seller AS id", "dateTime")).key_by("id")
    operator = new_sellers(round(options.window(10) * 1_000_000), options.lateness_s)
    return people.connect(auctions).process(operator)
