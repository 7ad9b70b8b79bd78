"""The checker must notice every kind of wrong plan, or it is worth nothing."""

import dataclasses

import pytest

from meander import InvalidPlan, Move, Plan, Problem, check, plan

PROBLEM = Problem(
    load=[3, 1, 1, 3], state=[10, 20, 30, 40], owner=[0, 0, 1, 1], workers=3, tau=0.5, must_leave=[1], pinned=[0]
)
GOOD = plan(PROBLEM)


def test_a_good_plan_passes():
    check(PROBLEM, GOOD)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cost": GOOD.cost + 1}, "cost"),
        ({"gain": GOOD.gain - 1}, "gain"),
        ({"moves": GOOD.moves[1:]}, "moves"),
        ({"moves": tuple(m._replace(bytes=0) for m in GOOD.moves)}, "moves"),
        ({"moves": (*GOOD.moves, Move(0, 0, 2, 10))}, "moves"),
        ({"before": (0, 0, 0, 1)}, "another assignment"),
        ({"owner": GOOD.owner[:-1]}, "3 bins"),
        ({"owner": (0, 0, 0, 9)}, "not among the plan's workers"),
        ({"loads": {**GOOD.loads, 0: 99.0}}, "load of worker 0"),
        ({"caps": {**GOOD.caps, 0: 99.0}}, "cap of worker 0"),
        ({"loads": {}}, "must name each"),
        ({"caps": {**GOOD.caps, 9: 1.0}}, "must name each"),
        ({"cost": float("nan")}, "cost is nan"),
        ({"loads": {**GOOD.loads, 2: float("inf")}}, "load of worker 2 is inf"),
        ({"workers": (0, 2)}, "2 workers, but 3"),
        ({"workers": (0, 1, 2)}, "worker 1 has to leave"),
        ({"workers": (2, 0, 3)}, "ascending order"),
    ],
)
def test_a_tampered_plan_is_refused(change, message):
    with pytest.raises(InvalidPlan, match=message):
        check(PROBLEM, dataclasses.replace(GOOD, **change))


@pytest.mark.parametrize(
    ("owner", "message"),
    [
        ((2, 0, 0, 3), "bin 0 is pinned to worker 0"),
        ((0, 0, 0, 0), "worker 0 carries 8, its cap is 4"),
    ],
)
def test_a_consistent_but_wrong_plan_is_refused(owner, message):
    with pytest.raises(InvalidPlan, match=message):
        check(PROBLEM, Plan.of(PROBLEM, owner, [0, 2, 3]))


def test_the_cap_may_be_waived_for_baselines():
    over = Plan.of(PROBLEM, [0, 0, 0, 0], [0, 2, 3])
    check(PROBLEM, over, cap=False)
    assert over.over_cap == (0,)


def test_ids_are_stable():
    problem = Problem([1, 1], [1, 1], [0, 4], workers=3)
    with pytest.raises(InvalidPlan, match="above all present"):
        check(problem, Plan.of(problem, [0, 4], [0, 2, 4]))
    replaced = Problem([1, 1], [1, 1], [0, 4], workers=2)
    with pytest.raises(InvalidPlan, match="could have stayed"):
        check(replaced, Plan.of(replaced, [0, 5], [0, 5]))
    named = Problem([1, 1], [1, 1], [0, 4], workers=[0, 7])
    with pytest.raises(InvalidPlan, match="are wanted"):
        check(named, Plan.of(named, [0, 0], [0, 8]))


def test_whole_numbers_stay_whole():
    assert isinstance(GOOD.cost, int)
    assert GOOD.cost + GOOD.gain == 100
    halves = plan(Problem([1, 1], [0.5, 1], [0, 0], workers=2))
    assert halves.cost == 0.5
    assert halves.gain == 1.0
