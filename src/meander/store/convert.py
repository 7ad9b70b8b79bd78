"""Rows of a state file brought from the layout that they were written in to the newest one of their operator.

A file is converted row by row: a row's new values depend on that row alone. So a snapshot, a delta, or a part of one
can be converted whenever it is read, and whoever reads it twice gets the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from meander.errors import MeanderError
from meander.pictures import many
from meander.route.columns import whole_column
from meander.state.spec import BIN, DELETED
from meander.store.design import StateLayout, TableSource
from meander.store.lookup import type_of

Converter = Callable[[pa.Table], Any]


class ConversionFailed(MeanderError):
    """A user's function has not converted the rows of a table."""


def converted(
    tables: Mapping[str, pa.Table],
    layouts: Sequence[StateLayout],
    number: int,
    functions: Mapping[str, Converter],
) -> Mapping[str, pa.Table]:
    """The tables of a state file in the newest layout.

    Args:
        tables: the rows of each table, in the columns of a delta.
        layouts: all layouts of the operator, oldest first.
        number: that of the layout that the tables have.
        functions: what converts tables, by their names.

    Raises:
        ConversionFailed: a function has raised, or has not returned the rows it was given.
    """
    for layout in layouts[number + 1 :]:
        tables = {
            name: _converted(name, tables[source.table], layout, source, functions)
            for name, source in layout.sources.items()
            if source.table in tables
        }
    return tables


def _converted(
    name: str, rows: pa.Table, layout: StateLayout, source: TableSource, functions: Mapping[str, Converter]
) -> pa.Table:
    described = layout.tables[name]
    key = [column for column, _ in described["key"]]
    columns = {column: rows[column] for column in (BIN, DELETED)}
    columns |= {now: rows[then] for now, then in zip(key, source.key, strict=True)}
    if source.function:
        values = {column: rows[column] for column in source.columns}
        columns |= _by_function(name, pa.table(columns | values), described["values"], key, functions)
    else:
        for column, kind in described["values"]:
            before = source.columns.get(column)
            columns[column] = _new(column, kind, source, rows) if before is None else rows[before]
    fixed = [pa.field(column, columns[column].type, nullable=False) for column in (BIN, DELETED, *key)]
    values_of = [pa.field(column, type_of(kind)) for column, kind in described["values"]]
    return pa.table(columns, schema=pa.schema(fixed + values_of))


def _new(column: str, kind: str, source: TableSource, rows: pa.Table) -> pa.Array:
    """A new column: its default, and null in rows that only say that a key is gone."""
    type_ = type_of(kind)
    if column not in source.defaults:
        return pa.nulls(rows.num_rows, type_)
    value = pa.array([source.defaults[column]]).cast(type_)[0]
    return pc.if_else(rows[DELETED], pa.scalar(None, type_), value)


def _by_function(
    name: str, rows: pa.Table, values: Sequence[Sequence[str]], key: Sequence[str], functions: Mapping[str, Converter]
) -> dict[str, pa.Array]:
    """The value columns that a function makes of those rows that are not deleted."""
    live = rows.filter(pc.invert(rows[DELETED])).drop_columns([BIN, DELETED]).combine_chunks()
    answer = _answer(name, live, key, functions[name])
    at = pc.if_else(rows[DELETED], None, pc.subtract(pc.cumulative_sum(pc.invert(rows[DELETED]).cast(pa.int64())), 1))
    columns = {}
    for column, kind in values:
        source = answer if column in answer.column_names else live
        if column not in source.column_names:
            raise ConversionFailed(f"the function for the table {name!r} returned no column {column!r}; add it")
        try:
            new = whole_column(source[column]).cast(type_of(kind))
        except pa.ArrowException as error:
            reason = str(error).partition("\n")[0]
            raise ConversionFailed(
                f"the function for the table {name!r} returned {column!r} as {source[column].type}, which cannot be "
                f"{kind}: {reason}"
            ) from None
        columns[column] = new.take(whole_column(at))
    return columns


def _answer(name: str, live: pa.Table, key: Sequence[str], function: Converter) -> pa.Table:
    """What a function returns for these rows, checked: as many rows, of the same keys."""
    try:
        answer = function(live)
    except Exception as error:
        where = _line_of(error)
        raise ConversionFailed(
            f"the function for the table {name!r} raised {type(error).__name__}{where}: {error}; mend it and start "
            "again, or start with the query as it was"
        ) from None
    if not isinstance(answer, pa.Table) and type(answer).__name__ == "DataFrame":
        answer = pa.Table.from_pandas(answer, preserve_index=False)
    if not isinstance(answer, pa.Table):
        raise ConversionFailed(
            f"the function for the table {name!r} returned {type(answer).__name__}; return a pyarrow Table"
        )
    same = [column for column in key if column in answer.column_names]
    if answer.num_rows != live.num_rows or any(
        not whole_column(answer[column].cast(live[column].type)).equals(whole_column(live[column])) for column in same
    ):
        raise ConversionFailed(
            f"the function for the table {name!r} returned {many(answer.num_rows, 'row')} for {live.num_rows}, "
            "or other keys; return the rows it gets, in their order"
        )
    return answer


def _line_of(error: Exception) -> str:
    """The line of the user's file that raised."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "" if trace is None else f" in line {trace.tb_lineno} of {trace.tb_frame.f_code.co_filename}"
