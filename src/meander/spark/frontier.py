"""How far event time has come for a stage: everything before it is final."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

Times = Sequence[int | None]


@dataclass(frozen=True)
class Reached:
    """The frontier of a stage, and where it waits for the slowest of several inputs, the newest time of each."""

    frontier: int | None = None
    newest: tuple[int | None, ...] = ()

    def after(self, told: Iterable[Times], lateness: int) -> Reached:
        """Where time stands after workers have told the newest time they saw of each input; it never goes back.

        >>> Reached().after([[7, None], [9, 4]], lateness=1)
        Reached(frontier=3, newest=(9, 4))
        >>> Reached(frontier=3, newest=(9, 4)).after([[None, 6]], lateness=1).frontier
        5
        """
        inputs: list[int | None] = list(self.newest)
        for times in told:
            inputs += [None] * (len(times) - len(inputs))
            for at, time in enumerate(times):
                before = inputs[at]
                if time is not None and (before is None or time > before):
                    inputs[at] = time
        known = [time for time in inputs if time is not None]
        frontier = self.frontier
        if inputs and len(known) == len(inputs):
            reached = min(known) - lateness
            frontier = reached if frontier is None else max(frontier, reached)
        return Reached(frontier, tuple(inputs) if len(inputs) > 1 else ())
