"""Learning by practice: what is fitted, what is rehearsed, how near the answer is to the exact one; and as a folder."""

from __future__ import annotations

import dataclasses
import itertools
import json
import subprocess
import sys

import numpy as np
import pytest

import meander as me
from meander import Problem, plan
from meander.errors import Damaged, Infeasible, InvalidOption, InvalidProblem, TooLarge
from meander.outlook import LearnedOutlook, files, practice
from meander.outlook import learned_kernel as kernel
from meander.outlook.practice import SETS, Effort, Lesson, Samples, Task, fitted, learn, practised, rehearsed
from meander.outlook.transitions import Transitions
from meander.types import runs
from outlooks import solve

PAPER = Transitions.given([[0.3, 0.6, 0.1], [0.3, 0.4, 0.3], [0.1, 0.5, 0.4]], lo=2)
UP_AND_DOWN = Transitions.given([[0, 1, 0], [0.5, 0, 0.5], [0, 1, 0]], lo=2)
LITTLE = Effort(rounds=3, tasks=2, steps=200, rehearsals=3, length=50)
ENOUGH = Effort(rounds=4, tasks=2, steps=1000, rehearsals=8, length=200)


def uneven(m=16, seed=0):
    rng = np.random.default_rng(seed)
    return rng.uniform(0.5, 2, m), rng.uniform(1, 9, m)


def lesson_of(m=16, seed=0, transitions=PAPER, tau=0.4, gamma=0.8, drift=0.05):
    return Lesson.of(*uneven(m, seed), transitions, tau, gamma, drift)


def nobody(*_):
    """Is told and says nothing."""


def outlook_of(lesson, effort):
    return LearnedOutlook.of(lesson, effort, learn(lesson, effort, map, nobody))


def same(a, b):
    assert a.fingerprint == b.fingerprint
    assert a.facts() == b.facts()
    assert a.weights.keys() == b.weights.keys() == set(SETS)
    assert all(np.array_equal(a.weights[which], b.weights[which]) for which in SETS)
    return True


# --- practice ---


def noise_free(lesson, which, true, steps=4000, seed=0):
    """Steps whose costs follow from these prices: a cost is what here is worth less gamma times what comes after."""
    rng = np.random.default_rng(seed)
    sizes, d = true.shape
    left = rng.integers(sizes, size=steps)
    here = rng.normal(size=(steps, d)).astype(np.float32)
    after = (rng.normal(size=(steps, sizes * d)) / sizes).astype(np.float32)
    cost = (here.astype(np.float64) * true[left]).sum(axis=1) - lesson.gamma * after.astype(np.float64) @ true.ravel()
    parts = np.array_split(np.arange(steps), 3)
    return [Samples(left[part], here[part], after[part], cost[part]) for part in parts]


@pytest.mark.parametrize("which", SETS)
def test_known_prices_are_found_again(which, monkeypatch):
    lesson = lesson_of(m=6, gamma=0.6)
    true = np.random.default_rng(1).normal(size=lesson.nothing.shape)
    if which == "drifting":
        true[:, kernel.END : -1] = 0  # these it may not know
    monkeypatch.setattr(practice, "RIDGE", 1e-12)
    assert fitted(lesson, which, noise_free(lesson, which, true)) == pytest.approx(true, abs=1e-6)
    monkeypatch.undo()
    held = fitted(lesson, which, noise_free(lesson, which, true))
    assert held == pytest.approx(true, abs=0.01)
    assert np.linalg.norm(held[:, :-1]) < np.linalg.norm(true[:, :-1])


def test_drifting_loads_have_no_price_for_a_single_boundary():
    lesson = lesson_of(m=6)
    true = np.random.default_rng(1).normal(size=lesson.nothing.shape)
    found = fitted(lesson, "drifting", noise_free(lesson, "drifting", true))
    assert np.abs(found[:, kernel.END : -1]).max() < 1e-4 < np.abs(found[:, -1]).min()


def test_what_no_step_passed_has_no_price():
    lesson = lesson_of(m=6)
    steps = practised(lesson, LITTLE, Task("still", lesson.nothing, seed=3))
    found = fitted(lesson, "still", [steps])
    unseen = np.array([~(steps.before[steps.left == at] != 0).any(axis=0) for at in range(3)])
    assert unseen.any()
    assert np.abs(found[unseen]).max() < 1e-12
    assert np.abs(found).max() > 1e-3


def test_steps_follow_one_another_and_the_transitions():
    lesson = lesson_of()
    effort = Effort(steps=5000, daring=0.0)
    left, here, after, cost = practised(lesson, effort, Task("still", lesson.nothing, seed=1))
    matrix, sizes, d = lesson.transitions.matrix, 3, lesson.features
    after = after.reshape(-1, sizes, d)
    assert ((cost >= 0) & (cost <= 1)).all()
    # The shares of all workers' caps are interpolated, so that there are as many as workers.
    assert np.allclose(here[:, : kernel.HELD].sum(axis=1), 2 + left)
    chosen = after[:, :, : kernel.HELD].sum(axis=2)
    assert np.allclose(chosen, matrix[left] * [2, 3, 4])
    goes_on = np.flatnonzero(np.arange(1, 5000) % practice.RESTART)
    came = left[goes_on + 1]
    chance = matrix[left[goes_on], came]
    assert np.allclose(here[goes_on + 1], after[goes_on, came] / chance[:, None], atol=1e-6)
    seen = np.zeros((3, 3))
    np.add.at(seen, (left[goes_on], came), 1)
    assert seen / seen.sum(axis=1, keepdims=True) == pytest.approx(matrix, abs=0.04)


def test_a_step_costs_what_ssm_moves_where_there_are_no_prices():
    lesson = lesson_of(m=8)
    left, here, _, cost = practised(lesson, Effort(steps=40), Task("still", lesson.nothing, seed=5))
    for at in range(40):
        ends = np.flatnonzero(here[at, kernel.END :]) + 1
        owner = [w for w, (a, b) in enumerate(itertools.pairwise((0, *ends))) for _ in range(a, b)]
        expected = sum(
            chance * plan(Problem(lesson.load, lesson.state, owner, n, lesson.taus[n])).cost
            for n, chance in zip((2, 3, 4), PAPER.matrix[left[at]], strict=True)
        )
        assert cost[at] == pytest.approx(expected / lesson.state.sum())


def test_practice_and_rehearsal_are_the_same_for_the_same_seed_and_others_for_another():
    lesson = lesson_of()
    weights = np.random.default_rng(0).normal(size=lesson.nothing.shape) * 0.05
    for which in SETS:
        tasks = [Task(which, weights, seed) for seed in (1, 1, 2)]
        a, b, c = (practised(lesson, LITTLE, task) for task in tasks)
        assert all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))
        assert not np.array_equal(a.cost, c.cost)
        a, b, c = (rehearsed(lesson, LITTLE, task) for task in tasks)
        assert a == b != c


def test_a_rehearsal_faces_all_prices_with_the_same_migrations():
    rng = np.random.default_rng(4)
    # Where only one cut keeps the cap there is no choice, and what moves tells which numbers and loads there were.
    forced = Lesson.of([1] * 12, rng.uniform(1, 9, 12), PAPER, 0.0, 0.8, 0.0)
    back_and_forth = Transitions.given([[0.4, 0.6], [0.7, 0.3]], lo=1)
    drifting = Lesson.of([3, 2], [5, 7], back_and_forth, 0.0, 0.8, 0.1)
    for lesson, which in ((forced, "still"), (drifting, "drifting")):
        for seed in range(5):
            moves = {
                rehearsed(lesson, LITTLE, Task(which, scale * rng.normal(size=lesson.nothing.shape), seed))
                for scale in (0, 0.1, 10)
            }
            assert len(moves) == 1
            assert 0 < moves.pop() < 1


def test_a_rehearsal_starts_from_the_same_partitioning_whatever_the_prices():
    # Two workers may cut three bins in two ways. Who finds the one he wants moves nothing, who does not moves once.
    lesson = Lesson.of([1, 1, 1], [2, 2, 2], Transitions.given([[1]], lo=2), 0.0, 0.8, 0.0)
    moves = []
    for wanted in (1, 2):
        prices = lesson.nothing
        prices[0, kernel.END : -1] = 10
        prices[0, kernel.END + wanted - 1] = -10
        moves.append(rehearsed(lesson, LITTLE, Task("still", prices, seed=0)))
    assert sorted(moves) == pytest.approx([0, 1 / 3 / LITTLE.length])


# --- learning ---


def test_learning_is_the_same_every_time_and_goes_on_from_what_was_remembered():
    lesson = lesson_of()
    kept, told = {}, []
    whole = learn(lesson, LITTLE, map, lambda *each: told.append(each), remember=kept.__setitem__)
    assert sorted(kept) == sorted(f"{which}-{done}" for which in SETS for done in range(3))
    assert told[:4] == [(done, 3, "rounds of practice") for done in range(4)]
    tasks = len(SETS) * 9 * 3  # none at all, and two rounds' prices at four strengths, on three sequences
    assert told[4:] == [(0, tasks, "rehearsals"), (tasks, tasks, "rehearsals")]
    practices = []

    def counting(function, tasks):
        practices.append(function)
        return map(function, tasks)

    partly = {name: each for name, each in kept.items() if name != "still-1" and not name.endswith("2")}
    for remembered, expected in ((kept.get, 1), (partly.get, 3), (lambda _: None, 4)):
        practices.clear()
        again = learn(lesson, LITTLE, counting, nobody, remembered)
        assert len(practices) == expected
        for which in SETS:
            assert np.array_equal(again[which].weights, whole[which].weights)
            assert again[which][1:] == whole[which][1:]


def test_what_is_kept_moved_no_more_than_ssm_in_rehearsal():
    for seed in range(3):
        lesson = lesson_of(m=12, seed=seed, tau=0.3)
        effort = dataclasses.replace(LITTLE, steps=40, seed=seed)
        for which, (weights, moves, ssm_moves) in learn(lesson, effort, map, nobody).items():
            seeds = range(1_000_000 + seed, 1_000_000 + seed + LITTLE.rehearsals)
            for prices, expected in ((weights, moves), (lesson.nothing, ssm_moves)):
                again = [rehearsed(lesson, effort, Task(which, lesson.gamma * prices, each)) for each in seeds]
                assert np.mean(again) == pytest.approx(expected)
            assert moves <= ssm_moves


@pytest.mark.parametrize(
    "lesson",
    [
        lesson_of(gamma=0.0),
        Lesson.of([1] * 6, [0] * 6, PAPER, 0.2, 0.8, 0.05),
        Lesson.of([0] * 6, [1] * 6, PAPER, 0.2, 0.8, 0.05),
    ],
    ids=["no future", "no state", "no load"],
)
def test_where_there_is_nothing_to_learn_nothing_is(lesson):
    found = learn(lesson, LITTLE, lambda *_: pytest.fail("something was practised"), nobody)
    assert not any(each.weights.any() for each in found.values())
    outlook = outlook_of(lesson, LITTLE)
    m = len(lesson.load)
    problem = Problem(lesson.load, lesson.state, [0] * (m // 2) + [1] * (m - m // 2), 3, lesson.taus[3])
    made = plan(problem, "mtm", outlook=outlook)
    assert (made.cost, made.notes) == (plan(problem, "ssm").cost, ())
    assert outlook.choose(problem).owner
    assert np.isfinite(outlook.estimate(problem, made.owner))


@pytest.mark.parametrize(("load", "state"), [([7], [3]), ([0, 0, 5], [1, 2, 3]), ([1, 2], [0, 9])])
def test_more_workers_than_bins(load, state):
    outlook = outlook_of(Lesson.of(load, state, PAPER, 0.2, 0.8, 0.05), LITTLE)
    assert all(0 <= moves <= ssm_moves < 1 for moves, ssm_moves in outlook.rehearsed.values())
    for workers in (2, 3, 4):
        problem = Problem(load, state, [5] * len(load), workers, outlook.taus[workers])
        made = plan(problem, "mtm", outlook=outlook)
        assert made.notes == ()
        me.check(problem, made)


def policy_cost(exact, choose):
    """What migrations to come cost if `choose` always decides, as the mean over all partitionings: a linear system."""
    ends = [tuple(row[: row.index(exact.bins) + 1]) for row in exact.ends.tolist()]
    number, size = {cut: at for at, cut in enumerate(ends)}, len(ends)
    matrix, lo = exact.transitions.matrix, exact.transitions.lo
    system, cost = np.eye(len(matrix) * size), np.zeros(len(matrix) * size)
    for at, cut in enumerate(ends):
        owner = [w for w, (a, b) in enumerate(itertools.pairwise((0, *cut))) for _ in range(a, b)]
        for then in range(len(matrix)):
            problem = Problem(exact.load, exact.state, owner, lo + then, exact.taus[lo + then])
            after = choose(problem)
            moved = sum(s for s, old, new in zip(exact.state, owner, after, strict=True) if old != new)
            to = then * size + number[tuple(run.stop for run in runs(after))]
            for now in range(len(matrix)):
                system[now * size + at, to] -= exact.gamma * matrix[now, then]
                cost[now * size + at] += matrix[now, then] * moved
    values = np.linalg.solve(system, cost).reshape(exact.projected.shape)
    return values[~np.isnan(exact.projected)].mean()


@pytest.mark.parametrize(
    ("transitions", "tau", "gamma", "seed"),
    [(PAPER, 0.4, 0.8, 1), (PAPER, 0.4, 0.95, 0), (PAPER, 0.8, 0.8, 2), (UP_AND_DOWN, 0.4, 0.8, 1)],
)
def test_what_is_learned_is_nearly_the_best_there_is(transitions, tau, gamma, seed):
    lesson = lesson_of(16, seed, transitions, tau, gamma)
    exact = solve(lesson.load, lesson.state, transitions, tau, gamma, epsilon=1e-9)
    learned = outlook_of(lesson, dataclasses.replace(ENOUGH, seed=seed))
    best = policy_cost(exact, lambda problem: exact.choose(problem).owner)
    assert best == pytest.approx(np.nanmean(exact.projected), rel=1e-6)
    myopic = policy_cost(exact, lambda problem: plan(problem, "ssm").owner)
    ahead = policy_cost(exact, lambda problem: learned.choose(problem).owner)
    # Nothing is better than the best; of what ssm is worse by, at least four fifths are saved.
    assert best * (1 - 1e-6) <= ahead <= best + 0.2 * (myopic - best)
    assert best < 0.99 * myopic


# --- refusals ---


def test_a_cap_that_cannot_be_kept_is_refused_and_not_raised():
    # Four workers need a tau of 1.8; the outlook was made with that, and the problem has the one asked for.
    load, state = [10, *[0.4] * 11], uneven(12)[1]
    outlook = outlook_of(Lesson.of(load, state, PAPER, 0.2, 0.8, 0.05), LITTLE)
    problem = Problem(load, state, [0] * 12, 4, 0.2)
    assert outlook.unfit(problem) is None
    with pytest.raises(Infeasible) as by_ssm:
        plan(problem, "ssm")
    with pytest.raises(Infeasible) as refused:
        outlook.choose(problem)
    assert str(refused.value) == str(by_ssm.value)
    with pytest.raises(InvalidProblem, match="the outlook is about 2 to 4 workers and the problem wants 5; make an"):
        outlook.choose(Problem(load, state, [0] * 12, 5, 3))
    with pytest.raises(InvalidProblem, match="the target is no list of intervals"):
        outlook.estimate(problem, [0, 1] * 6)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"gamma": 1}, "gamma is 1, and without a discount .* infinite"),
        ({"gamma": -0.1}, "gamma is -0.1"),
        ({"tau": -1}, "tau is -1"),
        ({"drift": -0.1}, "drift is -0.1"),
        ({"drift": 5}, "drift is 5; it is how much a load changes between migrations, such as 0.05"),
        ({"drift": "little"}, "drift must be a number"),
    ],
)
def test_impossible_lessons_are_refused(change, why):
    with pytest.raises((InvalidOption, InvalidProblem), match=why):
        lesson_of(**change)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"rounds": 1}, "rounds is 1; it must be a whole number from 2 to 1000"),
        ({"tasks": 0}, "tasks is 0"),
        ({"steps": 2.5}, "steps is 2.5"),
        ({"rehearsals": 0}, "rehearsals is 0"),
        ({"length": "long"}, "length is 'long'"),
        ({"seed": -1}, "seed is -1"),
        ({"daring": 1.5}, "daring is 1.5; it is how often a step goes astray, from 0 to 1"),
        ({"daring": -1}, "daring is -1"),
    ],
)
def test_impossible_efforts_are_refused(options, why):
    with pytest.raises(InvalidOption, match=why):
        Effort(**options)


def test_an_effort_is_plain_numbers_whatever_it_was_given():
    made = Effort(rounds=np.int64(3), seed=np.int32(7), daring=np.float32(0.5))
    assert made == Effort(rounds=3, seed=7, daring=0.5)
    assert json.loads(json.dumps(dataclasses.asdict(made))) == dataclasses.asdict(made)


# --- as a folder ---


@pytest.fixture(scope="module")
def outlook():
    return outlook_of(lesson_of(), LITTLE)


def test_an_outlook_comes_back_from_its_folder_as_it_was(outlook, tmp_path):
    files.write(outlook, tmp_path)
    again = files.read(tmp_path)
    assert isinstance(again, LearnedOutlook)
    assert same(again, outlook)
    assert again.rehearsed == outlook.rehearsed
    problem = Problem(outlook.load, outlook.state, [0] * 8 + [1] * 8, 3, 0.4)
    assert again.choose(problem) == outlook.choose(problem)
    owner = outlook.choose(problem).owner
    assert again.estimate(problem, owner) == outlook.estimate(problem, owner)


def test_a_damaged_file_is_named(outlook, tmp_path):
    files.write(outlook, tmp_path)
    (path,) = tmp_path.glob("prices-*.parquet")
    data = path.read_bytes()
    path.write_bytes(data[:100] + b"x" + data[101:])
    with pytest.raises(Damaged, match=f"{path.name} is not what was written; remove it"):
        files.read(tmp_path)
    path.unlink()
    with pytest.raises(Damaged, match=f"{path.name} is missing; remove it"):
        files.read(tmp_path)
    path.write_bytes(data)
    index = json.loads((tmp_path / files.INDEX).read_text())
    for change, why in [({"drift": 0.1}, "its inputs are not those"), ({"effort": {}}, "its inputs are not those")]:
        changed = {**index, "facts": {**index["facts"], **change}}
        (tmp_path / files.INDEX).write_text(json.dumps(changed))
        with pytest.raises(Damaged, match=why):
            files.read(tmp_path)


def test_a_fingerprint_follows_from_all_inputs_and_from_nothing_else(outlook):
    others = [
        dataclasses.replace(outlook, drift=0.1),
        dataclasses.replace(outlook, effort=dataclasses.asdict(Effort(seed=1))),
        dataclasses.replace(outlook, gamma=0.5),
        dataclasses.replace(outlook, transitions=UP_AND_DOWN),
        solve(outlook.load, outlook.state, PAPER, 0.4),
    ]
    assert len({each.fingerprint for each in (outlook, *others)}) == 6
    assert dataclasses.replace(outlook, rehearsed={}).fingerprint == outlook.fingerprint


def test_learning_is_the_same_in_every_process(outlook):
    code = (
        "import sys\n"
        "import numpy as np\n"
        "from meander.outlook.transitions import Transitions\n"
        "from meander.outlook.practice import Effort, Lesson, learn\n"
        "heavy = [m for m in ('numba', 'pyarrow', 'pyspark', 'scipy', 'rich') if m in sys.modules]\n"
        "rng = np.random.default_rng(0)\n"
        "load, state = rng.uniform(0.5, 2, 16), rng.uniform(1, 9, 16)\n"
        "m = Transitions.given([[0.3, 0.6, 0.1], [0.3, 0.4, 0.3], [0.1, 0.5, 0.4]], lo=2)\n"
        "effort = Effort(rounds=3, tasks=2, steps=200, rehearsals=3, length=50)\n"
        "found = learn(Lesson.of(load, state, m, 0.4, 0.8, 0.05), effort, map, lambda *_: None)\n"
        "print(heavy, *(each.weights.tobytes().hex() for each in found.values()))"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert printed == ["[]", *(outlook.weights[which].tobytes().hex() for which in SETS)]


def test_boundaries_have_prices_of_their_own_only_where_that_is_not_too_much():
    def features(bins, sizes):
        step = np.eye(sizes, k=1) + np.eye(sizes, k=-1)
        transitions = Transitions.given(step / step.sum(axis=1, keepdims=True), lo=2)
        return Lesson.of([1.0] * bins, [1.0] * bins, transitions, 0.2, 0.8, 0.05).features

    assert features(64, 9) == kernel.END + 64
    assert features(256, 9) == kernel.END + 1
    assert features(64, 60) == kernel.END + 1
    assert features(64, 110) == kernel.END + 1
    with pytest.raises(TooLarge, match="2 to 121 workers are too many .* narrow lo and hi to at most 111 of them"):
        features(64, 120)


def test_many_bins_are_practised_with_as_fewer():
    load, state = uneven(1000)
    lesson = Lesson.of(load, state, PAPER, 0.4, 0.8, 0.05)
    merged_load, merged_state, *_ = lesson.of_bins()
    assert merged_load.size == merged_state.size == 64
    assert merged_load[0] == pytest.approx(sum(load[: 1000 // 64]))
    assert merged_state.sum() == pytest.approx(state.sum())
    outlook = outlook_of(lesson, LITTLE)
    problem = Problem(load, state, [0] * 500 + [1] * 500, 3, 0.4)
    made = plan(problem, "mtm", outlook=outlook)
    assert made.notes == ()
    me.check(problem, made)
    assert outlook.estimate(problem, made.owner) <= outlook.estimate(problem, plan(problem, "ssm").owner)
