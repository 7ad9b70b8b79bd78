"""The resource model, the load imbalance degree and the sojourn time of Ls-Stream, by hand and against sums."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meander.errors import InvalidOption
from meander.measure import (
    computing_load,
    load_imbalance,
    mean_sojourn_s,
    memory_load,
    resource,
    service_per_s,
    spread,
    sum_by_worker,
)

STORED, QUEUED, OWNER = [4, 4, 2, 1], [3, 4, 2, 3], [0, 0, 1, 1]
LOADS = st.lists(st.one_of(st.just(0.0), st.floats(0.001, 1e6)), min_size=1, max_size=8)


def test_figure_4_of_ls_stream():
    assert sum_by_worker(memory_load(STORED, QUEUED), OWNER, [0, 1]).tolist() == [15, 8]
    assert sum_by_worker(computing_load(STORED, QUEUED), OWNER, [0, 1]).tolist() == [28, 7]
    loads = sum_by_worker(resource(STORED, QUEUED, gamma=0.5), OWNER, [0, 1])
    assert loads.tolist() == [21.5, 7.5]
    assert load_imbalance(loads) == pytest.approx(14 / 29)
    assert round(load_imbalance(loads), 2) == 0.48
    assert load_imbalance([43, 15]) == pytest.approx(load_imbalance(loads)), "as the paper has it, without 0.5"


@pytest.mark.parametrize(("gamma", "loads"), [(0, [28, 7]), (1, [15, 8]), (0.25, [24.75, 7.25])])
def test_gamma_weighs_memory_against_computing(gamma, loads):
    assert sum_by_worker(resource(STORED, QUEUED, gamma), OWNER, [0, 1]).tolist() == loads


@pytest.mark.parametrize("gamma", [-0.1, 1.1, math.nan])
def test_gamma_outside_its_range_is_refused(gamma):
    with pytest.raises(InvalidOption, match="gamma"):
        resource(STORED, QUEUED, gamma)


def test_sums_follow_the_order_of_workers_and_keep_those_without_bins():
    assert sum_by_worker(np.array([1.5, 2.0, 4.0]), [9, 2, 9], [9, 5, 2]).tolist() == [5.5, 0.0, 2.0]


@pytest.mark.parametrize(
    ("loads", "degree"),
    [([5], 0), ([2, 2, 2], 0), ([0, 0], 0), ([], 0), ([6, 0, 0], 2), ([3, 3, 0], 1), ([4, 3, 2], 1 / 3)],
)
def test_imbalance_by_hand(loads, degree):
    assert load_imbalance(loads) == pytest.approx(degree)


def test_spread_tells_which_side_is_farther_from_the_mean():
    assert spread([3, 3, 0]) == (0.5, 1.0)
    assert spread([6, 0, 0]) == (2.0, 1.0)


def test_capacities_make_it_a_measure_of_utilisation():
    assert load_imbalance([6, 2], capacities=[3, 1]) == 0
    assert load_imbalance([4, 4], capacities=[3, 1]) == pytest.approx(1.0), "4 on capacity 1, the mean is 2"
    assert load_imbalance([4, 4], capacities=[30, 10]) == load_imbalance([4, 4], capacities=[3, 1])


@given(LOADS, st.lists(st.floats(0.1, 10), min_size=8, max_size=8), st.booleans())
def test_imbalance_is_the_larger_relative_distance_from_the_mean(loads, capacities, unequal):
    capacities = capacities[: len(loads)] if unequal else [1.0] * len(loads)
    use = [Fraction(x) / Fraction(c) for x, c in zip(loads, capacities, strict=True)]
    mean = sum(map(Fraction, loads)) / sum(map(Fraction, capacities))
    exact = max(max(use) - mean, mean - min(use)) / mean if mean else 0
    assert load_imbalance(loads, capacities if unequal else None) == pytest.approx(float(exact), abs=1e-9)
    if not unequal:
        assert load_imbalance(loads) <= len(loads) - 1 + 1e-9


@given(st.floats(0.1, 0.95), st.floats(0.01, 1e4))
def test_sojourn_time_is_what_littles_law_says(busy, arrival):
    service = arrival / busy
    rows = sum(k * busy**k * (1 - busy) for k in range(2000))  # eq. 16 to 18
    assert mean_sojourn_s(service, arrival) == pytest.approx(rows / arrival, rel=1e-6)


@pytest.mark.parametrize(("service", "arrival"), [(5.0, 5.0), (4.0, 5.0), (0.0, 0.0)])
def test_sojourn_time_is_infinite_where_the_queue_grows(service, arrival):
    assert mean_sojourn_s(service, arrival) == math.inf


def test_service_rate_is_rows_per_busy_time():
    assert service_per_s(30.0, work_per_s=60.0, speed_per_s=90.0) == 45.0
    assert service_per_s(30.0, work_per_s=0.0, speed_per_s=90.0) == math.inf
    assert mean_sojourn_s(math.inf, 30.0) == 0.0
