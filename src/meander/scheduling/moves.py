"""The moves between two owner maps, and nothing about their order."""

from __future__ import annotations

import math
from collections.abc import Iterable

from meander.errors import InvalidOption
from meander.options import amount, listed, worker_id
from meander.types import Assignment, BinId, Bytes, Move, WorkerId


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
            f"owner_now has {len(now)} bins but owner_goal has {len(goal)}; give both the owner of every bin"
        )
    sizes = [0] * len(now) if state is None else _sizes(state)
    if len(sizes) != len(now):
        raise InvalidOption(
            f"state has {len(sizes)} entries but there are {len(now)} bins; give the bytes of every bin"
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
