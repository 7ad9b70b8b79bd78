"""The join against a nested loop: random rows in random order, all its options, state in the real tables."""

import tempfile
from collections import Counter
from itertools import product

import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import given
from hypothesis import strategies as st

from effort import examples
from meander.operators import join as join_module
from meander.operators.custom import paired
from meander.operators.join import Join
from meander.operators.operator import Now
from meander.route.schema import schema
from meander.state.table import Table
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
    """Pairs, rows without a partner by side, and late rows, by looking at every row and every pair of rows."""
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
    pairs, alone = Counter(), (Counter(), Counter())
    for _, k, t, x in lefts:
        partners = [(u, y) for _, key, u, y in rights if key == k and near(t, u, x, y)]
        pairs.update((k, t, x, u, y, f"y{y}") for u, y in partners)
        alone[0].update([] if partners else [(k, t, x, None, None, None)])
    for _, k, u, y in rights:
        has_partner = any(key == k and near(t, u, x, y) for _, key, t, x in lefts)
        alone[1].update([] if has_partner else [(k, None, None, u, y, f"y{y}")])
    return pairs, alone, late


def told(table):
    """Rows of the join with times as whole numbers."""
    if table is None:
        return Counter()
    columns = [each.cast(pa.int64()) if pa.types.is_timestamp(each.type) else each for each in table.columns]
    return Counter(listed(pa.table(columns, names=table.column_names)))


def run(operator, all_batches, directory, parts=1):
    """What comes out of all batches and at the end of time, and what came late."""
    engine = Engine(operator, RealState(operator, directory, BINS), parts, keyed=["k"])
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


@examples(60)
@given(
    batches,
    st.sampled_from(["within", "pair", "window"]),
    st.integers(0, 25),
    st.integers(0, 25),
    st.sampled_from(["inner", "left", "right", "full"]),
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
    operator = Join(
        (LEFT, RIGHT), (["k"], ["k"]), how=how, where=conditions[where], lateness=lateness * 1e-6, **options
    )

    def near(t, u, x, y):
        in_time = t // size == u // size if kind == "window" else -before <= u - t <= after
        return in_time and (where is None or x <= y)

    pairs, alone, late = nested_loop(all_batches, near, lateness, size if kind == "window" else None)
    usual, join_module.MOST_PAIRS = join_module.MOST_PAIRS, most
    try:
        with tempfile.TemporaryDirectory() as directory:
            found, found_late = run(operator, all_batches, directory, parts)
    finally:
        join_module.MOST_PAIRS = usual
    wanted = {"inner": pairs, "left": pairs + alone[0], "right": pairs + alone[1], "full": pairs + alone[0] + alone[1]}
    assert found == wanted[how]
    assert found_late == late


def by_bin(batch):
    """The rows of each bin, as routing cuts them."""
    bins = JOIN.key.encode([pa.array([key for _, key, _, _ in batch], pa.int64())]).bins(BINS)
    return [[row for row, bin_ in zip(batch, bins, strict=True) if bin_ == b] for b in range(BINS)]


def pairs_of(rows):
    """What the join makes of these rows alone."""
    given = table_of(rows)
    tables = {spec.name: Table(None, spec, BINS) for spec in JOIN.tables}
    return told(JOIN.run(given.select(JOIN.input.names), JOIN.key.encode([given["k"]]), tables, Now(0)).rows)


JOIN = Join((LEFT, RIGHT), (["k"], ["k"]), within=20e-6)
numbered = st.lists(st.tuples(st.booleans(), st.integers(0, 12), st.integers(0, 50)), max_size=40).map(
    lambda found: [(*row, number) for number, row in enumerate(found)]
)


@examples(60)
@given(numbered)
def test_bins_are_interval_free(batch):
    """Eq. 5: the bins together cover all rows of both streams."""
    for side in (False, True):
        covered = Counter(row for bin_ in by_bin(batch) for row in bin_ if row[0] == side)
        assert covered == Counter(row for row in batch if row[0] == side)


@examples(40)
@given(numbered)
def test_bins_are_overlap_free(batch):
    """A pair of rows is covered by at most one bin, and comes out of at most one."""
    cells, pairs = Counter(), Counter()
    for bin_ in by_bin(batch):
        cells.update(product([row for row in bin_ if not row[0]], [row for row in bin_ if row[0]]))
        pairs.update(pairs_of(bin_).keys())
    assert all(times == 1 for times in (*cells.values(), *pairs.values()))


@examples(40)
@given(numbered)
def test_bins_complete_the_results(batch):
    """Eq. 6: what the bins make of their own rows is everything that there is to find."""
    everything, _, _ = nested_loop([batch], lambda t, u, x, y: abs(t - u) <= 20, 0, None)
    assert sum((pairs_of(bin_) for bin_ in by_bin(batch)), Counter()) == everything
