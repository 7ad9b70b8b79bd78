"""Both sides of a join as streams of Spark: every row once and at its time, both cut at the same time."""

from __future__ import annotations

import json
from itertools import pairwise

import pyarrow as pa
import pytest
from pyspark.sql import functions as F

from meander_lab.apps.pairs import streams
from meander_lab.apps.rides import Rides
from meander_lab.apps.zipf import ZipfStreams
from streams import PATIENCE_S

ZIPF = ZipfStreams(0.8, 300, seed=2)
CITY = Rides(seed=2, fleet=50, demand=(3.0, 0.0, 1.0, 8.0), step_s=0.25)


@pytest.mark.spark
@pytest.mark.parametrize(
    ("source", "rates", "rows"), [(ZIPF, (4000, 4000), 12_000), (CITY, (500.0, 4000.0), (2000, 16_000))]
)
def test_both_sides_have_exactly_their_rows_and_end_by_themselves(spark, tmp_path, source, rates, rows):
    sides = streams(spark, source, rate=rates, rows=rows, start=1_700_000_000, per_batch=6000)
    assert [list(source.schema(side).names) for side in (0, 1)] == [frame.columns for frame in sides]
    left, right = (
        frame.withColumns({"side": F.lit(side), "micros": F.unix_micros("ts")}) for side, frame in enumerate(sides)
    )
    kept = {}
    query = (
        left.unionByName(right, allowMissingColumns=True)
        .writeStream.foreachBatch(lambda frame, batch: kept.update({batch: frame.toArrow()}))
        .option("checkpointLocation", str(tmp_path / "ck"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(PATIENCE_S)
    found = pa.concat_tables(kept.values())
    for side, count in enumerate(rows if isinstance(rows, tuple) else (rows, rows)):
        expected = source.rows(side, 0, count, rates[side], 1_700_000_000_000_000)
        of_side = found.filter(pa.compute.equal(found["side"], side)).sort_by("micros")
        assert of_side["micros"].to_pylist() == expected["ts"].cast(pa.int64()).to_pylist()
        plain = [name for name in expected.column_names if name != "ts"]
        assert sorted(of_side.select(plain).to_pylist(), key=str) == sorted(expected.select(plain).to_pylist(), key=str)
    ends = [[json.loads(each["endOffset"])["us"] for each in one["sources"]] for one in query.recentProgress]
    ends = [each for each, after in pairwise([*ends, None]) if each != after]
    assert len(ends) >= 3
    assert all(one == other for one, other in ends[:-1]), "both sides are cut at the same time"
