"""State as plain tables, from the checkpoint alone: snapshots and deltas put together with Arrow, the last row wins."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
from pyarrow import compute as pc

from meander.checkpoint.files import read_state
from meander.checkpoint.index import Index
from meander.checkpoint.location import Location
from meander.state.spec import BIN, DELETED

_ROW = "meander row"
_GROUP_BYTES = 128 << 20


def rebuild(location: Location, index: Index, operator: int, table: str, key: Sequence[str]) -> Iterator[pa.Table]:
    """Return the rows of one state table, sorted by bin and key, a group of bins at a time.

    Args:
        location: the checkpoint.
        index: the index of the wanted version.
        operator: the number of the operator.
        table: the name of its table.
        key: the names of the table's key columns.
    """
    if not index.operators:
        return
    bins = index.operators[operator].bins
    stored = sum(file.bytes for file in index.files(operator))
    groups = min(bins, max(1, -(-stored // _GROUP_BYTES)))
    for wanted in np.array_split(np.arange(bins), groups):
        pieces = []
        for part in index.parts(operator, wanted.tolist()):
            rows = read_state(location, part.file, part.bins).get(table)
            if rows is not None:
                pieces.append(rows)
        if pieces:
            yield _newest(pa.concat_tables(pieces), key)


def _newest(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    """The last row of each key, unless it deletes the key."""
    numbered = rows.select(list(key)).append_column(_ROW, pa.array(np.arange(rows.num_rows)))
    last = numbered.group_by(list(key)).aggregate([(_ROW, "max")]).column(f"{_ROW}_max")
    latest = rows.take(last)
    live = latest.filter(pc.invert(latest.column(DELETED))).drop_columns([DELETED])
    live = live.sort_by([(BIN, "ascending"), *((name, "ascending") for name in key)])
    if "bin" in live.column_names:
        return live
    return live.rename_columns(["bin" if name == BIN else name for name in live.column_names])
