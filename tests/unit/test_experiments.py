"""The papers' experiments on tiny settings: the arithmetic, the files, the sentences, and the command. No Spark."""

import csv
import math
import re
from dataclasses import replace

import numpy as np
import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import meander
from meander.errors import InvalidOption
from meander.outlook import Series
from meander.outlook.transitions import Transitions
from meander_lab.cli import experiment as command
from meander_lab.experiments import EXPERIMENTS, LIVE, History, Lab, Outlooks, Setting, finding, setting
from meander_lab.experiments.arrivals import arrivals
from meander_lab.replay import Bins, balanced
from outlooks import solve

TINY = Setting(
    bins=12, lo=2, hi=4, migrations=12, seeds=3, redist_seeds=1, taus=(0.4, 1.2), sizes=(8, 16), gammas=(0.0, 0.8)
)


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    histories = [History.of(f"made-{seed}", arrivals(seed=seed), TINY) for seed in (1, 2)]
    return Lab(TINY, histories, Outlooks(tmp_path_factory.mktemp("outlooks"), solve))


@pytest.fixture(scope="module")
def findings(lab):
    return {name: run(lab) for name, run in EXPERIMENTS.items()}


# --- a made-up history ---


def test_arrivals_are_the_same_every_time_and_other_ones_for_another_seed():
    one, again, other = arrivals(seed=3), arrivals(seed=3), arrivals(seed=4)
    assert (one.values == again.values).all()
    assert not (one.values == other.values).all()
    assert (one.values[: 24 * 5] == arrivals(days=5, seed=3).values).all()


@pytest.mark.parametrize("seed", range(1, 6))
def test_arrivals_follow_day_and_week(seed):
    values = arrivals(days=56, seed=seed).values.reshape(8, 7, 24)
    by_hour = values.mean(axis=(0, 1))
    assert by_hour.max() > 2 * by_hour.min()
    assert values[:, :5].mean() > values[:, 5:].mean()
    assert len(History.of("made up", arrivals(seed=seed), Setting()).counts) == 101


# --- what is replayed ---


def test_a_history_is_learned_from_its_first_month_and_replayed_after_it():
    steps = [2, 4] * (15 * 24) + [2, 3, 4, 3] * (15 * 6)
    series = Series(np.datetime64("2026-01-01T00", "h") + np.arange(len(steps)), np.array(steps, dtype=float))
    found = History.of("steps", series, replace(TINY, migrations=5))
    assert found.counts == (2, 3, 4, 3, 2, 3)
    assert found.transitions == Transitions.of(steps[: 30 * 24], 2, 4)
    with pytest.raises(InvalidOption, match="flat asks for 2 workers all the time"):
        History.of("flat", Series(series.times, np.ones(len(steps))), TINY)


def test_an_outlook_is_made_once_and_kept_with_its_time(tmp_path):
    calls = []

    def make(*inputs):
        calls.append(inputs)
        return solve(*inputs)

    load, state = Bins.synthetic(10, drift=0.0).at(0)
    transitions = Transitions.given([[0.0, 1.0], [1.0, 0.0]], lo=2)
    first = Outlooks(tmp_path, make).of(load, state, transitions, 0.4, 0.8)
    again = Outlooks(tmp_path, make).of(load, state, transitions, 0.4, 0.8)
    assert len(calls) == 1
    assert again.seconds == first.seconds > 0
    assert again.outlook.fingerprint == first.outlook.fingerprint
    others = [(load, state, transitions, 0.4, 0.7), (load, state, transitions, 0.5, 0.8), (load, load, transitions, 0.4,
              0.8), (load, state, Transitions.given([[0.0, 1.0], [1.0, 0.0]], lo=3), 0.4, 0.8)]  # fmt: skip
    for inputs in others:
        assert Outlooks(tmp_path, make).of(*inputs).outlook.fingerprint != first.outlook.fingerprint
    assert len(calls) == 1 + len(others)


def test_an_outlook_that_was_cut_short_is_made_again(tmp_path):
    load, state = Bins.synthetic(8, drift=0.0).at(0)
    inputs = (load, state, Transitions.given([[0.0, 1.0], [1.0, 0.0]], lo=2), 0.4, 0.8)
    Outlooks(tmp_path, solve).of(*inputs)
    (facts,) = tmp_path.glob("*.json")
    facts.unlink()
    assert Outlooks(tmp_path, solve).of(*inputs).outlook.bins == 8
    assert facts.exists()


def test_the_lab_replays_as_the_planners_plan(lab):
    """One migration, planned here from a balanced start, is the first of the replay."""
    history = lab.histories[0]
    load, state = lab.bins(0.0).at(0)
    start = balanced(load, history.counts[0])
    problem = meander.Problem(load, state, start, history.counts[1], 0.4)
    outlook = solve(load, state, history.transitions, 0.4, TINY.gamma)
    for planner, options in (("ssm", {}), ("mtm", {"outlook": outlook})):
        plan = meander.plan(problem, planner, **options)
        assert lab.replayed(history, planner, 0.4, 0.0).migrations[0].bytes == plan.cost
    assert lab.replayed(history, "consistent_hash", 0.4, 0.0).seeds == 3
    assert lab.replayed(history, "consistent_hash", 1.2, 0.0) is lab.replayed(history, "consistent_hash", 0.4, 0.0)
    still, drifting = (lab.replayed(history, "consistent_hash", 0.4, drift) for drift in setting.DRIFTS)
    assert still.total_bytes != drifting.total_bytes


@given(st.sampled_from([1, 2, 4, 8]), st.integers(0, 30))
def test_merged_bins_hold_what_the_finer_ones_hold(size, k):
    fine = Bins.synthetic(8, drift=0.05, seed=7)
    merged = setting.of_size(size, 8, 0.05, 7)
    for ours, theirs in zip(merged.at(k), fine.at(k), strict=True):
        assert ours.size == size
        assert ours == pytest.approx([sum(theirs[at : at + 8 // size]) for at in range(0, 8, 8 // size)])


def test_sizes_that_do_not_divide_are_refused():
    with pytest.raises(InvalidOption, match="10 bins cannot be merged into 4"):
        setting.of_size(4, 10, 0.0, 1)


# --- what they find ---


def test_every_experiment_writes_its_rows_and_a_picture(findings, tmp_path):
    for name, found in findings.items():
        table, picture = found.write(tmp_path / "new")
        assert (table.name, picture.name) == (f"{name}.csv", f"{name}.png")
        with table.open() as file:
            rows = list(csv.DictReader(file))
        assert [row["series"] for row in rows] == [row["series"] for row in found.rows]
        assert picture.read_bytes()[:4] == b"\x89PNG"
        assert picture.stat().st_size > 10_000


def test_every_experiment_covers_its_cases(findings):
    rows = {name: len(found.rows) for name, found in findings.items()}
    series, taus, drifts, planners = 2, 2, 2, 6
    assert rows == {
        "ding-cost": series * taus * drifts * planners,
        "ding-time": series * taus * drifts * 2,
        "ding-pmc": series * taus,
        "ding-bins": series * taus * drifts * 2 * 2,
        "ding-gamma": series * taus * drifts * 2,
    }


def test_gamma_0_moves_what_ssm_does(findings):
    still = [row for row in findings["ding-gamma"].rows if row["gamma"] == 0]
    assert still
    assert all(row["percent"] == row["ssm_percent"] for row in still)


def test_figures_of_one_kind_agree_across_experiments(findings):
    cost = {
        (row["series"], row["drift"], row["tau"]): row["bytes"]
        for row in findings["ding-cost"].rows
        if row["planner"] == "mtm"
    }
    again = [row for row in findings["ding-gamma"].rows if row["gamma"] == TINY.gamma]
    assert len(again) == len(cost)
    assert all(cost[row["series"], row["drift"], row["tau"]] == row["bytes"] for row in again)


def made_up(ssm, mtm, even=50.0, ring=20.0):
    """Rows of a cost experiment with these per cents at tau 0.4 and 1.2."""
    return [
        {"series": series, "drift": 0.0, "tau": tau, "planner": planner, "percent": percent + shift}
        for series, shift in (("a", -0.5), ("b", 0.5))
        for at, tau in enumerate((0.4, 1.2))
        for planner, percent in (("ssm", ssm[at]), ("mtm", mtm[at]), ("even", even), ("consistent_hash", ring))
    ]


def test_the_paragraph_on_cost_follows_the_figures():
    from meander_lab.experiments.ding_cost import says

    said = says(made_up(ssm=(8.0, 4.0), mtm=(6.0, 1.0)))
    assert "25 % less than ssm at tau 0.4 and 75 % less than ssm at tau 1.2" in said
    assert "here it is at 2 of 2" in said
    assert "The gap grows with tau (2.00 and 3.00 points" in said
    assert "What ssm moves falls with tau and what mtm moves falls" in said
    assert "above both at every tau" in said
    assert "even moves at least 6.2 times" in said
    assert "next to nothing" not in said
    said = says(made_up(ssm=(8.0, 0.6), mtm=(10.0, 0.6), ring=9.0))
    assert "25 % more than ssm at tau 0.4 and as much as ssm at tau 1.2" in said
    assert "here it is at 0 of 2" in said
    assert "nowhere in favour of mtm (-2.00 and 0.00" in said
    assert "above both only at tau 1.2" in said
    assert "At tau 1.2 ssm moves less than 1 %" in said


def test_paragraphs_on_time_compare_with_what_the_paper_says():
    from meander_lab.experiments.ding_pmc import says as pmc
    from meander_lab.experiments.ding_time import says as time

    def rows(ssm, mtm):
        both = (("ssm", ssm), ("mtm", mtm))
        return [
            {"tau": tau, "planner": name, "median_ms": ms, "p99_ms": 3 * ms}
            for name, each in both
            for tau, ms in zip((0.2, 1.2), each, strict=True)
        ]

    said = time(rows(ssm=(0.1, 0.2), mtm=(3.0, 2.0)))
    assert "ssm grows from 0.10 to 0.20 ms" in said
    assert "at most 0.60 ms, within the 2 ms" in said
    assert "at most 9.00 ms, within the 10 ms" in said
    said = time(rows(ssm=(1.0, 1.0), mtm=(3.0, 4.0)))
    assert "at most 3.00 ms, not within" in said
    assert "at most 12.00 ms, not within" in said

    seconds = [{"series": "a", "tau": tau, "kind": "learned", "seconds": s} for tau, s in ((0.2, 40.0), (1.2, 310.0))]
    said = pmc(seconds)
    assert "40 s at tau 0.2 and 310 s at tau 1.2" in said
    assert "at most 310 s, not within 5 minutes; it grows with tau" in said
    assert "at most 40 s, within 5 minutes" in pmc(seconds[:1])


def test_the_paragraph_on_bins_says_how_time_grows():
    from meander_lab.experiments.ding_bins import says

    rows = [
        {"series": "a", "tau": 0.4, "drift": 0.0, "bins": m, "planner": name, "percent": p, "median_ms": (m / 32) ** 2}
        for name, costs in (("ssm", {32: 9.0, 128: 6.0}), ("mtm", {32: 8.0}))
        for m, p in costs.items()
    ]
    said = says(rows)
    assert "what ssm moves falls from 9.00 to 6.00 % as bins go from 32 to 128" in said
    assert "what mtm moves stays at about 8.00 % as bins go from 32 to 32" in said
    assert "from 1.00 ms for 32 bins to 16.00 ms for 128, about as the number of bins to the power of 2.0" in said


def test_the_paragraph_on_gamma_names_the_best_one():
    from meander_lab.experiments.ding_gamma import says

    rows = [
        {"series": "a", "tau": 0.4, "drift": 0.05, "gamma": gamma, "percent": p, "ssm_percent": 8.0, "pmc_seconds": s}
        for gamma, p, s in ((0.0, 8.0, 0.0), (0.8, 6.0, 40.0), (0.95, 7.0, 40.0))
    ]
    said = says(rows)
    assert "goes up and down from 8.00 to 7.00 % of state a migration as gamma goes from 0 to 0.95" in said
    assert "least at 0.8 with 6.00 %" in said
    assert "gamma 0 moves what ssm does" in said
    assert "pre-computation grows with gamma, from 0 to 40 s" in said


@given(st.lists(st.floats(0, 100), min_size=2, max_size=6))
def test_a_trend_and_its_opposite(values):
    opposite = {"grows": "falls", "falls": "grows"}
    forth, back = finding.trend(values), finding.trend(values[::-1])
    assert back == opposite.get(forth, forth)
    if forth == "grows":
        assert values[-1] > values[0]
    if forth == "stays":
        assert abs(values[-1] - values[0]) <= finding.SAME * max(values)


def test_a_mean_over_no_rows_is_no_number():
    assert math.isnan(finding.mean([], "percent"))


# --- the command ---

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
app.command()(command.experiment)


def run(*arguments):
    return CliRunner().invoke(app, [str(each) for each in arguments])


@pytest.fixture
def tiny(monkeypatch, tmp_path):
    """The command with a tiny setting, and outlooks that are solved here."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Setting, "quick", classmethod(lambda cls: TINY))
    monkeypatch.setattr(setting, "on_spark", lambda effort, tell: solve)
    return tmp_path


def test_without_a_name_the_experiments_are_listed():
    done = run()
    assert done.exit_code == 0
    assert [line.split()[0] for line in done.stdout.splitlines()] == [*EXPERIMENTS, *LIVE]
    assert "(Figure 9)" in done.stdout


def test_an_experiment_is_run_and_says_what_it_wrote(tiny):
    done = run("ding-pmc", "--quick", "--out", "there")
    assert done.exit_code == 0, done.exception
    assert "--quick" in done.stdout
    assert re.search(r"The pre-computation takes .* tau 0\.4 and .* tau 1\.2", done.stdout)
    assert "written: there/ding-pmc.csv, there/ding-pmc.png" in done.stdout
    assert (tiny / "there/ding-pmc.png").is_file()
    assert len(list((tiny / "there/outlooks").glob("*.json"))) == 2
    assert done.stderr == ""


def test_series_are_read_and_outlooks_kept_where_they_are_wanted(tiny):
    made = arrivals(days=44)
    lines = ["time,rows", *(f"{when},{many:g}" for when, many in zip(made.times, made.values, strict=True))]
    (tiny / "mine.csv").write_text("\n".join(lines) + "\n")
    done = run("ding-pmc", "mine.csv", "--quick", "--outlooks", "kept")
    assert done.exit_code == 0, done.exception
    with (tiny / "results/ding-pmc.csv").open() as file:
        assert {row["series"] for row in csv.DictReader(file)} == {"mine"}
    assert len(list((tiny / "kept").glob("*.json"))) == 2


def test_slips_are_named(tiny):
    assert "the experiments are ding-cost, ding-time" in str(run("ding-costs").exception)
    assert "cannot read nowhere.csv" in str(run("ding-cost", "nowhere.csv").exception)
    (tiny / "file").write_text("")
    assert "cannot write into file" in str(run("ding-pmc", "--quick", "--out", "file", "--outlooks", "kept").exception)
