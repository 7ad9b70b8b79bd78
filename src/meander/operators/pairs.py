"""Candidate pairs of a join, with columns that are read on demand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from meander.errors import InvalidOption
from meander.operators.operator import listing
from meander.operators.ordering import Flags, Words
from meander.options import kind
from meander.route.columns import whole_column

Where: TypeAlias = "Callable[[Pairs], Any] | pc.Expression"

Reader: TypeAlias = Callable[[Words], pa.Array]


class Pairs:
    """Pairs of rows, with the columns of the join's output: `pairs["x"]` is one of them.

    A column is built when it is first read: a condition mostly reads few of the columns, and keeps few of the pairs.
    """

    def __init__(self, schema: pa.Schema, readers: Mapping[str, tuple[Reader, int]], rows: tuple[Words, Words]) -> None:
        self.schema, self.rows = schema, rows
        self._readers = readers
        self._read: dict[str, pa.Array] = {}

    @property
    def num_rows(self) -> int:
        """How many pairs there are."""
        return self.rows[0].size

    @property
    def column_names(self) -> list[str]:
        """The names of the columns."""
        return list(self.schema.names)

    def __getitem__(self, name: str) -> pa.Array:
        """A column, by its name."""
        if name not in self._readers:
            raise KeyError(f"there is no column {name!r} in the pairs; there are: {listing(self.schema.names)}")
        if name not in self._read:
            read, side = self._readers[name]
            self._read[name] = read(self.rows[side])
        return self._read[name]

    column = __getitem__

    def table(self) -> pa.Table:
        """All columns."""
        return pa.Table.from_arrays([self[name] for name in self.schema.names], schema=self.schema)

    def only(self, kept: Flags) -> Pairs:
        """The marked pairs."""
        at = np.flatnonzero(kept)
        if at.size == kept.size:
            return self
        return Pairs(self.schema, self._readers, (self.rows[0][at], self.rows[1][at]))


def check_where(where: object, output: pa.Schema) -> None:
    """Refuse a condition that is neither a function nor an expression over these columns."""
    if where is None or callable(where):
        return
    if not isinstance(where, pc.Expression):
        raise InvalidOption(f"where is {kind(where)}; give a function of pairs, or an expression of pyarrow.compute")
    try:
        output.empty_table().filter(where)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowKeyError, pa.ArrowTypeError) as error:
        reason = str(error).partition("\n")[0]
        raise InvalidOption(f"where cannot be used: {reason}; the columns are {listing(output.names)}") from None


def kept_by(where: Where, pairs: Pairs) -> Flags:
    """Which pairs a condition lets through; null is no."""
    if isinstance(where, pc.Expression):
        return _kept_by_expression(where, pairs)
    answer = where(pairs)
    if isinstance(answer, pa.Array | pa.ChunkedArray):
        answer = whole_column(answer)
        answer = (answer.fill_null(False) if pa.types.is_boolean(answer.type) else answer).to_numpy(
            zero_copy_only=False
        )
    kept = np.asarray(answer)
    if kept.dtype != np.bool_ or kept.shape != (pairs.num_rows,):
        raise InvalidOption(
            f"where returned {kept.dtype} of shape {kept.shape} for {pairs.num_rows} pairs; return one boolean each"
        )
    return kept


def _kept_by_expression(where: pc.Expression, pairs: Pairs) -> Flags:
    # The text of an expression has the names of all its fields, and one too many only costs time; a field may also be
    # meant by its place among all.
    text = str(where)
    names = [name for name in pairs.column_names if name in text or "FieldPath" in text]
    number = "_".join(["", *pairs.column_names])
    table = pa.table([pairs[name] for name in names] + [pa.array(np.arange(pairs.num_rows))], [*names, number])
    kept = np.zeros(pairs.num_rows, np.bool_)
    kept[table.filter(where)[number].to_numpy()] = True
    return kept
