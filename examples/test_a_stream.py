"""A stream tested without Spark: batches in, rows out, while workers come, get lost and the driver starts anew."""

from collections import Counter
from datetime import datetime, timedelta

import meander as me

START = datetime(2026, 1, 1, 10)
CLICKS = [["ann", "bob", "ann"], ["cid", "ann"], ["bob", "bob", "cid"], ["ann"]]


def clicks_by_hour(clicks):
    """What is tested; on Spark it gets me.stream(df)."""
    return clicks.key_by("user").window("at", "1 hour", emit="final").count()


def run(happens):
    """The counts of all hours, with something that happens after some of the batches."""
    clicks = me.stream(me.testing.source("user string, at timestamp"))
    with me.testing.harness(clicks_by_hour(clicks), workers=2, bins=16) as h:
        for number, users in enumerate(CLICKS):
            at = START + timedelta(minutes=40 * number)
            h.batch([{"user": user, "at": at} for user in users])
            happens.get(number, lambda h: None)(h)
        h.idle()  # nothing comes any more: hours that are over close
        closed = len(h.output())
        h.end()  # and at the end all others do
        assert 0 < closed < len(h.output())
        assert not h.late()
        assert not h.state()
        print(f"{h.query.version + 1} versions, workers {h.query.workers}")
        return Counter({(row["user"], row["window_start"].hour): row["count"] for row in h.output()})


quiet = run({})
rough = run({0: lambda h: h.rescale(3), 1: lambda h: h.lose(2), 2: lambda h: h.restart()})
assert quiet == rough
assert quiet == Counter(
    (user, (START + timedelta(minutes=40 * number)).hour) for number, users in enumerate(CLICKS) for user in users
)
print("the same counts, whatever happened:", dict(sorted(quiet.items())))
