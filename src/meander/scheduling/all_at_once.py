"""All at once: the shortest migration with the longest pause (Megaphone 3.3)."""

from __future__ import annotations

from collections import Counter

from meander.scheduling.steps import Step, as_schedule
from meander.types import Move, WorkerId


@as_schedule()
def all_at_once(moves: list[Move], max_in: int | None) -> list[Step]:
    """Every bin in one step.

    With `max_in`, in as few steps as the worker that receives most allows.
    """
    if max_in is None:
        return [moves] if moves else []
    steps: list[Step] = []
    received: Counter[WorkerId] = Counter()
    for move in moves:
        turn = received[move.target] // max_in
        if turn == len(steps):
            steps.append([])
        steps[turn].append(move)
        received[move.target] += 1
    return steps
