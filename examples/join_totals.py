"""What users have spent beside how often they have looked, minute by minute: a join of what two operators emit."""

from datetime import datetime

import meander as me

orders = me.testing.source("user string, at timestamp, price bigint")
clicks = me.testing.source("user string, at timestamp")


def by_minute(stream, **named):
    """Aggregates of each user and minute, once it is over."""
    return stream.key_by("user").window("at", "1 minute", emit="final").aggregate(**named)


# On Spark these are streaming DataFrames, and the last line is both.start(checkpoint, sink).
spent = by_minute(me.stream(orders), spent=("sum", "price"))
looks = by_minute(me.stream(clicks), looks="count")
both = spent.join(looks, on=["user", "window_start"], window="1 minute", time="window_end")

with me.testing.harness(both.select("user", "spent", "looks")) as h:
    for minute, (price, times) in enumerate([(3, 2), (5, 1), (9, 4)]):
        at = datetime(2026, 1, 1, 12, minute)
        h.batch({orders: [{"user": "ann", "at": at, "price": price}], clicks: [{"user": "ann", "at": at}] * times})
        h.rescale(minute + 1)
    h.end()
    for row in h.output():
        print(row)
    assert [(row["spent"], row["looks"]) for row in h.output()] == [(3, 2), (5, 1), (9, 4)]
