"""Event time: durations as users write them, the column of time, its values in microseconds, and rows without one."""

from __future__ import annotations

import re
from datetime import timedelta

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from meander.errors import InvalidOption
from meander.operators.operator import field_of
from meander.operators.ordering import Flags, Words
from meander.options import kind
from meander.route.columns import whole_column, words_of

Duration = str | float | timedelta

_UNITS = {
    "us": 1, "microsecond": 1, "ms": 1_000, "millisecond": 1_000, "s": 1_000_000, "sec": 1_000_000, "second": 1_000_000,
    "m": 60_000_000, "min": 60_000_000, "minute": 60_000_000, "h": 3_600_000_000, "hour": 3_600_000_000,
    "d": 86_400_000_000, "day": 86_400_000_000, "w": 604_800_000_000, "week": 604_800_000_000,
}  # fmt: skip

_LONGEST = 2**62


def microseconds(what: str, value: object, least: int = 0) -> int:
    """The microseconds of a duration: a text such as "10 minutes", "1h 30m" or "500ms", a timedelta, or seconds.

    >>> microseconds("size", "1h 30m"), microseconds("size", 0.5)
    (5400000000, 500000)
    """
    duration = _read(what, value)
    if not least <= duration < _LONGEST:
        raise InvalidOption(f"{what} is {value!r}; it must be {'above 0' if least else 'at least 0'} and below 2^62 us")
    return duration


def _read(what: str, value: object) -> int:
    if isinstance(value, timedelta):
        return value // timedelta(microseconds=1)
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < _LONGEST:
        return round(value * 1_000_000)
    if isinstance(value, str):
        parts = re.findall(r"(\d+(?:\.\d+)?)\s*([A-Za-z]+)", value)
        rest = re.sub(r"(\d+(?:\.\d+)?)\s*([A-Za-z]+)", "", value).strip(" ,")
        sizes = [_UNITS.get(unit.lower()) or _UNITS.get(unit.lower().removesuffix("s"), 0) for _, unit in parts]
        if parts and not rest and all(sizes):
            return sum(round(float(number) * size) for (number, _), size in zip(parts, sizes, strict=True))
    text = repr(value) if isinstance(value, str) else kind(value)
    raise InvalidOption(f'{what} is {text}; write a duration such as "10 minutes", "1h 30m" or "500ms"')


def time_type(input: pa.Schema, time: str, what: str = "time") -> pa.DataType:
    """The type of the column of event time; refuses what is no timestamp of microseconds."""
    kind = field_of(input, time, what).type
    if not pa.types.is_timestamp(kind) or kind.unit != "us":
        raise InvalidOption(
            f"{what} names the column {time!r} of type {kind}; event time is a timestamp (microseconds)"
        )
    return kind


def times_of(rows: pa.Table, time: str) -> tuple[Words, Flags]:
    """The event time of each row in microseconds (0 where there is none), and where there is one."""
    column = whole_column(rows[time])
    if not column.null_count:
        return words_of(column), np.ones(len(column), dtype=np.bool_)
    has = column.is_valid().to_numpy(zero_copy_only=False)
    return np.where(has, words_of(column), 0), has


def newest_of(rows: pa.Table, time: str) -> int | None:
    """The newest event time of the rows in microseconds; None where no row has one."""
    newest = pc.max(rows[time]).cast(pa.int64()).as_py()
    return None if newest is None else int(newest)


def stamps(words: Words, kind: pa.DataType) -> pa.Array:
    """A column of timestamps of these microseconds."""
    return pa.array(words, pa.int64()).cast(kind)


def chosen(rows: pa.Table, at: Words) -> pa.Table:
    """These rows of a table; the table itself where they are all of its rows."""
    return rows if at.size == rows.num_rows else rows.take(pa.array(at))
