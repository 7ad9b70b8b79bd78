"""The ground Spark stands on: the Java that `./dev` found and the PySpark of the lock work together."""

import pytest


@pytest.mark.spark
def test_spark_starts_counts_and_stops():
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master("local[1]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "1")
        .getOrCreate()
    )
    try:
        assert spark.version.startswith("4.3")
        counts = spark.range(10).selectExpr("id % 3 as k").groupBy("k").count().collect()
        assert sorted((row.k, row["count"]) for row in counts) == [(0, 4), (1, 3), (2, 3)]
    finally:
        spark.stop()
