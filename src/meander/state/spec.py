"""The definition of a state table: its key, its value columns, and the column by which rows fall due."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from meander.errors import InvalidOption
from meander.route.columns import small
from meander.route.keys import KeyType

BIN, DELETED = "__bin", "__deleted"
"""The columns of a delta that are not the table's own."""

ALLOWED = (
    "state columns are boolean, tinyint, smallint, int, bigint, float, double, date, timestamp (of microseconds), "
    "decimal, string or binary"
)

_FIXED: dict[pa.DataType, np.dtype[Any]] = {
    pa.bool_(): np.dtype(np.bool_),
    pa.int8(): np.dtype(np.int8),
    pa.int16(): np.dtype(np.int16),
    pa.int32(): np.dtype(np.int32),
    pa.int64(): np.dtype(np.int64),
    pa.float32(): np.dtype(np.float32),
    pa.float64(): np.dtype(np.float64),
    pa.date32(): np.dtype(np.int32),
}


def dtype_of(type_: pa.DataType) -> np.dtype[Any] | None:
    """The NumPy type of a column of fixed width; None for texts, binaries and decimals, which are records of bytes."""
    if pa.types.is_timestamp(type_) and type_.unit == "us":
        return np.dtype(np.int64)
    return _FIXED.get(type_)


def is_record(type_: pa.DataType) -> bool:
    """Whether a value is a record of bytes."""
    return type_ in (pa.string(), pa.binary()) or bool(pa.types.is_decimal128(type_))


@dataclass(frozen=True)
class TableSpec:
    """One table: its name, its key, its value columns, all of which may be null, and what rows fall due by.

    `order` names a column of whole numbers, dates or timestamps, of the key or of the values; `due()` finds the rows
    in which it is below a limit without looking at the others.

    >>> clicks = TableSpec("clicks", KeyType((("user", pa.string()),)), (("n", pa.int64()),))
    >>> clicks.schema.names
    ['__bin', '__deleted', 'user', 'n']
    """

    name: str
    key: KeyType
    values: tuple[tuple[str, pa.DataType], ...] = ()
    order: str | None = None

    def __post_init__(self) -> None:
        if not self.name or not set(self.name) <= set("abcdefghijklmnopqrstuvwxyz0123456789_-") or len(self.name) > 64:
            raise InvalidOption(f"a table cannot be named {self.name!r}; take 1 to 64 of a-z, 0-9, _ and -")
        values = tuple((name, small(type_)) for name, type_ in self.values)
        object.__setattr__(self, "values", values)
        seen = {BIN, DELETED}
        for name, _ in self.key.fields + values:
            if name in seen:
                why = "has that name twice" if name not in (BIN, DELETED) else "keeps that name for itself"
                raise InvalidOption(f"column {name!r} cannot be in table {self.name!r}, which {why}; rename it")
            seen.add(name)
        for name, type_ in values:
            if dtype_of(type_) is None and not is_record(type_):
                raise InvalidOption(f"column {name!r} of type {type_} cannot be state; {ALLOWED}")
        if self.order is not None:
            type_ = dict(self.key.fields + values).get(self.order)
            dtype = None if type_ is None else dtype_of(type_)
            if dtype is None or dtype.kind != "i":
                was = "does not exist" if type_ is None else f"is {type_}"
                raise InvalidOption(
                    f"table {self.name!r} cannot be in order of {self.order!r}, which {was}; "
                    "name a column of whole numbers, dates or timestamps"
                )

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns of a delta: bin, deleted, the key's, the values'."""
        own = [pa.field(name, type_, nullable=False) for name, type_ in self.key.fields]
        fixed = [pa.field(BIN, pa.int32(), nullable=False), pa.field(DELETED, pa.bool_(), nullable=False)]
        return pa.schema(fixed + own + [pa.field(name, type_) for name, type_ in self.values])

    @cached_property
    def types(self) -> dict[str, pa.DataType]:
        """The type of each column, of the key and of the values."""
        return dict(self.key.fields + self.values)

    def value_at(self, name: str) -> int:
        """The position of a value column among the values; refuses other names."""
        for at, (each, _) in enumerate(self.values):
            if each == name:
                return at
        raise InvalidOption(f"table {self.name!r} has no value column {name!r}; it has {self._names()}")

    def key_at(self, name: str) -> int | None:
        """The position of a key column in the key; None for other names."""
        return self.key.names.index(name) if name in self.key.names else None

    def _names(self) -> str:
        return ", ".join(name for name, _ in self.values) or "none"
