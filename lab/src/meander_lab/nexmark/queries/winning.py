"""The winning bid of every auction, when it closes: what queries 4, 6 and 9 have in common.

An auction has the bids with its id whose time is from its `dateTime` to its `expires`, both included; nothing else
decides, so a bid may also come before its auction. The highest wins, of equal ones the earliest, then the one whose
other columns are smallest. An auction closes when the frontier is past `expires`; without a bid it leaves no row.
(Beam's rule is another: see `beam`.)

Behind the frontier: a bid counts as long as its auction is open and else is lost; an auction is taken as any other and
closes at once. Bids that wait for an auction are dropped when the frontier is past them, for auctions to come begin
later. Auctions go when they close.

Auctions that have one id and are open together are one auction to SQL, which closes with the last of them. So it is
here; but the second has only bids that come with it or after it, and once they are closed the id is as good as new.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import meander as me
from meander_lab.nexmark.queries.groups import firsts, largest
from meander_lab.nexmark.queries.times import micros

BID = "price bigint, bid_dateTime timestamp"


@dataclass(frozen=True)
class Rule:
    """Which bids are an auction's: the columns of it that decide, and what must hold of them and of the bid.

    `early_us` is how long before its auction a bid may be made and still count.
    """

    span: str
    holds: pc.Expression
    early_us: int = 0


SQL = Rule(
    "dateTime timestamp, expires timestamp",
    (pc.field("bid_dateTime") >= pc.field("dateTime")) & (pc.field("bid_dateTime") <= pc.field("expires")),
)


def winning(auction: str, bid: str, group: Sequence[str], lateness_s: float, rule: Rule = SQL) -> type[me.Operator]:
    """The operator over auctions (id, dateTime, expires, ..) and bids (id, price, bid_dateTime, ..).

    `auction` and `bid` are the further columns of either, each after a comma. The answer is one row for each id and
    each value of the columns in `group`: the columns of the auction and of its winning bid.
    """
    span = rule.span
    deciding = ["id", *_names(span)]
    merit = [(name, "ascending") for name in _names(BID + bid)]
    merit[0] = ("price", "descending")
    order = [*merit, *((name, "ascending") for name in _names(span + auction))]

    class Winning(me.Operator):
        input = (f"id bigint, {span}{auction}", f"id bigint, {BID}{bid}")
        output = f"id bigint, {span}{auction}, {BID}{bid}"
        time = ("dateTime", "bid_dateTime")
        lateness = lateness_s
        ordered = False
        state = {  # noqa: RUF012
            "spans": me.Multimap(key="id bigint", value=span),
            "auctions": me.Multimap(key="id bigint", value=span + auction),
            "closing": me.Timers(key="id bigint"),
            "best": me.KeyedTable(key=f"id bigint, {span}", value=BID + bid),
            "early": me.Multimap(key="id bigint", value=BID + bid, time="bid_dateTime"),
        }

        def on_batch(self, auctions: pa.RecordBatch, bids: pa.RecordBatch, state: Any, now: Any) -> None:
            state["closing"].set(auctions["expires"], auctions["id"])
            state["auctions"].append(auctions["id"], auctions)
            state["spans"].append(auctions["id"], auctions)
            of, early = state["early"].get(auctions["id"])
            at, spans = state["spans"].get(bids["id"])
            met = [
                _beside(auctions.select(deciding).take(pa.array(of)), early),
                _beside(spans, bids.take(pa.array(at))),
            ]
            both = pa.concat_tables([each.select([*deciding, *_names(BID + bid)]) for each in met])
            _keep(both.filter(rule.holds), state["best"], deciding, merit)
            alone = np.ones(bids.num_rows, np.bool_)
            alone[at] = False
            waiting = bids.filter(pa.array(alone))
            state["early"].append(waiting["id"], waiting)
            if now.frontier is not None:
                state["early"].drop_before(now.frontier - rule.early_us)

        def on_time(self, due: Any, state: Any, now: Any) -> pa.Table:
            ids = pc.unique(due["closing"]["id"])
            of, auctions = state["auctions"].get(ids)
            over = largest(micros(auctions["expires"]), of) < now.frontier
            auctions = _beside(pa.table({"id": ids.take(pa.array(of))}), auctions).filter(pa.array(over))
            winners = _beside(auctions, state["best"].get(auctions))
            state["best"].delete(auctions)
            state["auctions"].delete(auctions["id"])
            state["spans"].delete(auctions["id"])
            return firsts(winners.filter(pc.field("price").is_valid()), ["id", *group], order)

    return Winning


def _keep(bids: pa.Table, best: Any, auction: Sequence[str], merit: Sequence[tuple[str, str]]) -> None:
    """Let bids compete with each other, and then with the best so far of their auction."""
    new = firsts(bids, auction, merit)
    old = _beside(new.select(auction), best.get(new)).filter(pc.field("price").is_valid())
    new = firsts(pa.concat_tables([new, old]), auction, merit)
    best.put(new, new)


def _beside(left: pa.RecordBatch | pa.Table, right: pa.RecordBatch) -> pa.Table:
    """The columns of both."""
    return pa.table({name: side[name] for side in (left, right) for name in side.schema.names})


def _names(columns: str) -> list[str]:
    return [column.split()[0] for column in columns.split(", ")]
