"""One version as it is about to be made: who takes part, and the control message of each of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from meander.engine.driver.conversion import StateConversion
from meander.engine.driver.placement import Placement
from meander.engine.driver.ports import Place, Routing
from meander.engine.driver.settings import Settings
from meander.engine.driver.shares import Shares
from meander.engine.worker.messages import Control, FilePart, Json, Token
from meander.engine.worker.output import ROWS, OutputForm
from meander.migration.ledger import Owners
from meander.migration.orders import Orders, Share, flags
from meander.store.entries import FileRef
from meander.store.manifest import Log
from meander.types import BinId, WorkerId

Bins = NDArray[np.bool_]
Ids = NDArray[np.int64]
NO_IDS: Ids = np.zeros(0, np.int64)

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
        state_bytes: the state of each bin, by operator; only while there is state in an older layout.
        errors: for so many rows functions may still raise; None where the first one ends the query.
        form: in which form the sink wants the output.
        shares: the sets of bins of the version before, which are mostly those of this one.
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
    shares: Shares = field(default_factory=Shares)

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
        return self.shares.routing(operator, self.owners[operator], self.workers)

    def controls(self, operator: int, token: Token, wave: tuple[int, int]) -> tuple[Control, ...]:
        """The control messages of an operator, by slot."""
        return tuple(self._control(operator, slot, token, wave) for slot in range(len(self.workers)))

    def _control(self, operator: int, slot: int, token: Token, wave: tuple[int, int]) -> Control:
        worker, bins = self.workers[slot], self.settings.bins
        share, is_first = (operator, worker), wave[0] == 0
        copied = self.orders.copied.get(share, ()) if is_first else ()
        believed = self.placement.holdings.of(operator, worker)
        owned, held, missing = self.shares.sets(share, self.owners[operator], believed, self.orders, is_first)
        return Control(
            token=token, operator=operator, worker=worker, slot=slot,
            place=self.placement.places[worker].process, directory=self.placement.home(worker),
            checkpoint=self.log.location.uri, bins=bins, owned=owned, held=held,
            advance=self._advance(share, owned, held), loadable=missing, load=self._files(operator, missing),
            copy=tuple(map(int, copied)), copy_ms=self.copy_ms.get(share, 0.0),
            snapshot=self._snapshot(share, owned) if is_first else None, wave=wave,
            frontier=self.frontiers[operator], previous=self.seen[operator], fsync=self.settings.fsync,
            errors=self.errors,
            layouts=self.conversion.layouts(operator),
            form=self.form if operator == len(self.owners) - 1 else ROWS,
        )  # fmt: skip

    def _files(self, operator: int, missing: Bins) -> tuple[FilePart, ...]:
        """Where bins that a worker lacks are to be read."""
        if operator >= len(self.log.index.operators) or not missing.any():
            return ()
        parts = self.log.index.parts(operator, missing.nonzero()[0].tolist())
        return tuple(FilePart(part.file.to_json(), flags(part.bins, self.settings.bins)) for part in parts)

    def _advance(self, share: Share, owned: Bins, held: Bins) -> tuple[Json, ...]:
        """The deltas of the last version that speak of these bins, whoever wrote them."""
        operator, worker = share
        last = self._last_deltas[operator]
        if held is owned:
            return last.by_owner.get(worker, ())
        return last.of_bins(held)

    @cached_property
    def _last_deltas(self) -> tuple[LastDeltas, ...]:
        """The deltas of the last version, by operator; made once for all workers."""
        known = () if self.log.last is None else self.log.last.operators
        return tuple(
            LastDeltas.of(known[at].deltas if at < len(known) else (), owner) for at, owner in enumerate(self.owners)
        )

    def _snapshot(self, share: tuple[int, WorkerId], owned: Bins) -> Bins | None:
        """The bins whose turn it is, or that are about to move, of those that changed since their last snapshot.

        And those that are to be written in a new layout.
        """
        if self.number == 0:
            return None
        operator, worker = share
        chosen = [self._turns[operator].get(worker, NO_IDS)]
        if written := self.orders.written.get(share):
            ids = np.array(written, np.int64)
            chosen.append(ids[owned[ids] & (self._chains(operator)[ids] > 0)])
        if self.conversion.is_open:
            chosen.append(self.conversion.due(operator, owned, self.state_bytes[operator]))
        due = np.concatenate(chosen) if len(chosen) > 1 else chosen[0]
        return flags(due, self.settings.bins) if due.size else None

    @cached_property
    def _turns(self) -> tuple[dict[WorkerId, Ids], ...]:
        """The bins whose turn it is, of those that changed since their last snapshot: by operator and owner."""
        cycle = self.settings.snapshot_every
        turn = np.arange(self.number % cycle, self.settings.bins, cycle)
        return tuple(by_owner(turn[self._chains(at)[turn] > 0], owner) for at, owner in enumerate(self.owners))

    def _chains(self, operator: int) -> NDArray[np.int64]:
        """How many deltas each bin of an operator has had since its last snapshot."""
        is_known = operator < len(self.log.index.operators)
        return self.log.index.chains(operator) if is_known else np.zeros(self.settings.bins, np.int64)


def by_owner(bins: Ids, owner: Owners) -> dict[WorkerId, Ids]:
    """The same bins, by who owns them."""
    owners = owner[bins]
    order = owners.argsort(kind="stable")
    workers, starts = np.unique(owners[order], return_index=True)
    return (
        dict(zip(map(WorkerId, workers.tolist()), np.split(bins[order], starts[1:]), strict=True)) if bins.size else {}
    )


@dataclass(frozen=True, eq=False)
class LastDeltas:
    """The deltas of one operator in the last version.

    Args:
        refs: the deltas.
        bins, numbers: the bins they speak of, and the number of the delta that does; no bin is there twice.
        by_owner: the deltas that speak of bins of each worker.
    """

    refs: tuple[Json, ...]
    bins: NDArray[np.int32]
    numbers: Ids
    by_owner: Mapping[WorkerId, tuple[Json, ...]]

    @classmethod
    def of(cls, files: Sequence[FileRef], owner: Owners) -> LastDeltas:
        """Sort deltas by who owns their bins now."""
        refs = tuple(each.to_json() for each in files)
        numbers = np.repeat(np.arange(len(files)), [each.covered.size for each in files])
        bins = np.concatenate([NO_IDS, *(each.covered for each in files)], dtype=np.int32)
        # One number for owner and delta: all pairs are there at once, each of them once.
        pairs = np.unique(owner[bins] * max(1, len(files)) + numbers).tolist()
        mine: dict[WorkerId, list[Json]] = defaultdict(list)
        for pair in pairs:
            mine[WorkerId(pair // len(files))].append(refs[pair % len(files)])
        return cls(refs, bins, numbers, {worker: tuple(each) for worker, each in mine.items()})

    def of_bins(self, chosen: Bins) -> tuple[Json, ...]:
        """The deltas that speak of any of these bins."""
        return tuple(self.refs[at] for at in np.unique(self.numbers[chosen[self.bins]]).tolist())
