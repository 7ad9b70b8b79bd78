"""Operators one by one: what they refuse and how, and the cases that random rows do not reach."""

import json
import math
import pickle
from datetime import timedelta

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from meander.errors import InvalidOption, MeanderError
from meander.operators.aggregate import Aggregate
from meander.operators.conform import conform
from meander.operators.count import Count
from meander.operators.culprits import Culprits
from meander.operators.dedup import Dedup
from meander.operators.flat_map import FlatMap
from meander.operators.fold import Fold
from meander.operators.map_state import MapWithState
from meander.operators.operator import Now
from meander.operators.ordering import sorted_rows, words
from meander.operators.sums import float_sums, whole_sums
from meander.operators.times import microseconds
from meander.operators.top_k import TopK
from meander.operators.window import window
from meander.route.schema import schema
from naive import Engine, NaiveState, listed

INPUT = schema("user string, ts timestamp, price bigint, x double, tags array<string>, cost decimal(10,2)")
LARGEST = 2**63 - 1


def rows(ddl, *values):
    kinds = schema(ddl)
    columns = list(zip(*values, strict=True)) or [[]] * len(kinds)
    return pa.table([pa.array(list(c), f.type) for c, f in zip(columns, kinds, strict=True)], schema=kinds)


REFUSALS = {
    "the key names the column 'usr'; the columns are user, ts": lambda: Count(INPUT, ["usr"]),
    "the key is []; name at least one": lambda: Count(INPUT, []),
    "the key is 'user'": lambda: Count(INPUT, "user"),
    "the key names a column twice": lambda: Count(INPUT, ["user", "user"]),
    "column 'x' of type double cannot be part of a key": lambda: Count(INPUT, ["x"]),
    "two output columns are called 'user'": lambda: Count(INPUT, ["user"], name="user"),
    "an output column is called ''": lambda: Count(INPUT, ["user"], name=""),
    "needs at least one output column": lambda: Aggregate(INPUT, ["user"], {}),
    "the aggregate 'a' is ('median', 'x')": lambda: Aggregate(INPUT, ["user"], {"a": ("median", "x")}),
    "the aggregate 'a' is 'sum'; write": lambda: Aggregate(INPUT, ["user"], {"a": "sum"}),
    "the aggregate 'a' is 3": lambda: Aggregate(INPUT, ["user"], {"a": 3}),
    "the aggregate 'a' names the column 'y'": lambda: Aggregate(INPUT, ["user"], {"a": ("sum", "y")}),
    "cannot take the sum of 'user' of type string; it needs numbers":
        lambda: Aggregate(INPUT, ["user"], {"a": ("sum", "user")}),
    "cannot take the sum of 'cost' of type decimal128(10, 2); cast it to double":
        lambda: Aggregate(INPUT, ["user"], {"a": ("sum", "cost")}),
    "cannot take the max of 'cost' of type decimal128(10, 2)":
        lambda: Aggregate(INPUT, ["user"], {"a": ("max", "cost")}),
    "cannot take the min of 'tags'": lambda: Aggregate(INPUT, ["user"], {"a": ("min", "tags")}),
    "say by which column of time": lambda: Aggregate(INPUT, ["user"], {"a": ("first", "x")}),
    "by names the column 'x' of type double": lambda: Aggregate(INPUT, ["user"], {"a": ("first", "price")}, by="x"),
    "by='ts' is for first, last and collect_list, and none is asked for":
        lambda: Aggregate(INPUT, ["user"], {"a": "count"}, by="ts"),
    "within needs the column of event time": lambda: Dedup(INPUT, ["user"], within="1h"),
    "time names the column 'x' of type double; event time": lambda: Dedup(INPUT, ["user"], time="x"),
    "within is '0s'; it must be above 0": lambda: Dedup(INPUT, ["user"], time="ts", within="0s"),
    "k is 0": lambda: TopK(INPUT.remove(4), ["user"], 0, "x"),
    "by names 'user', a column of the key": lambda: TopK(INPUT, ["user"], 1, "user"),
    "by names the column 'tags'": lambda: TopK(INPUT, ["user"], 1, "tags"),
    "column 'tags' of type list<element: string> cannot be state": lambda: TopK(INPUT, ["user"], 1, "x"),
    "the rank cannot be called 'x'": lambda: TopK(INPUT, ["user"], 1, "x", rank="x"),
    "identity is 'ts'; give a list": lambda: TopK(INPUT, ["user"], 1, "x", identity="ts"),
    "the columns of identity are all in the key": lambda: TopK(INPUT, ["user"], 1, "x", identity=["user"]),
    "the columns of identity hold 'x'": lambda: TopK(INPUT, ["user"], 1, "x", identity=["x"]),
    "time says which update is newest": lambda: TopK(INPUT, ["user"], 1, "x", time="ts"),
    "a window has a size, or": lambda: window(INPUT, ["user"], time="ts"),
    "a window has a size, or a size and a slide": lambda: window(INPUT, ["user"], time="ts", size="1s", gap="1s"),
    "longer than size '1s'": lambda: window(INPUT, ["user"], time="ts", size="1s", slide="2s"),
    "slide '1ms' puts a row into more than": lambda: window(INPUT, ["user"], time="ts", size="1h", slide="1ms"),
    "emit is 'append'": lambda: window(INPUT, ["user"], time="ts", size="1s", emit="append"),
    "lateness is -1": lambda: window(INPUT, ["user"], time="ts", size="1s", lateness=-1),
    "fold takes a function": lambda: Fold(INPUT, ["user"], 3, "n int", "n int"),
    "state declares no columns": lambda: Fold(INPUT, ["user"], max, "", "n int"),
    "the function 'len' of fold takes (obj, /); write it as f(rows, state)":
        lambda: Fold(INPUT, ["user"], len, "n int", "n int"),
}  # fmt: skip


@pytest.mark.parametrize("sentence", REFUSALS)
def test_what_makes_no_sense_is_refused_when_it_is_declared(sentence):
    with pytest.raises(InvalidOption) as refused:
        REFUSALS[sentence]()
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)


def test_durations():
    assert microseconds("d", "10 minutes") == microseconds("d", "10m") == microseconds("d", 600) == 600_000_000
    assert microseconds("d", "1h 30m") == microseconds("d", timedelta(minutes=90)) == 5_400_000_000
    assert microseconds("d", "1.5 s") == microseconds("d", 1.5) == microseconds("d", "1500ms") == 1_500_000
    assert microseconds("d", "2 Weeks") == microseconds("d", "14 days") == 14 * 86_400_000_000
    for wrong in ("ten", "", "5", "5 lightyears", "m", None, True, math.nan, "1s and more", [1]):
        with pytest.raises(InvalidOption, match="d is .*; write a duration"):
            microseconds("d", wrong)
    with pytest.raises(InvalidOption, match="at least 0"):
        microseconds("d", -1)


def test_sums_of_whole_numbers_are_exact_or_refused():
    of = np.array([0, 0, 1, 1, 2, 2])
    values = np.array([LARGEST, -LARGEST, LARGEST, 1, -LARGEST, -1])
    total, beyond = whole_sums(np.array([5, 0, -1]), of, values)
    assert beyond.tolist() == [False, True, True]
    assert total[0] == 5
    total, beyond = whole_sums(np.array([LARGEST, -LARGEST - 1]), np.array([0, 1]), np.array([1, -1]))
    assert beyond.all()
    total, beyond = whole_sums(np.array([LARGEST - 1, -LARGEST]), np.array([0, 1]), np.array([1, -1]))
    assert not beyond.any()
    assert total.tolist() == [LARGEST, -LARGEST - 1]


def test_a_sum_that_overflows_names_key_bin_and_column():
    operator = Aggregate(INPUT, ["user"], {"total": ("sum", "price")})
    engine = Engine(operator)
    batch = rows("user string, ts timestamp, price bigint, x double, tags array<string>, cost decimal(10,2)",
                 ("ann", 0, LARGEST, 0.0, [], None), ("bob", 0, 1, 0.0, [], None))  # fmt: skip
    engine.batch(batch)
    bin_ = int(operator.key.encode([pa.array(["ann"])]).bins(8)[0])
    with pytest.raises(MeanderError, match=f"the sum 'total' of column 'price' .* key 'ann' in bin {bin_};"):
        engine.batch(batch)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1e308, 1e308, -1e308], 1e308),
        ([1e16, 1.0, -1e16], 1.0),
        ([5e-324, 5e-324, 5e-324], 1.5e-323),
        ([0.1] * 10, 1.0),
        ([1.7976931348623157e308], 1.7976931348623157e308),
        ([math.inf, 1.0], math.inf),
        ([math.inf, -math.inf], math.nan),
        ([math.nan, 1.0], math.nan),
        ([-0.0], 0.0),
    ],
)
def test_sums_of_floats(values, expected):
    for order in (values, values[::-1]):
        total, rest = float_sums(np.zeros(len(order), np.int64), np.array(order), 1)
        assert total[0] == expected or (math.isnan(expected) and math.isnan(total[0]))
        assert math.isfinite(rest[0])


def test_sums_of_floats_in_one_batch_are_the_same_bits_in_every_order():
    rng = np.random.default_rng(3)
    values = rng.standard_normal(5000) * 10.0 ** rng.integers(-20, 20, 5000)
    of = rng.integers(0, 7, 5000)
    total, rest = float_sums(of, values, 7)
    for _ in range(3):
        order = rng.permutation(5000)
        again = float_sums(of[order], values[order], 7)
        assert np.array_equal(total, again[0])
        assert np.array_equal(rest, again[1])
    assert total.tolist() == [math.fsum(values[of == group]) for group in range(7)]


def test_words_sort_as_the_values_do():
    floats = [-math.inf, -2.5, -5e-324, -0.0, 0.0, 5e-324, 1.0, math.inf, math.nan]
    assert np.all(np.diff(words(pa.array(floats)).astype(object)) > 0)
    texts = ["", "Z", "a", "ab", "é", "😀"]
    assert np.all(np.diff(words(pa.array(texts))) > 0)
    for kind in (pa.int8(), pa.int64(), pa.date32(), pa.timestamp("us"), pa.float32()):
        assert np.all(np.diff(words(pa.array([-3, 0, 7], kind))) > 0), kind
    assert words(pa.array([[2], [1], [1]]))[1] == words(pa.array([[2], [1], [1]]))[2]


def test_rows_are_sorted_by_one_column_after_the_other_with_nulls_last():
    first, second = pa.array([2, 1, None, 1, 2]), pa.array(["b", None, "x", "a", "a"])
    assert sorted_rows([(first, False), (second, False)]).tolist() == [3, 1, 4, 0, 2]
    assert sorted_rows([(first, True), (second, False)]).tolist() == [4, 0, 3, 1, 2]
    assert sorted_rows([(first, False), (second, True)]).tolist() == [3, 1, 0, 4, 2]


def test_result_types_are_those_of_spark():
    ddl = "k int, b boolean, i8 tinyint, i int, f float, d double, s string, bin binary, day date, ts timestamp"
    kinds = schema(ddl)
    named = {f"min_{name}": ("min", name) for name in kinds.names[1:]}
    named |= {
        "sum_i8": ("sum", "i8"),
        "sum_f": ("sum", "f"),
        "mean_i": ("mean", "i"),
        "n": "count",
        "c": ("count", "b"),
    }
    found = Aggregate(kinds, ["k"], named).output
    for name in kinds.names[1:]:
        assert found.field(f"min_{name}").type == kinds.field(name).type
    assert found.field("sum_i8").type == found.field("n").type == found.field("c").type == pa.int64()
    assert found.field("sum_f").type == found.field("mean_i").type == pa.float64()
    assert found.names == ["k", *named]


def test_operators_have_fingerprints_that_tell_them_apart():
    bare = INPUT.remove(5).remove(4)
    operators = [
        Count(bare, ["user"]),
        Count(bare, ["user"], name="n"),
        Aggregate(bare, ["user"], {"a": ("min", "x")}),
        Aggregate(bare, ["user"], {"a": ("max", "x")}),
        Dedup(bare, ["user"]),
        Dedup(bare, ["user"], time="ts", within="1h"),
        TopK(bare, ["user"], 3, "x"),
        TopK(bare, ["user"], 3, "x", largest=False),
        window(bare, ["user"], time="ts", size="1h"),
        window(bare, ["user"], time="ts", size="1h", slide="30m"),
        window(bare, ["user"], time="ts", gap="1h"),
        Fold(bare, ["user"], max, "total double", "user string"),
        MapWithState(bare, ["user"], max, "total double", "user string"),
        MapWithState(bare, ["user"], max, "total double", "user string", time="ts"),
        FlatMap(bare, ["user"], max, "user string"),
    ]
    prints = [json.dumps(operator.fingerprint, sort_keys=True) for operator in operators]
    assert len(set(prints)) == len(operators)
    for operator, before in zip(operators, prints, strict=True):
        sent = pickle.dumps(operator)
        assert len(sent) < 10_000
        assert json.dumps(pickle.loads(sent).fingerprint, sort_keys=True) == before


DDL = "user string, ts timestamp, price bigint"


def test_no_operator_minds_an_empty_batch():
    bare = schema(DDL)
    for operator in (
        Count(bare, ["user"]),
        Aggregate(bare, ["user"], {"a": ("last", "price")}, by="ts"),
        Dedup(bare, ["user"], time="ts", within="1s"),
        TopK(bare, ["user"], 2, "price", identity=["ts"]),
        window(bare, ["user"], time="ts", size="1s"),
        window(bare, ["user"], time="ts", gap="1s"),
        Fold(bare, ["user"], lambda rows, state: 1 / 0, "n int", "n int"),
        MapWithState(bare, ["user"], lambda key, rows, state: 1 / 0, "n int", "n int", timeout="1s"),
        FlatMap(bare, ["user"], lambda row: 1 / 0, "n int"),
    ):
        tables = NaiveState(operator).begin()
        for frontier in (None, 0):
            empty = rows(DDL)
            out = operator.run(empty, operator.key.encode([empty["user"]]), tables, Now(0, frontier))
            assert (out.rows, out.late, out.newest) == (None, None, None)


def test_rows_without_a_time_are_late():
    for operator in (
        window(schema(DDL), ["user"], time="ts", size="1s"),
        window(schema(DDL), ["user"], time="ts", gap="1s", emit="update"),
        Dedup(schema(DDL), ["user"], time="ts", within="1s"),
    ):
        out = Engine(operator).batch(rows(DDL, ("ann", None, 1), ("ann", 5, 2)))
        assert [row[2] for row in listed(out.late)] == [1]
        assert out.rows.num_rows == 1
        assert out.newest == 5
        out = Engine(operator).batch(rows(DDL, ("ann", None, 1)))
        assert (out.rows, out.newest) == (None, None)


def test_a_window_closes_when_its_end_is_not_after_the_frontier():
    engine = Engine(window(schema(DDL), ["user"], time="ts", size=10e-6, emit="final"))
    assert engine.batch(rows(DDL, ("ann", 9, 1))).rows is None
    out = engine.batch(rows(DDL, ("ann", 3, 1), ("ann", 10, 1)))
    assert (out.rows, out.late) == (None, None)
    out = engine.batch(rows(DDL, ("ann", 9, 1), ("ann", 12, 1)))
    assert [row[3] for row in listed(out.rows)] == [2]
    assert [row[1].microsecond for row in listed(out.late)] == [9]
    assert engine.state.committed["windows"].keys() == {("ann", out.late["ts"][0].as_py().replace(microsecond=10))}


def test_windows_before_the_epoch_begin_before_their_rows():
    engine = Engine(window(schema(DDL), ["user"], time="ts", size=10e-6))
    out = engine.batch(rows(DDL, ("ann", -1, 1), ("ann", -10, 1), ("ann", -11, 1)))
    starts = dict(
        zip(out.rows["window_start"].cast(pa.int64()).to_pylist(), out.rows["count"].to_pylist(), strict=True)
    )
    assert starts == {-10: 2, -20: 1}


def test_a_row_that_connects_two_sessions_merges_them():
    operator = window(
        schema(DDL), ["user"], time="ts", gap=10e-6, lateness=1, named={"sum": ("sum", "price")}, emit="update"
    )
    engine = Engine(operator)
    engine.batch(rows(DDL, ("ann", 0, 1), ("ann", 20, 2), ("bob", 0, 5)))
    out = engine.batch(rows(DDL, ("ann", 10, 4)))
    assert [(row[0], row[1].microsecond, row[2].microsecond, row[3]) for row in listed(out.rows)] == [("ann", 0, 30, 7)]
    assert len(engine.state.committed["sessions"]) == 2


def test_counts_then_the_best_of_them():
    count = Engine(Count(schema("word string"), ["word"], name="n"))
    kinds = schema("word string, n bigint, all int")
    best = Engine(TopK(kinds, ["all"], 2, "n", identity=["word"]))
    shown = []
    for text in ("a b b c", "a a a", "d", "c c c c"):
        counts = count.batch(rows("word string", *((word,) for word in text.split()))).rows
        counts = counts.append_column("all", pa.array([0] * counts.num_rows, pa.int32())).cast(kinds)
        shown.append([(row[3], row[1], row[2]) for row in listed(best.batch(counts).rows)])
    assert shown == [[(1, "b", 2), (2, "a", 1)], [(1, "a", 4), (2, "b", 2)], [], [(1, "c", 5), (2, "a", 4)]]


def test_one_that_falls_lets_another_rise_that_was_seen_long_ago():
    ddl = "k int, name string, score bigint"
    engine = Engine(TopK(schema(ddl), ["k"], 1, "score", identity=["name"]))
    engine.batch(rows(ddl, (1, "a", 9), (1, "b", 7), (1, "c", 8)))
    assert engine.batch(rows(ddl, (1, "b", 6))).rows is None
    out = engine.batch(rows(ddl, (1, "a", 5)))
    assert listed(out.rows) == [(1, "c", 8, 1)]


def test_fold_gives_rows_in_order_and_the_state_of_their_keys():
    seen = []

    def function(rows, state):
        seen.append((listed(rows), listed(state)))
        counts = state["n"].fill_null(0).to_numpy() + 1
        return {"n": pa.array(counts, mask=np.array(state["user"].to_pylist()) == "bob")}, None

    engine = Engine(Fold(schema(DDL), ["user"], function, "n int", "user string", time="ts"))
    engine.batch(rows(DDL, ("cy", 2, 1), ("ann", 5, 1), ("cy", 1, 9), ("ann", 5, 0)))
    found, state = seen[0]
    assert [(row[0], row[2], row[3]) for row in found] == [("ann", 0, 0), ("ann", 1, 0), ("cy", 9, 1), ("cy", 1, 1)]
    assert state == [("ann", None), ("cy", None)]
    engine.batch(rows(DDL, ("cy", 2, 1)))
    assert seen[1][1] == [("cy", 1)]
    engine.batch(rows(DDL, ("bob", 2, 1)))
    assert engine.state.committed["fold"] == {("ann",): (1,), ("cy",): (2,)}


def test_the_example_in_the_docstring_of_fold():
    def spent(rows, state):
        totals = np.bincount(rows["__group"], weights=rows["price"], minlength=state.num_rows)
        totals += state["total"].fill_null(0.0).to_numpy()
        new = pa.table({"total": totals})
        return new, pa.table({"user": state["user"], "total": totals}).filter(pc.field("total") > 100)

    engine = Engine(Fold(schema(DDL), ["user"], spent, state="total double", output="user string, total double"))
    assert engine.batch(rows(DDL, ("ann", 0, 60), ("bob", 0, 101), ("ann", 0, 40))).rows.to_pylist() == [
        {"user": "bob", "total": 101.0}
    ]
    assert listed(engine.batch(rows(DDL, ("ann", 0, 1))).rows) == [("ann", 101.0)]


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (None, "returned null; return a pair"),
        (({"n": [1, 2]}, None), "returned 2 rows; it must return 1"),
        (({"m": [1]}, None), "returned no column 'n'"),
        (({"n": [1], "z": [1]}, None), "returned a column 'z' that is not declared"),
        (({"n": [1.5]}, None), "column 'n' as double, which cannot become int32"),
        (({"n": ["1"]}, None), "column 'n' as string, which cannot become int32"),
        (({"n": [2**40]}, None), "column 'n' as int64, which cannot become int32"),
        (({"n": [1]}, [1]), "returned a list; return a pyarrow Table"),
        (({"n": [1]}, {"out": [1.1]}), "column 'out' as double, which cannot become float"),
    ],
)
def test_what_a_function_returns_is_held_against_what_it_declares(answer, sentence):
    operator = Fold(schema(DDL), ["user"], lambda rows, state: answer, "n int", "out float")
    with pytest.raises(MeanderError) as refused:
        Engine(operator).batch(rows(DDL, ("ann", 0, 1)))
    assert sentence in str(refused.value)


def test_what_can_become_the_declared_type_without_loss_does():
    wanted = schema("a int, b float, c string, d timestamp, e double, f date")
    given = pa.table({
        "f": pa.array([None]), "a": pa.array([7.0]), "b": pa.array([0.5]), "c": pa.array(["x"]).dictionary_encode(),
        "d": pa.array([1], pa.timestamp("ms", tz="Europe/Berlin")), "e": pa.array([3], pa.int8()),
    })  # fmt: skip
    found = conform("f", given, wanted)
    assert found.schema == wanted
    assert [value.as_py() for value in (found[name][0] for name in "abce")] == [7, 0.5, "x", 3.0]
    assert found["d"].cast(pa.int64()).to_pylist() == [1000]


def test_the_key_that_fails_is_found_and_the_exception_is_the_users_own():
    def function(rows, state):
        if "bob" in state["user"].to_pylist():
            raise ZeroDivisionError("bob")
        return None, None

    operator = Fold(schema(DDL), ["user"], function, "n int", "n int")
    state = NaiveState(operator)
    batch = rows(DDL, *((user, 0, 0) for user in ("ann", "bob", "cy", "dee", "eve")))
    keys = operator.key.encode([batch["user"]])
    with pytest.raises(ZeroDivisionError, match="bob"):
        operator.run(batch, keys, state.begin(), Now(0))
    (culprit,) = Culprits(operator, batch, keys, state.begin, Now(0))
    assert (culprit.rows.tolist(), operator.key.decode(culprit.key)[0].to_pylist()) == ([1], ["bob"])
    calm = batch.filter(pc.not_equal(batch["user"], "bob"))
    assert not [*Culprits(operator, calm, operator.key.encode([calm["user"]]), state.begin, Now(0))]
