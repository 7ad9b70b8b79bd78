"""Many rows for each key.

Two tables carry it. In `entries` a row's key is the key and a number 0, 1, .. count - 1; `heads` has the count of each
key. The numbers have no gaps: when rows are dropped, the last ones take their numbers. So the cost of reading a key
depends on its present rows, not on its former ones.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from meander.errors import InvalidOption
from meander.route.keys import Keys, KeyType
from meander.state.columns import to_words, typed_of
from meander.state.spec import TableSpec
from meander.state.table import Table

Words = NDArray[np.int64]

NUMBER, COUNT = "__number", "__count"


class Multimap:
    """The rows of keys, as one batch sees them, over the tables that `Multimap.specs` names."""

    def __init__(self, heads: Table, entries: Table) -> None:
        self.heads, self.entries = heads, entries
        self.key = heads.spec.key
        self.names = [name for name, _ in entries.spec.values]

    @staticmethod
    def specs(
        name: str, key: KeyType, values: tuple[tuple[str, pa.DataType], ...], time: str | None = None
    ) -> tuple[TableSpec, TableSpec]:
        """The two tables of a multimap, heads and entries; `time` names the column by which rows grow old."""
        leading = len(key.fields) if key.leading is None else key.leading
        numbered = KeyType((*key.fields, (NUMBER, pa.int64())), leading)
        return TableSpec(f"{name}-heads", key, ((COUNT, pa.int64()),)), TableSpec(name, numbered, values, time)

    def append(self, keys: Keys, rows: pa.Table | pa.RecordBatch) -> None:
        """Add a row for each key; a key may come several times."""
        if len(keys) != rows.num_rows:
            raise InvalidOption(f"{rows.num_rows} rows are given for {len(keys)} keys")
        if not len(keys):
            return
        heads = self.heads.touch(keys)
        numbers = self.heads.column(COUNT)[heads] + ranks(heads)
        self.heads.add(COUNT, heads, 1)
        self.heads.mark(heads)
        entries = self.entries.touch(self._numbered(self.key.decode(keys), numbers))
        for name in self.names:
            self.entries.set(name, entries, rows.column(name))
        self.entries.mark(entries)

    def get(self, keys: Keys) -> tuple[Words, pa.Table]:
        """All rows of these keys: which key each belongs to, and the rows, by key, then by time or as they came."""
        heads = self.heads.touch(keys)
        which, numbers = ranges(np.zeros(len(keys), np.int64), self.heads.column(COUNT)[heads])
        columns = [column.take(pa.array(which)) for column in self.key.decode(keys)]
        entries = self.entries.touch(self._numbered(columns, numbers))
        order = self.entries.spec.order
        if order is not None:
            by_time = np.lexsort((to_words(typed_of(self.entries.get(order, entries))), which))
            which, entries = which[by_time], entries[by_time]
        return which, pa.table({name: self.entries.get(name, entries) for name in self.names})

    def counts(self, keys: Keys) -> Words:
        """How many rows each key has."""
        heads = self.heads.touch(keys)
        return np.asarray(self.heads.column(COUNT)[heads])

    def drop_before(self, time: int) -> int:
        """Forget all rows of any key whose time is below `time`; returns how many."""
        gone = self.entries.due(time)
        if gone.size:
            *columns, numbers = self.entries.keys(gone)
            heads = self.heads.touch(self.key.encode(columns))
            self._drop(heads, gone, to_words(typed_of(numbers)))
        return gone.size

    def delete(self, keys: Keys) -> None:
        """Forget all rows of these keys."""
        heads, first = np.unique(self.heads.touch(keys), return_index=True)
        which, numbers = ranges(np.zeros(heads.size, np.int64), self.heads.column(COUNT)[heads])
        columns = [column.take(pa.array(first[which])) for column in self.key.decode(keys)]
        self.entries.discard(self.entries.touch(self._numbered(columns, numbers)))
        self.heads.discard(heads)

    def _drop(self, heads: Words, gone: Words, numbers: Words) -> None:
        """Take out the entries `gone`, which have these numbers of these heads, and let the last ones fill the gaps."""
        whose, place, dropped = np.unique(heads, return_inverse=True, return_counts=True)
        count = self.heads.column(COUNT)[whose]
        left = count - dropped
        # Of the numbers from `left` on, those that stay move into the gaps below; there are as many of either.
        owner, high = ranges(left, count)
        taken = np.isin(_pairs(owner, high), _pairs(place, numbers))
        owner, high = owner[~taken], high[~taken]
        gap = numbers < left[place]
        order = np.lexsort((numbers[gap], place[gap]))
        targets = gone[gap][order]
        self.entries.discard(gone)
        if owner.size:
            columns = [column.take(pa.array(owner)) for column in self.heads.keys(whose)]
            sources = self.entries.touch(self._numbered(columns, high))
            for name in self.names:
                self.entries.set(name, targets, self.entries.get(name, sources))
            self.entries.mark(targets)
            self.entries.discard(sources)
        self.heads.column(COUNT)[whose] = left
        self.heads.mark(whose)
        self.heads.discard(whose[left == 0])

    def _numbered(self, columns: list[pa.Array], numbers: Words) -> Keys:
        return self.entries.spec.key.encode([*columns, pa.array(numbers)])


def ranks(heads: Words) -> Words:
    """For each row, how many rows before it have the same head."""
    order = np.argsort(heads, kind="stable")
    ordered = heads[order]
    starts = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1]))
    rank = np.empty(heads.size, np.int64)
    rank[order] = np.arange(heads.size) - np.repeat(starts, np.diff(np.append(starts, heads.size)))
    return rank


def ranges(starts: Words, stops: Words) -> tuple[Words, Words]:
    """All numbers from starts[k] to stops[k] - 1, for each k, with the k they are of."""
    sizes = stops - starts
    which = np.repeat(np.arange(starts.size), sizes)
    behind = np.cumsum(sizes)
    return which, np.arange(which.size) - np.repeat(behind - sizes - starts, sizes)


def _pairs(owner: Words, number: Words) -> NDArray[np.void]:
    both = np.ascontiguousarray(np.column_stack([owner.astype(np.int64), number.astype(np.int64)]))
    return both.view([("owner", np.int64), ("number", np.int64)]).reshape(-1)
