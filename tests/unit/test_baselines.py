"""The baselines on known cases: Storm's default, consistent hashing and Gedik's redist."""

from __future__ import annotations

import itertools
from bisect import bisect_left

import numpy as np
import pytest

from meander.errors import InvalidOption
from meander.planning.problem import Problem
from meander_lab.planners import ring
from meander_lab.planners.consistent_hash import consistent_hash
from meander_lab.planners.even import even
from meander_lab.planners.redist import redist


def equal_bins(bins: int, owner: list[int], workers: int | list[int], **options: object) -> Problem:
    return Problem(load=[1] * bins, state=[1] * bins, owner=owner, workers=workers, **options)


@pytest.mark.parametrize("planner", [even, consistent_hash, redist])
def test_baselines_promise_neither_cap_nor_contiguity(planner):
    assert not planner.keeps_cap
    assert not planner.contiguous
    assert planner.summary


# even


def test_even_ignores_load_and_state():
    plan = even(Problem(load=[9, 1, 1, 1, 1], state=[0, 0, 0, 0, 100], owner=[0] * 5, workers=2))
    assert plan.owner == (0, 0, 0, 1, 1)
    assert plan.over_cap == (0,)


def test_even_gives_the_larger_parts_to_lower_ids():
    assert even(equal_bins(8, [4, 4, 4, 2, 2, 2, 9, 9], 3)).owner == (2, 2, 2, 4, 4, 4, 9, 9)


def test_even_with_more_workers_than_bins_leaves_the_last_ones_idle():
    plan = even(equal_bins(2, [0, 0], 4))
    assert plan.owner == (0, 1)
    assert plan.workers == (0, 1, 2, 3)


@pytest.mark.parametrize(
    ("bins", "capacities", "counts"),
    [
        (7, [1, 2, 4], (1, 2, 4)),
        (10, [1, 1, 1], (4, 3, 3)),
        (10, [3, 3, 1], (4, 4, 2)),  # fair: 4.29, 4.29, 1.43; the last remainder is the largest
        (5, [1000.0, 1.0], (5, 0)),
        (6, [1e-99, 1e-99], (3, 3)),
        (3, [0.1, 0.1, 0.1], (1, 1, 1)),
    ],
)
def test_even_counts_follow_the_capacities(bins, capacities, counts):
    workers = list(range(len(capacities)))
    plan = even(equal_bins(bins, [0] * bins, workers, capacities=capacities))
    assert tuple(plan.owner.count(w) for w in workers) == counts


def test_even_leaves_pinned_bins_inside_the_interval_of_another():
    assert even(equal_bins(6, [1, 0, 0, 0, 0, 1], 2, pinned=[0, 3])).owner == (1, 0, 0, 0, 1, 1)


def test_even_keeps_the_holders_of_pinned_bins_when_workers_leave():
    plan = even(equal_bins(4, [0, 1, 2, 3], 2, pinned=[3]))
    assert plan.workers == (0, 3)
    assert plan.owner == (0, 0, 3, 3)


# the ring


def splitmix64(*parts: int) -> int:
    """The documented hash in whole numbers of Python, one row at a time."""
    word = 2**64 - 1
    bits = 0
    for part in parts:
        bits = ((bits ^ part) + 0x9E3779B97F4A7C15) & word
        bits = ((bits ^ bits >> 30) * 0xBF58476D1CE4E5B9) & word
        bits = ((bits ^ bits >> 27) * 0x94D049BB133111EB) & word
        bits ^= bits >> 31
    return bits


def test_the_hash_is_splitmix64():
    """The first outputs of the generator from seed 1234567, as its authors publish them."""
    golden = 0x9E3779B97F4A7C15
    states = [(1234567 + i * golden) % 2**64 for i in range(3)]
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    assert ring.splitmix64(np.array(states, dtype=np.uint64)).tolist() == published


@pytest.mark.parametrize("seed", [0, 7, 2**64 - 1])
def test_a_bin_goes_to_the_next_point_clockwise(seed):
    capacities = {0: 1.0, 3: 0.01, 2**31 - 1: 2.6}
    counts = {0: 8, 3: 1, 2**31 - 1: 21}
    points = sorted((splitmix64(seed, 2, w, k), w) for w, count in counts.items() for k in range(count))
    expected = []
    for j in range(500):
        following = bisect_left(points, (splitmix64(seed, 1, j), -1))
        expected.append(points[following % len(points)][1])
    assert ring.assign(500, counts, capacities=capacities, virtual_nodes=8, seed=seed) == expected
    assert set(expected) == set(counts)


def test_shares_of_the_ring_are_fair_in_the_mean_over_seeds():
    seeds, bins, capacities = 200, 256, {0: 1.0, 1: 1.0, 5: 2.0, 6: 0.5}
    total = dict.fromkeys(capacities, 0)
    for seed in range(seeds):
        owner = ring.assign(bins, capacities, capacities=capacities, seed=seed)
        for w in total:
            total[w] += owner.count(w)
    for w, capacity in capacities.items():
        share = total[w] / (seeds * bins)
        assert share == pytest.approx(capacity / 4.5, rel=0.05)


def test_more_virtual_nodes_spread_the_bins_more_evenly():
    def spread(virtual_nodes: int) -> float:
        found = []
        for seed in range(40):
            owner = ring.assign(2048, range(8), virtual_nodes=virtual_nodes, seed=seed)
            found.append(np.bincount(owner, minlength=8).std() / 256)
        return float(np.mean(found))

    assert spread(1) > 2 * spread(16) > 4 * spread(1024)
    assert spread(ring.VIRTUAL_NODES) == pytest.approx(0.09, abs=0.03)


@pytest.mark.parametrize("planner", [consistent_hash, redist])
@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"virtual_nodes": 0}, "virtual_nodes is 0"),
        ({"virtual_nodes": 1.5}, "virtual_nodes is 1.5"),
        ({"virtual_nodes": True}, "virtual_nodes is True"),
        ({"virtual_nodes": 2**22 + 1}, "virtual_nodes is 4194305"),
        ({"virtual_nodes": 2**22}, "virtual_nodes=4194304 makes more than 4194304 points for 2 workers"),
        ({"seed": -1}, "seed is -1"),
        ({"seed": 2**64}, "seed is 18446744073709551616"),
        ({"seed": "7"}, "seed is '7'"),
        ({"seed": None}, "seed is None"),
    ],
)
def test_options_of_the_ring_are_checked(planner, options, named):
    with pytest.raises(InvalidOption, match=named):
        planner(equal_bins(4, [0, 0, 1, 1], 2), **options)


def test_a_ring_of_too_many_points_says_what_to_change():
    problem = equal_bins(4, [0, 0, 1, 1], 2, capacities={0: 1e9})
    with pytest.raises(InvalidOption, match=r"capacities up to 1e\+09; lower virtual_nodes or scale the capacit"):
        consistent_hash(problem)


def test_a_ring_needs_workers_and_sound_capacities():
    with pytest.raises(InvalidOption, match="at least one worker"):
        ring.assign(4, [])
    for bad in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(InvalidOption, match="capacity of worker 1"):
            ring.assign(4, [0, 1], capacities={1: bad})


def test_numpy_numbers_do_as_options():
    problem = equal_bins(16, [0] * 16, 3)
    assert consistent_hash(problem, virtual_nodes=np.int64(8), seed=np.uint64(5)) == consistent_hash(
        problem, virtual_nodes=8, seed=5
    )
    assert redist(problem, heavy=np.float32(0.5), weight=np.int64(1)) == redist(problem, heavy=0.5, weight=1)


# Ding's counter-example: 10 bins of load w and 2 of load 2w, all of the same state, from 2 to 3 workers

LOAD = [1] * 10 + [2] * 2
BALANCED = [0] * 5 + [1] * 5 + [0, 1]
TAU = 0.08  # the cap is 5.04 for three workers, so loads of 5, 5 and 4 are the only ones within it


def test_the_best_answer_to_dings_example_moves_the_two_heavy_bins():
    plans = np.array(list(itertools.product(range(3), repeat=12)), dtype=np.int8)
    loads = np.stack([((plans == w) * np.array(LOAD)).sum(axis=1) for w in range(3)])
    within = loads.max(axis=0) <= (1 + TAU) * sum(LOAD) / 3
    moved = (plans != np.array(BALANCED)).sum(axis=1)
    best = moved[within].min()
    assert best == 2
    assert plans[within & (moved == best)].tolist() == [[*BALANCED[:10], 2, 2]]


def test_consistent_hashing_moves_twice_the_bins_and_does_not_balance_dings_example():
    moved, balanced, both_heavy_together = [], 0, 0
    for seed in range(200):
        start = ring.assign(12, [0, 1], seed=seed)
        both_heavy_together += start[10] == start[11]
        plan = consistent_hash(Problem(LOAD, [1] * 12, start, [0, 1, 2], tau=TAU), seed=seed)
        assert {move.target for move in plan.moves} <= {2}
        moved.append(plan.cost)
        balanced += not plan.over_cap
    assert np.mean(moved) == pytest.approx(4, abs=0.4)
    assert balanced < 0.3 * 200
    assert both_heavy_together == pytest.approx(100, abs=25)


def test_redist_balances_dings_example_but_moves_light_bins():
    plan = redist(Problem(LOAD, [1] * 12, BALANCED, 3, tau=TAU), heavy=0, weight=0)
    assert list(plan.loads.values()) == [5, 5, 4]
    assert [move.bin for move in plan.moves] == [3, 4, 8, 9]


# redist


def test_redist_weighs_bytes_against_overload():
    """Moving bin 2 costs half of a worker's state; keeping it puts worker 0 at 1.5 fair shares, cap 1.25."""
    problem = Problem(load=[2, 2, 2, 2], state=[1, 1, 1, 1], owner=[0, 0, 0, 1], workers=2, tau=0.25)
    assert redist(problem, heavy=0, weight=0.49).owner == (0, 0, 1, 1)
    assert redist(problem, heavy=0, weight=0.51).owner == (0, 0, 0, 1)


def test_redist_moves_to_the_worker_with_the_least_load_for_its_capacity():
    """Bin 3 comes last: worker 0 would carry 7 at capacity 4, the others 4 and 3 at capacity 1."""
    problem = Problem(load=[6, 3, 2, 1], state=[1] * 4, owner=[0, 1, 2, 3], workers=[0, 1, 2], capacities={0: 4}, tau=1)
    assert redist(problem, heavy=0).owner == (0, 1, 2, 0)


def test_redist_does_not_move_a_bin_that_adds_no_overload():
    """Worker 0 is far above its cap, but moving its bin without load would not help."""
    problem = Problem(load=[9, 0, 1], state=[1, 1, 1], owner=[0, 0, 1], workers=2, tau=0.2)
    assert redist(problem, heavy=0, weight=0).moves == ()


def test_redist_stays_where_the_cap_allows_it():
    problem = Problem(load=[3, 2, 4, 1], state=[5, 5, 5, 5], owner=[1, 1, 0, 0], workers=2, tau=0)
    assert redist(problem, heavy=0, weight=0).moves == ()


def test_redist_sends_light_bins_back_to_the_ring():
    home = ring.assign(32, [0, 1, 2])
    start = [(w + 1) % 3 for w in home]
    load = [1] * 30 + [1.5, 1.5]
    assert redist(Problem(load, [1] * 32, start, 3), heavy=1.4).owner[:30] == tuple(home[:30])
    assert redist(Problem(load, [1] * 32, start, 3), heavy=1.6).owner == tuple(home)


def test_redist_counts_what_the_ring_and_the_pins_have_placed():
    """The heavy bin comes from worker 2, which leaves, and has to go where the light ones are not."""
    home = ring.assign(20, [0, 1])
    for full, free in ((0, 1), (1, 0)):
        light = [1.0 if w == full else 0.001 for w in home]
        plan = redist(Problem([*light, 20], [1] * 21, [*home, 2], [0, 1]), heavy=3)
        assert plan.owner == (*home, free)
        pinned = redist(Problem([5, 5, 4], [1] * 3, [full, full, 2], [0, 1], pinned=[0, 1]), heavy=0)
        assert pinned.owner == (full, full, free)


def test_bins_of_exactly_the_mean_load_are_heavy():
    """A 49th part of the load, times 49, is a little less than 1 in floats."""
    start = [1 - w for w in ring.assign(49, [0, 1])]
    plan = redist(Problem([1] * 49, [1] * 49, start, 2, tau=1.0), heavy=1)
    assert plan.moves == ()


@pytest.mark.parametrize("load", [[0, 0, 0, 0], [0, 0, 0, 1]])
@pytest.mark.parametrize("state", [[0, 0, 0, 0], [0, 5, 0, 0]])
@pytest.mark.parametrize("heavy", [0, 1])
def test_redist_knows_bins_without_load_or_state(load, state, heavy):
    problem = Problem(load, state, [0, 1, 2, 3], [0, 1])
    plan = redist(problem, heavy=heavy)
    assert plan.workers == (0, 1)
    if heavy == 0:
        assert plan.owner[:2] == (0, 1)


@pytest.mark.parametrize("name", ["heavy", "weight"])
@pytest.mark.parametrize("value", [-0.1, float("nan"), float("inf"), "1", None, True, 10**400])
def test_options_of_redist_are_checked(name, value):
    with pytest.raises(InvalidOption, match=f"^{name} (is|must be) "):
        redist(equal_bins(4, [0, 0, 1, 1], 2), **{name: value})


def test_redist_takes_extreme_weights_and_capacities():
    problem = equal_bins(4, [0, 0, 1, 1], 2, capacities={0: 1e-99})
    assert redist(problem, weight=1e308, heavy=0).moves == ()
    assert redist(problem, weight=0, heavy=0).owner == (1, 1, 1, 1)
    assert redist(problem, heavy=1e308).owner == consistent_hash(problem).owner
