"""Planner `mtm`: when it looks ahead, when it answers as `ssm` does, and the words it says so with."""

from __future__ import annotations

import numpy as np
import pytest

import meander as me
from meander.errors import Damaged, Infeasible, InvalidOption
from meander.outlook import ExactOutlook, LearnedOutlook, files
from meander.outlook.outlook import FAR
from meander.outlook.practice import Effort, Lesson, learn
from meander.outlook.transitions import Transitions
from outlooks import solve

PAPER = Transitions.given([[0.3, 0.6, 0.1], [0.3, 0.4, 0.3], [0.1, 0.5, 0.4]], lo=2)
M = 12
LITTLE = Effort(rounds=2, tasks=1, steps=200, rehearsals=2, length=50)
RNG = np.random.default_rng(5)
LOAD, STATE = RNG.uniform(0.5, 2, M), RNG.integers(1, 50, M).astype(float)


def exact_outlook(gamma=0.9):
    return solve(LOAD, STATE, PAPER, 0.5, gamma)


def learned_outlook(gamma=0.9, load=LOAD, state=STATE, tau=0.5):
    lesson = Lesson.of(load, state, PAPER, tau, gamma, 0.05)
    return LearnedOutlook.of(lesson, LITTLE, learn(lesson, LITTLE, map, lambda *_: None))


KINDS = {"exact": exact_outlook, "learned": learned_outlook}


@pytest.fixture(scope="module")
def outlooks():
    return {name: make() for name, make in KINDS.items()}


@pytest.fixture(params=list(KINDS))
def outlook(request, outlooks):
    return outlooks[request.param]


def question(**change):
    fields = {"load": LOAD, "state": STATE, "owner": [0] * 4 + [1] * 4 + [2] * 4, "workers": 4, "tau": 0.5, **change}
    return me.Problem(**fields)


def test_what_fits_is_planned_by_looking_ahead_without_a_word(outlook):
    for workers in (2, 3, 4):
        problem = question(workers=workers)
        made = me.plan(problem, "mtm", outlook=outlook)
        assert (made.planner, made.notes) == ("mtm", ())
        me.check(problem, made)
        assert made.cost >= me.plan(problem, "ssm").cost


def test_looking_ahead_pays_over_many_migrations():
    outlook = exact_outlook(gamma=0.95)
    counts = [2 + np.random.default_rng(1).integers(3)]
    rng = np.random.default_rng(2)
    for _ in range(200):
        counts.append(2 + int(rng.choice(3, p=PAPER.row(int(counts[-1])))))
    total = {}
    for planner, options in (("ssm", {}), ("mtm", {"outlook": outlook})):
        owner, total[planner] = [0] * M, 0.0
        for n in counts:
            made = me.plan(question(owner=owner, workers=int(n), tau=outlook.taus[int(n)]), planner, **options)
            owner, total[planner] = made.owner, total[planner] + made.cost
    assert total["mtm"] < total["ssm"]


@pytest.mark.parametrize("kind", KINDS)
def test_where_nothing_to_come_counts_it_moves_as_much_as_ssm(kind):
    outlook = KINDS[kind](gamma=0.0)
    rng = np.random.default_rng(7)
    for _ in range(30):
        inner = np.sort(rng.choice(np.arange(1, M), rng.integers(0, 4), replace=False))
        owner = np.searchsorted(inner, np.arange(M), side="right").tolist()
        problem = question(owner=owner, workers=int(rng.integers(2, 5)))
        made = me.plan(problem, "mtm", outlook=outlook)
        assert made.cost == me.plan(problem, "ssm").cost
        assert made.notes == ()
        # Also by the outlook itself, which the planner does not even ask.
        owner = outlook.choose(problem).owner
        assert me.Plan.of(problem, owner, set(owner)).cost == pytest.approx(made.cost)


FAR_OFF = "of load or state is not where the outlook has it, more than 30%; make a new one"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"load": LOAD[1:], "state": STATE[1:], "owner": [0] * 11}, "about 12 bins and the problem has 11"),
        ({"workers": 5}, "about 2 to 4 workers and the problem wants 5"),
        ({"workers": [0]}, "about 2 to 4 workers and the problem wants 1"),
        ({"owner": [0, 1] * 6}, "about intervals of bins and the present owners hold several each"),
        ({"pinned": [3]}, "about equal workers and bins that may all move"),
        ({"capacities": [1, 2]}, "about equal workers and bins that may all move"),
        ({"tau": 1.0}, "about tau 0.5 for 4 workers and the problem has 1"),
        ({"tau": 0.19, "workers": 2}, "about tau 0.5 for 2 workers and the problem has 0.19"),
        ({"load": [*LOAD[:-1], 20], "workers": 2}, f"54% {FAR_OFF}"),
        ({"state": STATE * ([1] * 6 + [9] * 6)}, f"39% {FAR_OFF}"),
    ],
)
def test_what_does_not_fit_is_planned_by_ssm_with_one_note(outlook, change, why):
    problem = question(**change)
    made, myopic = me.plan(problem, "mtm", outlook=outlook), me.plan(problem, "ssm")
    assert made.notes == (f"planned by ssm: {why if '%' in why else f'the outlook is {why}'}",)
    assert made.planner == "mtm"
    assert (made.owner, made.workers, made.cost) == (myopic.owner, myopic.workers, myopic.cost)
    me.check(problem, made)


def test_loads_may_drift_as_far_as_is_stated(outlook):
    def drifted(by):
        load = LOAD * ([1] * 6 + [by] * 6)
        return question(load=load, workers=2)

    near, far = drifted(2.0), drifted(6.0)
    assert outlook.distance(near) < FAR < outlook.distance(far)
    assert me.plan(near, "mtm", outlook=outlook).notes == ()
    assert len(me.plan(far, "mtm", outlook=outlook).notes) == 1


def test_a_tau_that_had_to_be_raised_fits_from_the_one_asked_for_to_the_one_used():
    # One bin has most of the load, so 4 workers need a tau of 1.8 where 0.2 was asked for.
    load = [10, *[0.4] * 11]
    for outlook in (solve(load, STATE, PAPER, 0.2), learned_outlook(load=load, tau=0.2)):
        assert outlook.taus[4] > 1.7
        taus = [0, 0.2, 1, outlook.taus[4], 2.4, 2.6]
        assert [tau for tau in taus if outlook.unfit(question(load=load, tau=tau)) is None] == taus[:-1]
        made = me.plan(question(load=load, tau=outlook.taus[4]), "mtm", outlook=outlook)
        assert made.notes == ()


def test_without_an_outlook_it_is_ssm_and_says_so():
    problem = question()
    made, myopic = me.plan(problem, "mtm"), me.plan(problem, "ssm")
    assert made.notes == ("planned by ssm: there is no outlook; make one with me.pmc(...)",)
    assert (made.owner, made.workers) == (myopic.owner, myopic.workers)


def test_a_cap_that_none_of_the_known_partitionings_keeps_is_left_to_ssm():
    # Of equal bins it knows the one even cut; then some grow and others shrink, and another cut is even.
    outlook = solve([1] * M, STATE, PAPER, 0.0)
    problem = question(load=[0.75] * 4 + [1] * 3 + [1.5] * 2 + [1] * 3, tau=0.03)
    assert outlook.unfit(problem) is None
    made = me.plan(problem, "mtm", outlook=outlook)
    assert made.notes == (
        "planned by ssm: nothing that the outlook knows keeps the cap at the present loads; make a new one",
    )
    assert made.owner == me.plan(problem, "ssm").owner
    me.check(problem, made)


def test_what_cannot_be_is_refused_as_ssm_refuses_it(outlook):
    for change in ({"load": [9, *LOAD[1:]]}, {"load": [*LOAD[:5], 12, *LOAD[6:]]}):
        problem = question(**change, tau=0.4)
        with pytest.raises(Infeasible) as by_ssm:
            me.plan(problem, "ssm")
        for given in (outlook, None):
            with pytest.raises(Infeasible) as by_mtm:
                me.plan(problem, "mtm", outlook=given)
            assert str(by_mtm.value) == str(by_ssm.value)
            assert by_mtm.value.smallest_tau == by_ssm.value.smallest_tau


def test_an_outlook_may_be_given_as_its_folder(outlook, tmp_path):
    files.write(outlook, tmp_path / "here")
    for workers in (2, 3, 4):
        problem = question(workers=workers)
        expected = me.plan(problem, "mtm", outlook=outlook)
        for given in (tmp_path / "here", str(tmp_path / "here")):
            assert me.plan(problem, "mtm", outlook=given) == expected


def test_a_folder_is_read_again_once_it_holds_another_outlook(outlooks, tmp_path):
    problem = question()
    files.write(outlooks["exact"], tmp_path)
    assert me.plan(problem, "mtm", outlook=tmp_path).notes == ()
    files.write(solve([1] * 5, [1] * 5, PAPER), tmp_path)
    (note,) = me.plan(problem, "mtm", outlook=tmp_path).notes
    assert "5 bins" in note
    (tmp_path / files.INDEX).unlink()
    with pytest.raises(InvalidOption, match="holds no finished outlook; make one with me.pmc"):
        me.plan(problem, "mtm", outlook=tmp_path)


@pytest.mark.parametrize(("given", "what"), [(7, "int"), (PAPER, "Transitions"), ([1, 2], "list")])
def test_what_is_no_outlook_is_refused(given, what):
    with pytest.raises(InvalidOption) as refused:
        me.plan(question(), "mtm", outlook=given)
    assert str(refused.value) == f"outlook must be one that me.pmc made, or its folder, not {what}"


def test_a_folder_without_an_outlook_is_refused(outlooks, tmp_path):
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(InvalidOption, match=f"{folder.name} holds no finished outlook; make one with me.pmc"):
            me.plan(question(), "mtm", outlook=folder)
    files.write(outlooks["learned"], tmp_path)
    (path,) = tmp_path.glob("*.parquet")
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(Damaged, match=f"{path.name} is not what was written; remove it and make it again"):
        me.plan(question(), "mtm", outlook=tmp_path)


def test_an_unknown_option_is_refused_with_the_one_there_is():
    with pytest.raises(InvalidOption, match="outlook"):
        me.plan(question(), "mtm", gamma=0.5)


def test_kinds_are_told_apart(outlooks):
    assert isinstance(outlooks["exact"], ExactOutlook)
    assert repr(outlooks["learned"]) == "<learned outlook of 12 bins, 2 to 4 workers, tau 0.5, gamma 0.9>"
