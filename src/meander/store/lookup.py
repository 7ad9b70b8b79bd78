"""Which rows of a state table are wanted, such as `user = 'u1' AND day = 7`, and the bins that can hold them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyarrow import compute as pc

from meander.errors import InvalidOption
from meander.route.keys import KeyType
from meander.types import BinId

_EQUAL = re.compile(
    r"\s*(?P<name>`(?:[^`]|``)+`|\w+)\s*=\s*(?P<value>'(?:[^']|'')*'|[+-]?\d+(?:\.\d+)?|true|false)\s*", re.IGNORECASE
)
_AND = re.compile(r"and\b", re.IGNORECASE)
_PLAIN = {
    str(kind): kind
    for kind in (
        pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.date32(), pa.string(),
        pa.binary(), pa.timestamp("us"),
    )
}  # fmt: skip
_ZONED = re.compile(r"timestamp\[us, tz=(.+)\]")
_DECIMAL = re.compile(r"decimal128\((\d+), (-?\d+)\)")


@dataclass(frozen=True)
class Equal:
    """The rows in which a column has a value."""

    column: str
    value: Any


def conditions(text: str) -> tuple[Equal, ...]:
    """The conditions of a text: columns that equal values, with AND between them.

    >>> conditions("user = 'o''neill' AND day = 7")
    (Equal(column='user', value="o'neill"), Equal(column='day', value=7))
    """
    equals, at = [], 0
    while match := _EQUAL.match(text, at):
        name = match["name"]
        column = name[1:-1].replace("``", "`") if name.startswith("`") else name
        equals.append(Equal(column, _value(match["value"])))
        at = match.end()
        if at == len(text):
            return tuple(equals)
        joint = _AND.match(text, at)
        if joint is None:
            break
        at = joint.end()
    raise InvalidOption(
        f"{text!r} cannot be read as conditions; write column = value, with AND between several, such as user = 'u1'"
    )


def type_of(text: str) -> pa.DataType:
    """The type of a column of state, from its name in `meander.json`.

    >>> type_of("timestamp[us, tz=UTC]"), type_of("decimal128(10, 2)")
    (TimestampType(timestamp[us, tz=UTC]), Decimal128Type(decimal128(10, 2)))
    """
    if text in _PLAIN:
        return _PLAIN[text]
    if match := _ZONED.fullmatch(text):
        return pa.timestamp("us", tz=match[1])
    if match := _DECIMAL.fullmatch(text):
        return pa.decimal128(int(match[1]), int(match[2]))
    raise InvalidOption(f"a state column of type {text} is not known to this version of meander; use a later one")


def fields_of(table: Mapping[str, Any]) -> dict[str, pa.DataType]:
    """The columns of a state table as `meander.json` describes it, first those of its key."""
    return {name: type_of(kind) for name, kind in (*table["key"], *table["values"])}


def typed(wanted: Sequence[Equal], fields: Mapping[str, pa.DataType]) -> dict[str, pa.Scalar]:
    """The values of conditions in the types of their columns; refuses other columns, and values that do not fit."""
    values: dict[str, pa.Scalar] = {}
    for each in wanted:
        if each.column not in fields:
            raise InvalidOption(f"there is no column {each.column!r}; there are {', '.join(fields)}")
        if each.column in values:
            raise InvalidOption(f"the column {each.column!r} is in two conditions; give one")
        values[each.column] = _cast(each, fields[each.column])
    return values


def bins_of(values: Mapping[str, pa.Scalar], key: Sequence[tuple[str, pa.DataType]], bins: int) -> list[BinId] | None:
    """The bins in which rows with these values can be; None for all, where they leave a part of the key open.

    Args:
        values: by column.
        key: the columns that choose the bin.
        bins: how many bins there are.
    """
    if any(name not in values for name, _ in key):
        return None
    columns = [pa.array([values[name].as_py()], kind) for name, kind in key]
    return [BinId(int(each)) for each in KeyType(tuple(key)).encode(columns).bins(bins)]


def matching(rows: pa.Table, values: Mapping[str, pa.Scalar]) -> pa.Table:
    """The rows that have these values."""
    for name, value in values.items():
        rows = rows.filter(pc.equal(rows[name], value))
    return rows


def _value(text: str) -> str | int | float | bool:
    if text.startswith("'"):
        return text[1:-1].replace("''", "'")
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    return float(text) if "." in text else int(text)


def _cast(wanted: Equal, kind: pa.DataType) -> pa.Scalar:
    is_time = isinstance(wanted.value, str) and pa.types.is_timestamp(kind) and kind.tz is not None
    try:
        if is_time and not re.search(r"(Z|[+-]\d\d(:?\d\d)?)$", wanted.value[10:]):
            return pa.scalar(wanted.value).cast(pa.timestamp("us")).cast(kind)  # as Spark shows it: in UTC
        if isinstance(wanted.value, bool) != pa.types.is_boolean(kind):
            raise ValueError("one of them is a boolean")
        if pa.types.is_string(kind) and not isinstance(wanted.value, str):
            raise ValueError("put a text in quotes")
        return pa.scalar(wanted.value).cast(kind)
    except (pa.ArrowException, ValueError):
        shown = f"'{wanted.value}'" if isinstance(wanted.value, str) else wanted.value
        advice = ", in quotes" if not isinstance(wanted.value, str) and not pa.types.is_integer(kind) else ""
        raise InvalidOption(
            f"{wanted.column} = {shown} cannot be: the column is {kind}; give such a value{advice}"
        ) from None
