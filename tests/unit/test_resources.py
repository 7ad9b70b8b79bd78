"""Steady means and the resources of bins with one side or two, by hand and against plain Python."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meander.errors import InvalidOption
from meander.measure import Resources, load_imbalance, steady_mean

NONE = [0, 0, 0, 0]
FIGURE_4 = Resources(stored=([4, 4, 2, 1], NONE), queued=(NONE, [3, 4, 2, 3]))
OWNER, WORKERS = [0, 0, 1, 1], [0, 1]
COUNTS = st.lists(st.integers(0, 1000), min_size=4, max_size=4)


def by_worker(values):
    return [float(values[0] + values[1]), float(values[2] + values[3])]


def test_figure_4_of_ls_stream():
    assert by_worker(FIGURE_4.memory) == [15, 8]
    assert by_worker(FIGURE_4.computing) == [28, 7]
    assert FIGURE_4.gamma == 0.5
    assert (2 * FIGURE_4.of_workers(OWNER, WORKERS)).tolist() == [43, 15], "the paper leaves out the 0.5"
    assert FIGURE_4.imbalance(OWNER, WORKERS) == pytest.approx(14 / 29)
    assert round(FIGURE_4.imbalance(OWNER, WORKERS), 2) == 0.48


def test_figure_4_is_the_same_with_the_sides_exchanged():
    other = Resources(stored=(NONE, [4, 4, 2, 1]), queued=([3, 4, 2, 3], NONE))
    assert other.load.tolist() == FIGURE_4.load.tolist()


def test_rows_of_a_side_are_not_compared_with_their_own():
    one_sided = Resources(stored=([5], [0]), queued=([7], [0]))
    assert one_sided.memory.tolist() == [12]
    assert one_sided.computing.tolist() == [0]


@given(COUNTS, COUNTS, COUNTS, COUNTS, st.sampled_from([0, 0.25, 0.5, 1]))
def test_both_directions_of_a_join_add_up(s0, s1, q0, q1, gamma):
    found = Resources((s0, s1), (q0, q1), gamma)
    for j in range(4):
        memory = s0[j] + s1[j] + q0[j] + q1[j]
        computing = s0[j] * q1[j] + s1[j] * q0[j]
        assert (found.memory[j], found.computing[j]) == (memory, computing)
        assert found.load[j] == pytest.approx(gamma * memory + (1 - gamma) * computing)


@pytest.mark.parametrize(("gamma", "load"), [(None, [7, 1]), (0, [7, 1]), (1, [107, 3]), (0.5, [57, 2])])
def test_with_one_side_a_row_costs_the_same_however_much_is_stored(gamma, load):
    counted = Resources(([100, 2],), ([7, 1],), gamma)
    assert counted.computing.tolist() == [7, 1]
    assert counted.load.tolist() == load


def test_imbalance_takes_idle_workers_and_capacities():
    one = Resources(([0, 0],), ([6, 2],))
    assert one.of_workers([4, 1], [1, 2, 4]).tolist() == [2, 0, 6]
    assert one.imbalance([4, 1], [1, 2, 4]) == pytest.approx(load_imbalance([2, 0, 6]))
    assert one.imbalance([4, 1], [1, 4], capacities=[1, 3]) == 0


def test_what_was_given_can_be_changed_without_harm():
    rows = np.array([1.0, 2.0])
    counted = Resources((np.zeros(2),), (rows,))
    rows[0] = 99
    assert counted.load.tolist() == [1, 2]
    with pytest.raises(ValueError, match="read-only"):
        counted.queued[0][0] = 5


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"stored": (), "queued": ()}, "stored has 0 sides"),
        ({"stored": ([1],) * 3, "queued": ([1],) * 3}, "stored has 3 sides and queued has 3; give two of each"),
        ({"stored": ([1],), "queued": ([1], [2])}, "stored has 1 sides and queued has 2"),
        (
            {"stored": ([1, 2],), "queued": ([1],)},
            r"queued of side 0 has the shape \(1,\); give one number for each of 2",
        ),
        ({"stored": ([1], [1, 2]), "queued": ([1], [1])}, "stored of side 1 has the shape"),
        ({"stored": ([[1]],), "queued": ([1],)}, "stored of side 0 has the shape"),
        ({"stored": ([1, -1],), "queued": ([1, 1],)}, "stored of side 0 of bin 1 is -1.0; it must be finite"),
        ({"stored": ([1],), "queued": ([math.nan],)}, "queued of side 0 of bin 0 is nan"),
        ({"stored": ([1],), "queued": ([math.inf],)}, "queued of side 0 of bin 0 is inf"),
        ({"stored": (["x"],), "queued": ([1],)}, "stored of side 0 must be a list of numbers"),
        ({"stored": np.ones(2), "queued": ([1], [1])}, "tuples of arrays"),
        ({"stored": ([1],), "queued": ([1],), "gamma": 1.1}, "gamma is 1.1"),
        ({"stored": ([1],), "queued": ([1],), "gamma": -0.1}, "gamma is -0.1"),
        ({"stored": ([1],), "queued": ([1],), "gamma": "half"}, "gamma must be a number"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments, sentence):
    with pytest.raises(InvalidOption, match=sentence):
        Resources(**arguments)


def test_owners_must_be_known_and_as_many_as_bins():
    with pytest.raises(InvalidOption, match="bin 2 belongs to worker 1, which is not among the workers"):
        FIGURE_4.of_workers(OWNER, [0])
    with pytest.raises(InvalidOption, match="3 owners but 4 bins"):
        FIGURE_4.imbalance([0, 0, 0], [0])


@pytest.mark.parametrize(
    ("values", "mean"),
    [([4], 4), ([4, 10], 7), ([4, 10, 5], 5), ([1, 1, 1, 9], 1), ([0, 2, 4, 100], 3), ([1e18, 1, 2, 3, 0], 2)],
)
def test_steady_mean_by_hand(values, mean):
    assert steady_mean(values) == mean


@given(
    st.integers(1, 9).flatmap(lambda n: st.lists(st.lists(st.integers(0, 10**6), min_size=n, max_size=n), min_size=2))
)
def test_every_column_leaves_out_its_own_highest_and_lowest(columns):
    batches = [list(row) for row in zip(*columns, strict=True)]
    found = steady_mean(batches).tolist()
    assert found == steady_mean(columns, axis=1).tolist()
    for column, mean in zip(columns, found, strict=True):
        left = list(column)
        if len(left) > 2:
            left.remove(max(left))
            left.remove(min(left))
        assert mean == pytest.approx(float(Fraction(sum(left), len(left))))
        assert mean == steady_mean(column)


@pytest.mark.parametrize("values", [[], 5.0, np.zeros((0, 3))])
def test_a_mean_of_no_batches_is_refused(values):
    with pytest.raises(InvalidOption, match="no batch"):
        steady_mean(values)
