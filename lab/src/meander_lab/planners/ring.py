"""A seeded hash ring: which worker each bin falls to when only ids are hashed, never loads or bytes.

`consistent_hash` is this ring and nothing else; `redist` uses it for its light bins. Experiments that compare
them start from `assign`, because a ring moves few bins only where it also made the present map.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from meander.errors import InvalidOption
from meander.options import positive, whole
from meander.types import WorkerId

VIRTUAL_NODES = 128
"""Points of a worker of capacity 1.0; its part of the ring then differs from the fair one by about 9 %."""

MOST_POINTS = 2**22
LARGEST_SEED = 2**64 - 1

# Without its kind in the hash, bin 3 would fall on a point of worker 3.
_BIN, _WORKER = 1, 2


def assign(
    bins: int,
    workers: Iterable[int],
    *,
    capacities: Mapping[WorkerId, float] = MappingProxyType({}),
    virtual_nodes: int = VIRTUAL_NODES,
    seed: int = 0,
) -> list[WorkerId]:
    """Return the worker of each of `bins` bins: the one whose point comes next, clockwise.

    Args:
        bins: how many bins there are.
        workers: the ids of the workers on the ring, in any order.
        capacities: relative speed of workers; a worker that is not named has 1.0.
        virtual_nodes: points of a worker of capacity 1.0. Others have `virtual_nodes` times their capacity,
            rounded, and at least one.
        seed: which ring, from 0 to 2**64 - 1.

    Raises:
        InvalidOption: an argument is out of range, or the ring would have too many points.

    The points of a worker depend on its id, its capacity and the seed alone. So a worker that is added only
    takes bins, and one that is removed leaves the bins of all others where they are.

    >>> assign(8, [0, 1, 2]) == assign(8, [2, 1, 0])
    True
    """
    points, owners = _points(sorted({WorkerId(w) for w in workers}), capacities, virtual_nodes, seed)
    places = splitmix64(seed, _BIN, np.arange(bins, dtype=np.uint64))
    following = np.searchsorted(points, places) % len(points)
    return [WorkerId(w) for w in owners[following].tolist()]


def _points(
    workers: Sequence[WorkerId], capacities: Mapping[WorkerId, float], virtual_nodes: int, seed: int
) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Return all points of the ring, ascending, and the worker of each."""
    whole("virtual_nodes", virtual_nodes, 1, MOST_POINTS)
    whole("seed", seed, 0, LARGEST_SEED)
    counts = _counts(workers, capacities, virtual_nodes)
    owners = np.repeat(np.array(workers, dtype=np.int64), counts)
    nth = np.concatenate([np.arange(count, dtype=np.uint64) for count in counts])
    points = splitmix64(seed, _WORKER, owners.astype(np.uint64), nth)
    order = np.argsort(points, kind="stable")  # the lower worker id first, should two points be equal
    return points[order], owners[order]


def _counts(workers: Sequence[WorkerId], capacities: Mapping[WorkerId, float], virtual_nodes: int) -> list[int]:
    """Return how many points each worker has."""
    if not workers:
        raise InvalidOption("a ring needs at least one worker; workers is empty")
    speeds = [capacities.get(w, 1.0) for w in workers]
    for worker, speed in zip(workers, speeds, strict=True):
        positive(f"capacity of worker {worker}", speed)
    counts = [max(1, round(min(virtual_nodes * speed, MOST_POINTS + 1))) for speed in speeds]
    if sum(counts) > MOST_POINTS:
        raise InvalidOption(
            f"virtual_nodes={virtual_nodes} makes more than {MOST_POINTS} points for {len(workers)} workers "
            f"of capacities up to {max(speeds):g}; lower virtual_nodes or scale the capacities to about 1"
        )
    return counts


def splitmix64(*parts: int | NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return 64 bits for each row of the parts, the same in every process and on every machine.

    The parts are folded in one after the other, each through the finalizer of SplitMix64 (Steele, Lea and
    Flood 2014): add an odd constant, then shift, xor and multiply.
    """
    bits = np.zeros(1, dtype=np.uint64)  # an array, since NumPy warns of the overflow of scalars
    for part in parts:
        bits = (bits ^ np.asarray(part, dtype=np.uint64)) + np.uint64(0x9E3779B97F4A7C15)
        bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        bits = bits ^ (bits >> np.uint64(31))
    return bits
