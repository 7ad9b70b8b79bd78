"""The examples and the pages that need Spark run, in one session, and say what they say they would."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import docstrings
import meander
from meander.cli import main

pytestmark = pytest.mark.spark

ROOT = Path(meander.__file__).parents[2]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
EXAMPLES = [path for path in sorted((ROOT / "examples").glob("*.py")) if "me.session(" in path.read_text()]
OF_THEIR_OWN = [path for path in sorted((ROOT / "examples").glob("*.py")) if "SparkSession" in path.read_text()]
PAGES = [
    page
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
    if any(kind == "python" and "me.session(" in code for kind, code in BLOCK.findall(page.read_text()))
]
QUICK = (
    "README.md", "aggregate_like_spark.py", "ask_by_sql.py", "count_words.py", "join_streams.py", "rescale_live.py",
    "windows-and-late-rows.md",
)  # fmt: skip
"""These run in every run, the others in a slow one."""


def each(paths):
    return [pytest.param(path, id=path.name, marks=() if path.name in QUICK else pytest.mark.slow) for path in paths]


def test_there_are_five_examples_of_the_engine():
    assert len(EXAMPLES) >= 5


@pytest.mark.parametrize("example", each(EXAMPLES))
def test_an_example_runs_and_is_short(spark, example, capsys):
    code = example.read_text()
    assert len(code.splitlines()) < 50
    exec(compile(code, str(example), "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out.count("\n") >= 3


@pytest.mark.parametrize("example", each(OF_THEIR_OWN))
def test_an_example_that_starts_its_own_spark_runs_and_is_short(example, tmp_path):
    assert len(example.read_text().splitlines()) < 50
    environment = {**os.environ, "MEANDER_RUNTIME_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, str(example)], capture_output=True, text=True, env=environment, timeout=400)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") >= 3


def test_examples_in_docstrings_hold(spark, tmp_path):
    """Those that need no Spark run in tests/unit/test_docs.py."""
    (tmp_path / "words").mkdir()
    (tmp_path / "words" / "1.txt").write_text("to be")

    def words_of(spark):
        return spark.readStream.text(str(tmp_path / "words")).withColumnRenamed("value", "word")

    counts = words_of(spark).groupBy("word").count().writeStream.format("noop").outputMode("update")
    counting = counts.option("checkpointLocation", str(tmp_path / "counting")).start()
    counting.processAllAvailable()
    try:
        done = [docstrings.run(name, of_spark=True, spark=spark, words_of=words_of, counting=counting, folder=tmp_path)
                for name in docstrings.MODULES]  # fmt: skip
    finally:
        counting.stop()
    assert sum(each.attempted for each in done) >= 12
    assert not sum(each.failed for each in done)


@pytest.mark.parametrize("page", each(PAGES))
def test_a_page_runs_from_top_to_bottom(spark, page, capsys, monkeypatch):
    """Python runs, commands run where it left its files, and a text block is what the block before it printed."""
    names = {"__name__": "__main__"}
    printed = ""
    for kind, code in BLOCK.findall(page.read_text()):
        if kind == "python":
            exec(compile(code, str(page), "exec"), names)
            printed = capsys.readouterr().out
        elif kind == "text" and page.name != "README.md":
            assert _is_like(printed, code), printed
        elif kind == "console" and "data" in names:
            monkeypatch.chdir(names["data"])
            for line in code.splitlines():
                assert main(shlex.split(line.removeprefix("$ meander "))) == 0, line
            printed = capsys.readouterr().out


def _is_like(printed: str, shown: str) -> bool:
    """Whether a page shows what was printed.

    How columns are padded does not matter; `...` may be anything in its line, and any lines where it stands alone.
    """
    pattern = ""
    for line in shown.strip().splitlines():
        words = [re.escape(word).replace(r"\.\.\.", "[^\n]*") for word in line.split()]
        pattern += r"(?:[^\n]*\n)*?" if line == "..." else r"[ \t]*" + r"[ \t]+".join(words) + r"[ \t]*\n"
    return re.fullmatch(pattern, printed.strip() + "\n") is not None
