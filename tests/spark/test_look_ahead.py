"""A running query that looks ahead: its own outlook, its own history, and rescaling by planner mtm."""

from __future__ import annotations

import json
import math
import random
from collections import Counter
from datetime import datetime, timedelta

import pyarrow as pa
import pytest

import meander as me
from meander.cli import main
from meander.errors import InvalidOption
from meander.outlook.practice import Effort
from streams import Feed, state_of

pytestmark = pytest.mark.spark

SWING = me.Transitions.given([[0, 1, 0], [0.5, 0, 0.5], [0, 1, 0]], lo=2)


class Counting:
    """A query that counts numbers in this process; its outlooks are computed on the session that is active."""

    def __init__(self, bins=16, seed=1):
        self.rng = random.Random(seed)
        self.given: Counter[int] = Counter()
        users = me.stream(me.testing.source("user bigint")).key_by("user")
        self.h = me.testing.harness(users.count(), workers=2, bins=bins)

    @property
    def query(self):
        return self.h.query

    def add(self, rows=400):
        users = [self.rng.randrange(200) for _ in range(rows)]
        self.given.update(users)
        self.h.batch({"user": user} for user in users)

    def recount(self):
        assert {row["user"]: row["count"] for row in self.h.state()} == self.given
        assert self.query.misrouted == 0


@pytest.fixture
def counting(spark):
    made = Counting()
    with made.h:
        yield made


def test_a_query_rescales_by_its_own_outlook_also_after_a_restart(counting):
    counting.add()
    found = counting.query.look_ahead(SWING, tau=0.6)
    assert list(found) == ["0:count"]
    outlook = found["0:count"]
    assert outlook.kind == "exact"
    for workers in (3, 4, 3):
        move = counting.h.rescale(workers, planner="mtm", tau=0.6)
        assert (move.report.planner, move.report.remarks) == ("mtm", ())
        counting.add()
    counting.recount()
    counting.h.restart()
    counting.add()
    query = counting.query
    (plan,) = query.plan_rescale(2, planner="mtm", tau=0.6).plans.values()
    assert plan.notes == ()
    assert query.plan_rescale(2, planner="mtm", tau=0.6, outlook=outlook).plans["0:count"].owner == plan.owner


def test_without_an_outlook_it_rescales_as_ssm_does_and_says_so(counting):
    counting.add()
    (plan,) = counting.query.plan_rescale(3, planner="mtm", tau=0.6).plans.values()
    assert plan.notes == ("planned by ssm: there is no outlook; make one with me.pmc(...)",)
    (ssm,) = counting.query.plan_rescale(3, planner="ssm", tau=0.6).plans.values()
    assert plan.owner == ssm.owner
    move = counting.h.rescale(3, planner="mtm", tau=0.6)
    assert move.report.remarks == (f"0:count: {plan.notes[0]}",)
    assert str(move.report).endswith(plan.notes[0])


def test_the_history_is_the_querys_own_unless_one_is_given(counting, tmp_path):
    counting.add()
    with pytest.raises(InvalidOption, match="always had as many workers as now"):
        counting.query.look_ahead()
    for workers in (3, 2):
        counting.h.rescale(workers, planner="ssm")
        counting.add()
    counts = [len(event.facts["workers"]) for event in counting.query.events if event.name == "workers"]
    assert counts == [2, 3, 2]
    outlook = counting.query.look_ahead(tau=0.6)["0:count"]
    assert (outlook.transitions.lo, outlook.transitions.hi) == (2, 3)
    series = tmp_path / "arrivals.csv"
    hours = [f"2026-09-{1 + hour // 24:02d} {hour % 24:02d}:00:00,{100 + 50 * (hour % 24 > 11)}" for hour in range(480)]
    series.write_text("\n".join(["time,amount", *hours]) + "\n")
    with pytest.raises(InvalidOption, match="give lo and hi"):
        counting.query.look_ahead(series)
    outlook = counting.query.look_ahead(series, lo=2, hi=4, tau=0.6)["0:count"]
    assert outlook.transitions.row(2).argmax() == 2


def test_a_wrong_option_is_named(counting):
    with pytest.raises(
        InvalidOption, match="look_ahead has no option 'speed'; there are: exactly, drift, effort, tell"
    ):
        counting.query.look_ahead(SWING, speed=3)


def test_a_stream_of_spark_learns_an_outlook_and_rescales_by_it(spark, tmp_path):
    given, rng = Counter(), random.Random(1)
    feed = Feed(tmp_path / "in", pa.schema([("user", pa.int64())]))

    def add():
        users = [rng.randrange(200) for _ in range(2000)]
        given.update(users)
        feed.add(pa.table({"user": users}))
        query.process_all_available()

    users = me.stream(feed.read(spark)).key_by("user").count()
    query = users.start(tmp_path / "ck", me.sinks.memory(), workers=2, bins=64, idle_after_s=0.2)
    try:
        add()
        small = Effort(rounds=2, tasks=2, steps=100, rehearsals=2, length=20)
        outlook = query.look_ahead(SWING, tau=0.6, exactly=False, effort=small)["0:count"]
        assert outlook.kind == "learned"
        move = query.rescale(3, planner="mtm", tau=0.6)
        move.wait()
        assert (move.report.planner, move.report.remarks) == ("mtm", ())
        add()
        query.stop()
        assert {row["user"]: row["count"] for row in state_of(tmp_path / "ck")} == given
        assert query.misrouted == 0
    finally:
        query.stop()


def test_simulate_makes_the_outlook_itself_and_keeps_it(spark, tmp_path, capsys):
    series = tmp_path / "arrivals.csv"
    start = datetime(2026, 1, 1)
    amounts = [100 + 50 * math.sin(hour / 24 * 2 * math.pi) + 9 * math.sin(hour) for hour in range(40 * 24)]
    rows = [f"{start + timedelta(hours=hour)},{amount:.3f}" for hour, amount in enumerate(amounts)]
    series.write_text("\n".join(["time,amount", *rows]) + "\n")
    command = ["simulate", str(series), "--planners", "ssm,mtm", "--lo", "2", "--hi", "4", "--bins", "12"]
    command += [
        "--tau",
        "0.5",
        "--drift",
        "0",
        "--migrations",
        "20",
        "--out",
        str(tmp_path / "out"),
        "--format",
        "json",
    ]
    assert main(command) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["left_out"] == {}
    ssm, mtm = answer["planners"]
    assert (mtm["planner"], mtm["notes"]) == ("mtm", {})
    assert mtm["bytes"] <= ssm["bytes"]
    (folder,) = (tmp_path / "out").glob("outlook-*")
    assert main([*command, "--outlook", str(folder)]) == 0
    assert json.loads(capsys.readouterr().out)["planners"][1]["bytes"] == mtm["bytes"]
