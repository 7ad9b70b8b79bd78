"""Queries with branches without Spark: what they are to a checkpoint, rows by source, and what goes wrong."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import datetime, timedelta

import pyarrow as pa
import pytest

import meander as me
from meander.engine.spark.nodes import Branch
from meander.errors import ChangedQuery, InvalidOption
from meander.testing import harness, source

START = datetime(2026, 1, 1)
COLUMNS = "user string, n bigint, at timestamp"


def row(user, n, second):
    return {"user": user, "n": n, "at": START + timedelta(seconds=second)}


def total(stream):
    return stream.key_by("user").aggregate(n=("sum", "n"), at=("max", "at"))


def paired(left, right, **options):
    return left.join(right, on="user", **{"within": "1 minute", "lateness": "1 hour"} | options)


def test_a_chain_is_to_a_checkpoint_what_it_was_and_a_graph_says_where_rows_come_from():
    one, two = (me.stream(source(COLUMNS)) for _ in range(2))
    chain = total(one).key_by("user").count().flow.graph
    assert all("inputs" not in each for each in chain.fingerprints)
    joined = paired(one, two).key_by("user").count().flow.graph
    assert [len(links) for links in joined.links] == [1, 1], "two sources come as one stream"
    assert all("inputs" not in each for each in joined.fingerprints)
    graph = paired(total(one), total(two).union(one)).flow.graph
    assert [each.get("inputs") for each in graph.fingerprints] == [
        None, [["source 1"]], [["operator 0"], ["operator 1", "source 0"]]
    ]  # fmt: skip


def test_operators_and_sources_that_are_used_twice_are_there_once():
    orders = me.stream(source(COLUMNS))
    sums = total(orders)
    self_joined = paired(sums, sums.select("user", "at")).select("user", "n", "at")
    assert [node.operator.name for node in paired(self_joined, sums).flow.nodes] == ["aggregate", "join", "join"]
    assert len(paired(total(orders), total(orders)).flow.sources) == 1
    with harness(self_joined.key_by("user").count()) as h:
        h.batch([row("ann", 1, 0)])
        assert h.batch([row("ann", 1, 1)]) == [{"user": "ann", "count": 4}]


def test_another_way_of_the_rows_needs_another_checkpoint(tmp_path):
    sources = [source(COLUMNS) for _ in range(2)]
    one, two = (total(me.stream(each)) for each in sources)
    place = str(tmp_path / "ck")
    with harness(one.union(two).key_by("user").count(), checkpoint=place) as h:
        h.batch(left=[row("ann", 1, 0)], right=[row("ann", 2, 0)])
    with pytest.raises(
        ChangedQuery,
        match="operator 2 .count. took rows of operator 0 and operator 1 and now takes rows "
        "of operator 0 and operator 1 and source 0; start with a new checkpoint",
    ):
        harness(one.union(two).union(me.stream(sources[0])).key_by("user").count(), checkpoint=place)  # fmt: skip
    with harness(one.union(two).key_by("user").count(), checkpoint=place) as h:
        assert Counter(each["count"] for each in h.batch(left=[row("ann", 1, 1)])) == {3: 1}


def test_rows_come_by_source_and_are_counted_once():
    sources = [source(COLUMNS) for _ in range(3)]
    web, shop, other = map(me.stream, sources)
    stream = total(web.union(shop)).union(total(other)).union(web).key_by("user").aggregate(sum=("sum", "n"))
    with harness(stream) as h:
        out = h.batch({sources[0]: [row("ann", 1, 0)], sources[1]: [row("ann", 2, 0)], sources[2]: [row("ann", 4, 0)]})
        assert out == [{"user": "ann", "sum": 1 + 2 + 4 + 1}]
        assert h.query.last_progress.rows == 4, "the union of two sources is one source, beside web alone"
        with pytest.raises(InvalidOption, match="the stream does not read 'web'; give rows by what me.testing.source"):
            h.batch({"web": []})
        with pytest.raises(InvalidOption, match=r"this stream has 3 sources; give rows by source: \{source: rows\}"):
            h.batch([row("ann", 1, 0)])
        with pytest.raises(InvalidOption, match="this stream has 3 sources"):
            h.batch(left=[row("ann", 1, 0)])
        h.batch()
    with harness(total(web)) as h, pytest.raises(InvalidOption, match="this stream has one input; give rows alone"):
        h.batch(left=[])


def test_what_one_branch_cannot_use_is_a_dead_letter_of_it_alone():
    rows = source(COLUMNS)
    orders = me.stream(rows)
    with harness(orders.key_by("n").count("k").key_by("k").connect(total(orders).key_by("n")).process(Both)) as h:
        h.batch([row(None, 1, 0), row("ann", 1, 0)])
        assert [each["reason"] for each in h.dead()] == ["the key column user is null"]
        assert [sum(each[name] for each in h.emitted()) for name in ("k", "n")] == [1, 1]
        assert h.query.last_progress.rows == 2


class Both(me.Operator):
    """How many rows came along each way."""

    input = ("k bigint", "n bigint")
    output = "k bigint, n bigint"

    def on_batch(self, left, right, state, now):
        return pa.table({"k": pa.array([len(left)], pa.int64()), "n": pa.array([len(right)], pa.int64())})


def test_a_join_waits_for_the_output_that_is_behind():
    web, shop = source(COLUMNS), source(COLUMNS)
    both = paired(total(me.stream(web)), total(me.stream(shop)), lateness="0s", how="full").select(
        "user", "n", "n_right"
    )
    with harness(both) as h:
        h.batch(left=[row("ann", 1, 1000)])
        assert h.batch(right=[row("ann", 2, 10)]) == []  # far behind, and not late
        assert h.batch(left=[row("bob", 3, 20)]) == [], "the watermark is at 10 s"
        assert h.batch(right=[row("bob", 4, 30)]) == [{"user": "bob", "n": 3, "n_right": 4}]
        assert h.late() == []
        ended = h.end()
        assert Counter((each["user"], each["n"], each["n_right"]) for each in ended) == {
            ("ann", 1, None): 1, ("ann", None, 2): 1
        }  # fmt: skip


def test_windows_that_close_while_nothing_comes_reach_the_operators_behind_them():
    web, shop = source(COLUMNS), source(COLUMNS)
    closed = [
        me.stream(each).key_by("user").window("at", "10s", emit="final").aggregate(n=("sum", "n"))
        for each in (web, shop)
    ]
    both = closed[0].join(closed[1], on=["user", "window_start"], window="10s", time="window_end", how="left")
    with harness(both.select("user", "n", "n_right"), idle_time="wall") as h:
        assert h.batch(left=[row("ann", 1, 0), row("bob", 5, 1)], right=[row("ann", 2, 3)]) == []
        assert h.idle(60) == [{"user": "ann", "n": 1, "n_right": 2}]
        assert h.end() == [{"user": "bob", "n": 5, "n_right": None}]


REFUSALS = {
    "a union needs the same columns": lambda one: total(one).union(one.key_by("user").count()),
    "a union of what operators emit goes to an operator, not to a sink":
        lambda one: total(one).union(one).start("nowhere", me.sinks.memory()),
    "there is nothing to run yet": lambda one: one.union(one).start("nowhere", me.sinks.memory()),
    "the keys to join on are (string) and (int64)": lambda one: total(one).join(one, on={"user": "n"}, within="1s"),
    "there is no column 'price' to key by; there are: user, n, at": lambda one: total(one).union(one).key_by("price"),
    "one source is a DataFrame of Spark and the other a schema alone; take two of one kind":
        lambda one: paired(total(one), spark_like(one)),
}  # fmt: skip


def spark_like(stream):
    """A stream whose source is not brought by a test."""
    return replace(stream, branches=(Branch(object()),))


@pytest.mark.parametrize("sentence", REFUSALS)
def test_what_cannot_be_is_refused_in_one_sentence(sentence):
    with pytest.raises(InvalidOption) as refused:
        REFUSALS[sentence](me.stream(source(COLUMNS)))
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)
