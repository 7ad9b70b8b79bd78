"""Orders and payments of the same customer within an hour: pairs, and what stays without a partner, on both sides."""

from datetime import datetime

import meander as me

ORDERS = [("ann", "10:00", "tea"), ("bob", "10:05", "oil")]
PAYMENTS = [("ann", "10:20", 3), ("cid", "10:30", 9)]


def rows(columns, values):
    """Rows whose second value is a time of day."""
    times = (datetime.fromisoformat(f"2026-01-01T{at}") for _, at, _ in values)
    return [dict(zip(columns, (who, at, what), strict=True)) for at, (who, _, what) in zip(times, values, strict=True)]


orders = me.stream(me.testing.source("user string, at timestamp, item string"))
payments = me.stream(me.testing.source("user string, at timestamp, amount bigint"))
both = orders.join(payments, on="user", within="1 hour", how="full")
with me.testing.harness(both) as h:
    h.batch(left=rows(("user", "at", "item"), ORDERS), right=rows(("user", "at", "amount"), PAYMENTS))
    h.end()  # no partner can come any more
    found = sorted((row["user"], row["item"], row["amount"]) for row in h.output())
for user, item, amount in found:
    print(f"{user}: {item or 'no order'}, {amount or 'no payment'}")
assert found == [("ann", "tea", 3), ("bob", "oil", None), ("cid", None, 9)]
