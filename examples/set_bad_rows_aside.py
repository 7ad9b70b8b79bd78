"""A function that raises for some users: their rows go aside with the traceback, all others are counted."""

import meander as me

CLICKS = [("ann", 3), ("bob", -1), ("ann", 4), ("cid", 2)]


def spent(user, rows, state):
    """What each user has spent so far."""
    total = (state.total or 0) + sum(row.price for row in rows)
    if any(row.price < 0 for row in rows):
        raise ValueError(f"{user} has paid a negative price")
    state.update(total=total)
    yield user, total


clicks = me.stream(me.testing.source("user string, price long")).key_by("user")
totals = clicks.map_with_state(spent, "total long", "user string, total long")

with me.testing.harness(totals, on_error="dead_letter", errors=100) as h:
    first = h.batch([{"user": user, "price": price} for user, price in CLICKS])
    print(sorted((row["user"], row["total"]) for row in first))
    for letter in h.dead():
        print(letter["row"], "->", letter["reason"].splitlines()[-1])
    print(h.batch([{"user": "bob", "price": 5}]))
