"""Schedules that move each bin as a whole: all at once, fluid, batched, matching (Megaphone 3.3 and 4.4)."""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction

from meander.options import positive, whole
from meander.scheduling.colouring import Edge, colour, colour_evenly, grouped, numbered
from meander.scheduling.steps import Step, as_schedule
from meander.types import Bytes, Move, WorkerId

DEFAULT_MAX_BINS = 16


@as_schedule()
def all_at_once(moves: list[Move], max_in: int | None) -> list[Step]:
    """Every bin in one step.

    The shortest migration with the longest pause. With `max_in`, as few steps as the worker that receives most allows.
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


@as_schedule()
def fluid(moves: list[Move], max_in: int | None) -> list[Step]:
    """One bin per step.

    The longest migration with the shortest pause. `max_in` changes nothing: nobody ever receives more than one.
    """
    return [[move] for move in moves]


@as_schedule(byte_options=["max_bytes"])
def batched(
    moves: list[Move], max_in: int | None, max_bins: int | None = None, max_bytes: Bytes | None = None
) -> list[Step]:
    """At most so many bins, or bytes, per step, spread evenly over the workers.

    Args:
        moves: the moves, ascending by bin.
        max_in: the most bins a worker may receive in one step.
        max_bins: the most bins in one step; 16 if neither this nor `max_bytes` is given.
        max_bytes: the most bytes in one step; a bin that is larger travels alone.

    Without `max_bytes` the steps are as few as `max_bins` and `max_in` allow, hold equally many bins up to
    one, and each of them has an even share (rounded up) of what every worker sends, and of what it receives.
    With `max_bytes` these steps are laid end to end and cut where the next bin would be too much.
    """
    if max_bins is None and max_bytes is None:
        max_bins = DEFAULT_MAX_BINS
    most_bins = len(moves) if max_bins is None else whole("max_bins", max_bins, 1)
    most_bytes = None if max_bytes is None else positive("max_bytes", max_bytes)
    if not moves:
        return []
    steps = _spread(moves, _fewest(moves, max_in, most_bins, most_bytes))
    if most_bytes is None:
        return steps
    return _cut([move for step in steps for move in step], max_in, most_bins, most_bytes)


def _fewest(moves: list[Move], max_in: int | None, max_bins: int, max_bytes: Bytes | None) -> int:
    """Return the number of steps that no schedule within the limits can beat."""
    needed = [math.ceil(len(moves) / max_bins)]
    if max_in is not None:
        needed += [math.ceil(n / max_in) for n in Counter(move.target for move in moves).values()]
    if max_bytes is not None:
        total = sum(Fraction(move.bytes) for move in moves)
        needed.append(min(len(moves), math.ceil(total / Fraction(max_bytes))))
    return max(needed)


def _spread(moves: list[Move], steps: int) -> list[Step]:
    """Deal the moves into so many steps, evenly in all and for every worker's sends and receipts.

    A worker with more moves than steps counts as several, each with at most one move in a step.
    """
    sent: Counter[WorkerId] = Counter()
    received: Counter[WorkerId] = Counter()
    senders, receivers = [], []
    for move in moves:
        senders.append((move.source, sent[move.source] // steps))
        receivers.append((move.target, received[move.target] // steps))
        sent[move.source] += 1
        received[move.target] += 1
    edges: list[Edge] = list(zip(numbered(senders), numbered(receivers), strict=True))
    return sorted(grouped(moves, colour_evenly(edges, steps)))


def _cut(moves: list[Move], max_in: int | None, max_bins: int, max_bytes: Bytes) -> list[Step]:
    """Cut a sequence of moves into the fewest steps that keep all limits."""
    steps: list[Step] = []
    received: Counter[WorkerId] = Counter()
    room = Fraction(0)
    for move in moves:
        full = not steps or len(steps[-1]) == max_bins or received[move.target] == max_in
        if full or Fraction(move.bytes) > room:
            steps.append([])
            received.clear()
            room = Fraction(max_bytes)
        steps[-1].append(move)
        received[move.target] += 1
        room -= Fraction(move.bytes)
    return [sorted(step) for step in steps]


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
