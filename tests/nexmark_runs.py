"""NEXMark queries over generated events with migrations on the way, beside the answer of SQL over the same events."""

from __future__ import annotations

import random
from collections import Counter

from meander.scheduling import schedules
from meander_lab.nexmark import files
from meander_lab.nexmark.generator import Config
from meander_lab.nexmark.model import KINDS
from meander_lab.nexmark.queries import QUERIES, Options
from meander_lab.nexmark.running import Input, Run, Shift
from meander_lab.nexmark.streams import Events
from nexmark_sql import text

STATEFUL = [name for name in QUERIES if name not in ("q0", "q1", "q2")]
BATCHES, BINS = 10, 8
CONFIG = Config(count=5000, rate_per_s=100, generators=1, auctions_in_flight=20, bid_bytes=0)
"""Fifty seconds of event time, so that windows, sessions and auctions end on the way."""


def write_events(folder):
    """The event folder that all runs read."""
    files.write(folder, CONFIG.count, CONFIG, BATCHES)
    return folder


def view_events(spark, folder):
    """The events as views, for SQL."""
    for kind in KINDS:
        spark.read.parquet(str(folder / kind)).createOrReplaceTempView(kind)


def answer(spark, name):
    """What SQL says of the events that are in view."""
    return counted(spark.sql(text(name)).toArrow())


def shifts(rng: random.Random, *names: str) -> list[Shift]:
    """Bins move early and back later, by these schedules."""
    return [Shift(name, at) for name, at in zip(names, (rng.uniform(0.1, 0.25), rng.uniform(0.5, 0.6)), strict=True)]


def moved(spark, folder, name, moves):
    """The final rows of a query whose bins move, and what was moved."""
    source = Input(Events.of_files(spark, folder), batches=BATCHES)
    run = Run(QUERIES[name], source, Options(), moves, workers=2, bins=BINS, settings={"idle_after_s": 60})
    outcome = run.go()
    assert outcome.late == 0
    return counted(outcome.rows), outcome.moves


def counted(rows) -> Counter:
    """Rows as a multiset."""
    return Counter(tuple(row.values()) for row in rows.to_pylist())


def some_pairs():
    """A chain of windows, timers and two inputs, by all schedules; the faults' suite takes all queries."""
    names = list(schedules())
    queries = ("q5", "q6", "q8")
    return [(query, names[2 * at % len(names)], names[(2 * at + 1) % len(names)]) for at, query in enumerate(queries)]
