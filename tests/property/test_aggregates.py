"""Aggregates that Spark has, against a recount in plain Python with Spark's semantics, over random batches and cuts."""

import math
import statistics
from collections import defaultdict
from fractions import Fraction

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from effort import examples
from meander.operators.aggregate import Aggregate
from meander.operators.bags import Bags
from meander.operators.window import window
from naive import Engine, listed

STAMP = pa.timestamp("us", tz="UTC")
SECOND = 1_000_000
END = 10**15
INPUT = pa.schema([
    ("user", pa.string()), ("ts", STAMP), ("n", pa.int64()), ("x", pa.float64()), ("word", pa.string()),
    ("yes", pa.bool_()),
])  # fmt: skip
FLOATS = [0.5, -1.25, 3.0, 1e9 + 0.25, 1e9, math.nan, math.inf, -0.0, 0.0]
LIMIT = 4

rows = st.tuples(
    st.sampled_from(["ann", "bob", ""]),
    st.integers(0, 60).map(lambda s: s * SECOND),
    st.none() | st.integers(-3, 3) | st.integers(2**40, 2**40 + 3),
    st.none() | st.sampled_from(FLOATS),
    st.none() | st.sampled_from(["a", "b", "é", "", "a longer text"]),
    st.none() | st.booleans(),
)
batches = st.lists(st.lists(rows, max_size=12), max_size=5)

AGGREGATES = {
    "avg": ("avg", "n"), "sd": ("stddev", "x"), "sd_pop": ("stddev_pop", "n"), "var": ("variance", "n"),
    "var_pop": ("var_pop", "x"), "any": ("any", "yes"), "all": ("all", "yes"), "words": ("count_distinct", "word"),
    "xs": ("count_distinct", "x"), "about": ("approx_count_distinct", "x"),
    "list": ("collect_list", "word", {"limit": LIMIT}), "numbers": ("collect_list", "n", {"limit": LIMIT}),
    "set": ("collect_set", "word", {"limit": LIMIT}), "flags": ("collect_set", "yes", {"limit": LIMIT}),
    "floats": ("collect_set", "x", {"limit": LIMIT}), "times": ("collect_set", "ts", {"limit": LIMIT}),
}  # fmt: skip


def table(batch):
    columns = list(zip(*batch, strict=True)) or [[]] * len(INPUT)
    return pa.table([pa.array(list(c), f.type) for c, f in zip(columns, INPUT, strict=True)], schema=INPUT)


def comparable(value):
    """A value that equals itself: NaN is one, times are microseconds, lists are tuples."""
    if isinstance(value, list | tuple):
        return tuple(map(comparable, value))
    if isinstance(value, float) and math.isnan(value):
        return "nan"
    return round(value.timestamp() * SECOND) if hasattr(value, "timestamp") else value


def spread(values, sample, root):
    """Variance or standard deviation by exact fractions; None where Spark has null."""
    if len(values) < (2 if sample else 1):
        return None
    if not all(map(math.isfinite, values)):
        return math.nan
    exact = [Fraction(value) for value in values]
    found = float((statistics.variance if sample else statistics.pvariance)(exact))
    return math.sqrt(found) if root else found


def order(value):
    if isinstance(value, str):
        return value.encode()
    return (math.isnan(value), 0 if math.isnan(value) else value)


def distinct(values):
    """Each value once, in order; NaN is one value and the largest, and there is one zero."""
    return sorted({"nan" if value != value else value: value for value in values}.values(), key=order)


def near(value):
    """The number, or so near that no double is between: the root of a variance that is one rounding off."""
    return value if value is None or math.isnan(value) else pytest.approx(value, rel=1e-13, abs=1e-300)


def recount(mine):
    columns = {name: [row[at] for row in mine if row[at] is not None] for at, name in enumerate(INPUT.names)}
    ns, xs, words, yes = (columns[name] for name in ("n", "x", "word", "yes"))
    in_time = sorted(mine, key=lambda row: (row[1], row[4] is None, (row[4] or "").encode()))
    numbers = sorted(mine, key=lambda row: (row[1], row[2] is None, row[2] or 0))
    return {
        "avg": near(sum(ns) / len(ns)) if ns else None,
        "sd": near(spread(xs, True, True)), "sd_pop": near(spread(ns, False, True)),
        "var": near(spread(ns, True, False)), "var_pop": near(spread(xs, False, False)),
        "any": any(yes) if yes else None, "all": all(yes) if yes else None,
        "words": len(set(words)), "xs": len(distinct(xs)), "about": len(distinct(xs)),
        "list": [row[4] for row in in_time if row[4] is not None][:LIMIT],
        "numbers": [row[2] for row in numbers if row[2] is not None][:LIMIT],
        "set": distinct(words)[:LIMIT], "flags": distinct(yes), "floats": distinct(xs)[:LIMIT],
        "times": distinct(columns["ts"])[:LIMIT],
    }  # fmt: skip


def check(found, wanted):
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        value = "nan" if isinstance(value, float) and math.isnan(value) else value
        assert comparable(found[name]) == (comparable(value) if isinstance(value, list) else value), name


@examples(40)
@given(batches, st.integers(1, 3))
def test_aggregates_are_those_of_a_recount(all_batches, parts):
    engine = Engine(Aggregate(INPUT, ["user"], AGGREGATES, by="ts"), parts=parts)
    every = defaultdict(list)
    for batch in all_batches:
        for row in batch:
            every[row[0]].append(row)
        out = engine.batch(table(batch)).rows
        found = {} if out is None else {row.pop("user"): row for row in out.to_pylist()}
        assert found.keys() == {row[0] for row in batch}
        for user, values in found.items():
            check(values, recount(every[user]))


def sessions_of(mine, gap):
    found = []
    for row in sorted(mine, key=lambda row: row[1]):
        if found and row[1] <= found[-1][-1][1] + gap:
            found[-1].append(row)
        else:
            found.append([row])
    return found


@examples(40)
@given(batches, st.integers(1, 3), st.integers(1, 9))
def test_sessions_that_merge_have_the_aggregates_of_all_their_rows(all_batches, parts, gap):
    operator = window(INPUT, ["user"], time="ts", gap=gap, lateness="1 day", named=AGGREGATES, by="ts")
    engine = Engine(operator, parts=parts)
    for batch in all_batches:
        assert engine.batch(table(batch)).rows is None
    engine.newest = END
    out = engine.batch(table([])).rows
    found = (
        {} if out is None else {(row.pop("user"), comparable(row.pop("window_start"))): row for row in out.to_pylist()}
    )
    every = defaultdict(list)
    for row in [row for batch in all_batches for row in batch]:
        every[row[0]].append(row)
    wanted = {(user, s[0][1]): s for user, mine in every.items() for s in sessions_of(mine, gap * SECOND)}
    assert found.keys() == wanted.keys()
    for session, values in found.items():
        values.pop("window_end")
        check(values, recount(wanted[session]))


finite = st.floats(-1e140, 1e140) | st.floats(0, 1).map(lambda x: 1e8 + x) | st.integers(-9, 9).map(float)


@examples(40)
@given(st.lists(st.lists(finite, min_size=1, max_size=30), min_size=1, max_size=3), st.randoms(use_true_random=False))
def test_variances_are_right_where_numbers_are_large_and_the_same_bits_in_every_order(all_values, random):
    schema = pa.schema([("k", pa.int32()), ("x", pa.float64())])
    named = {"var": ("var", "x"), "sd_pop": ("stddev_pop", "x")}
    engines = [Engine(Aggregate(schema, ["k"], named)) for _ in range(2)]
    seen = []
    for values in all_values:
        seen += values
        orders = values, random.sample(values, len(values))
        found = [
            listed(engine.batch(pa.table({"k": pa.array([7] * len(each), pa.int32()), "x": each})).rows)
            for engine, each in zip(engines, orders, strict=True)
        ]
        assert found[0] == found[1]
        _, var, deviation = found[0][0]
        # Sums of twice a double's precision: what they lose is that far below the largest square.
        lost = max(map(abs, seen)) ** 2 * len(seen) * 2.0**-95
        wanted = spread(seen, True, False)
        assert (var is None) == (wanted is None)
        assert var is None or var == pytest.approx(wanted, rel=1e-12, abs=lost)
        assert deviation**2 == pytest.approx(spread(seen, False, False), rel=1e-12, abs=lost)


KINDS = {
    pa.string(): st.text(max_size=5), pa.binary(): st.binary(max_size=5), pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.int16(): st.integers(-9, 9), pa.bool_(): st.booleans(), pa.float32(): st.floats(width=32),
    pa.date32(): st.dates(),
}  # fmt: skip


@examples(60)
@given(st.sampled_from(list(KINDS)), st.data(), st.booleans())
def test_bags_are_read_as_they_were_written(kind, data, has_by):
    groups = data.draw(st.integers(0, 5))
    pairs = st.tuples(st.integers(0, max(groups - 1, 0)), st.integers(-(2**63), 2**63 - 1), KINDS[kind])
    given_rows = data.draw(st.lists(pairs, max_size=20)) if groups else []
    of, by, values = (list(column) for column in zip(*given_rows, strict=True)) if given_rows else ([], [], [])
    bags = Bags.of_rows(
        pa.array(of, pa.int64()).to_numpy(),
        pa.array(by, pa.int64()).to_numpy() if has_by else None,
        pa.array(values, kind),
    )
    binaries = bags.encode(groups)
    assert len(binaries) == groups
    again = Bags.decode(pa.concat_arrays([binaries, pa.nulls(2, pa.binary())]), kind, has_by)
    assert again.encode(groups).equals(binaries)
    assert repr(again.lists(groups).to_pylist()) == repr(bags.lists(groups).to_pylist())
    wanted = [[] for _ in range(groups)]
    for group, _, value in given_rows:
        wanted[group].append(value)
    found = again.lists(groups).to_pylist()
    assert [sorted(map(repr, each)) for each in found] == [sorted(map(repr, each)) for each in wanted]
