"""Rows as tests give them: Arrow tables, or dictionaries."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import pyarrow as pa

from meander.errors import InvalidOption
from meander.route.schema import schema as schema_of
from meander.sources import PairSource, RowSource

Rows: TypeAlias = Iterable[Mapping[str, Any]] | Any | None
"""An Arrow table, or rows as dictionaries."""


def source(columns: str | pa.Schema) -> RowSource:
    """A source for `me.stream` that is a schema alone: `me.testing.source("word string, ts timestamp")`.

    Args:
        columns: names and types as Spark writes them, or an Arrow schema.

    Returns:
        What `me.stream` takes in place of a streaming DataFrame; the rows come from the test.

    Raises:
        InvalidOption: the text is no schema.

    Example:
        >>> source("word string, n bigint").schema.names
        ['word', 'n']
    """
    return RowSource(columns if isinstance(columns, pa.Schema) else schema_of(columns))


def rows_of(source: RowSource, rows: Rows, left: Rows, right: Rows) -> pa.Table:
    """Rows as a source gives them: of one input, or of a left and a right one."""
    if isinstance(source, PairSource):
        if rows is not None:
            raise InvalidOption("this stream has two inputs; give left= and right=")
        sides = [
            None if each is None else as_table(each, schema)
            for each, schema in zip((left, right), source.sides, strict=True)
        ]
        return source.rows(sides)
    if left is not None or right is not None:
        raise InvalidOption("this stream has one input; give rows alone")
    return as_table(rows, source.schema)


def as_table(rows: Rows, schema: pa.Schema) -> pa.Table:
    """The rows as a table of exactly these columns; what does not fit is refused."""
    if rows is None:
        return schema.empty_table()
    listed = rows if isinstance(rows, pa.Table) else list(rows)
    if isinstance(listed, pa.Table):
        unknown = set(schema.names) - set(listed.column_names)
    else:
        unknown = {name for row in listed for name in row} - set(schema.names)
    if unknown:
        whose = "the rows have" if isinstance(listed, pa.Table) else "there is"
        raise InvalidOption(f"{whose} no column {min(unknown)!r}; the columns are {', '.join(schema.names)}")
    try:
        if isinstance(listed, pa.Table):
            return listed.select(schema.names).cast(schema)
        return pa.Table.from_pylist(listed, schema)
    except pa.ArrowException as error:
        raise InvalidOption(f"the rows do not fit the columns of the source: {error}") from None
