"""Loading everything a task needs before the first one comes: imports and compiled kernels."""

from __future__ import annotations

import functools


@functools.cache
def warm() -> None:
    """Take a tiny batch through all that a worker does, with each kind of key, in a folder that is thrown away."""
    import tempfile
    from pathlib import Path

    import numpy as np
    import pyarrow as pa

    from meander.checkpoint import statefile
    from meander.operators.count import Count
    from meander.operators.operator import Now
    from meander.state.holding import Holding

    with tempfile.TemporaryDirectory(prefix="meander-warm-") as folder:
        for name, keys in (("words", pa.array([1, 2, 1], pa.int64())), ("bytes", pa.array(["a", "b", "a"]))):
            rows = pa.table({"key": keys})
            operator = Count(rows.schema, ["key"])
            holding = Holding.open(Path(folder) / name, operator.tables, 4)
            holding.install(np.arange(4), [], -1)
            for version in range(2):
                tables = holding.begin()
                operator.run(rows, operator.key.encode([rows["key"]]), tables, Now(version))
                deltas = {each: table.delta() for each, table in tables.items()}
                statefile.read(statefile.write(deltas, 4).data)
                holding.advance(version, deltas)
            holding.extract(np.arange(4))
            holding.close()
