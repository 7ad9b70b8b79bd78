"""What every schedule promises, on random owner maps, recomputed by plain counting."""

from collections import Counter
from itertools import combinations, groupby, pairwise, permutations
from math import ceil

from hypothesis import given
from hypothesis import strategies as st

from check_schedule import bound, check_schedule, duration
from effort import examples
from meander.scheduling import schedule, schedules
from meander.scheduling.covering import Covering

ANY_SIZE = st.one_of(st.integers(0, 3), st.integers(0, 1000), st.integers(0, 2**70), st.just(0))
WHOLE = ["all_at_once", "fluid", "batched", "matching"]


@st.composite
def migrations(draw):
    """Two owner maps: any, few pairs with many bins, one busy worker, shifted boundaries, or no change."""
    bins = draw(st.integers(0, 60))
    ids = draw(st.lists(st.integers(0, 99), min_size=2, max_size=9, unique=True))
    split = draw(st.integers(1, len(ids) - 1))
    shape = draw(st.sampled_from(["any", "few", "hub", "shift", "handover", "same"]))
    pick = st.lists(st.sampled_from(ids), min_size=bins, max_size=bins)
    if shape == "any":
        return draw(pick), draw(pick)
    if shape == "few":
        routes = draw(st.lists(st.tuples(st.sampled_from(ids), st.sampled_from(ids)), min_size=1, max_size=4))
        chosen = draw(st.lists(st.sampled_from(routes), min_size=bins, max_size=bins))
        return [a for a, _ in chosen], [b for _, b in chosen]
    if shape == "hub":
        others = draw(pick)
        inward = draw(st.lists(st.booleans(), min_size=bins, max_size=bins))
        now = [w if into else ids[0] for w, into in zip(others, inward, strict=True)]
        goal = [ids[0] if into else w for w, into in zip(others, inward, strict=True)]
        return now, goal
    if shape == "shift":
        wide, narrow = len(ids), split
        if draw(st.booleans()):
            wide, narrow = narrow, wide
        return [ids[j * wide // bins] for j in range(bins)], [ids[j * narrow // bins] for j in range(bins)]
    if shape == "handover":
        old, new = st.sampled_from(ids[:split]), st.sampled_from(ids[split:])
        owners = [draw(st.lists(each, min_size=bins, max_size=bins)) for each in (old, new)]
        return owners[0], owners[1]
    now = draw(pick)
    return now, list(now)


@st.composite
def migrations_in_bytes(draw, sizes=ANY_SIZE):
    now, goal = draw(migrations())
    return now, goal, draw(st.lists(sizes, min_size=len(now), max_size=len(now)))


limits = st.one_of(st.none(), st.integers(1, 6))


def moved(now, goal):
    return [(a, b) for a, b in zip(now, goal, strict=True) if a != b]


def most(values):
    return max(Counter(values).values(), default=0)


def received(step):
    return most(move.target for move in step)


def sent(step):
    return most(move.source for move in step)


@given(migrations_in_bytes(), st.sampled_from(WHOLE), limits)
def test_every_schedule_of_whole_bins_reaches_the_goal(case, name, max_in):
    now, goal, state = case
    steps = schedule(now, goal, name, state, max_in=max_in)
    check_schedule(now, goal, steps)
    assert all(steps), "no step is empty unless a gap is asked for"
    for step in steps:
        assert [move.bin for move in step] == sorted(move.bin for move in step)
        assert all(move.bytes == state[move.bin] for move in step)
        assert max_in is None or received(step) <= max_in
    assert schedule(now, goal, name, state, max_in=max_in) == steps


@given(migrations_in_bytes(), st.sampled_from(list(schedules())), limits, st.integers(0, 3))
def test_a_gap_changes_nothing_but_adds_empty_steps(case, name, max_in, gap):
    now, goal, state = case
    dense = schedule(now, goal, name, state, max_in=max_in)
    spaced = schedule(now, goal, name, state, max_in=max_in, gap=gap)
    assert [step for step in spaced if step] == dense
    empty = [len(list(run)) for is_empty, run in groupby(spaced, key=lambda step: not step) if is_empty]
    assert empty == ([gap] * (len(dense) - 1) if gap and dense else [])


@given(migrations(), limits)
def test_all_at_once_takes_as_few_steps_as_max_in_allows(case, max_in):
    arrivals = [b for _, b in moved(*case)]
    expected = min(1, len(arrivals)) if max_in is None else ceil(most(arrivals) / max_in)
    assert len(schedule(*case, "all_at_once", max_in=max_in)) == expected


@given(migrations())
def test_fluid_moves_one_bin_at_a_time_in_their_order(case):
    steps = schedule(*case, "fluid")
    assert [len(step) for step in steps] == [1] * len(moved(*case))
    assert steps == sorted(steps)


@given(migrations(), st.integers(1, 20), limits)
def test_batched_is_short_and_even(case, max_bins, max_in):
    steps = schedule(*case, "batched", max_bins=max_bins, max_in=max_in)
    moves = moved(*case)
    fewest = max(ceil(len(moves) / max_bins), ceil(most(b for _, b in moves) / (max_in or len(moves) or 1)))
    assert len(steps) == fewest
    if steps:
        sizes = [len(step) for step in steps]
        assert max(sizes) <= max_bins
        assert max(sizes) - min(sizes) <= 1
        for side, of_move in ((0, "source"), (1, "target")):
            for worker, total in Counter(pair[side] for pair in moves).items():
                shares = [sum(getattr(move, of_move) == worker for move in step) for step in steps]
                assert max(shares) <= ceil(total / fewest)


@given(migrations_in_bytes(st.integers(0, 100)), limits, st.one_of(st.none(), st.integers(1, 20)), st.data())
def test_batched_keeps_to_its_bytes(case, max_in, max_bins, data):
    now, goal, state = case
    max_bytes = data.draw(st.integers(1, 400))
    steps = schedule(now, goal, "batched", state, max_bytes=max_bytes, max_bins=max_bins, max_in=max_in)
    check_schedule(now, goal, steps)
    weights = [sum(move.bytes for move in step) for step in steps]
    for step, weight in zip(steps, weights, strict=True):
        assert weight <= max_bytes or len(step) == 1
        assert max_bins is None or len(step) <= max_bins
        assert max_in is None or received(step) <= max_in
    if max_in is None and max_bins is None:
        assert all(a + b > max_bytes for a, b in pairwise(weights)), "two steps could be one"
    elif sum(state) <= max_bytes:
        unlimited = {"max_bins": max_bins or len(now) or 1, "max_in": max_in}
        assert len(steps) == len(schedule(now, goal, "batched", **unlimited))


@given(migrations(), limits)
def test_matching_takes_exactly_the_highest_degree(case, max_in):
    moves = moved(*case)
    steps = schedule(*case, "matching", max_in=max_in)
    assert len(steps) == max(most(a for a, _ in moves), most(b for _, b in moves))
    assert all(sent(step) == received(step) == 1 for step in steps)


def check_phases(now, goal, state, steps, max_in):
    """Whatever must hold of phases, whole numbers or not."""
    check_schedule(now, goal, steps, state)
    assert all(steps)
    for step in steps:
        lanes = {(move.source, move.target) for move in step}
        assert len(lanes) == len({a for a, _ in lanes}) == len({b for _, b in lanes})
        assert max_in is None or received(step) <= max_in
        assert [move.bin for move in step] == sorted(move.bin for move in step)


def busiest(now, goal, state):
    """The most bytes that any worker sends or receives, by adding up."""
    out, into = Counter(), Counter()
    for a, b, size in zip(now, goal, state, strict=True):
        if a != b:
            out[a] += size
            into[b] += size
    return max([*out.values(), *into.values()], default=0)


@examples(200)
@given(migrations_in_bytes(), limits)
def test_phases_meet_the_bound_exactly(case, max_in):
    now, goal, state = case
    steps = schedule(now, goal, "phases", state, max_in=max_in)
    check_phases(now, goal, state, steps, max_in)
    assert sum(map(duration, steps)) == bound(now, goal, state) == busiest(now, goal, state)
    assert all(type(move.bytes) is int for step in steps for move in step)
    times = Counter(move.bin for step in steps for move in step)
    assert all(times[j] == 1 for j in times if state[j] == 0)


@given(migrations_in_bytes(st.integers(1, 500)))
def test_phases_are_fewer_than_pairs_and_workers(case):
    now, goal, state = case
    moves = moved(now, goal)
    ends = len({a for a, _ in moves}) + len({b for _, b in moves})
    assert len(schedule(now, goal, "phases", state)) <= len(set(moves)) + ends


@given(
    migrations_in_bytes(st.one_of(st.floats(0, 1e3), st.floats(0, 1e-300), st.floats(0, 1e300), st.integers(0, 9))),
    limits,
)
def test_phases_of_fractions_meet_the_bound_up_to_rounding(case, max_in):
    now, goal, state = case
    steps = schedule(now, goal, "phases", state, max_in=max_in)
    check_phases(now, goal, state, steps, max_in)
    limit = bound(now, goal, state)
    assert abs(sum(map(duration, steps)) - limit) <= limit * 1e-9


def can_cover(edges, left, right):
    """Whether some matching covers these vertices, by trying all matchings of a graph with 4 + 4 vertices."""
    for size in range(max(len(left), len(right)), 5):
        for rows in combinations(range(4), size):
            if left <= set(rows):
                for columns in permutations(range(4), size):
                    if right <= set(columns) and all(edge in edges for edge in zip(rows, columns, strict=True)):
                        return True
    return False


vertices = st.sets(st.integers(0, 3))
graphs = st.sets(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=16)


@examples(200)
@given(graphs, graphs, st.lists(st.tuples(vertices, vertices), min_size=1, max_size=3))
def test_a_covering_is_found_if_there_is_one(before, after, wishes):
    covering = Covering(4, 4)
    for edge in before:
        covering.connect(*edge)
    covering.extend()
    for edge in before - after:
        covering.disconnect(*edge)
    for edge in after - before:
        covering.connect(*edge)
    for left, right in wishes:
        found = covering.cover(sum(1 << v for v in left), sum(1 << v for v in right))
        assert found == can_cover(after, left, right)
        matching = [(v, mate) for v, mate in enumerate(covering.mate[0]) if mate >= 0]
        assert set(matching) <= after
        assert len({b for _, b in matching}) == len(matching)
        assert [covering.mate[1][b] for _, b in matching] == [a for a, _ in matching]
        for side in (0, 1):
            assert covering.matched[side] == sum(1 << v for v, mate in enumerate(covering.mate[side]) if mate >= 0)
        if found:
            assert left <= {a for a, _ in matching}
            assert right <= {b for _, b in matching}


@given(graphs)
def test_an_extended_covering_is_largest(edges):
    covering = Covering(4, 4)
    for edge in edges:
        covering.connect(*edge)
    covering.extend()
    size = covering.matched[0].bit_count()
    assert any(can_cover(edges, set(rows), set()) for rows in combinations(range(4), size))
    assert not any(can_cover(edges, set(rows), set()) for rows in combinations(range(4), size + 1))
