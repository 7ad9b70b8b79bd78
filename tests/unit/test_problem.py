import dataclasses
import json
import pickle

import numpy as np
import pytest
from hypothesis import given

from meander import Assignment, InvalidProblem, MeanderError, Problem
from oracles import problems

GOOD = {"load": [1, 2, 3], "state": [10, 20, 30], "owner": [0, 0, 1], "workers": 2, "tau": 0.2}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"load": [1, -2, 3]}, "load of bin 1 is -2"),
        ({"load": [1, 2, float("nan")]}, "load of bin 2 is nan"),
        ({"load": [float("inf"), 2, 3]}, "load of bin 0 is inf"),
        ({"load": [1, "2", 3]}, "load of bin 1 must be a number, not a text"),
        ({"load": [1, True, 3]}, "load of bin 1 must be a number"),
        ({"load": [10**400, 1, 1]}, "load of bin 0 is too large"),
        ({"load": [1e308, 1e308, 1]}, "load of bin 0 is 1e+308, more than 1e+100"),
        ({"state": [1, 1, 10**200]}, "state of bin 2 is 1e+200, more than 1e+100"),
        ({"tau": 1e300}, "tau is 1e+300"),
        ({"capacities": {0: 1e-200}}, "capacity of worker 0 is 1e-200"),
        ({"load": "123"}, "load must be a list, not a text"),
        ({"load": {1.0, 2.0, 3.0}}, "load must be a list, not {1.0, 2.0, 3.0}"),
        ({"load": 5}, "load must be a list, not 5"),
        ({"load": [], "state": [], "owner": []}, "at least one bin"),
        ({"state": [10, 20]}, "state has 2 entries but load has 3"),
        ({"state": [10, 20, -1]}, "state of bin 2 is -1"),
        ({"owner": [0, 0, 1, 1]}, "owner has 4 entries but load has 3"),
        ({"owner": [0, -1, 1]}, "owner of bin 1 is -1"),
        ({"owner": [0, 0.5, 1]}, "owner of bin 1 is 0.5"),
        ({"owner": [0, 2**31, 1]}, "owner of bin 1 is 2147483648"),
        ({"workers": 0}, "workers is 0"),
        ({"workers": -3}, "workers is -3"),
        ({"workers": 10**9}, "workers is 1000000000"),
        ({"workers": 2.5}, "workers must be how many"),
        ({"workers": None}, "workers must be how many workers are wanted or a list of their ids, not null"),
        ({"workers": []}, "workers is an empty list"),
        ({"workers": [0, "x"]}, "a worker in workers is 'x'"),
        ({"tau": -0.1}, "tau is -0.1"),
        ({"tau": float("nan")}, "tau is nan"),
        ({"tau": "0.2"}, "tau must be a number"),
        ({"capacities": {0: 0}}, "capacity of worker 0 is 0"),
        ({"capacities": {7: 1.0}}, "capacities names worker 7"),
        ({"capacities": [1, 1, 1]}, "capacities names worker 2"),
        ({"must_leave": [7]}, "must_leave names worker 7"),
        ({"workers": [0, 1], "must_leave": [1]}, "worker 1 is both wanted and in must_leave"),
        ({"pinned": [3]}, "pinned names bin 3; the bins are 0 to 2"),
        ({"pinned": [2], "must_leave": [1]}, "bin 2 is pinned to worker 1, which has to leave"),
        ({"pinned": [0, 2], "workers": 1}, "2 workers hold pinned bins but only 1 may stay"),
        ({"idle": [1]}, "worker 1 is listed as idle but owns bin 2"),
    ],
)
def test_bad_problems_name_what_is_wrong_in_one_sentence(change, message):
    with pytest.raises(InvalidProblem, match="^[^\n]+$") as caught:
        Problem(**{**GOOD, **change})
    assert message in str(caught.value)
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, MeanderError)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([1, 2], "not a list"),
        ({"load": [1]}, "lacks the field 'state'"),
        ({**GOOD, "capacity": {}}, "has no field 'capacity'; the fields are load"),
    ],
)
def test_bad_json_is_refused(data, message):
    with pytest.raises(InvalidProblem, match="^[^\n]+$") as caught:
        Problem.from_dict(data)
    assert message in str(caught.value)


@given(problems())
def test_a_problem_survives_json_and_pickle(problem):
    assert Problem.from_dict(json.loads(json.dumps(problem.to_dict()))) == problem
    assert pickle.loads(pickle.dumps(problem)) == problem
    assert hash(dataclasses.replace(problem)) == hash(problem)


def test_numpy_and_assignments_are_welcome():
    problem = Problem(np.array([1.0, 2.0]), np.array([3, 4]), Assignment.initial([5, 6]), np.int64(2))
    assert problem.load == (1.0, 2.0)
    assert problem.state == (3, 4)
    assert problem.owner == (5, 6)
    json.dumps(problem.to_dict())


def test_a_problem_is_frozen():
    problem = Problem(**GOOD)
    with pytest.raises(dataclasses.FrozenInstanceError):
        problem.tau = 1
    with pytest.raises(TypeError):
        problem.capacities[0] = 2.0


def test_who_stays_and_who_comes():
    grow = Problem([1] * 4, [1] * 4, [0, 0, 4, 4], workers=4)
    assert grow.survivors == (0, 4)
    assert grow.newcomers == (5, 6)
    assert not grow.planner_chooses
    shrink = dataclasses.replace(grow, workers=1)
    assert shrink.planner_chooses
    assert shrink.newcomers == ()
    assert dataclasses.replace(shrink, pinned=[3]).default_targets == (4,)
    replaced = dataclasses.replace(grow, workers=2, must_leave=[0])
    assert (replaced.survivors, replaced.newcomers) == ((4,), (5,))
    named = dataclasses.replace(grow, workers=[4, 9])
    assert (named.survivors, named.newcomers, named.wanted) == ((4,), (9,), 2)
    with_idle = dataclasses.replace(grow, idle=[7])
    assert (with_idle.survivors, with_idle.newcomers) == ((0, 4, 7), (8,))


def test_the_cap_is_proportional_to_capacity():
    problem = Problem([3, 3, 3], [1] * 3, [0, 0, 1], workers=2, tau=0.5, capacities={0: 2.0})
    assert problem.caps((0, 1)) == pytest.approx({0: 9.0, 1: 4.5})
    assert not problem.has_equal_capacities
