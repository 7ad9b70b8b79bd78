"""Every NEXMark query on real Spark against Spark's own SQL over the same files, which knows nothing of streams."""

from __future__ import annotations

import datetime as dt
import os
import random
from collections import Counter
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import meander as me
from meander_lab.nexmark.model import AUCTION, BID, KINDS, PERSON
from meander_lab.nexmark.queries import QUERIES, Options
from nexmark_sql import text
from streams import PATIENCE_S

pytestmark = pytest.mark.spark

START = dt.datetime(2015, 7, 14, 23, 59, 30, tzinfo=dt.UTC)
SECONDS, PARTS, LATENESS_S = 60, 3, 4


def random_events(rng: random.Random) -> dict[str, list[tuple]]:
    """Persons, auctions and bids of a minute around midnight, with ties, boundaries and ids that come twice."""

    def at() -> dt.datetime:
        # Many times are whole seconds: the ends of windows, sessions and auctions.
        odd_ms = rng.randrange(1000) if rng.random() < 0.3 else 0
        return START + dt.timedelta(seconds=rng.randrange(SECONDS), milliseconds=odd_ms)

    words = ["a", "b", None]
    persons = [
        (rng.randrange(25), rng.choice("xyz"), "m", "c", rng.choice("pq"), rng.choice(["OR", "ID", "WA"]), at(), "e")
        for _ in range(40)
    ]
    auctions = []
    for number in range(90):
        time, ends = at(), dt.timedelta(seconds=rng.randrange(20), milliseconds=rng.choice([0, 0, 500]))
        seller, category = rng.randrange(4 if rng.random() < 0.5 else 30), rng.randrange(9, 12)
        auctions.append(
            (number * 41, "item", rng.choice(words), 1, 5, time, time + ends, seller, category, f"x{number}")
        )
    for twice in rng.sample(auctions, 6):
        later = twice[6] + dt.timedelta(seconds=rng.randrange(5))
        auctions.append((*twice[:6], later, twice[7], rng.randrange(9, 12), "again"))
    span = {each[0]: each[5] for each in auctions}
    bids = []
    for _ in range(700):
        auction = rng.choice(auctions)[0] if rng.random() < 0.9 else 41 * 200
        time = span.get(auction, START) + dt.timedelta(seconds=rng.randrange(-3, 18))
        time = min(max(time, START), START + dt.timedelta(seconds=SECONDS))
        price = rng.choice([1, 2, 3, 9_999, 10_000, 1_000_000])
        bids.append((auction, rng.randrange(12), price, rng.choice(words), "u", time, rng.choice(words)))
    return {"person": persons, "auction": auctions, "bid": bids}


def write(folder, events, rng) -> None:
    """An event folder: part i of each kind has the events of the same while, out of order within the lateness."""
    for kind, schema in KINDS.items():
        (folder / kind).mkdir(parents=True)
        time_at = schema.names.index("dateTime")
        parts = [[] for _ in range(PARTS)]
        jitter = {}
        for row in events[kind]:
            # Twins come together: an auction's second self has all the bids that the first has.
            late = jitter.setdefault((row[0], row[time_at]), rng.random() * LATENESS_S)
            came = (row[time_at] - START).total_seconds() + late
            parts[min(int(came * PARTS / SECONDS), PARTS - 1)].append(row)
        for number, rows in enumerate(parts):
            columns = list(zip(*rows, strict=True)) or [[]] * len(schema)
            path = folder / kind / f"part-{number:05}.parquet"
            pq.write_table(
                pa.table([pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema=schema), path
            )
            os.utime(path, (1_000_000 + number, 1_000_000 + number))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    rng = random.Random(7)
    folder = tmp_path_factory.mktemp("events")
    write(folder, random_events(rng), rng)
    return folder


@pytest.fixture(scope="module")
def views(spark, folder):
    for kind in KINDS:
        spark.read.parquet(str(folder / kind)).createOrReplaceTempView(kind)


def streams(spark, folder):
    from pyspark.sql.pandas.types import from_arrow_schema

    def read(kind):
        reader = spark.readStream.schema(from_arrow_schema(KINDS[kind])).option("maxFilesPerTrigger", 1)
        return reader.parquet(str(folder / kind))

    return SimpleNamespace(persons=read("person"), auctions=read("auction"), bids=read("bid"))


def answer(spark, folder, asked, options, checkpoint):
    """The rows that stand at the end of all events."""
    sink = me.sinks.memory()
    query = asked.build(streams(spark, folder), options).start(
        checkpoint, sink, workers=2, bins=16, trigger={"availableNow": True}, at_end="close", idle_after_s=PATIENCE_S
    )
    assert query.await_termination(PATIENCE_S)
    assert not any(progress["late"] or progress["dead"] for progress in query.recent_progress)
    emitted = sink.to_arrow()
    rows, versions = asked.shown(emitted).to_pylist(), emitted["batch"].to_pylist()
    if asked.key is None:
        return rows
    newest = {}
    for row, version in zip(rows, versions, strict=True):
        key = tuple(row[name] for name in asked.key)
        newest[key] = max(version, newest.get(key, -1))
    return [
        row for row, version in zip(rows, versions, strict=True) if newest[tuple(row[k] for k in asked.key)] == version
    ]


def check(spark, folder, name, tmp_path, **sizes):
    asked = QUERIES[name]
    options = Options(window_s=sizes.get("window"), slide_s=sizes.get("slide"), lateness_s=LATENESS_S)
    found = answer(spark, folder, asked, options, tmp_path / "ck")
    wanted = spark.sql(text(name, **sizes)).toArrow()
    assert wanted.column_names == list(asked.columns)
    assert wanted.num_rows >= 3
    assert Counter(tuple(row.values()) for row in found) == Counter(tuple(row.values()) for row in wanted.to_pylist())


@pytest.mark.parametrize("name", QUERIES)
def test_the_answer_is_that_of_sql(name, spark, folder, views, tmp_path):
    check(spark, folder, name, tmp_path)


@pytest.mark.parametrize(
    ("name", "sizes"),
    [("q5", {"window": 6, "slide": 4}), ("q7", {"window": 2}), ("q8", {"window": 30}), ("q11", {"window": 3})],
)
def test_windows_can_be_of_other_sizes(name, sizes, spark, folder, views, tmp_path):
    check(spark, folder, name, tmp_path, **sizes)


def test_only_the_columns_that_are_needed_are_shuffled(spark, folder):
    events = streams(spark, folder)
    for name, wanted in {"q2": 2, "q5": 2, "q11": 2, "q17": 6}.items():
        assert len(QUERIES[name].build(events, Options()).source.columns) == wanted
    for schema, kind in ((PERSON, "persons"), (AUCTION, "auctions"), (BID, "bids")):
        assert getattr(events, kind).columns == schema.names
