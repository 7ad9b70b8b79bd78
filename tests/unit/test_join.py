"""The join by hand: what it refuses, when rows match, what its columns are called, and what a probe touches."""

import json
import pickle

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from meander.errors import InvalidOption
from meander.operators import join as join_module
from meander.operators.custom import paired
from meander.operators.join import Join
from meander.operators.pairs import Bounds
from meander.route.keys import KeyType
from meander.route.schema import schema
from meander.state.spans import Spans
from meander.state.table import Table
from naive import Engine, RealState, listed

LEFT, RIGHT = schema("k bigint, ts timestamp, x bigint"), schema("k bigint, at timestamp, x bigint, y string")
BINS = 8
END = 10**12


def joined(left=LEFT, right=RIGHT, key=(["k"], ["k"]), **options):
    options = options if {"within", "window"} & set(options) else {"within": 10e-6, **options}
    return Join((left, right), key, **options)


def rows_of(*given):
    """Rows of both sides as the engine hands them over: ("left", key, time, x) or ("right", key, time, x)."""
    both = paired(LEFT, RIGHT)
    kinds = [*both, pa.field("k", pa.int64())]
    made = {field.name: [] for field in kinds}
    for side, key, time, x in given:
        row = {"__input": int(side == "right"), "k": key, f"{side}.k": key, f"{side}.x": x}
        row |= {"left.ts": time} if side == "left" else {"right.at": time, "right.y": f"y{x}"}
        for name, column in made.items():
            column.append(row.get(name))
    return pa.table([pa.array(made[field.name], field.type) for field in kinds], schema=pa.schema(kinds))


def engine_of(operator, directory):
    return Engine(operator, RealState(operator, directory, BINS), keyed=["k"])


REFUSALS = {
    'a join needs within="10 minutes"': lambda: Join((LEFT, RIGHT), (["k"], ["k"])),
    "give one of them": lambda: joined(within="1s", window="1s"),
    "within is 'soon'; write a duration": lambda: joined(within="soon"),
    "within is -1; it must be at least 0": lambda: joined(within=-1),
    "a pair says how much earlier and how much later": lambda: joined(within=("1s", "2s", "3s")),
    "window is 0; it must be above 0": lambda: joined(window=0),
    "lateness is 'later'; write a duration": lambda: joined(lateness="later"),
    "how is 'cross'; a join is inner, left, right or full": lambda: joined(how="cross"),
    "how is ['left']; a join is inner, left, right or full": lambda: joined(how=["left"]),
    "time is ('ts', 'at', 'x'); name one column, or one for each side": lambda: joined(time=("ts", "at", "x")),
    "time of the right stream names the column 'ts'; the columns are k, at, x, y": lambda: joined(time="ts"),
    "time of the left stream names the column 'x' of type int64": lambda: joined(time=("x", "at")),
    "the left stream has 0 timestamp columns (none); say with time=": lambda: joined(schema("k bigint, x bigint")),
    "the right stream has 2 timestamp columns (a, b); say with time= which":
        lambda: joined(right=schema("k bigint, a timestamp, b timestamp")),
    "the key names the column 'q'; the columns are k, at, x, y": lambda: joined(key=(["k"], ["q"])),
    "the keys to join on are (int64) and (string); cast them to the same types": lambda: joined(key=(["k"], ["y"])),
    "'ts' is event time and cannot be joined on": lambda: joined(key=(["ts"], ["at"])),
    "the right column 'x' would be called 'x_right', which is there already":
        lambda: joined(schema("k bigint, ts timestamp, x bigint, x_right bigint")),
    "'x_right', which is there already; rename it":
        lambda: joined(right=schema("k bigint, at timestamp, x bigint, x_right bigint")),
    "where is 3; give a function": lambda: joined(where=3),
    "where cannot be used: No match for FieldRef.Name(z)": lambda: joined(where=pc.field("z") > 1),
    "the columns are k, ts, x, at, x_right, y": lambda: joined(where=pc.field("y") > 1),
    "column 'z' of type list<element: int64> cannot be state":
        lambda: joined(schema("k bigint, ts timestamp, z array<bigint>")),
    "column '__count' cannot be in table 'left'": lambda: joined(schema("k bigint, ts timestamp, __count bigint")),
}  # fmt: skip


@pytest.mark.parametrize("sentence", REFUSALS)
def test_what_cannot_be_joined_is_refused_in_one_sentence(sentence):
    with pytest.raises(InvalidOption) as refused:
        REFUSALS[sentence]()
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)


def test_bounds_are_read_as_they_are_written():
    assert Bounds.of("10 minutes", None) == Bounds(600_000_000, 600_000_000)
    assert Bounds.of(("1s", "2s"), None) == Bounds.of(["1s", 2], None) == Bounds(1_000_000, 2_000_000)
    assert Bounds.of(None, "1h") == Bounds(0, 0, 3_600_000_000)
    assert Bounds.of(0, None).span == 1, "rows of the same moment have spans too"


def test_partners_of_either_side_are_the_same_pairs():
    bounds = Bounds(before=3, after=8)
    found = []
    for side in (0, 1):
        low, high = bounds.partners(side)
        near = {(t, t + d) for t in range(30) for d in range(low, high + 1)}
        found.append(near if side == 0 else {(left, right) for right, left in near})
    inner = {(t, u) for t, u in found[0] | found[1] if 12 <= t < 18 and 12 <= u < 18}
    assert inner == {(t, u) for t in range(12, 18) for u in range(12, 18) if -3 <= u - t <= 8}
    assert inner <= found[0]
    assert inner <= found[1]


@pytest.mark.parametrize("bounds", [Bounds(3, 8), Bounds(8, 3), Bounds(0, 0), Bounds(0, 7), Bounds(0, 0, window=5)])
def test_closed_spans_are_those_that_no_row_in_time_can_match(bounds):
    """By trying every time that a row in time may have: what is forgotten matches none, and the next span one."""
    for frontier in range(40, 52):
        in_time = [u for u in range(20, 90) if not bounds.is_late(np.array([u]), frontier)[0]]
        for side in (0, 1):
            low, high = bounds.partners(side)

            def can_match(t, in_time=in_time, low=low, high=high):
                if bounds.window:
                    return any(u // bounds.window == t // bounds.window for u in in_time)
                return any(low <= u - t <= high for u in in_time)

            closed = bounds.closed(frontier, side)
            starts = [start for start in range(0, 90) if start % bounds.span == 0]
            gone = [start for start in starts if start < closed]
            assert gone
            assert not any(can_match(t) for start in gone for t in range(start, start + bounds.span))
            first = next(start for start in starts if start >= closed)
            assert any(can_match(t) for t in range(first, first + bounds.span))


def test_rows_before_the_frontier_are_late_or_those_of_closed_windows():
    assert Bounds(5, 5).is_late(np.array([9, 10, 11]), 10).tolist() == [True, False, False]
    windows = Bounds(0, 0, window=5)
    assert windows.is_late(np.array([-1, 4, 5, 9, 10]), 10).tolist() == [True, True, True, True, False]
    assert windows.is_late(np.array([5, 9]), 9).tolist() == [False, False], "the window from 5 is open until 10"


def test_columns_are_those_of_the_key_the_left_and_the_right():
    assert joined().output.names == ["k", "ts", "x", "at", "x_right", "y"]
    same = joined(LEFT, schema("k bigint, ts timestamp, x string"))
    assert same.output.names == ["k", "ts", "x", "ts_right", "x_right"]
    assert same.output.field("x_right").type == pa.string()
    named = joined(right=schema("cell bigint, at timestamp"), key=(["k"], ["cell"]))
    assert named.output.names == ["k", "ts", "x", "at"], "what is joined on has the name of the left"
    two = joined(schema("b bigint, ts timestamp, a string"), schema("a string, b bigint, ts timestamp"),
                 key=(["a", "b"], ["a", "b"]))  # fmt: skip
    assert two.output.names == ["a", "b", "ts", "ts_right"], "those joined on come first"


def test_a_join_travels_and_its_fingerprint_tells_bounds_apart():
    operator = pickle.loads(pickle.dumps(joined(how="left", where=pc.field("x") > 1)))
    assert operator.output == joined(how="left").output
    prints = [joined(), joined(within=11e-6), joined(within=(9e-6, 10e-6)), joined(window=10e-6)]
    prints += [joined(how=how) for how in ("left", "right", "full")]
    assert len({json.dumps(operator.fingerprint) for operator in prints}) == len(prints)
    assert joined(lateness=9).fingerprint["tables"] == joined().fingerprint["tables"], "it leaves the state as it is"


BATCH = [("left", 1, 0, 5), ("right", 1, 3, 6), ("right", 1, 4, 4)]


@pytest.mark.parametrize(
    ("answer", "kept"),
    [
        (lambda pairs: [True, False], [6]),
        (lambda pairs: np.array([False, True]), [4]),
        (lambda pairs: pa.array([None, True]), [4]),
        (lambda pairs: pa.chunked_array([[True], [None]]), [6]),
        (lambda pairs: pc.less(pairs["x"], pairs["x_right"]), [6]),
        (pc.field("x") < pc.field("x_right"), [6]),
        (pc.is_valid(pc.field("y")), [4, 6]),
    ],
)
def test_a_condition_may_answer_with_any_booleans_and_null_is_no(answer, kept, tmp_path):
    found = engine_of(joined(where=answer), tmp_path).batch(rows_of(*BATCH))
    assert sorted([] if found.rows is None else found.rows["x_right"].to_pylist()) == kept


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ([True], "where returned bool of shape (1,) for 2 pairs; return one boolean each"),
        (True, "where returned bool of shape () for 2 pairs"),
        ([1, 0], "where returned int64 of shape (2,) for 2 pairs"),
        (np.ones((2, 1), bool), "where returned bool of shape (2, 1) for 2 pairs"),
        (pa.array([1, 0]), "where returned int64 of shape (2,) for 2 pairs"),
        (None, "where returned object of shape () for 2 pairs"),
    ],
)
def test_a_condition_that_answers_something_else_is_refused(answer, told, tmp_path):
    with pytest.raises(InvalidOption) as refused:
        engine_of(joined(where=lambda pairs: answer), tmp_path).batch(rows_of(*BATCH))
    assert told in str(refused.value)


def test_a_hot_key_is_looked_at_in_parts(tmp_path, monkeypatch):
    monkeypatch.setattr(join_module, "MOST_PAIRS", 100)
    sizes = []

    def even(pairs):
        sizes.append(pairs.num_rows)
        return pc.equal(pc.bit_wise_and(pairs["x_right"], 1), 0)

    operator = joined(where=even)
    engine = engine_of(operator, tmp_path)
    lefts, rights = ([(side, 7, 0, x) for x in range(count)] for side, count in (("left", 40), ("right", 30)))
    engine.batch(rows_of(*lefts[:25], *rights))
    answer = engine.batch(rows_of(*lefts[25:]))
    assert sum(sizes) == 40 * 30, "every pair is looked at once"
    assert max(sizes) <= 100
    assert len(sizes) >= 12
    assert sorted(listed(answer.rows.select(["x", "x_right"]))) == [
        (x, y) for x in range(25, 40) for y in range(0, 30, 2)
    ]


def test_one_row_with_more_partners_than_fit_is_one_part(tmp_path, monkeypatch):
    monkeypatch.setattr(join_module, "MOST_PAIRS", 8)
    sizes = []
    operator = joined(where=lambda pairs: sizes.append(pairs.num_rows) or [True] * pairs.num_rows)
    found = engine_of(operator, tmp_path).batch(rows_of(*[("right", 7, 0, x) for x in range(20)], ("left", 7, 1, 0)))
    assert found.rows.num_rows == sum(sizes) == 20


def test_what_a_batch_touches_depends_on_its_own_keys_not_on_the_state(tmp_path):
    """The same rows over ten times as many stored keys touch as many rows of the tables, and find the same pairs."""
    batch = rows_of(*[(side, key, 50, key) for key in range(20) for side in ("left", "right")])
    touched, pairs = [], []
    for keys in (100, 1000):
        operator = joined(within=100e-6, lateness=1)
        engine = engine_of(operator, tmp_path / str(keys))
        engine.batch(rows_of(*[(side, key, 40, key) for key in range(keys) for side in ("left", "right")]))
        tables = engine.state.begin()
        engine.state.begin = lambda tables=tables: tables
        pairs.append(sorted(listed(engine.batch(batch).rows)))
        touched.append({name: table.size for name, table in tables.items()})
    assert pairs[0] == pairs[1]
    assert len(pairs[0]) == 20 * 3, "each row meets the stored one, and the two meet each other"
    assert touched[0] == touched[1]
    assert 0 < sum(touched[0].values()) < 400


def test_left_rows_without_a_partner_come_once_when_none_can_come_any_more(tmp_path):
    engine = engine_of(joined(how="left", within=(0, 10e-6)), tmp_path)
    assert engine.batch(rows_of(("left", 1, 0, 1), ("left", 2, 0, 2), ("right", 2, 5, 9))).rows.num_rows == 1
    assert engine.batch(rows_of(("left", 3, 40, 3))).rows is None, "time waits for the right"
    assert engine.batch(rows_of(("right", 3, 45, 9))).rows["x"].to_pylist() == [3]
    answer = engine.batch(rows_of())
    assert [row[:4] for row in listed(answer.rows.select(["k", "x", "x_right", "y"]))] == [(1, 1, None, None)]
    assert engine.batch(rows_of()).rows is None


def test_all_of_sparks_names_of_a_kind_of_join_are_one():
    for kind, names in {
        "left": ["leftouter", "left_outer"],
        "right": ["rightouter", "right_outer"],
        "full": ["outer", "fullouter", "full_outer"],
    }.items():
        for name in names:
            assert joined(how=name).fingerprint == joined(how=kind).fingerprint


def test_rows_of_both_sides_without_a_partner_come_once_each_in_its_own_time(tmp_path):
    """A right row waits only for left rows from before it, a left row for right ones up to 10 us later."""
    engine = engine_of(joined(how="full", within=(0, 10e-6)), tmp_path)
    first = engine.batch(rows_of(("left", 1, 0, 1), ("right", 2, 0, 2), ("left", 3, 0, 3), ("right", 3, 0, 4)))
    assert first.rows["k"].to_pylist() == [3]
    assert engine.batch(rows_of(("left", 9, 6, 9), ("right", 9, 6, 9))).rows.num_rows == 1
    assert listed(engine.batch(rows_of()).rows.select(["k", "x", "x_right", "y"])) == [(2, None, 2, "y2")]
    assert engine.batch(rows_of(("left", 8, 40, 8), ("right", 8, 40, 8))).rows.num_rows == 1
    assert listed(engine.batch(rows_of()).rows.select(["k", "x", "x_right", "y"])) == [(1, 1, None, None)]
    assert engine.batch(rows_of()).rows is None


def test_a_row_without_a_time_is_late_and_kept_whole(tmp_path):
    engine = engine_of(joined(), tmp_path)
    answer = engine.batch(rows_of(("left", 1, None, 5), ("right", 1, 3, 6)))
    assert answer.rows is None
    assert listed(answer.late.select(["left.k", "left.ts", "left.x"])) == [(1, None, 5)]
    engine.newest = END
    assert engine.batch(rows_of()).rows is None


def spans_of(*rows):
    """A table of spans with these (key, span, x) in it."""
    key = KeyType.of([pa.field("k", pa.string())])
    spans = Spans(Table(None, Spans.spec("side", key, (("x", pa.int64()),)), BINS))
    for batch in rows:
        keys, starts, xs = zip(*batch, strict=True)
        spans.append([pa.array(keys)], np.array(starts), pa.table({"x": xs}))
    return spans


def found(spans, *lookups):
    """What each look-up of (key, span) finds, by its x."""
    keys, starts = zip(*lookups, strict=True)
    answer = spans.find([pa.array(keys)], np.array(starts))
    return [
        spans.table.get("x", answer.rows[low:high]).to_pylist()
        for low, high in zip(answer.starts, answer.stops, strict=True)
    ]


def test_spans_give_the_rows_of_a_key_around_a_time():
    spans = spans_of([("a", 0, 1), ("a", 0, 2), ("a", 5, 3), ("b", 0, 4)], [("a", 0, 5), ("b", -5, 6), ("b", -5, 7)])
    assert found(spans, ("a", 0), ("a", 5), ("b", -5), ("b", 0)) == [[1, 2, 5], [3], [6, 7], [4]]
    assert found(spans, ("c", 0), ("a", 10), ("a", 5), ("a", 5)) == [[], [], [3], [3]], "look-ups may repeat"


def test_spans_are_forgotten_whole_and_can_be_filled_again():
    spans = spans_of([("a", 0, 1), ("a", 0, 2), ("a", 5, 3), ("b", -5, 4)])
    gone = spans.before(5)
    assert sorted(spans.table.get("x", gone).to_pylist()) == [1, 2, 4]
    spans.table.discard(gone)
    assert found(spans, ("a", 0), ("a", 5), ("b", -5)) == [[], [3], []]
    spans.append([pa.array(["a", "a"])], np.array([0, 0]), pa.table({"x": [8, 9]}))
    assert found(spans, ("a", 0)) == [[8, 9]]
    assert spans.before(5).size == 2


@pytest.mark.parametrize(
    ("where", "wanted"),
    [(pc.field(0) == 6, [6]), (pc.field(2) < 4, [5, 6]), (pc.field("x") > pc.field("x_right"), [6])],
)
def test_an_expression_names_columns_or_their_places(where, wanted, tmp_path):
    operator = joined(within=1, where=where)
    given = [("left", key, 0, x) for key, x in ((5, 1), (6, 3), (7, 9))]
    given += [("right", key, 0, x) for key, x in ((5, 4), (6, 2), (7, 9))]
    out = engine_of(operator, tmp_path).batch(rows_of(*given)).rows
    assert sorted(out["k"].to_pylist()) == wanted


def test_a_right_column_may_be_called_as_the_left_key(tmp_path):
    right = schema("b bigint, at timestamp, k string")
    operator = joined(right=right, key=(["k"], ["b"]), within=1)
    assert operator.output.names == ["k", "ts", "x", "at", "k_right"]
    assert [name for name, _ in operator.tables[1].values][:2] == ["at", "k_right"]


def test_nulls_of_stored_rows_come_out_as_nulls(tmp_path):
    engine = engine_of(joined(), tmp_path)
    engine.batch(rows_of(("right", 1, 5, None), ("right", 1, 6, 7)))
    out = engine.batch(rows_of(("left", 1, 5, None), ("left", 1, 5, 3))).rows
    pairs = zip(out["x"].to_pylist(), out["x_right"].to_pylist(), strict=True)
    assert sorted(pairs, key=str) == [(3, 7), (3, None), (None, 7), (None, None)]
