"""`free` against a MILP solver, against chance and against `ssm`."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array

from meander.errors import Infeasible
from meander.planning.check import check
from meander.planning.free import free
from meander.planning.problem import ROUNDING, Problem
from meander.types import WorkerId

TAUS = [0.0, 0.01, 0.05, 0.1, 0.2, 0.5, 1.2]


@st.composite
def problems(draw: st.DrawFn, bins: int = 10, contiguous: bool = False, plain: bool = False) -> Problem:
    """Small problems of every kind; loads are multiples of 1/4, so that sums are exact."""
    m = draw(st.integers(1, bins))
    sizes = st.sampled_from([0, 1, 1, 2, 3, 5, 8, 40, 1000])
    load = draw(st.lists(st.one_of(st.integers(0, 12), sizes).map(lambda x: x / 4), min_size=m, max_size=m))
    state = draw(st.lists(st.one_of(st.integers(0, 20), sizes), min_size=m, max_size=m))
    there = draw(st.lists(st.integers(0, 9), min_size=1, max_size=5, unique=True))
    owner = draw(st.lists(st.sampled_from(there), min_size=m, max_size=m))
    if contiguous:
        owner = sorted(owner, key=there.index)
    tau = draw(st.sampled_from(TAUS))
    there = sorted(set(owner))
    if plain:
        return Problem(load, state, owner, draw(st.integers(1, 5)), tau)
    idle = draw(st.lists(st.integers(0, 9).filter(lambda w: w not in owner), max_size=2, unique=True))
    must_leave = draw(st.lists(st.sampled_from([*there, *idle]), max_size=2, unique=True))
    workers: int | list[int]
    if draw(st.booleans()):
        workers = draw(st.integers(1, 5))
    else:
        wanted = st.integers(0, 12).filter(lambda w: w not in must_leave)
        workers = draw(st.lists(wanted, min_size=1, max_size=5, unique=True))
    bare = Problem(load, state, owner, workers, tau, must_leave=must_leave, idle=idle)
    known = sorted({*bare.current, *bare.survivors, *bare.newcomers})
    capacities = draw(st.dictionaries(st.sampled_from(known), st.sampled_from([0.5, 1.0, 2.0, 3.0]), max_size=4))
    limit, pinned = draw(st.integers(0, 3)), list[int]()
    for j in draw(st.permutations(range(m))):
        holders = {owner[i] for i in [*pinned, j]}
        if len(pinned) < limit and owner[j] in bare.survivors and len(holders) <= bare.wanted:
            pinned.append(j)
    return Problem(load, state, owner, workers, tau, capacities, must_leave, pinned, idle)


def cheapest_by_milp(problem: Problem) -> float | None:
    """The fewest bytes any assignment within the cap moves, or None if there is none."""
    if not problem.planner_chooses or problem.has_equal_capacities:
        return _milp(problem, (*problem.survivors, *problem.newcomers))
    costs = [_milp(problem, stay) for stay in itertools.combinations(problem.survivors, problem.wanted)]
    return min((cost for cost in costs if cost is not None), default=None)


def _milp(problem: Problem, workers: Sequence[WorkerId]) -> float | None:
    """One 0/1 variable for each bin and worker, then one for each worker: whether it is there."""
    m, n = problem.bins, len(workers)
    there = sorted(problem.capacity(w) for w in workers)[-problem.wanted :]
    unit = (1 + Fraction(problem.tau)) * sum(map(Fraction, problem.load)) / sum(map(Fraction, there))
    cost = np.array([[0.0 if w == problem.owner[j] else problem.state[j] for w in workers] for j in range(m)])
    each, total, count, rows = [], [], [], []
    for j in range(m):
        rows.append([1.0 if i // n == j else 0.0 for i in range(m * n)] + [0.0] * n)
        each.append((1.0, 1.0))
    for k, w in enumerate(workers):
        # In whole quarters, where the solver's tolerance cannot matter.
        cap = unit * Fraction(problem.capacity(w)) * (1 + Fraction(ROUNDING)) * 4
        quarters = [4 * problem.load[i // n] if i % n == k else 0.0 for i in range(m * n)]
        rows.append(quarters + [-float(math.floor(cap)) if k == i else 0.0 for i in range(n)])
        total.append((-np.inf, 0.0))
        rows.append(
            [1.0 if i % n == k else 0.0 for i in range(m * n)] + [-float(m) if k == i else 0.0 for i in range(n)]
        )
        total.append((-np.inf, 0.0))
    rows.append([0.0] * (m * n) + [1.0] * n)
    count.append((float(problem.wanted),) * 2)
    low = np.zeros(m * n + n)
    for j in problem.pinned:
        if problem.owner[j] not in workers:
            return None
        low[j * n + workers.index(problem.owner[j])] = 1.0
    limits = np.array([*each, *total, *count])
    answer = milp(
        np.append(cost.ravel(), np.zeros(n)),
        integrality=np.ones(m * n + n),
        bounds=Bounds(low, 1.0),
        constraints=LinearConstraint(csr_array(np.array(rows)), limits[:, 0], limits[:, 1]),
        options={"mip_rel_gap": 0.0},
    )
    assert answer.status in (0, 2), answer.message
    if answer.x is None:
        return None
    chosen = np.rint(answer.x[: m * n].reshape(m, n)).argmax(axis=1)
    return float(cost[np.arange(m), chosen].sum())


@settings(max_examples=250, deadline=None)
@given(problems())
def test_is_as_cheap_as_a_milp_solver_finds(problem: Problem) -> None:
    optimum = cheapest_by_milp(problem)
    if optimum is None:
        with pytest.raises(Infeasible):
            free(problem)
    else:
        plan = free(problem)
        check(problem, plan)
        assert plan.cost == pytest.approx(optimum)
