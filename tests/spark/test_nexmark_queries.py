"""Every NEXMark query against Spark's own SQL over the same files, which knows nothing of streams.

Spark computes the stateless part of each query, and the harness runs its operators; some run as streams of Spark too.
"""

from __future__ import annotations

import datetime as dt
import os
import random
from collections import Counter
from functools import cache

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from meander.scheduling import schedules
from meander_lab.nexmark.model import AUCTION, BID, KINDS, PERSON
from meander_lab.nexmark.queries import QUERIES, Options
from meander_lab.nexmark.running import Input, Run
from meander_lab.nexmark.streams import Events
from nexmark_harness import Prepared, there_and_back
from nexmark_runs import STATEFUL
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


@pytest.fixture(scope="module")
def prepared(spark, folder):
    """A query, as the harness runs it; each of them is built once."""

    @cache
    def prepare(name, window=None, slide=None):
        return Prepared.of(spark, folder, QUERIES[name], Options(window_s=window, slide_s=slide, lateness_s=LATENESS_S))

    return prepare


@pytest.fixture(scope="module")
def sql(spark, views):
    """What SQL says of the same files; each query is asked once."""

    @cache
    def ask(name, **sizes):
        wanted = spark.sql(text(name, **sizes)).toArrow()
        assert wanted.column_names == list(QUERIES[name].columns)
        assert wanted.num_rows >= 3
        return Counter(tuple(row.values()) for row in wanted.to_pylist())

    return ask


@pytest.mark.parametrize("name", QUERIES)
def test_the_answer_is_that_of_sql(name, prepared, sql):
    assert prepared(name).answer() == sql(name)


@pytest.mark.parametrize(
    ("name", "sizes"),
    [("q5", {"window": 6, "slide": 4}), ("q7", {"window": 2}), ("q8", {"window": 30}), ("q11", {"window": 3})],
)
def test_windows_can_be_of_other_sizes(name, sizes, prepared, sql):
    assert prepared(name, **sizes).answer() == sql(name, **sizes)


@pytest.mark.parametrize(
    ("name", "schedule"),
    [
        # Every query and every schedule are in every run, all pairs of them in a slow one.
        pytest.param(name, schedule, marks=() if at % len(schedules()) == number else pytest.mark.slow)
        for at, name in enumerate(STATEFUL)
        for number, schedule in enumerate(schedules())
    ],
)
def test_the_answer_stays_while_bins_move(name, schedule, prepared, sql):
    back = random.Random(f"{name} {schedule}").choice(list(schedules()))
    assert prepared(name).answer(there_and_back(schedule, back)) == sql(name)


ON_SPARK = ("q1", "q5", "q9")
"""A query without state, a chain and one with two inputs; the others run with the slow tests."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in ON_SPARK else pytest.mark.slow) for name in QUERIES]
)
def test_it_is_the_same_as_a_stream_of_spark(name, spark, folder, sql):
    source = Input(Events.of_files(spark, folder), batches=PARTS)
    options = Options(lateness_s=LATENESS_S)
    outcome = Run(QUERIES[name], source, options, workers=2, bins=16, settings={"idle_after_s": PATIENCE_S}).go()
    assert outcome.late == 0
    assert not any(progress.dead for progress in outcome.batches)
    assert Counter(tuple(row.values()) for row in outcome.rows.to_pylist()) == sql(name)


def test_only_the_columns_that_are_needed_are_shuffled(spark, folder):
    events = Events.of_files(spark, folder)
    for name, wanted in {"q2": 2, "q5": 2, "q11": 2, "q17": 6}.items():
        assert len(QUERIES[name].build(events, Options()).source.columns) == wanted
    for schema, kind in ((PERSON, "persons"), (AUCTION, "auctions"), (BID, "bids")):
        assert getattr(events, kind).columns == schema.names
