"""The smallest tau: how evenly bins can be spread over given workers, whatever it costs.

Nothing in this module uses tau, so a plan at the smallest tau found finds the same assignment again.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from meander.planning import free_branch, free_level_kernel
from meander.planning.free_case import NOWHERE, FreeCase, Ints, whole_grains
from meander.planning.free_search import EVEN_STEPS, WHOLE
from meander.planning.problem import ROUNDING

NEAR = 0.98
"""How near the bounds come by halving."""


class Level(NamedTuple):
    """An even assignment, its highest load per unit of capacity, and whether there is provably none more even."""

    case: FreeCase
    at: Ints
    height: float
    is_proven: bool

    @property
    def tau(self) -> float:
        """The tau that allows this assignment."""
        total = float(self.case.load.sum() + self.case.held.sum())
        return self.height * float(self.case.speed.sum()) / total - 1


def level(case: FreeCase, nodes: int) -> Level:
    """Spread the bins as evenly as can be found: the heaviest first, then moves and swaps, then branch and bound.

    The last only for few bins. It searches below ever lower heights until there is nothing to be found, or until
    `nodes` nodes are spent.
    """
    load, speed = case.load, case.speed
    at = np.full(load.size, NOWHERE, dtype=np.int64)
    free_level_kernel.flatten(load, case.state, case.home, at, case.held.copy(), speed, 0.0, EVEN_STEPS)
    height, low = _height(case, at), _floor(case)
    while low < height * (1 - ROUNDING):
        # Halve what is in doubt, but not without end: that nothing lies just below `height` has to be proven only once.
        goal = (low + height) / 2 if low < NEAR * height else height * (1 - ROUNDING)
        room = whole_grains(goal * speed - case.held, case.grain)
        if room.sum() < load.sum() * (1 - ROUNDING):
            low = goal
            continue
        if max(load.size, speed.size) > WHOLE or nodes <= 0:
            break
        spread, _, visits = free_branch.branch(load, np.zeros(load.size), case.home, room, np.inf, nodes)
        if (spread != NOWHERE).all():
            at, height = spread, _height(case, spread)
        elif visits < nodes:
            low = goal
        nodes -= visits
    return Level(case, at, height, low >= height * (1 - ROUNDING))


def _height(case: FreeCase, at: Ints) -> float:
    return float((case.loads(at) / case.speed).max())


def _floor(case: FreeCase) -> float:
    """No assignment is more even than this."""
    evenly = (case.held.sum() + case.load.sum()) / case.speed.sum()
    heaviest = ((case.held + case.load.max(initial=0.0)) / case.speed).min()
    return float(max(evenly, heaviest, (case.held / case.speed).max()))
