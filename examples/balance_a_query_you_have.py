"""A query of plain Spark, while it runs: see where its state is, spread it, empty an executor; every count is right."""

import tempfile
import time

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import meander as me

builder = SparkSession.builder.master("local-cluster[2,1,1024]").config("spark.sql.shuffle.partitions", 6)
spark = builder.config("spark.ui.enabled", "false").getOrCreate()
spark.sparkContext.setLogLevel("ERROR")

rate = spark.readStream.format("rate").option("rowsPerSecond", 1000).load()
counts = rate.groupBy((F.col("value") % 500).alias("user")).count()
writer = counts.writeStream.format("memory").queryName("counts").outputMode("complete")
query = writer.option("checkpointLocation", tempfile.mkdtemp()).start()

with me.attach(query) as attached:
    while any(each.batch < 0 for each in attached.observe().partitions):
        time.sleep(0.5)  # until each partition has been seen at work
    print(attached.observe())

    spread = attached.spread()
    spread.wait()
    print(spread.report)

    leaving = attached.executors[0]
    attached.drain(leaving).wait()
    print(f"executor {leaving} is empty:", attached.assignment)

query.stop()
rows = spark.table("counts").collect()
total = sum(row["count"] for row in rows)  # of the numbers 0, 1, 2, ... so many have been counted
assert all(row["count"] == len(range(row["user"], total, 500)) for row in rows)
print(f"{total} rows are counted, each once")
spark.stop()
