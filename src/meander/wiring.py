"""How operators take the rows of streams that have a key: their inputs, with the columns that have to be computed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from meander.engine.spark.nodes import Branch, NodeInput, OperatorNode
from meander.errors import InvalidOption
from meander.operators.operator import ALL, BinnedOperator
from meander.sources import UNDECODED, PairSource, RowSource, as_side, check_of_one_kind, undecoded

if TYPE_CHECKING:
    from meander.keyed import KeyedStream
    from meander.streams import Stream


def with_operator(
    keyed: KeyedStream, build: Callable[[pa.Schema], BinnedOperator], columns: Sequence[str] | None = None
) -> Stream:
    """Add an operator that reads the key and these columns; None: all of them."""
    schema = keyed_schema(keyed)
    inner = build(schema)
    if columns is not None:
        wanted = {*keyed.key, *columns}
        inner = build(pa.schema([each for each in schema if each.name in wanted]))
    return keyed.stream.behind(OperatorNode(inner, inputs_of(keyed)))


def inputs_of(keyed: KeyedStream, side: int | None = None) -> tuple[NodeInput, ...]:
    """The rows of a stream as an operator takes them, or as one of its two inputs."""
    return tuple(
        NodeInput(branch, keyed.key, side, dict(keyed.columns), None if branch.is_emitted else undecoded(branch.origin))
        for branch in keyed.stream.branches
    )


def keyed_schema(keyed: KeyedStream) -> pa.Schema:
    """The columns of the rows, with those of the key that have to be computed."""
    stream, columns = keyed.stream, keyed.columns
    if not columns:
        return stream.schema
    kept = [each for each in stream.schema if each.name not in columns]
    if isinstance(stream.source, RowSource):
        unfit = [name for name in columns if name != ALL]
        if unfit:
            raise InvalidOption(
                f"the key {unfit[0]!r} is an expression of Spark; in a test without Spark, key by a column"
            )
        return pa.schema([*kept, pa.field(ALL, pa.int32())])
    return stream.rows.with_columns(columns, "an expression")


def over_both(both: Sequence[KeyedStream], schemas: Sequence[pa.Schema], inner: BinnedOperator) -> Stream:
    """An operator with two inputs; the rows of two sources come as one stream, with one shuffle."""
    left, right = (each.stream for each in both)
    check_of_one_kind(left.source, right.source)
    if left.is_emitted or right.is_emitted:
        return left.behind(OperatorNode(inner, (*inputs_of(both[0], 0), *inputs_of(both[1], 1))))
    keys = (both[0].key, both[1].key)
    if isinstance(left.source, RowSource) and isinstance(right.source, RowSource):
        pair = PairSource(inner.input, (schemas[0], schemas[1]), keys, (left.source, right.source))
        return left.behind(OperatorNode(inner, (NodeInput(Branch(pair), keys[0]),)))
    from pyspark.sql import functions as F

    reasons = [undecoded(each.source) for each in (left, right)]
    frames = [as_side(each.stream.source, each.columns, at, schemas, reasons) for at, each in enumerate(both)]
    source = frames[0].unionAll(frames[1])
    keyed = {
        mine: F.coalesce(F.col(f"`left.{mine}`"), F.col(f"`right.{other}`"))
        for mine, other in zip(*keys, strict=True)
    }  # fmt: skip
    bad = F.col(f"`{UNDECODED}`") if UNDECODED in source.columns else None
    return left.behind(OperatorNode(inner, (NodeInput(Branch(source), keys[0], None, keyed, bad),)))
