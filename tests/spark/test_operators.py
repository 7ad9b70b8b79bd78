"""Operators on real Spark: a chain is one job, event time and late rows, an operator of the user's own with two inputs.

What each operator computes is in tests/unit/test_stream_operators.py.
"""

from __future__ import annotations

import datetime as dt
import itertools
import random
from collections import Counter

import pyarrow as pa
import pytest

import meander as me
from streams import PATIENCE_S, Feed, cut, side_of, state_of

pytestmark = pytest.mark.spark

START = dt.datetime(2024, 5, 1, tzinfo=dt.UTC)
UTC = pa.timestamp("us", tz="UTC")
EVENTS = pa.schema([("user", pa.string()), ("ts", UTC), ("page", pa.string()), ("price", pa.float64())])


def events(rows: int, rng: random.Random, spread_s: int = 30) -> pa.Table:
    """Rows whose event time goes on, out of order by up to `spread_s`; no two alike."""
    times = [START + dt.timedelta(seconds=i + rng.randint(0, spread_s), microseconds=i) for i in range(rows)]
    return pa.table(
        {
            "user": [f"u{int(rng.paretovariate(0.6)) % 23}" for _ in range(rows)],
            "ts": pa.array(times, UTC),
            "page": [rng.choice(["home", "cart", None]) for _ in range(rows)],
            "price": [rng.choice([None, rng.randint(-400, 400) / 8]) for _ in range(rows)],
        },
        schema=EVENTS,
    )


def run(stream, tmp_path, sink=None, **options):
    """Run a stream to the end of its input, with ticks at the end alone, and return the rows it emitted."""
    sink = sink or me.sinks.memory()
    options = {"workers": 2, "idle_after_s": PATIENCE_S, "trigger": {"availableNow": True}, **options}
    query = stream.start(tmp_path / "ck", sink, **options)
    assert query.await_termination(PATIENCE_S)
    assert query.misrouted == 0
    return query, sink.to_arrow().to_pylist()


def of_version(rows, version):
    return [{name: value for name, value in row.items() if name != "batch"} for row in rows if row["batch"] == version]


def test_count_and_top_k_chain_in_one_job(spark, tmp_path):
    rng = random.Random(11)
    rows = pa.table({"word": [f"w{int(rng.paretovariate(0.5)) % 80}" for _ in range(900)]})
    batches = [batch for batch in cut(rows, 3, rng) if batch.num_rows]
    feed = Feed(tmp_path / "in", rows.schema, parts=2).add(*batches)
    jobs_at = []

    class Watching(me.sinks.Memory):
        def prepare(self, *given):
            jobs_at.append(spark.sparkContext._jsc.sc().statusStore().jobsList(None).size())
            return super().prepare(*given)

    stream = me.stream(feed.read(spark)).key_by("word").count().key_by().top_k(3, by="count", identity=["word"])
    query, emitted = run(stream, tmp_path, Watching("top"))

    so_far: Counter[str] = Counter()
    before: list[dict] = []
    for number, batch in enumerate(batches):
        so_far.update(batch["word"].to_pylist())
        best = sorted(so_far.items(), key=lambda each: (-each[1], each[0]))[:3]
        now = [{"word": word, "count": n, "rank": rank} for rank, (word, n) in enumerate(best, 1)]
        assert sorted(of_version(emitted, number), key=lambda row: row["rank"]) == ([] if now == before else now)
        before = now
    assert [later - earlier for earlier, later in itertools.pairwise(jobs_at)] == [1] * (len(batches) - 1)
    assert {row["word"]: row["count"] for row in state_of(tmp_path / "ck", 0)} == so_far
    assert {part.operator for part in query.last_progress.workers} == {0, 1}


def test_windows_close_once_and_late_rows_go_aside(spark, tmp_path):
    rng = random.Random(2)
    rows = events(400, rng, spread_s=90)
    batches = [batch for batch in cut(rows, 4, rng) if batch.num_rows]
    feed = Feed(tmp_path / "in", EVENTS).add(*batches)
    stream = me.stream(feed.read(spark)).key_by("user").window("ts", "20s", lateness="15s", emit="final").count("n")
    query, emitted = run(stream, tmp_path)

    windows, late, frontier = Counter(), [], None
    for batch in batches:
        found = batch.to_pylist()
        for row in found:
            start = START + (row["ts"] - START) // dt.timedelta(seconds=20) * dt.timedelta(seconds=20)
            if frontier is not None and start + dt.timedelta(seconds=20) <= frontier:
                late.append(row)
            else:
                windows[row["user"], start] += 1
        newest = max(row["ts"] for row in found) - dt.timedelta(seconds=15)
        frontier = newest if frontier is None else max(frontier, newest)
    closed = {each: n for each, n in windows.items() if each[1] + dt.timedelta(seconds=20) <= frontier}
    assert late
    assert set(closed) < set(windows)
    assert {(row["user"], row["window_start"]): row["n"] for row in emitted} == closed
    assert len(emitted) == len(closed)
    assert all(row["window_end"] - row["window_start"] == dt.timedelta(seconds=20) for row in emitted)
    left = {(row["user"], row["window_start"]) for row in state_of(tmp_path / "ck")}
    assert left == set(windows) - set(closed)
    aside = [{name: row[name] for name in EVENTS.names} for row in side_of(tmp_path / "ck", "late")]
    assert sorted(aside, key=lambda row: row["ts"]) == sorted(late, key=lambda row: row["ts"])
    assert sum(progress.late for progress in query.recent_progress) == len(late)


def test_an_operator_with_two_inputs(spark, tmp_path):
    class Bids(me.Operator):
        """Joins bids to auctions for ever, in whichever order they come."""

        input = ("auction bigint, seller string", "item bigint, price bigint")
        output = "auction bigint, seller string, price bigint"
        state = {  # noqa: RUF012
            "sellers": me.KeyedTable(key="auction bigint", value="seller string"),
            "bids": me.Multimap(key="auction bigint", value="price bigint"),
        }

        def on_batch(self, left, right, state, now):
            import numpy as np
            import pyarrow as pa
            import pyarrow.compute as pc

            known = pc.invert(state["sellers"].found(left["auction"]))
            new = left.filter(known)
            if right.num_rows:
                state["bids"].append(right["item"], right.select(["price"]))
            if new.num_rows:
                state["sellers"].put(new["auction"], new.select(["seller"]))
            made = []
            for keys, prices in ((right["item"], right["price"]),):
                sellers = state["sellers"].get(keys)["seller"] if right.num_rows else pa.array([], pa.string())
                fresh = pa.array(
                    ~np.isin(keys.to_numpy(zero_copy_only=False), new["auction"].to_numpy(zero_copy_only=False))
                )
                joined = pa.table({"auction": keys, "seller": sellers, "price": prices}).filter(fresh)
                made.append(joined.filter(pc.is_valid(joined["seller"])))
            if new.num_rows:
                which, found = state["bids"].get(new["auction"])
                made.append(pa.table({
                    "auction": new["auction"].take(pa.array(which)), "seller": new["seller"].take(pa.array(which)),
                    "price": found["price"],
                }))  # fmt: skip
            return pa.concat_tables(made)

    rng = random.Random(9)
    ids = list(range(60))
    rng.shuffle(ids)
    auctions = pa.table({"auction": pa.array(ids, pa.int64()), "seller": [f"s{n % 7}" for n in ids]})
    bids = [(rng.randrange(80), rng.randrange(1000)) for _ in range(250)]
    bought = pa.table({"item": pa.array([b[0] for b in bids]), "price": pa.array([b[1] for b in bids])})
    left = Feed(tmp_path / "left", auctions.schema).add(*cut(auctions, 2, rng))
    right = Feed(tmp_path / "right", bought.schema).add(*cut(bought, 2, rng))
    stream = me.stream(left.read(spark)).key_by("auction").connect(me.stream(right.read(spark)).key_by("item"))
    _, emitted = run(stream.process(Bids), tmp_path)
    found = sorted((row["auction"], row["seller"], row["price"]) for row in emitted)
    assert found == sorted((item, f"s{item % 7}", price) for item, price in bids if item < 60)
