"""The three most frequent words at every moment: counts by word, and the best of all of them, in one Spark job."""

import os
import tempfile
from collections import Counter
from pathlib import Path

from pyspark.sql import functions as F

import meander as me

LINES = ["duck duck goose", "swan swan swan duck goose", "goose goose goose heron"]

folder = Path(tempfile.mkdtemp())
(folder / "lines").mkdir()
for number, line in enumerate(LINES, start=1):
    (folder / "lines" / f"{number}.txt").write_text(line)
    os.utime(folder / "lines" / f"{number}.txt", (number, number))  # Spark takes the oldest file first

spark = me.session()
lines = spark.readStream.option("maxFilesPerTrigger", 1).text(str(folder / "lines"))
words = lines.select(F.explode(F.split("value", " ")).alias("word"))

# identity: a row that count emits is an update of the one it emitted before for the same word.
top = me.stream(words).key_by("word").count().key_by().top_k(3, by="count", identity=["word"])
ranks = me.sinks.memory("ranks")
top.start(folder / "checkpoint", ranks, workers=2, trigger={"availableNow": True}).await_termination()

so_far = Counter()
for batch, line in enumerate(LINES):
    found = [row for row in ranks.to_arrow().to_pylist() if row["batch"] == batch]
    print(f"batch {batch}:", ", ".join(f"{row['rank']}. {row['word']} ({row['count']})" for row in found))
    so_far.update(line.split())
    best = sorted(so_far.items(), key=lambda each: (-each[1], each[0]))[:3]
    assert [(row["word"], row["count"]) for row in found] == best
