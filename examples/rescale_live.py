"""Two workers become four and then three while rows keep coming: nothing stops, and every count is right."""

import tempfile
from pathlib import Path

from pyspark.sql import functions as F

import meander as me

folder = Path(tempfile.mkdtemp())
spark = me.session()
rate = spark.readStream.format("rate").option("rowsPerSecond", 2000).load()
users = rate.select((F.col("value") % 500).alias("user"))

counts = me.sinks.memory("counts")
query = me.stream(users).key_by("user").count().start(folder / "checkpoint", counts, workers=2, bins=64)
while query.version < 1 or not sum(query.loads["0:count"].rows):  # loads are measured, and plans are made of them
    pass

for workers in (4, 3):
    proposal = query.plan_rescale(workers)
    print(
        f"{workers} workers would move {proposal.bins} bins, {proposal.bytes:,} bytes, in {len(proposal.steps)} steps"
    )
    move = query.rescale(workers)
    move.wait()
    print(move.report)

query.stop()
rows = sum(each.rows for each in query.recent_progress)
assert sum(row["count"] for row in counts.latest("user")) == rows
print(f"{rows} rows came in, and {rows} are counted on workers {query.workers}")
