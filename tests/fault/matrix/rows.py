"""Rows of batches: tables of them, their times in seconds, and what the recounts need to know of both."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

UTC = pa.timestamp("us", tz="UTC")
MIDNIGHT = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


def table_of(rows: Sequence[tuple[Any, ...]], schema: pa.Schema) -> pa.Table:
    """Rows as a table; times are given in seconds."""
    columns = [
        pa.array([at(value) for value in column] if each.type == UTC else column, each.type)
        for each, column in zip(schema, zip(*rows, strict=True), strict=True)
    ]
    return pa.table(columns, schema=schema)


def at(second: float) -> dt.datetime:
    """A moment, in seconds after midnight."""
    return MIDNIGHT + dt.timedelta(seconds=second)


def pairs_of(rows: pa.Table) -> list[tuple[Any, Any]]:
    """Both columns of a table, row by row."""
    return list(zip(*(column.to_pylist() for column in rows.columns), strict=True))


def seconds_of(rows: pa.Table) -> list[tuple[int, int]]:
    """The key of each row, and its second after midnight."""
    return [(key, int((time - MIDNIGHT).total_seconds())) for key, time in pairs_of(rows)]


def newest_second(rows: pa.Table, before: int | None = None) -> int:
    """The newest time so far."""
    return max([second for _, second in seconds_of(rows)] + ([] if before is None else [before]))


def sessions_of(times: Sequence[int], gap_s: float) -> list[list[int]]:
    """Times in order, cut where the gap between two is too long."""
    sessions: list[list[int]] = []
    for time in times:
        if sessions and time - sessions[-1][-1] <= gap_s:
            sessions[-1].append(time)
        else:
            sessions.append([time])
    return sessions
