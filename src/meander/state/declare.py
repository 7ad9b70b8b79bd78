"""State as a user declares it, and its views in `on_batch`.

    state = {"last": me.KeyedTable(key="user string", value="ts timestamp, page string")}

A declaration names the tables it needs (`specs`) and builds the view `state["last"]` over the tables of a batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from meander.errors import InvalidOption
from meander.route.keys import KeyType
from meander.route.schema import schema
from meander.state.spans import COUNT, NUMBER
from meander.state.spec import TableSpec
from meander.state.table import Table
from meander.state.views import TIME, TIME_TYPE, KeyedView, MultimapView, TimersView


@dataclass(frozen=True)
class KeyedTable:
    """One row of values for each key. `key` and `value` are columns in Spark's words: "user string, n bigint"."""

    key: str
    value: str

    def __post_init__(self) -> None:
        self.specs("checked")

    def specs(self, name: str, leading: int | None = None) -> tuple[TableSpec, ...]:
        """The table of this name; the first `leading` columns of the key choose the bin (None: all)."""
        return (TableSpec(name, _key(self.key, leading), _columns(self.value)),)

    def view(self, name: str, tables: Mapping[str, Table]) -> KeyedView:
        """What the user sees of it."""
        return KeyedView(tables[name])


@dataclass(frozen=True)
class Multimap:
    """Many rows of values for each key; `time` names the column of values by which they grow old, if they do."""

    key: str
    value: str
    time: str | None = None

    def __post_init__(self) -> None:
        self.specs("checked")

    def specs(self, name: str, leading: int | None = None) -> tuple[TableSpec, ...]:
        """The tables of this name; the first `leading` columns of the key choose the bin (None: all)."""
        values = _columns(self.value)
        if self.time is not None and self.time not in dict(values):
            raise InvalidOption(f"time is {self.time!r}, no column of the value {self.value!r}; name one of it")
        key = _key(self.key, leading)
        heads = TableSpec(f"{name}-heads", key, ((COUNT, pa.int64()),))
        return heads, TableSpec(name, key.extended((NUMBER, pa.int64())), values, self.time)

    def view(self, name: str, tables: Mapping[str, Table]) -> MultimapView:
        """What the user sees of it."""
        return MultimapView(tables[f"{name}-heads"], tables[name])


@dataclass(frozen=True)
class Timers:
    """Timers for keys, each with a payload; at most one for each key and time."""

    key: str
    payload: str = ""

    def __post_init__(self) -> None:
        self.specs("checked")

    def specs(self, name: str, leading: int | None = None) -> tuple[TableSpec, ...]:
        """The table of this name; the first `leading` columns of the key choose the bin (None: all)."""
        key, payload = _key(self.key, leading), _columns(self.payload)
        if TIME in (*key.names, *dict(payload)):
            raise InvalidOption(f"timers {name!r} keep the column name {TIME!r} for when they fire; rename yours")
        return (TableSpec(name, key.extended((TIME, TIME_TYPE)), payload, TIME),)

    def view(self, name: str, tables: Mapping[str, Table]) -> TimersView:
        """What the user sees of it."""
        return TimersView(tables[name])


def _key(ddl: str, leading: int | None) -> KeyType:
    return KeyType.of(schema(ddl), leading)


def _columns(ddl: str) -> tuple[tuple[str, pa.DataType], ...]:
    return tuple((field.name, field.type) for field in schema(ddl))
