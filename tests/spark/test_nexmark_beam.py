"""The queries in Beam's dialect: rows as a model of Beam has them, and as many as Beam publishes."""

from __future__ import annotations

import datetime as dt
from collections import Counter

import pytest

import beam_model
from meander_lab.nexmark import files
from meander_lab.nexmark.generator import Config
from meander_lab.nexmark.queries import QUERIES, Options
from meander_lab.nexmark.running import Input, Run
from meander_lab.nexmark.streams import Events
from nexmark_harness import Prepared

pytestmark = pytest.mark.spark

PARTS = 3
CALLED = {
    "q4": {"window": "starttime"},
    "q5": {"window": "starttime"},
    "q9": {"dateTime": "bid_dateTime"},
    "q11": {"start": "starttime", "end": "endtime", "bids": "bid_count"},
}
"""What the model's columns are called here; those that our rows do not have are left out."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("events")
    files.write(folder, 10_000, Config(count=10_000), PARTS)
    return folder


@pytest.fixture(scope="module")
def events():
    return beam_model.events(10_000)


BETWEEN = ("q4", "q11")
"""Queries with an expression of Spark between two operators, which only Spark can compute."""


def plain(value):
    return round(value.timestamp() * 1000) if isinstance(value, dt.datetime) else value


def check(name, columns, rows, events):
    """These rows, a multiset of tuples, are those of the model."""
    wanted = beam_model.QUERIES[name](events)
    assert rows.total() == len(wanted)
    if name == "q0":
        return
    called = [CALLED.get(name, {}).get(each, each) for each in beam_model.COLUMNS[name]]
    ours = [each for each in called if each in columns]
    assert len(ours) >= len(called) - 1
    places = [columns.index(each) for each in ours]
    found = Counter(tuple(plain(row[at]) for at in places) for row in rows.elements())
    assert found == Counter(tuple(row[called.index(each)] for each in ours) for row in wanted)


@pytest.mark.parametrize("name", [name for name in ("q0", *CALLED, "q6", "q7", "q8") if name not in BETWEEN])
def test_rows_are_those_of_the_model(name, spark, folder, events):
    options = Options(dialect="beam")
    rows = Prepared.of(spark, folder, QUERIES[name], options).answer()
    check(name, QUERIES[name].shape("beam").columns, rows, events)


@pytest.mark.parametrize("name", [pytest.param("q4", marks=pytest.mark.slow), "q11"])
def test_rows_of_a_stream_of_spark_are_those_of_the_model(name, spark, folder, events):
    source = Input(Events.of_files(spark, folder), batches=PARTS)
    run = Run(QUERIES[name], source, Options(dialect="beam"), workers=2, bins=8, settings={"idle_after_s": 60})
    rows = run.go().rows
    check(name, rows.column_names, Counter(tuple(row.values()) for row in rows.to_pylist()), events)
