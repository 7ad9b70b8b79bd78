"""Who has which bins, as control messages say it; what is as it was in the version before is not made anew.

In most versions nothing moves. Then the sets of bins of every worker are the same arrays as before, which are never
written to, and with them goes their text.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from meander.engine.driver.ports import Routing
from meander.migration.ledger import Owners
from meander.migration.orders import Orders, Share, flags
from meander.types import BinId, WorkerId

Bins = NDArray[np.bool_]


class BinSets(NamedTuple):
    """What a control message says about bins: those that are owned, those to have, and those that have to be read."""

    owned: Bins
    held: Bins
    missing: Bins


class _Known(NamedTuple):
    owner: Owners
    believed: Bins | None
    held: tuple[BinId, ...]
    copied: tuple[BinId, ...]
    sets: BinSets

    def is_of(self, other: _Known) -> bool:
        """Whether it was made of the same: the same arrays, not only equal ones, since these are never written to."""
        same = self.owner is other.owner and self.believed is other.believed
        return same and self.held == other.held and self.copied == other.copied


class Shares:
    """The sets of bins of every worker, and the routing of every operator, of the last version."""

    def __init__(self) -> None:
        self._known: dict[Share, _Known] = {}
        self._routings: dict[int, tuple[Owners, tuple[WorkerId, ...], Routing]] = {}

    def sets(self, share: Share, owner: Owners, believed: Bins | None, orders: Orders, copies: bool) -> BinSets:
        """The bins of one worker.

        Args:
            share: the operator and the worker.
            owner: who owns each bin of the operator.
            believed: what the worker has reported to hold; None where nothing is known.
            orders: what the migration under way wants of it.
            copies: whether bins are copied ahead this time.
        """
        held, copied = orders.held.get(share, ()), orders.copied.get(share, ())
        wanted = copied if copies else ()
        before = self._known.get(share)
        now = _Known(owner, believed, (*held, *copied), wanted, NO_SETS)
        if before is None or not before.is_of(now):
            owned = before.sets.owned if before and before.owner is owner else _constant(owner == share[1])
            before = self._known[share] = now._replace(
                sets=_sets(owned, orders.held_by(share, owned), wanted, believed)
            )
        return before.sets

    def routing(self, operator: int, owner: Owners, workers: tuple[WorkerId, ...]) -> Routing:
        """Where the rows of an operator go."""
        known = self._routings.get(operator)
        if known is None or known[0] is not owner or known[1] != workers:
            self._known = {share: each for share, each in self._known.items() if share[1] in workers}
            slots = tuple(np.array(workers).searchsorted(owner).tolist())
            known = self._routings[operator] = (owner, workers, Routing(operator, slots, len(workers)))
        return known[2]


NO_SETS = BinSets(*[np.zeros(0, np.bool_)] * 3)


def _sets(owned: Bins, held: Bins, copied: tuple[BinId, ...], believed: Bins | None) -> BinSets:
    wanted = owned | flags(copied, owned.size) if copied else owned
    missing = wanted if believed is None else _constant(wanted & ~believed)
    return BinSets(owned, held if held is owned else _constant(held), missing)


def _constant(bins: Bins) -> Bins:
    bins.flags.writeable = False
    return bins
