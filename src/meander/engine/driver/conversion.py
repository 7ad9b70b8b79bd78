"""State on its way to a new layout: which bins are written anew in a version, and how far that is.

A worker converts what it reads, so every version sees the newest layout alone. The files are written anew beside the
batches, by snapshots, at most a budget of bytes for each worker and version; what is not yet is converted again by
whoever reads it.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy

import numpy as np
from numpy.typing import NDArray

from meander.engine.worker.messages import Json
from meander.errors import ChangedQuery
from meander.logs import logger
from meander.migration.events import EventLog
from meander.operators.operator import BinnedOperator
from meander.pictures import many
from meander.store.design import Design
from meander.store.evolution import Evolution
from meander.store.index import Index
from meander.store.manifest import Log

Bins = NDArray[np.bool_]

MAX_VERSIONS = 64
"""It ends within so many versions, whatever the budget: as long as it lasts, Spark must not drop the way back."""


class StateConversion:
    """How far the state of a query is on its way to the layouts of its design."""

    def __init__(self, design: Design, log: Log, events: EventLog, copy_bytes: int, is_new: bool = False) -> None:
        self.design, self._log, self._events, self._copy_bytes = design, log, events, copy_bytes
        self._is_new = is_new
        self._left = self._unconverted()
        self._are_sizes_known = False
        self._began: int | None = log.index.way_back
        """The last version before it, once it has begun."""

    @property
    def is_open(self) -> bool:
        """Whether there is state in an older layout."""
        return any(bins.size for bins in self._left)

    @property
    def left(self) -> int:
        """How many bins have state in an older layout."""
        return sum(bins.size for bins in self._left)

    @property
    def commit(self) -> Design | None:
        """The design, where the next version is the first one that has it."""
        return self.design if self._is_new else None

    def layouts(self, operator: int) -> tuple[Json, ...]:
        """What a worker has to know to convert what it reads; nothing where all is converted."""
        if not self._left[operator].size:
            return ()
        return tuple(layout.to_json() for layout in self.design.layouts[operator])

    def due(self, operator: int, owned: Bins, state_bytes: NDArray[np.int64]) -> NDArray[np.int64]:
        """The bins that a worker writes anew in the next version, of those that it owns."""
        left = self._left[operator]
        mine = left[owned[left]]
        passed = 0 if self._began is None else self._log.index.version - self._began
        pace = -(-mine.size // max(1, MAX_VERSIONS - passed))
        # The first version of a run has enough to do: it reads everything. But there are runs of one version alone.
        is_budgeted = self._are_sizes_known
        within = int(np.count_nonzero(np.cumsum(state_bytes[mine]) <= self._copy_bytes)) if is_budgeted else 0
        return mine[: max(1, within, pace)]

    def committed(self, version: int) -> None:
        """A version is committed: see what is left."""
        self._are_sizes_known, self._is_new = True, False
        if not self.is_open:
            return
        before, self._left = self.left, self._unconverted()
        if self._began is None:
            self._began = version - 1 if self._log.index.way_back is None else self._log.index.way_back
            self._events.emit("evolving", version=version, bins=before, before=self._began)
            logger.info(
                "version %d is the first of the changed query: the state of %s is converted; version %d, the way back, "
                "is kept until then", version, many(before, "bin"), self._began,
            )  # fmt: skip
        if before > self.left:
            self._events.emit("rewritten", version=version, bins=before - self.left, left=self.left)
        if not self.is_open:
            self._events.emit("evolved", version=version, before=self._began)
            logger.info("all state has been converted as of version %d", version)

    def _unconverted(self) -> Sequence[NDArray[np.int64]]:
        index, design = self._log.index, self.design
        return [index.unconverted(operator, design.number(operator)) for operator in range(len(design.operators))]


def check_converters(design: Design, index: Index, operators: Sequence[BinnedOperator]) -> None:
    """Refuse a start without the functions that stored state waits for, and a change on top of one that waits.

    Raises:
        ChangedQuery: a function is missing, or the state would have to be converted twice.
    """
    for at, operator in enumerate(operators[: len(index.operators)]):
        newest = design.number(at)
        bins = index.unconverted(at, newest).size
        if not bins:
            continue
        who, waiting = f"operator {at} ({operator.name})", f"the state of {many(bins, 'bin')} waits for a function"
        for number in range(index.oldest_layout(at) + 1, newest + 1):
            tables = design.layouts[at][number].functions
            if tables and number < newest:
                raise ChangedQuery(
                    f"{who} has changed again, and {waiting} of the change before; start with the query as it was "
                    f"until that has ended, or go back with me.checkpoint(..).rollback(to={index.way_back})"
                )
            for name in tables:
                if name not in operator.converters:
                    raise ChangedQuery(
                        f"{who} has a table {name!r} that is being converted, and {waiting}; give it again as evolve=, "
                        f"or go back with me.checkpoint(..).rollback(to={index.way_back})"
                    )


def with_converters(operators: Sequence[BinnedOperator], evolution: Evolution) -> list[BinnedOperator]:
    """The operators, each with the functions that convert its tables."""
    able = []
    for operator in operators:
        functions = {spec.name: evolution.converter(spec.name) for spec in operator.tables}
        able.append(copy(operator))
        able[-1].converters = {name: each for name, each in functions.items() if each is not None}
    return able
