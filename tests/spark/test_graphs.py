"""Queries with branches on Spark: joins and unions of what operators emit, and an output that two of them read."""

from __future__ import annotations

import datetime as dt
import random
from collections import Counter, defaultdict

import pyarrow as pa
import pytest

import meander as me
from streams import BRIEF, PATIENCE_S, Feed

pytestmark = pytest.mark.spark

NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
UTC = pa.timestamp("us", "UTC")
ROWS = pa.schema([("user", pa.string()), ("price", pa.int64()), ("ts", UTC)])
NOW = {"availableNow": True}


def some(rng, rows, second):
    """Rows of a few users; all times are near each other."""
    times = [NOON + dt.timedelta(seconds=second + rng.randrange(60)) for _ in range(rows)]
    columns = [[rng.choice("abcdefgh") for _ in range(rows)], [rng.randrange(9) for _ in range(rows)], times]
    return pa.table([pa.array(each, field.type) for each, field in zip(columns, ROWS, strict=True)], schema=ROWS)


def updates(batches):
    """What sums by user emit, batch by batch: user -> (sum, newest time)."""
    totals, newest, emitted = Counter(), {}, []
    for batch in batches:
        for row in batch.to_pylist():
            totals[row["user"]] += row["price"]
            newest[row["user"]] = max(newest.get(row["user"], row["ts"]), row["ts"])
        emitted.append({user: (totals[user], newest[user]) for user in set(batch["user"].to_pylist())})
    return emitted


def pairs_of(lefts, rights):
    """Every pair of updates of one user, in the batch of the later one."""
    pairs = defaultdict(Counter)
    for i, left in enumerate(lefts):
        for k, right in enumerate(rights):
            for user in left.keys() & right.keys():
                pairs[max(i, k)][user, left[user][0], right[user][0]] += 1
    return [each for _, each in sorted(pairs.items()) if each]


class Shop:
    """Two sources of orders, a file of each in every batch."""

    def __init__(self, folder, seed):
        self.folder, self.rng = folder, random.Random(seed)
        self.feeds = [Feed(folder / name, ROWS) for name in ("web", "shop")]
        self.batches = [[], []]

    def add(self, batches, rows=60):
        for _ in range(batches):
            for feed, mine in zip(self.feeds, self.batches, strict=True):
                mine.append(some(self.rng, rows, 10 * len(mine)))
                feed.add(mine[-1])

    def streams(self, spark):
        return [me.stream(each.read(spark)) for each in self.feeds]


def sums(stream):
    return stream.key_by("user").aggregate(total=("sum", "price"), ts=("max", "ts"))


def joined(web, shop):
    """A join of two operators' outputs, with one column of event time each."""
    left, right = sums(web), sums(shop)
    return left.join(right, on="user", within="1 day", lateness="1 day").select("user", "total", "total_right")


def counted(web, shop):
    """Updates of counts, even and odd ones apart and together again, beside those of another source."""
    from pyspark.sql import functions as F

    counts, others = web.key_by("user").count("n"), shop.key_by("user").count("n")
    even, odd = counts.where("n % 2 = 0"), counts.where(F.col("n") % 2 == 1)
    every = even.union(odd.select("n", "user")).union(others.with_columns(n=F.col("n") + 1000))
    return every.key_by("user").aggregate(updates="count", top=("max", "n"))


def recount(web, shop):
    """What `counted` emits, batch by batch."""
    counts, others, seen, emitted = Counter(), Counter(), Counter(), []
    for mine, theirs in zip(web, shop, strict=True):
        counts.update(mine["user"].to_pylist())
        others.update(theirs["user"].to_pylist())
        both = [set(each["user"].to_pylist()) for each in (mine, theirs)]
        for users in both:
            seen.update(users)
        top = {user: 1000 + others[user] if others[user] else counts[user] for user in both[0] | both[1]}
        emitted.append(Counter((user, seen[user], top[user]) for user in top))
    return emitted


def by_batch(sink):
    """What every batch emitted, oldest first; ticks, which have numbers too, emit nothing here."""
    found = defaultdict(Counter)
    for row in sink.to_arrow().to_pylist():
        version, *values = row.values()
        found[version][tuple(values)] += 1
    return [each for _, each in sorted(found.items())]


def test_joins_and_unions_of_outputs_equal_a_recount_after_a_restart_with_other_workers(spark, tmp_path):
    shop = Shop(tmp_path, seed=3)
    shop.add(2)
    sinks = me.sinks.memory(), me.sinks.memory()
    for workers in (2, 3):
        streams = shop.streams(spark)
        queries = [
            build(*streams).start(tmp_path / build.__name__, sink, workers=workers, bins=8, trigger=NOW)
            for build, sink in zip((joined, counted), sinks, strict=True)
        ]
        for query in queries:
            query.await_termination(PATIENCE_S)
            assert query.misrouted == 0
        assert [each.rows for each in queries[0].recent_progress] == [120, 120]
        if workers == 2:
            shop.add(2)
    assert by_batch(sinks[0]) == pairs_of(*map(updates, shop.batches))
    assert by_batch(sinks[1]) == recount(*shop.batches)


@pytest.fixture(scope="module")
def executors():
    from pyspark.sql import SparkSession

    if (active := SparkSession.getActiveSession()) is not None:
        active.stop()
    session = me.session("local-cluster[2,1,1024]", spark__executor__memory="1g", **BRIEF)
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.mark.slow
def test_executors_of_their_own_give_the_same_while_bins_move_and_rows_come_in_waves(executors, tmp_path):
    shop = Shop(tmp_path, seed=5)
    shop.add(2, rows=9000)
    sink = me.sinks.memory()
    query = counted(*shop.streams(executors)).start(
        tmp_path / "ck", sink, workers=2, bins=8, hand_over_bytes=1 << 16, trigger="0 seconds"
    )
    for targets in ({0: 1, 1: 1, 2: 1}, {0: 0, 5: 0}):
        query.process_all_available()
        migration = query.move(targets)
        shop.add(2)
        query.process_all_available()
        migration.wait(PATIENCE_S)
        assert migration.status == "done"
    query.stop()
    assert query.misrouted == 0
    assert by_batch(sink) == recount(*shop.batches)
