"""Loading everything a task needs before the first one comes: imports and compiled kernels."""

from __future__ import annotations

import functools


@functools.cache
def warm() -> None:
    """Run a tiny batch through a keyed table, in memory, with each kind of key."""
    import pyarrow as pa

    from meander.operators.count import Count
    from meander.operators.operator import Now
    from meander.state.table import Table

    for keys in (pa.array([1, 2, 1], pa.int64()), pa.array(["a", "b", "a"])):
        rows = pa.table({"key": keys})
        stage = Count(rows.schema, ["key"])
        tables = {spec.name: Table(None, spec, 4) for spec in stage.tables}
        stage.run(rows, stage.key.encode([rows["key"]]), tables, Now(0))
        for table in tables.values():
            table.delta()
