"""What the documents show, runs: Python blocks, commands, examples and docstrings."""

import doctest
import importlib
import json
import pkgutil
import re
import shlex
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

import meander
import meander as me
from meander.cli import main
from meander.engine.driver.settings import Settings
from meander.keyed import KeyedStream

ROOT = Path(meander.__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page, language):
    return [code for kind, code in BLOCK.findall(page.read_text()) if kind == language]


def needs_spark(code):
    """Whether it is run in tests/spark/test_examples.py instead, in one session with others or in one of its own."""
    return "me.session(" in code or "SparkSession" in code


PURE = [page for page in PAGES if not any(map(needs_spark, blocks(page, "python")))]
EXAMPLES = [path for path in sorted((ROOT / "examples").glob("*.py")) if not needs_spark(path.read_text())]


@pytest.mark.parametrize("page", [p for p in PURE if blocks(p, "python")], ids=lambda page: page.name)
def test_python_on_a_page_runs_from_top_to_bottom(page):
    names = {}
    for code in blocks(page, "python"):
        exec(compile(code, str(page), "exec"), names)


@pytest.mark.parametrize(
    "page",
    [p for p in PAGES if blocks(p, "console") and (p in PURE or p.name == "README.md")],
    ids=lambda page: page.name,
)
def test_commands_on_a_page_exist_and_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for code in blocks(page, "json"):
        (tmp_path / "problem.json").write_text(json.dumps(json.loads(code)))
    help_text = subprocess.run([str(ROOT / "dev")], capture_output=True, text=True, check=True).stdout
    for line in "".join(blocks(page, "console")).splitlines():
        if not line.startswith("$ "):
            continue
        command = line[2:]
        if command.startswith("./dev"):
            words = shlex.split(command, comments=True)
            assert len(words) == 1 or f"  {words[1]} " in help_text, command
        elif command.startswith("meander") and "|" not in command:
            assert main(shlex.split(command)[1:]) == 0, command
        elif command.startswith("meander"):
            pipeline = command.replace("meander", f"{shlex.quote(sys.executable)} -m meander")
            done = subprocess.run(["bash", "-o", "pipefail", "-c", pipeline], capture_output=True, text=True)
            assert done.returncode == 0, (command, done.stderr)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_an_example_runs_and_is_short(example):
    done = subprocess.run([sys.executable, str(example)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout
    assert len(example.read_text().splitlines()) <= 50


MODULES = [name for _, name, _ in pkgutil.walk_packages(meander.__path__, "meander.") if not name.endswith("__main__")]


@contextmanager
def given_for(test):
    """What an example of a running query's handle may use: a query that has counted a few words."""
    if not (test.examples and test.name.startswith(("meander.query.Query.", "meander.moves.Moves."))):
        yield {}
        return
    words = me.stream(me.testing.source("word string")).key_by("word").count()
    with me.testing.harness(words, workers=2, bins=16) as harness:
        harness.batch(
            [{"word": word} for word in ["to", "be", "or", "not", "to", "be", "that", "is", "the", "question"]]
        )
        yield {"query": harness.query}


@pytest.mark.parametrize("name", ["meander", *MODULES])
def test_examples_in_docstrings_hold(name):
    module = importlib.import_module(name)
    finder = doctest.DocTestFinder()
    runner = doctest.DocTestRunner()
    for test in finder.find(module, name):
        with given_for(test) as names:
            test.globs.update(names)
            runner.run(test)
    for value in vars(module).values():
        # A planner or schedule is an object; its docstring is that of the function it was made of.
        function = getattr(value, "target", None) or getattr(value, "steps", None)
        if callable(function) and getattr(function, "__module__", None) == name:
            for test in finder.find(function, f"{name}.{function.__name__}", globs=vars(module).copy()):
                runner.run(test)
    assert runner.summarize(verbose=False).failed == 0


def test_the_readme_shows_what_comparing_planners_prints(capsys):
    assert main(["compare"]) == 0
    printed = [line.split() for line in capsys.readouterr().out.splitlines()]
    for line in blocks(ROOT / "README.md", "text")[-1].splitlines():
        assert any(words[: len(line.split())] == line.split() for words in printed), line


def test_docs_name_every_planner_schedule_option_operator_and_command(capsys):
    planners = (ROOT / "docs" / "choose-a-planner.md").read_text()
    assert all(f"`{name}`" in planners for name in meander.planners())
    steps = (ROOT / "docs" / "cut-a-plan-into-steps.md").read_text()
    assert all(f"`{name}`" in steps for name in meander.schedules())
    start = (ROOT / "docs" / "start-a-stateful-query.md").read_text()
    assert all(f"`{option}`" in start for option in Settings.__dataclass_fields__)
    chosen = (ROOT / "docs" / "choose-an-operator.md").read_text()
    operators = [name for name, each in vars(KeyedStream).items() if each.__doc__ and not name.startswith("_")]
    assert {"count", "top_k", "window"} <= set(operators)
    assert all(f"`{name}`" in chosen for name in set(operators) - {"process", "connect", "keyed_schema"})
    assert main(["--help"]) == 0
    commands = re.findall(r"^  (\w+)  ", capsys.readouterr().out.split("Commands:")[1], re.MULTILINE)
    changelog = (ROOT / "CHANGELOG.md").read_text()
    assert commands
    assert all(f"`{command}`" in changelog for command in commands)
