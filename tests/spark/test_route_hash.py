"""The hash here, the hash there: every type of key gets the number, and the bin, that Spark itself gives it."""

import datetime as dt
import random

import numpy as np
import pyarrow as pa
import pytest

from meander.route.hashing import bins_of, xxhash64
from meander.route.keys import KeyType
from meander.route.schema import schema

pytestmark = pytest.mark.spark

ROWS = 160
UTC = pa.timestamp("us", tz="UTC")


def columns() -> dict[str, pa.Array]:
    """One column of each type, with its extremes, and one of each with nulls in it."""
    rng = random.Random(7)

    def integers(bits: int) -> list[int]:
        low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
        return [low, high, 0, -1, 1, *(rng.randint(low, high) for _ in range(ROWS - 5))]

    alphabet = ["a", "Z", "7", " ", "\0", "ß", "é", "猫", "🦆"]
    texts = ["".join(rng.choice(alphabet) for _ in range(i % 101)) for i in range(ROWS)]
    micros = [-62135596800000000, 253402300799999999, *(rng.randint(-(10**16), 10**16) for _ in range(ROWS - 2))]
    whole = {
        "flag": pa.array([i % 3 == 0 for i in range(ROWS)]),
        "i8": pa.array(integers(8), pa.int8()),
        "i16": pa.array(integers(16), pa.int16()),
        "i32": pa.array(integers(32), pa.int32()),
        "i64": pa.array(integers(64), pa.int64()),
        "day": pa.array([dt.date(1, 1, 1), dt.date(9999, 12, 31), *(dt.date(1970, 1, 1),) * (ROWS - 2)]),
        "ts": pa.array(micros, UTC),
        "ntz": pa.array(micros, pa.timestamp("us")),
        "text": pa.array(texts),
        "raw": pa.array([rng.randbytes(i % 101) for i in range(ROWS)]),
    }
    holes = np.array([rng.random() < 0.3 for _ in range(ROWS)])
    holed = {f"{name}_holed": pa.array(each.to_pylist(), each.type, mask=holes) for name, each in whole.items()}
    return whole | holed


TUPLES = [
    ("i64", "text"), ("text", "i32"), ("ts", "flag"), ("i8", "i16", "raw"), ("text", "text", "day"),
    ("i64", "text_holed", "i32"), ("text", "i64_holed", "ts"), ("flag", "i8_holed", "raw_holed"),
    ("i32_holed", "day_holed"), ("ntz", "ts_holed", "i16_holed"),
]  # fmt: skip


@pytest.fixture(scope="module")
def table():
    return pa.table(columns())


@pytest.fixture(scope="module")
def frame(spark, table):
    made = spark.createDataFrame(table)
    # Spark reads timestamps without a zone as timestamps with one; these are to stay without.
    without_zone = {name: made[name.replace("ntz", "ts")].cast("timestamp_ntz") for name in ("ntz", "ntz_holed")}
    return made.withColumns(without_zone)


def test_hashes_and_bins_are_sparks(frame, table):
    from pyspark.sql import functions as F

    keys = [(name,) for name in table.column_names] + TUPLES
    hashes = [F.xxhash64(*key).alias(f"hash {i}") for i, key in enumerate(keys)]
    bins = [
        F.shiftrightunsigned(F.xxhash64(*key), 64 - bits).alias(f"bin {bits} {i}")
        for i, key in enumerate(keys)
        for bits in (1, 8, 16)
    ]
    there = frame.select("*", *hashes, *bins).toArrow()
    assert there["ntz"].type == pa.timestamp("us")
    for i, key in enumerate(keys):
        assert [n for n in key if there[n].to_pylist() != table[n].to_pylist()] == []
        here = xxhash64([there[name] for name in key])
        assert here.view(np.int64).tolist() == there[f"hash {i}"].to_pylist(), key
        assert here.tolist() == xxhash64([table[name] for name in key]).tolist(), key
        for bits in (1, 8, 16):
            assert bins_of(here, 2**bits).tolist() == there[f"bin {bits} {i}"].to_pylist(), key


def test_leading_columns_choose_sparks_bin(frame, table):
    from pyspark.sql import functions as F

    key = KeyType.of([table.schema.field(name) for name in ("text", "i32", "ts")], leading=2)
    keys = key.encode([table[name] for name in key.names])
    there = frame.select(
        F.shiftrightunsigned(F.xxhash64("text", "i32"), 64 - 12).alias("bin"), F.xxhash64(*key.names).alias("hash")
    )
    answer = there.toArrow()
    assert keys.bins(4096).tolist() == answer["bin"].to_pylist()
    here = xxhash64([table[name] for name in key.names])
    assert here.view(np.int64).tolist() == answer["hash"].to_pylist()


@pytest.mark.parametrize(
    "ddl",
    [
        "a boolean, b tinyint, c byte, d smallint, e short, f int, g integer, h bigint, i long, j float, k real",
        "l double, m string, n binary, o date, p timestamp, q timestamp_ntz, r decimal(12,3), s decimal, t decimal(7)",
        "`a b` INT NOT NULL, c: Array<Map<String,BigInt>>, `d``e` struct<x:int,y: array<struct<z:string not null>>>",
        "s struct<a int, `b c`: double>, r timestamp_ltz, n numeric(5, 5), d dec(38,0)",
        "",
    ],
)
def test_schemas_are_sparks(spark, ddl):
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    assert schema(ddl) == to_arrow_schema(StructType.fromDDL(ddl), timezone="UTC")
