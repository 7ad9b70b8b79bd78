"""The nouns of Meander: identifiers, one move, and who owns which bin since when.

Nothing in this module decides or acts; everything else in the library imports it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple, NewType

from meander.errors import InvalidPlan
from meander.pictures import bin_strip, many

BinId = NewType("BinId", int)
WorkerId = NewType("WorkerId", int)
OperatorId = NewType("OperatorId", int)
BatchId = NewType("BatchId", int)

Bytes = int | float
"""A size. Whole numbers stay whole; estimates may be fractions."""


class Move(NamedTuple):
    """One bin that changes its owner, and the bytes of state that travel with it."""

    bin: BinId
    source: WorkerId
    target: WorkerId
    bytes: Bytes


class Run(NamedTuple):
    """Neighbouring bins `start`..`stop - 1` of one worker."""

    start: int
    stop: int
    worker: WorkerId


def runs(owner: Sequence[WorkerId]) -> list[Run]:
    """Cut an owner map into its maximal runs of equal owner, from left to right.

    >>> [tuple(run) for run in runs([4, 4, 0, 4])]
    [(0, 2, 4), (2, 3, 0), (3, 4, 4)]
    """
    pieces, start = [], 0
    for worker, members in groupby(owner):
        stop = start + sum(1 for _ in members)
        pieces.append(Run(start, stop, worker))
        start = stop
    return pieces


def is_contiguous(owner: Sequence[WorkerId]) -> bool:
    """Whether every worker's bins are neighbours, so that the map is a list of intervals."""
    pieces = runs(owner)
    return len(pieces) == len({piece.worker for piece in pieces})


@dataclass(frozen=True, repr=False)
class Assignment:
    """Who owns each bin, and since which batch.

    >>> now = Assignment.initial([0, 0, 1])
    >>> later = now.with_flips([Move(1, 0, 1, 64)], batch=31)
    >>> later.owner, now.owner
    ((0, 1, 1), (0, 0, 1))
    """

    owner: tuple[WorkerId, ...]
    since: tuple[BatchId, ...]

    def __post_init__(self) -> None:
        if len(self.owner) != len(self.since):
            raise InvalidPlan(
                f"there are {many(len(self.owner), 'owner')} but {many(len(self.since), 'batch', 'batches')} since when"
            )

    @classmethod
    def initial(cls, owner: Sequence[int], batch: int = 0) -> Assignment:
        """The assignment in which every bin has had its owner since a batch.

        Args:
            owner: the worker of each bin.
            batch: since when.

        Returns:
            The assignment.

        Example:
            >>> Assignment.initial([0, 0, 1]).workers
            (0, 1)
        """
        return cls(tuple(map(WorkerId, owner)), (BatchId(batch),) * len(owner))

    def __repr__(self) -> str:
        return f"<Assignment: {many(len(self.owner), 'bin')} on {many(len(self.workers), 'worker')}>"

    def _repr_html_(self) -> str:
        return bin_strip(self.owner)

    @property
    def workers(self) -> tuple[WorkerId, ...]:
        """The workers that own at least one bin, ascending."""
        return tuple(sorted(set(self.owner)))

    def bins_of(self, worker: WorkerId) -> tuple[BinId, ...]:
        """The bins a worker owns, ascending.

        Args:
            worker: whose.

        Returns:
            Their numbers; none for a worker that owns nothing.

        Example:
            >>> Assignment.initial([0, 1, 0]).bins_of(WorkerId(0))
            (0, 2)
        """
        return tuple(BinId(j) for j, w in enumerate(self.owner) if w == worker)

    def with_flips(self, moves: Iterable[Move], batch: int) -> Assignment:
        """The assignment in force from a batch on, after some moves.

        Args:
            moves: which bins get which owner.
            batch: from when on.

        Returns:
            A new assignment; this one stays as it is.

        Raises:
            InvalidPlan: a bin does not exist, does not belong to the source of its move, or has moved later already.

        Example:
            >>> Assignment.initial([0, 0, 1]).with_flips([Move(BinId(1), WorkerId(0), WorkerId(1), 64)], batch=31).owner
            (0, 1, 1)
        """
        owner, since = list(self.owner), list(self.since)
        for move in moves:
            if not 0 <= move.bin < len(owner):
                raise InvalidPlan(f"there is no bin {move.bin}: this assignment has bins 0 to {len(owner) - 1}")
            if owner[move.bin] != move.source:
                raise InvalidPlan(
                    f"bin {move.bin} belongs to worker {owner[move.bin]} since batch {since[move.bin]}, "
                    f"not to worker {move.source}; plan again from the current assignment"
                )
            if batch < since[move.bin]:
                raise InvalidPlan(
                    f"bin {move.bin} flipped at batch {since[move.bin]} already and cannot flip at the earlier "
                    f"batch {batch}; plan again from the current assignment"
                )
            owner[move.bin], since[move.bin] = move.target, BatchId(batch)
        return Assignment(tuple(owner), tuple(since))
