"""How much workers may copy ahead in a version, so that it takes hardly longer than those before it.

A worker that waits for the slowest one has that time for nothing. Beyond it, it may take a small share of what a
version takes. So a new worker copies most of the time, the slowest one hardly ever, and a query with long batches
moves more in each of them than one with short ones.
"""

from __future__ import annotations

import statistics
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from meander.engine.worker.messages import TaskReport
from meander.migration.orders import Orders, Share
from meander.migration.steps import COPY_BYTES
from meander.types import Bytes, WorkerId

COPY_SHARE = 0.15
"""Of the time of a version, what copying may add to it."""
UNMEASURED_MS = 100.0
FEWEST_MS = 20.0
MOST_MS = 5000.0
MOST_BYTES = 1 << 30
VERSIONS = 16
"""So many are looked back on."""
FEWEST_VERSIONS = 3
"""Before so many nothing is known: the first one of a run reads all state, and warms up."""


class CopyPace:
    """What the last versions say about the time that copying has, and about how fast it is."""

    def __init__(self) -> None:
        self._steady_ms: deque[float] = deque(maxlen=VERSIONS)
        self._copies: deque[tuple[float, float]] = deque(maxlen=VERSIONS)
        """Bytes and milliseconds of what was copied last."""
        self._own_ms: Mapping[Share, float] = {}
        """What each worker was busy with beside copying, by operator, in the last version with rows."""
        self._slowest_ms: Mapping[int, float] = {}

    def note(
        self,
        took_ms: float,
        reports: Sequence[TaskReport],
        orders: Orders,
        state_bytes: Callable[[], Sequence[NDArray[np.int64]]],
    ) -> None:
        """Take what was measured in a version that is committed; `state_bytes` is called where bins were copied."""
        busy_ms: dict[Share, float] = defaultdict(float)
        own_ms: dict[Share, float] = defaultdict(float)
        for each in reports:
            share, copy_ms = (each.operator, WorkerId(each.worker)), each.spent_ms.get("copy", 0.0)
            busy_ms[share] += each.spent_ms.get("busy", 0.0)
            own_ms[share] += each.spent_ms.get("busy", 0.0) - copy_ms
            ordered = orders.copied.get(share, ())
            if each.copied and ordered and copy_ms > 0:
                size = float(state_bytes()[each.operator][list(ordered)].mean()) * each.copied
                self._copies.append((size, copy_ms))
        if not any(each.rows for each in reports):
            return
        slowest = _most(own_ms)
        # What copying has added is not what a version takes: else every copy would allow a longer one.
        added = sum(_most(busy_ms).values()) - sum(slowest.values())
        self._steady_ms.append(max(0.0, took_ms - added))
        self._own_ms, self._slowest_ms = own_ms, slowest

    def allowed_ms(self, share: Share) -> float:
        """For how long a worker may copy for an operator in the next version."""
        if len(self._steady_ms) < FEWEST_VERSIONS:
            return UNMEASURED_MS
        spare = self._slowest_ms.get(share[0], 0.0) - self._own_ms.get(share, 0.0)
        extra = COPY_SHARE * statistics.median(self._steady_ms) / max(1, len(self._slowest_ms))
        return min(MOST_MS, max(FEWEST_MS, spare + extra))

    @property
    def bytes(self) -> Bytes:
        """How much a worker can copy in the time that all have: more than that need not be asked of it."""
        size, spent_ms = (sum(each) for each in zip(*self._copies, strict=True)) if self._copies else (0.0, 0.0)
        if not spent_ms:
            return COPY_BYTES
        longest = max([self.allowed_ms(share) for share in self._own_ms], default=UNMEASURED_MS)
        return int(min(MOST_BYTES, max(COPY_BYTES, size / spent_ms * longest)))


def _most(by_share: Mapping[Share, float]) -> dict[int, float]:
    """The largest figure of each operator."""
    largest: dict[int, float] = defaultdict(float)
    for (operator, _), each in by_share.items():
        largest[operator] = max(largest[operator], each)
    return largest
