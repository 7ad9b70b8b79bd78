"""pandas at the edges: its frames as Arrow tables, and tables as frames.

pandas is no dependency. It is imported only for a function that asks for its frames; whether a value is of pandas is
told without it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import pyarrow as pa

from meander.errors import InvalidOption


def is_frame(value: object) -> bool:
    """Whether a value is a DataFrame of pandas."""
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(value, pandas.DataFrame)


def is_series(value: object) -> bool:
    """Whether a value is a Series or an Index of pandas."""
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(value, pandas.Series | pandas.Index)


def arrow_of(value: Any) -> Any:
    """A DataFrame as a Table without its index, a Series as an Array; everything else as it is."""
    if is_frame(value):
        return pa.Table.from_pandas(value, preserve_index=False)
    if is_series(value):
        whole = pa.Array.from_pandas(value)
        return whole.combine_chunks() if isinstance(whole, pa.ChunkedArray) else whole
    return value


def frame_of(rows: pa.Table | pa.RecordBatch) -> Any:
    """The rows as a DataFrame, its index from 0.

    Whole numbers and booleans with nulls among them are of pandas' own types, such as Int64: as floats and objects,
    which Arrow would make of them, large numbers were rounded.
    """
    table = pa.Table.from_batches([rows]) if isinstance(rows, pa.RecordBatch) else rows
    frame = table.to_pandas()
    for at, column in enumerate(table.columns):
        if column.null_count and (pa.types.is_integer(column.type) or pa.types.is_boolean(column.type)):
            word = "boolean" if pa.types.is_boolean(column.type) else str(column.type).capitalize()
            dtype = import_module("pandas").api.types.pandas_dtype(word)
            frame.isetitem(at, column.to_pandas(types_mapper={column.type: dtype}.get))
    return frame


def table_of_frames(frames: Sequence[Any]) -> list[pa.Table]:
    """The rows of many small frames as few tables: one for those of the same columns and types.

    Frames of other types stay apart, for pandas would turn whole numbers into floats to put them together.
    """
    pandas = import_module("pandas")
    alike: dict[tuple[object, ...], list[Any]] = {}
    for frame in frames:
        names = tuple(frame.columns)
        types = tuple(frame.dtypes) if len(set(names)) < len(names) else tuple(frame[name].dtype for name in names)
        alike.setdefault((names, types), []).append(frame)
    whole = [each[0] if len(each) == 1 else pandas.concat(each, ignore_index=True) for each in alike.values()]
    return [arrow_of(each) for each in whole]


def require_pandas(who: str) -> None:
    """Refuse a function that wants frames where pandas is not installed."""
    try:
        import_module("pandas")
    except ImportError:
        raise InvalidOption(f"{who} takes rows as pandas, which is not installed; install it, or take arrow") from None
