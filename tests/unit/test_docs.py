"""What the documents show, runs: Python blocks, commands, examples and docstrings."""

import json
import logging
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import docstrings
import meander
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


@pytest.fixture(autouse=True)
def _log_as_before():
    """What a page shows of logging is over with it."""
    logger = logging.getLogger("meander")
    handlers, level = logger.handlers[:], logger.level
    yield
    logger.handlers[:] = handlers
    logger.setLevel(level)


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
def test_an_example_runs_and_is_short(example, capsys):
    code = example.read_text()
    assert len(code.splitlines()) <= 50
    exec(compile(code, str(example), "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out


def test_an_example_runs_by_itself():
    done = subprocess.run([sys.executable, str(EXAMPLES[0])], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_there_is_a_short_example_for_each_feature():
    short = [path for path in (ROOT / "examples").glob("*.py") if len(path.read_text().splitlines()) < 30]
    assert len(short) >= 12


@pytest.mark.parametrize("name", ["meander", *docstrings.MODULES])
def test_examples_in_docstrings_hold(name):
    """Those that need Spark run in tests/spark/test_examples.py."""
    assert docstrings.run(name, of_spark=False).failed == 0


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
