"""What a schedule is: a function from moves to steps, with a name and two options that all of them take.

A schedule decides only which moves go together, and in which order. Reading the owner maps, checking options
and laying gaps between the steps happens here, once for all.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Sequence

from meander.errors import InvalidOption
from meander.options import Named, amount, listed, whole, worker_id
from meander.pictures import many
from meander.types import Assignment, BinId, Bytes, Move, WorkerId

Step = list[Move]
"""Moves that take effect at one batch, ascending by bin; an empty step is a batch without a move."""

MOST_GAP = 100_000
"""Batches without a move between two steps: more than a day at one batch per second."""


class Schedule(Named):
    """A schedule: call it with two owner maps to get the steps from the one to the other.

    Attributes:
        name: what `meander.schedule(now, goal, name)` calls it.
        summary: one line for people.
        needs_state: whether it cannot work without the bytes of each bin.
        byte_options: the options that cannot work without them.
    """

    kind = "schedule"

    def __init__(self, steps: Callable[..., list[Step]], needs_state: bool, byte_options: Iterable[str]) -> None:
        super().__init__(steps)
        self.steps = steps
        self.needs_state = needs_state
        self.byte_options = tuple(byte_options)

    def __call__(
        self,
        owner_now: Sequence[int] | Assignment,
        owner_goal: Sequence[int] | Assignment,
        state: Sequence[Bytes] | None = None,
        *,
        max_in: int | None = None,
        gap: int = 0,
        **options: object,
    ) -> list[Step]:
        """Return the steps that lead from one owner map to the other.

        Args:
            owner_now: the worker that owns each bin now.
            owner_goal: the worker that shall own it.
            state: bytes of each bin; where they are not known, every move says 0.
            max_in: the most bins a worker may receive in one step; None is no limit.
            gap: batches without a move between two steps.
            options: what this schedule takes besides; see `options`.

        Raises:
            InvalidOption: an owner map, the state or an option makes no sense; the message names it.
        """
        self.check_options(list(options))
        moves = moves_between(owner_now, owner_goal, state)
        if state is None:
            self._refuse_bytes(options)
        limit = None if max_in is None else whole("max_in", max_in, 1)
        pause = whole("gap", gap, 0, MOST_GAP)
        return list(_with_gaps(self.steps(moves, limit, **options), pause))

    @property
    def options(self) -> dict[str, inspect.Parameter]:
        """The options this schedule takes, by name: its own, then `max_in` and `gap`."""
        own = list(inspect.signature(self.steps).parameters.items())[2:]
        common = inspect.signature(self.__call__).parameters
        return dict(own) | {name: common[name] for name in ("max_in", "gap")}

    def _refuse_bytes(self, options: dict[str, object]) -> None:
        if self.needs_state:
            raise InvalidOption(f"schedule {self.name} works in bytes; give it state, the bytes of each bin")
        for name in self.byte_options:
            if options.get(name) is not None:
                raise InvalidOption(f"{name} works in bytes; give schedule {self.name} state, the bytes of each bin")


def as_schedule(
    *, needs_state: bool = False, byte_options: Iterable[str] = ()
) -> Callable[[Callable[..., list[Step]]], Schedule]:
    """Make a schedule of a function that cuts moves into steps; its name and docstring become the schedule's.

    The function gets the moves, ascending by bin, and `max_in`; what else it takes are its own options.
    """

    def make(steps: Callable[..., list[Step]]) -> Schedule:
        return Schedule(steps, needs_state, byte_options)

    return make


def _with_gaps(steps: list[Step], gap: int) -> Iterator[Step]:
    for i, step in enumerate(steps):
        if i:
            yield from ([] for _ in range(gap))
        yield step


def moves_between(
    owner_now: Iterable[int] | Assignment,
    owner_goal: Iterable[int] | Assignment,
    state: Iterable[Bytes] | None = None,
) -> list[Move]:
    """List the bins whose owner changes, ascending, with their bytes (0 where no state is given).

    >>> moves_between([0, 0, 1], [0, 2, 2], state=[5, 6, 7])
    [Move(bin=1, source=0, target=2, bytes=6), Move(bin=2, source=1, target=2, bytes=7)]
    """
    now, goal = _owners("owner_now", owner_now), _owners("owner_goal", owner_goal)
    if len(now) != len(goal):
        raise InvalidOption(
            f"owner_now has {many(len(now), 'bin')} but owner_goal has {len(goal)}; give both the owner of every bin"
        )
    sizes = [0] * len(now) if state is None else _sizes(state)
    if len(sizes) != len(now):
        raise InvalidOption(
            f"state has {many(len(sizes), 'entry', 'entries')} but there are {many(len(now), 'bin')}; give the bytes "
            "of every bin"
        )
    return [
        Move(BinId(j), source, target, sizes[j])
        for j, (source, target) in enumerate(zip(now, goal, strict=True))
        if source != target
    ]


def _owners(name: str, source: object) -> list[WorkerId]:
    owners = source.owner if isinstance(source, Assignment) else listed(name, source)
    return [WorkerId(worker_id(f"{name} of bin {j}", worker)) for j, worker in enumerate(owners)]


def _sizes(state: object) -> list[Bytes]:
    sizes = [amount(f"state of bin {j}", size) for j, size in enumerate(listed("state", state))]
    try:
        math.fsum(sizes)
    except OverflowError:
        raise InvalidOption("state adds up to more than a 64-bit float can hold; use a larger unit") from None
    return sizes
