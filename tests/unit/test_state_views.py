"""State as users declare and see it: keyed tables, multimaps and timers."""

import datetime as dt

import numpy as np
import pyarrow as pa
import pytest

from meander.errors import InvalidOption
from meander.state.declare import KeyedTable, Multimap, Timers
from meander.state.holding import Holding
from meander.state.table import Table

BINS = 16
UTC = dt.UTC


def held(path, *declared):
    specs = [spec for name, each in declared for spec in each.specs(name)]
    holding = Holding.open(path, specs, BINS)
    holding.install(range(BINS), [], 0)
    return holding


def committed(holding, tables):
    holding.advance(holding.version + 1, {name: table.delta() for name, table in tables.items()})


def at(second):
    return dt.datetime.fromtimestamp(second, UTC)


def times(*seconds):
    return pa.array([at(each) for each in seconds], pa.timestamp("us", "UTC"))


def test_a_keyed_table_remembers_from_batch_to_batch(tmp_path):
    last = KeyedTable(key="user string", value="ts timestamp, page string")
    holding = held(tmp_path, ("last", last))
    tables = holding.begin()
    view = last.view("last", tables)
    users = pa.array(["ann", "bob"])
    assert view.get(users).to_pylist() == [{"ts": None, "page": None}] * 2
    assert view.found(users).to_pylist() == [False, False]
    view.put(users, pa.record_batch({"ts": times(1, 2), "page": ["home", None]}))
    committed(holding, tables)

    tables = holding.begin()
    view = last.view("last", tables)
    everyone = pa.array(["bob", "cyd", "ann", "bob"])
    assert view.found(everyone).to_pylist() == [True, False, True, True]
    assert view.get(everyone)["page"].to_pylist() == [None, None, "home", None]
    assert view.get(everyone)["ts"].to_pylist() == [at(2), None, at(1), at(2)]
    view.put(pa.array(["ann"]), pa.record_batch({"page": ["shop"]}))
    view.delete(pa.array(["bob", "dan"]))
    committed(holding, tables)

    view = last.view("last", holding.begin())
    assert view.get(users).to_pylist() == [{"ts": at(1), "page": "shop"}, {"ts": None, "page": None}]
    assert view.found(users).to_pylist() == [True, False]


def test_keys_of_several_columns_come_by_name():
    seen = KeyedTable(key="user string, day date", value="n bigint")
    (spec,) = seen.specs("seen", leading=1)
    assert spec.key.leading == 1
    view = seen.view("seen", {"seen": Table(None, spec, BINS)})
    keys = pa.table({"n": [1, 2], "day": pa.array([3, 4], pa.date32()), "user": ["a", "a"], "more": [0, 0]})
    view.put(keys, keys)
    assert view.get(keys.slice(1)).to_pylist() == [{"n": 2}]
    with pytest.raises(InvalidOption, match="keys are one column but user, day are wanted"):
        view.get(pa.array(["a"]))
    with pytest.raises(InvalidOption, match="keys have no column 'day'"):
        view.get(keys.select(["user"]))
    with pytest.raises(InvalidOption, match="values have columns user; give some of n"):
        view.put(keys, keys.select(["user"]))
    with pytest.raises(InvalidOption, match="1 value of 'n' are given for 2 keys"):
        view.put(keys, keys.slice(1).select(["n"]))
    with pytest.raises(InvalidOption, match="keys are dict; give an Array"):
        view.get({"user": ["a"]})


def test_keys_and_values_are_cast_where_nothing_is_lost():
    counts = KeyedTable(key="id bigint", value="n bigint")
    view = counts.view("c", {"c": Table(None, counts.specs("c")[0], BINS)})
    view.put(pa.array([1, 2], pa.int32()), pa.array([10, 20], pa.int16()))
    assert view.get(pa.array([2, 1]))["n"].to_pylist() == [20, 10]
    with pytest.raises(InvalidOption, match="column 'n' is double, and state of type int64 is wanted"):
        view.put(pa.array([1]), pa.array([1.5]))


def test_the_last_of_equal_keys_counts():
    counts = KeyedTable(key="id bigint", value="n bigint, s string")
    view = counts.view("c", {"c": Table(None, counts.specs("c")[0], BINS)})
    view.put(pa.array([1, 1, 1]), pa.table({"n": [1, 2, 3], "s": ["a", "b", "c"]}))
    assert view.get(pa.array([1])).to_pylist() == [{"n": 3, "s": "c"}]


def test_declarations_refuse_what_cannot_be():
    with pytest.raises(InvalidOption, match="strnig"):
        KeyedTable(key="user strnig", value="n bigint")
    with pytest.raises(InvalidOption, match="column 'x' of type double cannot be part of a key"):
        KeyedTable(key="x double", value="n bigint")
    with pytest.raises(InvalidOption, match="time is 'when', no column of the value"):
        Multimap(key="user string", value="ts timestamp", time="when")
    with pytest.raises(InvalidOption, match="cannot be in order of 'page', which is string"):
        Multimap(key="user string", value="page string", time="page")
    with pytest.raises(InvalidOption, match="keep the column name 'time' for when they fire"):
        Timers(key="time timestamp")


def test_a_multimap_keeps_rows_by_time_and_forgets_old_ones(tmp_path):
    bids = Multimap(key="auction bigint", value="ts timestamp, price double", time="ts")
    holding = held(tmp_path, ("bids", bids))
    tables = holding.begin()
    view = bids.view("bids", tables)
    view.append(pa.array([7, 8, 7, 7]), pa.table({"ts": times(5, 1, 2, 9), "price": [0.5, 0.1, None, 0.9]}))
    committed(holding, tables)

    tables = holding.begin()
    view = bids.view("bids", tables)
    view.append(pa.array([7]), pa.table({"ts": times(3), "price": [0.3]}))
    which, rows = view.get(pa.array([8, 9, 7]))
    assert which.tolist() == [0, 2, 2, 2, 2]
    assert rows["price"].to_pylist() == [0.1, None, 0.3, 0.5, 0.9]
    assert view.counts(pa.array([7, 8, 9])).to_pylist() == [4, 1, 0]
    assert view.drop_before(5_000_000) == 3
    assert view.drop_before(5_000_000) == 0
    committed(holding, tables)

    tables = holding.begin()
    view = bids.view("bids", tables)
    which, rows = view.get(pa.array([7, 8]))
    assert (which.tolist(), rows["price"].to_pylist()) == ([0, 0], [0.5, 0.9])
    assert holding.bases["bids"].rows_of(range(BINS)).sum() == 2
    view.delete(pa.array([7, 7, 8]))
    committed(holding, tables)
    assert holding.rows().sum() == 0


def test_timers_fire_once_in_order_of_time_and_move_with_their_bin(tmp_path):
    reminders = Timers(key="user string", payload="what string")
    holding = held(tmp_path / "a", ("reminders", reminders))
    tables = holding.begin()
    view = reminders.view("reminders", tables)
    view.set(times(30, 10, 20, 10), pa.array(["ann", "bob", "ann", "ann"]), pa.array(["c", "a", "b", "x"]))
    view.set(10_000_000, pa.array(["ann"]), pa.array(["y"]))
    view.cancel(times(20, 99), pa.array(["ann", "ann"]))
    committed(holding, tables)

    other = Holding.open(tmp_path / "b", holding.specs, BINS)
    other.install(range(BINS), [holding.extract(range(BINS))], holding.version)
    tables = other.begin()
    view = reminders.view("reminders", tables)
    assert view.due(10_000_000).num_rows == 0
    due = view.take(30_000_000)
    assert due.to_pylist() == [
        {"user": "ann", "time": at(10), "what": "y"},
        {"user": "bob", "time": at(10), "what": "a"},
    ]
    assert view.take(30_000_000).num_rows == 0
    committed(other, tables)
    assert reminders.view("reminders", other.begin()).due(2**62)["what"].to_pylist() == ["c"]


def test_timers_without_payload():
    timers = Timers(key="user bigint")
    view = timers.view("t", {"t": Table(None, timers.specs("t")[0], BINS)})
    view.set(np.array([3, 1, 2]), pa.array([1, 2, 3]))
    assert view.due(3)["user"].to_pylist() == [2, 3]
    with pytest.raises(InvalidOption, match="2 times are given for 1 key"):
        view.set(np.array([3, 1]), pa.array([1]))
