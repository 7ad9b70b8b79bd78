"""One choice of who will be there, as arrays for the kernels of `free`."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from meander.planning.problem import ROUNDING, Problem
from meander.types import WorkerId

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

NOWHERE = -1
MARGIN = 0.999 * ROUNDING
"""How far above its cap a load may be here; what is left of ROUNDING is for sums in another order."""

SAME = 1 - 1e-10
"""Costs nearer to each other than this are the same: sums of floats are not exact."""


@dataclass(frozen=True)
class FreeCase:
    """These workers and no others, as slots 0, 1, ... by ascending id.

    Attributes:
        workers: who will be there.
        settled: the slot of each bin of the problem that has no choice, because it is pinned or weighs as good as
            nothing; NOWHERE for the others.
        bins: those others. All arrays below that are by bin are by these bins.
        load: their load, above 0.
        state: their bytes.
        home: their slot now, NOWHERE where the owner leaves.
        held: load of the settled bins of each slot.
        speed: capacity of each slot.
        room: the load each slot can take beside what it holds.
        limit: the load per unit of capacity that no worker may exceed.
        grain: what all loads are multiples of, or 0.
        forced: bytes of all bins whose owner leaves.

    Loads are in units of the power of two next to their sum, so that no unit is too small or too large.
    """

    workers: tuple[WorkerId, ...]
    settled: Ints
    bins: Ints
    load: Floats
    state: Floats
    home: Ints
    held: Floats
    speed: Floats
    room: Floats
    limit: float
    grain: float
    forced: float

    @classmethod
    def of(cls, problem: Problem, workers: tuple[WorkerId, ...], capacity: float | None = None) -> FreeCase:
        """Return the case of these workers; `capacity` replaces the sum of theirs in the load cap."""
        ids, owner = np.array(workers), np.array(problem.owner)
        slot = np.minimum(ids.searchsorted(owner), ids.size - 1)
        home = np.where(ids[slot] == owner, slot, NOWHERE)
        total, unit = math.frexp(problem.total_load)
        load, state = np.ldexp(problem.load_array, -unit), problem.state_array
        speed = np.array([problem.capacity(w) for w in workers])
        # The same for every tau, and all of them together weigh less than what MARGIN leaves.
        least_share = total * float(speed.min()) / math.fsum(speed)
        stays = load * problem.bins <= 0.5 * (ROUNDING - MARGIN) * least_share
        stays[list(problem.pinned)] = True
        settled = np.where(stays, np.maximum(home, 0), NOWHERE)
        bins = (~stays).nonzero()[0]
        held = np.zeros(ids.size)
        np.add.at(held, settled[stays], load[stays])
        limit = (1 + problem.tau) * total / (capacity or math.fsum(speed)) * (1 + MARGIN)
        grain = math.ldexp(_grain(problem.load_array[bins]), -unit)
        return cls(
            workers=workers,
            settled=settled,
            bins=bins,
            load=load[bins],
            state=state[bins],
            home=home[bins],
            held=held,
            speed=speed,
            room=whole_grains(limit * speed - held, grain),
            limit=limit,
            grain=grain,
            forced=float(state[home == NOWHERE].sum()),
        )

    @property
    def is_hopeless(self) -> bool:
        """Whether the pinned bins alone are too much for a worker, or all bins for all workers."""
        return bool((self.room < 0).any() or self.room.sum() < self.load.sum() * (1 - ROUNDING))

    def owner(self, at: Ints) -> list[WorkerId]:
        """Return the owner of each bin of the problem."""
        slots = self.settled.copy()
        slots[self.bins] = at
        return [self.workers[k] for k in slots.tolist()]

    def slots(self, owner: list[WorkerId]) -> Ints:
        """Return the slots of the bins that may move, the inverse of `owner`."""
        slot = {w: k for k, w in enumerate(self.workers)}
        return np.array([slot[owner[j]] for j in self.bins.tolist()], dtype=np.int64)

    def loads(self, at: Ints) -> Floats:
        """Return the load of each slot."""
        return self.held + np.bincount(at, self.load, minlength=self.speed.size)

    def keeps_cap(self, at: Ints) -> bool:
        """Whether no load exceeds the cap, up to rounding."""
        return bool((self.loads(at) <= self.limit * self.speed * (1 + ROUNDING - MARGIN)).all())

    def chosen(self, at: Ints) -> float:
        """Return the bytes that move although their owner stays: what the kernels call cost."""
        return float(self.state[(at != self.home) & (self.home != NOWHERE)].sum())

    def cost(self, at: Ints) -> float:
        """Return the bytes that move, those of leaving workers included."""
        return self.forced + self.chosen(at)


def whole_grains(room: Floats, grain: float) -> Floats:
    """Where all loads are multiples of one grain, room for part of a grain is none."""
    if grain == 0:
        return room
    # A little more than whole grains, for sums of loads that are not quite whole.
    return np.where(room < 0, room, np.minimum(room, np.floor(room / grain) * grain * (1 + ROUNDING / 10)))


def _grain(load: Floats) -> float:
    """What all loads are multiples of: whole numbers of their divisor, equal ones of themselves; else 0."""
    if not load.size:
        return 0.0
    if (load == np.rint(load)).all() and load.max() < 2**53:
        return float(np.gcd.reduce(load.astype(np.int64)))
    grain = float(load.min())
    return grain if np.abs(load / grain - np.rint(load / grain)).max() <= 1e-12 else 0.0
