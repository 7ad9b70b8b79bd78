"""How far event time has come for each operator: everything before its frontier is final. Users say watermark."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

Times = Sequence[int | None]


@dataclass(frozen=True)
class Frontier:
    """The frontier of an operator, and where it waits for the slowest of several inputs, the newest time of each."""

    frontier: int | None = None
    newest: tuple[int | None, ...] = ()

    def after(self, reports: Iterable[Times], lateness: int) -> Frontier:
        """Where time stands after workers have reported the newest time they saw of each input; it never goes back.

        >>> Frontier().after([[7, None], [9, 4]], lateness=1)
        Frontier(frontier=3, newest=(9, 4))
        >>> Frontier(frontier=3, newest=(9, 4)).after([[None, 6]], lateness=1).frontier
        5
        """
        inputs: list[int | None] = list(self.newest)
        for times in reports:
            inputs += [None] * (len(times) - len(inputs))
            for at, time in enumerate(times):
                before = inputs[at]
                if time is not None and (before is None or time > before):
                    inputs[at] = time
        known = [time for time in inputs if time is not None]
        frontier = self.frontier
        if inputs and len(known) == len(inputs):
            latest = min(known) - lateness
            frontier = latest if frontier is None else max(frontier, latest)
        return Frontier(frontier, tuple(inputs) if len(inputs) > 1 else ())


END_OF_TIME = 253_402_300_799_999_999
"""Event time after which there is none: the last microsecond that a datetime can say."""


class EventTime:
    """The frontier of each operator now, and the one its operators last saw."""

    def __init__(self, frontiers: Times, seen: Times) -> None:
        self.frontiers, self.seen = list(frontiers), list(seen)

    @property
    def has_moved(self) -> bool:
        """Whether a frontier has moved since the operators last saw it, so that timers may be due."""
        return self.frontiers != self.seen

    def advance(self, microseconds: int) -> None:
        """Let time go on everywhere where it has begun."""
        self.frontiers = [None if each is None else each + microseconds for each in self.frontiers]

    def end(self, operator: int) -> None:
        """Let event time be over for an operator."""
        self.frontiers[operator] = END_OF_TIME

    def commit(self, frontiers: Times) -> None:
        """The operators have seen the frontiers; these are the new ones."""
        self.seen, self.frontiers = self.frontiers, list(frontiers)
