"""An inner join of two streams by their key, without end: each row meets all of the other side, past and to come."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

import meander as me


def joining(key: str, left: str, right: str, shown: str) -> type[me.Operator]:
    """The operator that emits every pair of rows with the same key, once, as soon as both are there.

    `key` is the one column that both sides have, first; `left` and `right` are their others, and `shown` those of all
    these that come out. Every row is kept for ever, as SQL wants it, because a partner may still come. So none is late.
    """
    names = [column.split()[0] for column in shown.split(", ")]

    class Joining(me.Operator):
        input = (f"{key}, {left}", f"{key}, {right}")
        output = shown
        state = {  # noqa: RUF012
            "left": me.Multimap(key=key, value=left),
            "right": me.Multimap(key=key, value=right),
        }
        ordered = False

        def on_batch(self, left: pa.RecordBatch, right: pa.RecordBatch, state: Any, now: Any) -> pa.Table:
            at, before = state["left"].get(right.column(0))
            state["right"].append(right.column(0), right)
            of, others = state["right"].get(left.column(0))
            state["left"].append(left.column(0), left)
            return pa.concat_tables([_pairs(names, before, right, at), _pairs(names, others, left, of)])

    return Joining


def _pairs(names: list[str], kept: pa.RecordBatch, rows: pa.RecordBatch, at: Any) -> pa.Table:
    """These columns of what was kept and of the row `at` which each of it met."""
    met = rows.take(pa.array(at))
    return pa.table({name: (met if name in met.schema.names else kept)[name] for name in names})
