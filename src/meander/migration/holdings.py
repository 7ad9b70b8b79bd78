"""Which bins each worker is believed to hold, by what it reported last. The belief may be wrong: workers check."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from meander.types import WorkerId

Bins = NDArray[np.bool_]


class Holdings:
    """The bins that workers have reported to hold, by operator."""

    def __init__(self) -> None:
        self._bins: dict[tuple[int, WorkerId], Bins] = {}

    def of(self, operator: int, worker: WorkerId) -> Bins | None:
        """The bins of an operator that a worker holds; None: nothing is known."""
        return self._bins.get((operator, worker))

    def report(self, operator: int, worker: WorkerId, bins: Bins) -> None:
        """Take what a worker has reported to hold."""
        self._bins[operator, worker] = bins

    def doubt(self, operator: int, worker: WorkerId) -> None:
        """Forget what a worker holds of an operator."""
        self._bins.pop((operator, worker), None)

    def forget(self, workers: Collection[WorkerId]) -> None:
        """Forget everything of these workers: they begin anew, or are gone."""
        self._bins = {at: bins for at, bins in self._bins.items() if at[1] not in workers}
