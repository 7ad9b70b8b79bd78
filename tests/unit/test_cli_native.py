"""`meander native top` on observations that a test has published."""

import io
import json
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial

import pytest
from rich.console import Console
from typer.testing import CliRunner

from meander.cli import main
from meander.cli import native as command
from meander.cli.commands import app
from meander.cli.native import NOTHING, view, watch
from meander.native.observation import ExecutorFigures, Observation, PartitionFigures
from meander.native.publish import Publication

NOW_MS = 1_700_000_005_000
SAVE, JOIN = "0:stateStoreSave", "1:symmetricHashJoin"


def seen(query="words", run="run-1", partitions=6, executors=2, groups=(SAVE,), **fields):
    parts = tuple(
        PartitionFigures(group, j, str(j % executors), 1000 * j, 2**20, 10.0 + j, 12)
        for group in groups
        for j in range(partitions)
    )
    hosts = tuple(ExecutorFigures(str(j), f"host-{j}", 2) for j in range(executors))
    made = Observation(query, run, 12, 431.0, 1000.0, 12_340.0, int(time.time() * 1000), parts, hosts)
    return replace(made, **fields)


@pytest.fixture(autouse=True)
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("MEANDER_RUNTIME_DIR", str(tmp_path))
    return tmp_path


@pytest.fixture
def words():
    made = seen()
    Publication(made.run).write(made)
    return made


@pytest.fixture
def clicks():
    made = seen("clicks", "run-2", time_ms=int(time.time() * 1000) + 1000)
    Publication(made.run).write(made)
    return made


def run(*arguments):
    return CliRunner().invoke(app, ["native", "top", *arguments])


@pytest.mark.parametrize("arguments", [[], ["--once"], ["words"], ["run-1", "--once"], ["--format", "text"]])
def test_once_and_without_a_terminal_it_prints_the_text(arguments, words):
    done = run(*arguments)
    assert (done.exit_code, done.stdout, done.stderr) == (0, f"{words}\n", "")


def test_all_queries_or_one(words, clicks):
    assert run().stdout == f"{clicks}\n\n{words}\n"
    assert run("words").stdout == f"{words}\n"


def test_json_is_a_list(words, clicks):
    assert json.loads(run("--format", "json").stdout) == [clicks.to_dict(), words.to_dict()]
    assert json.loads(run("run-2", "-f", "json", "--once").stdout) == [clicks.to_dict()]


@pytest.mark.parametrize("arguments", [[], ["words"], ["-f", "json"], ["--once"]])
def test_nothing_published_says_what_to_do(arguments, capsys):
    assert main(["native", "top", *arguments]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err == (
        "meander: no attached query on this machine for this user; in the job: attached = me.attach(query)\n"
    )


def test_an_unknown_query_lists_those_there_are(words, clicks):
    done = run("wrods")
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr == "meander: there is no attached query 'wrods'; there are clicks, words\n"


@pytest.mark.parametrize("every", ["0", "-1", "nan", "inf", "x"])
def test_a_wrong_interval_is_one_sentence_and_exit_code_2(every, words, capsys):
    assert main(["native", "top", "--every", every]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("meander: ")
    assert "--every" in printed.err
    assert printed.err.count("\n") == 1


def test_a_folder_that_is_not_ours_alone_is_one_sentence_and_exit_code_2(root, capsys):
    root.chmod(0o777)
    assert main(["native", "top"]) == 2
    assert "can be written by others; set MEANDER_RUNTIME_DIR" in capsys.readouterr().err


def test_help_teaches(capsys):
    assert main(["native"]) == 0
    assert "top  Show which executor holds which state partitions" in capsys.readouterr().out
    assert main(["native", "top", "--help"]) == 0
    text = capsys.readouterr().out
    assert "\n    attached = me.attach(query)\n" in text
    assert "\n    meander native top words --once --format json\n" in text
    assert main(["--help"]) == 0
    assert "\n  native " in capsys.readouterr().out


def test_names_cannot_steer_the_terminal():
    bad = seen("\x1b[2Jwords\n[bold]", "run-1")
    Publication("run-1").write(bad)
    assert "?[2Jwords?[bold]: batch 12" in run().stdout
    assert "\x1b" not in run().stdout
    assert run("x").stderr == "meander: there is no attached query 'x'; there are ?[2Jwords?[bold]\n"
    assert "?[2Jwords?[bold]: batch 12" in drawn(view([bad], NOW_MS, 100, 24))


def drawn(shown, width=100, height=24):
    console = Console(file=io.StringIO(), width=width, height=height, highlight=False)
    console.print(shown)
    return console.file.getvalue()


def test_the_screen_of_one_query():
    lines = drawn(view([seen(time_ms=NOW_MS - 5000)], NOW_MS, 100, 24)).splitlines()
    assert lines[0] == "words: batch 12, 431 ms of 1,000 ms, 12,340 rows/s, LI 0.04, 5 s ago".ljust(len(lines[0]))
    assert " ".join(lines[2].split()) == "executor host cores partitions rows state ms ┊ 1.2 x mean"
    assert lines[3].split()[:8] == ["1", "host-1", "2", "3", "9,000", "3", "MiB", "39.0"], "the busiest first"
    assert "█" * 10 in lines[3]
    assert lines[4].split()[:4] == ["0", "host-0", "2", "3"]
    assert [line.split()[:2] for line in lines[6:]] == [
        ["partition", "executor"], ["5", "1"], ["4", "0"], ["3", "1"], ["2", "0"], ["1", "1"], ["0", "0"],
    ]  # fmt: skip


def test_the_screen_of_several_has_no_partitions():
    text = drawn(view([seen(), seen("clicks", "run-2")], NOW_MS, 100, 24))
    assert "words: batch 12" in text
    assert "clicks: batch 12" in text
    assert text.count("executor ") == 2
    assert "partition " not in text


def test_groups_are_named_where_there_are_several():
    assert SAVE not in drawn(view([seen()], NOW_MS, 100, 24))
    text = drawn(view([seen(groups=(SAVE, JOIN))], NOW_MS, 100, 24))
    assert text.count(SAVE) == text.count(JOIN) == 6


@pytest.mark.parametrize("height", [10, 16, 24, 50])
@pytest.mark.parametrize("width", [80, 100, 140])
@pytest.mark.parametrize("executors", [1, 3, 30])
@pytest.mark.parametrize("partitions", [2, 10, 200])
def test_it_fits_the_screen_and_the_slowest_are_on_it(width, height, executors, partitions):
    groups = (SAVE, JOIN)
    one = seen(executors=executors, partitions=partitions, groups=groups)
    lines = drawn(view([one], NOW_MS, width, height), width, height).splitlines()
    assert len(lines) <= height
    assert all(len(line) <= width for line in lines)
    assert not any("…" in line for line in lines)
    rows = [line.split() for line in lines if line.startswith((SAVE, JOIN))]
    times = sorted((each.ms for each in one.partitions), reverse=True)
    assert [float(row[-1]) for row in rows] == times[: len(rows)]
    assert rows
    left_out = len(rows) < len(times)
    assert any(line.startswith(f"{len(rows)} of {len(times)} partitions") for line in lines) is left_out
    assert len(lines) >= height - 2 or not left_out, "no line is wasted"
    assert any("host-" in line for line in lines) is (width >= 100)


def test_several_queries_share_the_screen():
    found = [seen(str(j), f"run-{j}", executors=30) for j in range(3)]
    text = drawn(view(found, NOW_MS, 80, 40), 80, 40)
    assert len(text.splitlines()) <= 40
    assert text.count(" of 30 executors") == 3


@pytest.mark.parametrize(
    ("ago_ms", "told"), [(-9000, "0 s"), (1000, "1 s"), (99_000, "99 s"), (600_000, "10 min"), (36_000_000, "10 h")]
)
def test_the_age_of_the_figures(ago_ms, told):
    assert f", {told} ago" in drawn(view([seen(time_ms=NOW_MS - ago_ms)], NOW_MS, 100, 24))


def test_before_the_first_batch():
    early = seen(batch=-1, partitions=0)
    assert "words: no batch has ended yet, " in drawn(view([early], NOW_MS, 100, 24))
    assert "words: no batch has ended yet, " in drawn(view([replace(early, executors=())], NOW_MS, 100, 24))


def test_draining_executors():
    leaving, staying, left = (
        ExecutorFigures("0", "a", 2, True),
        ExecutorFigures("1", "b", 2),
        ExecutorFigures("9", "c", 2, True),
    )
    lines = drawn(view([seen(executors=2)], NOW_MS, 100, 24)).splitlines()
    assert not any("░" in line or "drained" in line for line in lines)
    lines = drawn(view([replace(seen(executors=2), executors=(leaving, staying, left))], NOW_MS, 100, 24)).splitlines()
    assert [line.split()[0] for line in lines if "░" in line] == ["0"]
    assert [line.split()[0] for line in lines if "drained" in line] == ["9"]


class Terminal(io.StringIO):
    def isatty(self):
        return True


def watched(*between):
    """What was drawn, by turns with what happens in between; Ctrl-C at the end."""
    console = Console(file=Terminal(), width=100, height=24, force_terminal=True, color_system=None)
    drawings, todo = [], list(between)

    def wait(seconds):
        assert seconds == 0.5
        drawings.append(console.file.getvalue())
        console.file.truncate(0)
        console.file.seek(0)
        if not todo:
            raise KeyboardInterrupt
        todo.pop(0)()

    watch(console, None, 0.5, wait)
    return drawings


def test_it_is_drawn_again_and_again_until_ctrl_c(words):
    publication = Publication("run-1")
    first, second, third = watched(lambda: publication.write(replace(words, batch=13)), publication.close)
    assert "words: batch 12" in first
    assert "words: batch 13" in second
    assert NOTHING in third, "the query has ended; another may come"


def test_on_a_terminal_it_watches_and_ctrl_c_ends_it_with_0(words, monkeypatch):
    calls = []

    def interrupted(seconds):
        calls.append(seconds)
        raise KeyboardInterrupt

    output = Terminal()
    monkeypatch.setattr("sys.stdout", output)
    monkeypatch.setattr(command, "watch", partial(watch, wait=interrupted))
    monkeypatch.setenv("TERM", "xterm")
    assert main(["native", "top", "--every", "0.7"]) == 0
    assert calls == [0.7]
    assert "words" in output.getvalue()
    assert output.getvalue().startswith("\x1b[?1049h"), "the whole screen"
    assert output.getvalue().endswith("\x1b[?1049l"), "and back"


def test_on_a_terminal_once_and_json_do_not_watch(words, monkeypatch):
    for arguments, expected in ((["--once"], f"{words}\n"), (["-f", "json"], f"{json.dumps([words.to_dict()])}\n")):
        output = Terminal()
        monkeypatch.setattr("sys.stdout", output)
        assert main(["native", "top", *arguments]) == 0
        assert output.getvalue() == expected


def test_the_figures_of_a_job_that_was_killed_are_not_shown(root, words):
    path = root / "native" / "run-1.json"
    job = subprocess.Popen([sys.executable, "-c", ""])
    job.wait()
    path.write_text(json.dumps({**json.loads(path.read_text()), "pid": job.pid}))
    assert run().exit_code == 1
    assert not path.exists()
