"""Any bin to any worker: the fewest bytes moved under the load cap.

Without contiguity the question is a generalised assignment problem, NP-hard, and mostly easy: a worker with too much
sheds the cheapest bins that bring it under the cap, and these fit somewhere else. Where they do, nothing can be
cheaper. The rest is for when they do not:

    free_case      one choice of who will be there, as arrays
    free_search    who leaves; first a good assignment, then a better one, then a proof; the smallest tau
    free_kernel    what to shed, where to settle it, how to even out loads: the inner loops
    free_branch    branch and bound over all bins, where they are few, and a few workers at a time, where they are many
"""

from __future__ import annotations

import math

import numpy as np

from meander.errors import Infeasible, TooLarge
from meander.options import whole
from meander.pictures import many
from meander.planning.free_case import SAME, FreeCase, Ints
from meander.planning.free_search import (
    WHOLE,
    Candidate,
    Level,
    best,
    better,
    choices,
    even_choices,
    first,
    largest_caps,
    level,
    loosened,
)
from meander.planning.intervals import prefix_sums, round_up
from meander.planning.planner import Plan, Target, planner
from meander.planning.problem import ROUNDING, Problem
from meander.planning.ssm import ssm
from meander.types import Bytes

LARGE = 1_000_000
"""Bins times workers beyond which `ssm` is not run where its answer could not be better."""

TRIES = 40_000
"""Bins times choices of who leaves that are looked at."""


@planner(keeps_cap=True)
def free(problem: Problem, *, nodes: int = 200_000) -> Target:
    """Any bin to any worker: the fewest bytes found under the load cap.

    The answer is optimal for a few dozen bins, and wherever the cheapest bins that can be shed fit somewhere; else it
    is the best found. It never costs more than `ssm` at the same tau: where it is not known to be optimal, nor
    cheaper than a bound on all contiguous answers, `ssm` is run too. That takes long only in rare cases: thousands of
    bins, a scattered present map, pinned bins or unequal capacities, and no room to spare.

    Args:
        problem: the question.
        nodes: how long to search for something better, in nodes of the search tree: a million take about a second.

    Raises:
        Infeasible: no assignment found keeps the cap; `smallest_tau` says which one would do.
        InvalidOption: `nodes` is not a whole number of at least 1.

    Example:
        >>> from meander.planning.problem import Problem
        >>> free(Problem(load=[1] * 20, state=[1] * 20, owner=[0] * 13 + [1] * 7, workers=3, tau=0.4)).cost
        4
    """
    nodes = whole("nodes", nodes, 1)
    candidate = _search(problem, nodes)
    candidate, hint = _no_worse_than_ssm(problem, candidate, nodes)
    if candidate.at is None:
        candidate = _by_evenness(problem, nodes, hint)
    assert candidate.at is not None
    return Target(candidate.case.owner(candidate.at), list(candidate.case.workers))


def _search(problem: Problem, nodes: int) -> Candidate:
    """Return the best assignment over the choices of who leaves, with a floor for all of them."""
    tries, ceiling = max(8, TRIES // problem.bins), math.inf
    sets, complete = choices(problem, tries)
    candidates: list[Candidate] = []
    for workers in sets[:tries]:
        candidate = first(FreeCase.of(problem, workers), ceiling)
        candidates.append(candidate)
        if candidate.floor >= ceiling * SAME and problem.has_equal_capacities:
            break  # the floors of all further sets are higher still
        ceiling = min(ceiling, candidate.cost)
    else:
        complete = complete and len(sets) <= tries
    candidates.sort(key=lambda candidate: candidate.floor)
    for i, candidate in enumerate(candidates):
        if candidate.floor < ceiling * SAME and nodes > 0:
            share = nodes // min(3, len(candidates) - i)
            candidates[i], visited = best(candidate, ceiling, share + 1)
            nodes -= visited
            ceiling = min(ceiling, candidates[i].cost)
    winner = min(candidates, key=lambda candidate: candidate.cost)
    return winner._replace(floor=min(candidate.floor for candidate in candidates) if complete else 0.0)


def _no_worse_than_ssm(problem: Problem, candidate: Candidate, nodes: int) -> tuple[Candidate, float | None]:
    """Return the cheaper of the candidate and the answer of `ssm`, and the smallest tau that `ssm` needs."""
    easy = problem.is_contiguous and problem.has_equal_capacities and not problem.pinned
    size = problem.bins * problem.wanted
    if size > (LARGE if easy else 0) and (candidate.is_proven or candidate.cost < SAME * _contiguous_floor(problem)):
        return candidate, None
    try:
        owner, workers, _ = ssm.target(problem)
    except Infeasible as why:
        return candidate, why.smallest_tau
    except TooLarge:
        return candidate, None
    case = FreeCase.of(problem, tuple(workers))
    at = case.slots(owner)
    if case.cost(at) > candidate.cost / SAME or _bytes(problem, case, at) >= _bytes(
        problem, candidate.case, candidate.at
    ):
        return candidate, None
    return best(better(case, at, candidate.floor), math.inf, nodes)[0], None


def _by_evenness(problem: Problem, nodes: int, hint: float | None) -> Candidate:
    """Return an assignment made from the most even one, or say why there is none."""
    sets, complete = even_choices(problem)
    for workers in sets[:1] if problem.bins > WHOLE else []:
        spread = loosened(FreeCase.of(problem, workers), 0.0)
        if spread.at is not None:
            return best(spread, math.inf, nodes)[0]
    levels = [level(FreeCase.of(problem, workers), nodes // len(sets) + 1) for workers in sets]
    flattest = min(levels, key=lambda each: each.tau)
    flattest = flattest._replace(is_proven=complete and all(each.is_proven for each in levels))
    if not flattest.case.keeps_cap(flattest.at):
        raise _infeasible(problem, flattest, hint)
    return best(better(flattest.case, flattest.at, 0.0), math.inf, nodes)[0]


def _infeasible(problem: Problem, flattest: Level, hint: float | None) -> Infeasible:
    tau, proven = flattest.tau, flattest.is_proven
    if hint is not None and hint < tau * (1 - 1e-6):
        tau, proven = hint, False
    caps = largest_caps(problem)
    heaviest = max(range(problem.bins), key=lambda j: (problem.load[j], -j))
    pinned = {w: math.fsum(problem.load[j] for j in problem.pinned if problem.owner[j] == w) for w in caps}
    overfull = [w for w in caps if pinned[w] > caps[w] * (1 + ROUNDING)]
    if problem.load[heaviest] > max(caps.values()) * (1 + ROUNDING):
        most = max(caps.values())
        reason = f"bin {heaviest} alone has load {problem.load[heaviest]:g}, above the cap of {most:g} per worker"
    elif overfull:
        reason = (
            f"the bins pinned to worker {overfull[0]} have load {pinned[overfull[0]]:g} together, "
            f"above its cap of {caps[overfull[0]]:g}"
        )
    else:
        reason = (
            f"no assignment of {many(problem.bins, 'bin')} to {many(problem.wanted, 'worker')} "
            f"{'' if proven else 'was found that '}keeps every load within its cap"
        )
    return Infeasible(
        f"{reason} at tau {problem.tau:g}; the smallest tau {'that would do' if proven else 'found'} "
        f"is {round_up(tau):.12g}",
        tau,
    )


def _bytes(problem: Problem, case: FreeCase, at: Ints | None) -> Bytes:
    """The bytes that move, as the plan will state them."""
    return math.inf if at is None else Plan.of(problem, case.owner(at), case.workers).cost


def _contiguous_floor(problem: Problem) -> float:
    """No contiguous assignment moves fewer bytes: each worker keeps at most its best interval under its cap."""
    load, state, owner = prefix_sums(problem.load_array), problem.state_array, np.array(problem.owner)
    caps = largest_caps(problem)
    gains = []
    for w in problem.survivors:
        own = np.flatnonzero(owner == w)
        kept = prefix_sums(state[own])
        left = np.searchsorted(load[own], load[own + 1] - caps[w] * (1 + 2 * ROUNDING) - 1e-12 * load[-1])
        gains.append(float(np.max(kept[1:] - kept[left], initial=0.0)))
    return float(state.sum()) - math.fsum(sorted(gains)[-problem.wanted :])
