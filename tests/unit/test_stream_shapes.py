"""What is selected of a stream without Spark, and unions; and what only Spark can do, refused in one sentence."""

import random
from collections import Counter

import pyarrow as pa
import pytest

import meander as me
from in_process import fed
from meander.errors import InvalidOption
from meander.expressions import is_column

ORDERS = "user string, item string, price bigint"


class Column:
    """Looks like an expression of Spark from outside: there is none without a session."""

    __module__ = "pyspark.sql.column"

    def __str__(self):
        return "Column<'upper(item) AS loud'>"


def orders():
    return me.stream(me.testing.source(ORDERS))


def timed_orders():
    return me.stream(me.testing.source(f"{ORDERS}, ts timestamp"))


def some(count, seed=1):
    rng = random.Random(seed)
    return [{"user": rng.choice("abc"), "item": rng.choice("xyz"), "price": rng.randrange(9)} for _ in range(count)]


def test_what_is_selected_of_an_operators_output_reaches_the_sink_alone():
    rows = some(40)
    stream = orders().key_by("user").aggregate(n="count", top=("max", "price")).select("top", "user")
    with me.testing.harness(stream) as h:
        out = h.batch(rows)
        assert [list(row) for row in out] == [["top", "user"]] * len(out)
        wanted = {user: max(row["price"] for row in rows if row["user"] == user) for user in "abc"}
        assert {row["user"]: row["top"] for row in out} == wanted
        assert h.query.last_progress.emitted == 3
        h.restart()
        assert h.batch([{"user": "a", "item": "x", "price": 100}]) == [{"top": 100, "user": "a"}]


def test_the_next_operator_knows_what_is_selected_and_no_more():
    """The rows of dedup are those columns, so two orders of one user and item are one."""
    rows = some(60, seed=2)
    with me.testing.harness(orders().select("user", "item").key_by("user", "item").dedup()) as h:
        out = h.batch(rows)
    assert sorted(map(str, out)) == sorted({str({"user": row["user"], "item": row["item"]}) for row in rows})
    counted = orders().key_by("user", "item").count().select("user", "count")
    assert counted.schema.names == ["user", "count"]
    with pytest.raises(InvalidOption, match="there is no column 'item' to key by; there are: user, count"):
        counted.key_by("item")
    with me.testing.harness(counted.key_by("user").aggregate(most=("max", "count"))) as h:
        out = h.batch(rows)
    of = Counter((row["user"], row["item"]) for row in rows)
    assert {row["user"]: row["most"] for row in out} == {
        user: max(n for (each, _), n in of.items() if each == user) for user in "abc"
    }


def test_one_selection_after_another():
    stream = orders().select("user", "price").select("price", "user").key_by("user").count().select("user", "count")
    assert stream.select("count").schema.names == ["count"]
    with me.testing.harness(stream.select("count")) as h:
        assert h.batch([{"user": "a", "price": 1}, {"user": "a", "price": 2}]) == [{"count": 2}]


REFUSALS = {
    "there is no column 'cost' to select; there are: user, item, price": lambda: orders().select("user", "cost"),
    "the column 'user' is selected twice": lambda: orders().select("user", "user"),
    "nothing is selected; name columns": lambda: orders().select(),
    "there is no column 'item' to select; there are: user, count":
        lambda: orders().key_by("user").count().select("item"),
    "the column 'loud' is an expression of Spark; in a test without Spark, select columns by name":
        lambda: orders().select("user", Column()),
    "the column 'loud' is an expression of Spark": lambda: orders().with_columns(loud=Column()),
    'the column \'loud\' is 3; give an expression such as F.col("price") * 2': lambda: orders().with_columns(loud=3),
    "where takes an expression of Spark, and a test without Spark has none": lambda: orders().where("price > 5"),
    "the aggregate 'total' takes an expression of Spark; in a test without Spark, aggregate a column":
        lambda: orders().key_by("user").aggregate(total=("sum", Column())),
    'write its function and what it takes as a pair: total=("sum", F.col("price") * 2)':
        lambda: timed_orders().key_by("user").window("ts", "1h").aggregate(total=Column()),
    "a union needs the same columns: these are (user string, count int64) and (user string, item string, price int64)":
        lambda: orders().key_by("user").count().union(orders()),
    "a union of what operators emit goes to an operator, not to a sink; add .key_by(...) and an operator":
        lambda: me.testing.harness(orders().key_by("user").count().union(orders().key_by("user").count())),
    "a union needs the same columns: these are (user string, item string, price int64) and (user string)":
        lambda: orders().union(orders().select("user")),
    "a union needs the same columns":
        lambda: orders().union(me.stream(me.testing.source(ORDERS.replace("bigint", "int")))),
}  # fmt: skip


@pytest.mark.parametrize("sentence", REFUSALS)
def test_what_cannot_be_is_refused_in_one_sentence(sentence):
    with pytest.raises(InvalidOption) as refused:
        REFUSALS[sentence]()
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)


def test_expressions_are_known_without_spark():
    assert is_column(Column())
    assert not any(map(is_column, ("price", 3, None, pa.array([1]))))


def test_aggregates_may_be_lists_as_they_may_be_tuples():
    stream = orders().key_by("user").aggregate(total=["sum", "price"])
    with me.testing.harness(stream) as h:
        assert h.batch([{"user": "a", "item": "x", "price": 4}]) == [{"user": "a", "total": 4}]


def test_a_union_has_the_rows_of_both_in_the_columns_of_the_first():
    other = me.stream(me.testing.source("price bigint, user string, item string"))
    both = orders().union(other)
    assert both.schema.names == ["user", "item", "price"]
    rows = some(30, seed=3)
    with fed(both.key_by("user").count(), [pa.Table.from_pylist(rows[:10]), pa.Table.from_pylist(rows[10:])]) as h:
        assert {row["user"]: row["count"] for row in h.latest("user")} == Counter(row["user"] for row in rows)
