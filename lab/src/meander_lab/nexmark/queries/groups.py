"""Rows of equal columns as numbered groups, and the largest and the first of each: what the operators here share."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Words = NDArray[np.int64]


def numbered(rows: pa.RecordBatch | pa.Table, columns: Sequence[str]) -> Words:
    """The number of each row's group, from 0 without gaps: rows that are equal in these columns have the same."""
    number = np.zeros(rows.num_rows, np.int64)
    for name in columns:
        column = rows[name].combine_chunks() if isinstance(rows, pa.Table) else rows[name]
        values = column.dictionary_encode("encode")
        pairs = number * len(values.dictionary) + values.indices.to_numpy()
        number = pa.array(pairs).dictionary_encode().indices.to_numpy().astype(np.int64)
    return number


def largest(values: Words, group: Words) -> Words:
    """For each row the largest value of its group."""
    largest_of = np.full(int(group.max(initial=-1)) + 1, np.iinfo(np.int64).min)
    np.maximum.at(largest_of, group, values)
    return np.asarray(largest_of[group])


def firsts(rows: pa.Table, columns: Sequence[str], order: Sequence[tuple[str, str]]) -> pa.Table:
    """The first row of each group in an order of pyarrow's sort keys, of which the first is a number that descends."""
    values = rows[order[0][0]].to_numpy()
    rows = rows.filter(pa.array(values == largest(values, numbered(rows, columns)))).sort_by(order)
    return rows.take(pa.array(np.unique(numbered(rows, columns), return_index=True)[1]))
