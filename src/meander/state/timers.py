"""Timers of keys, each with a payload. They live in the key's bin and move with it."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from meander.errors import InvalidOption
from meander.route.keys import Keys, KeyType
from meander.state.spec import TableSpec
from meander.state.table import Table

Words = NDArray[np.int64]

TIME = "time"
TIME_TYPE = pa.timestamp("us", tz="UTC")


class Timers:
    """The timers of keys, as one batch sees them: at most one for each key and time."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.key = KeyType(table.spec.key.fields[:-1], table.spec.key.leading)

    @staticmethod
    def spec(name: str, key: KeyType, payload: tuple[tuple[str, pa.DataType], ...] = ()) -> TableSpec:
        """The table of timers with this payload."""
        if TIME in (*key.names, *dict(payload)):
            raise InvalidOption(f"timers {name!r} keep the column name {TIME!r} for when they fire; rename yours")
        leading = len(key.fields) if key.leading is None else key.leading
        return TableSpec(name, KeyType((*key.fields, (TIME, TIME_TYPE)), leading), payload, TIME)

    def set(self, time: pa.Array | Words | int, keys: Keys, payload: pa.Table | pa.RecordBatch | None = None) -> None:
        """Set a timer for each key at its time (microseconds or timestamps); an existing one gets the new payload."""
        rows = self.table.touch(self._timed(time, keys))
        for name, type_ in self.table.spec.values:
            column = pa.nulls(len(keys), type_) if payload is None else payload.column(name)
            self.table.set(name, rows, column)
        self.table.mark(rows)

    def cancel(self, time: pa.Array | Words | int, keys: Keys) -> None:
        """Forget the timer of each key at its time, if there is one."""
        rows = self.table.touch(self._timed(time, keys))
        self.table.discard(rows[self.table.present[rows]])

    def due(self, upto: int) -> pa.Table:
        """The timers before `upto` (microseconds), by time, then by key: the key's columns, time, the payload's."""
        return self._shown(self.table.due(upto))

    def take(self, upto: int) -> pa.Table:
        """The timers before `upto`, as `due` has them, and forget them: each fires once."""
        rows = self.table.due(upto)
        shown = self._shown(rows)
        self.table.discard(rows)
        return shown

    def _shown(self, rows: Words) -> pa.Table:
        keys = dict(zip(self.table.spec.key.names, self.table.keys(rows), strict=True))
        return pa.table(keys | {name: self.table.get(name, rows) for name, _ in self.table.spec.values})

    def _timed(self, time: pa.Array | Words | int, keys: Keys) -> Keys:
        if isinstance(time, int):
            time = np.full(len(keys), time, np.int64)
        if not isinstance(time, pa.Array | pa.ChunkedArray):
            time = pa.array(np.asarray(time, np.int64))
        if len(time) != len(keys):
            raise InvalidOption(f"{len(time)} times are given for {len(keys)} keys")
        return self.table.spec.key.encode([*self.key.decode(keys), time.cast(TIME_TYPE)])
