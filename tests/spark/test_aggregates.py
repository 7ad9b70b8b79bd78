"""Aggregates on Spark, against its own batch aggregates of the same names; expressions before, between and behind."""

from __future__ import annotations

import random
from collections import Counter

import pyarrow as pa
import pytest
from pyspark.sql import Window
from pyspark.sql import functions as F

import meander as me
from meander.errors import InvalidOption
from streams import PATIENCE_S, Feed, cut

pytestmark = pytest.mark.spark

ORDERS = pa.schema([
    ("user", pa.string()), ("item", pa.string()), ("price", pa.int64()), ("x", pa.float64()), ("paid", pa.bool_()),
])  # fmt: skip


def orders(count: int, seed: int) -> pa.Table:
    rng = random.Random(seed)
    rows = [
        {
            "user": rng.choice("abcde"),
            "item": rng.choice(["tea", "oil", "salt", None]),
            "price": rng.choice([None, rng.randrange(20)]),
            "x": rng.choice([None, 1e8 + rng.random(), 0.5, -0.0]),
            "paid": rng.choice([None, True, False]),
        }
        for _ in range(count)
    ]
    # One value alone, none at all, and only nulls: where Spark's answers are null.
    rows += [{"user": "one", "item": "tea", "price": 3, "x": 1.5, "paid": True}, {"user": "none"}, {"user": "none"}]
    return pa.Table.from_pylist(rows, ORDERS)


def run(stream, tmp_path, **options):
    sink = me.sinks.memory()
    query = stream.start(tmp_path / "ck", sink, workers=2, trigger={"availableNow": True}, **options)
    assert query.await_termination(PATIENCE_S)
    assert query.misrouted == 0
    return query, sink


def test_aggregates_are_those_that_spark_has_under_the_same_names(spark, tmp_path):
    rows = orders(300, seed=1)
    feed = Feed(tmp_path / "in", ORDERS).add(*cut(rows, 3, random.Random(1)))
    numbers = {
        name: (name, "x")
        for name in ("avg", "mean", "stddev", "stddev_samp", "stddev_pop", "variance", "var_samp", "var_pop")
    }
    exact = {
        "avg_price": ("avg", "price"), "any": ("bool_or", "paid"), "all": ("bool_and", "paid"),
        "some": ("some", "paid"), "every": ("every", "paid"), "items": ("count_distinct", "item"),
        "xs": ("count_distinct", "x"), "double": ("sum", F.col("price") * 2),
        "dear": ("count_distinct", F.when(F.col("price") > 9, F.col("item"))),
    }  # fmt: skip
    lists = {"list": ("collect_list", "price", {"limit": 1000}), "set": ("collect_set", "item", {"limit": 1000})}
    about = {"about": ("approx_count_distinct", "item")}
    stream = me.stream(feed.read(spark)).key_by("user").aggregate(**numbers, **exact, **lists, **about)
    _, sink = run(stream, tmp_path)
    found = {row.pop("user"): row for row in sink.latest("user")}

    table = spark.createDataFrame(rows)
    of = {name: getattr(F, each[0])(F.col(each[1]) if isinstance(each[1], str) else each[1])
          for name, each in (numbers | exact | lists | about).items()}  # fmt: skip
    kinds = table.groupBy("user").agg(*[column.alias(name) for name, column in of.items()])
    wanted = {row.pop("user"): row for row in kinds.toArrow().to_pylist()}
    assert found.keys() == wanted.keys() == {*"abcde", "one", "none"}
    for user, values in wanted.items():
        mine = found[user]
        assert {name: mine[name] for name in (*exact, *about)} == {name: values[name] for name in (*exact, *about)}
        for name in numbers:
            assert mine[name] == (None if values[name] is None else pytest.approx(values[name], rel=1e-6)), (user, name)
        for name in lists:
            assert mine[name] == sorted(values[name]), (user, name)
    assert found["one"]["stddev"] is None
    assert found["one"]["stddev_pop"] == 0.0
    types = {field.name: field.dataType.simpleString() for field in kinds.schema}
    assert {field.name: field.dataType.simpleString() for field in sink.to_df(spark).drop("batch").schema} == types


def test_expressions_before_between_and_behind_operators(spark, tmp_path):
    rows = orders(400, seed=2)
    feed = Feed(tmp_path / "in", ORDERS).add(*cut(rows, 3, random.Random(2)))
    stream = (
        me.stream(feed.read(spark))
        .where(F.col("price").isNotNull() & F.col("item").isNotNull())
        .with_columns(twice=F.col("price") * 2)
        .select("user", F.upper("item").alias("item"), "twice")
        .key_by("user", "item")
        .aggregate(total=("sum", "twice"))
        .where("total > 20")
        .with_columns(half=F.col("total") / 2, first=F.substring("item", 1, 1))
        .select("user", "first", "half")
        .key_by(F.lower("first").alias("letter"))
        .aggregate(n="count", most=("max", F.col("half") + 1))
        .where(F.col("n") > 1)
        .select("letter", (F.col("most") * 10).cast("int").alias("most"))
    )
    assert stream.schema == pa.schema([("letter", pa.string()), ("most", pa.int32())])
    query, sink = run(stream, tmp_path, idle_after_s=PATIENCE_S)
    assert sink.to_arrow().column_names == ["batch", "letter", "most"]

    totals, updates = Counter(), {}
    wanted = []
    for number, batch in enumerate(cut(rows, 3, random.Random(2))):
        good = [row for row in batch.to_pylist() if row["price"] is not None and row["item"] is not None]
        for row in good:
            totals[row["user"], row["item"]] += 2 * row["price"]
        changed = {(row["user"], row["item"]) for row in good}
        touched = set()
        for each in changed:
            if totals[each] > 20:
                updates.setdefault(each[1][0], []).append(totals[each] / 2 + 1)
                touched.add(each[1][0])
        wanted += [(number, letter, int(max(updates[letter]) * 10)) for letter in touched if len(updates[letter]) > 1]
    found = [tuple(row.values()) for row in sink.to_arrow().to_pylist()]
    assert sorted(found) == sorted(wanted)
    assert len(wanted) >= 6
    workers = query.recent_progress[0].workers
    assert {part.operator for part in workers} == {0, 1}


def test_what_spark_refuses_of_a_stream_is_refused_in_one_sentence(spark, tmp_path):
    feed = Feed(tmp_path / "in", ORDERS).add(orders(3, seed=3))
    source = me.stream(feed.read(spark))
    counted = source.key_by("user").count()
    refusals = {
        "Spark refuses the condition: [UNRESOLVED_COLUMN": lambda: counted.where(F.col("item") == "tea"),
        "Spark refuses the condition: [PARSE_SYNTAX_ERROR]": lambda: source.where("price >"),
        "Spark refuses a column: [UNSUPPORTED_GENERATOR": lambda: counted.with_columns(one=F.explode(F.array("count"))),
        "Spark refuses what is selected: ": lambda: counted.select(F.sum("count").alias("all")),
        "Spark refuses a column: ": lambda: counted.with_columns(
            place=F.row_number().over(Window.partitionBy("user").orderBy("count"))
        ),
        "Spark refuses an expression: [MISSING_GROUP_BY": lambda: source.key_by("user").aggregate(
            total=("sum", F.sum("price"))
        ),
        "write its function and what it takes as a pair": lambda: source.key_by("user").aggregate(total=F.sum("price")),
        "the selected expression": lambda: source.select(F.col("price") * 2),
        "the column name '__slot' is reserved": lambda: counted.with_columns(__slot=F.lit(1)),
        "where is 3; give an expression": lambda: source.where(3),
        "cannot take the sum of 'total.of' of type string": lambda: source.key_by("user").aggregate(
            total=("sum", F.upper("item"))
        ),
    }
    for sentence, refused in refusals.items():
        with pytest.raises(InvalidOption) as refusal:
            refused()
        assert sentence in str(refusal.value)
        assert "\n" not in str(refusal.value), sentence


def test_a_union_and_rows_that_could_not_be_decoded(spark, tmp_path):
    """Undecodable rows stay dead letters, whatever is selected and whatever the condition says of their nulls."""
    for name, rows in {"web": ['{"user": "a", "price": 3}', '{"user": "b", "price": "no number"}'],
                       "shop": ['{"price": 9, "user": "a"}', '{"price": 1, "user": "a"}']}.items():  # fmt: skip
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.json").write_text("\n".join(rows))
    web = spark.readStream.schema("user string, price bigint, _corrupt_record string").json(str(tmp_path / "web"))
    shop = spark.readStream.schema("price bigint, user string").json(str(tmp_path / "shop"))
    both = me.stream(web).where("price > 2").union(me.stream(shop).where("price > 2")).select("user")
    query, sink = run(both.key_by("user").count(), tmp_path)
    assert sink.latest("user") == [{"user": "a", "count": 2}]
    (letter,) = query.dead_letters().to_pylist()
    assert "could not be decoded" in letter["reason"]
    assert "no number" in letter["reason"]
