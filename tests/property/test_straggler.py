"""What holds for every course of batches: the figures against plain Python, alpha and LI, and that nothing flaps."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from effort import examples
from meander.control import LoadWindow, Sample, Straggler, StragglerRules
from meander.errors import InvalidOption

BINS = 6
COUNTS = st.lists(st.sampled_from([0, 0, 1, 2, 5, 10, 40, 1000]), min_size=BINS, max_size=BINS)
OWNERS = st.lists(st.integers(0, 3), min_size=BINS, max_size=BINS)


@st.composite
def samples(draw, max_size=7):
    """Batches of one operator whose bins change their owners now and then."""
    sides = draw(st.integers(1, 2))
    owner, course = draw(OWNERS), []
    for batch in range(draw(st.integers(1, max_size))):
        if draw(st.integers(0, 3)) == 0:
            owner = draw(OWNERS)
        queued = [draw(COUNTS) for _ in range(sides)]
        course.append(
            Sample(
                batch,
                interval_s=draw(st.sampled_from([0.5, 1.0, 4.0])),
                stored=tuple(draw(COUNTS) for _ in range(sides)),
                queued=tuple(queued),
                rows=[sum(column) for column in zip(*queued, strict=True)],
                busy_s={w: draw(st.sampled_from([0.0, 0.25, 0.5, 3.0])) for w in range(4)},
                owner=owner,
                backlog=draw(st.none() | COUNTS),
            )
        )
    return course


def steady(values):
    left = sorted(map(Fraction, values))
    left = left[1:-1] if len(left) > 2 else left
    return sum(left) / len(left)


def asked(course, gamma):
    """Load and computing of each bin, as exact fractions."""
    loads, computing = [], []
    sides = range(len(course[0].stored))
    for j in range(BINS):
        waiting = [[] for _ in sides]
        for each in course:
            both = sum(int(each.queued[side][j]) for side in sides)
            for side in sides:
                here = Fraction(int(each.queued[side][j]))
                share = here / both if both else Fraction(1, len(sides))
                waiting[side].append(here + share * (0 if each.backlog is None else int(each.backlog[j])))
        queued = [steady(values) for values in waiting]
        stored = [int(course[-1].stored[side][j]) for side in sides]
        work = queued[0] if len(sides) == 1 else stored[0] * queued[1] + stored[1] * queued[0]
        weight = Fraction(gamma if gamma is not None else 0.5 * (len(sides) - 1))
        computing.append(work)
        loads.append(weight * (sum(stored) + sum(queued)) + (1 - weight) * work)
    return loads, computing


@examples(100)
@given(samples(), st.sampled_from([None, 0, 0.25, 1]), st.sets(st.integers(0, 6)))
def test_the_figures_of_a_view(course, gamma, workers):
    view = LoadWindow.of(course, sorted(workers), gamma)
    newest = course[-1]
    assert view.workers == tuple(sorted(workers | set(newest.owner)))
    load, computing = asked(course, gamma)
    arrivals = [steady([Fraction(each.rows[j]) / Fraction(each.interval_s) for each in course]) for j in range(BINS)]
    assert view.load.tolist() == pytest.approx([float(x) for x in load])
    assert view.computing.tolist() == pytest.approx([float(x) for x in computing])
    assert view.arrivals.tolist() == pytest.approx([float(x) for x in arrivals])
    assert view.stored.tolist() == [sum(int(side[j]) for side in newest.stored) for j in range(BINS)]
    has = {w: [j for j in range(BINS) if newest.owner[j] == w] for w in view.workers}
    loads = {w: sum((load[j] for j in bins), Fraction(0)) for w, bins in has.items()}
    assert view.loads == pytest.approx({w: float(x) for w, x in loads.items()})
    mean = sum(loads.values()) / len(loads)
    if mean:
        exact = max(max(loads.values()) - mean, mean - min(loads.values())) / mean
        assert view.imbalance == pytest.approx(float(exact), abs=1e-9)
    assert view.imbalance <= len(view.workers) - 1 + 1e-9
    assert view.loads[view.straggler] == max(view.loads.values())
    assert newest.owner[view.heaviest] == view.straggler


@examples(100)
@given(samples())
def test_service_is_rows_per_busy_time_or_goes_with_the_work_of_a_row(course):
    view, newest = LoadWindow.of(course), course[-1]
    since = next((i + 1 for i in reversed(range(len(course))) if course[i].owner != newest.owner), 0)

    def work_and_rows(owner, worker):
        bins = [j for j in range(BINS) if owner[j] == worker]
        return sum(view.computing[j] for j in bins), sum(view.arrivals[j] for j in bins)

    for w, mu in view.service.items():
        assert 0 < mu < math.inf
        rows = sum(each.rows[j] for each in course[since:] for j in range(BINS) if newest.owner[j] == w)
        busy_s = sum(each.busy_s[w] for each in course[since:])
        if rows and busy_s:
            assert mu == pytest.approx(rows / busy_s)
            continue
        earlier = [
            each
            for each in course[:since]
            if each.busy_s[w] and any(each.rows[j] for j in range(BINS) if each.owner[j] == w)
        ]
        if len({each.owner for each in course[:since]}) == 1 and earlier:
            # Only one owner map before: mu * (E' / E) * (C / C'), where all four are above 0.
            old = course[0].owner
            rows = sum(each.rows[j] for each in course[:since] for j in range(BINS) if old[j] == w)
            (c, e), (c2, e2) = work_and_rows(old, w), work_and_rows(newest.owner, w)
            if min(c, e, c2, e2) > 0:
                before = rows / sum(each.busy_s[w] for each in course[:since])
                assert mu == pytest.approx(before * (e2 / e) * (c / c2))
    for w, stay_s in view.sojourn_s.items():
        slack = view.service[w] - view.input_rate[w]
        assert stay_s == (pytest.approx(1 / slack) if slack > 0 else math.inf)


@examples(200)
@given(st.integers(2, 40), st.floats(0.001, 50), st.data())
def test_an_alpha_is_refused_exactly_where_it_cannot_fire(workers, alpha, data):
    owner = list(range(workers))
    hot = data.draw(st.integers(0, workers - 1))
    rows = [100 if j == hot else 0 for j in owner]
    all_on_one = Sample(0, 1.0, ([0] * workers,), (rows,), rows, {}, owner)
    straggler = Straggler(StragglerRules(alpha=alpha, window=1))
    straggler.note(all_on_one)
    assume(abs(alpha - (workers - 1)) > 1e-6)
    if alpha < workers - 1:
        verdict = straggler.decide(owner, moving=False)
        assert verdict.action == "balance"
        assert verdict.view.straggler == hot
    else:
        with pytest.raises(InvalidOption, match=f"among {workers} workers"):
            straggler.decide(owner, moving=False)
        assert LoadWindow.of([all_on_one]).imbalance < alpha
    assert StragglerRules().limit(workers) < workers - 1


RULES = st.builds(
    StragglerRules,
    alpha=st.sampled_from([None, None, 0.1, 0.5]),
    window=st.integers(1, 4),
    rest=st.none() | st.integers(1, 6),
    least=st.sampled_from([None, 1, 2]),
    most=st.sampled_from([None, 4, 6]),
)


# Hot and even workloads, hardly busy and too busy, and one bin that nothing can be done about.
CASES = st.sampled_from(
    [
        ([50, 50, 50, 50, 1, 1], [0, 0, 0, 0, 1, 2], 0.1),
        ([50, 50, 50, 50, 1, 1], [3, 3, 3, 3, 1, 2], 0.9),
        ([900, 1, 1, 1, 1, 1], [0, 1, 2, 3, 0, 1], 0.1),
        ([10, 10, 10, 10, 0, 0], [0, 1, 2, 3, 0, 1], 0.1),
        ([10, 10, 10, 10, 0, 0], [0, 1, 2, 3, 0, 1], 0.9),
    ]
)
STEPS = st.tuples(CASES, st.integers(1, 6), st.sampled_from([False] * 5 + [True]), st.sampled_from([None, True, False]))


@examples(200)
@given(RULES, st.lists(STEPS, min_size=4, max_size=10))
def test_never_two_verdicts_to_act_within_the_rest(rules, steps):
    straggler, acted, batch = Straggler(rules), [], 0
    for (rows, owner, busy_s), batches, moving, found in steps:
        for _ in range(batches):
            straggler.note(Sample(batch, 1.0, ([0] * BINS,), (rows,), rows, dict.fromkeys(range(4), busy_s), owner))
            verdict = straggler.decide([0, 1, 2, 3], moving)
            assert verdict.reason
            assert "\n" not in verdict.reason
            assert (verdict.action == "rescale") == (verdict.workers != 4)
            if verdict.action != "stay":
                assert not moving
                assert batch + 1 >= rules.window
                acted.append(batch)
            if verdict.action == "balance":
                assert verdict.imbalance > rules.limit(4)
                if found is not None:
                    straggler.balanced(found)
            elif verdict.workers > 4:
                assert verdict.workers <= rules.most
            elif verdict.workers < 4:
                assert verdict.workers >= rules.least
            again = straggler.decide([0, 1, 2, 3], moving)
            assert verdict.action == "stay" or again.action == "stay"
            batch += 1
    assert all(later - earlier >= rules.rest_batches for earlier, later in pairwise(acted))


def spread_out(rows, workers):
    """The heaviest bin first, each to whoever has least."""
    has, owner = [0.0] * workers, [0] * len(rows)
    for j in sorted(range(len(rows)), key=lambda j: (-rows[j], j)):
        owner[j] = min(range(workers), key=lambda w: (has[w], w))
        has[owner[j]] += rows[j]
    return owner


@examples(60)
@given(
    st.builds(
        StragglerRules,
        alpha=st.sampled_from([None, 0.1, 0.5]),
        window=st.integers(1, 3),
        least=st.integers(1, 4),
        most=st.integers(4, 7),
    ),
    st.sampled_from([[10], [10, 20, 30], [1, 10, 200]]).flatmap(
        lambda sizes: st.lists(st.sampled_from(sizes), min_size=BINS, max_size=9)
    ),
    st.floats(0.0001, 0.05),
    st.integers(2, 4),
    st.integers(1, 4),
)
@example(
    StragglerRules(alpha=0.1, window=1, least=4, most=7), [10] * 6, 0.01, 4, 4
)  # 6 workers, one bin each, hardly busy
def test_a_steady_workload_comes_to_rest(rules, rows, row_s, workers, owners):
    """Whatever it does at first, under a workload that never changes it ends at one number of workers."""
    straggler, rescaled = Straggler(rules), []
    owner = [j % min(owners, workers) for j in range(len(rows))]
    for batch in range(40 * rules.rest_batches):
        busy_s = {w: row_s * sum(rows[j] for j in range(len(rows)) if owner[j] == w) for w in range(workers)}
        straggler.note(Sample(batch, 1.0, ([0] * len(rows),), (rows,), rows, busy_s, owner))
        verdict = straggler.decide(range(workers), moving=False)
        if verdict.action == "rescale":
            rescaled.append(batch)
            workers = verdict.workers
        if verdict.action != "stay":
            before, owner = owner, spread_out(rows, workers)
            if verdict.action == "balance":
                straggler.balanced(before != owner)
    assert all(batch < 20 * rules.rest_batches for batch in rescaled)
