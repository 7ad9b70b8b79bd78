"""A live word count: lines arrive as files, and every batch brings the words whose count has changed."""

import tempfile
from collections import Counter
from pathlib import Path

from pyspark.sql import functions as F

import meander as me

LINES = [
    "the river bends and the river flows",
    "a meander moves while the river flows",
    "the bends move and nobody downstream notices",
]

folder = Path(tempfile.mkdtemp())
(folder / "lines").mkdir()
spark = me.session()
lines = spark.readStream.text(str(folder / "lines"))
words = lines.select(F.explode(F.split("value", " ")).alias("word"))

counts = me.sinks.memory("counts")
query = me.stream(words).key_by("word").count().start(folder / "checkpoint", counts, workers=2)
for number, line in enumerate(LINES):
    (folder / "part").write_text(line)
    (folder / "part").rename(folder / "lines" / f"{number}.txt")  # a file appears at once, never half written
    query.process_all_available()
    changed = [row for row in counts.to_arrow().to_pylist() if row["batch"] == query.version]
    print(f"batch {query.version}:", ", ".join(f"{row['word']} {row['count']}" for row in changed))
query.stop()

found = {row["word"]: row["count"] for row in counts.latest("word")}
assert found == Counter(" ".join(LINES).split())
print(f"all {len(found)} words are counted right")
