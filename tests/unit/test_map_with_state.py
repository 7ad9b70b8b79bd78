"""Functions over keys: every form of rows, state, timers and timeouts, against a recount in plain Python."""

import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

import meander as me
from effort import examples
from in_process import emitted
from meander.errors import InvalidOption, MeanderError, QueryFailed
from meander.operators.culprits import Culprits
from meander.operators.flat_map import FlatMap
from meander.operators.fold import Fold
from meander.operators.map_state import MapWithState
from meander.operators.operator import Now
from meander.route.schema import schema
from naive import Engine, NaiveState, RealState, listed

DDL = "user string, at timestamp, price bigint"
INPUT = schema(DDL)
START = datetime(2026, 1, 1, tzinfo=UTC)


def moment(seconds):
    return START + timedelta(seconds=seconds)


def batch(*rows):
    """Rows of (user, second, price)."""
    return [{"user": user, "at": moment(second), "price": price} for user, second, price in rows]


def visits():
    return me.stream(me.testing.source(DDL)).key_by("user")


# --- the forms of rows ---------------------------------------------------------------------------


def spent_plain(user, rows, state):
    total = (state.total or 0) + sum(row.price for row in rows)
    state.update(total=total, last=rows[-1].at)
    yield user, total, rows[0]["price"]


def spent_pandas(user, rows: pd.DataFrame, state):
    total = (state.total or 0) + int(rows["price"].sum())
    state.update(total=total, last=rows["at"].iloc[-1])
    return pd.DataFrame({"user": [user], "total": [total], "first": [rows["price"][0]]})


def spent_arrow(user, rows: pa.Table, state: me.KeyState):
    total = (state.total or 0) + pc.sum(rows["price"]).as_py()
    state.update(total=total, last=rows["at"][-1].as_py())
    return pa.table({"first": rows["price"][:1], "total": [total], "user": [user]})


def spent_frame(user, rows, state):
    assert isinstance(rows, pd.DataFrame)
    return spent_pandas(user, rows, state)


def spent_dictionaries(user, rows: list[tuple], state):
    return [{"first": first, "user": name, "total": total} for name, total, first in spent_plain(user, rows, state)]


def spent_annotated_as_text(user, rows: "pd.DataFrame", state):
    return spent_frame(user, rows, state)


FORMS = {
    "plain": (spent_plain, {}),
    "plain, by its word": (spent_dictionaries, {"rows": "plain"}),
    "pandas, by its annotation": (spent_pandas, {}),
    "pandas, by its word": (spent_frame, {"rows": "pandas"}),
    "pandas, by the text of its annotation": (spent_annotated_as_text, {}),
    "arrow, by its annotation": (spent_arrow, {}),
    "arrow, by its word": (spent_arrow, {"rows": "arrow"}),
}
BATCHES = [
    [("ann", 5, 3), ("bob", 2, 7), ("ann", 1, 10)],
    [("cy", 9, 1), ("bob", 12, 2), ("bob", 12, 1), ("ann", 11, 4)],
    [("bob", 20, 8)],
]


@pytest.mark.parametrize("form", FORMS)
def test_rows_come_in_every_form_in_order_and_state_lasts(form):
    function, options = FORMS[form]
    stream = visits().map_with_state(
        function, state="total long, last timestamp", output="user string, total long, first long", time="at", **options
    )
    totals, last, expected = Counter(), {}, []
    with me.testing.harness(stream) as h:
        for rows in BATCHES:
            by_user = defaultdict(list)
            for user, second, price in sorted(rows):
                by_user[user].append(price)
                last[user] = moment(second)
                totals[user] += price
            expected.append({user: (totals[user], prices[0]) for user, prices in by_user.items()})
        found = [{r["user"]: (r["total"], r["first"]) for r in h.batch(batch(*rows))} for rows in BATCHES]
        assert found == expected
        assert {row["user"]: (row["total"], row["last"]) for row in h.state()} == {
            user: (totals[user], last[user]) for user in totals
        }


def test_rows_are_in_order_of_time_and_then_of_all_columns_whatever_order_they_come_in():
    seen = []

    def note(key, rows, state):
        seen.append((key, [(row.at, row.price) for row in rows]))

    operator = MapWithState(INPUT, ["user"], note, "n int", "n int", time="at")
    rows = [("bob", 3, 1), ("ann", 9, 0), ("ann", 2, 5), ("bob", 3, 0), ("ann", 2, None)]
    for some in (rows, rows[::-1]):
        Engine(operator).batch(pa.Table.from_pylist(batch(*some), INPUT))
    ann, bob = [(moment(2), 5), (moment(2), None), (moment(9), 0)], [(moment(3), 0), (moment(3), 1)]
    assert seen == [("ann", ann), ("bob", bob)] * 2


def test_a_key_is_a_value_a_tuple_of_several_or_an_empty_one_where_there_is_none():
    def keys(key, rows, state):
        return [(repr(key), len(rows), len(rows[0]))]

    source = me.stream(me.testing.source(DDL))
    for columns, expected in {
        ("user",): {("'ann'", 2, 3), ("'bob'", 1, 3)},
        ("price", "user"): {("(1, 'ann')", 1, 3), ("(2, 'ann')", 1, 3), ("(1, 'bob')", 1, 3)},
        (): {("()", 3, 3)},
    }.items():
        keyed = source.key_by(*columns)
        with me.testing.harness(keyed.map_with_state(keys, "n int", "key string, rows int, width int")) as h:
            found = h.batch(batch(("ann", 0, 1), ("ann", 0, 2), ("bob", 0, 1)))
            assert {tuple(row.values()) for row in found} == expected


def test_columns_that_python_cannot_name_are_reached_in_brackets():
    stream = me.stream(me.testing.source("user string, `the page` string, class int, _x int")).key_by("user")

    def pages(user, rows, state):
        state.update(**{"the last": rows[-1]["the page"]})
        for row in rows:
            yield {"page": row["the page"], "class": row["class"], "x": row["_x"], "user": row[0]}

    with me.testing.harness(
        stream.map_with_state(pages, "`the last` string", "user string, page string, class int, x int")
    ) as h:
        row = {"user": "ann", "the page": "home", "class": 3, "_x": 4}
        assert h.batch([row]) == [{"user": "ann", "page": "home", "class": 3, "x": 4}]
        assert h.state() == [{"user": "ann", "the last": "home"}]


def test_a_row_may_be_passed_on_as_it_is():
    def high(user, rows, state):
        return (row for row in rows if row.price > 5)

    with me.testing.harness(visits().map_with_state(high, "n int", "price long, user string, at timestamp")) as h:
        assert h.batch(batch(("ann", 1, 9), ("ann", 2, 1))) == [{"price": 9, "user": "ann", "at": moment(1)}]


def test_every_type_of_a_column_goes_in_and_out():
    ddl = (
        "key int, a boolean, b tinyint, c float, d double, e date, f timestamp, g timestamp_ntz, h decimal(10,2), "
        "i string, j binary"
    )
    names = [field.name for field in schema(ddl)][1:]
    rows = pa.table(
        {
            "key": pa.array([1, 2], pa.int32()),
            "a": [True, None],
            "b": pa.array([7, None], pa.int8()),
            "c": pa.array([0.5, None], pa.float32()),
            "d": [float("inf"), None],
            "e": pa.array([datetime(2026, 1, 2).date(), None]),
            "f": pa.array([moment(-(10**10)), None], pa.timestamp("us", tz="UTC")),
            "g": pa.array([datetime(1969, 12, 31, 23, 59, 59, 999_999), None], pa.timestamp("us")),
            "h": pa.array([Decimal("1.25"), None], pa.decimal128(10, 2)),
            "i": ["text", None],
            "j": [b"\xff", None],
        }
    )

    def same(key, rows, state):
        before = [getattr(state, name) for name in names]
        state.update(**{name: getattr(rows[0], name) for name in names})
        yield key, *before

    stream = me.stream(me.testing.source(ddl)).key_by("key")
    with me.testing.harness(stream.map_with_state(same, ddl.partition(", ")[2], ddl)) as h:
        h.batch(rows)
        found = pa.Table.from_pylist(h.batch(rows), schema(ddl)).sort_by("key")
        assert found.equals(rows.cast(schema(ddl)))
        assert [row["key"] for row in h.state()] == [1]  # all of the other's columns are null


# --- state ---------------------------------------------------------------------------------------


def counted(user, rows, state):
    """Counts that are forgotten at every fifth row."""
    n = (state.n or 0) + len(rows)
    if n >= 5:
        state.clear()
    else:
        state.update(n=n)
    return [(user, n)]


def recounted(batches):
    counts, output = Counter(), []
    for rows in batches:
        for user, more in sorted(Counter(user for user, _, _ in rows).items()):
            counts[user] += more
            output.append((user, counts[user]))
            if counts[user] >= 5:
                del counts[user]
    return output, counts


def test_state_survives_moves_losses_and_restarts_and_is_forgotten_when_cleared():
    rng = np.random.default_rng(7)
    batches = [[(f"u{rng.integers(20)}", n, 1) for _ in range(15)] for n in range(10)]
    output, counts = recounted(batches)
    events = {1: lambda h: h.rescale(4), 3: lambda h: h.lose(1), 5: lambda h: h.restart(), 7: lambda h: h.rescale(1)}
    with me.testing.harness(visits().map_with_state(counted, "n long", "user string, n long"), snapshot_every=3) as h:
        for number, rows in enumerate(batches):
            h.batch(batch(*rows))
            events.get(number, lambda h: None)(h)
        assert Counter((row["user"], row["n"]) for row in h.output()) == Counter(output)
        assert {row["user"]: row["n"] for row in h.state()} == counts
        assert h.query.misrouted == 0


def test_what_the_state_tells():
    seen = []

    def look(user, rows, state):
        seen.append((state.exists, state.n, state.text, state.timed_out))
        state.update(n=1)
        seen.append((state.exists, state.n, state.text))
        state.update(text="x", n=None)
        seen.append((state.exists, state.n, state.text, repr(state)))

    with me.testing.harness(visits().map_with_state(look, "n int, text string", "n int")) as h:
        h.batch(batch(("ann", 0, 1)))
        assert seen == [
            (False, None, None, False), (True, 1, None), (True, None, "x", "KeyState(n=None, text='x')")
        ]  # fmt: skip
        h.batch(batch(("ann", 0, 1)))
        assert seen[3] == (True, None, "x", False)


def test_a_state_of_nulls_alone_is_none_and_one_that_is_not_touched_is_not_written():
    def idle(user, rows, state):
        if user == "ann":
            state.update(n=None)

    with me.testing.harness(visits().map_with_state(idle, "n int", "n int")) as h:
        h.batch(batch(("ann", 0, 1), ("bob", 0, 1)))
        assert h.state() == []


# --- timers --------------------------------------------------------------------------------------


def test_a_timer_fires_once_behind_the_watermark_and_before_the_rows_of_its_batch():
    def remind(user, rows, state):
        if state.timed_out:
            assert rows == []
            yield user, "rings", state.n
        for row in rows:
            yield user, "row", row.price
            state.update(n=row.price)
            state.timer(row.at + timedelta(seconds=10))

    stream = visits().map_with_state(remind, "n long", "user string, what string, n long", time="at")
    with me.testing.harness(stream) as h:
        h.batch(batch(("ann", 0, 1), ("bob", 10, 2)))
        h.batch(batch(("cy", 11, 3)))  # the watermark is at 10 s: not past ann's timer
        found = h.batch(batch(("ann", 12, 4)))  # and now at 11 s
        assert [(row["what"], row["n"]) for row in found if row["user"] == "ann"] == [("rings", 1), ("row", 4)]
        assert h.idle() == []  # the watermark is at 12 s, and stands
        assert {(row["user"], row["what"], row["n"]) for row in h.end()} == {
            (user, "rings", n) for user, n in (("ann", 4), ("bob", 2), ("cy", 3))
        }
        assert h.end() == []
        assert {row["user"]: row["n"] for row in h.state()} == {"ann": 4, "bob": 2, "cy": 3}


def test_a_key_has_one_timer_that_can_be_replaced_cancelled_and_stand_alone():
    def plan(user, rows, state):
        if state.timed_out:
            return [(user, state.exists)]
        for row in rows:
            if row.price < 0:
                state.cancel_timer()
            else:
                state.timer(moment(row.price).replace(tzinfo=None))
        if user == "cy":
            state.clear()
        return None

    stream = visits().map_with_state(plan, "n int", "user string, exists boolean", time="at")
    with me.testing.harness(stream) as h:
        h.batch(batch(("ann", 0, 5), ("ann", 1, 50), ("bob", 0, 5), ("cy", 0, 5)))
        h.batch(batch(("bob", 2, -1)))
        assert {(row["user"], row["__timer"]) for row in h.state()} == {("ann", moment(50))}
        h.batch(batch(("dee", 40, 100)))
        assert h.idle() == []
        h.rescale(3)
        h.batch(batch(("dee", 60, 100)))
        assert h.idle() == [{"user": "ann", "exists": False}]
        assert [row["user"] for row in h.state()] == ["dee"]


def closing(user, rows, state):
    """Sessions: the number of rows, once no row has come for so long."""
    if state.timed_out:
        yield user, state.n
        state.clear()
    else:
        state.update(n=(state.n or 0) + len(rows))


@pytest.mark.parametrize("form", ["plain", "pandas", "arrow"])
def test_a_timeout_passes_with_the_clock_where_idle_time_is_that_of_the_wall(form):
    stream = visits().map_with_state(closing, "n long", "user string, n long", timeout="30s", rows=form)
    for idle_time, expected in (("wall", {("ann", 2), ("bob", 1)}), ("hold", set())):
        with me.testing.harness(stream, idle_time=idle_time) as h:
            assert h.batch(batch(("ann", 0, 1), ("bob", 20, 1), ("ann", 1, 1))) == []
            h.restart()
            assert {tuple(row.values()) for row in h.idle(100)} == expected
            assert len(h.state()) == 2 - len(expected)


def test_a_key_without_state_does_not_time_out_and_one_that_keeps_it_does_so_once():
    def stubborn(user, rows, state):
        if not state.timed_out and user == "ann":
            state.update(n=1)
        return [(user, state.timed_out)]

    stream = visits().map_with_state(stubborn, "n int", "user string, out boolean", timeout="30s")
    with me.testing.harness(stream) as h:
        h.batch(batch(("ann", 0, 1), ("bob", 0, 1)))
        assert h.advance("31s") == [{"user": "ann", "out": True}]
        assert h.advance("100s") == []
        assert [row["user"] for row in h.state()] == ["ann"]
        h.batch(batch(("ann", 200, 1)))
        assert h.end() == [{"user": "ann", "out": True}]


events = st.tuples(st.sampled_from(["ann", "bob", "cy"]), st.none() | st.integers(0, 60), st.integers(0, 3))


@examples(40)
@given(st.lists(st.lists(events, max_size=8), max_size=6), st.integers(1, 20), st.integers(0, 10))
def test_timeouts_are_those_of_a_recount(batches, timeout, lateness):
    def function(user, rows, state):
        if state.timed_out:
            yield user, state.n, True
            if state.n % 2:
                state.clear()
        else:
            state.update(n=(state.n or 0) + len(rows))
            if state.n % 5 == 0:
                state.clear()
            yield user, state.n, False

    options = {"time": "at", "timeout": timeout, "lateness": lateness}
    operator = MapWithState(INPUT, ["user"], function, "n int", "user string, n int, out boolean", **options)
    counts, timers, newest, frontier = {}, {}, None, None
    with tempfile.TemporaryDirectory() as directory:
        real = RealState(operator, directory)
        engine = Engine(operator, real)
        for rows in batches:
            if newest is not None:
                frontier = max(newest - lateness, newest - lateness if frontier is None else frontier)
            expected = []
            for user, timer in sorted(timers.items()):
                if frontier is not None and timer < frontier:
                    expected.append((user, counts[user], True))
                    del timers[user]
                    if counts[user] % 2:
                        del counts[user]
            for user in sorted({user for user, _, _ in rows}):
                mine = [second for name, second, _ in rows if name == user]
                counts[user] = counts.get(user, 0) + len(mine)
                known = [second for second in mine if second is not None]
                if counts[user] % 5 == 0:
                    del counts[user]
                    timers.pop(user, None)
                    expected.append((user, None, False))
                    continue
                expected.append((user, counts[user], False))
                if known:
                    timers[user] = max(timers.get(user, 0), max(known) + timeout)
            newest = max(
                [second for _, second, _ in rows if second is not None] + ([] if newest is None else [newest]),
                default=None,
            )
            table = [{"user": u, "at": None if s is None else moment(s), "price": p} for u, s, p in rows]
            out = engine.batch(pa.Table.from_pylist(table, INPUT))
            assert Counter(listed(out.rows)) == Counter(expected)
            held = {row[2]: row[3:] for row in listed(real.holding.extract(range(8))["states"])}
            assert held == {user: (n, moment(timers[user]) if user in timers else None) for user, n in counts.items()}
        real.holding.close()


def test_the_key_of_a_timer_that_fails_is_found():
    def fails(user, rows, state):
        if state.timed_out and user == "bob":
            raise ZeroDivisionError("bob")
        state.update(n=1)

    operator = MapWithState(INPUT, ["user"], fails, "n int", "n int", time="at", timeout="1s")
    state = NaiveState(operator)
    rows = pa.Table.from_pylist(batch(*((user, 0, 0) for user in ("ann", "bob", "cy", "dee"))), INPUT)
    keys = operator.key.encode([rows["user"]])
    tables = state.begin()
    operator.run(rows, keys, tables, Now(0))
    state.commit(tables)
    now = Now(1, int(moment(60).timestamp() * 1e6))
    nothing = rows[:0]
    none = operator.key.encode([nothing["user"]])
    with pytest.raises(ZeroDivisionError, match="bob"):
        operator.run(nothing, none, state.begin(), now)
    (culprit,) = Culprits(operator, nothing, none, state.begin, now)
    assert culprit.timers[0].to_pylist() == [{"user": "bob", "timer": moment(1)}]


def test_an_exception_of_the_function_ends_the_query_with_its_traceback_and_bin():
    def picky(user, rows, state):
        for row in rows:
            if row.price == 13:
                raise ArithmeticError("thirteen is unlucky")
        yield (user,)

    with me.testing.harness(visits().map_with_state(picky, "n int", "user string")) as h:
        h.batch(batch(("ann", 0, 1)))
        with pytest.raises(QueryFailed, match=r"in bin \d+ failed in version 1: ArithmeticError: thirteen"):
            h.batch(batch(("ann", 0, 1), ("bob", 0, 13)))
        assert "in picky" in str(h.query.exception())


# --- slips ---------------------------------------------------------------------------------------


def nothing(key, rows, state):
    return None


def batches_in(key, rows: pa.RecordBatch, state):
    return None


def parts_in(key, rows: "Iterator[pd.DataFrame]", state):  # noqa: F821
    return None


def declared(function=nothing, state="n int", output="n int", input=INPUT, **options):
    return MapWithState(input, ["user"], function, state, output, **options)


REFUSALS = {
    "map_with_state takes a function f(key, rows, state), not 3": lambda: declared(3),
    "the function '<lambda>' of map_with_state takes (rows, state); write it as f(key, rows, state)":
        lambda: declared(lambda rows, state: None),
    "takes (key, rows, state, now)": lambda: declared(lambda key, rows, state, now: None),
    "state declares no columns; write them": lambda: declared(state=""),
    "output declares no columns": lambda: declared(output=" "),
    "the state has a column 'user', which is one of the key's": lambda: declared(state="user string"),
    "a state column is called 'exists', a word of the state itself; rename it": lambda: declared(state="exists int"),
    "a state column is called 'update'": lambda: declared(state="update int"),
    "column '__timer' cannot be in table 'states'": lambda: declared(state="__timer int", time="at"),
    "column 'tags' of type list<element: string> cannot be state": lambda: declared(state="tags array<string>"),
    "'strin' in the schema 'n strin' is no type": lambda: declared(state="n strin"),
    "rows is 'polars'; it is one of plain, pandas, arrow": lambda: declared(rows="polars"),
    "rows is 3": lambda: declared(rows=3),
    "annotates rows with pyarrow.lib.RecordBatch, in which rows do not come; write one of list, pd.DataFrame, pa.Table":
        lambda: declared(batches_in),
    "annotates rows with Iterator[pd.DataFrame], in which": lambda: declared(parts_in),
    "timeout is 'soon'; write a duration": lambda: declared(timeout="soon"),
    "timeout is '0s'; it must be above 0": lambda: declared(timeout="0s"),
    "the stream has 0 timestamp columns (none); add one, such as":
        lambda: declared(input=INPUT.remove(1), timeout="1s"),
    "the stream has 2 timestamp columns (at, to); name one with time=":
        lambda: declared(input=INPUT.append(pa.field("to", pa.timestamp("us"))), timeout="1s"),
    "time names the column 'price' of type int64": lambda: declared(time="price", timeout="1s"),
    "time names the column 'when'; the columns are user, at, price": lambda: declared(time="when"),
    "lateness is a length of event time; name its column": lambda: declared(lateness="1s"),
    "the key names the column": lambda: MapWithState(INPUT, ["usr"], nothing, "n int", "n int"),
    "the function 'nothing' of flat_map takes (key, rows, state); write it as f(row)":
        lambda: FlatMap(INPUT, ["user"], nothing, "n int"),
    "flat_map takes a function f(row), not a text": lambda: FlatMap(INPUT, ["user"], "split", "n int"),
    "the function 'nothing' of fold takes (key, rows, state); write it as f(rows, state)":
        lambda: Fold(INPUT, ["user"], nothing, "n int", "n int"),
    "rows is 'plain'; it is one of arrow, pandas":
        lambda: Fold(INPUT, ["user"], lambda rows, state: None, "n int", "n int", rows="plain"),
}  # fmt: skip


@pytest.mark.parametrize("sentence", REFUSALS)
def test_a_slip_is_refused_when_it_is_declared_in_one_sentence(sentence):
    with pytest.raises(InvalidOption) as refused:
        REFUSALS[sentence]()
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)


def test_functions_whose_arguments_cannot_be_told_and_those_that_take_any_are_taken():
    for function in (max, lambda *each: None, lambda key, rows, state, more=1: None, print):
        declared(function)


ANSWERS = {
    "returned 7; yield rows, or return a list of them": lambda state: 7,
    "returned a text; yield rows": lambda state: "ann",
    "returned an object; yield rows, or return a list": lambda state: {"n": 1, "name": "x"},
    "gave 1 where a row belongs; yield rows, or return a list of them, each a dictionary or a tuple of n, name":
        lambda state: (1, "x"),
    "gave a row of 1 value; its columns are n, name": lambda state: [(1,)],
    "gave a row of 3 values": lambda state: [(1, "x"), [1, "x", 2]],
    "gave a row without 'name'; its columns are n, name": lambda state: [{"n": 1}],
    "gave a row with 'm', which is not declared": lambda state: [{"n": 1, "name": "x", "m": 2}],
    "gave a value of type str in column 'n' that cannot become int32": lambda state: [(1, "x"), ("2", "y")],
    "gave a value of type float in column 'n' that cannot become int32": lambda state: [{"n": 1.5, "name": "x"}],
    "gave a value of type int in column 'name' that cannot become string": lambda state: [(1, 2)],
    "gave a value of type int in column 'n' that cannot become int32": lambda state: [(2**40, "x")],
    "gave null in column 'name', which is declared as not null": lambda state: [(1, None)],
    "returned column 'n' as string, which cannot become int32":
        lambda state: pd.DataFrame({"n": ["a"], "name": ["x"]}),
    "returned no column 'name'": lambda state: [pa.table({"n": [1]})],
    "returned a column 'm' that is not declared": lambda state: pa.table({"n": [1], "name": ["x"], "m": [1]}),
    "gave a value of type datetime in column 'n'": lambda state: [(START, "x")],
    "set a value of type str in column 'k' that cannot become int64": lambda state: state.update(k="x"),
    "the state has no column 'm' to update; its columns are k, text": lambda state: state.update(m=1),
    "the state has no column 'm'; its columns are k, text": lambda state: state.m,
    "state.k cannot be assigned to; write state.update(k=..)": lambda state: setattr(state, "k", 3),
    "asks for a timer, and timers are in event time; name its column with time=": lambda state: state.timer(START),
    "asks for a timer, and timers are in": lambda state: state.cancel_timer(),
}  # fmt: skip


@pytest.mark.parametrize("sentence", ANSWERS)
def test_what_a_function_gives_and_sets_is_held_against_what_it_declares(sentence):
    def slip(user, rows, state):
        return ANSWERS[sentence](state)

    operator = declared(slip, "k long, text string", "n int, name string not null")
    with pytest.raises((MeanderError, AttributeError)) as refused:
        Engine(operator).batch(pa.Table.from_pylist(batch(("ann", 0, 1)), INPUT))
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)
    if sentence.startswith(("gave", "returned", "set", "asks")):
        assert str(refused.value).startswith("the function 'slip' of map_with_state ")


@pytest.mark.parametrize(
    ("at", "options", "sentence"),
    [
        (START, {"timeout": "1s"}, "but timeout= sets those of all keys"),
        ("soon", {"time": "at"}, "a timer is set for a datetime, not for a text"),
        (5, {"time": "at"}, "a timer is set for a datetime, not for 5"),
        (pd.NaT, {"time": "at"}, "a timer is set for a datetime, not for NaT"),
    ],
)
def test_timers_that_make_no_sense(at, options, sentence):
    operator = declared(lambda user, rows, state: state.timer(at), **options)
    with pytest.raises(InvalidOption, match=sentence):
        Engine(operator).batch(pa.Table.from_pylist(batch(("ann", 0, 1)), INPUT))


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        ("int", 1.5),
        ("long", float("nan")),
        ("long", np.float64(0.5)),
        ("long", Decimal("1.5")),
        ("long", "7"),
        ("timestamp", 7),
        ("timestamp", 1e9),
        ("timestamp", "2026-01-01"),
        ("date", 7),
        ("date", START),
        ("boolean", 1),
        ("string", 1),
        ("double", "1"),
        ("decimal(4,2)", Decimal("1.234")),
    ],
)
def test_no_value_becomes_another_one_on_its_way(type_, value):
    for function in (lambda u, r, s: [(value,)], lambda u, r, s: s.update(n=value)):
        operator = declared(function, f"n {type_}", f"n {type_}")
        with pytest.raises(
            MeanderError, match=f"a value of type {type(value).__name__} in column 'n' that cannot become"
        ):
            Engine(operator).batch(pa.Table.from_pylist(batch(("ann", 0, 1)), INPUT))


def test_what_can_be_turned_into_the_declared_type_is():
    def mixed(user, rows, state):
        yield {"x": 1, "n": np.int64(3)}
        yield pd.DataFrame({"n": [2**60 + 1], "x": [0.5]})
        yield pd.DataFrame({"n": [np.nan], "x": [1]})
        yield pa.record_batch({"n": pa.array([4], pa.int8()), "x": [None]})
        yield 5, 2
        yield 6.0, True

    out = Engine(declared(mixed, output="n long, x double")).batch(pa.Table.from_pylist(batch(("ann", 0, 1)), INPUT))
    assert set(listed(out.rows)) == {(3, 1.0), (2**60 + 1, 0.5), (None, 1.0), (4, None), (5, 2.0), (6, 1.0)}


def test_a_query_may_go_on_with_another_function_but_not_with_other_state(tmp_path):
    first = visits().map_with_state(counted, "n long", "user string, n long")
    with me.testing.harness(first, checkpoint=tmp_path / "ck") as h:
        h.batch(batch(("ann", 0, 1)))
    again = visits().map_with_state(lambda user, rows, state: [(user, state.n)], "n long", "user string, n long")
    with me.testing.harness(again, checkpoint=tmp_path / "ck") as h:
        assert h.batch(batch(("ann", 0, 1))) == [{"user": "ann", "n": 1}]
    for other in (
        visits().map_with_state(counted, "n int", "user string, n long"),
        visits().map_with_state(counted, "n long", "user string, n long", time="at"),
    ):
        with pytest.raises(me.CheckpointError):
            me.testing.harness(other, checkpoint=tmp_path / "ck")


# --- flat_map ------------------------------------------------------------------------------------


def test_flat_map_gives_any_number_of_rows_for_each_and_a_chain_goes_on():
    def items(row):
        for number in range(row.price):
            yield f"{row.user}-{number % 2}", number

    rows = [[("ann", 0, 3), ("bob", 0, 0)], [("ann", 0, 2), ("bob", 0, 1)]]
    given = [(f"{u}-{n % 2}", n) for some in rows for u, _, price in some for n in range(price)]
    stream = visits().flat_map(items, "item string, number int")
    with me.testing.harness(stream) as h:
        for some in rows:
            h.batch(batch(*some))
            h.rescale(3)
        assert Counter((row["item"], row["number"]) for row in h.output()) == Counter(given)
    with me.testing.harness(stream.key_by("item").count()) as h:
        for some in rows:
            h.batch(batch(*some))
            h.restart()
        assert {row["item"]: row["count"] for row in h.latest("item")} == Counter(item for item, _ in given)
    source = me.stream(me.testing.source(DDL))
    with me.testing.harness(source.key_by().flat_map(lambda row: [row, None][row.price :][:1], DDL)) as h:
        assert len(emitted(h)) == 0
        assert h.batch(batch(("ann", 0, 0))) == batch(("ann", 0, 0))


# --- pandas in fold and in operators -------------------------------------------------------------


def totals(rows: pd.DataFrame, state):
    total = rows.groupby("__group")["price"].sum() + state["total"].fillna(0)
    return pd.DataFrame({"total": total}), state.assign(total=total)[["user", "total"]]


def totals_in_arrow(rows, state):
    assert isinstance(rows, pa.Table)
    return totals(rows.to_pandas(), state.to_pandas())


@pytest.mark.parametrize("function", [totals, totals_in_arrow])
def test_fold_takes_and_gives_frames(function):
    counts, expected = Counter(), []
    for rows in BATCHES:
        for user, _, price in rows:
            counts[user] += price
        expected.append({user: counts[user] for user, _, _ in rows})
    with me.testing.harness(visits().fold(function, "total long", "user string, total long")) as h:
        assert [{r["user"]: r["total"] for r in h.batch(batch(*rows))} for rows in BATCHES] == expected


def test_large_numbers_beside_nulls_are_not_rounded_on_their_way_through_pandas():
    def keep(rows, state):
        assert isinstance(state, pd.DataFrame)
        return state.assign(n=state["n"].fillna(2**60 + 1))[["n"]], state

    with me.testing.harness(visits().fold(keep, "n long", "user string, n long", rows="pandas")) as h:
        h.batch(batch(("ann", 0, 1)))
        assert {row["n"] for row in h.batch(batch(("ann", 0, 1), ("bob", 0, 1)))} == {2**60 + 1, None}


class Silent(me.Operator):
    input = DDL
    output = "user string, since timestamp"
    time = "at"
    state = {"last": me.KeyedTable("user string", "at timestamp"), "alarms": me.Timers("user string")}  # noqa: RUF012
    rows = "pandas"

    def on_batch(self, rows, state, now):
        assert isinstance(rows, pd.DataFrame)
        state["last"].put(rows["user"], rows)
        state["alarms"].set(rows["at"] + pd.Timedelta(seconds=30), rows["user"])

    def on_time(self, due, state, now):
        alarms = due["alarms"]
        since = state["last"].get(alarms[["user"]])["at"].to_pandas()
        return pd.DataFrame({"user": alarms["user"], "since": since})[
            since + pd.Timedelta(seconds=30) == alarms["time"]
        ]


def test_an_operator_takes_and_gives_frames():
    with me.testing.harness(visits().process(Silent)) as h:
        h.batch(batch(("ann", 0, 1), ("bob", 5, 1)))
        h.batch(batch(("ann", 20, 1), ("cy", 45, 1)))
        assert h.idle() == [{"user": "bob", "since": moment(5)}]

    class Annotated(Silent):
        rows = None

        def on_batch(self, rows: pd.DataFrame, state, now):
            super().on_batch(rows, state, now)

    with me.testing.harness(visits().process(Annotated)) as h:
        h.batch(batch(("ann", 0, 1), ("bob", 35, 1)))
        assert h.idle() == [{"user": "ann", "since": moment(0)}]

    class Wrong(Silent):
        rows = "plain"

    with pytest.raises(InvalidOption, match="rows is 'plain'; it is one of arrow, pandas"):
        visits().process(Wrong)


WITHOUT_PANDAS = """
import sys

class Missing:
    def find_spec(self, name, *more):
        if name.partition(".")[0] == "pandas":
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Missing())
import meander as me
keyed = me.stream(me.testing.source("user string, n long")).key_by("user")
plain = keyed.map_with_state(lambda user, rows, state: [(user, len(rows))], "n long", "user string, n long")
with me.testing.harness(plain) as h:
    print(h.batch([{"user": "ann", "n": 1}]))
try:
    keyed.map_with_state(lambda user, rows, state: None, "n long", "n long", rows="pandas")
except me.InvalidOption as refused:
    print(refused)
"""


def test_pandas_is_wanted_only_where_it_is_asked_for():
    done = subprocess.run([sys.executable, "-c", WITHOUT_PANDAS], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        "[{'user': 'ann', 'n': 1}]",
        "the function '<lambda>' of map_with_state takes rows as pandas, which is not installed; install it, or take "
        "arrow",
    ]


# --- travel --------------------------------------------------------------------------------------

NOTEBOOK = """
import pickle, sys
import pandas as pd
from pyspark import cloudpickle
from meander.operators.map_state import MapWithState
from meander.route.schema import schema

FACTOR = 10

def scaled(rows):
    return FACTOR * sum(row.price for row in rows)

def total(user, rows, state):
    state.update(n=(state.n or 0) + scaled(rows))
    yield user, state.n

for function in (total, lambda user, rows, state: [(user, scaled(rows))]):
    operator = MapWithState(schema("user string, price bigint"), ["user"], function, "n long", "user string, n long")
    sys.stdout.write(cloudpickle.dumps(operator).hex() + "\\n")
"""


def test_functions_of_a_notebook_and_lambdas_travel_to_processes_that_do_not_have_them():
    pytest.importorskip("pyspark")
    from pyspark import cloudpickle

    sent = subprocess.run([sys.executable, "-c", NOTEBOOK], capture_output=True, text=True, check=True).stdout
    rows = pa.table({"user": ["ann", "bob", "ann"], "price": [1, 2, 3]})
    for text in sent.split():
        operator = cloudpickle.loads(bytes.fromhex(text))
        assert set(listed(Engine(operator).batch(rows).rows)) == {("ann", 40), ("bob", 20)}
