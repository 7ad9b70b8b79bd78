"""Consistent hashing with virtual nodes (Karger et al. 1997): few bins move, but nobody asks which."""

from __future__ import annotations

from meander.planning.planner import Target, planner
from meander.planning.problem import Problem
from meander_lab.planners import ring


@planner(keeps_cap=False)
def consistent_hash(problem: Problem, *, virtual_nodes: int = ring.VIRTUAL_NODES, seed: int = 0) -> Target:
    """Send each bin to the next worker on a seeded hash ring (Karger's consistent hashing).

    Args:
        problem: the question. Only the number of bins, the workers, their capacities and pinned bins matter.
        virtual_nodes: points on the ring of a worker of capacity 1.0; others have theirs in proportion.
        seed: which ring. Chance decides balance and cost, so compare means over many seeds.

    Raises:
        InvalidOption: `virtual_nodes` or `seed` is out of range, or the ring would have too many points.

    Every worker gets about the same number of bins, and about the fewest bins move when workers come or go:
    those that the new ones take and those that the leaving ones held. Load and state are not looked at.

    The answer does not depend on the present owners. It is a fair baseline only where they came from the same
    ring, with the same seed and `virtual_nodes`: `ring.assign` gives that start. From any other map nearly
    all bins move. Pinned bins stay, whatever the ring says.
    """
    workers = list(problem.default_targets)
    owner = ring.assign(problem.bins, workers, capacities=problem.capacities, virtual_nodes=virtual_nodes, seed=seed)
    for j in problem.pinned:
        owner[j] = problem.owner[j]
    return Target(owner, workers)
