"""Variances and standard deviations of each key, from sums that do not depend on the order of the rows."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from meander.operators.accumulators import Accumulator, CountOf, Parts, SumOfFloats
from meander.operators.ordering import Groups, Words
from meander.route.columns import whole_column
from meander.state.table import Table

Doubles = NDArray[np.float64]

SPLIT = 134217729.0
"""2^27 + 1: multiplying by it cuts a double into two halves whose products are exact."""


class Variance(Accumulator):
    """The variance of the values that are not null, or its root: of a sample (divided by n - 1) or of all (by n).

    Kept are the count, the sum and the sum of squares, both to twice a double's precision: their difference is as good
    as if it had been taken from the mean, and no order shows. Squares of numbers beyond 1e150 are no doubles; then the
    answer is NaN.
    """

    def __init__(self, name: str, column: str, sample: bool, root: bool) -> None:
        self.name, self.column, self.sample, self.root = name, column, sample, root
        self.count = CountOf(f"{name}.count", column)
        self.sum, self.squares = SumOfFloats(f"{name}.sum", column), SumOfFloats(f"{name}.squares", column)
        self.values = self.count.values + self.sum.values + self.squares.values
        self.results = ((name, pa.float64()),)

    def parts(self, rows: pa.Table) -> Parts:
        """Whether each row counts, its value and its square."""
        values = whole_column(rows[self.column]).cast(pa.float64(), safe=False)
        missing = values.is_null().to_numpy(zero_copy_only=False)
        plain = values.fill_null(0.0).to_numpy()
        square, rest = product(plain, plain)
        squares = [pa.array(square, mask=missing), pa.array(np.where(np.isfinite(rest), rest, 0.0))]
        return self.count.parts(rows) + self.sum.parts(rows) + squares

    def combine(self, table: Table, groups: Groups, parts: Parts) -> None:
        """Add to count and sums."""
        self.count.combine(table, groups, parts[:1])
        self.sum.combine(table, groups, parts[1:3])
        self.squares.combine(table, groups, parts[3:])

    def answer(self, table: Table, rows: Words) -> list[pa.Array]:
        """The variance or its root; null where too few values counted."""
        count = table.column(self.count.name)[rows]
        number = count.astype(np.float64)
        sum_, squares = ((table.column(each.name)[rows], table.column(each.rest)[rows]) for each in _both(self))
        with np.errstate(invalid="ignore", over="ignore"):
            first, error = product(number, squares[0])
            second, other = product(sum_[0], sum_[0])
            difference = first - second
            shadow = difference - first
            lost = (first - (difference - shadow)) - (second + shadow)
            spread = difference + (lost + (error + number * squares[1]) - (other + 2.0 * sum_[0] * sum_[1]))
            # What rounding leaves of a variance of zero may be below it.
            spread = np.where(spread < 0.0, 0.0, spread)
            answer = spread / (number * np.maximum(number - 1.0 if self.sample else number, 1.0))
        few = count < (2 if self.sample else 1)
        return [pa.array(np.sqrt(answer) if self.root else answer, pa.float64(), mask=few)]


def _both(each: Variance) -> tuple[SumOfFloats, SumOfFloats]:
    return each.sum, each.squares


def product(first: Doubles, second: Doubles) -> tuple[Doubles, Doubles]:
    """The products, and exactly what rounding took off them; NaN where a factor is beyond 1e300."""
    with np.errstate(invalid="ignore", over="ignore"):
        whole = first * second
        (a, b), (c, d) = _halves(first), _halves(second)
        return whole, ((a * c - whole) + a * d + b * c) + b * d


def _halves(values: Doubles) -> tuple[Doubles, Doubles]:
    scaled = values * SPLIT
    high = scaled - (scaled - values)
    return high, values - high
