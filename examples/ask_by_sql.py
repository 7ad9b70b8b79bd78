"""The output of a running query as a view: every query over it sees the rows that are committed at that moment."""

import tempfile
from pathlib import Path

import meander as me

folder = Path(tempfile.mkdtemp())
(folder / "words").mkdir()
NOW = "select word, max_by(count, batch) as count from counts group by word order by word"


def add(number, words):
    """Let a file appear at once, never half written."""
    (folder / "part").write_text("\n".join(words.split()))
    (folder / "part").rename(folder / "words" / f"{number}.csv")


spark = me.session()
words = spark.readStream.schema("word string").csv(str(folder / "words"))
query = me.stream(words).key_by("word").count().start(folder / "checkpoint", me.sinks.memory("counts"), workers=2)
for number, text in enumerate(("duck duck goose", "goose heron duck")):
    add(number, text)
    query.process_all_available()
    spark.sql(NOW).show()
query.stop()
assert [tuple(row) for row in spark.sql(NOW).collect()] == [("duck", 3), ("goose", 2), ("heron", 1)]
