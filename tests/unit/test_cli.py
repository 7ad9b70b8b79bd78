"""The command line, run as users run it: a process, its output and its exit code."""

import io
import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import meander
from meander.cli import main

PROBLEM = {"load": [4, 1, 1, 3], "state": [90, 10, 10, 20], "owner": [0, 0, 0, 0], "workers": 2, "tau": 0.2}


@pytest.fixture
def problem_file(tmp_path):
    path = tmp_path / "problem.json"
    path.write_text(json.dumps(PROBLEM))
    return str(path)


def meander_process(*arguments, stdin=""):
    return subprocess.run(
        [sys.executable, "-m", "meander", *arguments], input=stdin, capture_output=True, text=True, timeout=120
    )


def test_plan_and_schedule_as_a_pipe(problem_file):
    planned = meander_process("plan", problem_file, "--planner", "ssm", "--format", "json")
    assert (planned.returncode, planned.stderr) == (0, "")
    answer = json.loads(planned.stdout)
    expected = meander.plan(meander.Problem.from_dict(PROBLEM)).to_dict()
    assert {**answer, "elapsed_ms": 0} == {**expected, "elapsed_ms": 0}
    scheduled = meander_process("schedule", "-", "--name", "fluid", stdin=planned.stdout)
    assert scheduled.returncode == 0
    steps = json.loads(scheduled.stdout)["steps"]
    assert [[move["bytes"] for move in step] for step in steps] == [[10], [20]]


def test_a_problem_on_standard_input_is_the_default():
    done = meander_process("plan", stdin=json.dumps(PROBLEM))
    assert json.loads(done.stdout)["cost"] == 30


def test_every_planner_and_schedule_runs_from_the_command_line(problem_file, capsys):
    for name in meander.planners():
        assert main(["plan", problem_file, "--planner", name, "--format", "table"]) == 0
        assert f"{name}: " in capsys.readouterr().out
    main(["plan", problem_file, "--format", "json"])
    plan_file = problem_file + ".plan"
    with open(plan_file, "w") as file:  # noqa: PTH123
        file.write(capsys.readouterr().out)
    for name in meander.schedules():
        assert main(["schedule", plan_file, "--name", name, "--format", "table"]) == 0
        assert f"{name}: 2 moves" in capsys.readouterr().out


def test_workers_tau_and_options_can_be_given_on_the_command_line(problem_file, capsys):
    assert main(["plan", problem_file, "--workers", "3", "--tau", "1.5", "-f", "json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["workers"] == [0, 1, 2]
    assert main(["plan", problem_file, "-p", "oms", "-o", "then=[[3, 0.8]]", "-f", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["planner"] == "oms"


@pytest.mark.parametrize("command", ["planners", "schedules"])
def test_lists_for_people_and_for_programs(command, capsys):
    assert main([command, "--format", "json"]) == 0
    names = [each["name"] for each in json.loads(capsys.readouterr().out)]
    assert names == list(getattr(meander, command)())
    assert main([command, "--format", "table"]) == 0
    text = capsys.readouterr().out
    assert all(name in text for name in names)


@pytest.mark.parametrize(
    ("arguments", "stdin", "sentence"),
    [
        (["plan", "nowhere.json"], "", "cannot read nowhere.json: no such file or directory"),
        (["plan", "."], "", "cannot read .: is a directory"),
        (["plan"], "", "standard input is empty; give a problem as JSON"),
        (["plan"], "{", "standard input is not JSON: expecting property name"),
        (["plan"], "[" * 100_000, "nested too deeply"),
        (["plan"], "[]", "a problem is a JSON object with load, state, owner and workers, not a list"),
        (["plan"], '{"load": [1]}', "lacks the field 'state'"),
        (["plan"], json.dumps({**PROBLEM, "owner": [0, 0, 0]}), "owner has 3 entries but load has 4"),
        (["plan"], json.dumps({**PROBLEM, "load": [4, 1, float("nan"), 3]}), "load of bin 2 is nan"),
        (["plan"], json.dumps({**PROBLEM, "workers": 0}), "workers is 0"),
        (["plan"], json.dumps({**PROBLEM, "tau": 0}), "the smallest tau that would do is 0.1112"),
        (["plan", "--planner", "best"], json.dumps(PROBLEM), "there is no planner 'best'"),
        (["plan", "-o", "seed=1"], json.dumps(PROBLEM), "planner ssm has no option 'seed'"),
        (["plan", "-o", "problem=1"], json.dumps(PROBLEM), "planner ssm has no option 'problem'"),
        (["plan", "-o", "planner=1"], json.dumps(PROBLEM), "planner ssm has no option 'planner'"),
        (["plan", "-p", "annealing", "-o", "choose=[1]"], json.dumps(PROBLEM), "choose"),
        (["schedule", "-o", "state=[1]"], '{"before": [0], "owner": [1]}', "schedule batched has no option 'state'"),
        (["schedule", "-o", "name=fluid"], '{"before": [0], "owner": [1]}', "schedule batched has no option 'name'"),
        (["plan", "-o", "seed"], json.dumps(PROBLEM), "write it as name=value"),
        (["plan", "-p", "oms", "-o", "then=3"], json.dumps(PROBLEM), "then must be a list of (workers, tau)"),
        (["plan", "--format", "xml"], json.dumps(PROBLEM), "see 'meander plan --help'"),
        (["plan", "--nope"], "", "No such option: --nope"),
        (["fly"], "", "No such command 'fly'"),
        (["schedule"], "{}", 'a plan is a JSON object with the lists "before" and "owner"'),
        (["schedule"], '{"before": [0], "owner": [0, 1]}', "2"),
        (["compare", "--seed", "-1"], "", "Invalid value for '--seed'"),
        (["schedule", "-o", "gap=99999999999"], '{"before": [0], "owner": [1]}', "gap is 99999999999"),
        (["schedule"], '{"before": [0], "owner": [1], "moves": {}}', "moves must be a list, not an object"),
        (
            ["schedule"],
            '{"before": [0], "owner": [1], "moves": [{"bin": 1, "bytes": 2}]}',
            "is not a move of this plan",
        ),
        (["schedule"], '{"before": [0], "owner": [1], "moves": [7]}', "7 is not a move of this plan"),
        (["schedule", "-n", "nope"], '{"before": [0], "owner": [1]}', "there is no schedule 'nope'"),
        (["schedule", "-n", "phases"], '{"before": [0], "owner": [1]}', "give it state, the bytes of each bin"),
        (["schedule", "-o", "max_bins=0"], '{"before": [0], "owner": [1]}', "max_bins is 0"),
    ],
)
def test_wrong_input_is_one_sentence_and_exit_code_2(arguments, stdin, sentence, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
    assert main(arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("meander: ")
    assert printed.err.count("\n") == 1
    assert sentence in printed.err


def test_a_slip_ends_the_process_with_code_2_and_no_traceback():
    done = meander_process("plan", stdin="\xff")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("arguments", [["inspect"], ["plan"], ["mtm"]])
def test_no_secret_of_a_uri_is_shown(arguments, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main([*arguments, "s3a://key:secret@bucket/x?token=secret"]) == 2
    said = capsys.readouterr().err
    assert "s3a://***@bucket/x?***" in said
    assert "secret" not in said


def test_a_byte_order_mark_is_read_over(tmp_path, capsys):
    path = tmp_path / "windows.json"
    path.write_text(json.dumps(PROBLEM, indent=1), encoding="utf-8-sig", newline="\r\n")
    assert main(["plan", str(path), "-f", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["cost"] == 30


@pytest.mark.parametrize(("closed", "code"), [(">&-", 0), ("<&-", 2)])
def test_closed_input_or_output_is_no_traceback(closed, code, problem_file):
    file = problem_file if closed == ">&-" else "-"
    line = f"exec {shlex.quote(sys.executable)} -m meander plan {shlex.quote(file)} {closed}"
    done = subprocess.run(["bash", "-c", line], stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == code
    assert "Traceback" not in done.stderr


def test_a_reader_that_goes_away_is_no_error():
    many = {"load": [1] * 20_000, "state": [1] * 20_000, "owner": [0] * 20_000, "workers": 2}
    command = [sys.executable, "-m", "meander", "plan", "--planner", "even", "--format", "json"]
    with subprocess.Popen(command, stdin=-1, stdout=-1, stderr=-1) as process:
        process.stdout.close()
        process.stdin.write(json.dumps(many).encode())
        process.stdin.close()
        complaint = process.stderr.read()
    assert complaint == b""
    assert process.returncode in (0, 1)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_is_one_sentence(problem_file):
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "meander", "plan", problem_file], stdout=full, stderr=-1, text=True, timeout=60
        )
    assert done.returncode == 1
    assert done.stderr == "meander: cannot write the answer: no space left on device\n"


def test_help_teaches(capsys):
    assert main([]) == 0
    assert "plan " in capsys.readouterr().out
    assert main(["plan", "--help"]) == 0
    text = capsys.readouterr().out
    assert '"owner": [0, 0, 0]' in text
    assert "meander plan problem.json --planner free | meander schedule --name matching" in text
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"meander {meander.__version__}\n"


def test_compare_shows_three_planners_and_the_schedules(capsys):
    assert main(["compare"]) == 0
    text = capsys.readouterr().out
    for name in ("even", "ssm", "free", *meander.schedules()):
        assert name in text
    assert "recomputed" in text
