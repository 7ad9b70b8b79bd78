"""`free` on cases whose answer is known by hand, and on one that is large."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import Bounds, LinearConstraint, milp

from meander import Infeasible, InvalidOption, Problem, check
from meander.planning.free import free
from meander.planning.free_kernel import by_bytes_per_load, cheapest_cover
from meander.planning.ssm import ssm


def test_nothing_moves_where_nothing_has_to():
    plan = free(Problem(load=[1, 2, 1], state=[5, 5, 5], owner=[0, 1, 0], workers=2))
    assert plan.moves == ()
    assert plan.workers == (0, 1)


def test_the_cheapest_bins_that_bring_a_worker_under_its_cap_go():
    # Worker 0 has 6 and may have 4: bin 3 alone is cheapest, though bin 0 has the fewest bytes.
    problem = Problem(load=[1, 1, 2, 2], state=[3, 4, 9, 5], owner=[0] * 4, workers=2, tau=1 / 3)
    plan = free(problem)
    assert [(move.bin, move.target) for move in plan.moves] == [(3, 1)]


def test_bins_need_not_be_neighbours():
    problem = Problem(load=[1] * 6, state=[1, 9, 1, 9, 1, 9], owner=[0] * 6, workers=2, tau=0)
    assert free(problem).owner == (1, 0, 1, 0, 1, 0)
    assert free(problem).cost == 3
    assert ssm(problem).cost == 11


def test_bins_change_places_where_there_is_no_room():
    # Everyone must end at 4: a 3 goes to worker 1, whose 2 goes to worker 2, whose 1 goes to worker 0.
    problem = Problem(load=[3, 3, 1, 2, 2, 1], state=[9, 9, 1, 1, 1, 1], owner=[0, 0, 1, 1, 2, 2], workers=3, tau=0)
    plan = free(problem)
    check(problem, plan)
    assert plan.cost == 9 + 1 + 1


def test_among_equals_the_lowest_bin_goes_to_the_lowest_worker():
    problem = Problem(load=[1] * 4, state=[7] * 4, owner=[4] * 4, workers=[2, 4, 6], tau=0.5)
    assert [(move.bin, move.target) for move in free(problem).moves] == [(0, 2), (1, 2)]


def test_bins_without_state_stay_unless_they_must_go():
    problem = Problem(load=[1, 1, 1, 1], state=[0] * 4, owner=[0, 0, 0, 1], workers=2, tau=0)
    assert len(free(problem).moves) == 1


def test_bins_without_load_go_only_with_their_worker():
    problem = Problem(load=[0, 0, 0], state=[5, 6, 7], owner=[1, 2, 3], workers=2)
    plan = free(problem)
    assert plan.workers == (2, 3)
    assert [(move.bin, move.bytes) for move in plan.moves] == [(0, 5)]


def test_who_leaves_is_not_always_who_has_the_fewest_bytes():
    problem = Problem(
        load=[4, 4, 4, 1, 1, 1], state=[10, 10, 10, 25, 50, 50], owner=[0, 0, 0, 1, 2, 2], workers=2, tau=0.8
    )
    assert free(problem).workers == (0, 2)
    assert free(problem).cost == 25
    # At the lower cap of 9 worker 0 has to shed a bin if it stays: 10 more than the 25 of worker 1.
    problem = replace(problem, tau=0.2)
    assert free(problem).workers == (1, 2)
    assert free(problem).cost == 30


def test_the_owner_of_a_pinned_bin_does_not_leave():
    problem = Problem(load=[1, 1, 1], state=[1, 50, 60], owner=[0, 1, 2], workers=1, pinned=[0])
    plan = free(problem)
    assert plan.workers == (0,)
    assert plan.cost == 110


def test_a_fast_worker_may_carry_more():
    problem = Problem(load=[1] * 6, state=[1] * 6, owner=[0, 0, 0, 1, 1, 1], workers=2, tau=0, capacities=[2, 1])
    plan = free(problem)
    assert plan.loads == {0: 4, 1: 2}
    assert plan.cost == 1


def test_with_unequal_workers_the_choice_of_who_leaves_decides_the_caps():
    # Without the fast worker 2 the heavy bin fits nowhere, although that worker has the fewest bytes.
    problem = Problem(
        load=[6, 1, 1, 1], state=[1, 9, 9, 9], owner=[2, 0, 1, 1], workers=2, tau=0.1, capacities={2: 3.0}
    )
    plan = free(problem)
    check(problem, plan)
    assert plan.workers == (1, 2)
    assert plan.cost == 9


def test_a_bin_heavier_than_any_cap_is_named():
    problem = Problem(load=[1, 6, 1], state=[1] * 3, owner=[0] * 3, workers=2, tau=0.2)
    with pytest.raises(
        Infeasible, match=r"bin 1 alone has load 6, above the cap of 4\.8 per worker at tau 0\.2"
    ) as why:
        free(problem)
    assert why.value.smallest_tau == pytest.approx(0.5)
    assert str(why.value).endswith("the smallest tau that would do is 0.5")


def test_a_worker_with_too_many_pinned_bins_is_named():
    problem = Problem(load=[2, 2, 1], state=[1] * 3, owner=[3, 3, 4], workers=2, tau=0.2, pinned=[0, 1])
    with pytest.raises(Infeasible, match="the bins pinned to worker 3 have load 4 together, above its cap of 3") as why:
        free(problem)
    assert why.value.smallest_tau == pytest.approx(0.6)


def test_the_smallest_tau_is_that_of_the_best_packing():
    # The heaviest first would end at 5 + 3 + 3 = 11; the best packing is 5 + 4 and 3 + 3 + 3.
    problem = Problem(load=[5, 4, 3, 3, 4.5], state=[1] * 5, owner=[0] * 5, workers=2, tau=0.01)
    with pytest.raises(Infeasible) as why:
        free(problem)
    assert why.value.smallest_tau == pytest.approx(10 / 9.75 - 1)
    assert "no assignment of 5 bins to 2 workers keeps every load within its cap" in str(why.value)
    # The printed number is rounded up, so it can be copied.
    printed = float(str(why.value).rsplit(" ", 1)[1])
    assert printed == 0.0257
    relaxed = replace(problem, tau=printed)
    check(relaxed, free(relaxed))


def test_a_large_printed_tau_is_not_cut():
    problem = Problem(load=[1] * 7, state=[1] * 7, owner=[0] * 7, workers=900, tau=0.2)
    with pytest.raises(Infeasible) as why:
        free(problem)
    printed = float(str(why.value).rsplit(" ", 1)[1])
    assert printed == math.ceil((900 / 7 - 1) * 1e4) / 1e4
    relaxed = replace(problem, tau=printed)
    check(relaxed, free(relaxed))


@pytest.mark.parametrize("nodes", [0, -1, 1.5, True, "many", None])
def test_a_senseless_number_of_nodes_is_refused(nodes):
    with pytest.raises(InvalidOption, match="nodes is .*; it must be a whole number of at least 1"):
        free(Problem([1], [1], [0], 1), nodes=nodes)


@pytest.mark.parametrize("nodes", [1, 10, 1000])
def test_few_nodes_still_give_an_answer(nodes):
    rng = np.random.default_rng(5)
    problem = Problem(rng.random(40), rng.random(40), rng.integers(0, 5, 40), 6, 0.05)
    plan = free(problem, nodes=nodes)
    check(problem, plan)
    assert free(problem).cost <= plan.cost


def test_the_cheapest_cover_is_the_cheapest_of_all():
    rng = np.random.default_rng(1)
    for size in rng.integers(1, 11, 200):
        load, state = rng.integers(1, 9, size).astype(float), rng.integers(0, 9, size).astype(float)
        order = by_bytes_per_load(load, state)
        load, state = load[order], state[order]
        need = float(rng.integers(1, load.sum() + 1))
        out, floor = cheapest_cover(load, state, need, 100_000)
        every = (np.arange(2**size)[:, None] >> np.arange(size)) & 1
        cheapest = (every @ state)[every @ load >= need].min()
        assert load[out].sum() >= need
        assert state[out].sum() == floor == cheapest
        _, hurried = cheapest_cover(load, state, need, 1)
        assert hurried <= cheapest


def skewed(kind: str, tau: float) -> Problem:
    """4096 bins of Zipf load and state, independent of each other, on 64 workers that become 65."""
    rng = np.random.default_rng(3)
    bins, ranks = 4096, np.arange(1, 4097)
    load, state = rng.permutation(ranks**-0.5), rng.permutation(np.ceil(1e7 * ranks**-0.5))
    owner = np.arange(bins) // 64 if kind == "intervals" else rng.integers(0, 64, bins)
    return Problem(load, state.astype(int), owner, 65, tau)


def fewest_bytes_shed(problem: Problem) -> float:
    """What those above the cap must shed at least, by a MILP solver, even if all that is shed fitted elsewhere."""
    load, state, owner = problem.load_array, problem.state_array, np.array(problem.owner)
    excess = np.bincount(owner, load) - (1 + problem.tau) * load.sum() / problem.wanted
    over = np.flatnonzero(excess > 0)
    bins = np.flatnonzero(np.isin(owner, over))
    rows = np.array([np.where(owner[bins] == w, load[bins], 0) for w in over])
    answer = milp(
        state[bins],
        integrality=np.ones(bins.size),
        bounds=Bounds(0, 1),
        constraints=LinearConstraint(rows, excess[over]),
    )
    assert answer.status == 0, answer.message
    return float(answer.fun)


@pytest.mark.parametrize(("kind", "tau"), [("intervals", 0.2), ("scattered", 0.2), ("scattered", 0.02)])
def test_thousands_of_bins_are_planned_near_the_bound(kind, tau):
    problem = skewed(kind, tau)
    plan = free(problem)
    check(problem, plan)
    bound = fewest_bytes_shed(problem)
    assert 0 < bound * (1 - 1e-6) <= plan.cost <= 1.001 * bound
    if kind == "intervals":
        assert plan.cost < ssm(problem).cost
    assert plan == free(problem)


def test_hundreds_of_workers_leave_at_once():
    problem = Problem([1] * 400, [1] * 200 + [2] * 200, range(400), 200, tau=1.0)
    plan = free(problem)
    check(problem, plan)
    assert plan.cost == 200
    assert plan.workers == tuple(range(200, 400))
