"""Sums, extremes, means, spreads, counts, first or last values and collections of each key, several at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from meander.errors import InvalidOption
from meander.operators.accumulators import Accumulator, CountOf, Edge, Extreme, Mean, SumOfFloats, SumOfWhole
from meander.operators.collect import Collection, DistinctCount
from meander.operators.moments import Variance
from meander.operators.operator import BinnedOperator, Now, Output, field_of, key_of, listing, output_of
from meander.operators.ordering import Groups, Words
from meander.operators.sketch import ApproximateCount
from meander.options import whole
from meander.route.columns import is_narrow, is_octets, is_word, small
from meander.route.keys import Keys
from meander.state.spec import TableSpec
from meander.state.table import Table
from meander.store.evolution import OptionRule

FUNCTIONS = (
    "sum", "min", "max", "mean", "stddev", "stddev_pop", "var", "var_pop", "count", "count_distinct",
    "approx_count_distinct", "any", "all", "first", "last", "collect_list", "collect_set",
)  # fmt: skip

SAME = {
    "avg": "mean", "stddev_samp": "stddev", "variance": "var", "var_samp": "var",
    "bool_or": "any", "some": "any", "bool_and": "all", "every": "all",
}  # fmt: skip
"""Further names that Spark has for the same functions."""

NUMERIC = ("sum", "mean", "stddev", "stddev_pop", "var", "var_pop")

COLLECTIONS = ("collect_list", "collect_set")

MOST_VALUES = 1_000_000
"""No key keeps more values than this: they are one binary."""
MOST_DISTINCT = 10_000
"""How many distinct values a key may have, unless a limit says otherwise."""

RULES = {"limits": OptionRule("what has been counted stays counted")}

Named = Mapping[str, str | Sequence[Any]]


class AggregateSpec(NamedTuple):
    """One aggregate: its function under the one name we keep, its column, and how many values it may keep."""

    function: str
    column: str | None
    limit: int | None = None

    @property
    def state(self) -> list[Any]:
        """What makes its state mean what it means, in JSON's types; how much may be counted is not part of that."""
        fixed = self.function in COLLECTIONS
        return [self.function, self.column, {"limit": self.limit}] if fixed else [self.function, self.column]


class Aggregation:
    """Named aggregates over the columns of an input: what they keep in a table, and what they answer.

    `named` maps each output column to a function, its column and, for those that keep values, a limit:
    `{"total": ("sum", "price"), "n": "count", "pages": ("collect_set", "page", {"limit": 100})}`.
    """

    def __init__(self, input: pa.Schema, named: Named, by: str | None = None) -> None:
        if not named:
            raise InvalidOption('an aggregate needs at least one output column, such as total=("sum", "price")')
        self.by = by
        self.named = {name: _spelled(name, option) for name, option in named.items()}
        edges: dict[str, list[tuple[str, str, pa.DataType]]] = {"first": [], "last": []}
        self.accumulators: list[Accumulator] = []
        for name, wanted in self.named.items():
            function, column, _ = wanted
            kind = None if column is None else field_of(input, column, f"the aggregate {name!r}").type
            if function in edges and column is not None:
                edges[function].append((name, column, _stored(name, function, column, kind)))
            elif function == "collect_list" and by is not None:
                self.accumulators.append(_accumulator(name, wanted, kind, _time(input, by, name, function)))
            else:
                self.accumulators.append(_accumulator(name, wanted, kind, None))
        for function, columns in edges.items():
            if columns:
                self.accumulators.append(Edge(columns, _time(input, by, columns[0][0], function), function == "last"))
        if by is not None and not {"first", "last", "collect_list"} & {each.function for each in self.named.values()}:
            raise InvalidOption(f"by={by!r} is for first, last and collect_list, and none is asked for; leave it out")
        self.values = tuple(value for each in self.accumulators for value in each.values)
        kinds = {name: kind for each in self.accumulators for name, kind in each.results}
        self.results = tuple((name, kinds[name]) for name in self.named)

    @property
    def columns(self) -> list[str]:
        """The columns that are read."""
        return [each for each in (*(wanted.column for wanted in self.named.values()), self.by) if each is not None]

    @property
    def options(self) -> dict[str, Any]:
        """The aggregates in JSON's types."""
        limits = {name: each.limit for name, each in self.named.items() if each.function == "count_distinct"}
        aggregates = {name: each.state for name, each in self.named.items()}
        return {"aggregates": aggregates, "by": self.by, **({"limits": limits} if limits else {})}

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
    a double, a mean is a double, and NaN is the largest number. `stddev` and `var` are those of a sample, null of one
    value. `first` and `last` go by the event time in `by`, nulls included; of rows of the same time the columns
    themselves decide, so arrival never does. `collect_list` goes by it too, then by value, and keeps the first `limit`
    values; `collect_set` keeps the `limit` smallest. A row that brings a key more than `limit` distinct values to
    count is a dead letter.
    """

    name = "aggregate"
    rules = RULES

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


def _spelled(name: str, option: object) -> AggregateSpec:
    words = (option,) if isinstance(option, str) else tuple(option) if isinstance(option, list | tuple) else ()
    spelling, column, options = (*words, None, None, None)[:3]
    function = SAME.get(spelling, spelling) if isinstance(spelling, str) else spelling
    is_pair = column is not None or function == "count"
    if function not in FUNCTIONS or len(words) > 3 or not is_pair:
        raise InvalidOption(
            f'the aggregate {name!r} is {option!r}; write a function and a column as in ("sum", "price"), or "count"; '
            f"the functions are {listing(FUNCTIONS)}"
        )
    return AggregateSpec(function, column, _limit(name, function, options))


def _limit(name: str, function: str, options: object) -> int | None:
    takes_limit = function in (*COLLECTIONS, "count_distinct")
    if options is not None and not (takes_limit and isinstance(options, Mapping) and set(options) == {"limit"}):
        takes = 'it takes {"limit": 100}' if takes_limit else "it takes a column alone"
        raise InvalidOption(f"the aggregate {name!r}, {function}, has the options {options!r}; {takes}")
    if options is None and function in COLLECTIONS:
        raise InvalidOption(
            f"the aggregate {name!r}, {function}, needs a limit: how many values a key keeps at most, as in "
            f'("{function}", "page", {{"limit": 100}})'
        )
    if isinstance(options, Mapping):
        return whole(f"limit of the aggregate {name!r}", options["limit"], 1, MOST_VALUES)
    return MOST_DISTINCT if takes_limit else None


def _accumulator(name: str, spec: AggregateSpec, kind: pa.DataType | None, by: str | None) -> Accumulator:
    function, column, limit = spec
    if function == "count" or column is None:
        return CountOf(name, column)
    if function in NUMERIC:
        return _number(name, function, column, kind)
    if function in ("any", "all") and not pa.types.is_boolean(kind):
        raise InvalidOption(
            f"the aggregate {name!r} cannot take {function} of {column!r} of type {kind}; it needs booleans"
        )
    stored = _stored(name, function, column, kind)
    if function == "approx_count_distinct":
        return ApproximateCount(name, column, stored)
    if limit is None:
        return Extreme(name, column, stored, function in ("max", "any"))
    if function == "count_distinct":
        return DistinctCount(name, column, stored, limit)
    return Collection(name, column, stored, by=by, distinct=function == "collect_set", limit=limit)


def _number(name: str, function: str, column: str, kind: pa.DataType | None) -> Accumulator:
    whole_numbers, floating = pa.types.is_integer(kind), pa.types.is_floating(kind)
    if not whole_numbers and not floating:
        hint = "cast it to double" if pa.types.is_decimal(kind) else "it needs numbers"
        raise InvalidOption(f"the aggregate {name!r} cannot take the {function} of {column!r} of type {kind}; {hint}")
    if function == "mean":
        return Mean(name, column)
    if function == "sum":
        return SumOfWhole(name, column) if whole_numbers else SumOfFloats(name, column)
    return Variance(name, column, sample=not function.endswith("_pop"), root=function.startswith("stddev"))


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
