"""A function of the user's, called for every row: no state, any number of rows out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from meander.errors import InvalidOption
from meander.operators.functions import check_function, who_of
from meander.operators.operator import ALL, BinnedOperator, Now, Output, key_of
from meander.operators.plain_rows import Given, plain_rows, table_of
from meander.route.keys import Keys
from meander.route.schema import schema
from meander.state.table import Table


class FlatMap(BinnedOperator):
    """What `function(row)` gives, called once for every row; nothing is kept.

        def words(row):
            for word in row.text.split():
                yield word, 1

        FlatMap(input, ["user"], words, output="word string, n int")

    `row` is a named tuple: `row.text` or `row["text"]`. The function yields rows or returns a list of them, each a
    dictionary, a named tuple or a tuple in the order of `output`; or None.
    """

    name = "flat_map"
    tables = ()

    def __init__(
        self, input: pa.Schema, key: Sequence[str], function: Callable[..., Any], output: str | pa.Schema
    ) -> None:
        check_function(function, self.name, ("row",))
        self.input, self.function, self.who = input, function, who_of(function, self.name)
        self.key = key_of(input, key)
        self.output = schema(output) if isinstance(output, str) else output
        if not self.output.names:
            raise InvalidOption('output declares no columns; write them as in output="word string, n int"')

    def run(self, rows: pa.Table, keys: Keys, tables: Mapping[str, Table], now: Now) -> Output:
        """Call the function for every row."""
        given = Given(self.who)
        for row in plain_rows(rows.select([name for name in rows.column_names if name != ALL])):
            given.add(self.function(row))
        return Output(table_of(self.who, given.items, self.output))
