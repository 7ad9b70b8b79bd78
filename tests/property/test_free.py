"""`free` against a MILP solver, against chance and against `ssm`."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from random import Random

import numpy as np
import pytest
from hypothesis import given, reject
from hypothesis import strategies as st
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array

from effort import examples
from meander import Infeasible, Plan, Problem, TooLarge, WorkerId, check
from meander.planning.free import free
from meander.planning.problem import ROUNDING
from meander.planning.ssm import ssm

TAUS = [0.0, 0.01, 0.05, 0.1, 0.2, 0.5, 1.2]
GRAIN = Fraction(1, 4)


@st.composite
def problems(draw: st.DrawFn, bins: int = 10, contiguous: bool = False, plain: bool = False) -> Problem:
    """Small problems of every kind; loads are multiples of GRAIN, so that sums are exact."""
    m = draw(st.integers(1, bins))
    sizes = st.integers(0, 12) | st.sampled_from([0, 1, 1, 2, 3, 5, 8, 40, 1000])
    load = draw(st.lists(sizes.map(lambda size: float(size * GRAIN)), min_size=m, max_size=m))
    state = draw(st.lists(sizes, min_size=m, max_size=m))
    there = draw(st.lists(st.integers(0, 9), min_size=1, max_size=5, unique=True))
    owner = draw(st.lists(st.sampled_from(there), min_size=m, max_size=m))
    if contiguous:
        owner.sort(key=there.index)
    tau = draw(st.sampled_from(TAUS))
    if plain:
        return Problem(load, state, owner, draw(st.integers(1, 5)), tau)
    there = sorted(set(owner))
    idle = draw(st.lists(st.integers(0, 9).filter(lambda w: w not in owner), max_size=2, unique=True))
    must_leave = draw(st.lists(st.sampled_from([*there, *idle]), max_size=2, unique=True))
    those = st.lists(st.integers(0, 12).filter(lambda w: w not in must_leave), min_size=1, max_size=5, unique=True)
    workers = draw(st.integers(1, 5) | those)
    bare = Problem(load, state, owner, workers, tau, must_leave=must_leave, idle=idle)
    known = sorted({*bare.current, *bare.survivors, *bare.newcomers})
    capacities = draw(st.dictionaries(st.sampled_from(known), st.sampled_from([0.5, 1.0, 2.0, 3.0]), max_size=4))
    pinned: list[int] = []
    for j in draw(st.lists(st.integers(0, m - 1), max_size=3, unique=True)):
        holders = {owner[i] for i in [*pinned, j]}
        if owner[j] in bare.survivors and len(holders) <= bare.wanted:
            pinned.append(j)
    return Problem(load, state, owner, workers, tau, capacities, must_leave, pinned, idle)


def crowded(random: Random) -> Problem:
    """A problem in which hardly anything fits at once: a dozen bins of all sizes, little room, somebody leaves."""
    m, there = random.randint(10, 14), range(random.randint(2, 5))
    load = [float(random.randint(1, 400) * GRAIN) for _ in range(m)]
    state = [random.randint(0, 20) if random.random() < 0.7 else random.randint(100, 1000) for _ in range(m)]
    owner = [*there, *(random.choice(there) for _ in range(m - len(there)))]
    must_leave = random.sample(there, random.randint(0, 1))
    return Problem(load, state, owner, random.randint(2, 5), random.choice([0.02, 0.05, 0.1]), must_leave=must_leave)


def cheapest_by_milp(problem: Problem) -> float | None:
    """The fewest bytes any assignment within the cap moves, or None if there is none."""
    if not problem.planner_chooses or problem.has_equal_capacities:
        return _milp(problem, (*problem.survivors, *problem.newcomers))
    costs = [_milp(problem, stay) for stay in itertools.combinations(problem.survivors, problem.wanted)]
    return min((cost for cost in costs if cost is not None), default=None)


def _milp(problem: Problem, workers: Sequence[WorkerId]) -> float | None:
    """One 0/1 variable for each bin and worker, then one for each worker: whether it is there."""
    m, n = problem.bins, len(workers)
    speed = [Fraction(problem.capacity(w)) for w in workers]
    unit = (1 + Fraction(problem.tau)) * sum(map(Fraction, problem.load)) / sum(sorted(speed)[-problem.wanted :])
    cost = np.array([[0 if w == problem.owner[j] else problem.state[j] for w in workers] for j in range(m)])
    rows, least, most = [], [], []

    def limit(low: float, bins: np.ndarray, there: np.ndarray, high: float) -> None:
        rows.append(np.append(bins.ravel(), there))
        least.append(low)
        most.append(high)

    one_bin, one_worker, nothing = np.eye(m), np.eye(n), np.zeros((m, n))
    grains = np.array([float(x / GRAIN) for x in map(Fraction, problem.load)])
    for j in range(m):
        limit(1, np.outer(one_bin[j], np.ones(n)), np.zeros(n), 1)
    for k in range(n):
        # In whole grains, where the solver's tolerance cannot matter.
        cap = math.floor(unit * speed[k] * (1 + Fraction(ROUNDING)) / GRAIN)
        limit(-np.inf, np.outer(grains, one_worker[k]), -cap * one_worker[k], 0)
        limit(-np.inf, np.outer(np.ones(m), one_worker[k]), -m * one_worker[k], 0)
    limit(problem.wanted, nothing, np.ones(n), problem.wanted)
    low = np.zeros((m, n))
    for j in problem.pinned:
        if problem.owner[j] not in workers:
            return None
        low[j, workers.index(problem.owner[j])] = 1
    answer = milp(
        np.append(cost.ravel(), np.zeros(n)),
        integrality=np.ones(m * n + n),
        bounds=Bounds(np.append(low.ravel(), np.zeros(n)), 1),
        constraints=LinearConstraint(csr_array(np.array(rows)), least, most),
        options={"mip_rel_gap": 0},
    )
    assert answer.status in (0, 2), answer.message
    if answer.x is None:
        return None
    return float(cost[np.arange(m), answer.x[: m * n].reshape(m, n).argmax(axis=1)].sum())


@examples(25)
@given(problems())
def test_is_as_cheap_as_a_milp_solver_finds(problem: Problem) -> None:
    optimum = cheapest_by_milp(problem)
    if optimum is None:
        with pytest.raises(Infeasible):
            free(problem)
    else:
        plan = free(problem)
        check(problem, plan)
        assert plan.cost == optimum


@examples(40)
@given(st.integers(0, 2**32 - 1))
def test_is_as_cheap_as_a_milp_solver_finds_where_room_is_tight(seed: int) -> None:
    problem = crowded(Random(seed))
    optimum = cheapest_by_milp(problem)
    if optimum is None:
        with pytest.raises(Infeasible):
            free(problem)
    else:
        assert free(problem).cost == optimum


@examples(40)
@given(problems(bins=14))
def test_the_smallest_tau_is_enough_and_nothing_less_is(problem: Problem) -> None:
    why = refusal(problem)
    if why is None:
        return
    tau, printed = why.smallest_tau, float(str(why).rsplit(" ", 1)[1])
    assert tau is not None
    assert problem.tau < tau
    assert -ROUNDING <= printed - tau <= 1e-4 * (1 + tau)
    for enough in (tau, printed):
        relaxed = replace(problem, tau=enough)
        check(relaxed, free(relaxed))
    assert "found" not in str(why)
    assert cheapest_by_milp(replace(problem, tau=max(problem.tau, tau - 1e-6 * (1 + tau)))) is None


@examples(100)
@given(problems(bins=40, contiguous=True, plain=True))
def test_never_costs_more_than_ssm(problem: Problem) -> None:
    try:
        assert free(problem).cost <= ssm(problem).cost
    except Infeasible as why:
        # Intervals are assignments too, so whatever tau is enough for them is enough here.
        problem = replace(problem, tau=why.smallest_tau)
        check(problem, free(problem))


@examples(60)
@given(problems(bins=12))
def test_never_costs_more_than_ssm_with_pins_and_capacities(problem: Problem) -> None:
    try:
        contiguous = ssm(problem)
    except (Infeasible, TooLarge):
        return
    assert free(problem).cost <= contiguous.cost


@examples(50)
@given(problems(bins=40), st.randoms(use_true_random=False))
def test_no_random_assignment_within_the_cap_is_cheaper(problem: Problem, random: Random) -> None:
    holders = {problem.owner[j] for j in problem.pinned}
    stay = sorted(problem.survivors, key=lambda w: (w not in holders, random.random()))[: problem.wanted]
    left = problem.caps([*stay, *problem.newcomers])
    for j in problem.pinned:
        left[problem.owner[j]] -= problem.load[j]
    owner, faithful = list(problem.owner), random.random()
    for j in random.sample(range(problem.bins), problem.bins):
        if j not in problem.pinned:
            fits = [w for w in left if problem.load[j] <= left[w]]
            if not fits:
                reject()
            if owner[j] not in fits or random.random() > faithful:
                owner[j] = random.choice(fits)
            left[owner[j]] -= problem.load[j]
    if min(left.values()) < 0:
        reject()
    assert free(problem).cost <= Plan.of(problem, owner, left).cost


# Below 1e-300 the caps of `Problem` itself are too coarse.
measures = st.floats(1e-3, 1e12) | st.floats(1e-200, 1e-12) | st.sampled_from([0.0, 0.1, 0.3, 1 / 3, 1e100])


@examples(100)
@given(st.data())
def test_any_floats_are_planned_within_the_cap_and_always_the_same(data: st.DataObject) -> None:
    m = data.draw(st.integers(1, 12))
    problem = Problem(
        load=data.draw(st.lists(measures, min_size=m, max_size=m)),
        state=data.draw(st.lists(measures, min_size=m, max_size=m)),
        owner=data.draw(st.lists(st.integers(0, 3), min_size=m, max_size=m)),
        workers=[0, 1, 2, 5],
        tau=data.draw(st.sampled_from([0.0, 0.3, 2.0])),
        capacities=data.draw(st.dictionaries(st.sampled_from([0, 1, 2, 5]), st.floats(1e-6, 1e6), max_size=4)),
    )
    why = refusal(problem)
    if why is not None:
        problem = replace(problem, tau=why.smallest_tau)
    plan = free(problem)
    check(problem, plan)
    assert plan.over_cap == ()
    assert plan == free(problem)


def refusal(problem: Problem) -> Infeasible | None:
    """What `free` refuses the problem with, if it does."""
    try:
        free(problem)
    except Infeasible as why:
        return why
    return None
