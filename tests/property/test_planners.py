"""What holds for every planner, whatever it is."""

from contextlib import suppress

import pytest
from hypothesis import given

import meander
from effort import examples
from meander import Infeasible, TooLarge, check, plan, planners
from meander.errors import InvalidProblem, MeanderError
from meander.types import is_contiguous
from oracles import problems

# oms and simple_ssm refuse what is beyond them; everyone else takes every problem.
PARTIAL = {"oms", "simple_ssm"}


def test_the_planners_of_the_design_are_there():
    wanted = {"simple_ssm", "ssm", "mtm", "oms", "annealing", "free", "even", "consistent_hash", "redist"}
    assert set(planners()) == wanted
    for name, planner in planners().items():
        assert planner.name == name
        assert planner.summary
        assert planner.__doc__


@pytest.mark.parametrize("name", sorted(PARTIAL))
@examples(120)
@given(problem=problems(max_bins=6, plain=True))
def test_those_with_limits_answer_whatever_ssm_answers_on_small_plain_problems(name, problem):
    try:
        best = plan(problem, "ssm")
    except Infeasible:
        with pytest.raises(Infeasible):
            plan(problem, name)
        return
    answer = plan(problem, name)
    check(problem, answer)
    assert answer.cost == pytest.approx(best.cost, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("name", planners())
@examples(40)
@given(problem=problems())
def test_every_answer_holds_when_recomputed(name, problem):
    planner = planners()[name]
    try:
        answer = plan(problem, name)
    except MeanderError as refusal:
        refused = refusal
    else:
        refused = None
    if isinstance(refused, Infeasible):
        assert planner.keeps_cap
        assert refused.smallest_tau is None or refused.smallest_tau > problem.tau
        return
    if refused is not None:
        assert isinstance(refused, TooLarge | InvalidProblem)
        assert name in PARTIAL
        return
    check(problem, answer, cap=planner.keeps_cap)
    assert answer.planner == name
    if planner.contiguous:
        assert is_contiguous(answer.owner)


@pytest.mark.parametrize("name", planners())
@examples(20)
@given(problem=problems(max_bins=10, plain=True))
def test_the_same_question_gets_the_same_answer(name, problem):
    with suppress(Infeasible, TooLarge, InvalidProblem):
        assert plan(problem, name) == plan(problem, name)


@examples(150)
@given(problem=problems(max_bins=16))
def test_free_never_moves_more_than_ssm(problem):
    try:
        contiguous = plan(problem, "ssm")
    except Infeasible:
        return
    assert plan(problem, "free").cost <= contiguous.cost * (1 + 1e-9)


def test_an_unknown_planner_or_option_is_named():
    problem = meander.Problem([1], [1], [0], 1)
    with pytest.raises(meander.InvalidOption, match="no planner 'best'; the planners are .*mtm.*ssm, free"):
        plan(problem, "best")
    with pytest.raises(meander.InvalidOption, match="planner even has no option 'seed'; its options: none"):
        plan(problem, "even", seed=1)
