"""`meander simulate` on series that a test has made."""

import csv
import datetime
import json
import math
import sys
from itertools import groupby
from pathlib import Path

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from meander.errors import MeanderError
from meander_lab.cli import simulate as command
from meander_lab.replay import Bins, clairvoyant, lower_bound, replay

SMALL = ["--lo", "3", "--hi", "6", "--bins", "16", "--tau", "0.5", "--migrations", "9", "--seeds", "2"]

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
app.command()(command.simulate)


def _no_outlook(*_):
    raise MeanderError("there is no outlook in this test")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "_outlook", _no_outlook)
    return tmp_path


@pytest.fixture
def arrivals(folder):
    """Forty days of hours that swing once a day, and a little with the week."""
    path = folder / "arrivals.csv"
    rows = ["time,requests"]
    for hour in range(40 * 24):
        day, of_day = divmod(hour, 24)
        amount = 100 + 60 * math.sin(of_day / 24 * 2 * math.pi) + 5 * (day % 7)
        rows.append(f"{datetime.datetime(2026, 9, 1) + datetime.timedelta(hours=hour)},{amount:.3f}")
    path.write_text("\n".join(rows) + "\n")
    return path


def run(*arguments):
    return CliRunner().invoke(app, [str(each) for each in arguments])


def answer(*arguments):
    done = run(*arguments, "--format", "json")
    assert done.exit_code == 0, done.exception
    assert done.stderr == ""
    return json.loads(done.stdout)


def counts_of(path, lo=3, hi=6):
    """How many workers each hour of the file asks for, computed here."""
    values = np.array([float(line.split(",")[1]) for line in path.read_text().splitlines()[1:]])
    low, high = np.percentile(values, [1, 99])
    return [math.floor(lo + (hi - lo) * (min(max(x, low), high) - low) / (high - low) + 0.5) for x in values]


def judged(path, lo=3, hi=6, most=9):
    """The counts to replay: those after thirty days, without repeats."""
    return [count for count, _ in groupby(counts_of(path, lo, hi)[30 * 24 :])][: most + 1]


def test_the_figures_are_those_of_the_library(arrivals):
    found = answer(arrivals, *SMALL, "--planners", "ssm,even,consistent_hash,clairvoyant")
    counts, bins = judged(arrivals), Bins.synthetic(16)
    assert (found["series"], found["migrations"], found["bins"], found["drift"]) == ("arrivals", 9, 16, 0.05)
    ssm = replay(counts, bins, "ssm", 0.5)
    expected = [
        ssm,
        replay(counts, bins, "even", 0.5),
        replay(counts, bins, "consistent_hash", 0.5, seeds=2),
        clairvoyant(counts, bins, 0.5),
    ]
    for row, each in zip(found["planners"], expected, strict=True):
        assert row["planner"] == each.planner
        assert row["bytes"] == each.total_bytes
        assert row["percent_per_migration"] == each.percent_per_migration
        assert row["against_ssm"] == each.total_bytes / ssm.total_bytes
        assert row["heaviest_worst"] == max(each.imbalance)
        assert row["heaviest_mean"] == pytest.approx(sum(each.imbalance) / 9)
        assert (row["tau_raised"], row["seeds"]) == (each.raised.times, each.seeds)
    assert found["at_least"] == lower_bound(counts, bins, 0.5)._asdict()
    assert found["left_out"] == {}


def test_only_the_hours_after_the_first_month_are_replayed(arrivals):
    whole = [*groupby(counts_of(arrivals))]
    found = answer(arrivals, *SMALL, "--planners", "ssm", "--migrations", "100000")
    assert found["migrations"] == len(judged(arrivals, most=10**6)) - 1
    assert found["migrations"] < len(whole) / 2


def test_the_csv_has_a_row_for_each_planner_and_migration(arrivals, folder):
    found = answer(arrivals, *SMALL, "--planners", "even,ssm", "--out", "deep/er")
    assert found["files"] == ["deep/er/replay.csv", "deep/er/replay.png"]
    with (folder / "deep/er/replay.csv").open() as file:
        rows = list(csv.DictReader(file))
    counts = judged(arrivals)
    assert [row["planner"] for row in rows] == ["even"] * 9 + ["ssm"] * 9
    assert [int(row["workers"]) for row in rows] == counts[1:] * 2
    for planner, figures in zip(("even", "ssm"), found["planners"], strict=True):
        mine = [row for row in rows if row["planner"] == planner]
        assert sum(float(row["bytes_moved"]) for row in mine) == pytest.approx(figures["bytes"])
        assert max(float(row["heaviest"]) for row in mine) == pytest.approx(figures["heaviest_worst"])
    assert (folder / "deep/er/replay.png").read_bytes().startswith(b"\x89PNG")


def test_files_go_beside_the_caller_unless_told(arrivals, folder):
    (folder / "data").mkdir()
    moved = arrivals.rename(folder / "data" / "arrivals.csv")
    answer(moved, *SMALL, "--planners", "even")
    assert sorted(path.name for path in (folder / "simulation-arrivals").iterdir()) == ["replay.csv", "replay.png"]


def test_the_table_is_for_people(arrivals):
    done = run(arrivals, *SMALL, "--planners", "ssm,mtm,redist,even", "-f", "table")
    assert (done.exit_code, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0].startswith("arrivals: 9 migrations between 3 and 6 workers, 16 bins, tau 0.5, drift 0.05")
    at = next(i for i, line in enumerate(lines) if line.startswith("planner "))
    assert lines[at].split() == ["planner", "moved", "%", "x", "ssm", "mean", "worst", "tau", "raised", "ms"]
    assert [line.split()[0] for line in lines[at + 1 : at + 4]] == ["ssm", "redist", "even"]
    assert " 1.00 " in lines[at + 1]
    assert all(len(line) <= 80 for line in lines[at : at + 4])
    assert "mtm is left out: there is no outlook in this test" in lines
    assert "redist: mean of 2 seeds" in lines
    assert "written: simulation-arrivals/replay.csv, simulation-arrivals/replay.png" in lines


def test_a_tau_that_is_raised_is_said(arrivals):
    found = answer(arrivals, *SMALL, "--planners", "ssm", "--tau", "0", "--skew", "1")
    assert found["planners"][0]["tau_raised"] == 9
    assert found["planners"][0]["largest_tau"] > 0
    done = run(arrivals, *SMALL, "--planners", "ssm", "--tau", "0", "--skew", "1", "-f", "table")
    assert "  9 x, to " in done.stdout


def test_one_that_cannot_be_replayed_is_left_out_and_the_others_go_on(arrivals):
    found = answer(arrivals, *SMALL, "--planners", "mtm,oms,ssm", "--bins", "400", "--lo", "30", "--hi", "40")
    assert found["left_out"].keys() == {"mtm", "oms"}
    assert found["left_out"]["mtm"] == "there is no outlook in this test"
    assert "oms looks at all of them" in found["left_out"]["oms"]
    assert [row["planner"] for row in found["planners"]] == ["ssm"]


def test_measured_bins_stay_unless_told(arrivals, folder):
    load, state = [3, 1, 2, 2, 1, 1, 4, 2], [10, 40, 5, 5, 30, 20, 10, 10]
    Path("bins.json").write_text(json.dumps({"load": load, "state": state}))
    Path("problem.json").write_text(json.dumps({"load": load, "state": state, "owner": [0] * 8, "workers": 3}))
    common = [arrivals, "--lo", "2", "--hi", "4", "--planners", "ssm", "--migrations", "9"]
    found = [answer(*common, "--measured", name) for name in ("bins.json", "problem.json")]
    expected = replay(judged(arrivals, 2, 4), Bins.measured(load, state), "ssm", 1.2)
    for each in found:
        assert (each["bins"], each["drift"]) == (8, 0)
        assert each["planners"][0]["bytes"] == expected.total_bytes
    assert answer(*common, "--measured", "bins.json", "--drift", "0.2")["drift"] == 0.2


def test_another_seed_makes_other_bins_and_the_same_seed_the_same(arrivals):
    common = [arrivals, *SMALL, "--planners", "ssm", "--tau", "0.2"]
    found = [answer(*common, "--seed", seed)["planners"][0]["bytes"] for seed in (1, 2, 1)]
    assert found[0] == found[2] != found[1]


def test_without_matplotlib_there_is_no_plot_and_a_word_about_it(arrivals, folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    found = answer(arrivals, *SMALL, "--planners", "even")
    assert found["files"] == ["simulation-arrivals/replay.csv"]
    assert found["notes"][-1] == "there is no plot, because matplotlib is not installed"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--planners", "ssm,smm"], "--planners names 'smm'"),
        (["--planners", ","], "names nobody"),
        (["--planners", "mtm"], "no planner could be replayed (mtm: there is no outlook in this test)"),
        (["--lo", "0"], "lo is 0"),
        (["--lo", "6"], "hi is 6"),
        (["--bins", "0"], "bins is 0"),
        (["--tau", "-1"], "--tau is -1"),
        (["--tau", "nan"], "--tau is nan"),
        (["--gamma", "1"], "--gamma is 1.0"),
        (["--gamma", "nan"], "--gamma is nan"),
        (["--drift", "-0.1"], "drift is -0.1"),
        (["--skew", "inf"], "skew is inf"),
        (["--migrations", "0"], "--migrations is 0"),
        (["--seeds", "0"], "--seeds is 0"),
        (["--seed", "-1"], "seed is -1"),
        (["--time", "when"], "has no column 'when'"),
        (["--measured", "bins.json"], "leave them out with --measured"),
        (["--out", "arrivals.csv"], "cannot write into arrivals.csv"),
    ],
)
def test_wrong_input_is_one_sentence(arrivals, arguments, sentence):
    done = run(arrivals, *SMALL, *arguments)
    assert isinstance(done.exception, MeanderError), done.exception
    assert sentence in str(done.exception)
    assert "\n" not in str(done.exception)
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("nowhere.json", None, "cannot read nowhere.json"),
        ("bins.json", "{", "is not JSON"),
        ("bins.json", "[1]", "not a list"),
        ("bins.json", '{"load": [1], "state": [1, 2]}', "load has 1 entries and state 2"),
        ("bins.json", '{"load": [1], "state": [1], "ower": [0]}', "has no field 'ower'"),
    ],
)
def test_wrong_measured_bins_are_one_sentence(arrivals, name, text, sentence):
    if text is not None:
        Path(name).write_text(text)
    done = run(arrivals, "--measured", name)
    assert isinstance(done.exception, MeanderError), done.exception
    assert sentence in str(done.exception)
    assert "\n" not in str(done.exception)


def test_a_series_that_never_changes_has_nothing_to_replay(folder):
    path = folder / "flat.csv"
    path.write_text("\n".join(f"2026-01-{day:02} {hour:02}:00:00,5" for day in range(1, 21) for hour in range(24)))
    done = run(path)
    assert "asks for 8 workers all the time, so there is nothing to replay" in str(done.exception)


def test_help_teaches():
    text = run("--help").stdout
    assert "Replay a history of arrivals and compare what planners move." in text
    assert "\n    meander simulate arrivals.csv --tau 0.4\n" in text
    assert "--outlook FOLDER" in text
