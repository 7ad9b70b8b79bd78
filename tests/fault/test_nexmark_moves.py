"""Every stateful NEXMark query with every schedule, at random moments, on executors of their own."""

from __future__ import annotations

import random

import pytest

import meander as me
from meander.scheduling import schedules
from nexmark_runs import STATEFUL, answer, moved, shifts, view_events, write_events

pytestmark = [pytest.mark.spark, pytest.mark.fault, pytest.mark.soak]


@pytest.fixture(scope="module")
def spark():
    session = me.session("local-cluster[2,1,1024]", spark__executor__memory="1g")
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture(scope="module")
def folder(spark, tmp_path_factory):
    folder = write_events(tmp_path_factory.mktemp("events"))
    view_events(spark, folder)
    return folder


@pytest.mark.parametrize("schedule", schedules())
@pytest.mark.parametrize("query", STATEFUL)
def test_the_answer_is_that_of_sql_and_of_the_undisturbed_run(query, schedule, spark, folder):
    rng = random.Random(f"{query} {schedule}")
    rows, reports = moved(spark, folder, query, shifts(rng, schedule, rng.choice(list(schedules()))))
    assert sum(report.bins for report in reports) > 0
    quiet, _ = moved(spark, folder, query, [])
    assert rows == quiet == answer(spark, query)
