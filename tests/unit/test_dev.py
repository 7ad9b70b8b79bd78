"""The command file: what it says of itself, and what it says of slips. Setting up is what runs these tests."""

import os
import re
import subprocess
from pathlib import Path

import pytest

import meander

ROOT = Path(meander.__file__).parents[2]
DEV = str(ROOT / "dev")


def dev(*arguments, **environment):
    return subprocess.run(
        ["bash", DEV, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, **environment},
        cwd="/",
    )


def test_it_is_sound_and_lists_its_commands_with_a_line_each():
    assert subprocess.run(["bash", "-n", DEV]).returncode == 0
    done = dev()
    assert done.returncode == 0
    for command in ("demo", "test", "soak", "check", "bench", "docs"):
        assert f"\n  {command} " in done.stdout


@pytest.mark.parametrize("arguments", [("fly",), ("bench", "fly")])
def test_a_command_that_is_not_there_is_named(arguments):
    done = dev(*arguments)
    assert done.returncode == 2
    assert "'fly'" in done.stderr


def test_it_runs_from_anywhere_with_an_empty_home(tmp_path):
    done = dev("run", "python", "-c", "import meander, os; print(os.getcwd())", HOME=str(tmp_path), CDPATH="/:/tmp")
    assert (done.returncode, done.stdout) == (0, "/\n")


def test_without_java_it_says_in_one_sentence_what_to_install(tmp_path):
    stub = 'venv=$1; set --; source "$0" >/dev/null; find_java() { :; }; install_java() { :; }; VENV=$venv; have_java'
    done = subprocess.run(["bash", "-c", stub, DEV, str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "Spark needs Java 17 or newer" in done.stderr
    assert "openjdk-17-jre-headless" in done.stderr


USUAL = ["tests/contract", "tests/spark", "tests/unit tests/property"]
DESTRUCTIVE = ["matrix", "tests/fault"]


@pytest.mark.parametrize(
    ("which", "parts", "fails", "said"),
    [
        ("not slow", USUAL, "nothing", r"all passed in 0 min \d+ s"),
        ("not slow", USUAL, "tests/spark", "failed after .*: tests on Spark"),
        ("not slow", USUAL, "tests/contract", "failed after .*: tests of the contract"),
        ("not soak", USUAL + DESTRUCTIVE, "tests/unit", "failed after .*: tests without Spark"),
        ("not soak", USUAL + DESTRUCTIVE, "tests/fault", "failed after .*: tests that kill processes"),
        ("not soak", USUAL + DESTRUCTIVE, "fault.matrix", "failed after .*: cells of the matrix of faults"),
    ],
)
def test_every_part_runs_once_in_one_of_two_lanes_and_it_is_said_which_failed(which, parts, fails, said):
    stub = 'which=$1; fails=$2; set --; source "$0" >/dev/null; in_venv() { echo "$*"; [[ $* != *"$fails"* ]]; }; '
    stub += "have_venv() { :; }; have_java() { :; }; have_kernels() { :; }; have_archive() { :; }; "
    done = subprocess.run(
        ["bash", "-c", f'{stub} test_all "$which"', DEV, which, fails], capture_output=True, text=True
    )
    ran = re.findall(r"^python -m (?:pytest .* -m [a-z ]+|fault\.)(tests/.*|matrix)", done.stdout, re.MULTILINE)
    assert sorted(ran) == sorted(parts)
    *_, last = done.stderr.splitlines()
    assert re.fullmatch(f"dev: {said}", last)
    assert (done.returncode == 0) == (fails == "nothing")


def test_the_lock_holds_hashes_and_no_addresses():
    for lock in (ROOT / "locks").glob("*.txt"):
        text = lock.read_text()
        assert "--hash=sha256:" in text
        assert "://" not in text
        assert "--index" not in text
