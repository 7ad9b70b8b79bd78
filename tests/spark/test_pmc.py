"""Projected costs on Spark: which form is taken, and what is learned there is what one process learns."""

from __future__ import annotations

import dataclasses
import shlex
import sys
import sysconfig

import numpy as np
import pytest

import meander as me
from meander.errors import InvalidOption, InvalidProblem, TooLarge
from meander.outlook import ExactOutlook, LearnedOutlook, files
from meander.outlook import pmc as module
from meander.outlook.pmc import DRIFT, pmc
from meander.outlook.practice import SETS, Effort, Lesson, learn
from meander.outlook.transitions import Transitions
from outlooks import solve

pytestmark = pytest.mark.spark

PAPER = Transitions.given([[0.3, 0.6, 0.1], [0.3, 0.4, 0.3], [0.1, 0.5, 0.4]], lo=2)
EIGHT_TO_SIXTEEN = Transitions.given(np.full((9, 9), 1 / 9).tolist(), lo=8)
LITTLE = Effort(rounds=3, tasks=3, steps=100, rehearsals=3, length=40)


class KilledError(Exception):
    pass


@pytest.fixture
def bins():
    rng = np.random.default_rng(3)
    return rng.uniform(0.5, 2, 20), rng.uniform(1, 9, 20)


@pytest.fixture
def bare_python(tmp_path):
    """A Python that has all we need but not us: it does not look into the files that name other folders."""
    path = tmp_path / "python"
    packages = shlex.quote(sysconfig.get_path("purelib"))
    path.write_text(f'#!/bin/sh\nPYTHONPATH="$PYTHONPATH":{packages} exec {shlex.quote(sys.executable)} -S "$@"\n')
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def stranger(bare_python, monkeypatch):
    """A session that is not ours, whose Python workers are without Meander."""
    from pyspark.sql import SparkSession

    monkeypatch.setenv("PYSPARK_PYTHON", bare_python)
    settings = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
    session = SparkSession.builder.master("local[1]").config(map=settings).getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


def same(a, b):
    assert a.fingerprint == b.fingerprint
    assert a.facts() == b.facts()
    assert all(np.array_equal(a.weights[which], b.weights[which]) for which in SETS)
    return True


def here(load, state, transitions, tau, gamma, effort=LITTLE):
    """What one process learns, without Spark."""
    lesson = Lesson.of(load, state, transitions, tau, gamma, DRIFT)
    return learn(lesson, effort, map, lambda *_: None)


def test_workers_without_meander_are_noticed_in_one_sentence(stranger, bins, tmp_path):
    with pytest.raises(InvalidOption) as refused:
        pmc(stranger, *bins, PAPER, 0.4, exactly=False, effort=LITTLE, path=tmp_path / "a")
    assert str(refused.value) == (
        "the Python workers of this Spark session lack the module 'meander'; before Spark starts set PYSPARK_PYTHON "
        f"to a Python that has Meander, such as {sys.executable}, or use me.session()"
    )
    assert refused.value.__cause__ is None


def test_also_where_they_do_not_even_start(spark, bare_python, bins, monkeypatch):
    monkeypatch.setattr(spark.sparkContext, "pythonExec", bare_python)
    with pytest.raises(InvalidOption, match="workers of this Spark session lack the module 'meander'; before Spark"):
        pmc(spark, *bins, PAPER, 0.4, exactly=False, effort=LITTLE)


def test_what_fails_for_another_reason_fails_as_it_did(spark):
    from pyspark.errors import PySparkException

    def fail(task):
        raise RuntimeError("no such luck")

    with pytest.raises(PySparkException, match="no such luck"):
        module._everywhere(spark, fail, [1, 2])


def test_spark_learns_what_one_process_learns(spark, bins, tmp_path):
    told = []
    outlook = pmc(
        spark, *bins, PAPER, 0.4, 0.9, tmp_path, exactly=False, effort=LITTLE, tell=lambda *each: told.append(each)
    )
    assert isinstance(outlook, LearnedOutlook)
    for which, (weights, moves, ssm_moves) in here(*bins, PAPER, 0.4, 0.9).items():
        assert weights.any()
        assert np.array_equal(outlook.weights[which], weights)
        assert outlook.rehearsed[which] == (moves, ssm_moves)
    assert list(dict.fromkeys(what for _, _, what in told)) == ["rounds of practice", "rehearsals"]
    assert same(outlook, files.read(tmp_path))
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == []
    # What is there is not made again: it needs no Spark any more.
    assert same(pmc(None, *bins, PAPER, 0.4, 0.9, tmp_path, exactly=False, effort=LITTLE), outlook)
    problem = me.Problem(*bins, [0] * 10 + [1] * 10, 3, 0.4)
    assert me.plan(problem, "mtm", outlook=tmp_path) == me.plan(problem, "mtm", outlook=outlook)


def test_killed_in_the_middle_it_goes_on_where_it_was(spark, bins, tmp_path, monkeypatch):
    inputs = (*bins, PAPER, 0.4, 0.9, tmp_path)
    calls = []
    everywhere = module._everywhere

    def counting(spark, function, tasks):
        calls.append(function.func.__name__)
        return everywhere(spark, function, tasks)

    monkeypatch.setattr(module, "_everywhere", counting)

    def until(what, at_least):
        def tell(done, total, now):
            if now == what and done >= at_least:
                raise KilledError

        return tell

    for what, at_least in [("rounds of practice", 2), ("rehearsals", 0)]:
        with pytest.raises(KilledError):
            pmc(spark, *inputs, exactly=False, effort=LITTLE, tell=until(what, at_least))
        assert not (tmp_path / files.INDEX).exists()
    for change, other in [
        ({"gamma": 0.8}, "gamma"),
        ({"drift": 0.1}, "drift"),
        ({"effort": dataclasses.replace(LITTLE, seed=1)}, "effort"),
    ]:
        options = {"gamma": 0.9, "path": tmp_path, "exactly": False, "effort": LITTLE, **change}
        with pytest.raises(InvalidOption, match=f"holds an unfinished outlook for another {other}; give another path"):
            pmc(spark, *bins, PAPER, 0.4, **options)
    outlook = pmc(spark, *inputs, exactly=False, effort=LITTLE)
    assert calls == ["practised"] * 3 + ["rehearsed"]
    assert same(outlook, pmc(None, *inputs, exactly=False, effort=LITTLE))
    for which, each in here(*bins, PAPER, 0.4, 0.9).items():
        assert np.array_equal(outlook.weights[which], each.weights)
    with pytest.raises(InvalidOption, match="an outlook of kind 'learned' for another tau; give another path"):
        pmc(spark, *bins, PAPER, 0.5, 0.9, tmp_path, exactly=False, effort=LITTLE)
    with pytest.raises(InvalidOption, match="holds an outlook of kind 'learned'"):
        pmc(spark, *inputs, exactly=True)
    assert same(files.read(tmp_path), outlook)


def test_the_exact_form_is_taken_where_partitionings_are_few(bins):
    outlook = pmc(None, *bins, PAPER, 0.4)
    assert isinstance(outlook, ExactOutlook)
    expected = solve(*bins, PAPER, 0.4)
    assert outlook.fingerprint == expected.fingerprint
    assert np.array_equal(outlook.projected, expected.projected, equal_nan=True)


def test_the_learned_form_is_taken_where_they_are_many(spark, bins, monkeypatch):
    outlook = pmc(spark, [1] * 64, [1] * 64, EIGHT_TO_SIXTEEN, 1.2, effort=dataclasses.replace(LITTLE, rounds=2))
    assert isinstance(outlook, LearnedOutlook)
    problem = me.Problem([1] * 64, [1] * 64, np.arange(64) // 8, 9, 1.2)
    made = me.plan(problem, "mtm", outlook=outlook)
    assert made.notes == ()
    me.check(problem, made)
    monkeypatch.setattr(module, "EXACTLY", 10)
    assert isinstance(pmc(spark, *bins, PAPER, 0.4, gamma=0), LearnedOutlook)


def test_loads_that_can_be_read_only_once_will_do(bins):
    once = pmc(None, iter(bins[0].tolist()), iter(bins[1].tolist()), PAPER, 0.4)
    assert once.fingerprint == pmc(None, *bins, PAPER, 0.4).fingerprint


def test_exactly_is_refused_for_what_is_too_large_with_a_way_out(tmp_path):
    with pytest.raises(
        TooLarge, match="more than 60000 partitionings of 64 bins .*; use a learned outlook, fewer bins"
    ):
        pmc(None, [1] * 64, [1] * 64, EIGHT_TO_SIXTEEN, 1.2, path=tmp_path / "a", exactly=True)
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"gamma": 1}, "gamma is 1, and without a discount .* is infinite; use a gamma below 1, such as 0.95"),
        ({"gamma": -1}, "gamma is -1"),
        ({"tau": -0.5}, "tau is -0.5"),
        ({"load": 7}, "load must be a list, not 7"),
        ({"load": [1, -1]}, "load of bin 1 is -1"),
        ({"state": [1] * 3}, "state has 3 entries but load has 4"),
        ({"transitions": [[1.0]]}, "transitions must be made by Transitions.of or Transitions.given, not a list"),
        ({"effort": 5}, r"effort must be an Effort, such as Effort\(rounds=5\), not 5"),
        ({"drift": 2, "exactly": False}, "drift is 2; it is how much a load changes between migrations"),
        ({"path": "hdfs://there/it/is"}, "path is hdfs://there/it/is, and hdfs: cannot be used yet; give a folder"),
    ],
)
@pytest.mark.parametrize("exactly", [None, True, False])
def test_impossible_arguments_are_refused(change, why, exactly):
    fields = {"load": [1] * 4, "state": [1] * 4, "transitions": PAPER, "exactly": exactly, **change}
    with pytest.raises((InvalidOption, InvalidProblem), match=why) as refused:
        pmc(None, **fields)
    assert "\n" not in str(refused.value)
