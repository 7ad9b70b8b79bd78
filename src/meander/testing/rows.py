"""Rows as tests give them: Arrow tables, or dictionaries."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import pyarrow as pa

from meander.errors import InvalidOption

Rows: TypeAlias = Iterable[Mapping[str, Any]] | Any | None
"""An Arrow table, or rows as dictionaries."""


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
