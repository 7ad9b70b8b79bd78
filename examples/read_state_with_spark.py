"""State as a data source of Spark: the counts of a checkpoint as a DataFrame, one key alone, and an older version."""

import tempfile
from pathlib import Path

import meander as me

folder = Path(tempfile.mkdtemp())
words = me.stream(me.testing.source("word string")).key_by("word").count()
with me.testing.harness(words, bins=16, checkpoint=str(folder / "checkpoint")) as h:
    h.batch([{"word": word} for word in ("to", "be", "or", "not", "to", "be")])
    h.batch([{"word": "be"}])

spark = me.session()
counts = me.checkpoint(folder / "checkpoint").state("count", spark)
counts.orderBy("word").show()

reader = spark.read.format("meander").option("operator", "count")
be = reader.option("where", "word = 'be'").load(str(folder / "checkpoint"))  # reads one bin
before = reader.option("version", 0).load(str(folder / "checkpoint"))
assert {row["word"]: row["count"] for row in counts.collect()} == {"to": 2, "be": 3, "or": 1, "not": 1}
assert [row["count"] for row in be.collect()] == [3]
assert {row["word"]: row["count"] for row in before.collect()}["be"] == 2
