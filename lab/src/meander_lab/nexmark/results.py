"""Final rows as JSON lines, with times written as the input wrote them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TextIO

import pyarrow as pa
import pyarrow.compute as pc

CHUNK = 10_000


def write(rows: pa.Table, out: TextIO, written: str = "text") -> None:
    """Write one JSON object for each row: times as "text", ISO 8601 in UTC, or as "milliseconds" since 1970."""
    for line in lines(rows, written):
        out.write(f"{line}\n")


def lines(rows: pa.Table, written: str = "text") -> Iterator[str]:
    """Each row as JSON."""
    plain = pa.table({name: _plain(rows[name], written) for name in rows.column_names})
    for batch in plain.to_batches(CHUNK):
        for row in batch.to_pylist():
            yield json.dumps(row, ensure_ascii=False)


def _plain(column: pa.ChunkedArray, written: str) -> pa.ChunkedArray:
    if pa.types.is_timestamp(column.type):
        thousandths = column.cast(pa.timestamp("ms", column.type.tz), safe=False)
        if written == "milliseconds":
            return thousandths.cast(pa.int64())
        return pc.strftime(thousandths, "%Y-%m-%dT%H:%M:%SZ")
    if pa.types.is_decimal(column.type):
        return column.cast(pa.float64())
    return column
