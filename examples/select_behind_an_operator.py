"""Columns and conditions of Spark on what an operator emits: only large totals come out, under another name."""

import tempfile
from pathlib import Path

from pyspark.sql import functions as F

import meander as me

folder = Path(tempfile.mkdtemp())
(folder / "orders").mkdir()
(folder / "orders" / "1.csv").write_text("ann,3\nbob,50\nann,90\ncid,100")

spark = me.session()
orders = spark.readStream.schema("user string, price bigint").csv(str(folder / "orders"))
totals = me.stream(orders).where("price > 0").key_by("user").aggregate(total=("sum", "price"))
large = totals.with_columns(vat=F.col("total") * 0.25).where("total >= 90").select(F.upper("user").alias("who"), "vat")
print(large)

sink = me.sinks.memory("large")
large.start(folder / "checkpoint", sink, workers=2, trigger="availableNow").await_termination()
for row in sorted(sink.latest("who"), key=lambda row: row["who"]):
    print(f"{row['who']}: {row['vat']}")
assert {row["who"]: row["vat"] for row in sink.latest("who")} == {"ANN": 23.25, "CID": 25.0}
