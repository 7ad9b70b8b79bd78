"""Every operator against a recomputation over all rows in plain Python, over random batches, splits and orders."""

import math
from collections import Counter, defaultdict

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from effort import examples
from meander.operators.aggregate import Aggregate
from meander.operators.count import Count
from meander.operators.dedup import Dedup
from meander.operators.fold import Fold
from meander.operators.top_k import TopK
from meander.operators.window import window
from naive import Engine, listed

STAMP = pa.timestamp("us", tz="UTC")
SECOND = 1_000_000
INPUT = pa.schema([("user", pa.string()), ("ts", STAMP), ("n", pa.int64()), ("x", pa.float64()), ("word", pa.string())])

rows = st.tuples(
    st.sampled_from(["ann", "bob", "cy", ""]),
    st.integers(0, 60).map(lambda s: s * SECOND),
    st.none() | st.integers(-3, 3),
    st.none() | st.sampled_from([0.5, -1.25, 3.0, math.nan, math.inf, -0.0]),
    st.none() | st.sampled_from(["a", "b", "é", ""]),
)
batches = st.lists(st.lists(rows, max_size=12), max_size=5)
parts = st.integers(1, 3)


def table(batch):
    columns = list(zip(*batch, strict=True)) or [[]] * len(INPUT)
    return pa.table([pa.array(list(c), f.type) for c, f in zip(columns, INPUT, strict=True)], schema=INPUT)


def run(operator, all_batches, parts=1):
    engine = Engine(operator, parts=parts)
    return [engine.batch(table(batch)) for batch in all_batches]


def plain(values):
    """Values that compare as they should: NaN equal to itself, timestamps as microseconds."""
    return tuple(
        "nan" if isinstance(v, float) and math.isnan(v) else v.timestamp() * SECOND if hasattr(v, "timestamp") else v
        for v in values
    )


def plainly(outputs):
    return [sorted(map(plain, listed(each.rows)), key=repr) for each in outputs]


@examples(20)
@given(batches, parts)
def test_count(all_batches, parts):
    total = Counter()
    for batch, out in zip(all_batches, run(Count(INPUT, ["user"]), all_batches, parts), strict=True):
        total.update(row[0] for row in batch)
        assert dict(listed(out.rows)) == {user: total[user] for user in {row[0] for row in batch}}
        assert len(listed(out.rows)) == len({row[0] for row in batch})


AGGREGATES = {
    "rows": "count", "ns": ("count", "n"), "total": ("sum", "n"), "least": ("min", "n"), "most": ("max", "n"),
    "sum_x": ("sum", "x"), "min_x": ("min", "x"), "max_x": ("max", "x"), "mean_x": ("mean", "x"),
    "mean_n": ("mean", "n"), "low": ("min", "word"), "high": ("max", "word"), "since": ("min", "ts"),
    "first_n": ("first", "n"), "first_word": ("first", "word"), "last_word": ("last", "word"), "last_x": ("last", "x"),
}  # fmt: skip


def larger(value):
    """Spark's order of floats and of texts."""
    if isinstance(value, str):
        return value.encode()
    return (1, 0.0, 0) if math.isnan(value) else (0, value, math.copysign(1, value))


def float_sum(values):
    if not values:
        return None
    if all(map(math.isfinite, values)):
        return math.fsum(values)
    return sum(values)


def edge(rows, at, last):
    """The values of the first or last row by time, then by these columns; a value wins over none."""

    def order(row):
        values = [row[k] for k in at]
        return [row[1], *((v is not None, larger(v) if v is not None else 0) if last
                          else (v is None, larger(v) if v is not None else 0) for v in values)]  # fmt: skip

    chosen = (max if last else min)(rows, key=order)
    return [chosen[k] for k in at]


def aggregate_of(rows):
    ns, xs, words = ([row[k] for row in rows if row[k] is not None] for k in (2, 3, 4))
    sum_x = float_sum(xs)
    first, last = edge(rows, (2, 4), last=False), edge(rows, (4, 3), last=True)
    return plain([
        len(rows), len(ns), sum(ns) if ns else None, min(ns, default=None), max(ns, default=None),
        sum_x, min(xs, key=larger, default=None), max(xs, key=larger, default=None),
        None if sum_x is None else sum_x / len(xs), sum(ns) / len(ns) if ns else None,
        min(words, key=larger, default=None), max(words, key=larger, default=None),
        min(row[1] for row in rows),
        first[0], first[1], last[0], last[1],
    ])  # fmt: skip


@examples(20)
@given(batches, parts)
def test_aggregate(all_batches, parts):
    every = defaultdict(list)
    outputs = run(Aggregate(INPUT, ["user"], AGGREGATES, by="ts"), all_batches, parts)
    for batch, out in zip(all_batches, outputs, strict=True):
        for row in batch:
            every[row[0]].append(row)
        found = {row[0]: plain(row[1:]) for row in listed(out.rows)}
        assert found == {user: aggregate_of(every[user]) for user in {row[0] for row in batch}}


@examples(20)
@given(st.lists(st.lists(st.floats(-1e300, 1e300), min_size=1, max_size=40), min_size=1, max_size=3))
def test_sums_of_floats_are_those_of_all_rows_at_once(all_values):
    schema = pa.schema([("k", pa.int32()), ("x", pa.float64())])
    engine = Engine(Aggregate(schema, ["k"], {"s": ("sum", "x")}))
    seen = []
    for values in all_values:
        seen += values
        out = engine.batch(pa.table({"k": pa.array([7] * len(values), pa.int32()), "x": values}))
        expected = pytest.approx(math.fsum(seen), rel=1e-15, abs=max(map(abs, seen)) * 1e-28)
        assert out.rows["s"][0].as_py() == expected


@examples(20)
@given(batches, parts)
def test_dedup(all_batches, parts):
    known = set()
    for batch, out in zip(all_batches, run(Dedup(INPUT, ["user"], time="ts"), all_batches, parts), strict=True):
        firsts = {}
        for row in sorted(
            batch, key=lambda r: [r[1], *((v is None, larger(v) if v is not None else 0) for v in r[2:])]
        ):
            if row[0] not in known:
                firsts.setdefault(row[0], row)
        known |= set(firsts)
        assert plainly([out]) == [sorted(map(plain, firsts.values()), key=repr)]


@examples(20)
@given(batches, st.integers(1, 20))
def test_dedup_within(all_batches, within):
    remembered, newest, frontier = {}, None, None
    outputs = run(Dedup(INPUT, ["user"], time="ts", within=within), all_batches)
    for batch, out in zip(all_batches, outputs, strict=True):
        if newest is not None:
            frontier = newest - within * SECOND
            remembered = {user: t for user, t in remembered.items() if t + within * SECOND >= frontier}
        late = [row for row in batch if frontier is not None and row[1] < frontier]
        fresh = [row for row in batch if frontier is None or row[1] >= frontier]
        users = {row[0] for row in fresh} - set(remembered)
        assert sorted(row[0] for row in listed(out.rows)) == sorted(users)
        for row in listed(out.rows):
            time = int(row[1].timestamp()) * SECOND
            assert time == min(r[1] for r in fresh if r[0] == row[0])
            remembered[row[0]] = time
        assert Counter(map(plain, listed(out.late))) == Counter(map(plain, late))
        newest = max([row[1] for row in batch] + ([] if newest is None else [newest]), default=None)


def merit(row, largest):
    by = larger(row[3]) if row[3] is not None else None
    if by is not None and largest:
        by = tuple(-v for v in by)
    return [
        (row[3] is None, by or ()),
        row[1],
        *((v is None, larger(v) if v is not None else 0) for v in (row[2], row[4])),
    ]


@examples(20)
@given(batches, parts, st.integers(1, 4), st.booleans())
def test_top_k(all_batches, parts, k, largest):
    every, before = defaultdict(list), {}
    outputs = run(TopK(INPUT, ["user"], k, "x", largest=largest), all_batches, parts)
    for batch, out in zip(all_batches, outputs, strict=True):
        for row in batch:
            every[row[0]].append(row)
        best = {u: [plain((*r, i + 1)) for i, r in enumerate(sorted(rs, key=lambda r: merit(r, largest))[:k])]
                for u, rs in every.items()}  # fmt: skip
        found = defaultdict(list)
        for row in listed(out.rows):
            found[row[0]].append(plain(row))
        assert found == {user: rows for user, rows in best.items() if rows != before.get(user)}
        before = best


@examples(25)
@given(batches, parts, st.integers(1, 3), st.booleans(), st.booleans())
def test_top_k_of_updates(all_batches, parts, k, largest, by_time):
    kept, before = {}, {}
    operator = TopK(INPUT, ["user"], k, "x", largest=largest, identity=["word", "n"], time="ts" if by_time else None)
    for batch, out in zip(all_batches, run(operator, all_batches, parts), strict=True):
        updates = defaultdict(list)
        for row in batch:
            updates[row[0], row[4], row[2]].append(row)
        for identity, same in updates.items():
            best = min(same, key=lambda r: ([-r[1]] if by_time else []) + merit(r, largest))
            if not by_time or identity not in kept or best[1] >= kept[identity][1]:
                kept[identity] = best
        best = {}
        for user in {row[0] for row in kept.values()}:
            mine = sorted((r for r in kept.values() if r[0] == user), key=lambda r: merit(r, largest))
            best[user] = [plain((*r, i + 1)) for i, r in enumerate(mine[:k])]
        found = defaultdict(list)
        for row in listed(out.rows):
            found[row[0]].append(plain(row))
        assert found == {user: rows for user, rows in best.items() if rows != before.get(user)}
        before = best


def frontiers(all_batches, lateness):
    """The frontier in force in each batch."""
    newest, found = None, []
    for batch in all_batches:
        found.append(None if newest is None else newest - lateness * SECOND)
        newest = max([row[1] for row in batch] + ([] if newest is None else [newest]), default=None)
    return found


@examples(20)
@given(batches, parts, st.integers(1, 9), st.integers(1, 9), st.integers(0, 9), st.sampled_from(["update", "final"]))
def test_windows(all_batches, parts, size, slide, lateness, emit):
    size, slide = max(size, slide) * SECOND, min(size, slide) * SECOND
    named = {"rows": "count", "total": ("sum", "n"), "last": ("last", "word")}
    operator = window(INPUT, ["user"], time="ts", size=size / SECOND, slide=slide / SECOND, lateness=lateness,
                      named=named, by="ts", emit=emit)  # fmt: skip
    contents, open_ = defaultdict(list), set()
    outputs = run(operator, all_batches, parts)
    for batch, frontier, out in zip(all_batches, frontiers(all_batches, lateness), outputs, strict=True):
        changed, late = set(), []
        for row in batch:
            first = row[1] - row[1] % slide
            starts = [s for s in range(first, first - size, -slide) if s <= row[1] < s + size]
            living = [s for s in starts if frontier is None or s + size > frontier]
            for start in living:
                contents[row[0], start].append(row)
                changed.add((row[0], start))
            if not living:
                late.append(row)
        closed = {w for w in open_ if frontier is not None and w[1] + size <= frontier}
        open_ = (open_ | changed) - closed
        shown = changed if emit == "update" else closed
        expected = {
            (user, start, start + size): (
                len(contents[user, start]),
                sum(r[2] for r in contents[user, start] if r[2] is not None)
                if any(r[2] is not None for r in contents[user, start]) else None,
                edge(contents[user, start], (4,), last=True)[0],
            )
            for user, start in shown
        }  # fmt: skip
        found = {plain(row[:3]): plain(row[3:]) for row in listed(out.rows)}
        assert found == expected
        assert len(listed(out.rows)) == len(expected)
        assert Counter(map(plain, listed(out.late))) == Counter(map(plain, late))


def sessions_of(rows, gap):
    """Rows of one key as sessions, each the list of its rows."""
    found = []
    for row in sorted(rows, key=lambda r: r[1]):
        if found and row[1] <= max(r[1] for r in found[-1]) + gap:
            found[-1].append(row)
        else:
            found.append([row])
    return found


@examples(25)
@given(batches, parts, st.integers(1, 9), st.integers(0, 20), st.sampled_from(["update", "final"]))
def test_sessions(all_batches, parts, gap, lateness, emit):
    named = {
        "rows": "count",
        "total": ("sum", "n"),
        "mean": ("mean", "n"),
        "low": ("min", "word"),
        "x": ("last", "word"),
    }
    operator = window(INPUT, ["user"], time="ts", gap=gap, lateness=lateness, named=named, by="ts", emit=emit)
    gap *= SECOND
    living = defaultdict(list)
    outputs = run(operator, [*all_batches, []], parts)
    for batch, frontier, out in zip([*all_batches, []], frontiers([*all_batches, []], lateness), outputs, strict=True):
        closed, late, taken = [], [], defaultdict(list)
        for user, sessions in living.items():
            ended = [s for s in sessions if frontier is not None and max(r[1] for r in s) + gap < frontier]
            closed += [(user, s) for s in ended]
            living[user] = [s for s in sessions if s not in ended]
        for row in batch:
            inside = any(min(r[1] for r in s) <= row[1] <= max(r[1] for r in s) + gap for s in living[row[0]])
            if frontier is None or row[1] >= frontier or inside:
                taken[row[0]].append(row)
            else:
                late.append(row)
        changed = []
        for user, new in taken.items():
            living[user] = sessions_of([r for s in living[user] for r in s] + new, gap)
            changed += [(user, s) for s in living[user] if any(r in new for r in s) and touched(s, new)]
        expected = Counter()
        for user, s in changed if emit == "update" else closed:
            ns, words = [r[2] for r in s if r[2] is not None], [r[4] for r in s if r[4] is not None]
            start, end = min(r[1] for r in s), max(r[1] for r in s) + gap
            values = len(s), sum(ns) if ns else None, sum(ns) / len(ns) if ns else None
            expected[(user, start, end, *values, min(words, key=larger, default=None), edge(s, (4,), True)[0])] += 1
        assert Counter(map(plain, listed(out.rows))) == expected
        assert Counter(map(plain, listed(out.late))) == Counter(map(plain, late))


def touched(session, new):
    return any(min(r[1] for r in session) <= row[1] <= max(r[1] for r in session) for row in new)


@examples(8)
@given(batches, parts, st.randoms(use_true_random=False))
def test_no_operator_depends_on_the_order_of_rows(all_batches, parts, random):
    shuffled = [random.sample(batch, len(batch)) for batch in all_batches]
    named = {
        "s": ("sum", "x"), "f": ("first", "word"), "m": ("mean", "x"), "lo": ("min", "x"), "sd": ("stddev", "x"),
        "d": ("count_distinct", "x"), "about": ("approx_count_distinct", "x"),
        "l": ("collect_list", "n", {"limit": 2}), "set": ("collect_set", "n", {"limit": 2}),
    }  # fmt: skip

    def concatenated(rows, state):
        texts = ["" if text is None else text for text in state["texts"].to_pylist()]
        for group, n, word in zip(*(rows[name].to_pylist() for name in ("__group", "n", "word")), strict=True):
            texts[group] += f"{n}{word}"
        return pa.table({"texts": pa.array(texts, pa.string())}), {"user": state["user"], "texts": texts}

    operators = [
        Count(INPUT, ["user"]),
        Aggregate(INPUT, ["user", "word"], named, by="ts"),
        Dedup(INPUT, ["user"]),
        TopK(INPUT, ["user"], 2, "x"),
        window(INPUT, ["user"], time="ts", size="7s", slide="3s", named=named, by="ts"),
        window(INPUT, ["user"], time="ts", gap="3s", lateness="2s", named=named, by="ts"),
        Fold(INPUT, ["user"], concatenated, "texts string", "user string, texts string", time="ts"),
    ]
    for operator in operators:
        one, other = all_batches, shuffled
        if "word" in operator.key.names:
            one, other = ([[r for r in batch if r[4] is not None] for batch in each] for each in (one, other))
        assert plainly(run(operator, one)) == plainly(run(operator, other, parts)), operator.name
