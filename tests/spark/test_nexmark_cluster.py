"""Stateful NEXMark queries on executors of their own, whose bins move while they run: the answer is that of SQL."""

from __future__ import annotations

import random

import pytest

import meander as me
from nexmark_runs import answer, moved, shifts, some_pairs, view_events, write_events

pytestmark = [pytest.mark.spark, pytest.mark.slow]


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


@pytest.mark.parametrize(("query", "first", "second"), some_pairs())
def test_the_answer_stays_while_bins_move(query, first, second, spark, folder):
    rows, reports = moved(spark, folder, query, shifts(random.Random(query), first, second))
    assert reports[0].outcome == "done"  # the second may still be under way when the input ends
    assert all(report.bins > 0 for report in reports)
    assert rows == answer(spark, query)
    assert len(rows) > 3
