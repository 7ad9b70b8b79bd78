"""Which bin a failure comes from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from meander.operators.operator import BinnedOperator, Now
from meander.types import BinId

if TYPE_CHECKING:
    from meander.route.keys import Keys
    from meander.state.table import Table


def failing_bin(
    operator: BinnedOperator, rows: pa.Table, keys: Keys, fresh: Callable[[], Mapping[str, Table]], now: Now, bins: int
) -> BinId | None:
    """The first bin that alone makes the operator fail, or None where every bin alone goes well.

    `fresh` gives the tables as they were before the batch; each is used once, so nothing of the search remains.
    """
    of_row = keys.bins(bins)
    due = operator.due_bins(fresh(), now)
    for each in np.union1d(of_row, due):
        at = np.flatnonzero(of_row == each)
        bin_ = BinId(int(each))
        try:
            operator.only(bin_).run(rows.take(pa.array(at)), keys.take(at), fresh(), now)
        except Exception:
            return bin_
    return None
