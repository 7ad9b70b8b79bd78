"""Which way rows come to an operator: along one link, from a source or from an operator before it, or along several.

The rows of a link travel by themselves, in the columns that they have there. Beside the operator they become one table:
those of one input one below the other, those of two in the columns of both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from meander.operators.custom import SIDE, SIDES
from meander.operators.operator import BinnedOperator


@dataclass(frozen=True)
class Link:
    """Where rows of an operator come from, and as what.

    Args:
        origin: the number of the operator that emits them; of a source `~` its number, so -1 is the first source.
        key: the columns of the operator's key, as they are called among them.
        side: which of the operator's two inputs they are, 0 left and 1 right; None where it has one.
        is_new: whether they count as rows that came: those of a source, where it is read for the first time.
    """

    origin: int
    key: tuple[str, ...]
    side: int | None = None
    is_new: bool = False


def columns_of(operator: BinnedOperator, link: Link) -> pa.Schema:
    """The columns that rows have on their way along a link: what the operator takes of them, and its key."""
    prefix = "" if link.side is None else f"{SIDES[link.side]}."
    fields = [
        pa.field(each.name.removeprefix(prefix), each.type)
        for each in operator.input
        if each.name.startswith(prefix) and (link.side is None or each.name != SIDE)
    ]
    names = [each.name for each in fields]
    apart = zip(link.key, operator.key.types, strict=True)
    return pa.schema([*fields, *(pa.field(name, type_) for name, type_ in apart if name not in names)])


def in_columns_of_both(rows: pa.Table, side: int, input: pa.Schema) -> pa.Table:
    """The rows of one of two inputs in the columns of both, null in those of the other.

    Args:
        rows: the rows.
        side: 0 for the left input, 1 for the right.
        input: the columns of both, as an operator with two inputs takes them.
    """
    prefix, count = f"{SIDES[side]}.", len(rows)
    columns = []
    for field in input:
        if field.name == SIDE:
            columns.append(pa.chunked_array([pa.array([side] * count, pa.int32())]))
        elif field.name.startswith(prefix):
            columns.append(rows[field.name.removeprefix(prefix)].cast(field.type))
        else:
            columns.append(pa.chunked_array([pa.nulls(count, field.type)]))
    return pa.Table.from_arrays(columns, schema=pa.schema([field.with_nullable(True) for field in input]))


def together(
    operator: BinnedOperator, links: Sequence[Link], tables: Sequence[pa.Table]
) -> tuple[pa.Table, list[pa.ChunkedArray]]:
    """The rows of all links as the operator takes them, and the columns of their key."""
    input, types = operator.input, operator.key.types
    if len(links) == 1 and links[0].side is None:
        return tables[0].select(input.names), [tables[0][name] for name in links[0].key]
    nullable = pa.schema([field.with_nullable(True) for field in input])
    rows = [
        each.select(input.names).cast(nullable) if link.side is None else in_columns_of_both(each, link.side, input)
        for link, each in zip(links, tables, strict=True)
    ]
    keys = [
        pa.chunked_array(
            [
                chunk
                for link, each in zip(links, tables, strict=True)
                for chunk in each[link.key[at]].cast(type_).chunks
            ],
            type_,
        )
        for at, type_ in enumerate(types)
    ]
    return pa.concat_tables(rows), keys
