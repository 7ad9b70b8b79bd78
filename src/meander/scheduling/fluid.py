"""Fluid: the longest migration with the shortest pause (Megaphone 3.3)."""

from __future__ import annotations

from meander.scheduling.steps import Step, as_schedule
from meander.types import Move


@as_schedule()
def fluid(moves: list[Move], max_in: int | None) -> list[Step]:
    """One bin per step.

    `max_in` changes nothing: nobody ever receives more than one.
    """
    return [[move] for move in moves]
