"""The rows of several sources as one table, and out of it; and the rows of an operator's links."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from meander.engine.driver.graph import Graph
from meander.engine.driver.ports import JobInput
from meander.engine.worker.links import columns_of
from meander.operators.operator import ALL

NUMBER = "__source"
"""The column that says which source a row is of."""


def one_table(tables: Sequence[pa.Table]) -> pa.Table:
    """The rows of all sources, with the number of each; of a single one, they are as they are."""
    if len(tables) == 1:
        return tables[0]
    parts = []
    for number, table in enumerate(tables):
        named = table.rename_columns([f"{number}.{name}" for name in table.column_names])
        parts.append(named.append_column(NUMBER, pa.array(np.full(len(table), number, np.int32))))
    return pa.concat_tables(parts, promote_options="default")


def of_source(batch: pa.Table, number: int) -> pa.Table:
    """The rows of one source in a table that `one_table` has made."""
    if NUMBER not in batch.column_names:
        return batch
    prefix = f"{number}."
    mine = [name for name in batch.column_names if name.startswith(prefix)]
    rows = batch.filter(pc.equal(batch[NUMBER], number)).select(mine)
    return rows.rename_columns([name.removeprefix(prefix) for name in mine])


def rows_of_links(graph: Graph, at: int, input: JobInput, emitted: Mapping[int, pa.Table]) -> list[pa.Table]:
    """The rows of each link of an operator, out of the batch or of what operators have emitted."""
    tables = []
    for link in graph.links[at]:
        if link.origin < 0:
            rows = of_source(input.batch, ~link.origin)
        else:
            rows = emitted[link.origin] if link.origin in emitted else input.outputs[link.origin]
        if ALL in link.key and ALL not in rows.column_names:
            rows = rows.append_column(ALL, pa.array(np.zeros(len(rows), np.int32)))
        tables.append(rows.select(columns_of(graph.operators[at], link).names))
    return tables
