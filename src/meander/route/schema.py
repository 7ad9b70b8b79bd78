"""Schemas from text: "user string, ts timestamp, gap_s double", in Spark's DDL, as Arrow types.

The types are those in which Spark hands over such columns, so that declared and arriving schemas are equal.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NoReturn

import pyarrow as pa

from meander.errors import InvalidOption

MOST_DIGITS = 38
"""The precision that a decimal may have."""

DEEPEST = 50
"""How deep arrays, maps and structs may be nested."""

_PLAIN: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "byte": pa.int8(),
    "smallint": pa.int16(),
    "short": pa.int16(),
    "int": pa.int32(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "long": pa.int64(),
    "float": pa.float32(),
    "real": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ltz": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}

KNOWN = (
    "the types are boolean, tinyint, smallint, int, bigint, float, double, string, binary, date, timestamp, "
    "timestamp_ntz, decimal(p,s), array<..>, map<..,..> and struct<name:type,..>"
)

_MARKS = frozenset("<>(),:")
_PIECE = re.compile(r"\s*(?:(?P<quoted>`(?:[^`]|``)+`)|(?P<word>\w+)|(?P<mark>[<>(),:]))")


def schema(ddl: str) -> pa.Schema:
    """Return the Arrow schema of columns that are written as in Spark; a blank text has no columns.

    Types may be in any case, names may stand in backquotes, and a column may be null unless it says `not null`.

    >>> schema("user string not null, ts timestamp, `the gap` double").names
    ['user', 'ts', 'the gap']
    """
    if not isinstance(ddl, str):
        raise InvalidOption(f"a schema is a text such as 'user string, ts timestamp', not {ddl!r}")
    return _Reader(ddl).schema()


class _Reader:
    def __init__(self, ddl: str) -> None:
        self.ddl = ddl
        self.pieces = self._cut()
        self.at = 0
        self.depth = 0

    def schema(self) -> pa.Schema:
        if not self.pieces:
            return pa.schema([])
        fields = self._columns()
        if self._next() is not None:
            self._refuse("was not expected; separate columns by commas")
        return pa.schema(fields)

    def _cut(self) -> list[str]:
        pieces, end = [], 0
        text = self.ddl.rstrip()
        while end < len(text):
            match = _PIECE.match(text, end)
            if match is None:
                rest = text[end:].lstrip()
                advice = "close the backquote" if rest.startswith("`") else "put names with such signs in backquotes"
                raise InvalidOption(f"{rest.split()[0]!r} in the schema {self.ddl!r} cannot be read; {advice}")
            pieces.append(match[0].strip() if match["quoted"] is None else match["quoted"])
            end = match.end()
        return pieces

    def _next(self) -> str | None:
        return self.pieces[self.at] if self.at < len(self.pieces) else None

    def _skip(self, mark: str) -> bool:
        is_next = (self._next() or "").lower() == mark
        self.at += is_next
        return is_next

    def _expect(self, mark: str, what: str) -> None:
        if not self._skip(mark):
            self._refuse(f"stands where {mark!r} {what} was expected; write {mark!r} before it")

    def _refuse(self, why: str) -> NoReturn:
        piece = self._next()
        if piece is None:
            last = self.pieces[-1]
            raise InvalidOption(f"the schema {self.ddl!r} ends too early, after {last!r}; write it as 'user string'")
        raise InvalidOption(f"{piece!r} in the schema {self.ddl!r} {why}")

    def _columns(self) -> list[pa.Field]:
        fields: list[pa.Field] = []
        while True:
            start = self.at
            field = self._column()
            if field.name in {each.name for each in fields}:
                self.at = start
                self._refuse("is there twice; name each column once")
            fields.append(field)
            if not self._skip(","):
                return fields

    def _column(self) -> pa.Field:
        name = self._next()
        if name is None or name in _MARKS:
            self._refuse("stands where a name was expected; write columns as 'user string'")
        self.at += 1
        if name.startswith("`"):
            name = name[1:-1].replace("``", "`")
        self._skip(":")
        type_ = self._type(name)
        nullable = not self._skip("not")
        if not nullable:
            self._expect("null", "after 'not'")
        return pa.field(name, type_, nullable=nullable)

    def _type(self, name: str | None = None) -> pa.DataType:
        word = (self._next() or "").lower()
        if word in _PLAIN:
            self.at += 1
            return _PLAIN[word]
        nested: dict[str, Callable[[], pa.DataType]] = {"array": self._array, "map": self._map, "struct": self._struct}
        if word in ("decimal", "dec", "numeric"):
            return self._decimal()
        if word not in nested:
            stands = f"stands where the type of {name!r}" if name else "stands where a type"
            self._refuse(f"{stands} was expected; {KNOWN}" if word in {*_MARKS, "not"} else f"is no type; {KNOWN}")
        self.depth += 1
        if self.depth > DEEPEST:
            self._refuse(f"stands more than {DEEPEST} types deep; make the type flatter")
        self.at += 1
        self._expect("<", f"after {word!r}")
        type_ = nested[word]()
        self._expect(">", f"at the end of {word!r}")
        self.depth -= 1
        return type_

    def _array(self) -> pa.DataType:
        return pa.list_(pa.field("element", self._type()))

    def _map(self) -> pa.DataType:
        key = self._type()
        self._expect(",", "after the key's type")
        return pa.map_(key, self._type())

    def _struct(self) -> pa.DataType:
        return pa.struct([] if self._next() == ">" else self._columns())

    def _decimal(self) -> pa.DataType:
        self.at += 1
        if not self._skip("("):
            return pa.decimal128(10, 0)
        precision = self._digits("precision", 1, MOST_DIGITS)
        scale = self._digits("scale", 0, precision) if self._skip(",") else 0
        self._expect(")", "at the end of 'decimal'")
        return pa.decimal128(precision, scale)

    def _digits(self, what: str, least: int, most: int) -> int:
        piece = self._next() or ""
        if not (piece.isascii() and piece.isdigit() and len(piece) < 4 and least <= int(piece) <= most):
            self._refuse(f"is no {what} of a decimal; it must be from {least} to {most}")
        self.at += 1
        return int(piece)
