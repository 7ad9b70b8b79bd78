"""Rows as tests give them: Arrow tables, or dictionaries."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import pyarrow as pa

from meander.errors import InvalidOption
from meander.route.schema import schema as schema_of
from meander.sources import PairSource, RowSource, UnionSource
from meander.testing.tables import one_table

Rows: TypeAlias = Iterable[Mapping[str, Any]] | Any | None
"""An Arrow table, or rows as dictionaries; of several sources a dictionary of these, by source."""

_HOW = ("give left= and right=", "give rows by source: {source: rows}")


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


def rows_of(sources: Sequence[RowSource], rows: Rows, left: Rows, right: Rows) -> pa.Table:
    """Rows as the sources of a stream give them: of one, of a left and a right one, or by source."""
    brought = _brought(sources, rows, left, right)
    return one_table([_table_of(each, brought) for each in sources])


def _brought(sources: Sequence[RowSource], rows: Rows, left: Rows, right: Rows) -> dict[int, Rows]:
    """The rows of each source that a test knows, by its Python `id`."""
    known = list({id(leaf): leaf for each in sources for leaf in _leaves(each)}.values())
    if isinstance(rows, Mapping):
        if unknown := [each for each in rows if id(each) not in map(id, known)]:
            raise InvalidOption(f"the stream does not read {unknown[0]!r}; give rows by what me.testing.source gave")
        return {id(source): each for source, each in rows.items()}
    if left is not None or right is not None:
        if len(known) == 1:
            raise InvalidOption("this stream has one input; give rows alone")
        if len(known) > 2 or rows is not None:
            raise InvalidOption(f"this stream has {len(known)} sources; {_HOW[len(known) > 2]}")
        return dict(zip(map(id, known), (left, right), strict=True))
    is_union = len(sources) == 1 and not isinstance(sources[0], PairSource)
    if rows is not None and len(known) > 1 and not is_union:
        raise InvalidOption(f"this stream has {len(known)} sources; {_HOW[len(known) > 2]}")
    return {id(known[0]): rows}


def _leaves(source: RowSource) -> list[RowSource]:
    """The sources that a test brings rows of, where a source is made of others."""
    if isinstance(source, PairSource | UnionSource):
        return [leaf for each in source.sources for leaf in _leaves(each)]
    return [source]


def _table_of(source: RowSource, brought: Mapping[int, Any]) -> pa.Table:
    """The rows of a source out of those of the leaves, by their Python `id`."""
    if isinstance(source, PairSource):
        return source.rows([_table_of(each, brought) for each in source.sources])
    if isinstance(source, UnionSource):
        tables = [_table_of(each, brought) for each in source.sources]
        return pa.concat_tables([each.select(source.schema.names).cast(source.schema) for each in tables])
    return as_table(brought.get(id(source)), source.schema)


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
