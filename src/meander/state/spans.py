"""Rows of keys by spans of event time: the state of joins.

Time is cut into spans of one length. A row's key is the key, the start of its span and a number 0, 1, .. count - 1;
the row with number 0 has the count. A span is dropped as a whole, so numbers have no gaps, and the cost of reading a
key at some time depends only on its rows around that time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from meander.route.keys import Keys, KeyType
from meander.state.spec import TableSpec
from meander.state.table import Table

Words = NDArray[np.int64]

SPAN, NUMBER, COUNT = "__span", "__number", "__count"


@dataclass(frozen=True)
class Lookups:
    """The rows of look-ups: those of look-up k are `rows[starts[k] : stops[k]]`, as rows of the table."""

    starts: Words
    stops: Words
    rows: Words


class Spans:
    """The rows of keys and spans, as one batch sees them, over the table that `Spans.spec` describes."""

    def __init__(self, table: Table) -> None:
        self.table = table

    @staticmethod
    def spec(name: str, key: KeyType, values: tuple[tuple[str, pa.DataType], ...]) -> TableSpec:
        """The table, whose rows fall due by their span."""
        numbered = key.extended((SPAN, pa.int64()), (NUMBER, pa.int64()))
        return TableSpec(name, numbered, (*values, (COUNT, pa.int64())), order=SPAN)

    def append(self, columns: list[pa.Array], spans: Words, rows: pa.Table) -> None:
        """Add a row for each key and span, which may come several times."""
        heads = self.table.touch(self._keys(columns, spans))
        numbers = self.table.column(COUNT)[heads] + ranks(heads)
        further, at = np.flatnonzero(numbers), heads.copy()
        at[further] = self.table.touch(self._keys(_taken(columns, further), spans[further], numbers[further]))
        for name in rows.column_names:
            self.table.set(name, at, rows.column(name))
        self.table.add(COUNT, heads, 1)
        self.table.mark(at)
        self.table.mark(heads)

    def find(self, columns: list[pa.Array], spans: Words) -> Lookups:
        """The rows of each of these keys in its span. Look-ups of the same key and span share theirs."""
        heads = self.table.touch(self._keys(columns, spans))
        counts = np.zeros(self.table.size, np.int64)
        counts[heads] = self.table.column(COUNT)[heads]
        distinct = np.flatnonzero(counts)
        stops = np.cumsum(counts)
        starts = stops - counts
        rows = np.empty(int(stops[-1]) if stops.size else 0, np.int64)
        rows[starts[distinct]] = distinct
        which, numbers = ranges(np.ones(distinct.size, np.int64), counts[distinct])
        if which.size:
            *key, span, _ = self.table.keys(distinct)
            further = self._keys(_taken(key, which), span.to_numpy()[which], numbers)
            rows[starts[distinct][which] + numbers] = self.table.touch(further)
        return Lookups(starts[heads], stops[heads], rows)

    def before(self, start: int) -> Words:
        """All rows in spans that begin before this, in no order."""
        return self.table.due(start, in_order=False)

    def _keys(self, columns: list[pa.Array], spans: Words, numbers: Words | None = None) -> Keys:
        numbers = np.zeros(spans.size, np.int64) if numbers is None else numbers
        return self.table.spec.key.encode([*columns, pa.array(spans), pa.array(numbers)])


def _taken(columns: list[pa.Array], at: Words) -> list[pa.Array]:
    picked = pa.array(at)
    return [each.take(picked) for each in columns]


def positions(ordered: Words) -> Words:
    """The place of each row within its run of equal values, from 0."""
    starts = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1])[: ordered.size])
    return np.arange(ordered.size) - np.repeat(starts, np.diff(np.append(starts, ordered.size)))


def ranks(heads: Words) -> Words:
    """For each row, how many rows before it have the same head."""
    order = np.argsort(heads, kind="stable")
    rank = np.empty(heads.size, np.int64)
    rank[order] = positions(heads[order])
    return rank


def ranges(starts: Words, stops: Words) -> tuple[Words, Words]:
    """All numbers from starts[k] to stops[k] - 1, for each k, with the k they are of."""
    sizes = stops - starts
    which = np.repeat(np.arange(starts.size), sizes)
    behind = np.cumsum(sizes)
    return which, np.arange(which.size) - np.repeat(behind - sizes - starts, sizes)
