import dataclasses
import math

import numpy as np
import pytest

from meander import Infeasible, InvalidProblem, Problem, TooLarge, check, plan
from meander.types import is_contiguous

TABLE_3 = Problem(load=[1] * 20, state=[1] * 20, owner=[0] * 13 + [1] * 7, workers=3, tau=0.4)


def test_the_first_step_of_the_papers_table_3():
    assert plan(TABLE_3, "ssm").cost == 4
    assert plan(TABLE_3, "simple_ssm").cost == 4


def test_nothing_moves_where_nothing_has_to():
    stay = Problem([1] * 8, [5] * 8, [3, 3, 3, 3, 1, 1, 1, 1], workers=2, tau=0.0)
    assert plan(stay).moves == ()


def test_workers_that_stay_keep_their_ids_and_new_ones_get_new_ids():
    grown = plan(Problem([1] * 6, [1] * 6, [7, 7, 7, 2, 2, 2], workers=3, tau=0.0))
    assert grown.workers == (2, 7, 8)
    assert grown.cost == 2
    shrunk = plan(Problem([1] * 6, [9, 9, 1, 1, 9, 9], [7, 7, 5, 5, 2, 2], workers=2, tau=0.0))
    assert shrunk.workers == (2, 7)
    assert shrunk.cost == 2


def test_who_must_leave_leaves_even_where_another_choice_were_cheaper():
    problem = Problem([1] * 6, [9, 9, 1, 1, 9, 9], [7, 7, 5, 5, 2, 2], workers=2, tau=0.0, must_leave=[7])
    answer = plan(problem)
    check(problem, answer)
    assert answer.workers == (2, 5)


def test_zero_load_zero_state_and_more_workers_than_bins():
    for load, state in (([0, 0, 0], [1, 2, 3]), ([1, 1, 1], [0, 0, 0]), ([0, 0, 0], [0, 0, 0])):
        for workers in (1, 2, 3, 5):
            problem = Problem(load, state, [0, 0, 1], workers, tau=2.0)
            answer = plan(problem)
            check(problem, answer)
            assert len(answer.workers) == workers


def test_an_infeasible_cap_names_the_bin_and_the_smallest_tau():
    problem = Problem([9, 1, 1, 1], [1] * 4, [0] * 4, workers=3, tau=0.2)
    with pytest.raises(Infeasible, match="bin 0 alone has load 9, above the cap of 4.8") as caught:
        plan(problem)
    assert caught.value.smallest_tau == 1.25
    assert "the smallest tau that would do is 1.25" in str(caught.value)
    check(dataclasses.replace(problem, tau=1.25), plan(dataclasses.replace(problem, tau=1.25)))


def test_an_infeasible_partition_says_that_intervals_are_the_matter():
    problem = Problem([2, 2, 2], [1] * 3, [0] * 3, workers=2, tau=0.2)
    with pytest.raises(Infeasible, match="no contiguous assignment of 3 bins to 2 workers") as caught:
        plan(problem)
    assert caught.value.smallest_tau == pytest.approx(1 / 3, abs=1e-4)
    assert plan(dataclasses.replace(problem, tau=caught.value.smallest_tau)).cost == 1


@pytest.mark.parametrize("seed", range(20))
def test_the_smallest_tau_is_enough_and_the_least(seed):
    rng = np.random.default_rng(seed)
    problem = Problem(rng.integers(1, 30, 40), rng.integers(1, 9, 40), [0] * 40, workers=9, tau=0.0)
    with pytest.raises(Infeasible) as caught:
        plan(problem)
    smallest = caught.value.smallest_tau
    check(dataclasses.replace(problem, tau=smallest), plan(dataclasses.replace(problem, tau=smallest)))
    with pytest.raises(Infeasible):
        plan(dataclasses.replace(problem, tau=smallest - 2e-4))


def test_pins_that_contradict_intervals_are_named():
    problem = Problem([1] * 5, [1] * 5, [0, 1, 0, 1, 0], workers=2, tau=1.0, pinned=[0, 1, 2])
    why = "bins 0 and 2 are pinned to worker 0 and bin 1 between them to worker 1"
    with pytest.raises(Infeasible, match=why) as caught:
        plan(problem)
    assert caught.value.smallest_tau is None


def test_bytes_of_large_state_are_not_rounded_away():
    scattered = Problem([1] * 4, [100_000_000_000, 25, 70_000_000_000, 30], [0, 1, 2, 0], workers=3, tau=3.0)
    assert plan(scattered).cost == 30
    assert plan(Problem([0, 0], [2**60, 1], [0, 1], workers=2, tau=1.0)).cost == 0


def test_the_smallest_tau_is_exact_and_its_sentence_rounds_up():
    with pytest.raises(Infeasible, match="would do is 0.1429$") as caught:
        plan(Problem([0.9, 0.9, 0.3], [1] * 3, [0, 1, 1], workers=2, tau=0.0))
    assert caught.value.smallest_tau == pytest.approx(1 / 7, rel=1e-9)
    scattered = Problem([0, 0.3, 0.6, 0], [0, 1, 0, 1], [1, 0, 1, 0], workers=3, tau=0.1, must_leave=[0], pinned=[2])
    with pytest.raises(Infeasible, match="would do is 1$") as caught:
        plan(scattered)
    assert caught.value.smallest_tau == pytest.approx(1.0, rel=1e-9)
    with pytest.raises(Infeasible, match="would do is 333332.3334$"):
        plan(Problem([1] * 3, [1] * 3, [0] * 3, workers=1_000_000, tau=0.0))


@pytest.mark.parametrize("planner", ["ssm", "free"])
def test_the_smallest_floats_there_are_do_not_keep_it_busy_for_ever(planner):
    tiny = Problem([5e-324, 1e-320], [1, 1], [1, 2], workers=[0, 1, 2, 5], tau=2.0)
    with pytest.raises(Infeasible):
        plan(tiny, planner)


def test_unequal_workers_get_unequal_shares():
    problem = Problem([1] * 9, [1] * 9, [0] * 9, workers=2, tau=0.0, capacities={0: 1.0, 1: 2.0})
    answer = plan(problem)
    assert answer.loads == {0: 3.0, 1: 6.0}


def test_what_is_too_large_says_so_and_points_on():
    rng = np.random.default_rng(1)
    speeds = {w: 1 + w / 100 for w in range(32)}
    many_speeds = Problem([1] * 64, [1] * 64, np.arange(64) // 2, workers=32, tau=0.05, capacities=speeds)
    with pytest.raises(TooLarge, match="32 different capacities.*use planner 'free'"):
        plan(many_speeds)
    big = Problem([1] * 400, rng.integers(1, 9, 400), [0] * 400, workers=5, tau=0.2)
    with pytest.raises(TooLarge, match="use planner 'ssm'"):
        plan(big, "simple_ssm")
    with pytest.raises(InvalidProblem, match="use planner 'ssm'"):
        plan(Problem([1, 1, 1], [1, 1, 1], [0, 1, 0], workers=2), "simple_ssm")


def test_a_large_problem_with_strays_is_answered_and_contiguous():
    rng = np.random.default_rng(5)
    owner = np.arange(512) // 32
    owner[rng.choice(512, 12, replace=False)] = rng.integers(0, 16, 12)
    problem = Problem(rng.integers(1, 9, 512), rng.integers(1, 1000, 512), owner, workers=17, tau=0.3)
    answer = plan(problem)
    check(problem, answer)
    assert is_contiguous(answer.owner)


def test_two_strays_change_the_gain_by_at_most_their_bytes():
    rng = np.random.default_rng(3)
    load, state = rng.integers(1, 9, 60).tolist(), rng.integers(1, 50, 60).tolist()
    owner = [j // 10 for j in range(60)]
    straight = plan(Problem(load, state, owner, workers=7, tau=0.4))
    moved = [*owner[:15], 5, 5, *owner[17:]]
    bent = plan(Problem(load, state, moved, workers=7, tau=0.4))
    assert abs(bent.gain - straight.gain) <= state[15] + state[16]


def test_ties_are_broken_the_same_way_every_time():
    answers = {plan(TABLE_3).owner for _ in range(5)}
    assert len(answers) == 1


def test_elapsed_time_is_reported():
    assert math.isfinite(plan(TABLE_3).elapsed_ms)
    assert plan(TABLE_3).elapsed_ms > 0
