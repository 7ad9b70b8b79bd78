"""ssm against brute force and against the paper's slow form, on thousands of small problems."""

import dataclasses
import random

import pytest
from hypothesis import given

from effort import examples
from meander import Infeasible, check, plan
from meander.types import is_contiguous
from oracles import best_contiguous_gain, problems, random_problem


def gain_of(planner, problem):
    """The planner's gain, or None where it says that there is no answer; every answer is checked."""
    try:
        answer = plan(problem, planner)
    except Infeasible as refusal:
        if refusal.smallest_tau is not None:
            wider = dataclasses.replace(problem, tau=refusal.smallest_tau)
            check(wider, plan(wider, planner))
        return None
    check(problem, answer)
    assert is_contiguous(answer.owner)
    return answer.gain


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 4))])
def test_ssm_equals_brute_force_on_interval_maps(seed):
    rng = random.Random(seed)
    answered = 0
    for _ in range(700):
        problem = random_problem(rng)
        true = best_contiguous_gain(problem)
        assert gain_of("ssm", problem) == true, problem
        answered += true is not None
    assert answered > 300


@pytest.mark.parametrize("seed", [4, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(5, 8))])
def test_ssm_equals_brute_force_with_scattered_owners_pins_and_capacities(seed):
    rng = random.Random(seed)
    answered = 0
    for _ in range(250):
        problem = random_problem(rng, scattered=rng.random() < 0.7, options=True)
        true = best_contiguous_gain(problem)
        assert gain_of("ssm", problem) == true, problem
        answered += true is not None
    assert answered > 100


@examples(300)
@given(problems(max_bins=9, plain=True))
def test_ssm_equals_the_papers_slow_form_also_with_fractions(problem):
    fast, slow = gain_of("ssm", problem), gain_of("simple_ssm", problem)
    assert (fast is None) == (slow is None)
    if fast is not None:
        assert fast == pytest.approx(slow, rel=1e-9, abs=1e-9)


@examples(150)
@given(problems(max_bins=40, plain=True))
def test_both_kernels_of_ssm_agree(problem):
    """The general kernel does not know that a map is made of intervals, and must find the same gain."""
    from meander.planning.intervals import target_of
    from meander.planning.planner import Plan
    from meander.planning.ssm_general import solve

    quick = gain_of("ssm", problem)
    if quick is None:
        with pytest.raises(Infeasible):
            solve(problem)
    else:
        general = Plan.of(problem, *target_of(problem, solve(problem)))
        check(problem, general)
        assert general.gain == pytest.approx(quick, rel=1e-9, abs=1e-9)


@examples(200)
@given(problems(max_bins=30))
def test_every_answer_is_contiguous_and_holds_when_recomputed(problem):
    gain_of("ssm", problem)
