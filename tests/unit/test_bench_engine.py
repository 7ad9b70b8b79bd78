"""The arithmetic of ./dev bench engine, against sorting and counting."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meander_lab.benchmarks import engine_figures as figures
from meander_lab.benchmarks import engine_routing as routing

latencies = st.lists(st.floats(0.02, 1e6), min_size=1, max_size=200)
shares = st.sampled_from([0.01, 0.5, 0.9, 0.99, 0.9999, 1.0])


def smallest_that_covers(values, share):
    return min(each for each in values if sum(other <= each for other in values) >= share * len(values) - 1e-9)


@given(latencies, shares)
def test_a_quantile_is_the_smallest_value_that_covers_the_share(values, share):
    assert figures.quantile(values, share) == smallest_that_covers(values, share)


@given(st.lists(latencies, min_size=1, max_size=4), shares)
def test_a_histograms_quantile_is_at_most_a_bucket_too_high(parts, share):
    histogram = figures.Histogram()
    for part in parts:
        histogram.add(part)
    values = [each for part in parts for each in part]
    exact = smallest_that_covers(values, share)
    assert histogram.total == len(values)
    assert histogram.largest == max(values)
    assert exact * (1 - 1e-9) <= histogram.quantile(share) <= exact * 2 ** (1 / figures.STEPS) * (1 + 1e-9)


@given(latencies)
def test_the_ccdf_counts_what_lies_above_each_edge(values):
    histogram = figures.Histogram()
    histogram.add(values)
    edges, above = histogram.ccdf()
    assert above[-1] == pytest.approx(0)
    for edge, share in zip(edges, above, strict=True):
        assert share * len(values) == pytest.approx(sum(each > edge for each in values), abs=1e-6)


def test_values_beyond_the_histogram_are_kept_in_its_outer_buckets():
    histogram = figures.Histogram(least=1.0, most=8.0)
    histogram.add([0.001, 2.0, 1e9])
    assert histogram.total == 3
    assert histogram.quantile(0.3) == 1.0
    assert histogram.largest == 1e9
    assert math.isnan(figures.Histogram().quantile(0.5))


def test_ratios_are_taken_round_by_round():
    assert figures.ratio_in_turn([2.0, 30.0, 9.0], [1.0, 10.0, 10.0]) == 2.0


def test_medians_are_taken_over_the_rows_that_have_a_name():
    assert figures.medians([{"a": 1.0}, {"a": 3.0, "b": 7.0}, {"a": 2.0}]) == {"a": 2.0, "b": 7.0}


@pytest.mark.parametrize(
    ("measured", "at_least", "met"),
    [(2.0, True, True), (1.9, True, False), (2.0, False, True), (2.1, False, False), (math.nan, True, False)],
)
def test_a_target_is_met_on_its_own_side(measured, at_least, met):
    assert figures.BenchTarget("x", measured, 2.0, at_least).met is met


@pytest.mark.parametrize("scattered", [False, True])
def test_intervals_say_the_same_as_the_array(scattered):
    owner = routing.owners(64, 16, scattered)
    runs = routing.runs_of(owner)
    starts = [0, *[end for end, _ in runs[:-1]]]
    rebuilt = np.concatenate([np.full(end - start, worker) for start, (end, worker) in zip(starts, runs, strict=True)])
    assert rebuilt.tolist() == owner
    assert all(left[1] != right[1] for left, right in itertools.pairwise(runs))
    for text in (routing.chain(runs), routing.search(runs)):
        assert [case_of(text, bin_) for bin_ in range(64)] == owner


def case_of(text, bin_):
    """Evaluate a CASE over `bin`, read word by word."""
    words = iter(text.split())

    def value(word):
        if word != "CASE":
            return int(word)
        answer = None
        while (word := next(words)) == "WHEN":
            assert (next(words), next(words)) == ("bin", "<")
            holds = bin_ < int(next(words))
            assert next(words) == "THEN"
            then = value(next(words))
            answer = then if answer is None and holds else answer
        assert word == "ELSE"
        other = value(next(words))
        assert next(words) == "END"
        return other if answer is None else answer

    return value(next(words))
