"""How many rows each key has had."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from meander.operators.operator import BinnedOperator, Now, Output, key_of, output_of
from meander.route.keys import Keys
from meander.state.spec import TableSpec
from meander.state.table import Table


class Count(BinnedOperator):
    """The key's columns and how many rows it has had so far, for every key that had rows in this batch."""

    name = "count"

    def __init__(self, input: pa.Schema, key: Sequence[str], name: str = "count") -> None:
        self.input = input
        self.key = key_of(input, key)
        self.output = output_of(self.key, (name, pa.int64()))
        self.tables = (TableSpec("count", self.key, ((name, pa.int64()),)),)
        self.column = name

    def run(self, rows: pa.Table, keys: Keys, tables: Mapping[str, Table], now: Now) -> Output:
        """Add the rows to the counts of their keys."""
        if not len(keys):
            return Output(None)
        table = tables["count"]
        at = table.touch(keys)
        added = np.bincount(at, minlength=table.size)
        changed = np.flatnonzero(added)
        table.column(self.column)[changed] += added[changed]
        table.valid(self.column)[changed] = True
        table.mark(changed)
        columns = [*table.keys(changed), table.get(self.column, changed)]
        return Output(pa.Table.from_arrays(columns, schema=self.output))
