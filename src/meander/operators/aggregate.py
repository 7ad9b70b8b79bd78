"""Sums, extremes, means, counts and first or last values of each key, several at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from meander.errors import InvalidOption
from meander.operators.accumulators import Accumulator, CountOf, Edge, Extreme, Mean, SumOfFloats, SumOfWhole
from meander.operators.operator import BinnedOperator, Now, Output, field_of, key_of, listing, output_of
from meander.operators.ordering import Groups, Words
from meander.route.columns import is_narrow, is_octets, is_word, small
from meander.route.keys import Keys
from meander.state.spec import TableSpec
from meander.state.table import Table

FUNCTIONS = ("sum", "min", "max", "mean", "count", "first", "last")

Named = Mapping[str, str | Sequence[str]]


class Aggregation:
    """Named aggregates over the columns of an input: what they keep in a table, and what they answer.

    `named` maps each output column to a function and its column: `{"total": ("sum", "price"), "n": "count"}`.
    """

    def __init__(self, input: pa.Schema, named: Named, by: str | None = None) -> None:
        if not named:
            raise InvalidOption('an aggregate needs at least one output column, such as total=("sum", "price")')
        self.by = by
        self.named = {name: _spelled(name, option) for name, option in named.items()}
        edges: dict[str, list[tuple[str, str, pa.DataType]]] = {"first": [], "last": []}
        self.accumulators: list[Accumulator] = []
        for name, (function, column) in self.named.items():
            kind = None if column is None else field_of(input, column, f"the aggregate {name!r}").type
            if function in edges and column is not None:
                edges[function].append((name, column, _stored(name, function, column, kind)))
            else:
                self.accumulators.append(_accumulator(name, function, column, kind))
        for function, columns in edges.items():
            if columns:
                self.accumulators.append(Edge(columns, _time(input, by, columns[0][0], function), function == "last"))
        if by is not None and not (edges["first"] or edges["last"]):
            raise InvalidOption(f"by={by!r} is for first and last, and neither is asked for; leave it out")
        self.values = tuple(value for each in self.accumulators for value in each.values)
        kinds = {name: kind for each in self.accumulators for name, kind in each.results}
        self.results = tuple((name, kinds[name]) for name in self.named)

    @property
    def options(self) -> dict[str, Any]:
        """The aggregates in JSON's types."""
        return {"aggregates": {name: list(each) for name, each in self.named.items()}, "by": self.by}

    def add(self, table: Table, groups: Groups, rows: pa.Table) -> None:
        """Add the rows of a batch to the table's rows."""
        self.combine(table, groups, [each.parts(rows) for each in self.accumulators])

    def combine(self, table: Table, groups: Groups, parts: Sequence[list[pa.Array]]) -> None:
        """Add parts, of rows or of the state of other keys, to the table's rows."""
        for each, own in zip(self.accumulators, parts, strict=True):
            each.combine(table, groups, own)

    def parts_of(self, table: Table, rows: Words) -> list[list[pa.Array]]:
        """The state of these rows of the table, as parts to combine elsewhere."""
        return [[table.get(name, rows) for name, _ in each.values] for each in self.accumulators]

    def clear(self, table: Table, rows: Words) -> None:
        """Leave these rows of the table as if nothing had been added to them."""
        for each in self.accumulators:
            each.clear(table, rows)

    def answer(self, table: Table, rows: Words) -> list[pa.Array]:
        """The output columns of these rows of the table, in the order of `named`."""
        columns: dict[str, pa.Array] = {}
        for each in self.accumulators:
            columns.update(zip((name for name, _ in each.results), each.answer(table, rows), strict=True))
        return [columns[name] for name in self.named]


class Aggregate(BinnedOperator):
    """The key's columns and the aggregates over all its rows so far, for every key that had rows in this batch.

    As in Spark SQL: nulls are left out, what has no value at all is null, whole numbers add up to a bigint, floats to
    a double, a mean is a double, and NaN is the largest number. `first` and `last` go by the event time in `by`,
    nulls included; of rows of the same time the columns themselves decide, so arrival never does.
    """

    name = "aggregate"

    def __init__(self, input: pa.Schema, key: Sequence[str], named: Named, by: str | None = None) -> None:
        self.input = input
        self.key = key_of(input, key)
        self.aggregation = Aggregation(input, named, by)
        self.output = output_of(self.key, *self.aggregation.results)
        self.tables = (TableSpec("aggregate", self.key, self.aggregation.values),)

    @property
    def options(self) -> dict[str, Any]:
        """The aggregates."""
        return self.aggregation.options

    def run(self, rows: pa.Table, keys: Keys, tables: Mapping[str, Table], now: Now) -> Output:
        """Add the rows to the aggregates of their keys."""
        if not len(keys):
            return Output(None)
        table = tables["aggregate"]
        at = table.touch(keys)
        groups = Groups.of_rows(at, table.size)
        table.mark(groups.rows)
        self.aggregation.add(table, groups, rows)
        columns = table.keys(groups.rows) + self.aggregation.answer(table, groups.rows)
        return Output(pa.Table.from_arrays(columns, schema=self.output))


def _spelled(name: str, option: object) -> tuple[str, str | None]:
    words = (option,) if isinstance(option, str) else tuple(option) if isinstance(option, list | tuple) else ()
    function, column = (*words, None, None)[:2]
    if function not in FUNCTIONS or len(words) > 2 or (column is None and function != "count"):
        raise InvalidOption(
            f'the aggregate {name!r} is {option!r}; write a function and a column as in ("sum", "price"), or "count"; '
            f"the functions are {listing(FUNCTIONS)}"
        )
    return function, column


def _accumulator(name: str, function: str, column: str | None, kind: pa.DataType | None) -> Accumulator:
    if function == "count" or column is None:
        return CountOf(name, column)
    if function in ("min", "max"):
        return Extreme(name, column, _stored(name, function, column, kind), function == "max")
    whole, floating = pa.types.is_integer(kind), pa.types.is_floating(kind)
    if not whole and not floating:
        hint = "cast it to double" if pa.types.is_decimal(kind) else "it needs numbers"
        raise InvalidOption(f"the aggregate {name!r} cannot take the {function} of {column!r} of type {kind}; {hint}")
    if function == "mean":
        return Mean(name, column)
    return SumOfWhole(name, column) if whole else SumOfFloats(name, column)


def _stored(name: str, function: str, column: str, kind: pa.DataType | None) -> pa.DataType:
    if not (is_octets(kind) or is_narrow(kind) or is_word(kind) or kind in (pa.float32(), pa.float64())):
        raise InvalidOption(
            f"the aggregate {name!r} cannot take the {function} of {column!r} of type {kind}; it takes numbers other "
            "than decimals, booleans, dates, timestamps (of microseconds), strings and binaries"
        )
    return small(kind)


def _time(input: pa.Schema, by: str | None, name: str, function: str) -> str:
    if by is None:
        raise InvalidOption(f"the aggregate {name!r} takes the {function} value; say by which column of time, as by=")
    kind = field_of(input, by, "by").type
    if not (is_word(kind) or is_narrow(kind)) or pa.types.is_boolean(kind):
        raise InvalidOption(f"by names the column {by!r} of type {kind}; it needs a timestamp, a date or whole numbers")
    return by
