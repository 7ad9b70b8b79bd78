"""Keys of every type that a key may have, and rows of them for tests with and without Spark."""

from __future__ import annotations

import datetime as dt
import random

import pyarrow as pa

EPOCH = dt.date(1970, 1, 1)
KEYS = {
    "bigint": {"key": (pa.int64(), lambda n: [-(2**63), 2**63 - 1, 0, -1][n] if n < 4 else n * 7919 - 50_000)},
    "string": {"word": (pa.string(), lambda n: ["", " ", "ß", "猫\0🦆"][n] if n < 4 else f"word {n % 61}" * (n % 5))},
    "date": {"day": (pa.date32(), lambda n: EPOCH + dt.timedelta(days=n * 37 - 20_000))},
    "binary": {"raw": (pa.binary(), lambda n: bytes([n % 251]) * (n % 40))},
    "tuple": {
        "user": (pa.string(), lambda n: "u" * (n % 7)),
        "shop": (pa.int32(), lambda n: n % 11 - 5),
        "at": (pa.timestamp("us", tz="UTC"), lambda n: dt.datetime(2024, 1, 1, n % 3, tzinfo=dt.UTC)),
    },
}


def random_rows(kind: str, rows: int, rng: random.Random) -> pa.Table:
    """Rows with skewed keys of this kind, and a column that nobody counts."""
    numbers = [int(rng.paretovariate(0.4)) % 300 for _ in range(rows)]
    columns = {
        name: pa.array([make(n + (11 * at if n > 9 else 0)) for n in numbers], type_)
        for at, (name, (type_, make)) in enumerate(KEYS[kind].items())
    }
    return pa.table({**columns, "ignored": pa.array([rng.random() for _ in range(rows)])})
