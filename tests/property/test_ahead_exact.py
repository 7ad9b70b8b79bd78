"""Exact outlooks against first principles: all cuts by brute force, costs by assignment, values by linear algebra."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment, linprog

from effort import examples
from meander import Problem, plan
from meander.errors import Infeasible
from meander.outlook.exact import Case
from meander.outlook.exact_outlook import ExactOutlook
from meander.outlook.transitions import Transitions
from outlooks import sizes, solve

SLACK = 1 + 1e-9
GAMMAS = [0.0, 0.3, 0.8, 0.95]


def cuts_of(load, workers, tau):
    """Every cut into at most so many intervals within the cap, each as its ends."""
    m, cap = len(load), (1 + tau) * sum(load) / workers * SLACK
    return [
        (*inner, m)
        for k in range(min(workers, m))
        for inner in itertools.combinations(range(1, m), k)
        if all(sum(load[a:b]) <= cap for a, b in itertools.pairwise((0, *inner, m)))
    ]


def moved(state, before, after):
    """What moves from one cut to another under the best matching of intervals."""
    overlap = np.zeros((len(before), len(after)))
    for i, (a, b) in enumerate(itertools.pairwise((0, *before))):
        for j, (c, d) in enumerate(itertools.pairwise((0, *after))):
            overlap[i, j] = sum(state[max(a, c) : min(b, d)])
    return sum(state) - overlap[linear_sum_assignment(overlap, maximize=True)].sum()


class Process:
    """The decision process, written out: states (n, P), the next n' by chance, the next P' by choice."""

    def __init__(self, outlook: ExactOutlook):
        self.matrix, self.lo, self.gamma = outlook.transitions.matrix, outlook.transitions.lo, outlook.gamma
        load, state = outlook.load.tolist(), outlook.state.tolist()
        self.cuts = {n: cuts_of(load, n, tau) for n, tau in outlook.taus.items()}
        self.states = [(n, cut) for n, cuts in self.cuts.items() for cut in cuts]
        self.number = {each: at for at, each in enumerate(self.states)}
        union = sorted({cut for _, cut in self.states})
        self.cost = {(a, b): moved(state, a, b) for a in union for b in union}

    def chance(self, n, after):
        return self.matrix[n - self.lo, after - self.lo]

    def by_policy_iteration(self):
        size = len(self.states)
        policy = {(cut, n): self.cuts[n][0] for _, cut in self.states for n in self.cuts}
        for _ in range(1000):
            step, cost = np.zeros((size, size)), np.zeros(size)
            for (n, cut), at in self.number.items():
                for after in self.cuts:
                    to = policy[cut, after]
                    step[at, self.number[after, to]] += self.chance(n, after)
                    cost[at] += self.chance(n, after) * self.cost[cut, to]
            values = np.linalg.solve(np.eye(size) - self.gamma * step, cost)

            def through(cut, after, to, values=values):
                return self.cost[cut, to] + self.gamma * values[self.number[after, to]]

            better = dict(policy)
            for cut, after in policy:
                best = min(self.cuts[after], key=lambda to, c=cut, n=after: through(c, n, to))
                if through(cut, after, best) < through(cut, after, policy[cut, after]) - 1e-9:
                    better[cut, after] = best
            if better == policy:
                return values
            policy = better
        raise AssertionError("policy iteration did not end")

    def by_linear_programme(self):
        """Largest values that nowhere exceed the cost of any choice."""
        size = len(self.states)
        ways = sorted({(cut, n) for _, cut in self.states for n in self.cuts})
        way = {each: size + at for at, each in enumerate(ways)}
        above, limits, equal = [], [], []
        for cut, after in ways:
            for to in self.cuts[after]:
                row = np.zeros(size + len(ways))
                row[way[cut, after]] = 1
                row[self.number[after, to]] -= self.gamma
                above.append(row)
                limits.append(self.cost[cut, to])
        for (n, cut), at in self.number.items():
            row = np.zeros(size + len(ways))
            row[at] = 1
            for after in self.cuts:
                row[way[cut, after]] -= self.chance(n, after)
            equal.append(row)
        wish = np.zeros(size + len(ways))
        wish[:size] = -1
        found = linprog(wish, np.array(above), limits, np.array(equal), np.zeros(size), bounds=(None, None))
        assert found.success
        return found.x[:size]

    def values_of(self, outlook: ExactOutlook):
        """The outlook's values in the order of the states, which must be all that it has."""
        got = {}
        for n in self.cuts:
            table, values = outlook.partitionings(n)
            for row, value in zip(table.tolist(), values.tolist(), strict=True):
                got[n, tuple(row[: row.index(outlook.bins) + 1])] = value
        assert got.keys() == self.number.keys()
        return np.array([got[each] for each in self.states])


@st.composite
def inputs(draw, most_bins=7, fewest_bins=1):
    """Loads, states, a matrix and a tau: growing, shrinking or staying, sometimes with rows that are certain."""
    rng = random.Random(draw(st.integers(0, 10**9)))
    m = rng.randint(fewest_bins, most_bins)
    lo = rng.randint(1, 3)
    size = rng.randint(1, 3)
    whole = rng.random() < 0.5
    load = [rng.choice([0, 1, 1, 2, 3]) if whole else rng.uniform(0.1, 2) for _ in range(m)]
    state = [rng.choice([0, 1, 2, 5]) if whole else rng.uniform(0, 9) for _ in range(m)]
    matrix = np.zeros((size, size))
    for row in matrix:
        row[rng.randrange(size)] = 1
        if rng.random() < 0.7:
            row[:] = [rng.choice([0.0, rng.random()]) for _ in row]
            row[rng.randrange(size)] += 0.1
        row /= row.sum()
    return load, state, Transitions.given(matrix.tolist(), lo), rng.choice([0.0, 0.2, 0.6, 1.5])


@given(inputs(), st.sampled_from(GAMMAS))
@examples(100)
def test_values_are_those_of_policy_iteration(made, gamma):
    load, state, transitions, tau = made
    outlook = solve(load, state, transitions, tau, gamma, epsilon=1e-9)
    process = Process(outlook)
    assert process.values_of(outlook) == pytest.approx(
        process.by_policy_iteration(), abs=2e-9 * sum(state) + 1e-7, rel=1e-7
    )


@given(inputs(most_bins=6), st.sampled_from(GAMMAS))
@examples(50)
def test_values_are_those_of_the_linear_programme(made, gamma):
    load, state, transitions, tau = made
    outlook = solve(load, state, transitions, tau, gamma, epsilon=1e-9)
    process = Process(outlook)
    assert process.values_of(outlook) == pytest.approx(process.by_linear_programme(), abs=1e-5)


@given(inputs(), st.sampled_from(GAMMAS), st.sampled_from([1e-2, 1e-4, 1e-6]))
@examples(150)
def test_values_are_within_epsilon_whatever_it_is(made, gamma, epsilon):
    load, state, transitions, tau = made
    near = solve(load, state, transitions, tau, gamma, epsilon=1e-10)
    rough = solve(load, state, transitions, tau, gamma, epsilon=epsilon)
    for n in rough.taus:
        off = np.abs(rough.partitionings(n)[1] - near.partitionings(n)[1])
        assert off.max() <= (epsilon + 1e-9) * sum(state)


@given(inputs(), st.integers(0, 3), st.sampled_from([0.0, 0.5, 1.0]))
@examples(100)
def test_finite_horizon_is_the_recursion_over_all_that_may_come(made, horizon, gamma):
    load, state, transitions, tau = made
    outlook = solve(load, state, transitions, tau, gamma, horizon=horizon, epsilon=1e-9)
    process = Process(outlook)

    def onward(n, cut, left):
        if left == 0:
            return 0.0
        return sum(
            process.chance(n, after)
            * min(process.cost[cut, to] + gamma * onward_of[after, to, left - 1] for to in process.cuts[after])
            for after in process.cuts
            if process.chance(n, after) > 0
        )

    onward_of = {}
    for left in range(horizon + 1):
        for n, cut in process.states:
            onward_of[n, cut, left] = onward(n, cut, left)
    expected = [onward_of[n, cut, horizon] for n, cut in process.states]
    assert process.values_of(outlook) == pytest.approx(np.array(expected), abs=1e-6, rel=1e-7)


@given(inputs(most_bins=9), st.data())
@examples(100)
def test_a_slice_of_ranks_is_that_slice_of_all_and_costs_are_those_of_the_best_matching(made, data):
    load, state, transitions, tau = made
    case = Case.of(load, state, transitions, tau, epsilon=1e-9)
    size = case.partitionings
    whole = case.table(0, size)
    everything = sorted({c for n, t in case.taus.items() for c in cuts_of(load, n, t)}, key=lambda c: (len(c), c))
    assert [tuple(row[: row.index(len(load)) + 1]) for row in whole.tolist()] == everything
    start = data.draw(st.integers(0, size))
    stop = data.draw(st.integers(start, size))
    assert np.array_equal(case.table(start, stop), whole[start:stop])
    assert sizes(case) == {n: len(cuts_of(load, n, t)) for n, t in case.taus.items()}
    part = case.costs(whole[start:stop], whole, same=False)
    expected = [[moved(state, a, b) for b in everything] for a in everything[start:stop]]
    assert part == pytest.approx(np.array(expected).reshape(part.shape), abs=1e-6)
    assert np.array_equal(case.costs(whole, whole, same=True)[start:stop], part)


def present(rng, outlook, wanted):
    """A problem of the outlook's bins: any owners in intervals, some of whom must leave."""
    m = outlook.bins
    ids = rng.sample(range(9), rng.randint(1, min(4, m)))
    inner = sorted(rng.sample(range(1, m), len(ids) - 1))
    owner = [w for w, (a, b) in zip(ids, itertools.pairwise((0, *inner, m)), strict=True) for _ in range(a, b)]
    leave = [w for w in ids if rng.random() < 0.25]
    idle = [w for w in (20, 21) if rng.random() < 0.3]
    load, state = outlook.load.tolist(), outlook.state.tolist()
    return Problem(load, state, owner, wanted, outlook.taus[wanted], must_leave=leave, idle=idle)


def cheapest_target(problem, cut):
    """What moves if the bins are cut like this and given to those who may stay, by assignment."""
    stays = problem.survivors
    overlap = np.zeros((len(stays), len(cut)))
    for i, worker in enumerate(stays):
        for j, (a, b) in enumerate(itertools.pairwise((0, *cut))):
            overlap[i, j] = sum(problem.state[x] for x in range(a, b) if problem.owner[x] == worker)
    return sum(problem.state) - overlap[linear_sum_assignment(overlap, maximize=True)].sum()


@given(inputs(most_bins=10, fewest_bins=4), st.sampled_from(GAMMAS), st.integers(0, 10**9))
@examples(150)
def test_the_choice_is_the_best_of_all_and_its_estimate_is_its_cost_and_what_follows(made, gamma, seed):
    load, state, transitions, tau = made
    rng = random.Random(seed)
    outlook = solve(load, state, transitions, tau, gamma)
    wanted = rng.randint(transitions.lo, transitions.hi)
    problem = present(rng, outlook, wanted)
    target = outlook.choose(problem)
    made_plan = plan(problem, "ssm")  # checks nothing of ours: the problem has an answer
    assert len(target.owner) == problem.bins
    assert set(target.owner) <= set(target.workers) <= set(problem.candidates)
    assert len(target.workers) == wanted
    loads = [sum(x for x, w in zip(load, target.owner, strict=True) if w == worker) for worker in target.workers]
    assert max(loads) <= (1 + outlook.taus[wanted]) * sum(load) / wanted * SLACK**2
    table, values = outlook.partitionings(wanted)
    totals = [
        cheapest_target(problem, tuple(row[: row.index(len(load)) + 1])) + gamma * value
        for row, value in zip(table.tolist(), values.tolist(), strict=True)
    ]
    best = pytest.approx(min(totals), abs=1e-8, rel=1e-9)  # others are farther off, or as good
    assert outlook.estimate(problem, target.owner) == best
    assert outlook.estimate(problem, list(made_plan.owner)) >= min(totals) - 1e-6
    assert outlook.choose(problem) == target
    if gamma == 0:
        cost = sum(s for s, old, new in zip(state, problem.owner, target.owner, strict=True) if old != new)
        assert cost == pytest.approx(made_plan.cost, abs=1e-9)


@given(inputs(), st.sampled_from([0.5, 0.9]), st.integers(0, 10**9))
@examples(30)
def test_the_estimate_of_a_cut_that_is_not_in_the_table_looks_one_step_on(made, gamma, seed):
    load, state, transitions, tau = made
    rng = random.Random(seed)
    outlook = solve(load, state, transitions, tau, gamma)
    wanted = rng.randint(transitions.lo, transitions.hi)
    problem = present(rng, outlook, wanted)
    m = outlook.bins
    cut = (*sorted(rng.sample(range(1, m), rng.randint(0, m - 1))), m)
    owner = [40 + i for i, (a, b) in enumerate(itertools.pairwise((0, *cut))) for _ in range(a, b)]
    expected = 0.0
    for n, chance in enumerate(transitions.row(wanted).tolist(), start=transitions.lo):
        table, values = outlook.partitionings(n)
        ends = [tuple(row[: row.index(m) + 1]) for row in table.tolist()]
        onward = [moved(state, cut, e) + gamma * v for e, v in zip(ends, values.tolist(), strict=True)]
        expected += chance * min(onward)
    # What is in the table was found by the same equation, and is within epsilon of it.
    near = pytest.approx(sum(state) + gamma * expected, abs=1e-5 * sum(state) + 1e-9)
    assert outlook.estimate(problem, owner) == near


@given(inputs(), st.integers(0, 10**9))
@examples(100)
def test_with_drifted_loads_the_choice_still_keeps_the_present_cap(made, seed):
    load, state, transitions, tau = made
    rng = random.Random(seed)
    outlook = solve(load, state, transitions, tau, 0.8)
    wanted = rng.randint(transitions.lo, transitions.hi)
    base = present(rng, outlook, wanted)
    drifted = [x * rng.uniform(0.8, 1.3) for x in load]
    problem = Problem(drifted, state, base.owner, wanted, tau, must_leave=base.must_leave, idle=base.idle)
    cap = (1 + tau) * sum(drifted) / wanted
    fits = [
        row
        for row in outlook.partitionings(wanted)[0].tolist()
        if all(sum(drifted[a:b]) <= cap * SLACK for a, b in itertools.pairwise((0, *row)))
    ]
    if not fits:
        with pytest.raises(Infeasible, match=f"partitionings for {wanted} workers keeps tau"):
            outlook.choose(problem)
        return
    target = outlook.choose(problem)
    for worker in target.workers:
        assert sum(x for x, w in zip(drifted, target.owner, strict=True) if w == worker) <= cap * SLACK**2
