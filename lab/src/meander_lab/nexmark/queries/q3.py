"""Who sells in category 10, in Oregon, Idaho or California, and which auctions.

A row is an auction with its seller: name, city, state, id. It comes as soon as both are there, whichever is first.
The join has no end: people and auctions are kept for ever. A person id that comes twice gives a row for each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import meander as me
from meander_lab.nexmark.queries.joining import joining

if TYPE_CHECKING:
    from meander.streams import Stream
    from meander_lab.nexmark.queries.options import Options
    from meander_lab.nexmark.streams import Events

KEY = None
COLUMNS = ("name", "city", "state", "id")

PERSON = "name string, city string, state string"


def build(events: Events, options: Options) -> Stream:
    """The stream of answers."""
    people = events.persons.where("state IN ('OR', 'ID', 'CA')").selectExpr("id AS seller", "name", "city", "state")
    auctions = events.auctions.where("category = 10").select("seller", "id")
    operator = joining("seller bigint", left=PERSON, right="id bigint", shown=f"{PERSON}, id bigint")
    return me.stream(people).key_by("seller").connect(me.stream(auctions).key_by("seller")).process(operator)
