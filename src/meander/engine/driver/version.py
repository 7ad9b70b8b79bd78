"""One version as it is about to be made: who takes part, and the control message of each of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from meander.engine.driver.conversion import StateConversion
from meander.engine.driver.placement import Placement
from meander.engine.driver.ports import Place, Routing
from meander.engine.driver.settings import Settings
from meander.engine.worker.messages import Control, FilePart, Json, Token
from meander.engine.worker.output import ROWS, OutputForm
from meander.migration.ledger import Owners
from meander.migration.orders import Orders, Share, flags
from meander.store import bitmap
from meander.store.manifest import Log
from meander.types import BinId, WorkerId

Bins = NDArray[np.bool_]

LONG_CHAIN = 4
"""A bin with more deltas than this is written whole before it is copied."""


def stale_bins(log: Log, moves: set[tuple[int, BinId]]) -> frozenset[tuple[int, BinId]]:
    """Those of these bins that have too many deltas to be read one by one."""
    if log.index.version < 0:
        return frozenset()
    known = len(log.index.operators)  # an operator that is new has nothing yet
    return frozenset(
        (operator, bin_)
        for operator, bin_ in moves
        if operator < known and log.index.chains(operator)[bin_] > LONG_CHAIN
    )


@dataclass(frozen=True, eq=False)
class Version:
    """Everything that the control messages of one version are made of.

    Args:
        number: the version.
        workers: who takes part, ascending.
        owners: who owns each bin in it, by operator.
        orders: what the migration under way wants of it.
        frontiers, seen: event time of each operator, and that of the version before.
        copy_ms: for how long each worker may copy bins ahead.
        log, placement, settings: what is committed, where workers are, how the query runs.
        conversion: which state is in an older layout.
        state_bytes: the state of each bin, by operator.
        errors: for so many rows functions may still raise; None where the first one ends the query.
        form: in which form the sink wants the output.
    """

    number: int
    workers: tuple[WorkerId, ...]
    owners: tuple[Owners, ...]
    orders: Orders
    frontiers: tuple[int | None, ...]
    seen: tuple[int | None, ...]
    copy_ms: Mapping[Share, float]
    log: Log
    placement: Placement
    settings: Settings
    conversion: StateConversion
    state_bytes: Sequence[NDArray[np.int64]]
    errors: int | None = None
    form: OutputForm = ROWS

    @property
    def places(self) -> tuple[Place, ...]:
        """Where each worker is, by slot."""
        return tuple(self.placement.places[worker] for worker in self.workers)

    @property
    def fits(self) -> bool:
        """Whether the executors can run a task of every worker at once."""
        return len(self.workers) <= self.placement.cores

    def routing(self, operator: int) -> Routing:
        """Where the rows of an operator go."""
        return self._routings[operator]

    @cached_property
    def _routings(self) -> tuple[Routing, ...]:
        workers = np.array(self.workers)
        slots = (workers.searchsorted(owner).tolist() for owner in self.owners)
        return tuple(Routing(operator, tuple(each), workers.size) for operator, each in enumerate(slots))

    def controls(self, operator: int, token: Token, wave: tuple[int, int]) -> tuple[Control, ...]:
        """The control messages of an operator, by slot."""
        return tuple(self._control(operator, slot, token, wave) for slot in range(len(self.workers)))

    def _control(self, operator: int, slot: int, token: Token, wave: tuple[int, int]) -> Control:
        worker, bins = self.workers[slot], self.settings.bins
        share = (operator, worker)
        owned = self.owners[operator] == worker
        held = self.orders.held_by(share, owned)
        copied = self.orders.copied.get(share, ()) if wave[0] == 0 else ()
        wanted = owned | flags(copied, bins) if copied else owned
        believed = self.placement.holdings.of(operator, worker)
        missing = wanted if believed is None else wanted & ~believed
        return Control(
            token=token, operator=operator, worker=worker, slot=slot,
            place=self.placement.places[worker].process, directory=self.placement.home(worker),
            checkpoint=self.log.location.uri, bins=bins, owned=owned, held=held,
            advance=self._advance(operator, held), loadable=missing, load=self._files(operator, missing),
            copy=tuple(map(int, copied)), copy_ms=self.copy_ms.get(share, 0.0),
            snapshot=self._snapshot(share, owned) if wave[0] == 0 else None, wave=wave,
            frontier=self.frontiers[operator], previous=self.seen[operator], fsync=self.settings.fsync,
            errors=self.errors,
            layouts=self.conversion.layouts(operator),
            form=self.form if operator == len(self.owners) - 1 else ROWS,
        )  # fmt: skip

    def _files(self, operator: int, missing: Bins) -> tuple[FilePart, ...]:
        """Where bins that a worker lacks are to be read."""
        if operator >= len(self.log.index.operators) or not np.count_nonzero(missing):
            return ()
        parts = self.log.index.parts(operator, missing.nonzero()[0].tolist())
        return tuple(FilePart(part.file.to_json(), flags(part.bins, self.settings.bins)) for part in parts)

    def _advance(self, operator: int, held: Bins) -> tuple[Json, ...]:
        """The deltas of the last version that speak of these bins, whoever wrote them."""
        bits = bitmap.to_int(np.packbits(held).tobytes())
        return tuple(ref for covered, ref in self._last_deltas[operator] if covered & bits)

    @cached_property
    def _last_deltas(self) -> tuple[list[tuple[int, Json]], ...]:
        """The deltas of the last version, by operator, each with its bins; made once for all workers."""
        last = self.log.last
        if last is None:
            return ([],) * len(self.owners)
        known = [[(bitmap.to_int(ref.bins), ref.to_json()) for ref in part.deltas] for part in last.operators]
        return (*known, *([] for _ in self.owners[len(known) :]))

    def _snapshot(self, share: tuple[int, WorkerId], owned: Bins) -> Bins | None:
        """The bins whose turn it is, or that are about to move, of those that changed since their last snapshot.

        And those that are to be written in a new layout.
        """
        if self.number == 0:
            return None
        turn, changed = self._turns[share[0]]
        if written := self.orders.written.get(share):
            turn = turn | flags(written, self.settings.bins) & changed
        converted = self.conversion.due(share[0], owned, self.state_bytes[share[0]])
        if converted.size:
            turn = turn | flags(converted, self.settings.bins)
        due: Bins = owned & turn
        return due if np.count_nonzero(due) else None

    @cached_property
    def _turns(self) -> tuple[tuple[Bins, Bins], ...]:
        """The bins of each operator that changed since their last snapshot: those whose turn it is, and all."""
        cycle = self.settings.snapshot_every
        turn = np.arange(self.settings.bins) % cycle == self.number % cycle
        known, none = len(self.log.index.operators), np.zeros(self.settings.bins, np.bool_)
        changed = (self.log.index.chains(at) > 0 if at < known else none for at in range(len(self.owners)))
        return tuple((turn & each, each) for each in changed)
