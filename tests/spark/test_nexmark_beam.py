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


def run(spark, folder, name):
    source = Input(Events.of_files(spark, folder), batches=PARTS)
    return Run(QUERIES[name], source, Options(dialect="beam"), workers=2, bins=8, settings={"idle_after_s": 60}).go()


def plain(value):
    return round(value.timestamp() * 1000) if isinstance(value, dt.datetime) else value


@pytest.mark.parametrize("name", ["q0", *CALLED, "q6", "q7", "q8"])
def test_rows_are_those_of_the_model(name, spark, folder, events):
    outcome = run(spark, folder, name)
    wanted = beam_model.QUERIES[name](events)
    assert outcome.rows.num_rows == len(wanted)
    if name == "q0":
        return
    called = [CALLED.get(name, {}).get(each, each) for each in beam_model.COLUMNS[name]]
    ours = [each for each in called if each in outcome.rows.column_names]
    assert len(ours) >= len(called) - 1
    found = Counter(tuple(map(plain, row.values())) for row in outcome.rows.select(ours).to_pylist())
    assert found == Counter(tuple(row[called.index(each)] for each in ours) for row in wanted)
