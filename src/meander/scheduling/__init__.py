"""Schedules: in which steps a migration goes.

A planner says which bins change their owner. A schedule says which of these moves go together: many in a step
is soon over but pauses more of the stream, one at a time takes long but is hardly felt. Every schedule
reaches exactly the goal; they differ in how many steps they take and in how much meets at one worker.

    >>> from meander.scheduling import schedule
    >>> now, goal = [0, 0, 1, 1], [0, 2, 2, 0]
    >>> for step in schedule(now, goal, "matching"):
    ...     print([f"bin {move.bin}: {move.source} -> {move.target}" for move in step])
    ['bin 1: 0 -> 2', 'bin 3: 1 -> 0']
    ['bin 2: 1 -> 2']

`all_at_once`, `fluid`, `batched` and `matching` move each bin as a whole; `phases` cuts bins into chunks of
bytes. All take `max_in` and `gap`.
Nothing here knows about planners, Spark or time: owner maps in, lists of moves out.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

from meander.options import chosen
from meander.scheduling.phases import phases
from meander.scheduling.steps import Schedule, Step
from meander.scheduling.whole_bins import all_at_once, batched, fluid, matching
from meander.types import Assignment, Bytes

__all__ = [
    "Schedule",
    "Step",
    "all_at_once",
    "batched",
    "fluid",
    "matching",
    "phases",
    "schedule",
    "schedules",
]

_SCHEDULES = MappingProxyType({each.name: each for each in (all_at_once, fluid, batched, matching, phases)})


def schedules() -> MappingProxyType[str, Schedule]:
    """All schedules by name; each is called with two owner maps and gives steps.

    Returns:
        The schedules, in the order in which they are listed.

    Example:
        >>> "fluid" in schedules()
        True
    """
    return _SCHEDULES


def schedule(
    owner_now: Sequence[int] | Assignment,
    owner_goal: Sequence[int] | Assignment,
    name: str = "batched",
    state: Sequence[Bytes] | None = None,
    **options: Any,
) -> list[Step]:
    """Return the steps from one owner map to another, each a list of moves that take effect at one batch.

    Args:
        owner_now: the worker that owns each bin now.
        owner_goal: the worker that shall own it; a plan's `before` and `owner` are such maps.
        name: which schedule; `schedules()` lists them.
        state: bytes of each bin; where they are not known, every move says 0.
        options: `max_in` (the most bins a worker may receive in one step), `gap` (batches without a move
            between two steps, as empty lists), and what the schedule takes besides, such as `max_bins` of
            `batched`.

    Returns:
        The steps, in order.

    Raises:
        InvalidOption: the message names the option, the bin or the value that is wrong.

    Example:
        >>> [len(step) for step in schedule([0, 0, 0], [1, 1, 0], "fluid")]
        [1, 1]
    """
    return chosen("schedule", name, _SCHEDULES)(owner_now, owner_goal, state, **options)
