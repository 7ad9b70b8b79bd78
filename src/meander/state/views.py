"""State as user code sees it: Arrow columns in, Arrow columns out.

Keys are an Array where the key is one column, else a RecordBatch or Table that has the key's columns by name. Extra
columns are ignored. In their place a Series or a DataFrame of pandas will do. A view works on the tables of one batch,
which its declaration names.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from meander.errors import InvalidOption
from meander.pictures import many
from meander.route.columns import whole_column
from meander.route.keys import Keys, KeyType
from meander.state.columns import conformed, to_words, typed_of
from meander.state.frames import arrow_of
from meander.state.spans import COUNT, ranges, ranks
from meander.state.table import Table

Columns: TypeAlias = "pa.Array | pa.ChunkedArray | pa.RecordBatch | pa.Table | Any"
"""Columns of Arrow; a Series or a DataFrame of pandas will do too."""
Words = NDArray[np.int64]

TIME = "time"
TIME_TYPE = pa.timestamp("us", tz="UTC")


class KeyedView:
    """One row of values for each key, as this batch sees it."""

    def __init__(self, table: Table) -> None:
        self.table = table

    def get(self, keys: Columns) -> pa.RecordBatch:
        """The values of each key, all null where there are none."""
        rows = self.table.touch(_keys(keys, self.table.spec.key))
        return _batch({name: self.table.get(name, rows) for name, _ in self.table.spec.values})

    def found(self, keys: Columns) -> pa.Array:
        """Whether each key has values."""
        rows = self.table.touch(_keys(keys, self.table.spec.key))
        return pa.array(self.table.present[rows])

    def put(self, keys: Columns, values: Columns) -> None:
        """Give each key its values; columns that are missing keep theirs, and the last of equal keys counts."""
        names = [name for name, _ in self.table.spec.values]
        columns = _named(values, names, "values")
        if names and not set(columns) & set(names):
            raise InvalidOption(f"values have columns {', '.join(columns) or 'none'}; give some of {', '.join(names)}")
        rows = self.table.touch(_keys(keys, self.table.spec.key))
        for name in names:
            if name in columns:
                if len(columns[name]) != rows.size:
                    raise InvalidOption(
                        f"{many(len(columns[name]), 'value')} of {name!r} are given for {many(rows.size, 'key')}"
                    )
                self.table.set(name, rows, columns[name])
        self.table.mark(rows)

    def delete(self, keys: Columns) -> None:
        """Forget the values of these keys."""
        self.table.discard(self.table.touch(_keys(keys, self.table.spec.key)))


class MultimapView:
    """Many rows of values for each key, as this batch sees them.

    Two tables carry them. In `entries` a row's key is the key and a number 0, 1, .. count - 1; `heads` has the count of
    each key. The numbers have no gaps: when rows are dropped, the last ones take their numbers. So the cost of reading
    a key depends on its present rows, not on its former ones.
    """

    def __init__(self, heads: Table, entries: Table) -> None:
        self.heads, self.entries = heads, entries
        self.key = heads.spec.key
        self.names = [name for name, _ in entries.spec.values]

    def append(self, keys: Columns, rows: Columns) -> None:
        """Add a row for each key; a key may come several times."""
        values = pa.table(_required(rows, self.names, "rows have"))
        encoded = _keys(keys, self.key)
        if len(encoded) != values.num_rows:
            raise InvalidOption(f"{many(values.num_rows, 'row')} are given for {many(len(encoded), 'key')}")
        if not len(encoded):
            return
        heads = self.heads.touch(encoded)
        numbers = self.heads.column(COUNT)[heads] + ranks(heads)
        self.heads.add(COUNT, heads, 1)
        self.heads.mark(heads)
        entries = self.entries.touch(self._numbered(self.key.decode(encoded), numbers))
        for name in self.names:
            self.entries.set(name, entries, values.column(name))
        self.entries.mark(entries)

    def get(self, keys: Columns) -> tuple[Words, pa.RecordBatch]:
        """All rows of these keys: the position of the key that each belongs to, and the rows, by key, then by time."""
        encoded = _keys(keys, self.key)
        heads = self.heads.touch(encoded)
        which, numbers = ranges(np.zeros(heads.size, np.int64), self.heads.column(COUNT)[heads])
        columns = [column.take(pa.array(which)) for column in self.key.decode(encoded)]
        entries = self.entries.touch(self._numbered(columns, numbers))
        order = self.entries.spec.order
        if order is not None:
            by_time = np.lexsort((to_words(typed_of(self.entries.get(order, entries))), which))
            which, entries = which[by_time], entries[by_time]
        return which, _batch({name: self.entries.get(name, entries) for name in self.names})

    def counts(self, keys: Columns) -> pa.Array:
        """How many rows each key has."""
        heads = self.heads.touch(_keys(keys, self.key))
        return pa.array(self.heads.column(COUNT)[heads])

    def drop_before(self, time: int) -> int:
        """Forget all rows whose time is before `time` (microseconds); returns how many."""
        gone = self.entries.due(time)
        if gone.size:
            *columns, numbers = self.entries.keys(gone)
            heads = self.heads.touch(self.key.encode(columns))
            self._drop(heads, gone, to_words(typed_of(numbers)))
        return gone.size

    def delete(self, keys: Columns) -> None:
        """Forget all rows of these keys."""
        encoded = _keys(keys, self.key)
        heads, first = np.unique(self.heads.touch(encoded), return_index=True)
        which, numbers = ranges(np.zeros(heads.size, np.int64), self.heads.column(COUNT)[heads])
        columns = [column.take(pa.array(first[which])) for column in self.key.decode(encoded)]
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


class TimersView:
    """Timers of keys, as this batch sees them: at most one for each key and time. They move with the key's bin."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.key = KeyType(table.spec.key.fields[:-1], table.spec.key.leading)

    def set(self, time: pa.Array | Words | int, keys: Columns, payload: Columns | None = None) -> None:
        """Set a timer for each key at its time, with its payload; it fires once the event-time frontier is past it."""
        names = [name for name, _ in self.table.spec.values]
        columns = {} if payload is None or not names else _required(payload, names, "the payload has")
        rows = self._touch(time, keys)
        for name, type_ in self.table.spec.values:
            self.table.set(name, rows, columns[name] if columns else pa.nulls(rows.size, type_))
        self.table.mark(rows)

    def cancel(self, time: pa.Array | Words | int, keys: Columns) -> None:
        """Forget the timer of each key at its time, if there is one."""
        rows = self._touch(time, keys)
        self.table.discard(rows[self.table.present[rows]])

    def due(self, upto: int) -> pa.RecordBatch:
        """The timers before `upto` (microseconds), by time, then by key; they stay."""
        return self._shown(self.table.due(upto))

    def take(self, upto: int) -> pa.RecordBatch:
        """The timers before `upto` (microseconds), by time, then by key; they are forgotten."""
        rows = self.table.due(upto)
        shown = self._shown(rows)
        self.table.discard(rows)
        return shown

    def _shown(self, rows: Words) -> pa.RecordBatch:
        keys = dict(zip(self.table.spec.key.names, self.table.keys(rows), strict=True))
        return _batch(keys | {name: self.table.get(name, rows) for name, _ in self.table.spec.values})

    def _touch(self, time: pa.Array | Words | int, keys: Columns) -> Words:
        """The rows of the timers of these keys at their times (microseconds or timestamps)."""
        encoded = _keys(keys, self.key)
        time = arrow_of(time)
        if isinstance(time, int):
            time = np.full(len(encoded), time, np.int64)
        if not isinstance(time, pa.Array | pa.ChunkedArray):
            time = pa.array(np.asarray(time, np.int64))
        if len(time) != len(encoded):
            raise InvalidOption(f"{many(len(time), 'time')} are given for {many(len(encoded), 'key')}")
        return self.table.touch(self.table.spec.key.encode([*self.key.decode(encoded), time.cast(TIME_TYPE)]))


def _batch(columns: dict[str, pa.Array | pa.ChunkedArray]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([whole_column(each) for each in columns.values()], names=list(columns))


def _named(data: Columns, names: list[str], what: str) -> dict[str, pa.Array | pa.ChunkedArray]:
    """Columns by name; a single Array is the only column there is. Both may be of pandas."""
    data = arrow_of(data)
    if isinstance(data, pa.Array | pa.ChunkedArray):
        if len(names) != 1:
            raise InvalidOption(f"{what} are one column but {', '.join(names)} are wanted; give a RecordBatch of them")
        return {names[0]: data}
    if isinstance(data, pa.RecordBatch | pa.Table):
        return dict(zip(data.schema.names, data.columns, strict=True))
    raise InvalidOption(f"{what} are {type(data).__name__}; give an Array, a RecordBatch or a Table")


def _required(data: Columns, names: list[str], what: str) -> dict[str, pa.Array | pa.ChunkedArray]:
    """The columns of these names; refuses data that lacks one. `what` is the beginning of the sentence that says so."""
    columns = _named(data, names, what.rpartition(" ")[0])
    for name in names:
        if name not in columns:
            raise InvalidOption(f"{what} no column {name!r}; give {', '.join(names)}")
    return {name: columns[name] for name in names}


def _keys(data: Columns, type_: KeyType) -> Keys:
    columns = _required(data, list(type_.names), "keys have")
    return type_.encode([conformed(columns[name], want, name) for name, want in type_.fields])


def _pairs(owner: Words, number: Words) -> NDArray[np.void]:
    both = np.ascontiguousarray(np.column_stack([owner.astype(np.int64), number.astype(np.int64)]))
    return both.view([("owner", np.int64), ("number", np.int64)]).reshape(-1)
