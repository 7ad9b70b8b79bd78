"""Checks the result of a user's function against its declared schema."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from meander.errors import MeanderError
from meander.operators.operator import listing
from meander.operators.ordering import same
from meander.options import kind
from meander.pictures import many
from meander.route.columns import is_octets, whole_column
from meander.state.frames import arrow_of, is_frame


def conform(
    who: str, answer: object, schema: pa.Schema, rows: int | None = None, extra: frozenset[str] = frozenset()
) -> pa.Table:
    """The answer, of Arrow or pandas, as a table of exactly these columns, cast where nothing is lost.

    `rows` is how many rows it must have; columns in `extra` may come along and are left out.
    """
    if isinstance(answer, Mapping):
        answer = _table_of(who, answer)
    if is_frame(answer):
        answer = _table_of_frame(who, answer)
    if isinstance(answer, pa.RecordBatch):
        answer = pa.Table.from_batches([answer])
    if not isinstance(answer, pa.Table):
        raise MeanderError(f"{who} returned {kind(answer)}; return a pyarrow Table or RecordBatch, or a DataFrame")
    for name in schema.names:
        if answer.column_names.count(name) != 1:
            what = "no column" if name not in answer.column_names else "several columns"
            raise MeanderError(f"{who} returned {what} {name!r}; the columns declared are {listing(schema.names)}")
    for name in answer.column_names:
        if name not in schema.names and name not in extra:
            raise MeanderError(f"{who} returned a column {name!r} that is not declared; declare it or leave it out")
    if rows is not None and answer.num_rows != rows:
        raise MeanderError(f"{who} returned {many(answer.num_rows, 'row')}; it must return {rows}, one for each key")
    columns = [_cast(who, field, whole_column(answer[field.name])) for field in schema]
    return pa.Table.from_arrays(columns, schema=schema)


def _table_of(who: str, answer: Mapping[object, object]) -> pa.Table:
    try:
        return pa.table({str(name): column for name, column in answer.items()})
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise MeanderError(f"{who} returned columns that make no table: {error}") from None


def _table_of_frame(who: str, answer: object) -> pa.Table:
    try:
        return arrow_of(answer)
    except (pa.ArrowException, TypeError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise MeanderError(f"{who} returned a DataFrame that makes no Arrow table: {reason}") from None


def _cast(who: str, field: pa.Field, column: pa.Array) -> pa.Array:
    if column.null_count and not field.nullable:
        raise MeanderError(f"{who} returned nulls in column {field.name!r}, which is declared as not null")
    if column.type == field.type:
        return column
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if _is_kin(column.type, field.type):
        try:
            values = column.cast(field.type)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            values = None
        if values is not None and (not pa.types.is_float32(field.type) or _is_lossless(column, values)):
            return values
    raise MeanderError(
        f"{who} returned column {field.name!r} as {column.type}, which cannot become {field.type} without loss; "
        "cast it, or declare its type"
    )


def _is_kin(source: pa.DataType, target: pa.DataType) -> bool:
    def is_number(type_: pa.DataType) -> bool:
        return bool(pa.types.is_integer(type_) or pa.types.is_floating(type_) or pa.types.is_decimal(type_))

    def is_text(type_: pa.DataType) -> bool:
        return bool(pa.types.is_string(type_) or pa.types.is_large_string(type_))

    if pa.types.is_null(source) or (is_number(source) and is_number(target)):
        return True
    if is_octets(source) and is_octets(target):
        return is_text(source) == is_text(target)
    times = pa.types.is_timestamp(source) and pa.types.is_timestamp(target)
    return bool(times or (pa.types.is_date(source) and pa.types.is_date(target)) or source.id == target.id)


def _is_lossless(before: pa.Array, after: pa.Array) -> bool:
    if not pa.types.is_floating(before.type):
        return True
    return bool(np.all(same(before.cast(pa.float64()), after.cast(pa.float64()))))


def is_like(first: pa.DataType, second: pa.DataType) -> bool:
    """Whether two types are the same but for the name of a time zone."""
    both = pa.types.is_timestamp(first) and pa.types.is_timestamp(second)
    return bool(first == second or (both and first.unit == second.unit and (first.tz is None) == (second.tz is None)))


def are_like(first: Sequence[pa.DataType], second: Sequence[pa.DataType]) -> bool:
    """Whether two lists of types are the same but for the names of time zones."""
    return len(first) == len(second) and all(map(is_like, first, second))
