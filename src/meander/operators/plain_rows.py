"""Rows as plain Python: columns as lists, rows as named tuples, and rows that a function gives as Arrow columns."""

from __future__ import annotations

import gc
from collections import namedtuple
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache, partial
from numbers import Number
from types import GeneratorType
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa

from meander.errors import MeanderError
from meander.operators.conform import conform
from meander.operators.operator import listing
from meander.options import kind
from meander.pictures import many
from meander.route.columns import whole_column, words_of
from meander.state.frames import is_frame, table_of_frames

EPOCH = datetime(1970, 1, 1)


@lru_cache(maxsize=64)
def row_type(names: tuple[str, ...]) -> type[Any]:
    """The type of rows of these columns: a named tuple, that takes a column's name in brackets too.

    >>> row = row_type(("user", "the page"))("ann", "home")
    >>> row.user, row["the page"], row[0]
    ('ann', 'home', 'ann')
    """
    # A name that Python cannot have as an attribute is reached in brackets alone.
    base: Any = namedtuple("Row", names, rename=True)  # type: ignore[misc]
    places = {name: at for at, name in enumerate(names)}

    def item(self: tuple[Any, ...], at: Any) -> Any:
        if isinstance(at, str):
            if at not in places:
                raise MeanderError(f"a row has no column {at!r}; the columns are {listing(names)}")
            at = places[at]
        return tuple.__getitem__(self, at)

    return type("Row", (base,), {"__slots__": (), "__getitem__": item, "__fields__": names})


def values_of(column: pa.Array | pa.ChunkedArray) -> list[Any]:
    """The values of a column as Python has them; times are datetimes, in UTC where the type has a zone."""
    whole = whole_column(column)
    if not pa.types.is_timestamp(whole.type) or whole.type.unit != "us":
        return list(whole.to_pylist())
    # Arrow looks the zone up for every value, which takes fifty times as long.
    epoch = EPOCH if whole.type.tz is None else EPOCH.replace(tzinfo=UTC)
    if not whole.null_count:
        return [epoch + since for since in words_of(whole).view("m8[us]").tolist()]
    has = whole.is_valid().to_pylist()
    words = np.where(has, words_of(whole), 0)
    return [
        epoch + since if is_there else None for since, is_there in zip(words.view("m8[us]").tolist(), has, strict=True)
    ]


def plain_rows(rows: pa.Table) -> list[Any]:
    """The rows of a table as named tuples."""
    build = partial(tuple.__new__, row_type(tuple(rows.column_names)))
    # Many new tuples would start Python's search for cycles again and again, which takes longer than making them.
    was_on = gc.isenabled()
    gc.disable()
    try:
        return list(map(build, zip(*map(values_of, rows.columns), strict=True)))
    finally:
        if was_on:
            gc.enable()


class Given:
    """What the calls of a function gave, one after the other: rows, and tables of rows."""

    def __init__(self, who: str) -> None:
        self.who = who
        self.items: list[Any] = []

    def add(self, answer: Any) -> None:
        """Take what one call yields or returns: rows, a table, or None for nothing."""
        if answer is None:
            return
        if isinstance(answer, GeneratorType | list):
            self.items.extend(answer)
        elif _is_table(answer):
            self.items.append(answer)
        elif isinstance(answer, str | bytes | Mapping) or not isinstance(answer, Iterable):
            raise MeanderError(f"{self.who} returned {kind(answer)}; yield rows, or return a list of them")
        else:
            self.items.extend(answer)


def table_of(who: str, items: Sequence[Any], schema: pa.Schema) -> pa.Table | None:
    """What a function gave, as one table of exactly these columns: rows, or tables and frames of rows; None for none.

    A row is a dictionary, a named tuple, or a tuple or list in the order of the columns.
    """
    if not items:
        return None
    kinds = set(map(type, items))
    if kinds <= {tuple, list, dict} or not any(map(_is_table, items)):
        tables, rows = [], items
    else:
        frames = [each for each in items if is_frame(each)]
        tables = [each for each in items if isinstance(each, pa.Table | pa.RecordBatch)] + table_of_frames(frames)
        rows = [each for each in items if not _is_table(each)]
    parts = [conform(who, each, schema) for each in _alike(tables)]
    if rows:
        columns = zip(*_in_order(who, rows, schema.names), strict=True)
        arrays = [array_of(f"{who} gave", f.name, c, f.type, f.nullable) for f, c in zip(schema, columns, strict=True)]
        parts.append(pa.Table.from_arrays(arrays, schema=schema))
    whole = parts[0] if len(parts) == 1 else pa.concat_tables(parts)
    return whole if whole.num_rows else None


def array_of(what: str, name: str, values: Sequence[Any], type_: pa.DataType, nullable: bool = True) -> pa.Array:
    """The values as a column of this type; names the column and both types where one does not fit.

    `what` is the beginning of the sentence: who gave them.
    """
    if _is_unsafe(values, type_):
        _refuse(what, name, values, type_)
    try:
        column = pa.array(values, type_)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        _refuse(what, name, values, type_)
    if column.null_count and not nullable:
        raise MeanderError(f"{what} null in column {name!r}, which is declared as not null")
    return column


def _refuse(what: str, name: str, values: Sequence[Any], type_: pa.DataType) -> NoReturn:
    for value in values:
        try:
            is_bad = _is_unsafe([value], type_)
            pa.array([value], type_)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            is_bad = True
        if is_bad:
            raise MeanderError(
                f"{what} a value of type {type(value).__name__} in column {name!r} that cannot become {type_}; convert "
                "it, or declare the column otherwise"
            ) from None
    raise MeanderError(f"{what} values in column {name!r} that do not make a column of {type_}; convert them")


def _is_unsafe(values: Sequence[Any], type_: pa.DataType) -> bool:
    """Whether Arrow would silently make other values of them: cut off fractions and hours, take numbers as times."""
    kinds = set(map(type, values))
    if pa.types.is_integer(type_):
        odd = kinds - {int, bool, type(None)}
        return bool(odd) and not all(_is_whole(value) for value in values if type(value) in odd)
    if pa.types.is_date(type_) and any(issubclass(kind, datetime) for kind in kinds):
        return True
    return bool(pa.types.is_temporal(type_)) and any(issubclass(kind, Number) for kind in kinds)


def _is_whole(value: Any) -> bool:
    try:
        return bool(int(value) == value)
    except (TypeError, ValueError, OverflowError):
        return False


def _in_order(who: str, rows: Sequence[Any], names: Sequence[str]) -> Iterable[Sequence[Any]]:
    """The values of each row in the order of the columns."""
    kinds = set(map(type, rows))
    if kinds <= {tuple, list}:
        if set(map(len, rows)) != {len(names)}:
            wrong = next(row for row in rows if len(row) != len(names))
            raise MeanderError(f"{who} gave a row of {many(len(wrong), 'value')}; its columns are {listing(names)}")
        return rows
    orders: dict[Any, Callable[[Any], Sequence[Any]]] = {}
    ordered: list[Sequence[Any]] = []
    for row in rows:
        given = _names_of(row)
        if given is None and not isinstance(row, tuple | list):
            raise MeanderError(
                f"{who} gave {kind(row)} where a row belongs; yield rows, or return a list of them, each a dictionary "
                f"or a tuple of {listing(names)}"
            )
        if given is None:
            ordered += _in_order(who, [tuple(row)], names)
            continue
        order = orders.get(given)
        if order is None:
            order = orders[given] = _order(who, given, names)
        ordered.append(order(row.values() if isinstance(row, dict) else row))
    return ordered


def _order(who: str, given: tuple[Any, ...], names: Sequence[str]) -> Callable[[Any], Sequence[Any]]:
    """A function that puts values of these names into the order of the columns."""
    for name in names:
        if name not in given:
            raise MeanderError(f"{who} gave a row without {name!r}; its columns are {listing(names)}")
    for name in given:
        if name not in names:
            raise MeanderError(
                f"{who} gave a row with {name!r}, which is not declared; its columns are {listing(names)}"
            )
    if given == tuple(names):
        return tuple
    places = [given.index(name) for name in names]

    def order(values: Iterable[Any]) -> list[Any]:
        whole = tuple(values)
        return [whole[at] for at in places]

    return order


def _names_of(row: Any) -> tuple[Any, ...] | None:
    """The names of a row's values: of a dictionary, a named tuple, or a row of Spark; None where it has none."""
    if isinstance(row, dict):
        return tuple(row)
    names = getattr(row, "__fields__", None) or getattr(row, "_fields", None) if isinstance(row, tuple) else None
    return None if names is None else tuple(names)


def _alike(tables: Sequence[pa.Table | pa.RecordBatch]) -> list[pa.Table]:
    """The rows of many small tables as few: one for those of the same columns and types."""
    alike: dict[pa.Schema, list[pa.Table]] = {}
    for each in tables:
        table = pa.Table.from_batches([each]) if isinstance(each, pa.RecordBatch) else each
        bare = table.schema.remove_metadata()
        alike.setdefault(bare, []).append(table.replace_schema_metadata())
    return [pa.concat_tables(each) for each in alike.values()]


def _is_table(value: object) -> bool:
    return isinstance(value, pa.Table | pa.RecordBatch) or is_frame(value)
