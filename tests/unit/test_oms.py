import itertools

import numpy as np
import pytest

from meander import Infeasible, InvalidOption, InvalidProblem, Problem, TooLarge, check, plan
from meander.outlook.oms import oms
from meander.outlook.partitions import count, partitions

START = Problem(load=[1] * 20, state=[1] * 20, owner=[0] * 13 + [1] * 7, workers=3, tau=0.4)


def test_the_papers_table_3_under_its_own_model():
    """The paper's table gives 4 + 6 and 5 + 4; the exact answers are 4, then 2 to 4, and 6 in all."""
    first = plan(START, "ssm")
    assert first.cost == 4
    second = plan(Problem(START.load, START.state, first.owner, workers=4, tau=0.4), "ssm")
    assert second.cost in (2, 3, 4)
    best = oms(START, [(3, 0.4), (4, 0.4)])
    assert best.cost == 6
    assert [len(step.workers) for step in best] == [3, 4]


def test_each_plan_of_a_sequence_starts_where_the_last_one_ended_and_holds():
    steps = [(3, 0.4), (5, 0.2), (2, 0.6), (4, 0.0)]
    owner, idle = START.owner, []
    for (workers, tau), step in zip(steps, oms(START, steps), strict=True):
        check(Problem(START.load, START.state, owner, workers, tau, idle=idle), step)
        owner, idle = step.owner, sorted(set(step.workers) - set(step.owner))


def brute_force(problem, steps):
    """Try every contiguous assignment of every step, with every labelling of the workers."""

    def go(owner, idle, steps):
        if not steps:
            return 0
        (workers, tau), later = steps[0], steps[1:]
        here = Problem(problem.load, problem.state, owner, workers, tau, idle=idle)
        best = None
        everyone = (*here.survivors, *here.newcomers)
        for chosen in itertools.permutations(everyone, workers):
            for cuts in itertools.combinations_with_replacement(range(here.bins + 1), workers - 1):
                pieces = list(itertools.pairwise((0, *cuts, here.bins)))
                cap = (1 + tau) * sum(here.load) / workers
                if any(sum(here.load[a:b]) > cap * (1 + 1e-9) for a, b in pieces):
                    continue
                target = [w for (a, b), w in zip(pieces, chosen, strict=True) for _ in range(a, b)]
                cost = sum(s for s, a, b in zip(here.state, owner, target, strict=True) if a != b)
                rest = go(target, sorted(set(chosen) - set(target)), later)
                if rest is not None and (best is None or cost + rest < best):
                    best = cost + rest
        return best

    return go(problem.owner, problem.idle, steps)


def test_oms_equals_brute_force_on_small_sequences_also_with_scattered_owners_and_idle_workers():
    answered = 0
    for seed in range(24):
        rng = np.random.default_rng(seed)
        m = 5
        owner = rng.integers(0, 2, m)
        problem = Problem(
            rng.integers(1, 4, m),
            rng.integers(0, 9, m),
            owner if seed % 2 else np.sort(owner),
            workers=2,
            idle=[4] if seed % 3 == 0 else [],
        )
        steps = [(int(rng.integers(1, 4)), 1.0), (int(rng.integers(1, 4)), float(rng.choice([0.6, 1.5])))]
        true = brute_force(problem, steps)
        if true is None:
            with pytest.raises(Infeasible):
                oms(problem, steps)
        else:
            assert oms(problem, steps).cost == true
            answered += 1
    assert answered > 12


def test_a_single_step_is_ssm():
    assert oms(START).cost == plan(START, "ssm").cost
    assert plan(START, "oms").cost == 4


def test_as_a_planner_it_gives_the_first_step_of_the_whole():
    answer = plan(START, "oms", then=[(4, 0.4)])
    check(START, answer)
    assert answer.planner == "oms"
    assert answer.owner == oms(START, [(3, 0.4), (4, 0.4)])[0].owner


def test_known_numbers_of_partitionings():
    load = np.arange(101.0)
    assert [len(partitions(load, n, 1.2 * 100 / n, limit=5000)) for n in (2, 3, 4)] == [21, 231, 1771]


def test_large_problems_are_refused_with_a_way_out():
    big = Problem([1] * 200, [1] * 200, [0] * 200, workers=8, tau=1.0)
    with pytest.raises(TooLarge, match="use fewer bins, a smaller tau or planner 'ssm'"):
        oms(big, [(8, 1.0), (9, 1.0)])
    wide = Problem([1] * 60, [1] * 60, [0] * 60, workers=4, tau=0.8)
    with pytest.raises(TooLarge, match="pairs"):
        oms(wide, [(4, 0.8), (4, 0.8)])


def test_far_too_large_problems_are_refused_without_being_looked_through():
    owner = [j * 64 // 4096 for j in range(4096)]
    with pytest.raises(TooLarge, match="more than 50000 partitionings"):
        oms(Problem([1] * 4096, [1] * 4096, owner, workers=64, tau=0.2))
    many = [j * 1500 // 2000 for j in range(2000)]
    with pytest.raises(TooLarge, match="more than 50000 partitionings"):
        oms(Problem([1] * 2000, [1] * 2000, many, workers=1500, tau=1.0))


def test_counting_agrees_with_listing():
    rng = np.random.default_rng(4)
    for _ in range(50):
        load = np.concatenate(([0.0], np.cumsum(rng.integers(0, 5, 9))))
        workers, cap = int(rng.integers(1, 6)), float(rng.integers(3, 20))
        assert count(load, workers, cap, 10**6) == len(partitions(load, workers, cap, limit=10**6))


def test_bad_steps_and_options_it_does_not_take():
    with pytest.raises(InvalidOption, match="steps must be a list of"):
        oms(START, [3, 4])
    with pytest.raises(InvalidProblem, match="workers is 0"):
        oms(START, [(3, 0.4), (0, 0.4)])
    with pytest.raises(InvalidProblem, match="without pinned bins"):
        oms(Problem([1, 1], [1, 1], [0, 1], workers=2, pinned=[0]))
