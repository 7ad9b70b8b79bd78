"""What holds of worker counts and matrices whatever the series is."""

import itertools
import json
import math
from fractions import Fraction

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st

from meander.outlook import Transitions, migrations, worker_counts
from meander.outlook.transitions import tally

ranges = st.tuples(st.integers(1, 40), st.integers(1, 12)).map(lambda pair: (pair[0], pair[0] + pair[1]))


@st.composite
def pasts(draw):
    lo, hi = draw(ranges)
    return lo, hi, draw(st.lists(st.integers(lo, hi), max_size=60))


@given(pasts(), st.booleans(), st.floats(0, 100))
def test_every_row_is_a_distribution_over_other_counts(past, keep_equal, smoothing):
    lo, hi, counts = past
    learned = Transitions.of(counts, lo, hi, keep_equal=keep_equal, smoothing=smoothing)
    assert learned.matrix.shape == (hi - lo + 1,) * 2
    assert np.allclose(learned.matrix.sum(axis=1), 1, atol=1e-12)
    assert (learned.matrix >= 0).all()
    if not keep_equal:
        assert not np.diag(learned.matrix).any()
    if smoothing >= 1e-3:
        assert (learned.matrix[~np.eye(hi - lo + 1, dtype=bool)] > 0).all()


@given(pasts(), st.integers(1, 50), st.booleans())
def test_only_the_differences_matter(past, shift, keep_equal):
    lo, hi, counts = past
    here = Transitions.of(counts, lo, hi, keep_equal=keep_equal)
    there = Transitions.of([n + shift for n in counts], lo + shift, hi + shift, keep_equal=keep_equal)
    assert (here.matrix == there.matrix).all()
    assert here != there


@given(pasts(), st.data())
def test_staying_longer_changes_nothing(past, data):
    lo, hi, counts = past
    longer = [n for n in counts for _ in range(data.draw(st.integers(1, 3)))]
    assert Transitions.of(longer, lo, hi) == Transitions.of(counts, lo, hi)


@given(pasts())
def test_more_smoothing_is_nearer_to_what_is_expected(past):
    lo, hi, counts = past
    plain, some, most = (Transitions.of(counts, lo, hi, smoothing=s).matrix for s in (0, 8, 1e12))
    assert (np.abs(some - most) <= np.abs(plain - most) + 1e-9).all()


@given(pasts())
def test_probabilities_of_all_that_may_come_sum_to_one(past):
    lo, hi, counts = past
    assume(hi - lo <= 5)
    learned = Transitions.of(counts, lo, hi)
    every = range(lo, hi + 1)
    assert math.isclose(sum(learned.probability([lo, a, b]) for a in every for b in every), 1, rel_tol=1e-9)


@given(pasts())
def test_a_matrix_survives_json(past):
    lo, hi, counts = past
    learned = Transitions.of(counts, lo, hi)
    assert Transitions.from_dict(json.loads(json.dumps(learned.to_dict()))) == learned


@given(pasts())
def test_migrations_and_their_tally(past):
    lo, hi, counts = past
    changes = migrations(counts).tolist()
    assert all(a != b for a, b in itertools.pairwise(changes))
    assert migrations(changes).tolist() == changes
    assert tally(counts, lo, hi).sum() == max(0, len(changes) - 1)
    assert tally(counts, lo, hi, keep_equal=True).sum() == max(0, len(counts) - 1)


@given(st.lists(st.integers(0, 10_000), min_size=1, max_size=80), ranges)
def test_worker_counts_are_the_nearest_whole_numbers_to_the_exact_ones(amounts, bounds):
    lo, hi = bounds
    ascending = sorted(map(Fraction, amounts))

    def percentile(p):
        place = Fraction(p, 100) * (len(ascending) - 1)
        below = ascending[math.floor(place)]
        return below + (place % 1) * (ascending[math.ceil(place)] - below)

    least, most = percentile(1), percentile(99)
    for amount, count in zip(amounts, worker_counts(amounts, lo, hi).tolist(), strict=True):
        share = (min(max(amount, least), most) - least) / (most - least) if most > least else 0
        exact = lo + share * (hi - lo)
        assert lo <= count <= hi
        assert abs(count - exact) <= 0.5 + 1e-9


@given(st.lists(st.integers(0, 10_000), min_size=2, max_size=80), ranges, st.randoms(use_true_random=False))
def test_worker_counts_know_neither_units_nor_order(amounts, bounds, rng):
    counts = worker_counts(amounts, *bounds)
    assert (worker_counts(np.array(amounts) / 1024, *bounds) == counts).all()
    order = list(range(len(amounts)))
    rng.shuffle(order)
    assert worker_counts([amounts[at] for at in order], *bounds).tolist() == counts[order].tolist()
    assert (np.diff(counts[np.argsort(amounts)]) >= 0).all()
    if len(set(amounts)) > 1:
        assert (counts.min(), counts.max()) == bounds
