"""Every operator over random streams, in one process, against a plain recomputation."""

from __future__ import annotations

import datetime as dt
import random
from collections import Counter, defaultdict

import pyarrow as pa
import pytest

import meander as me
from in_process import emitted, fed, of_version
from streams import cut

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


def source(schema):
    return me.stream(me.testing.source(schema))


def test_count_and_top_k_one_after_the_other():
    rng = random.Random(11)
    rows = pa.table({"word": [f"w{int(rng.paretovariate(0.5)) % 80}" for _ in range(900)]})
    batches = [batch for batch in cut(rows, 6, rng) if batch.num_rows]
    stream = source(rows.schema).key_by("word").count().key_by().top_k(3, by="count", identity=["word"])
    so_far: Counter[str] = Counter()
    before: list[dict] = []
    with fed(stream, batches) as h:
        for number, batch in enumerate(batches):
            so_far.update(batch["word"].to_pylist())
            best = sorted(so_far.items(), key=lambda each: (-each[1], each[0]))[:3]
            now = [{"word": word, "count": n, "rank": rank} for rank, (word, n) in enumerate(best, 1)]
            assert sorted(of_version(h, number), key=lambda row: row["rank"]) == ([] if now == before else now)
            before = now
        assert {row["word"]: row["count"] for row in h.state(0)} == so_far
        assert {part.operator for part in h.query.last_progress.workers} == {0, 1}


def test_aggregates():
    rng = random.Random(5)
    rows = events(500, rng)
    batches = cut(rows, 4, rng)
    stream = source(EVENTS).key_by("user").aggregate(
        by="ts", total=("sum", "price"), low=("min", "price"), high=("max", "price"), mean=("mean", "price"),
        n="count", priced=("count", "price"), first=("first", "page"), last=("last", "price"),
    )  # fmt: skip
    with fed(stream, batches) as h:
        found = [{row["user"]: row for row in of_version(h, number)} for number in range(len(batches))]
    so_far = defaultdict(list)
    for number, batch in enumerate(batches):
        for row in batch.to_pylist():
            so_far[row["user"]].append(row)
        wanted = []
        for user in {*batch["user"].to_pylist()}:
            mine = sorted(so_far[user], key=lambda row: row["ts"])
            prices = [row["price"] for row in mine if row["price"] is not None]
            wanted.append(
                {
                    "user": user,
                    "total": sum(prices) if prices else None,
                    "low": min(prices, default=None),
                    "high": max(prices, default=None),
                    "mean": pytest.approx(sum(prices) / len(prices)) if prices else None,
                    "n": len(mine),
                    "priced": len(prices),
                    "first": mine[0]["page"],
                    "last": mine[-1]["price"],
                }
            )
        assert found[number] == {row["user"]: row for row in wanted}


def test_dedup_lets_each_key_through_once():
    rng = random.Random(8)
    rows = events(300, rng)
    batches = cut(rows, 4, rng)
    with fed(source(EVENTS).key_by("user").dedup(time="ts"), batches) as h:
        rows = emitted(h)
    seen = {}
    for number, batch in enumerate(batches):
        for row in sorted(batch.to_pylist(), key=lambda row: row["ts"]):
            seen.setdefault(row["user"], {"batch": number, **row})
    assert {row["user"]: row for row in rows} == seen
    assert len(rows) == len(seen)


def test_windows_close_once_and_late_rows_go_aside():
    rng = random.Random(2)
    rows = events(400, rng, spread_s=90)
    batches = [batch for batch in cut(rows, 5, rng) if batch.num_rows]
    stream = source(EVENTS).key_by("user").window("ts", "20s", lateness="15s", emit="final").count("n")
    with fed(stream, batches) as h:
        rows, state, aside = emitted(h), h.state(), h.late()
        progress = h.query.recent_progress

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
    assert {(row["user"], row["window_start"]): row["n"] for row in rows} == closed
    assert len(rows) == len(closed)
    assert all(row["window_end"] - row["window_start"] == dt.timedelta(seconds=20) for row in rows)
    left = {(row["user"], row["window_start"]) for row in state}
    assert left == set(windows) - set(closed)
    aside = [{name: row[name] for name in EVENTS.names} for row in aside]
    assert sorted(aside, key=lambda row: row["ts"]) == sorted(late, key=lambda row: row["ts"])
    assert sum(each.late for each in progress) == len(late)


def test_sessions():
    at = [0, 4, 30, 31, 9, 200]
    rows = pa.table({"user": ["a"] * 6, "ts": pa.array([START + dt.timedelta(seconds=s) for s in at], UTC)})
    stream = source(rows.schema).key_by("user").window("ts", gap="10s", lateness="30s").count()
    with fed(stream, [rows.slice(0, 3), rows.slice(3, 2), rows.slice(5)]) as h:
        sessions = [
            ((row["window_start"] - START).seconds, (row["window_end"] - START).seconds, row["count"])
            for row in emitted(h)
        ]
    assert sorted(sessions) == [(0, 19, 3), (30, 41, 2)]


def test_fold_calls_the_users_function_with_rows_and_state():
    def spent(rows, state):
        import numpy as np
        import pyarrow as pa
        import pyarrow.compute as pc

        paid = rows["price"].fill_null(0.0).to_numpy()
        totals = np.bincount(rows["__group"], weights=paid, minlength=state.num_rows)
        totals = totals + state["total"].fill_null(0.0).to_numpy()
        return pa.table({"total": totals}), pa.table({"user": state["user"], "total": totals}).filter(
            pc.field("total") > 50
        )

    rng = random.Random(4)
    rows = events(400, rng)
    batches = cut(rows, 4, rng)
    stream = source(EVENTS).key_by("user").fold(spent, "total double", "user string, total double")
    with fed(stream, batches) as h:
        found = [{row["user"]: row["total"] for row in of_version(h, number)} for number in range(len(batches))]
        state = h.state()
    totals: dict[str, float] = defaultdict(float)
    for number, batch in enumerate(batches):
        for row in batch.to_pylist():
            totals[row["user"]] += row["price"] or 0.0
        wanted = {user: totals[user] for user in batch["user"].to_pylist() if totals[user] > 50}
        assert found[number] == wanted
    assert {row["user"]: row["total"] for row in state} == totals


def test_an_operator_of_the_users_own_with_state_and_timers():
    class Silence(me.Operator):
        """Says who has been silent for ten seconds since his last row."""

        input = "user string, ts timestamp, page string"
        output = "user string, since timestamp"
        state = {  # noqa: RUF012
            "last": me.KeyedTable(key="user string", value="ts timestamp"),
            "alarms": me.Timers(key="user string", payload="since timestamp"),
        }
        time = "ts"

        def on_batch(self, rows, state, now):
            import pyarrow as pa
            import pyarrow.compute as pc

            newest = pa.table(rows).group_by("user").aggregate([("ts", "max")])
            before = state["last"].get(newest["user"])["ts"]
            ts = pc.max_element_wise(newest["ts_max"].cast(pa.int64()), before.cast(pa.int64())).cast(before.type)
            state["last"].put(newest["user"], pa.table({"ts": ts}))
            state["alarms"].set(ts.cast(pa.int64()).to_numpy() + 10_000_000, newest["user"], pa.table({"since": ts}))

        def on_time(self, due, state, now):
            import pyarrow as pa
            import pyarrow.compute as pc

            alarms = due["alarms"]
            still = pc.equal(state["last"].get(alarms["user"])["ts"], alarms["since"])
            return pa.table({"user": alarms["user"], "since": alarms["since"]}).filter(still)

    rng = random.Random(6)
    rows = events(300, rng)
    batches = [batch for batch in cut(rows, 5, rng) if batch.num_rows]
    with fed(source(EVENTS).key_by("user").process(Silence), batches) as h:
        rows = emitted(h)

    last, alarms, wanted, frontier = {}, set(), [], None

    def fire():
        due = {each for each in alarms if frontier is not None and each[0] < frontier}
        alarms.difference_update(due)
        wanted.extend((user, since) for _, user, since in due if last[user] == since)

    for batch in batches:
        fire()
        for user in {*batch["user"].to_pylist()}:
            newest = max(row["ts"] for row in batch.to_pylist() if row["user"] == user)
            last[user] = max(newest, last.get(user, newest))
            alarms.add((last[user] + dt.timedelta(seconds=10), user, last[user]))
        newest = max(batch["ts"].to_pylist())
        frontier = newest if frontier is None else max(frontier, newest)
    fire()
    assert sorted((row["user"], row["since"]) for row in rows) == sorted(wanted)
    assert wanted


def test_an_operator_with_two_inputs():
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
    batches = [
        {"left": left, "right": right} for left, right in zip(cut(auctions, 4, rng), cut(bought, 4, rng), strict=True)
    ]
    both = source(auctions.schema).key_by("auction").connect(source(bought.schema).key_by("item"))
    with fed(both.process(Bids), batches) as h:
        found = sorted((row["auction"], row["seller"], row["price"]) for row in emitted(h))
    assert found == sorted((item, f"s{item % 7}", price) for item, price in bids if item < 60)
