"""`meander mtm` on generated series, events and a checkpoint."""

import datetime
import io
import json
import math
import random

import numpy as np
import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from meander.cli.mtm import matrix_table, mtm
from meander.errors import InvalidOption
from meander.outlook import Transitions, migrations, read_series
from meander.store.entries import Commit, OperatorCommit
from meander.store.identity import Identity
from meander.store.location import Location
from meander.store.manifest import Log

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
app.command()(mtm)


def run(*arguments):
    done = CliRunner().invoke(app, [str(each) for each in arguments])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.stdout


def answer(*arguments):
    return json.loads(run(*arguments))


@pytest.fixture(scope="module")
def arrivals(tmp_path_factory):
    """Days that come and go for 50 days, every 15 minutes, with some noise."""
    rng = random.Random(4)
    lines = ["when,requests"]
    for at in range(50 * 96):
        when = datetime.datetime(2026, 3, 1) + datetime.timedelta(minutes=15 * at)
        lines.append(f"{when},{100 + 60 * math.sin(at * 2 * math.pi / 96) + rng.uniform(-12, 12):.2f}")
    path = tmp_path_factory.mktemp("mtm") / "arrivals.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_it_learns_from_the_first_month_and_judges_the_rest(arrivals):
    found = answer(arrivals)
    counts = read_series(arrivals).hourly().workers(8, 16).values
    learned = Transitions.of(counts[:720], 8, 16)
    assert (found["steps"], found["unit"], found["lo"], found["hi"]) == (1200, "hours", 8, 16)
    assert (found["from"], found["to"]) == ("2026-03-01T00:00:00", "2026-04-19T23:00:00")
    assert Transitions.from_dict(found) == learned
    assert found["fingerprint"] == learned.fingerprint()
    assert found["learned"]["migrations"] == len(migrations(counts[:720])) - 1 == sum(found["learned"]["by_workers"])
    verdict = learned.judge(counts[720:])
    assert found["judged"] == {
        "steps": 480,
        "migrations": verdict.migrations,
        "log_likelihood": verdict.log_likelihood,
        "perplexity": verdict.perplexity,
        "perplexity_uniform": 8,
        "among_3_likeliest": verdict.among_likely,
    }
    assert verdict.perplexity < 4
    assert found["notes"] == []


def test_the_range_and_the_other_options_count(arrivals):
    counts = read_series(arrivals).hourly().workers(2, 5).values
    found = answer(arrivals, "--lo", 2, "--hi", 5, "--keep-equal", "--smoothing", 0, "--all")
    assert Transitions.from_dict(found) == Transitions.of(counts, 2, 5, keep_equal=True, smoothing=0)
    assert found["learned"]["migrations"] == 1199
    assert found["judged"] is None
    assert answer(arrivals, "--time", "when", "--value", "requests") == answer(arrivals)
    assert answer(arrivals, "--fill", 0) == answer(arrivals)


def test_the_matrix_is_written_too(arrivals, tmp_path):
    found = answer(arrivals, "--out", tmp_path / "matrix.json")
    assert Transitions.from_dict(json.loads((tmp_path / "matrix.json").read_text())) == Transitions.from_dict(found)
    with pytest.raises(InvalidOption, match="cannot write .*: no such file or directory"):
        run(arrivals, "--out", tmp_path / "none" / "matrix.json")


def test_the_table_says_how_much_and_how_well(arrivals):
    found, lines = answer(arrivals), run(arrivals, "--format", "table").splitlines()
    learned, judged = found["learned"]["migrations"], found["judged"]
    assert lines[0] == "1200 hours from 2026-03-01T00:00:00 to 2026-04-19T23:00:00, 8 to 16 workers"
    assert lines[1] == f"learned from {learned} migrations in 720 hours, with 8 expected ones added to each row"
    assert lines[2] == f"judged by the {judged['migrations']} migrations in the 480 hours after:"
    assert lines[3] == f"  perplexity {judged['perplexity']:.2f}; knowing nothing: 8"
    assert lines[4] == f"  {judged['among_3_likeliest']:.0%} went to one of the 3 likeliest"
    assert lines[7].split() == [*map(str, range(8, 17)), "seen"]
    for workers, row, seen, line in zip(
        range(8, 17), found["matrix"], found["learned"]["by_workers"], lines[8:17], strict=True
    ):
        cells = [f"{100 * p:.0f}" if p >= 0.005 else "·" for p in row]
        assert line.split() == [str(workers), *cells, str(seen)]


def test_a_short_or_sparse_series_says_what_was_done(tmp_path):
    start = datetime.datetime(2026, 1, 1)
    moments = [start + datetime.timedelta(minutes=30 * at) for at in range(200) if at // 2 not in (7, 8)]
    path = tmp_path / "short.csv"
    path.write_text("".join(f"{when},{when.hour},{when.day}\n" for when in moments))
    found = answer(path, "--lo", 1, "--hi", 20)
    assert found["notes"] == [
        "the amounts are those of the column 2; others with numbers are 3",
        "2 hours have no row and are left out",
        "the series is shorter than 30 days and a week: its first half is learned from, the other judged",
    ]
    assert (found["learned"]["steps"], found["judged"]["steps"]) == (49, 49)
    printed = run(path, "--format", "table", "--lo", 1, "--hi", 20)
    assert all(note in " ".join(printed.split()) for note in found["notes"])
    assert "was never left" not in printed
    assert "was never left" in run(path, "--format", "table", "--lo", 1, "--hi", 40)


def test_what_was_held_to_be_impossible_is_no_number(tmp_path):
    path = tmp_path / "surprise.csv"
    amounts = [0, 10] * 12 + [0, 5, 10, 5] * 6
    path.write_text("".join(f"2026-01-{1 + at // 24:02d} {at % 24:02d}:00,{n}\n" for at, n in enumerate(amounts)))
    found = answer(path, "--lo", 1, "--hi", 3, "--smoothing", 0)
    assert (found["judged"]["perplexity"], found["judged"]["log_likelihood"]) == (None, None)
    printed = run(path, "--lo", 1, "--hi", 3, "--smoothing", 0, "--format", "table")
    assert "perplexity it held one of them to be impossible; knowing nothing: 2" in printed


def test_events_and_a_checkpoint_are_taken_as_they_were(tmp_path):
    counts = [2, 4, 3, 4, 2, 4, 3, 2]
    events = [{"time_ms": 3_600_000 * at, "event": "workers", "workers": n} for at, n in enumerate(counts)]
    (tmp_path / "events.jsonl").write_text("\n".join(map(json.dumps, events)))
    (tmp_path / "events.json").write_text(json.dumps(events, indent=2))
    place = Location.of(tmp_path / "checkpoint")
    Identity.of(8, [{"operator": "count", "key": [], "tables": {}, "options": {}}], id="x").settle(place)
    log = Log.open(place)
    log.claim("box", 7)
    for at, n in enumerate(counts):
        operator = OperatorCommit(None, tuple(j * n // 8 for j in range(8)))
        log.append(Commit(at, at, 0, "q", "o", (operator,), time_ms=3_600_000 * at))
    wanted = Transitions.of(counts, 2, 4)
    for name in ("events.jsonl", "events.json", "checkpoint"):
        assert Transitions.from_dict(answer(tmp_path / name, "--all")) == wanted
    assert answer(tmp_path / "events.json")["learned"]["steps"] == 4
    assert Transitions.from_dict(answer(tmp_path / "checkpoint", "--all", "--hi", 6)).hi == 6
    with pytest.raises(InvalidOption, match="a count of 4 workers; widen lo and hi"):
        run(tmp_path / "events.json", "--all", "--lo", 2, "--hi", 3)
    with pytest.raises(InvalidOption, match="--keep-equal are for a series of arrivals"):
        run(tmp_path / "checkpoint", "--keep-equal")
    (tmp_path / "events.json").write_text(json.dumps(events[:1]))
    with pytest.raises(InvalidOption, match="tells of no migration: there are 2 workers all the time"):
        run(tmp_path / "events.json")


def test_wrong_input_is_refused(arrivals, tmp_path):
    with pytest.raises(InvalidOption, match="cannot read .*none.csv"):
        run(tmp_path / "none.csv")
    with pytest.raises(InvalidOption, match="hi is 8; it must be a whole number from 9"):
        run(arrivals, "--lo", 8, "--hi", 8)
    with pytest.raises(InvalidOption, match="has no column 'x'; its columns are when, requests"):
        run(arrivals, "--value", "x")


def drawn(found, width):
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system="truecolor")
    console.print(matrix_table(found, [1] * found.size, width))
    return console.file.getvalue()


def test_the_more_probable_the_deeper_its_colour():
    text = drawn(Transitions.given([[0.0, 0.25, 0.75], [1, 0, 0], [0.5, 0.5, 0]], lo=2), 80)
    depths = [math.sqrt(p) for p in (0.25, 0.75, 1)]
    assert all(f"48;2;{round(20 * d)};{round(110 * d)};{round(140 * d)}m" in text for d in depths)


def test_a_matrix_too_wide_for_numbers_has_shades():
    size = 30
    found = Transitions.given(np.roll(np.eye(size), 1, axis=1), lo=2)
    lines = drawn(found, 80).splitlines()
    assert [line.count("█") for line in lines[2:]] == [1] * size
    places = [line.index("█") for line in lines[2:]]
    assert places == [*range(places[0], places[0] + size - 1), places[0] - 1]


def test_help_shows_how():
    text = run("--help")
    assert "\n    meander mtm arrivals.csv --lo 8 --hi 16\n" in text
