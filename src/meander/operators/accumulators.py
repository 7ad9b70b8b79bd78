"""The state of an aggregate for each key, and how a batch, or the state of another key, is added to it.

Every accumulator is a sum in the wide sense: `parts` turns each row into the state that it alone would leave, and
`combine` adds such parts to rows of a table. Merging two sessions is the same `combine`, with the state of one as the
parts. The order in which parts come never matters.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from meander.operators.operator import UnusableRows
from meander.operators.ordering import Flags, Groups, Words, first_of_groups, joined, words
from meander.operators.sums import add_floats, float_sums, whole_sums
from meander.route.columns import is_octets, whole_column
from meander.state.table import Table

Parts = list[pa.Array]


class Accumulator(ABC):
    """State columns of one aggregate and how they grow; `results` are the output columns it answers."""

    values: tuple[tuple[str, pa.DataType], ...]
    results: tuple[tuple[str, pa.DataType], ...]

    @abstractmethod
    def parts(self, rows: pa.Table) -> Parts:
        """What each row alone would leave in the state columns."""

    @abstractmethod
    def combine(self, table: Table, groups: Groups, parts: Parts) -> None:
        """Add parts to the table's rows."""

    def answer(self, table: Table, rows: Words) -> list[pa.Array]:
        """The output columns of these rows of the table."""
        return [table.get(name, rows) for name, _ in self.results]

    def clear(self, table: Table, rows: Words) -> None:
        """Leave these rows as if nothing had been added to them."""
        for name, kind in self.values:
            table.set(name, rows, pa.nulls(rows.size, kind))


class CountOf(Accumulator):
    """How many rows, or how many values of a column that are not null."""

    def __init__(self, name: str, column: str | None) -> None:
        self.name, self.column = name, column
        self.values = self.results = ((name, pa.int64()),)

    def parts(self, rows: pa.Table) -> Parts:
        """One for each row that counts, else zero."""
        if self.column is None:
            return [pa.array(np.ones(rows.num_rows, dtype=np.int64))]
        return [whole_column(rows[self.column]).is_valid().cast(pa.int64())]

    def combine(self, table: Table, groups: Groups, parts: Parts) -> None:
        """Add counts."""
        added = np.bincount(groups.of, weights=parts[0].fill_null(0).to_numpy(), minlength=len(groups))
        table.column(self.name)[groups.rows] += added.astype(np.int64)
        table.valid(self.name)[groups.rows] = True

    def answer(self, table: Table, rows: Words) -> list[pa.Array]:
        """The counts; none is 0, also where nothing has been added yet."""
        return [pa.array(table.column(self.name)[rows])]


class SumOfWhole(Accumulator):
    """The exact sum of whole numbers; rows that would take it out of the range of bigint are dead letters."""

    def __init__(self, name: str, column: str) -> None:
        self.name, self.column = name, column
        self.values = self.results = ((name, pa.int64()),)

    def parts(self, rows: pa.Table) -> Parts:
        """The values as they are."""
        return [whole_column(rows[self.column]).cast(pa.int64())]

    def combine(self, table: Table, groups: Groups, parts: Parts) -> None:
        """Add whole numbers."""
        values, of, some = _present(parts[0], groups)
        before = table.column(self.name)[groups.rows]
        total, beyond = whole_sums(before, of, values.to_numpy())
        if beyond.any():
            what = f"the sum {self.name!r} of column {self.column!r} leaves the range of bigint"
            raise unusable(table, groups.rows[np.flatnonzero(beyond)], what, "cast the column to double")
        table.column(self.name)[groups.rows] = total
        table.valid(self.name)[groups.rows] |= some


class SumOfFloats(Accumulator):
    """The sum of floats, kept to twice a double's precision so that the cut into batches does not show."""

    def __init__(self, name: str, column: str) -> None:
        self.name, self.rest, self.column = name, f"{name}.rest", column
        self.values = ((name, pa.float64()), (self.rest, pa.float64()))
        self.results = ((name, pa.float64()),)

    def parts(self, rows: pa.Table) -> Parts:
        """The values, with nothing left over."""
        values = whole_column(rows[self.column]).cast(pa.float64(), safe=False)
        return [values, pa.array(np.zeros(len(values)))]

    def combine(self, table: Table, groups: Groups, parts: Parts) -> None:
        """Add floats."""
        values, of, some = _present(parts[0], groups)
        total, rest = table.column(self.name)[groups.rows], table.column(self.rest)[groups.rows]
        for sums in (float_sums(of, values.to_numpy(), len(groups)), _leftovers(parts, groups)):
            for each in sums:
                total, rest = add_floats(total, rest, each)
        table.column(self.name)[groups.rows] = total
        table.column(self.rest)[groups.rows] = rest
        for name in (self.name, self.rest):
            table.valid(name)[groups.rows] |= some


class Mean(Accumulator):
    """The mean of the values that are not null, as a double."""

    def __init__(self, name: str, column: str) -> None:
        self.name = name
        self.sum, self.count = SumOfFloats(f"{name}.sum", column), CountOf(f"{name}.count", column)
        self.values = self.sum.values + self.count.values
        self.results = ((name, pa.float64()),)

    def parts(self, rows: pa.Table) -> Parts:
        """The values and whether they count."""
        return self.sum.parts(rows) + self.count.parts(rows)

    def combine(self, table: Table, groups: Groups, parts: Parts) -> None:
        """Add to sum and count."""
        self.sum.combine(table, groups, parts[:2])
        self.count.combine(table, groups, parts[2:])

    def answer(self, table: Table, rows: Words) -> list[pa.Array]:
        """The sum divided by the count; null where nothing counted."""
        count = table.column(self.count.name)[rows]
        with np.errstate(invalid="ignore"):
            mean = table.column(self.sum.name)[rows] / np.maximum(count, 1)
        return [pa.array(mean, pa.float64(), mask=count == 0)]


class Extreme(Accumulator):
    """The smallest or the largest value of a column; NaN is larger than every number."""

    def __init__(self, name: str, column: str, kind: pa.DataType, largest: bool) -> None:
        self.name, self.column, self.largest = name, column, largest
        self.values = self.results = ((name, kind),)

    def parts(self, rows: pa.Table) -> Parts:
        """The values as they are."""
        return [whole_column(rows[self.column]).cast(self.values[0][1])]

    def combine(self, table: Table, groups: Groups, parts: Parts) -> None:
        """Keep the better of old and new."""
        kind = parts[0].type
        if is_octets(kind) or pa.types.is_boolean(kind):
            self._combine_unordered(table, groups, parts[0])
            return
        present, of, _ = _present(parts[0], groups)
        # Adding zero makes -0.0 and 0.0, which are equal, one.
        values = present.to_numpy() + 0.0 if pa.types.is_floating(kind) else words(present)
        (table.highest if self.largest else table.lowest)(self.name, groups.rows[of], values)

    def _combine_unordered(self, table: Table, groups: Groups, values: pa.Array) -> None:
        function = "max" if self.largest else "min"
        best = (
            pa.table({"of": groups.of, "value": values})
            .group_by("of", use_threads=False)
            .aggregate([("value", function)])
        )
        at = groups.rows[best["of"].to_numpy()]
        old, new = table.get(self.name, at), whole_column(best[f"value_{function}"])
        if pa.types.is_boolean(values.type):
            better = (pc.or_kleene if self.largest else pc.and_kleene)(old, new)
            table.set(self.name, at, pc.coalesce(better, old, new))
        else:
            table.set(self.name, at, (pc.max_element_wise if self.largest else pc.min_element_wise)(old, new))


class Edge(Accumulator):
    """The values that some columns had in the first or in the last row by event time.

    All of them come from one row. Of rows of the same time it is the first (last) in the order of these columns.
    """

    def __init__(self, columns: Sequence[tuple[str, str, pa.DataType]], by: str, last: bool) -> None:
        self.columns, self.by, self.last = tuple(columns), by, last
        self.time = "last.time" if last else "first.time"
        self.results = tuple((name, kind) for name, _, kind in columns)
        self.values = ((self.time, pa.int64()), *self.results)

    def parts(self, rows: pa.Table) -> Parts:
        """The time of each row and its values."""
        return [times(rows, self.by), *(whole_column(rows[column]).cast(kind) for _, column, kind in self.columns)]

    def combine(self, table: Table, groups: Groups, parts: Parts) -> None:
        """Keep the earlier (later) of old and new."""
        names = [name for name, _ in self.values]
        every = (
            (joined(table.get(name, groups.rows), part), self.last) for name, part in zip(names, parts, strict=True)
        )
        of = np.concatenate([np.arange(len(groups)), groups.of])
        winners = first_of_groups(of, len(groups), every) - len(groups)
        better = np.flatnonzero(winners >= 0)
        better = better[parts[0].is_valid().to_numpy(zero_copy_only=False)[winners[better]]]
        for name, part in zip(names, parts, strict=True):
            table.set(name, groups.rows[better], part.take(pa.array(winners[better])))


def times(rows: pa.Table, by: str) -> pa.Array:
    """The column of time as words; null where there is none."""
    column = whole_column(rows[by])
    missing = column.is_null().to_numpy(zero_copy_only=False) if column.null_count else None
    return pa.array(words(column), mask=missing)


def unusable(table: Table, rows: Words, what: str, instead: str) -> UnusableRows:
    """Why rows of the keys at these rows of a table cannot be added: what is wrong, and what to do instead."""
    columns, bins = table.keys(rows), table.bins_of(rows)
    shown = [", ".join(map(repr, key)) for key in zip(*(column.to_pylist() for column in columns), strict=True)]
    reasons = [
        f"{what} for the key {key} in bin {bin_}; {instead}" for key, bin_ in zip(shown, bins.tolist(), strict=True)
    ]
    return UnusableRows(columns[: table.spec.key.leading], reasons)


def _present(part: pa.Array, groups: Groups) -> tuple[pa.Array, Words, Flags]:
    """The values that are not null, their groups, and which groups have any."""
    of = groups.of
    if part.null_count:
        valid = part.is_valid().to_numpy(zero_copy_only=False)
        part, of = part.drop_null(), of[valid]
    return part, of, np.bincount(of, minlength=len(groups)) > 0


def _leftovers(parts: Parts, groups: Groups) -> tuple[NDArray[np.float64], ...]:
    rests = parts[1].fill_null(0.0).to_numpy(zero_copy_only=False)
    return float_sums(groups.of, rests, len(groups)) if rests.any() else ()
