"""The join against a nested loop: random rows in random order, all its options, state in the real tables."""

import tempfile
from collections import Counter
from itertools import product

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meander.operators import join as join_module
from meander.operators.custom import paired
from meander.operators.join import Join
from meander.route.schema import schema
from naive import Engine, RealState, listed

LEFT, RIGHT = schema("k bigint, ts timestamp, x bigint"), schema("k bigint, at timestamp, x bigint, y string")
BOTH = paired(LEFT, RIGHT)
END = 10**12
BINS = 8

rows = st.tuples(st.booleans(), st.integers(0, 3), st.none() | st.integers(-30, 60), st.integers(0, 4))
batches = st.lists(st.lists(rows, max_size=12), max_size=6)


def table_of(batch):
    """Rows of both sides as the engine hands them over; (is right, key, time, x)."""
    made = {name: [] for name in [*BOTH.names, "k"]}
    for right, key, time, x in batch:
        row = dict.fromkeys(BOTH.names)
        row |= {"__input": int(right), "k": key}
        row |= {"right.k": key, "right.at": time, "right.x": x, "right.y": f"y{x}"} if right else {}
        row |= {} if right else {"left.k": key, "left.ts": time, "left.x": x}
        for name in made:
            made[name].append(row[name])
    types = [*BOTH, pa.field("k", pa.int64())]
    return pa.table([pa.array(made[field.name], field.type) for field in types], schema=pa.schema(types))


def nested_loop(all_batches, near, lateness, window):
    """Pairs, left rows without a partner and late rows, by looking at every row and every pair of rows."""
    newest, frontier, kept, late = {}, None, [], Counter()
    for batch in all_batches:
        for right, key, time, x in batch:
            ended = time if not window or time is None else time // window * window + window - 1
            if time is None or (frontier is not None and ended < frontier):
                late[right, key, time, x] += 1
            else:
                kept.append((right, key, time, x))
        for right, _, time, _ in batch:
            if time is not None:
                newest[right] = max(time, newest.get(right, time))
        if len(newest) == 2:
            reached = min(newest.values()) - lateness
            frontier = reached if frontier is None else max(frontier, reached)
    lefts, rights = [row for row in kept if not row[0]], [row for row in kept if row[0]]
    pairs, alone = Counter(), Counter()
    for _, k, t, x in lefts:
        partners = [(u, y) for _, key, u, y in rights if key == k and near(t, u, x, y)]
        pairs.update((k, t, x, u, y, f"y{y}") for u, y in partners)
        alone.update([] if partners else [(k, t, x, None, None, None)])
    return pairs, alone, late


def told(table):
    """Rows of the join with times as whole numbers."""
    if table is None:
        return Counter()
    columns = [each.cast(pa.int64()) if pa.types.is_timestamp(each.type) else each for each in table.columns]
    return Counter(listed(pa.table(columns, names=table.column_names)))


def run(stage, all_batches, directory, parts=1):
    """What comes out of all batches and at the end of time, and what came late."""
    engine = Engine(stage, RealState(stage, directory, BINS), parts, keyed=["k"])
    out, late = Counter(), Counter()
    for batch in all_batches:
        answer = engine.batch(table_of(batch))
        out.update(told(answer.rows))
        for side, *values in listed(answer.late.select(["__input", *BOTH.names[1:]])) if answer.late else []:
            k, time, x = values[3:6] if side else values[:3]
            late[bool(side), k, time and int(time.timestamp() * 1e6), x] += 1
    engine.newest = END
    out.update(told(engine.batch(table_of([])).rows))
    assert not any(engine.state.content().values()), "state is left after the end of time"
    return out, late


@settings(deadline=None, max_examples=120)
@given(
    batches,
    st.sampled_from(["within", "pair", "window"]),
    st.integers(0, 25),
    st.integers(0, 25),
    st.sampled_from(["inner", "left"]),
    st.sampled_from([None, "function", "expression"]),
    st.integers(0, 40),
    st.integers(1, 3),
    st.sampled_from([1, 7, 1 << 21]),
)
def test_every_pair_exactly_once(all_batches, kind, before, after, how, where, lateness, parts, most):
    before, after = (before, before) if kind == "within" else (before, after)
    size = after + 1
    options = {
        "within": {"within": before * 1e-6}, "pair": {"within": (before * 1e-6, after * 1e-6)},
        "window": {"window": size * 1e-6},
    }[kind]  # fmt: skip
    conditions = {
        None: None,
        "function": lambda pairs: pc.less_equal(pairs["x"], pairs["x_right"]),
        "expression": pc.field("x") <= pc.field("x_right"),
    }
    stage = Join((LEFT, RIGHT), (["k"], ["k"]), how=how, where=conditions[where], lateness=lateness * 1e-6, **options)

    def near(t, u, x, y):
        in_time = t // size == u // size if kind == "window" else -before <= u - t <= after
        return in_time and (where is None or x <= y)

    pairs, alone, late = nested_loop(all_batches, near, lateness, size if kind == "window" else None)
    usual, join_module.MOST_PAIRS = join_module.MOST_PAIRS, most
    try:
        with tempfile.TemporaryDirectory() as directory:
            found, found_late = run(stage, all_batches, directory, parts)
    finally:
        join_module.MOST_PAIRS = usual
    assert found == (pairs + alone if how == "left" else pairs)
    assert found_late == late


@pytest.fixture(scope="module")
def covered():
    """Rows of both sides by bin, as routing cuts them, and the pairs that each bin makes of its own rows alone."""
    rng = np.random.default_rng(7)
    batch = [(bool(right), int(key), int(time), n) for n, (right, key, time) in enumerate(
        zip(rng.random(120) < 0.5, rng.integers(0, 25, 120), rng.integers(0, 50, 120), strict=True))]  # fmt: skip
    stage = Join((LEFT, RIGHT), (["k"], ["k"]), within=20e-6)
    bins = stage.key.encode([pa.array([key for _, key, _, _ in batch])]).bins(BINS)
    by_bin = [[row for row, bin_ in zip(batch, bins, strict=True) if bin_ == b] for b in range(BINS)]
    pairs = []
    for mine in by_bin:
        with tempfile.TemporaryDirectory() as directory:
            pairs.append(run(stage, [mine], directory)[0])
    return batch, by_bin, pairs


def test_bins_are_interval_free(covered):
    """Eq. 5: the bins together cover all rows of both streams."""
    batch, by_bin, _ = covered
    for side in (False, True):
        mine = Counter(row for row in batch if row[0] == side)
        assert Counter(row for bin_ in by_bin for row in bin_ if row[0] == side) == mine
        assert sum(mine.values()) > 40


def test_bins_are_overlap_free(covered):
    """A pair of rows is covered by at most one bin, and comes out of at most one."""
    _, by_bin, pairs = covered
    cells = Counter(
        (left, right)
        for bin_ in by_bin
        for left, right in product([row for row in bin_ if not row[0]], [row for row in bin_ if row[0]])
    )
    assert cells
    assert max(cells.values()) == 1
    total = Counter()
    for each in pairs:
        assert not set(each) & set(total)
        total += each


def test_bins_complete_the_results(covered):
    """Eq. 6: what the bins make of their own rows is everything that there is to find."""
    batch, _, pairs = covered
    everything, _, _ = nested_loop([batch], lambda t, u, x, y: abs(t - u) <= 20, 0, None)
    assert sum(pairs, Counter()) == everything
    assert sum(everything.values()) > 50
