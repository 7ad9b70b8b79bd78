"""What an operator sees of its state: the rows of this batch over the base, which does not change.

rows = table.touch(keys)            # one row number for each key, equal keys have equal rows
table.add("count", rows, 1)         # or any NumPy on table.column("count")
table.mark(rows)                    # these go into the delta
delta = table.delta()
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from meander.errors import InvalidOption
from meander.route.hashing import bits_of
from meander.route.keys import Keys
from meander.state import records_kernel
from meander.state.base import Base
from meander.state.columns import Probe, fixed_column, from_words, plain, to_words
from meander.state.overlay import FixedColumn, KeyRows, RecordColumn, grown
from meander.state.records_kernel import by_bin, is_ascending
from meander.state.slot_hash import fresh_secret
from meander.state.spec import TableSpec, is_record

Words = NDArray[np.int64]
Flags = NDArray[np.bool_]


class Table:
    """The rows of one table that this batch has touched, over the base; without a base, over nothing.

    Rows are numbered 0, 1, .. as their keys are first touched. Arrays that `present`, `column` and `valid` return are
    views: writing to them changes the rows, and they are stale after the next `touch` or `due`, which may move them.
    """

    def __init__(self, base: Base | None, spec: TableSpec, bins: int) -> None:
        bits_of(bins)
        self.spec, self.bins = spec, bins
        self._base = base
        self._keys = KeyRows(spec, bins, fresh_secret() if base is None else base.secret)
        self._seen: Flags | None = None
        self._handles = np.empty(0, np.int64)
        self._present, self._marked = np.empty(0, np.bool_), np.empty(0, np.bool_)
        self._columns = [
            RecordColumn(name, type_) if is_record(type_) else FixedColumn(name, type_) for name, type_ in spec.values
        ]

    def restrict(self, bins: Flags) -> None:
        """Limit `due` to these bins; other calls fire the rest."""
        self._seen = bins

    @property
    def size(self) -> int:
        """How many rows have been touched."""
        return self._keys.size

    @property
    def present(self) -> Flags:
        """Whether each row has a value now."""
        return self._present[: self.size]

    def touch(self, keys: Keys) -> Words:
        """The row of each key. A key that is new in this batch has its committed values, or is not present."""
        if keys.type.types != self.spec.key.types or keys.type.leading != self.spec.key.leading:
            raise InvalidOption(f"the keys given to table {self.spec.name!r} are of another type than its own")
        before = self.size
        rows = self._keys.touch(keys)
        self._load(before)
        return rows

    def column(self, name: str) -> NDArray[Any]:
        """The values of a column of fixed width, to read and to write; 0 where there is none."""
        return self._fixed(name).values[: self.size]

    def valid(self, name: str) -> Flags:
        """Whether each value of a column is not null, to read and to write."""
        return self._columns[self.spec.value_at(name)].valid[: self.size]

    def get(self, name: str, rows: Words | None = None) -> pa.Array:
        """The values of a column, of the key or of the values, at these rows; null where there is none."""
        rows = self._rows(rows)
        at = self.spec.key_at(name)
        if at is not None:
            return self.keys(rows)[at]
        return self._columns[self.spec.value_at(name)].get(rows, self._present[rows])

    def reader(self, name: str, among: Words) -> Callable[[Words], pa.Array]:
        """A function that gets a value column at rows that are all among these, which may come many times.

        Nulls are looked up once for all, not each time that a row comes.
        """
        column = self._columns[self.spec.value_at(name)]
        is_whole = bool((self._present[among] & column.valid[among]).all())
        if isinstance(column, FixedColumn) and is_whole:
            return lambda rows: fixed_column(column.values[rows], None, column.type)
        return partial(self.get, name)

    def set(self, name: str, rows: Words, values: pa.Array) -> None:
        """Replace the values of a column at these rows. It does not mark them."""
        self._columns[self.spec.value_at(name)].set(rows, values)

    def add(self, name: str, rows: Words, amounts: NDArray[Any] | float) -> None:
        """Add each amount, or the same one, at its row; a row may come several times. It does not mark them."""
        self._fold("add", name, rows, amounts)

    def lowest(self, name: str, rows: Words, amounts: NDArray[Any]) -> None:
        """Keep the lowest of the value and the amounts at each row; null is no value, NaN above all. Does not mark."""
        self._fold("lowest", name, rows, amounts)

    def highest(self, name: str, rows: Words, amounts: NDArray[Any]) -> None:
        """Keep the highest of the value and the amounts at each row; null is no value, NaN above all. Does not mark."""
        self._fold("highest", name, rows, amounts)

    def mark(self, rows: Words | None = None) -> None:
        """Mark these rows as changed and present; all rows by default."""
        where = slice(0, self.size) if rows is None else rows
        self._marked[where] = True
        self._present[where] = True

    def discard(self, rows: Words) -> None:
        """Delete these rows: they are marked and not present, and have no values any more."""
        self._marked[rows] = True
        self._present[rows] = False
        for column in self._columns:
            column.valid[rows] = False
            if isinstance(column, FixedColumn):
                column.values[rows] = 0

    def keys(self, rows: Words | None = None) -> list[pa.Array]:
        """The key columns of these rows."""
        return self.spec.key.decode(self._keys.keys(self._rows(rows)))

    def bins_of(self, rows: Words | None = None) -> NDArray[np.int32]:
        """The bins of these rows."""
        return self._keys.bins[self._rows(rows)]

    def due(self, upto: int, in_order: bool = True) -> Words:
        """The rows that are present and whose order column is below `upto`, by that column, then by key.

        Rows of the base are touched for it. Equal states give equal answers, whatever the history, unless
        `in_order` is False, which saves the sorting.
        """
        if self.spec.order is None:
            raise InvalidOption(f"table {self.spec.name!r} has no order; name the column that rows fall due by")
        if self._base is not None:
            self.touch(self._base.keys(self._base.due(upto)))
        rows = np.flatnonzero(self.present)
        if self.spec.key_at(self.spec.order) is None:
            column = self._fixed(self.spec.order)
            rows = rows[column.valid[rows]]
            words = to_words(column.values[rows])
        else:
            words = self._keys.order_words(rows)
        early = words < upto
        if self._seen is not None:
            early &= self._seen[self.bins_of(rows)]
        rows, words = rows[early], words[early]
        if not in_order:
            return rows
        if not self.spec.key.wide:
            return rows[np.lexsort((self._keys.words[rows], words))]
        columns = [pa.array(words), *self.keys(rows)]
        names = [str(k) for k in range(len(columns))]
        order = pc.sort_indices(pa.Table.from_arrays(columns, names), [(name, "ascending") for name in names])
        return np.asarray(rows[order.to_numpy()])

    def delta(self) -> pa.Table:
        """The marked rows in their new state, by bin, for `Base.apply`; without rows that never existed."""
        size = self.size
        rows = np.flatnonzero(self._marked[:size] & (self._present[:size] | (self._handles[:size] >= 0)))
        bins = self._keys.bins[rows]
        if not is_ascending(bins):
            order = np.empty(rows.size, np.int64)
            by_bin(bins, self.bins, order)
            rows, bins = rows[order], bins[order]
        self._check_held(bins)
        present = self._present[rows]
        fixed = [fixed_column(bins, None, pa.int32()), fixed_column(~present, None, pa.bool_())]
        columns = fixed + self.keys(rows) + [column.get(rows, present) for column in self._columns]
        return pa.Table.from_arrays(columns, schema=self.spec.schema)

    def _check_held(self, bins: NDArray[np.int32]) -> None:
        """Refuse rows of bins that this worker does not hold: a delta with them could never be applied."""
        if self._base is not None and bins.size:
            mine = bins[np.flatnonzero(np.append(True, bins[1:] != bins[:-1]))]
            strange = mine[~self._base.held[mine]]
            if strange.size:
                raise InvalidOption(
                    f"table {self.spec.name!r} has changed in bin {strange[0]}, which this worker does not hold; "
                    "its key must begin with the columns that the rows are keyed by"
                )

    def _rows(self, rows: Words | None) -> Words:
        return np.arange(self.size) if rows is None else rows

    def _fixed(self, name: str) -> FixedColumn:
        column = self._columns[self.spec.value_at(name)]
        if isinstance(column, FixedColumn):
            return column
        raise InvalidOption(f"column {name!r} of table {self.spec.name!r} is {column.type}; read it with get")

    def _load(self, before: int) -> None:
        """Fill the rows from `before` on with what the base has."""
        size = self.size
        if size == before:
            return
        capacity = self._keys.words.size
        self._handles = grown(self._handles, before, capacity)
        self._present, self._marked = grown(self._present, before, capacity), grown(self._marked, before, capacity)
        for column in self._columns:
            column.grow(before, capacity)
        new = slice(before, size)
        if self._base is None:
            self._handles[new] = -1
            return
        mine = self._keys
        order = np.empty(0, np.int64)
        if not is_ascending(mine.bins[new]):
            order = np.empty(size - before, np.int64)
            by_bin(mine.bins[new], self.bins, order)
        sought = Probe(mine.hashes[new], mine.words[new], mine.heap)
        handles, words, marks = self._base.load(sought, order)
        self._handles[new] = handles
        self._present[new] = handles >= 0
        for at, column in enumerate(self._columns):
            byte, bit = divmod(at + 1, 8)
            column.valid[new] = (marks[:, byte] >> bit) & 1
            if isinstance(column, FixedColumn):
                column.values[new] = from_words(words[at], column.values.dtype)
            else:
                column.references[new] = column.put(*self._base.texts(handles, words[at]))

    def _fold(self, how: str, name: str, rows: Words, amounts: NDArray[Any] | float) -> None:
        column = self._fixed(name)
        dtype = column.values.dtype
        if dtype == np.bool_:
            raise InvalidOption(f"column {name!r} of table {self.spec.name!r} is boolean and has no {how}")
        rows = np.flatnonzero(rows) if rows.dtype == np.bool_ else rows
        if rows.size and not 0 <= rows.min() <= rows.max() < self.size:
            raise InvalidOption(
                f"rows {rows.min()} to {rows.max()} are given, and table {self.spec.name!r} has {self.size}"
            )
        wide = np.dtype(np.float64 if dtype.kind == "f" else np.int64)
        amounts = plain(np.atleast_1d(np.asarray(amounts)), wide)
        if amounts.size != rows.size and (amounts.size != 1 or how != "add"):
            raise InvalidOption(f"{amounts.size} amounts are given for {rows.size} rows of column {name!r}")
        target = column.values if dtype == wide else column.values.astype(wide)
        getattr(records_kernel, how)(target, column.valid, plain(rows, np.dtype(np.int64)), amounts)
        if dtype != wide:
            with np.errstate(over="ignore"):
                column.values[:] = target.astype(dtype)


def among(keys: Keys, others: Keys) -> Flags:
    """Which keys are among others of the same type."""
    distinct = Table(None, TableSpec("keys", others.type), 1)
    distinct.touch(others)
    count = distinct.size
    return distinct.touch(keys) < count
