"""Event time: its column, its values in microseconds, and which rows have none."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from meander.errors import InvalidOption
from meander.operators.operator import field_of
from meander.operators.ordering import Flags, Words
from meander.route.columns import whole_column, words_of


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
