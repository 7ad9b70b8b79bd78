"""A query that gets a further aggregate, another name and an operator at its end, and keeps its checkpoint."""

import meander as me
from meander.errors import ChangedQuery

orders = me.stream(me.testing.source("user string, city string, price bigint"))
before = orders.key_by("user").aggregate(paid=("sum", "price"))
after = orders.key_by("user").aggregate(spent=("sum", "price"), cities=("count_distinct", "city"))
best = after.key_by("user").top_k(1, by="spent")

DAYS = [("ann", "Rome", 30), ("bob", "Oslo", 20)], [("ann", "Oslo", 5), ("ann", "Rome", 4)], [("bob", "Bern", 1)]
batches = [[dict(zip(("user", "city", "price"), row, strict=True)) for row in day] for day in DAYS]

with me.testing.harness(before, workers=2, bins=16) as h:
    h.batch(batches[0])
    try:
        h.restart(after)
    except ChangedQuery as refusal:
        print(refusal)
    h.restart(best, evolve="add", renames={"paid": "spent"})  # start(...) takes the same
    h.batch(batches[1])
    h.rescale(3)
    h.restart(best)  # it has evolved: nothing more is to be said
    h.batch(batches[2])
    spent = {row["user"]: row["spent"] for row in h.state(0)}
    assert spent == {"ann": 39, "bob": 21}
    print("spent, as if nothing had changed:", spent)
