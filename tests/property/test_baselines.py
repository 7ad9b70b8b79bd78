"""The baselines on random problems, through the checker and against what their docstrings say."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from fractions import Fraction

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from meander.planning.check import check
from meander.planning.problem import Problem
from meander.types import is_contiguous
from meander_lab.planners import ring
from meander_lab.planners.consistent_hash import consistent_hash
from meander_lab.planners.even import even
from meander_lab.planners.redist import redist

SEEDS = st.integers(0, 2**64 - 1)
VIRTUAL_NODES = st.integers(1, 40)
OF_RING = st.fixed_dictionaries({}, optional={"seed": SEEDS, "virtual_nodes": VIRTUAL_NODES})
OF_REDIST = st.fixed_dictionaries(
    {},
    optional={
        "seed": SEEDS,
        "virtual_nodes": VIRTUAL_NODES,
        "heavy": st.floats(0, 4),
        "weight": st.floats(0, 4),
    },
)
CAPACITY = st.floats(0.05, 8)
SIZE = st.one_of(st.just(0), st.integers(0, 20), st.floats(1e-6, 1e6))


@st.composite
def problems(draw: st.DrawFn, pins: bool = True) -> Problem:
    """Growing, shrinking, worker sets, gaps in the ids, idle and leaving workers, capacities, pinned bins."""
    ids = draw(st.lists(st.integers(0, 30), min_size=1, max_size=6, unique=True))
    owner = draw(st.lists(st.sampled_from(ids), min_size=1, max_size=24))
    present = sorted({*owner, *draw(st.sets(st.integers(0, 30), max_size=2))})
    given_args = {
        "load": draw(st.lists(SIZE, min_size=len(owner), max_size=len(owner))),
        "state": draw(st.lists(SIZE, min_size=len(owner), max_size=len(owner))),
        "owner": owner,
        "tau": draw(st.floats(0, 2)),
        "idle": sorted(set(present) - set(owner)),
        "must_leave": draw(st.sets(st.sampled_from(present), max_size=2)),
    }
    if draw(st.booleans()):
        given_args["workers"] = draw(st.integers(1, 9))
    else:
        wanted = draw(st.sets(st.integers(0, 40), min_size=1, max_size=9)) - given_args["must_leave"]
        given_args["workers"] = wanted or {41}
    bare = Problem(**given_args)
    known = sorted({*bare.current, *bare.survivors, *bare.newcomers})
    given_args["capacities"] = draw(st.dictionaries(st.sampled_from(known), CAPACITY, max_size=4))
    if pins and bare.survivors:
        keep = draw(st.sets(st.sampled_from(bare.survivors), max_size=bare.wanted))
        can = [j for j, w in enumerate(owner) if w in keep]
        given_args["pinned"] = draw(st.sets(st.sampled_from(can), max_size=5)) if can else ()
    return Problem(**given_args)


@given(problems())
def test_even_passes_the_checker(problem):
    check(problem, even(problem), cap=False)


@given(problems(), OF_RING)
def test_consistent_hash_passes_the_checker(problem, options):
    plan = consistent_hash(problem, **options)
    check(problem, plan, cap=False)
    assert plan == consistent_hash(problem, **options)


@given(problems(), OF_REDIST)
def test_redist_passes_the_checker(problem, options):
    plan = redist(problem, **options)
    check(problem, plan, cap=False)
    assert plan == redist(problem, **options)


@given(problems(pins=False))
def test_even_gives_ascending_workers_consecutive_bins_in_fair_numbers(problem):
    plan = even(problem)
    assert is_contiguous(plan.owner)
    assert list(plan.owner) == sorted(plan.owner)
    total = sum(Fraction(problem.capacity(w)) for w in plan.workers)
    for w in plan.workers:
        fair = problem.bins * Fraction(problem.capacity(w)) / total
        assert abs(plan.owner.count(w) - fair) < 1 + Fraction(1, 10**9)


@given(problems(), st.randoms(use_true_random=False))
def test_even_and_the_ring_do_not_look_at_load_and_state(problem, random):
    def shuffled(values):
        return random.sample(values, len(values))

    facts = problem.to_dict()
    other = Problem.from_dict({**facts, "load": shuffled(facts["state"]), "state": shuffled(facts["load"])})
    assert even(problem).owner == even(other).owner
    assert consistent_hash(problem).owner == consistent_hash(other).owner


@given(
    bins=st.integers(1, 200),
    workers=st.sets(st.integers(0, 2**31 - 1), min_size=2, max_size=8),
    capacities=st.lists(CAPACITY, min_size=8, max_size=8),
    options=OF_RING,
    data=st.data(),
)
def test_a_worker_that_comes_only_takes_bins_and_one_that_goes_gives_only_its_own(
    bins, workers, capacities, options, data
):
    speeds = dict(zip(sorted(workers), capacities, strict=False))
    one = data.draw(st.sampled_from(sorted(workers)))
    others = sorted(workers - {one})
    with_it = ring.assign(bins, workers, capacities=speeds, **options)
    without = ring.assign(bins, others, capacities=speeds, **options)

    def plan(owner, there, wanted):
        idle = set(there) - set(owner)
        problem = Problem([1] * bins, [1] * bins, owner, wanted, capacities=speeds, idle=idle)
        return consistent_hash(problem, **options)

    coming = plan(without, others, workers)
    assert list(coming.owner) == with_it
    assert {move.target for move in coming.moves} <= {one}
    assert len(coming.moves) == with_it.count(one)

    going = plan(with_it, workers, others)
    assert list(going.owner) == without
    assert {move.source for move in going.moves} <= {one}
    assert len(going.moves) == with_it.count(one)


@given(problems(), OF_RING)
def test_redist_without_heavy_bins_is_consistent_hashing(problem, options):
    assert redist(problem, heavy=1e9, **options).owner == consistent_hash(problem, **options).owner


@given(problems(), OF_REDIST)
def test_redist_leaves_alone_what_it_placed_within_the_cap(problem, options):
    first = redist(problem, **options)
    assume(not first.over_cap)
    facts = {**problem.to_dict(), "owner": first.owner, "workers": first.workers, "must_leave": ()}
    facts["idle"] = set(first.workers) - set(first.owner)
    facts["capacities"] = {w: problem.capacity(w) for w in first.workers}
    assert redist(Problem.from_dict(facts), **options).moves == ()


@given(problems(), OF_REDIST)
def test_redist_places_each_heavy_bin_where_its_docstring_says(problem, options):
    """Replays the answer in fractions: every choice has to be a best one at its turn, up to rounding."""
    plan = redist(problem, **options)
    home = ring.assign(
        problem.bins,
        plan.workers,
        capacities=problem.capacities,
        **{name: options[name] for name in ("seed", "virtual_nodes") if name in options},
    )
    load, state = [list(map(Fraction, values)) for values in (problem.load, problem.state)]
    mean = sum(load) / problem.bins
    limit = Fraction(options.get("heavy", 1.0)) * mean
    assume(all(x == limit or abs(x - limit) > mean / 10**7 for x in load))
    tau, weight = Fraction(problem.tau), Fraction(options.get("weight", 0.25))
    capacity = {w: Fraction(problem.capacity(w)) for w in plan.workers}
    fair = {w: sum(load) * c / sum(capacity.values()) for w, c in capacity.items()}

    heavy = [j for j in range(problem.bins) if load[j] >= limit and j not in problem.pinned]
    if sum(load) == 0 and options.get("heavy", 1.0) > 0:
        heavy = []
    placed = dict.fromkeys(plan.workers, Fraction(0))
    for j in sorted(set(range(problem.bins)) - set(heavy)):
        if j not in problem.pinned:
            assert plan.owner[j] == home[j]
        placed[plan.owner[j]] += load[j]

    tiny = Fraction(1, 10**7)
    for j in sorted(heavy, key=lambda j: (-load[j], j)):
        relative, added = {}, {}
        for w in plan.workers:
            relative[w] = (placed[w] + load[j]) / fair[w] if fair[w] else Fraction(0)
            over_before, over_after = (max(0, x - (1 + tau) * fair[w]) for x in (placed[w], placed[w] + load[j]))
            added[w] = (over_after - over_before) / fair[w] if fair[w] else Fraction(0)
        price = weight * state[j] * len(plan.workers) / sum(state) if sum(state) else Fraction(0)
        least, chosen, present = min(relative.values()), plan.owner[j], problem.owner[j]
        lightest = [w for w in plan.workers if relative[w] <= least * (1 + tiny)]
        assert chosen == present or chosen in lightest
        if present in added and present not in lightest:
            moving = [added[w] + price for w in lightest]
            if added[present] < min(moving) - tiny:
                assert chosen == present
            if added[present] > max(moving) + tiny:
                assert chosen != present
        elif present in added:
            assert chosen == present or added[present] > 0
        placed[chosen] += load[j]


PROGRAM = """
import json
from meander_lab.planners.consistent_hash import consistent_hash
from meander_lab.planners.even import even
from meander.planning.problem import Problem
from meander_lab.planners.redist import redist

problem = Problem(
    load=[(7 * j) % 13 + 0.1 for j in range(96)],
    state=[(5 * j) % 17 for j in range(96)],
    owner=[(3 * j) % 5 for j in range(96)],
    workers=[0, 2, 3, 11, 17, 40],
    capacities={2: 2.0, 40: 0.5},
    pinned=[4, 30],
)
plans = [even(problem)] + [p(problem, seed=s) for s in (0, 9) for p in (consistent_hash, redist)]
answer = json.dumps([plan.owner for plan in plans])
"""


@pytest.mark.parametrize("hash_seed", ["0", "4711"])
def test_every_process_gives_the_same_answer(hash_seed):
    here: dict[str, str] = {}
    exec(PROGRAM, here)
    there = subprocess.run(
        [sys.executable, "-c", PROGRAM + "print(answer)"],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(there.stdout) == json.loads(here["answer"])
