"""Matching: moves that do not meet at a worker go together (Megaphone 4.4)."""

from __future__ import annotations

from collections import Counter

from meander.scheduling.colouring import colour, grouped, numbered
from meander.scheduling.steps import Step, as_schedule
from meander.types import Move


@as_schedule()
def matching(moves: list[Move], max_in: int | None) -> list[Step]:
    """No worker sends or receives two bins in one step, in the fewest steps possible.

    A worker may send one bin and receive another in the same step. The number of steps is the most bins that
    any worker sends in all, or receives in all: moves are the edges of a bipartite multigraph, steps their
    colours, and such a graph needs as many colours as its highest degree, no more (König).

    `max_in` changes nothing: nobody ever receives more than one.
    """
    sources, targets = [move.source for move in moves], [move.target for move in moves]
    degrees = [*Counter(sources).values(), *Counter(targets).values()]
    edges = list(zip(numbered(sources), numbered(targets), strict=True))
    return grouped(moves, colour(edges, max(degrees, default=0)))
