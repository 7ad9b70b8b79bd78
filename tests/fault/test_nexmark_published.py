"""As many results as Beam publishes for its suite, with all of its events; slow, so it is run with the faults."""

from __future__ import annotations

import pytest

import beam_model
import meander as me
from meander_lab.nexmark import files
from meander_lab.nexmark.generator import Config
from meander_lab.nexmark.queries import QUERIES, Options
from meander_lab.nexmark.running import Input, Run
from meander_lab.nexmark.streams import Events

pytestmark = [pytest.mark.spark, pytest.mark.fault, pytest.mark.soak]

PARTS = 4


@pytest.fixture(scope="module")
def spark():
    session = me.session("local[2]")
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.mark.parametrize(("name", "published"), beam_model.PUBLISHED.items())
def test_there_are_as_many_results_as_beam_has(name, published, spark, tmp_path):
    count, results = published
    files.write(tmp_path, count, Config(count=count), PARTS)
    source = Input(Events.of_files(spark, tmp_path), batches=PARTS)
    outcome = Run(QUERIES[name], source, Options(dialect="beam"), workers=2).go()
    assert outcome.rows.num_rows == results
