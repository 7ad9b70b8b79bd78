"""Try installed packages: python smoke.py bare, smoke.py product WHEEL, or smoke.py lab. For ./dev build.

It runs in an environment that has the packages and nothing else, and knows nothing of the repository.
"""

import importlib.util
import subprocess
import sys
import tempfile
import time
import zipfile
from collections import Counter
from pathlib import Path

TEXT = [
    "the river bends and the river flows",
    "a meander moves while the river flows",
    "the bends move and nobody downstream notices",
]
LABORATORY = ("meander_lab", "nexmark", "benchmarks", "experiments", "baselines", "simple_ssm", "tests/")
WITHIN_S = 120


def command(*arguments):
    done = subprocess.run(["meander", *arguments], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def files_of_the_product(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert "meander/__init__.py" in names
    assert "meander/py.typed" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    strange = [name for name in names if any(word in name for word in LABORATORY)]
    assert not strange, f"the wheel holds what belongs to the laboratory: {strange}"


def planning():
    import meander as me

    assert {"ssm", "mtm"} <= set(me.planners())
    plan = me.plan(me.Problem([1.0] * 12, [1] * 12, [bin_ // 6 for bin_ in range(12)], 3, 0.1))
    assert set(plan.loads.values()) == {4.0}


def command_line():
    offered = command("--help")
    assert "plan" in offered
    assert "nexmark" not in offered
    assert "experiment" not in offered
    assert importlib.util.find_spec("meander_lab") is None
    assert importlib.util.find_spec("matplotlib") is None


def word_count():
    """Lines come while two workers become three; every word of every line is counted once."""
    from pyspark.sql import functions as F

    import meander as me

    spark = me.session()
    spark.sparkContext.setLogLevel("ERROR")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "lines").mkdir()
        lines = spark.readStream.text(str(folder / "lines"))
        words = lines.select(F.explode(F.split("value", " ")).alias("word"))
        counts = me.sinks.memory("counts")
        query = me.stream(words).key_by("word").count().start(folder / "checkpoint", counts, workers=2, bins=64)
        written = []
        try:
            for _ in range(3):
                write_line(folder, written)
                query.process_all_available()
            move, deadline = query.rescale(3), time.monotonic() + WITHIN_S
            while not move.is_over:  # steps go between batches, and batches need lines
                assert time.monotonic() < deadline, f"the move has not ended: {move.report}"
                write_line(folder, written)
                query.process_all_available()
            assert move.report.outcome == "done", move.report
            write_line(folder, written)
            query.process_all_available()
            assert len(query.workers) == 3
        finally:
            query.stop()
        found = {row["word"]: row["count"] for row in counts.latest("word")}
        assert found == Counter(" ".join(written).split())
        assert len(written) > 4
    spark.stop()
    return len(written)


def write_line(folder, written):
    line = TEXT[len(written) % len(TEXT)]
    (folder / "part").write_text(line)
    (folder / "part").rename(folder / "lines" / f"{len(written)}.txt")
    written.append(line)


def bare():
    """Without PySpark: plans, and streams in this process; Spark is missed in one sentence."""
    import meander as me

    assert importlib.util.find_spec("pyspark") is None
    planning()
    words = me.stream(me.testing.source("word string"))
    with me.testing.harness(words.key_by("word").count(), workers=2) as h:
        h.batch([{"word": word} for word in TEXT[0].split()])
        h.rescale(3)
        assert {row["word"]: row["count"] for row in h.latest("word")} == Counter(TEXT[0].split())
    answer = ""
    try:
        me.session()
    except me.MeanderError as error:
        answer = str(error)
    assert "pip install 'meander[spark]'" in answer, answer
    print("without PySpark it plans, tests streams, and says what is missing")


def product(wheel):
    files_of_the_product(wheel)
    planning()
    command_line()
    print(f"a word count over {word_count()} files went from 2 to 3 workers, and every count is right")


def lab():
    listed = command("nexmark", "list")
    assert all(query in listed for query in ("q1", "q4", "q8"))
    assert "ding-cost" in command("experiment")
    import meander as me

    assert {"even", "redist", "ssm", "mtm"} <= set(me.planners())
    print("the lab's commands and planners are there")


if __name__ == "__main__":
    {"bare": bare, "product": product, "lab": lab}[sys.argv[1]](*sys.argv[2:])
