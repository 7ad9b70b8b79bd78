"""The moves between two owner maps, and nothing about their order."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Set
from typing import Any

import numpy as np

from meander.errors import InvalidOption
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


def _owners(name: str, given: object) -> list[WorkerId]:
    owners = []
    for j, worker in enumerate(given.owner if isinstance(given, Assignment) else _listed(name, given)):
        if isinstance(worker, np.integer):
            worker = int(worker)
        if isinstance(worker, bool) or not isinstance(worker, int) or worker < 0:
            raise InvalidOption(
                f"{name} gives bin {j} to worker {worker!r}; worker ids are whole numbers of at least 0"
            )
        owners.append(WorkerId(worker))
    return owners


def _sizes(given: object) -> list[Bytes]:
    sizes: list[Bytes] = []
    for j, size in enumerate(_listed("state", given)):
        if isinstance(size, np.generic):
            size = size.item()
        if isinstance(size, bool) or not isinstance(size, int | float) or not 0 <= size < math.inf:
            raise InvalidOption(f"state of bin {j} is {size!r}; it must be a number of bytes of at least 0")
        sizes.append(size)
    try:
        math.fsum(sizes)
    except OverflowError:
        raise InvalidOption("state adds up to more than a 64-bit float can hold; give it in bytes") from None
    return sizes


def _listed(name: str, values: object) -> list[Any]:
    if isinstance(values, np.ndarray):
        values = values.tolist()
    if isinstance(values, str | bytes | Mapping | Set) or not isinstance(values, Iterable):
        raise InvalidOption(f"{name} must be a list with one entry for each bin, not {type(values).__name__}")
    return list(values)
