"""Aggregates that keep values of each key: lists, sets, and exact counts of distinct values.

The values of a key are one binary in the row of its aggregates, which is written again when it changes. So each of them
has a bound.
"""

from __future__ import annotations

from abc import abstractmethod

import numpy as np
import pyarrow as pa

from meander.operators.accumulators import Accumulator, Parts, times, unusable
from meander.operators.bags import Bags, list_of
from meander.operators.ordering import LARGEST, Groups, Words
from meander.route.columns import whole_column
from meander.state.table import Table


class ValuesOf(Accumulator):
    """The values of a column that are not null, as one binary of state."""

    def __init__(self, name: str, column: str, kind: pa.DataType, by: str | None, distinct: bool) -> None:
        self.name, self.column, self.kind, self.by, self.distinct = name, column, kind, by, distinct
        self.state = f"{name}.values"
        self.values = ((self.state, pa.binary()),)

    def parts(self, rows: pa.Table) -> Parts:
        """Each value alone."""
        values = whole_column(rows[self.column]).cast(self.kind)
        if self.distinct and pa.types.is_floating(self.kind):
            # Adding zero makes -0.0 and 0.0, which are equal, one.
            values = pa.array(values.to_numpy(zero_copy_only=False) + self.kind.to_pandas_dtype()(0), self.kind,
                              mask=values.is_null().to_numpy(zero_copy_only=False))  # fmt: skip
        # A row without a time comes last.
        by = None if self.by is None else times(rows, self.by).fill_null(LARGEST).to_numpy()
        return [Bags.of_rows(np.arange(rows.num_rows), by, values).encode(rows.num_rows)]

    def combine(self, table: Table, groups: Groups, parts: Parts) -> None:
        """Add values, in their order."""
        binaries = pa.concat_arrays([table.get(self.state, groups.rows), parts[0]])
        every = Bags.decode(binaries, self.kind, self.by is not None)
        of = np.concatenate([np.arange(len(groups)), groups.of])[every.of]
        bags = Bags.of_rows(of, every.by, every.values)
        bags = self._bounded(table, groups, bags.distinct() if self.distinct else bags)
        table.set(self.state, groups.rows, bags.encode(len(groups)))

    @abstractmethod
    def _bounded(self, table: Table, groups: Groups, bags: Bags) -> Bags:
        """The values that are kept of these."""

    def _kept(self, table: Table, rows: Words) -> Bags:
        return Bags.decode(table.get(self.state, rows), self.kind, self.by is not None)


class Collection(ValuesOf):
    """The values as a list in order of time and then of value, or each once, in order of value; the first `limit`."""

    def __init__(
        self, name: str, column: str, kind: pa.DataType, *, by: str | None, distinct: bool, limit: int
    ) -> None:
        super().__init__(name, column, kind, by, distinct)
        self.limit = limit
        self.results = ((name, list_of(kind)),)

    def _bounded(self, table: Table, groups: Groups, bags: Bags) -> Bags:
        return bags.first(self.limit)

    def answer(self, table: Table, rows: Words) -> list[pa.Array]:
        """The lists; one without values where nothing counted."""
        return [self._kept(table, rows).lists(rows.size)]


class DistinctCount(ValuesOf):
    """How many different values; rows that would bring a key more than `limit` of them are dead letters."""

    def __init__(self, name: str, column: str, kind: pa.DataType, limit: int) -> None:
        super().__init__(name, column, kind, by=None, distinct=True)
        self.limit = limit
        self.results = ((name, pa.int64()),)

    def _bounded(self, table: Table, groups: Groups, bags: Bags) -> Bags:
        beyond = np.flatnonzero(bags.counts(len(groups)) > self.limit)
        if beyond.size:
            what = f"the count {self.name!r} has more than {self.limit} distinct values of column {self.column!r}"
            instead = 'take ("approx_count_distinct", ..), or a higher limit'
            raise unusable(table, groups.rows[beyond], what, instead)
        return bags

    def answer(self, table: Table, rows: Words) -> list[pa.Array]:
        """How many values are kept."""
        return [pa.array(self._kept(table, rows).counts(rows.size))]
