"""Ls-Stream's planner: one step against brute force, and whole plans by hand."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Sequence
from itertools import combinations
from random import Random
from statistics import fmean

import pytest

from meander.errors import InvalidOption, TooLarge
from meander.measure import load_imbalance, sum_by_worker
from meander.planning.annealing import annealing
from meander.planning.check import check
from meander.planning.handover import Handover, Side, Sums, anneal, exhaustive, greedy, shed
from meander.planning.problem import Problem
from meander.planning.workload import Workload


def imbalance_after(problem, plan, load=None):
    capacities = [problem.capacity(w) for w in plan.workers]
    return load_imbalance(sum_by_worker(load or problem.load, plan.owner, plan.workers), capacities)


# --- one step ---


def question(parts: Sequence[tuple[float, ...]], target: tuple[float, ...], speed: float, floor: float) -> Handover:
    """A step between two equal workers, of which the first has all of `parts`."""
    parts = tuple(Sums(*part) for part in parts)
    source = Sums.of(parts)
    sides = [Side(w, sums, speed, row_work=1.0) for w, sums in ((0, source), (1, Sums(*target)))]
    ceiling = (source.load - sides[1].sums.load) / 2
    return Handover(*sides, tuple(range(len(parts))), parts, floor, ceiling, ceiling).without_heavy_bins()


def random_question(rng: Random, bins: int) -> Handover:
    """Stored and queued rows of a join, skewed; often the straggler cannot keep up before the step."""
    parts = []
    for _ in range(bins):
        stored, queued = rng.randrange(40) * rng.choice([1, 1, 4]), rng.randrange(20) * rng.choice([1, 1, 3])
        parts.append((0.5 * (stored + queued) + 0.5 * stored * queued, stored * queued, queued, stored))
    share = rng.uniform(0, 0.6)
    load, work, rows, tuples = (share * sum(column) for column in zip(*parts, strict=True))
    speed = work / share / rng.choice([0.9, 0.97, 1.1])
    floor = sum(part[0] for part in parts) * rng.uniform(0.05, 0.4)
    return question(parts, (load, work, rows, tuples), speed, floor)


def value(handover: Handover, chosen: Sequence[int]) -> tuple[int, float]:
    """Settled queues and mif from equations 20 and 23 to 25, written anew."""
    load, work, rows, tuples = (sum(handover.parts[i][k] for i in chosen) for k in range(4))
    sojourns = []
    for side, sign in ((handover.source, -1), (handover.target, 1)):
        for moved in (0, sign):
            arrival, busy = side.sums.rows + moved * rows, (side.sums.work + moved * work) / side.speed
            if arrival < 1e-9:
                sojourns.append(side.row_work / side.speed)
            elif busy < 1e-12:
                sojourns.append(0.0)
            else:
                mu = arrival / busy
                sojourns.append(1 / (mu - arrival) if mu > arrival else math.inf)
    finite = [0.0 if math.isinf(s) else s for s in sojourns]
    benefit = finite[0] - finite[1] + finite[2] - finite[3]
    before, after = math.isinf(sojourns[0]) + math.isinf(sojourns[2]), math.isinf(sojourns[1]) + math.isinf(sojourns[3])
    return before - after, (2 * load + benefit) / max(tuples, 1)


def allowed(handover: Handover, chosen: Sequence[int]) -> bool:
    return handover.floor < math.fsum(handover.parts[i].load for i in chosen) < handover.ceiling


def walk(handover: Handover, seed: int = 0) -> list[int] | None:
    return anneal(handover, Random(seed), 1.0, 0.001, 0.9)


def test_score_by_hand():
    # Straggler: 8 rows/s, mu 10; target: 2 rows/s, mu 10. Two rows/s with a quarter of the work move.
    handover = question([(6, 6, 6, 3), (2, 2, 2, 4)], target=(2, 2, 2, 1), speed=10, floor=1)
    settled, mif = handover.score(Sums(2, 2, 2, 4))
    assert settled == 0
    assert mif == pytest.approx((2 * 2 + (1 / (10 - 8) - 1 / (10 - 6)) + (1 / (10 - 2) - 1 / (10 - 4))) / 4)


def test_service_rate_follows_the_work_that_moves():
    # mu = 4 rows/s before; half of the rows go with three quarters of the work: mu' = 4 * (1/2) * (8/2) = 8.
    handover = question([(6, 6, 1, 3), (2, 2, 1, 4)], target=(0, 0, 0, 0), speed=16, floor=1)
    assert handover.sojourns_s[0] == pytest.approx(1 / (4 - 2))
    assert handover.source.sojourn_s(2, 1) == pytest.approx(1 / (8 - 1))


def test_a_choice_that_makes_the_sojourn_time_finite_beats_all_that_do_not():
    # All cost the same load; only without bin 0 can the straggler keep up. Bin 1 is by far the cheaper to move.
    parts = [(2, 5, 1, 1000), (2, 1, 1, 1), (2, 1, 1, 10), (2, 4, 1, 10)]
    handover = question(parts, target=(0, 0, 0, 0), speed=8, floor=1)
    assert handover.sojourns_s[0] == math.inf
    assert handover.score(handover.parts[0]) > handover.score(handover.parts[1])
    for choose in (walk, greedy, exhaustive):
        assert value(handover, choose(handover))[0] == 1


def test_queues_that_stay_infinite_leave_finite_scores():
    parts = [(4, 90, 3, 5), (3, 80, 3, 5), (3, 70, 3, 5)]
    handover = question(parts, target=(1, 50, 3, 5), speed=10, floor=1)
    settled, mif = handover.score(handover.parts[0])
    assert (settled, mif) == (0, 2 * 4 / 5)
    assert question(parts, (1, 5, 3, 5), 10, 1).score(Sums(4, 90, 3, 5)).settled == -1


def test_bins_without_tuples_have_a_finite_impact():
    handover = question([(4, 4, 4, 0), (4, 4, 4, 0), (1, 1, 1, 0)], target=(1, 1, 1, 0), speed=20, floor=0.5)
    assert handover.score(Sums(1, 1, 1, 0)).mif == handover.score(Sums(1, 1, 1, 1)).mif
    assert walk(handover) == exhaustive(handover)


def test_exhaustive_finds_what_brute_force_finds():
    rng, answered = Random(5), 0
    for _ in range(150):
        handover = random_question(rng, rng.randint(1, 7))
        every = range(len(handover.parts))
        choices = [c for k in every for c in combinations(every, k + 1) if allowed(handover, c)]
        answer = exhaustive(handover)
        assert (answer is None) == (not choices)
        if answer is not None:
            settled, mif = max(value(handover, c) for c in choices)
            assert allowed(handover, answer)
            assert value(handover, answer)[0] == settled
            assert value(handover, answer)[1] == pytest.approx(mif)
            answered += 1
    assert answered > 40


def test_how_near_annealing_and_greedy_come_to_the_best_choice():
    rng, ratios, of_greedy = Random(11), [], []
    for seed in range(120):
        handover = random_question(rng, rng.randint(4, 12))
        best = exhaustive(handover)
        if best is None:
            assert walk(handover) is None
            assert greedy(handover) is None
            continue
        top = value(handover, best)
        for found, near in ((walk(handover, seed), ratios), (greedy(handover), of_greedy)):
            if found is None:
                near.append(0.0)
                continue
            assert allowed(handover, found)
            settled, mif = value(handover, found)
            near.append(mif / top[1] if settled == top[0] else 0.0)
            assert near[-1] <= 1 + 1e-9
        assert ratios[-1] >= of_greedy[-1] - 1e-9, "annealing starts from the greedy choice and keeps the best"
    assert len(ratios) > 50
    assert fmean(ratios) >= 0.99
    assert fmean(of_greedy) >= 0.7
    assert fmean(ratios) >= fmean(of_greedy)


def test_annealing_is_at_least_as_good_as_greedy_on_large_stragglers():
    rng = Random(3)
    for seed in range(6):
        handover = random_question(rng, 120)
        found, quick = walk(handover, seed), greedy(handover)
        if quick is not None:
            assert found is not None
            assert allowed(handover, found)
            assert value(handover, found) >= value(handover, quick)


def test_cooling_down_finds_more_than_wandering_about():
    better = 0
    for seed in range(10):
        handover = random_question(Random(seed), 40)
        if handover.is_open:
            cold, hot = walk(handover), anneal(handover, Random(0), 1e6, 1e3, 0.9)
            assert value(handover, cold) >= value(handover, hot)
            better += value(handover, cold) > value(handover, hot)
    assert better >= 5


def test_annealing_leaves_the_greedy_choice_where_only_many_bins_for_one_lead_on():
    # Loads must lie between 9.5 and 10.5: that is {9, 1}, where greedy ends, or {4, 3, 3} at half its tuples.
    parts = [(9, 9, 9, 4), (1, 1, 1, 10), (4, 4, 4, 2), (3, 3, 3, 2), (3, 3, 3, 2), (20, 20, 20, 20)]
    handover = question(parts, target=(19, 19, 19, 19), speed=60, floor=9.5)
    assert handover.ceiling == 10.5
    assert greedy(handover) == [0, 1]
    assert [walk(handover, seed) for seed in range(5)] == [[2, 3, 4]] * 5


def test_exhaustive_says_what_is_too_large():
    handover = question([(1, 1, 1, 1)] * 21, target=(0, 0, 0, 0), speed=40, floor=2)
    with pytest.raises(TooLarge, match=r"worker 0 has 21 bins .* choose='annealing'"):
        exhaustive(handover)


def test_shedding_fills_the_target_up_to_the_mean_with_the_best_bins():
    sides = [Side(0, Sums(40, 40, 40, 40), 100, 1.0), Side(1, Sums(0, 0, 0, 0), 100, 1.0)]
    parts = tuple(Sums(*part) for part in [(4, 4, 4, 8), (4, 4, 4, 1), (2, 2, 2, 1), (30, 30, 30, 30)])
    handover = Handover(*sides, (0, 1, 2, 3), parts, floor=30, ceiling=20, fair=7).without_heavy_bins()
    assert handover.bins == (0, 1, 2), "bin 3 breaks (31) on its own"
    assert not handover.is_open
    assert shed(handover) == [1, 2]
    coarse = Handover(*sides, (0, 1, 2), parts[:3], floor=30, ceiling=20, fair=1)
    assert shed(coarse) == [1]
    assert shed(Handover(*sides, (), (), floor=30, ceiling=20, fair=7)) is None


# --- what is known of bins and workers ---


def test_workload_by_hand():
    problem = Problem(load=[5, 6, 7], state=[10, 0, 30], owner=[0, 0, 1], workers=3, capacities={1: 2.0})
    plain = Workload.of(problem, None, None, None, 0.5, None, None)
    assert plain.parts == ((5, 5, 5, 10), (6, 6, 6, 0), (7, 7, 7, 30))
    assert plain.speeds == pytest.approx({0: 11 / 0.9, 1: 2 * 11 / 0.9, 2: 11 / 0.9}), "the busiest is 90 % busy"
    measured = Workload.of(problem, [4, 2, 0.5], [3, 1, 2], None, 0.25, [30, 20, 10], {0: 70})
    assert measured.parts == ((10.75, 12, 30, 4), (2.25, 2, 20, 2), (1.375, 1, 10, 0.5))
    assert measured.least_tuples == 0.5
    assert measured.row_work == 15 / 60
    assert measured.speeds == pytest.approx({0: 70 * 14 / 50, 1: 2 * 70 * 14 / 50, 2: 70 * 14 / 50})
    alike = Workload.of(problem, [4, 2, 0.5], [3, 1, 2], None, 0.25, [30, 20, 10], 10)
    assert alike.speeds == pytest.approx({0: 10 * 14 / 50, 1: 20 * 1 / 10, 2: 10 * 15 / 60})


# --- whole plans ---


def test_nothing_moves_within_alpha():
    problem = Problem(load=[3, 1, 1, 1], state=[1] * 4, owner=[0, 0, 1, 1], workers=2)
    assert annealing(problem, alpha=0.5).moves == (), "LI is 1/3"
    assert annealing(problem, alpha=0.3).owner == (0, 1, 1, 1)


def test_figure_4_cannot_be_balanced_further():
    # The bins of j0 weigh 9.5 and 12, half the difference is 7: any move would make j1 the straggler.
    problem = Problem(load=[1] * 4, state=[1] * 4, owner=[0, 0, 1, 1], workers=2)
    plan = annealing(problem, stored=[4, 4, 2, 1], queued=[3, 4, 2, 3], alpha=0.3)
    assert plan.moves == ()


def test_stored_and_queued_make_the_load():
    stored, queued = [4, 4, 2, 1, 1, 1], [3, 4, 2, 3, 2, 1]
    problem = Problem(load=[0] * 6, state=[1] * 6, owner=[0, 0, 1, 1, 0, 0], workers=2)
    plan = annealing(problem, stored=stored, queued=queued, alpha=0.4)
    load = [0.5 * (s + q) + 0.5 * s * q for s, q in zip(stored, queued, strict=True)]
    assert plan.moves
    assert imbalance_after(problem, plan, load) <= 0.4
    assert annealing(problem, alpha=0.4).moves == (), "the loads of the problem itself are zero"


def test_the_cheapest_bins_per_tuple_go():
    # Either of the bins 0 to 3 would do; bin 2 has the least to carry.
    problem = Problem(load=[2] * 5, state=[50, 40, 3, 60, 1], owner=[0, 0, 0, 0, 1], workers=2)
    assert [move.bin for move in annealing(problem, alpha=0.4).moves] == [2]
    moved = annealing(problem, alpha=0.5, stored=[9, 1, 9, 9, 9], queued=[2] * 5, gamma=1).moves
    assert [move.bin for move in moved] == [1]


@pytest.mark.parametrize("choose", ["annealing", "greedy"])
def test_a_straggler_that_no_single_target_can_relieve_is_emptied_step_by_step(choose):
    rng = Random(1)
    load = [rng.expovariate(1) for _ in range(512)]
    problem = Problem(load=load, state=[1] * 512, owner=[0] * 512, workers=16)
    plan = annealing(problem, alpha=0.2, choose=choose)
    check(problem, plan, cap=False)
    assert imbalance_after(problem, plan) <= 0.2


def test_a_bin_too_heavy_to_move_does_not_keep_others_from_being_relieved():
    load = [100, 1, 20, 20, 20, 20, 1, 1]
    problem = Problem(load=load, state=[1] * 8, owner=[0, 0, 1, 1, 1, 1, 2, 3], workers=4)
    plan = annealing(problem, alpha=0.5)
    assert plan.loads[0] == 100
    assert max(plan.loads[w] for w in (1, 2, 3)) <= 41


def test_the_least_loaded_is_lifted_where_nobody_is_too_busy():
    problem = Problem(load=[1] * 30, state=[1] * 30, owner=[j % 3 for j in range(29)] + [3], workers=4)
    before = load_imbalance(sum_by_worker(problem.load, problem.owner, range(4)))
    plan = annealing(problem, alpha=0.4)
    assert before > 0.8
    assert max(plan.loads.values()) <= max(10, 7.5 * 1.4)
    assert imbalance_after(problem, plan) <= 0.4


def test_loads_are_compared_per_capacity():
    problem = Problem(load=[1] * 8, state=[1] * 8, owner=[0, 0, 0, 0, 1, 1, 1, 1], workers=2, capacities={0: 3.0})
    plan = annealing(problem, alpha=0.1)
    assert plan.loads == {0: 6, 1: 2}
    assert annealing(Problem(**{**problem.to_dict(), "owner": plan.owner}), alpha=0.1).moves == ()


def test_an_unstable_straggler_hands_over_what_makes_it_stable():
    # Bins 0 to 3 weigh 8 each. Bin 3 has more to carry, but also 16 of the 37 comparisons.
    problem = Problem(load=[1] * 6, state=[1] * 6, owner=[0, 0, 0, 0, 1, 1], workers=2)
    options = {"alpha": 0.5, "stored": [1, 1, 1, 4, 1, 1], "queued": [7, 7, 7, 4, 1, 1], "gamma": 1}
    steady = annealing(problem, **options, service={0: 100, 1: 100}).moves
    assert [move.bin for move in steady] == [0]
    overrun = annealing(problem, **options, service={0: 25 * 25 / 37, 1: 100}).moves
    assert [move.bin for move in overrun] == [3]


def test_leaving_workers_hand_their_bins_over_heaviest_first():
    problem = Problem(load=[5, 3, 4, 2, 6, 1], state=[1] * 6, owner=[0, 1, 2, 2, 2, 2], workers=2, must_leave=[2])
    # 6 -> worker 1 (9), 4 -> worker 0 (9), 2 -> worker 0 (11, the lower id), 1 -> worker 1 (10)
    assert annealing(problem).owner == (0, 1, 0, 0, 1, 1)
    # With twice the capacity, worker 1 takes 6 (4.5), 4 (6.5) and 1 (7); 2 goes to worker 0 (7, against 7.5).
    fast = Problem(**{**problem.to_dict(), "capacities": {1: 2.0}})
    assert annealing(fast).owner == (0, 1, 1, 0, 1, 1)


def test_those_with_the_least_state_leave_but_no_owner_of_pinned_bins():
    problem = {"load": [1] * 4, "state": [5, 1, 7, 1], "owner": [0, 1, 2, 3], "workers": 3}
    assert annealing(Problem(**problem)).workers == (0, 1, 2), "of equals the highest id leaves"
    assert annealing(Problem(**problem, pinned=[1, 3])).workers == (1, 2, 3)
    assert annealing(Problem(**{**problem, "workers": 1})).workers == (2,)


def test_a_new_worker_gets_bins_although_alpha_does_not_ask_for_it():
    problem = Problem(load=[1] * 12, state=[1] * 12, owner=[0] * 6 + [1] * 6, workers=3)
    plan = annealing(problem)
    assert load_imbalance([6, 6, 0]) <= 1.0
    assert 1 < plan.loads[2] <= 4
    assert annealing(Problem(load=[1] * 4, state=[1] * 4, owner=[0] * 4, workers=2)).loads[1] > 0


def test_an_idle_worker_is_a_target():
    problem = Problem(load=[1] * 8, state=[1] * 8, owner=[0] * 8, workers=2, idle=[4])
    assert annealing(problem, alpha=0.2).loads == {0: 4, 4: 4}


def test_exhaustive_plans_are_refused_where_they_take_too_long():
    problem = Problem(load=[1] * 30, state=[1] * 30, owner=[0] * 28 + [1, 1], workers=2)
    with pytest.raises(TooLarge, match="worker 0"):
        annealing(problem, alpha=0.5, choose="exhaustive")


def test_thousands_of_bins_are_balanced():
    rng = Random(2)
    load = [rng.paretovariate(2) for _ in range(4096)]
    problem = Problem(
        load=load, state=[rng.randrange(1000) for _ in load], owner=[j // 64 for j in range(4096)], workers=64
    )
    before = load_imbalance(sum_by_worker(load, problem.owner, range(64)))
    plan = annealing(problem, alpha=before / 3)
    check(problem, plan, cap=False)
    assert imbalance_after(problem, plan) <= before / 3
    assert plan.cost < sum(problem.state) / 10


def test_another_process_gives_the_same_plan():
    problem = Problem(
        load=[(j * 7) % 13 + 1 for j in range(60)],
        state=[j % 9 for j in range(60)],
        owner=[0] * 40 + [1] * 20,
        workers=5,
    )
    code = """if True:
        import json, sys
        from meander.planning.annealing import annealing
        from meander.planning.problem import Problem
        print(json.dumps(annealing(Problem.from_dict(json.load(sys.stdin)), alpha=0.1, seed=9).owner))
    """
    ran = subprocess.run(
        [sys.executable, "-c", code],
        input=json.dumps(problem.to_dict()),
        env={**os.environ, "PYTHONHASHSEED": "12345"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert tuple(json.loads(ran.stdout)) == annealing(problem, alpha=0.1, seed=9).owner


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stored": [1, 2], "queued": [1, 2, 3]}, "stored has 2 entries but there are 3 bins"),
        ({"stored": [1, 2, 3], "queued": [1, -2, 3]}, "queued of bin 1 is -2"),
        ({"queued": [1, math.nan, 3]}, "queued of bin 1"),
        ({"arrivals": [1, "two", 3]}, "arrivals of bin 1 must be a number"),
        ({"arrivals": 7}, "arrivals must be a list"),
        ({"stored": [1e200] * 3, "queued": [1e200] * 3}, "stored of bin 0 is 1e.200, more than 1e.100"),
        ({"gamma": 1.5}, "gamma"),
        ({"gamma": -0.5, "stored": [1] * 3, "queued": [1] * 3}, "gamma"),
        ({"gamma": None}, "gamma must be a number"),
        ({"T_min": 5e-324}, "T_min is .*; it must be at least"),
        ({"eta": 0.9999999}, "sweeps"),
        ({"service": 1e308}, "service is 1e.308, more than 1e.100"),
        ({"alpha": 0}, "alpha is 0; it must be finite and above 0"),
        ({"alpha": math.inf}, "alpha"),
        ({"T": 0.1, "T_min": 0.1}, "T is 0.1; it must be above T_min"),
        ({"T_min": 0}, "T_min"),
        ({"eta": 1.0}, "eta is 1.0"),
        ({"eta": 0}, "eta"),
        ({"seed": 1.5}, "seed is 1.5"),
        ({"choose": "luck"}, "choose is 'luck'; it must be one of annealing, greedy, exhaustive"),
        ({"service": 0}, "service is 0"),
        ({"service": {}}, "service names no worker"),
        ({"service": {7: 1.0}}, "service names worker 7"),
        ({"service": {0: -1.0}}, "service of worker 0 is -1"),
    ],
)
def test_bad_options_are_named(options, message):
    problem = Problem(load=[1, 2, 3], state=[1, 2, 3], owner=[0, 0, 1], workers=2)
    with pytest.raises(InvalidOption, match=message):
        annealing(problem, **options)


def test_services_may_come_as_json_and_leave_workers_out():
    problem = Problem(load=[3, 3, 3, 1], state=[1, 2, 3, 4], owner=[0, 0, 0, 1], workers=3)
    by_text = annealing(problem, alpha=0.2, service={"0": 12.0})
    assert by_text == annealing(problem, alpha=0.2, service={0: 12.0})
    assert by_text == annealing(problem, alpha=0.2, service=12.0)


def test_computing_is_what_keeps_workers_busy_where_it_is_given():
    # By load all bins are alike and worker 0 has three of them; by computing bin 2 is all that slows worker 0 down.
    problem = Problem(load=[1, 1, 1, 1], state=[1, 1, 1, 1], owner=[0, 0, 0, 1], workers=2)
    options = {"arrivals": [1, 1, 1, 1], "service": {0: 3.1, 1: 90.0}, "alpha": 0.2, "choose": "exhaustive"}
    assert annealing(problem, computing=[1, 1, 30, 1], **options).owner == (0, 0, 1, 1)
    assert annealing(problem, computing=[30, 1, 1, 1], **options).owner == (1, 0, 0, 1)
    with pytest.raises(InvalidOption, match="computing has 3 entries"):
        annealing(problem, computing=[1, 1, 1])
