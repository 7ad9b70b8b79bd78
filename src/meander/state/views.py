"""State as user code sees it: Arrow columns in, Arrow columns out.

Keys are an Array where the key is one column, else a RecordBatch or Table that has the key's columns by name. Extra
columns are ignored.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from meander.errors import InvalidOption
from meander.route.columns import whole_column
from meander.route.keys import Keys, KeyType
from meander.state.columns import conformed
from meander.state.multimap import Multimap
from meander.state.table import Table
from meander.state.timers import Timers

Columns: TypeAlias = pa.Array | pa.ChunkedArray | pa.RecordBatch | pa.Table
Words = NDArray[np.int64]


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
                    raise InvalidOption(f"{len(columns[name])} values of {name!r} are given for {rows.size} keys")
                self.table.set(name, rows, columns[name])
        self.table.mark(rows)

    def delete(self, keys: Columns) -> None:
        """Forget the values of these keys."""
        self.table.discard(self.table.touch(_keys(keys, self.table.spec.key)))


class MultimapView:
    """Many rows of values for each key, as this batch sees them."""

    def __init__(self, multimap: Multimap) -> None:
        self.multimap = multimap

    def append(self, keys: Columns, rows: Columns) -> None:
        """Add a row for each key; a key may come several times."""
        columns = _named(rows, self.multimap.names, "rows")
        missing = [name for name in self.multimap.names if name not in columns]
        if missing:
            raise InvalidOption(f"rows have no column {missing[0]!r}; give {', '.join(self.multimap.names)}")
        self.multimap.append(
            _keys(keys, self.multimap.key), pa.table({name: columns[name] for name in self.multimap.names})
        )

    def get(self, keys: Columns) -> tuple[Words, pa.RecordBatch]:
        """All rows of these keys: the position of the key that each belongs to, and the rows, by key, then by time."""
        which, rows = self.multimap.get(_keys(keys, self.multimap.key))
        return which, _batch({name: rows.column(name) for name in self.multimap.names})

    def counts(self, keys: Columns) -> pa.Array:
        """How many rows each key has."""
        return pa.array(self.multimap.counts(_keys(keys, self.multimap.key)))

    def drop_before(self, time: int) -> int:
        """Forget all rows whose time is before `time` (microseconds); returns how many."""
        return self.multimap.drop_before(time)

    def delete(self, keys: Columns) -> None:
        """Forget all rows of these keys."""
        self.multimap.delete(_keys(keys, self.multimap.key))


class TimersView:
    """Timers of keys, as this batch sees them."""

    def __init__(self, timers: Timers) -> None:
        self.timers = timers

    def set(self, time: pa.Array | Words | int, keys: Columns, payload: Columns | None = None) -> None:
        """Set a timer for each key at its time, with its payload; it fires once the event-time frontier is past it."""
        names = [name for name, _ in self.timers.table.spec.values]
        table = None
        if payload is not None and names:
            columns = _named(payload, names, "the payload")
            missing = [name for name in names if name not in columns]
            if missing:
                raise InvalidOption(f"the payload has no column {missing[0]!r}; give {', '.join(names)}")
            table = pa.table({name: columns[name] for name in names})
        self.timers.set(time, _keys(keys, self.timers.key), table)

    def cancel(self, time: pa.Array | Words | int, keys: Columns) -> None:
        """Forget the timer of each key at its time, if there is one."""
        self.timers.cancel(time, _keys(keys, self.timers.key))

    def due(self, upto: int) -> pa.RecordBatch:
        """The timers before `upto` (microseconds), by time, then by key; they stay."""
        return _batch(_named(self.timers.due(upto), [], "timers"))

    def take(self, upto: int) -> pa.RecordBatch:
        """The timers before `upto` (microseconds), by time, then by key; they are forgotten."""
        return _batch(_named(self.timers.take(upto), [], "timers"))


def _batch(columns: dict[str, pa.Array | pa.ChunkedArray]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([whole_column(each) for each in columns.values()], names=list(columns))


def _named(data: Columns, names: list[str], what: str) -> dict[str, pa.Array | pa.ChunkedArray]:
    """Columns by name; a single Array is the only column there is."""
    if isinstance(data, pa.Array | pa.ChunkedArray):
        if len(names) != 1:
            raise InvalidOption(f"{what} are one column but {', '.join(names)} are wanted; give a RecordBatch of them")
        return {names[0]: data}
    if isinstance(data, pa.RecordBatch | pa.Table):
        return dict(zip(data.schema.names, data.columns, strict=True))
    raise InvalidOption(f"{what} are {type(data).__name__}; give an Array, a RecordBatch or a Table")


def _keys(data: Columns, type_: KeyType) -> Keys:
    columns = _named(data, list(type_.names), "keys")
    for name in type_.names:
        if name not in columns:
            raise InvalidOption(f"keys have no column {name!r}; give {', '.join(type_.names)}")
    return type_.encode([conformed(columns[name], want, name) for name, want in type_.fields])
