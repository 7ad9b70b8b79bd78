"""Learned outlooks against first principles: all cuts by brute force, prices by interpolation, keepers by matching."""

from __future__ import annotations

import itertools
import random
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

import meander as me
from effort import examples
from meander import Problem, plan
from meander.outlook import learned
from meander.outlook import learned_kernel as kernel
from meander.outlook.exact import Case
from meander.outlook.learned import STILL, LearnedOutlook
from meander.outlook.outlook import FAR
from meander.outlook.transitions import Transitions
from meander.types import runs

SEEDS = st.integers(0, 10**9)


class Scene(NamedTuple):
    """Bins with present runs, some of whose owners may not stay, and prices for so many workers."""

    load: NDArray[np.float64]
    state: NDArray[np.float64]
    edge: NDArray[np.int64]
    keeps: NDArray[np.bool_]
    cap: float
    workers: int
    weights: NDArray[np.float64]

    @property
    def sums(self):
        return kernel.prefix_sums(self.load), kernel.prefix_sums(self.state)

    def best(self):
        return kernel.best(*self.sums, *self[2:])


def random_weights(rng, bins, scale, ends=True):
    """Prices of either sign, small and large against the state, sometimes of few features only."""
    size = kernel.END + (bins if ends else 1)
    many = rng.choice([1.0, 1.0, 0.2])
    return np.array([rng.gauss(0, scale) if rng.random() < many else 0.0 for _ in range(size)])


def random_bins(rng, bins):
    whole = rng.random() < 0.5
    load = [rng.choice([0, 1, 1, 2, 3]) if whole else rng.uniform(0.1, 2) for _ in range(bins)]
    state = [rng.choice([0, 1, 2, 5]) if whole else rng.uniform(0, 9) for _ in range(bins)]
    return np.array(load, dtype=np.float64), np.array(state, dtype=np.float64)


def random_scene(rng, most_bins=9):
    m = rng.randint(1, most_bins)
    load, state = random_bins(rng, m)
    inner = sorted(rng.sample(range(1, m), rng.randint(0, min(m - 1, 5))))
    edge = np.array([0, *inner, m])
    keeps = np.array([rng.random() < 0.75 for _ in edge[1:]])
    workers = rng.randint(1, 6)
    cap = kernel.cap_for(kernel.prefix_sums(load), workers, rng.choice([0.0, 0.2, 0.6, 1.5, 4.0]))
    scale = rng.choice([0, 0.02, 0.3, 3]) * max(state.sum(), 1)
    return Scene(load, state, edge, keeps, cap, workers, random_weights(rng, m, scale, ends=rng.random() < 0.7))


def cuts_of(load, cap, workers):
    """Every cut into at most so many intervals within the cap, as ends; by the sums the kernels use."""
    sums, m = kernel.prefix_sums(np.asarray(load, dtype=np.float64)), len(load)
    return [
        (*inner, m)
        for k in range(min(workers, m))
        for inner in itertools.combinations(range(1, m), k)
        if all(sums[b] - sums[a] <= cap for a, b in itertools.pairwise((0, *inner, m)))
    ]


def price_of(load, state, cap, weights, a, b):
    """What bins a..b-1 cost as one interval, by linear interpolation between what the weights say at the knots."""
    m = len(load)

    def part(values, whole):
        return sum(values) / whole if whole > 0 else 0.0

    share, held = min(part(load[a:b], cap), 1.0), part(state[a:b], sum(state))
    knots, places = np.linspace(0, 1, kernel.KNOTS + 1), np.linspace(0, 1, kernel.PLACES + 1)
    price = np.interp(share, knots, weights[: kernel.HELD])
    price += held * np.interp(share, knots, weights[kernel.HELD : kernel.PLACE])
    if b < m:
        price += np.interp(part(load[:b], sum(load)), places, weights[kernel.PLACE : kernel.END])
    ends = weights[kernel.END :]
    if len(ends) == m:
        return price + ends[b - 1]
    return price + (ends[0] if b == m else 0.0)


def prices_of(load, state, cap, workers, weights, cut):
    """The prices of all intervals of a cut, and of workers that stay empty."""
    pieces = list(itertools.pairwise((0, *cut)))
    return sum(price_of(load, state, cap, weights, a, b) for a, b in pieces) + (workers - len(pieces)) * weights[0]


def moved_by(state, edge, keeps, cut):
    """What moves if the bins are cut like this and kept by those who may stay, by the best matching."""
    overlap = np.zeros((len(keeps), len(cut)))
    for y, (a, b) in enumerate(itertools.pairwise(edge)):
        for k, (c, d) in enumerate(itertools.pairwise((0, *cut))):
            overlap[y, k] = sum(state[max(a, c) : min(b, d)]) if keeps[y] else 0.0
    return sum(state) - overlap[linear_sum_assignment(overlap, maximize=True)].sum()


def least(load, state, edge, keeps, cap, workers, weights):
    """The least of bytes moved and prices over all cuts; infinite where none is within the cap."""
    return min(
        (
            moved_by(state, edge, keeps, cut) + prices_of(load, state, cap, workers, weights, cut)
            for cut in cuts_of(load, cap, workers)
        ),
        default=np.inf,
    )


def near(value, *arrays):
    """As close as sums of floats of this size are."""
    return pytest.approx(value, rel=1e-9, abs=1e-9 * (1 + sum(float(np.abs(each).sum()) for each in arrays)))


# --- kernels ---


@given(SEEDS)
@examples(75)
def test_best_is_the_best_of_all_cuts_and_matchings(seed):
    scene = random_scene(random.Random(seed))
    ends, keepers, cost = scene.best()
    assert cost == near(least(*scene), scene.state, scene.weights)
    assert ends.tolist() in [list(cut) for cut in cuts_of(scene.load, scene.cap, scene.workers)]
    kept = [y for y in keepers.tolist() if y != kernel.NOBODY]
    assert len(set(kept)) == len(kept)
    assert all(scene.keeps[y] for y in kept)
    # What is returned is what was rated.
    moves = kernel.moved(scene.sums[1], scene.edge, ends, keepers)
    rated = moves + prices_of(scene.load, scene.state, scene.cap, scene.workers, scene.weights, ends.tolist())
    assert rated == near(cost, scene.state, scene.weights)


@given(SEEDS)
@examples(150)
def test_best_has_nothing_to_say_where_the_cap_cannot_be_kept(seed):
    rng = random.Random(seed)
    scene = random_scene(rng)
    scene = scene._replace(cap=scene.cap * rng.choice([0.3, 0.8, 0.999]))
    ends, keepers, cost = scene.best()
    feasible = bool(cuts_of(scene.load, scene.cap, scene.workers))
    assert (ends.size > 0) == (keepers.size > 0) == np.isfinite(cost) == feasible


@given(SEEDS)
@examples(200)
def test_without_prices_best_moves_as_much_as_ssm(seed):
    rng = random.Random(seed)
    scene = random_scene(rng, most_bins=20)
    workers = [*range(len(scene.keeps))]
    owner = [w for w, (a, b) in zip(workers, itertools.pairwise(scene.edge), strict=True) for _ in range(a, b)]
    leave = [w for w in workers if not scene.keeps[w]]
    total = float(scene.load.sum())
    tau = max(0.0, scene.cap * scene.workers / total - 1) if total else 0.2
    made = plan(Problem(scene.load, scene.state, owner, scene.workers, tau, must_leave=leave), "ssm")
    _, _, cost = scene._replace(weights=0 * scene.weights).best()
    assert cost == near(made.cost, scene.state)


@given(SEEDS)
@examples(200)
def test_features_times_weights_are_the_prices_of_all_intervals(seed):
    rng = random.Random(seed)
    scene = random_scene(rng)
    cut = rng.choice(cuts_of(scene.load, scene.cap, scene.workers))
    found = np.full(scene.weights.size, np.nan)
    kernel.features(*scene.sums, np.array(cut), scene.workers, scene.cap, found)
    left = kernel.left_ends(scene.sums[0], scene.cap)
    table = kernel.prices(*scene.sums, left, scene.cap, scene.weights)
    pieces = list(itertools.pairwise((0, *cut)))
    added = sum(table[b, a - left[b]] for a, b in pieces) + (scene.workers - len(pieces)) * scene.weights[0]
    expected = prices_of(scene.load, scene.state, scene.cap, scene.workers, scene.weights, cut)
    assert found @ scene.weights == near(expected, scene.weights)
    assert added == near(expected, scene.weights)


@given(SEEDS)
@examples(200)
def test_moved_is_what_a_count_over_all_bins_says(seed):
    rng = random.Random(seed)
    scene = random_scene(rng)
    m = len(scene.load)
    ends = sorted({*rng.sample(range(1, m + 1), rng.randint(0, m)), m})
    keepers = rng.sample([*range(len(scene.keeps))] + [kernel.NOBODY] * m, len(ends))
    before = [y for y, (a, b) in enumerate(itertools.pairwise(scene.edge)) for _ in range(a, b)]
    after = [y for y, (a, b) in zip(keepers, itertools.pairwise((0, *ends)), strict=True) for _ in range(a, b)]
    expected = sum(size for size, old, new in zip(scene.state, before, after, strict=True) if old != new)
    assert kernel.moved(scene.sums[1], scene.edge, np.array(ends), np.array(keepers)) == near(expected, scene.state)


@given(SEEDS)
@examples(200)
def test_a_cap_that_is_too_small_is_raised_to_the_smallest_there_is(seed):
    rng = random.Random(seed)
    load, _ = random_bins(rng, rng.randint(1, 9))
    workers, tau = rng.randint(1, 12), rng.choice([0.0, 0.2, 1.0])
    asked = (1 + tau) * load.sum() / workers
    smallest = min(
        max(load[a:b].sum() for a, b in itertools.pairwise((0, *cut))) for cut in cuts_of(load, np.inf, workers)
    )
    cap = kernel.cap_for(kernel.prefix_sums(load), workers, tau)
    assert cap == pytest.approx(max(asked, smallest), rel=3e-9)
    assert cuts_of(load, cap, workers)
    # The exact form raises it in the same way.
    case = Case.of(load, load, Transitions.given([[1]], lo=workers), tau)
    assert cap == pytest.approx(case.cap(workers), rel=3e-9)


# --- the outlook ---


def random_transitions(rng, lo, size):
    matrix = np.zeros((size, size))
    for row in matrix:
        row[:] = [rng.choice([0.0, 0.01, rng.random()]) for _ in row]
        row[rng.randrange(size)] += 0.1
        row /= row.sum()
    return Transitions.given(matrix.tolist(), lo)


def random_outlook(rng, most_bins=7, gamma=None):
    """An outlook whose prices nobody has learned: everything that is promised holds for any prices."""
    m = rng.randint(1, most_bins)
    transitions = random_transitions(rng, rng.randint(1, 3), rng.randint(1, 3))
    case = Case.of(*random_bins(rng, m), transitions, rng.choice([0.0, 0.2, 0.6, 1.5]))
    scale = rng.choice([0.01, 0.2, 2])
    return LearnedOutlook(
        load=case.load,
        state=case.state,
        tau=case.tau,
        taus=case.taus,
        gamma=rng.choice([0.3, 0.8, 0.95]) if gamma is None else gamma,
        transitions=transitions,
        drift=0.05,
        effort={},
        weights={
            name: np.array([random_weights(rng, m, scale) for _ in range(transitions.size)])
            for name in ("still", "drifting")
        },
        rehearsed={"still": (0.0, 0.0), "drifting": (0.0, 0.0)},
    )


def random_problem(rng, outlook):
    """A problem the outlook fits, with any owners in intervals, some of whom must leave; loads as they were, or not."""
    m = outlook.bins
    wanted = rng.randint(outlook.transitions.lo, outlook.transitions.hi)
    while True:
        by = rng.choice([0.0, 0.0, 0.1, 0.3])
        load, state = ([x * rng.uniform(1 - by, 1 + by) for x in each] for each in (outlook.load, outlook.state))
        ids = rng.sample(range(9), rng.randint(1, min(4, m)))
        inner = sorted(rng.sample(range(1, m), len(ids) - 1))
        owner = [w for w, (a, b) in zip(ids, itertools.pairwise((0, *inner, m)), strict=True) for _ in range(a, b)]
        leave = [w for w in ids if rng.random() < 0.25]
        idle = [w for w in (20, 21) if rng.random() < 0.3]
        tau = Case.of(load, state, Transitions.given([[1]], lo=wanted), outlook.tau).taus[wanted]
        problem = Problem(load, state, owner, wanted, tau, must_leave=leave, idle=idle)
        if outlook.unfit(problem) is None:
            return problem


def distance(outlook, problem):
    """How much of load or state is elsewhere, by counting what would have to be carried over."""

    def shares(values):
        whole = sum(values)
        return [value / whole if whole else 0.0 for value in values]

    pairs = [(outlook.load, problem.load), (outlook.state, problem.state)]
    return max(sum(max(0.0, b - a) for a, b in zip(shares(x), shares(y), strict=True)) for x, y in pairs)


def rating(outlook, problem, owner):
    """Bytes that move, plus gamma times the mean over what comes next of the least of moves and prices then."""
    cut = [run.stop for run in runs(owner)]
    everyone = [True] * len(cut)
    weights = outlook.weights["still" if distance(outlook, problem) <= STILL else "drifting"]
    weights = weights * outlook.gamma * sum(problem.state)
    row = outlook.transitions.row(problem.wanted)
    onward = 0.0
    for at, chance in enumerate(row):
        workers = outlook.transitions.lo + at
        if chance >= kernel.RARE * row.max():
            asked = (1 + problem.tau) * sum(problem.load) / workers
            smallest = min(
                max(sum(problem.load[a:b]) for a, b in itertools.pairwise((0, *each)))
                for each in cuts_of(problem.load, np.inf, workers)
            )
            cap = max(asked, smallest) * (1 + 1e-9)
            onward += chance * least(problem.load, problem.state, [0, *cut], everyone, cap, workers, weights[at])
    pairs = zip(problem.state, problem.owner, owner, strict=True)
    return sum(size for size, old, new in pairs if old != new) + outlook.gamma * onward


@given(SEEDS)
@examples(25)
def test_the_estimate_is_what_moves_and_one_migration_further_looked_at_by_brute_force(seed):
    rng = random.Random(seed)
    outlook = random_outlook(rng)
    problem = random_problem(rng, outlook)
    target = outlook.choose(problem)
    expected = rating(outlook, problem, target.owner)
    scale = sum(problem.state) * (1 + np.abs(outlook.weights["still"]).sum())
    assert outlook.estimate(problem, target.owner) == pytest.approx(expected, rel=1e-6, abs=1e-7 * scale)
    assert outlook.choose(problem) == target


@given(SEEDS)
@examples(150)
def test_look_returns_its_estimate_and_rates_nothing_it_looked_at_better(seed):
    rng = random.Random(seed)
    outlook = random_outlook(rng, most_bins=12)
    problem = random_problem(rng, outlook)
    scene, wanted, lo = outlook.scene_of(problem), problem.wanted, outlook.transitions.lo
    ends, keeps = outlook.present(problem)
    edge = np.array([0, *ends])
    strengths, noise = learned.proposed(scene.weights.shape[1])

    def look(some):
        return kernel.look(
            scene.load, scene.state, edge, keeps, scene.caps, wanted, lo, scene.row, scene.weights, outlook.gamma,
            strengths[some], noise[some],
        )  # fmt: skip

    found, keepers, rated = look(slice(None))
    owner = outlook.target(problem, found, keepers).owner
    scale = np.append(problem.state_array, outlook.gamma * scene.weights)
    # One that nobody of the present keeps may go to one of them all the same, and then less moves.
    assert outlook.estimate(problem, owner) <= rated + 1e-9 * np.abs(scale).sum()
    if (keepers != kernel.NOBODY).all():
        assert outlook.estimate(problem, owner) == near(rated, scale)
    # What moves more by itself than the answer costs in all was passed over: costs to come are not below 0.
    every = [look(slice(at, at + 1)) for at in range(len(strengths))]
    assert rated in [each for _, _, each in every]
    assert all(each >= rated or kernel.moved(scene.state, edge, *there) >= rated for *there, each in every)
    # The first one proposed is what ssm would do.
    assert strengths[0] == 0
    assert not noise[0].any()
    myopic = look(slice(0, 1))
    assert kernel.moved(scene.state, edge, *myopic[:2]) == near(plan(problem, "ssm").cost, problem.state_array)


@given(SEEDS, st.booleans())
@examples(150)
def test_mtm_never_rates_its_plan_worse_than_that_of_ssm(seed, plainly):
    rng = random.Random(seed)
    outlook = random_outlook(rng, most_bins=16)
    problem = random_problem(rng, outlook)
    with pytest.MonkeyPatch.context() as patch:
        if plainly:  # as with thousands of bins, where the prices alone decide
            patch.setattr(learned, "MOST_CELLS", 0)
        made, myopic = me.plan(problem, "mtm", outlook=outlook), me.plan(problem, "ssm")
        assert made.notes == ()
        me.check(problem, made)
        assert len(runs(made.owner)) == len(set(made.owner))
        assert outlook.estimate(problem, made.owner) <= outlook.estimate(problem, myopic.owner)
        assert me.plan(problem, "mtm", outlook=outlook) == made
        if plainly:
            prices = outlook.weights["still" if distance(outlook, problem) <= STILL else "drifting"]
            weights = prices[problem.wanted - outlook.transitions.lo] * outlook.gamma * sum(problem.state)
            cap = (1 + problem.tau) * sum(problem.load) / problem.wanted * (1 + 1e-9)
            edge = [0, *(run.stop for run in runs(problem.owner))]
            keeps = [run.worker in problem.survivors for run in runs(problem.owner)]
            if problem.bins <= 10:
                expected = least(problem.load, problem.state, edge, keeps, cap, problem.wanted, weights)
                assert outlook.estimate(problem, made.owner) == near(expected, problem.state_array, weights)


@given(SEEDS)
@examples(100)
def test_without_a_future_mtm_moves_as_much_as_ssm(seed):
    rng = random.Random(seed)
    outlook = random_outlook(rng, most_bins=16, gamma=0.0)
    problem = random_problem(rng, outlook)
    myopic = me.plan(problem, "ssm")
    assert me.plan(problem, "mtm", outlook=outlook).cost == myopic.cost
    owner = outlook.choose(problem).owner
    cost = sum(size for size, old, new in zip(problem.state, problem.owner, owner, strict=True) if old != new)
    assert cost == near(myopic.cost, problem.state_array)
    assert outlook.estimate(problem, owner) == near(myopic.cost, problem.state_array)


@given(SEEDS)
@examples(100)
def test_the_distance_is_what_would_have_to_be_carried_over(seed):
    rng = random.Random(seed)
    outlook = random_outlook(rng)
    problem = random_problem(rng, outlook)
    assert outlook.distance(problem) == pytest.approx(distance(outlook, problem), abs=1e-12)
    assert outlook.distance(problem) <= FAR
