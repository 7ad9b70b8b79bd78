"""Schedules: known cases, refusals, and a checker that notices every kind of wrong step."""

import os
import random
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest

from check_schedule import bound, check_schedule, duration
from meander.errors import InvalidOption, InvalidPlan
from meander.scheduling import schedule, schedules
from meander.types import Assignment, Move

NAMES = ["all_at_once", "fluid", "batched", "matching", "phases"]


def known_case():
    now = [i % 16 for i in range(4096)]
    first = [(i // 2 * 2 + i % 2 * 8) % 16 for i in range(2048)]
    return now, first + now[2048:]


def bins(steps):
    return [[move.bin for move in step] for step in steps]


def test_the_schedules_are_listed_with_a_line_each():
    assert list(schedules()) == NAMES
    for name, each in schedules().items():
        assert each.name == name
        assert len(each.summary) > 10
        assert "\n" not in each.summary
        assert {"max_in", "gap"} <= set(each.options)
    assert list(schedules()["batched"].options) == ["max_bins", "max_bytes", "max_in", "gap"]


def test_the_list_of_schedules_cannot_be_changed():
    with pytest.raises(TypeError):
        schedules()["mine"] = schedules()["fluid"]


def test_known_case():
    now, goal = known_case()
    state = [1] * 4096
    assert sum(a != b for a, b in zip(now, goal, strict=True)) == 1024
    assert len(schedule(now, goal, "all_at_once")) == 1
    assert len(schedule(now, goal, "fluid")) == 1024
    assert len(schedule(now, goal, "batched", max_bins=16)) == 64
    assert len(schedule(now, goal, "matching")) == 128
    assert sum(map(duration, schedule(now, goal, "phases", state))) == 128
    for name in NAMES:
        check_schedule(now, goal, schedule(now, goal, name, state), state)


def test_no_moves_no_steps():
    for name in NAMES:
        assert schedule([3, 3, 5], [3, 3, 5], name, state=[1, 2, 3], gap=2) == []
        assert schedule([], [], name, state=[], max_in=1) == []


def test_batched_with_sixteen_bins_is_what_one_gets_unasked():
    steps = schedule([0] * 40, [1] * 40)
    assert steps == schedules()["batched"]([0] * 40, [1] * 40, max_bins=16)
    assert [len(step) for step in steps] == [14, 13, 13]


def test_moves_carry_the_bytes_of_their_bins():
    assert schedule([0, 0, 1], [1, 0, 0], "fluid", state=[7, 8, 9.5]) == [
        [Move(0, 0, 1, 7)],
        [Move(2, 1, 0, 9.5)],
    ]
    assert schedule([0, 0, 1], [1, 0, 0], "fluid") == [[Move(0, 0, 1, 0)], [Move(2, 1, 0, 0)]]


def test_assignments_and_arrays_are_owner_maps_too():
    expected = schedule([0, 1, 2], [1, 2, 2], "matching", state=[4, 5, 6])
    assert schedule(Assignment.initial([0, 1, 2]), (1, 2, 2), "matching", state=(4, 5, 6)) == expected
    arrays = schedule(np.array([0, 1, 2]), np.array([1, 2, 2]), "matching", state=np.array([4, 5, 6]))
    assert arrays == expected
    assert {type(field) for step in arrays for move in step for field in move} == {int}
    scalars = schedule([np.int64(0), 1], [np.int32(1), 1], "batched", state=[np.float64(2.5), 1], max_bins=np.int64(3))
    assert scalars == [[Move(0, 0, 1, 2.5)]]
    assert type(scalars[0][0].bytes) is float


def test_a_gap_is_that_many_empty_steps_between_two():
    assert bins(schedule([0, 0], [1, 2], "fluid", gap=2)) == [[0], [], [], [1]]
    assert bins(schedule([0, 0], [1, 2], "all_at_once", gap=2)) == [[0, 1]]


def test_the_empty_steps_of_a_gap_are_not_one_list():
    steps = schedule([0, 0], [1, 2], "fluid", gap=2)
    steps[1].append(steps[0][0])
    assert steps[2] == []


def test_max_in_cuts_all_at_once_by_receiver():
    assert bins(schedule([0] * 5, [1, 1, 2, 1, 2], "all_at_once", max_in=2)) == [[0, 1, 2, 4], [3]]


def test_batched_spreads_a_step_over_the_workers():
    everyone = [(source, target) for source in range(8) for target in range(8) if source != target]
    steps = schedule([a for a, _ in everyone], [b for _, b in everyone], "batched", max_bins=8)
    assert len(steps) == 7
    for step in steps:
        assert len({move.source for move in step}) == len({move.target for move in step}) == 8


def test_batched_by_bytes_spreads_too():
    everyone = [(source, target) for source in range(8) for target in range(8) if source != target]
    now, goal = [a for a, _ in everyone], [b for _, b in everyone]
    steps = schedule(now, goal, "batched", state=[5] * 56, max_bytes=40)
    assert len(steps) == 7
    for step in steps:
        assert len({move.source for move in step}) == len({move.target for move in step}) == 8


def test_batched_spreads_round_robin_sources_to_one_new_worker():
    steps = schedule([i % 64 for i in range(1024)], [64] * 1024, "batched", max_bins=16)
    assert len(steps) == 64
    assert all(len({move.source for move in step}) == 16 for step in steps)


def test_a_bin_larger_than_max_bytes_travels_alone():
    steps = schedule([0] * 4, [1] * 4, "batched", state=[5, 100, 5, 0], max_bytes=10)
    assert [100] in [[move.bytes for move in step] for step in steps]
    assert sorted(len(step) for step in steps)[0] == 1
    assert all(len(step) == 1 or sum(move.bytes for move in step) <= 10 for step in steps)


def test_max_bytes_adds_up_fractions_exactly():
    tenths = schedule([0] * 10, [1] * 10, "batched", state=[0.1] * 10, max_bytes=0.3)
    assert {len(step) for step in tenths} == {2}, "three times the float 0.1 is a little more than the float 0.3"


def test_max_bytes_that_is_tiny_or_huge():
    assert len(schedule([0] * 3, [1] * 3, "batched", state=[1e300, 1.0, 2], max_bytes=5e-324)) == 3
    assert len(schedule([0] * 3, [1] * 3, "batched", state=[1e300, 1.0, 2], max_bytes=10**308)) == 1


def test_matching_lets_a_worker_send_and_receive_in_one_step():
    assert bins(schedule([0, 1, 2], [1, 2, 0], "matching")) == [[0, 1, 2]]


def test_matching_needs_a_swap_here():
    # Bins 0 to 2 go into steps 0, 0 and 1; then the source of bin 3 is free in step 1 only, its target in 0.
    assert len(schedule([0, 1, 1, 0], [10, 11, 12, 12], "matching")) == 2


@pytest.mark.parametrize("shape", ["random", "regular", "hub"])
def test_large_migrations_take_exactly_the_highest_degree(shape):
    rng = random.Random(11)
    if shape == "random":
        now, goal = ([rng.randrange(64) for _ in range(65536)] for _ in range(2))
    elif shape == "regular":
        now = [i % 64 for i in range(65536)]
        goal = [(w + 1 + i // 64 % 63) % 64 for i, w in enumerate(now)]
    else:
        now = [0 if i % 2 else i % 64 for i in range(65536)]
        goal = [64 if w == 0 else 0 for w in now]
    moved = [(a, b) for a, b in zip(now, goal, strict=True) if a != b]
    degree = max(*Counter(a for a, _ in moved).values(), *Counter(b for _, b in moved).values())
    steps = schedule(now, goal, "matching")
    assert len(steps) == degree
    check_schedule(now, goal, steps)
    for step in steps:
        assert len(step) == len({move.source for move in step}) == len({move.target for move in step})


def test_large_migration_in_bytes_meets_the_bound_in_a_moderate_number_of_phases():
    rng = random.Random(15)
    now, goal = ([rng.randrange(64) for _ in range(4096)] for _ in range(2))
    state = [rng.randrange(1, 10**6) for _ in now]
    steps = schedule(now, goal, "phases", state)
    check_schedule(now, goal, steps, state)
    assert sum(map(duration, steps)) == bound(now, goal, state)
    lanes = {(a, b) for a, b in zip(now, goal, strict=True) if a != b}
    partners = max(*Counter(a for a, _ in lanes).values(), *Counter(b for _, b in lanes).values())
    assert partners <= len(steps) <= 2.5 * partners


def test_phases_by_hand():
    # Worker 0 has 3 bytes for 1 and 3 for 2, worker 1 has 6 for 2, so 2 receives 9 in all.
    now, goal, state = [0, 0, 1], [1, 2, 2], [3, 3, 6]
    steps = schedule(now, goal, "phases", state)
    assert bound(now, goal, state) == sum(map(duration, steps)) == 9
    assert len(steps) == 2
    check_schedule(now, goal, steps, state)


def test_phases_cuts_a_bin_where_whole_bins_would_take_longer():
    # Three workers, each with one bin of 2 for either other one but for 0 -> 1, which is one bin of 4.
    now, goal, state = [0, 0, 1, 1, 2, 2], [1, 2, 0, 2, 0, 1], [4, 2, 2, 4, 4, 2]
    steps = schedule(now, goal, "phases", state)
    assert sum(map(duration, steps)) == bound(now, goal, state) == 6
    check_schedule(now, goal, steps, state)


def test_phases_of_one_pair_is_one_phase_and_with_max_in_several():
    now, goal, state = [0] * 5, [1] * 5, [2, 0, 3, 0, 1]
    assert [[tuple(m) for m in step] for step in schedule(now, goal, "phases", state)] == [
        [(0, 0, 1, 2), (1, 0, 1, 0), (2, 0, 1, 3), (3, 0, 1, 0), (4, 0, 1, 1)]
    ]
    assert bins(schedule(now, goal, "phases", state, max_in=2)) == [[0, 2], [1, 4], [3]]


def test_phases_of_bins_without_state_take_no_time_but_keep_to_pairs():
    now, goal = [0, 0, 1, 1], [1, 2, 2, 0]
    steps = schedule(now, goal, "phases", state=[0, 0, 0, 0])
    check_schedule(now, goal, steps, [0, 0, 0, 0])
    assert sum(map(duration, steps)) == 0
    assert len(steps) == 2


def test_phases_of_huge_whole_numbers_are_exact():
    now, goal, state = [0, 0, 1, 1], [1, 2, 2, 0], [2**80 + 1, 2**70 + 3, 2**80 + 7, 5]
    steps = schedule(now, goal, "phases", state)
    check_schedule(now, goal, steps, state)
    assert sum(map(duration, steps)) == bound(now, goal, state) == 2**80 + 2**70 + 10
    assert {type(move.bytes) for step in steps for move in step} == {int}


@pytest.mark.parametrize(
    "state",
    [
        [0.1, 0.2, 0.3, 0.1, 0.7, 1e-17],
        [1e300, 1e-300, 3.5, 2e299, 7.0, 1e284],
        [5e-324, 1e-323, 5e-324, 0.0, 1.5e-323, 5e-324],
        [10**17 + 1, 0.5, 3, 10**16 + 7, 2.25, 1],
        [3.0, 2.0, 1.0, 9.0, 4.0, 0.0],
    ],
)
def test_phases_of_fractions_end_and_add_up(state):
    now, goal = [0, 0, 1, 1, 2, 2], [1, 2, 0, 2, 0, 1]
    steps = schedule(now, goal, "phases", state)
    check_schedule(now, goal, steps, state)
    assert float(sum(map(duration, steps))) == pytest.approx(float(bound(now, goal, state)), rel=1e-12)
    assert len(steps) <= 6 + 6 + 2


def test_whole_floats_give_whole_chunks():
    rng = random.Random(5)
    now, goal = ([rng.randrange(5) for _ in range(60)] for _ in range(2))
    state = [float(rng.randrange(1000)) for _ in now]
    steps = schedule(now, goal, "phases", state)
    assert all(type(move.bytes) is float and move.bytes.is_integer() for step in steps for move in step)
    assert sum(map(duration, steps)) == bound(now, goal, state)


def test_duration_and_bound():
    assert duration([]) == 0
    assert duration([Move(0, 0, 1, 3), Move(1, 0, 1, 4), Move(2, 1, 0, 6)]) == 7
    assert bound([0, 1], [0, 1], [5, 5]) == 0
    assert bound([0, 1, 2], [3, 3, 2], [5, 6, 100]) == 11
    assert bound([0, 0, 2], [3, 1, 2], [5, 6, 100]) == 11


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: schedule([0, 1], [0]), "owner_now has 2 bins but owner_goal has 1"),
        (
            lambda: schedule([0], [1], "eager"),
            "no schedule 'eager'.* all_at_once, fluid, batched, matching, phases",
        ),
        (lambda: schedule([0], [1], ["fluid"]), "no schedule"),
        (
            lambda: schedule([0], [1], "fluid", max_bins=3),
            "fluid has no option 'max_bins'; its options: max_in, gap",
        ),
        (
            lambda: schedule([0], [1], "batched", bins=3),
            "no option 'bins'; its options: max_bins, max_bytes, max_in",
        ),
        (lambda: schedule([0], [1], "fluid", moves=[]), "no option 'moves'"),
        (lambda: schedule([0], [1], max_bins=0), "max_bins is 0; .* at least 1"),
        (lambda: schedule([0], [0], max_bins=0), "max_bins is 0"),
        (lambda: schedule([0], [1], max_bins=True), "max_bins is True"),
        (lambda: schedule([0], [1], max_bins=2.5), "max_bins is 2.5"),
        (lambda: schedule([0], [1], max_bins="3"), "max_bins is '3'"),
        (lambda: schedule([0], [1], "matching", max_in=0), "max_in is 0; .* at least 1"),
        (lambda: schedule([0], [1], "matching", gap=-1), "gap is -1; .* from 0 to 100000"),
        (lambda: schedule([0], [1], "matching", gap=None), "gap is None"),
        (lambda: schedule([0], [1], state=[1], max_bytes=0), "max_bytes is 0"),
        (lambda: schedule([0], [1], state=[1], max_bytes=-3), "max_bytes is -3"),
        (lambda: schedule([0], [1], state=[1], max_bytes=float("nan")), "max_bytes is nan"),
        (lambda: schedule([0], [1], state=[1], max_bytes=float("inf")), "max_bytes is inf"),
        (lambda: schedule([0], [1], state=[1], max_bytes="1k"), "max_bytes must be a number, not a text"),
        (lambda: schedule([0], [1], max_bytes=5), "max_bytes works in bytes; give schedule batched state"),
        (lambda: schedule([0], [1], "phases"), "phases works in bytes; give it state"),
        (lambda: schedule([0], [1], state=[1, 2]), "state has 2 entries but there are 1 bin"),
        (lambda: schedule([0, 0], [1, 0], state=[1, -2]), "state of bin 1 is -2"),
        (lambda: schedule([0, 0], [1, 0], state=[1, float("nan")]), "state of bin 1 is nan"),
        (lambda: schedule([0], [1], state=[float("inf")]), "state of bin 0 is inf"),
        (lambda: schedule([0], [1], state=["1"]), "state of bin 0 must be a number, not a text"),
        (lambda: schedule([0], [1], state=[True]), "state of bin 0 must be a number, not True"),
        (lambda: schedule([0], [1], state=5), "state must be a list"),
        (lambda: schedule([0, 0], [1, 1], state=[1e308, 1e308]), "state adds up to more"),
        (lambda: schedule([0], [1], state=[10**400]), "state of bin 0 is too large"),
        (lambda: schedule([0], [-1]), "owner_goal of bin 0 is -1"),
        (lambda: schedule([0.5], [1]), "owner_now of bin 0 is 0.5"),
        (lambda: schedule("01", [1, 0]), "owner_now must be a list"),
        (lambda: schedule({0: 1}, [1]), "owner_now must be a list"),
        (lambda: schedule([1], {1}), "owner_goal must be a list"),
        (lambda: schedule(None, [1]), "owner_now must be a list"),
        (lambda: schedule(np.array(3), [1]), "owner_now must be a list"),
        (lambda: bound([0], [1], [-1]), "state of bin 0 is -1"),
    ],
)
def test_nonsense_is_refused_in_one_sentence(call, sentence):
    with pytest.raises(InvalidOption, match=sentence) as refusal:
        call()
    assert "\n" not in str(refusal.value)


GOOD = [[Move(0, 0, 1, 4)], [], [Move(2, 1, 0, 6)]]


@pytest.mark.parametrize(
    ("steps", "sentence"),
    [
        (GOOD[:1], "bin 2 stays at worker 1; its goal is worker 0"),
        (
            [*GOOD, [Move(0, 0, 1, 4)]],
            "step 3 moves bin 0, which has moved before|8 bytes of bin 0 are copied; it has 4",
        ),
        ([*GOOD, [Move(0, 1, 0, 4)]], "step 3 moves bin 0"),
        ([[Move(0, 0, 1, 4), Move(0, 0, 1, 4)]], "step 0 moves bin 0 twice"),
        ([[Move(0, 1, 0, 4)]], "from worker 1 to worker 0; it goes from 0 to 1"),
        ([[Move(0, 0, 2, 4)]], "from worker 0 to worker 2"),
        ([[Move(1, 0, 0, 4)]], "bin 1 from worker 0 to worker 0"),
        ([[Move(3, 0, 1, 4)]], "step 0 moves bin 3; the bins are 0 to 2"),
        ([[Move(-1, 1, 0, 4)]], "moves bin -1"),
    ],
)
def test_the_checker_notices(steps, sentence):
    now, goal = [0, 0, 1], [1, 0, 0]
    check_schedule(now, goal, GOOD)
    for state in (None, [4, 5, 6]):
        with pytest.raises(InvalidPlan, match=sentence):
            check_schedule(now, goal, steps, state)


@pytest.mark.parametrize(
    ("chunks", "sentence"),
    [
        ([4, 5], "9 bytes of bin 0 are copied; it has 10"),
        ([4, 7], "11 bytes of bin 0 are copied; it has 10"),
        ([10, 1], "11 bytes"),
        ([4, 0, 6], "copies 0 bytes of bin 0"),
        ([12, -2], "copies -2 bytes"),
        ([float("nan")], "copies nan bytes"),
        ([float("inf")], "copies inf bytes"),
        ([9.999], "9.999 bytes"),
    ],
)
def test_the_checker_adds_up_chunks(chunks, sentence):
    check_schedule([0], [1], [[Move(0, 0, 1, size)] for size in (4, 5, 1)], [10])
    check_schedule([0], [1], [[Move(0, 0, 1, size)] for size in (0.1, 0.2)], [0.3])
    with pytest.raises(InvalidPlan, match=sentence):
        check_schedule([0], [1], [[Move(0, 0, 1, size)] for size in chunks], [10])


def test_the_checker_wants_a_bin_without_state_exactly_once():
    check_schedule([0], [1], [[Move(0, 0, 1, 0)]], [0])
    for steps in ([], [[Move(0, 0, 1, 0)], [Move(0, 0, 1, 0)]]):
        with pytest.raises(InvalidPlan):
            check_schedule([0], [1], steps, [0])


def test_the_checker_compares_lengths():
    with pytest.raises(InvalidPlan, match="2 bins now but 1"):
        check_schedule([0, 1], [0], [])
    with pytest.raises(InvalidPlan, match="1 bins but the state of 2"):
        check_schedule([0], [0], [], [1, 2])


def test_every_process_gives_the_same_answer():
    program = (
        "from meander.scheduling import schedule, schedules; from random import Random; r = Random(3)\n"
        "now, goal, state = ([r.randrange(9) for _ in range(300)] for _ in range(3))\n"
        "print([schedule(now, goal, name, state, max_in=3) for name in schedules()])"
    )
    answers = {
        subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(answers) == 1
    assert "Move(" in answers.pop()
