"""Spark's aggregates by their names, over columns and over expressions, live."""

import tempfile
from pathlib import Path

from pyspark.sql import functions as F

import meander as me

folder = Path(tempfile.mkdtemp())
(folder / "orders").mkdir()
(folder / "orders" / "1.csv").write_text("ann,tea,3,2\nbob,oil,5,1\nann,oil,4,3\nann,tea,3,1")

spark = me.session()
orders = spark.readStream.schema("user string, item string, price double, n int").csv(str(folder / "orders"))
by_customer = me.stream(orders).key_by(F.upper("user").alias("who"))
total, cheap = ("sum", F.col("price") * F.col("n")), ("any", F.col("price") < 4)
spent = by_customer.aggregate(total=total, mean=("avg", "price"), items=("count_distinct", "item"), cheap=cheap)
sink = me.sinks.memory("spent")
spent.start(folder / "checkpoint", sink, workers=2, trigger="availableNow").await_termination()
print(spent)
ann, bob = sorted(sink.latest("who"), key=lambda row: row["who"])
print(ann, bob, sep="\n")
assert (ann["total"], ann["items"], ann["cheap"]) == (21.0, 2, True)
assert (bob["total"], bob["items"], bob["cheap"]) == (5.0, 1, False)
