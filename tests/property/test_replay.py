"""Replays, the known future and the bound on it, against brute force over all partitionings."""

from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

from effort import examples
from meander.planning.intervals import prefix_sums
from meander_lab.replay import Bins, balanced, clairvoyant, lookahead_kernel, lower_bound, replay, smallest_tau

SLACK = 1 + 1e-9


def cuts_of(bins, most):
    """Every way to cut the bins into at most so many intervals, as their ends."""
    for inner in range(min(most, bins)):
        for chosen in combinations(range(1, bins), inner):
            yield (*chosen, bins)


def pieces(ends):
    return [*pairwise((0, *ends))]


def heaviest(load, ends):
    return max(sum(load[a:b]) for a, b in pieces(ends))


def kept(state, one, other):
    """The most that can stay between two partitionings: the best matching of overlaps."""
    overlap = [[sum(state[max(a, c) : min(b, d)]) for c, d in pieces(other)] for a, b in pieces(one)]
    rows, columns = linear_sum_assignment(np.array(overlap), maximize=True)
    return sum(overlap[i][j] for i, j in zip(rows, columns, strict=True))


def ends_of(owner):
    return tuple(j + 1 for j in range(len(owner)) if j + 1 == len(owner) or owner[j] != owner[j + 1])


def cheapest(counts, bins, tau, in_percent=False):
    """The least that any contiguous policy moves, by looking at all of them."""
    load, _ = bins.at(0)
    costs = {ends_of(balanced(load, counts[0])): 0.0}
    for k, count in enumerate(counts[1:]):
        load, state = (values.tolist() for values in bins.at(k))
        if in_percent:
            state = [100 * each / sum(state) for each in state]
        every = [*cuts_of(bins.bins, count)]
        smallest = min(heaviest(load, ends) for ends in every)
        cap = max((1 + tau) * sum(load) / count, smallest) * SLACK
        within = [ends for ends in every if heaviest(load, ends) <= cap]
        costs = {
            ends: min(cost + sum(state) - kept(state, before, ends) for before, cost in costs.items())
            for ends in within
        }
    return min(costs.values())


def small_bins(most=7):
    return st.builds(
        lambda m, skew, drift, seed: Bins.synthetic(m, skew=skew, drift=drift, seed=seed),
        st.integers(1, most),
        st.sampled_from([0.0, 0.5, 1.0]),
        st.sampled_from([0.0, 0.05, 0.3]),
        st.integers(0, 1000),
    )


series = st.lists(st.integers(1, 4), min_size=2, max_size=5)
taus = st.sampled_from([0.0, 0.1, 0.3, 0.6, 1.2])


@examples(80)
@given(series, small_bins(), taus)
def test_the_bound_is_never_above_the_optimum(counts, bins, tau):
    bound = lower_bound(counts, bins, tau)
    assert 0 <= bound.bytes <= cheapest(counts, bins, tau) + 1e-6
    percent = cheapest(counts, bins, tau, in_percent=True) / (len(counts) - 1)
    assert 0 <= bound.percent_per_migration <= percent + 1e-6


@examples(60)
@given(series, small_bins(), taus, st.integers(1, 4))
def test_with_everything_in_sight_it_lies_between_the_optimum_and_ssm(counts, bins, tau, width):
    seen = clairvoyant(counts, bins, tau, ahead=5, width=width)
    best, ssm = cheapest(counts, bins, tau), replay(counts, bins, "ssm", tau)
    assert best - 1e-6 * (1 + best) <= seen.total_bytes <= ssm.total_bytes + 1e-6 * (1 + best)
    assert all(each.heaviest <= (1 + each.tau) * (1 + 1e-7) for each in seen.migrations)


@st.composite
def neighbours(draw):
    m = draw(st.integers(1, 9))
    sizes = st.lists(st.integers(0, 5), min_size=m, max_size=m)
    cuts = st.sets(st.integers(1, m), max_size=4).map(lambda found: tuple(sorted({*found, m})))
    load = draw(st.lists(st.integers(1, 4), min_size=m, max_size=m))
    return load, draw(sizes), draw(sizes), draw(cuts), draw(cuts), draw(st.integers(1, 5)), draw(st.integers(1, 20))


@examples(300)
@given(neighbours())
def test_the_best_intervals_between_two_neighbours(drawn):
    load, first, second, before, after, most, cap = drawn
    m, sums = len(load), prefix_sums(np.array(load, dtype=float))
    left = np.array([min(a for a in range(r + 1) if sum(load[a:r]) <= cap) for r in range(m + 1)])
    tables = [
        lookahead_kernel.stays(prefix_sums(np.array(state, dtype=float)), np.array(ends), left)
        for state, ends in ((first, before), (second, after))
    ]
    found = lookahead_kernel.between(*tables, left, most)
    within = [ends for ends in cuts_of(m, most) if heaviest(load, ends) <= cap]
    assert (found.size > 0) == bool(within)
    if within:
        ends = tuple(found.tolist())
        assert ends in within
        assert sums[-1] == sum(load)
        value = kept(first, before, ends) + kept(second, ends, after)
        assert value == max(kept(first, before, each) + kept(second, each, after) for each in within)


@examples(100)
@given(st.lists(st.floats(0.01, 10), min_size=1, max_size=8), st.integers(1, 5))
def test_balanced_intervals_are_as_even_as_intervals_can_be(load, workers):
    owner = balanced(np.array(load), workers)
    assert owner == sorted(owner)
    assert set(owner) <= set(range(workers))
    least = min(heaviest(load, ends) for ends in cuts_of(len(load), workers))
    assert heaviest(load, ends_of(owner)) <= least * (1 + 1e-8)
    assert smallest_tau(np.array(load), workers) == pytest.approx(least * workers / sum(load) - 1, abs=1e-7)


@examples(60)
@given(series, small_bins(12), taus, st.sampled_from(["ssm", "free", "even", "consistent_hash", "redist"]))
def test_bytes_and_loads_are_those_of_the_owners(counts, bins, tau, planner):
    found = replay(counts, bins, planner, tau)
    before = found.start
    for k, each in enumerate(found.migrations):
        load, state = (values.tolist() for values in bins.at(k))
        moved = sum(size for size, a, b in zip(state, before, each.owner, strict=True) if a != b)
        loads = [sum(x for x, w in zip(load, each.owner, strict=True) if w == worker) for worker in set(each.owner)]
        assert each.bytes == pytest.approx(moved, abs=1e-6)
        assert each.heaviest == pytest.approx(max(loads) * counts[k + 1] / sum(load))
        assert len(loads) <= counts[k + 1]
        if planner in ("ssm", "free"):
            assert each.heaviest <= (1 + each.tau) * (1 + 1e-7)
        before = each.owner
