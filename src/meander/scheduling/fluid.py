"""Fluid: the longest migration with the shortest pause (Megaphone 3.3)."""

from __future__ import annotations

from meander.scheduling.schedule import Step, schedules_moves
from meander.types import Move


@schedules_moves()
def fluid(moves: list[Move], max_in: int | None) -> list[Step]:
    """One bin per step.

    `max_in` changes nothing: nobody ever receives more than one.
    """
    return [[move] for move in moves]
