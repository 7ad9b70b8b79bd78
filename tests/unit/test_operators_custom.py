"""Operators of the user's own: what they are given, what they may return, and what is refused."""

import datetime as dt

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from meander.errors import InvalidOption, MeanderError
from meander.operators.culprits import Culprits
from meander.operators.custom import Custom, paired
from meander.operators.operator import Now, Operator
from meander.route.schema import schema
from meander.state.declare import KeyedTable, Multimap, Timers
from naive import Engine, RealState, listed

DDL = "user string, ts timestamp, page string, more int"
INPUT = schema(DDL)


def rows(ddl, *values):
    kinds = schema(ddl)
    columns = list(zip(*values, strict=True)) or [[]] * len(kinds)
    return pa.table([pa.array(list(c), f.type) for c, f in zip(columns, kinds, strict=True)], schema=kinds)


def engine_of(operator, directory, **options):
    return Engine(operator, RealState(operator, directory), **options)


class LastSeen(Operator):
    input = "user string, ts timestamp, page string"
    output = "user string, page string, before string"
    state = {"last": KeyedTable(key="user string", value="ts timestamp, page string")}  # noqa: RUF012
    time = "ts"

    def on_batch(self, rows, state, now):
        assert isinstance(rows, pa.RecordBatch)
        assert rows.schema.names == ["user", "ts", "page"]
        before = state["last"].get(rows["user"])
        state["last"].put(rows["user"], rows)
        return pa.table({"page": rows["page"], "user": rows["user"], "before": before["page"]})


def test_what_is_put_is_there_in_the_next_batch(tmp_path):
    engine = engine_of(Custom(LastSeen, INPUT, ["user"]), tmp_path)
    out = engine.batch(rows(DDL, ("ann", 1, "home", 0), ("bob", 2, "cart", 0)))
    assert sorted(listed(out.rows)) == [("ann", "home", None), ("bob", "cart", None)]
    assert out.newest == 2
    out = engine.batch(rows(DDL, ("ann", 9, "later", 0), ("ann", 5, "cart", 0)))
    assert listed(out.rows) == [("ann", "cart", "home"), ("ann", "later", "home")]
    out = engine.batch(rows(DDL, ("ann", 3, "x", 0)))
    assert listed(out.rows) == [("ann", "x", "later")]


class Alarm(Operator):
    """Says what a user looked at last, three microseconds after every row."""

    input = "user string, ts timestamp, page string"
    output = "user string, page string"
    state = {"alarm": Timers(key="user string", payload="page string")}  # noqa: RUF012
    time = "ts"
    lateness = 2e-6
    fired = ()

    def on_batch(self, rows, state, now):
        if "again" in rows["page"].to_pylist():
            raise KeyError("again")
        state["alarm"].set(pc.add(rows["ts"].cast(pa.int64()), 3), rows["user"], rows)

    def on_time(self, due, state, now):
        assert set(due) == {"alarm"}
        times = due["alarm"]["time"].cast(pa.int64()).to_pylist()
        assert times == sorted(times)
        assert max(times) < now.frontier
        if "boom" in due["alarm"]["page"].to_pylist():
            raise ZeroDivisionError("boom")
        return due["alarm"].select(["user", "page"])


def test_timers_fire_once_the_frontier_is_past_them_in_order_of_time_and_once(tmp_path):
    operator = Custom(Alarm, INPUT, ["user"])
    assert operator.lateness == 2
    engine = engine_of(operator, tmp_path)
    assert engine.batch(rows(DDL, ("bob", 5, "b", 0), ("ann", 4, "a", 0), ("cy", 1, "c", 0))).rows is None
    assert engine.frontier is None
    assert engine.batch(rows(DDL, ("dee", 9, "d", 0))).rows is None  # frontier 3; the first is at 4
    assert listed(engine.batch(rows(DDL)).rows) == [("cy", "c")]  # frontier 7; the next is at 7
    assert engine.batch(rows(DDL, ("dee", 12, "d", 0))).rows is None
    out = engine.batch(rows(DDL))  # frontier 10, without rows
    assert listed(out.rows) == [("ann", "a"), ("bob", "b")]
    assert engine.batch(rows(DDL)).rows is None


def test_a_failing_timer_is_found_by_its_key(tmp_path):
    operator = Custom(Alarm, INPUT, ["user"])
    engine = engine_of(operator, tmp_path)
    users = ["ann", "bob", "cy", "dee", "eve"]
    engine.batch(rows(DDL, *((user, 1, "boom" if user == "dee" else "", 0) for user in users)))
    wanted = operator.key.encode([pa.array(["dee", "ann"])]).spread
    now, empty = Now(1, 100), rows(DDL)
    keys = operator.key.encode([empty["user"]])
    with pytest.raises(ZeroDivisionError, match="boom"):
        operator.run(empty, keys, engine.state.begin(), now)
    (dee,) = Culprits(operator, empty, keys, engine.state.begin, now)
    assert (dee.key.spread[0], dee.rows.size) == (wanted[0], 0)
    assert dee.timers[0].to_pylist() == [
        {"timer": "alarm", "user": "dee", "time": dt.datetime.fromtimestamp(4e-6, dt.UTC), "page": "boom"}
    ]
    batch = rows(DDL, ("ann", 200, "again", 0))
    keys = operator.key.encode([batch["user"]])
    (ann,) = Culprits(operator, batch, keys, engine.state.begin, Now(1))
    assert (ann.key.spread[0], ann.rows.tolist(), ann.timers) == (wanted[1], [0], ())
    assert not [*Culprits(operator, rows(DDL, ("ann", 200, "x", 0)), keys, engine.state.begin, Now(1))]


class Local(Operator):
    """NEXMark's third query: who sells something of a category, and what; both sides are kept for ever."""

    input = ("id bigint, name string", "seller bigint, item string")
    output = "name string, item string"
    state = {  # noqa: RUF012
        "person": KeyedTable(key="id bigint", value="name string"),
        "items": Multimap(key="seller bigint", value="item string"),
    }

    def on_batch(self, left, right, state, now):
        known = state["person"].found(left["id"]).to_numpy(zero_copy_only=False)
        new = left.filter(pa.array(~known))
        state["person"].put(new["id"], new.select(["name"]))
        which, items = state["items"].get(new["id"])
        waited = pa.table({"name": new["name"].take(pa.array(which)), "item": items["item"]})
        names = state["person"].get(right["seller"])["name"]
        state["items"].append(right["seller"], right.select(["item"]))
        at_once = pa.table({"name": names, "item": right["item"]}).filter(pc.is_valid(names))
        return pa.concat_tables([waited, at_once])


SIDES = schema("id bigint, name string, state string"), schema("item string, seller bigint")


def both(people, items):
    kinds = pa.schema([*paired(*SIDES), ("key", pa.int64())])
    every = [(0, i, n, "OR", None, None, i) for i, n in people] + [(1, None, None, None, x, s, s) for x, s in items]
    columns = list(zip(*every, strict=True))
    return pa.table([pa.array(list(c), f.type) for c, f in zip(columns, kinds, strict=True)], schema=kinds)


def test_two_inputs_are_kept_and_joined(tmp_path):
    operator = Custom(Local, SIDES, (["id"], ["seller"]))
    assert operator.input.names == ["__input", "left.id", "left.name", "left.state", "right.item", "right.seller"]
    assert operator.key.types == (pa.int64(),)
    engine = engine_of(operator, tmp_path, keyed=["key"], parts=2)
    out = engine.batch(both([(1, "ann")], [("pen", 2), ("ink", 1), ("pad", 2)]))
    assert listed(out.rows) == [("ann", "ink")]
    out = engine.batch(both([(2, "bob"), (1, "ann")], [("cap", 1)]))
    assert sorted(listed(out.rows)) == [("ann", "cap"), ("bob", "pad"), ("bob", "pen")]
    out = engine.batch(both([], [("box", 3), ("jar", 2)]))
    assert listed(out.rows) == [("bob", "jar")]
    assert out.newest is None


def variant(**attributes):
    return type("Mine", (LastSeen,), attributes)


def two(self, left, right, state, now):
    return None


REFUSALS = {
    "3 is no operator": lambda: Custom(3, INPUT, ["user"]),
    "Mine.input is None; write columns": lambda: Custom(variant(input=None), INPUT, ["user"]),
    "Mine.input is 3; write columns": lambda: Custom(variant(input=3), INPUT, ["user"]),
    "Mine.input: ": lambda: Custom(variant(input="user strnig"), INPUT, ["user"]),
    "Mine.input declares 'age', but the columns of the stream are user, ts":
        lambda: Custom(variant(input="user string, age int"), INPUT, ["user"]),
    "Mine.input declares 'page' as int32, but the stream has it as string":
        lambda: Custom(variant(input="page int"), INPUT, ["user"]),
    "Mine.input declares 2 inputs but is given 1": lambda: Custom(variant(input=("a int", "a int")), INPUT, ["user"]),
    "Mine.output is null": lambda: Custom(variant(output=None), INPUT, ["user"]),
    "Mine.output: ": lambda: Custom(variant(output="a"), INPUT, ["user"]),
    "Mine.state is a list": lambda: Custom(variant(state=[]), INPUT, ["user"]),
    "Mine.state['last'] is a text; declare a KeyedTable": lambda: Custom(variant(state={"last": "x"}), INPUT, ["user"]),
    "Mine.state['last'] has the key (page string, n int), but the stream is keyed by (more int32, user string)":
        lambda: Custom(variant(state={"last": KeyedTable("page string, n int", "a int")}), INPUT, ["more", "user"]),
    "Mine.state['last'] has the key (n int)":
        lambda: Custom(variant(state={"last": KeyedTable("n int", "a int")}), INPUT, ["user"]),
    "Mine.state['Last One']: a table cannot be named 'Last One'":
        lambda: Custom(variant(state={"Last One": KeyedTable("user string", "a int")}), INPUT, ["user"]),
    "Mine.time names the column 'when'": lambda: Custom(variant(time="when"), INPUT, ["user"]),
    "Mine.time names the column 'page' of type string": lambda: Custom(variant(time="page"), INPUT, ["user"]),
    "Mine.time is ('ts', 'ts')": lambda: Custom(variant(time=("ts", "ts")), INPUT, ["user"]),
    "Mine.lateness is 'soon'": lambda: Custom(variant(lateness="soon"), INPUT, ["user"]),
    "Mine has no on_batch; write on_batch(self, rows, state, now)":
        lambda: Custom(variant(on_batch=Operator.on_batch), INPUT, ["user"]),
    "Mine.on_batch takes (left, right, state, now); write on_batch(self, rows, state, now)":
        lambda: Custom(variant(on_batch=two), INPUT, ["user"]),
    "Mine has no on_time; write on_time(self, due, state, now)":
        lambda: Custom(variant(state={"t": Timers("user string")}), INPUT, ["user"]),
    "Mine has on_time but declares no Timers": lambda: Custom(variant(on_time=Alarm.on_time), INPUT, ["user"]),
    "Local has two inputs; give the key of each": lambda: Custom(Local, SIDES, ["id"]),
    "the keys of the two inputs of Local are (int64) and (string)":
        lambda: Custom(Local, SIDES, (["id"], ["item"])),
    "the key names the column 'nobody'": lambda: Custom(LastSeen, INPUT, ["nobody"]),
}  # fmt: skip


@pytest.mark.parametrize("sentence", REFUSALS)
def test_what_makes_no_sense_is_refused_when_it_is_declared(sentence):
    with pytest.raises(InvalidOption) as refused:
        REFUSALS[sentence]()
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)


def test_what_is_returned_is_held_against_output(tmp_path):
    for number, (answer, sentence) in enumerate({
        3: "Mine.on_batch returned 3; return a pyarrow Table",
        "less": "Mine.on_batch returned a text",
    }.items()):  # fmt: skip
        mine = variant(on_batch=lambda self, rows, state, now, answer=answer: answer)
        with pytest.raises(MeanderError, match=sentence):
            engine_of(Custom(mine, INPUT, ["user"]), tmp_path / str(number)).batch(rows(DDL, ("ann", 1, "", 0)))
    mine = variant(on_batch=lambda self, rows, state, now: {"user": [1], "page": ["a"], "before": ["a"]})
    with pytest.raises(MeanderError, match="Mine.on_batch returned column 'user' as int64, which cannot become string"):
        engine_of(Custom(mine, INPUT, ["user"]), tmp_path / "types").batch(rows(DDL, ("ann", 1, "", 0)))


def test_rows_come_in_the_declared_types_and_order_or_as_they_are(tmp_path):
    seen = []

    def on_batch(self, rows, state, now):
        seen.append(rows)
        self.kept = True

    wide = {"input": "more bigint, ts timestamp", "state": {}, "output": "", "on_batch": on_batch}
    batch = rows(DDL, ("ann", 7, "x", 3), ("ann", 5, "x", 2), ("ann", 7, "x", 1))
    for ordered, expected in ((True, [2, 1, 3]), (False, [3, 2, 1])):
        mine = variant(**wide, ordered=ordered)()
        engine_of(Custom(mine, INPUT, ["user"]), tmp_path / str(ordered)).batch(batch)
        assert seen[-1]["more"].to_pylist() == expected
        assert seen[-1].schema.types == [pa.int64(), pa.timestamp("us", tz="UTC")]
        assert not hasattr(mine, "kept")


def test_keys_may_go_on_behind_those_of_the_stream(tmp_path):
    class Pages(Operator):
        input = "user string, page string"
        output = "user string, page string"
        state = {"seen": KeyedTable(key="user string, page string", value="yes boolean")}  # noqa: RUF012

        def on_batch(self, rows, state, now):
            new = rows.filter(pc.invert(state["seen"].found(rows)))
            state["seen"].put(new, pa.table({"yes": np.ones(new.num_rows, bool)}))
            return new

    operator = Custom(Pages, INPUT, ["user"])
    assert operator.name == "pages"
    assert operator.tables[0].key.leading == 1
    engine = engine_of(operator, tmp_path)
    assert engine.batch(rows(DDL, ("ann", 1, "a", 0), ("ann", 1, "b", 0))).rows.num_rows == 2
    assert listed(engine.batch(rows(DDL, ("ann", 1, "a", 0), ("ann", 1, "c", 0))).rows) == [("ann", "c")]
