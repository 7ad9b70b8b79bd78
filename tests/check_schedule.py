"""Trust the checker, not the schedule: follow the steps from owner to owner and see where they end.

`check_schedule` shares nothing with the schedules. `duration` and `bound` say how long phases take.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from fractions import Fraction
from math import inf

from meander.errors import InvalidPlan
from meander.options import total
from meander.scheduling.steps import Step, moves_between
from meander.types import Assignment, Bytes, Move

ROUNDING = 1e-9
"""Chunks with fractions add up to their bin's state up to this relative error."""


def check_schedule(
    owner_now: Sequence[int] | Assignment,
    owner_goal: Sequence[int] | Assignment,
    steps: Iterable[Iterable[Move]],
    state: Sequence[Bytes] | None = None,
) -> None:
    """Raise `InvalidPlan` unless the steps lead from one owner map to exactly the other.

    Args:
        owner_now: the worker that owns each bin now.
        owner_goal: the worker that shall own it.
        steps: what a schedule answered.
        state: bytes of each bin. With it, a bin may be copied in chunks over several steps, and its chunks
            must add up to its state; without it, a bin moves at once and bytes are not looked at.

    Every move starts at the true owner of its bin, no bin moves twice, and nothing is left undone.
    """
    now, goal = _owners(owner_now), _owners(owner_goal)
    if len(now) != len(goal):
        raise InvalidPlan(f"there are {len(now)} bins now but {len(goal)} in the goal")
    if state is not None and len(state) != len(now):
        raise InvalidPlan(f"there are {len(now)} bins but the state of {len(state)}")
    chunks: dict[int, list[Bytes]] = {}
    for i, step in enumerate(steps):
        seen = set()
        for move in step:
            if not 0 <= move.bin < len(now):
                raise InvalidPlan(f"step {i} moves bin {move.bin}; the bins are 0 to {len(now) - 1}")
            if move.bin in seen:
                raise InvalidPlan(f"step {i} moves bin {move.bin} twice")
            if move.bin in chunks and not (state is not None and state[move.bin]):
                raise InvalidPlan(f"step {i} moves bin {move.bin}, which has moved before")
            if move.source != now[move.bin] or move.target != goal[move.bin] or move.source == move.target:
                raise InvalidPlan(
                    f"step {i} moves bin {move.bin} from worker {move.source} to worker {move.target}; "
                    f"it goes from {now[move.bin]} to {goal[move.bin]}"
                )
            seen.add(move.bin)
            chunks.setdefault(move.bin, []).append(move.bytes)
    for j, (source, target) in enumerate(zip(now, goal, strict=True)):
        if source != target and j not in chunks:
            raise InvalidPlan(f"bin {j} stays at worker {source}; its goal is worker {target}")
        if state is not None and source != target:
            _check_chunks(j, chunks[j], state[j])


def _check_chunks(bin_: int, chunks: list[Bytes], size: Bytes) -> None:
    for chunk in chunks:
        if not 0 <= chunk < inf or (chunk == 0 and size > 0):
            raise InvalidPlan(f"a step copies {chunk} bytes of bin {bin_}, which has {size}")
    copied = sum(map(Fraction, chunks))
    exact = all(isinstance(number, int) for number in (size, *chunks))
    if abs(copied - Fraction(size)) > (0 if exact else Fraction(size) * Fraction(ROUNDING)):
        raise InvalidPlan(f"{float(copied):g} bytes of bin {bin_} are copied; it has {size}")


def _owners(owner: Sequence[int] | Assignment) -> list[int]:
    return list(owner.owner if isinstance(owner, Assignment) else owner)


def duration(step: Step) -> Bytes:
    """Return how long a phase takes, in bytes at equal bandwidth: the most that goes from one worker to one.

    >>> duration([Move(0, 0, 1, 30), Move(1, 0, 1, 20), Move(2, 1, 0, 40)])
    50
    """
    lanes = defaultdict(list)
    for move in step:
        lanes[move.source, move.target].append(move.bytes)
    return max(map(total, lanes.values()), default=0)


def bound(
    owner_now: Sequence[int] | Assignment, owner_goal: Sequence[int] | Assignment, state: Sequence[Bytes]
) -> Bytes:
    """Return how long a migration takes, in bytes at equal bandwidth: the most a worker sends or receives.

    >>> bound([0, 0, 1], [1, 2, 0], state=[30, 20, 40])
    50
    """
    sent, received = defaultdict(list), defaultdict(list)
    for move in moves_between(owner_now, owner_goal, state):
        sent[move.source].append(move.bytes)
        received[move.target].append(move.bytes)
    return max(map(total, [*sent.values(), *received.values()]), default=0)
