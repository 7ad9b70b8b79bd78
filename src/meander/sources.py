"""Sources that are a schema alone: a stream over one is run by `meander.testing`, which brings the rows. No Spark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from meander.operators.custom import SIDE, SIDES


@dataclass(frozen=True)
class RowSource:
    """Rows of these columns, brought by a test."""

    schema: pa.Schema


@dataclass(frozen=True)
class PairSource(RowSource):
    """Rows of two inputs in the columns of both, null in those of the other; the key beside them.

    Args:
        schema: the columns of both, as an operator with two inputs takes them.
        sides: the columns of each input.
        keys: the key columns of each input, in the same order.
    """

    sides: tuple[pa.Schema, pa.Schema]
    keys: tuple[tuple[str, ...], tuple[str, ...]]

    def rows(self, inputs: Sequence[pa.Table | None]) -> pa.Table:
        """The rows of both inputs as one table."""
        tables = [self._side(side, rows) for side, rows in enumerate(inputs) if rows is not None]
        return pa.concat_tables(tables) if tables else self._side(0, self.sides[0].empty_table())

    def _side(self, side: int, rows: pa.Table) -> pa.Table:
        rows = rows.select(self.sides[side].names).cast(self.sides[side])
        columns = {SIDE: pa.array([side] * len(rows), pa.int32())}
        for at, (name, schema) in enumerate(zip(SIDES, self.sides, strict=True)):
            for field in schema:
                column = rows[field.name] if at == side else pa.nulls(len(rows), field.type)
                columns[f"{name}.{field.name}"] = column
        for mine, own in zip(self.keys[0], self.keys[side], strict=True):
            columns[mine] = rows[own]
        return pa.table(columns)
