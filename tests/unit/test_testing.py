"""The harness: whole queries of the real engine in this process, with batches, time, workers and losses in hand."""

from collections import Counter
from datetime import datetime, timedelta

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import meander as me
from meander.engine.spark.nodes import Branch
from meander.errors import InvalidOption, QueryFailed
from meander.keyed import KeyedStream
from meander.streams import Stream
from meander.testing import harness, source

START = datetime(2026, 1, 1)


def at(seconds):
    return START + timedelta(seconds=seconds)


def words(text):
    return [{"word": word} for word in text.split()]


def counts(rows):
    return {row["word"]: row["count"] for row in rows}


def recount(*texts):
    return dict(Counter(" ".join(texts).split()))


@pytest.fixture
def counting():
    return me.stream(source("word string")).key_by("word").count()


# --- rows in, rows out ---------------------------------------------------------------------------


def test_counts_come_out_batch_by_batch_and_stay_in_the_state(counting):
    with harness(counting) as h:
        assert counts(h.batch(words("duck goose duck"))) == {"duck": 2, "goose": 1}
        assert h.batch(words("duck swan")) == h.emitted()
        assert h.batch() == []
        assert counts(h.latest("word")) == counts(h.state()) == recount("duck goose duck", "duck swan")
        assert len(h.output()) == 4
        assert h.query.version == 2


def test_rows_may_be_a_table_and_columns_must_be_known(counting):
    with harness(counting) as h:
        assert counts(h.batch(pa.table({"word": ["a", "a"]}))) == {"a": 2}
        with pytest.raises(InvalidOption, match="there is no column 'wort'; the columns are word"):
            h.batch([{"wort": "a"}])
        with pytest.raises(InvalidOption, match="one input; give rows alone"):
            h.batch(left=words("a"))


def test_one_key_for_all_rows():
    with harness(me.stream(source("word string")).key_by().count()) as h:
        h.batch(words("a b"))
        assert [row["count"] for row in h.batch(words("c"))] == [3]


def test_rows_that_cannot_be_used_are_dead_letters(counting):
    with harness(counting) as h:
        h.batch([{"word": "a"}, {"word": None}])
        assert counts(h.state()) == {"a": 1}
        assert [row["reason"] for row in h.dead()] == ["the key column word is null"]


def test_what_runs_without_spark_has_to_be_built_without_it(counting):
    with pytest.raises(InvalidOption, match="there is nothing to run yet"):
        harness(me.stream(source("word string")))
    with pytest.raises(InvalidOption, match=r"build the stream over me.testing.source"):
        harness(Stream((Branch(object()),), pa.schema([("word", pa.string())])))
    with pytest.raises(InvalidOption, match="bins must be a power of two"):
        harness(counting, bins=10)


def test_a_key_that_is_an_expression_of_spark_is_refused():
    keyed = KeyedStream(me.stream(source("word string")), ("word",), {"word": object()})
    with pytest.raises(
        InvalidOption, match="the key 'word' is an expression of Spark; in a test without Spark, key by"
    ):
        keyed.count()


# --- event time ----------------------------------------------------------------------------------


@pytest.fixture
def windowed():
    rows = me.stream(source("user string, ts timestamp"))
    return rows.key_by("user").window("ts", "10s", lateness="2s", emit="final").count()


def visits(*pairs):
    return [{"user": user, "ts": at(seconds)} for user, seconds in pairs]


def closed(rows):
    return sorted((row["user"], row["count"]) for row in rows)


def test_a_window_closes_when_event_time_has_passed_it(windowed):
    with harness(windowed) as h:
        assert h.batch(visits(("a", 1), ("a", 5), ("b", 9))) == []
        assert h.batch(visits(("a", 13))) == [], "with the batch its time is known, with the next version it is used"
        assert closed(h.idle()) == [("a", 2), ("b", 1)]
        assert closed(h.advance("30s")) == [("a", 1)]


def test_where_idle_time_is_that_of_the_clock_windows_close_by_themselves(windowed):
    with harness(windowed, idle_time="wall") as h:
        h.batch(visits(("a", 1), ("a", 8)))
        assert closed(h.idle(60)) == [("a", 2)]


def test_rows_that_come_too_late_are_kept_aside(windowed):
    with harness(windowed) as h:
        h.batch(visits(("a", 30)))
        h.idle()
        h.batch(visits(("a", 3), ("a", 31)))
        assert [row["ts"].replace(tzinfo=None) for row in h.late()] == [at(3)]
        assert closed(h.end()) == [("a", 2)]


def test_at_the_end_of_time_every_window_closes(windowed):
    with harness(windowed) as h:
        h.batch(visits(("a", 1), ("b", 100), ("c", 205)))
        assert closed([*h.idle(), *h.end()]) == [("a", 1), ("b", 1), ("c", 1)]


class Quiet(me.Operator):
    """Says how often a user came, once it has been away for ten seconds."""

    input = "user string, ts timestamp"
    output = "user string, visits bigint"
    state = {  # noqa: RUF012
        "visits": me.KeyedTable(key="user string", value="n bigint, last timestamp"),
        "alarms": me.Timers(key="user string"),
    }
    time = "ts"

    def on_batch(self, rows, state, now):
        for user, when in zip(rows["user"].to_pylist(), rows["ts"].to_pylist(), strict=True):
            key = pa.array([user])
            before = state["visits"].get(key)["n"][0].as_py() or 0
            last = pa.array([when], rows.schema.field("ts").type)
            state["visits"].put(key, pa.record_batch({"n": pa.array([before + 1]), "last": last}))
            state["alarms"].set(pc.add(last, pa.scalar(timedelta(seconds=10))), key)

    def on_time(self, due, state, now):
        users = due["alarms"]["user"]
        seen = state["visits"].get(users)
        quiet = pc.less_equal(pc.add(seen["last"], pa.scalar(timedelta(seconds=10))), due["alarms"]["time"])
        return pa.record_batch({"user": users, "visits": seen["n"]}).filter(quiet)


def test_an_operator_of_the_users_with_timers():
    stream = me.stream(source("user string, ts timestamp")).key_by("user").process(Quiet())
    with harness(stream, workers=3) as h:
        assert h.batch(visits(("a", 1), ("a", 4), ("b", 8))) == []
        h.rescale(2)
        assert h.batch(visits(("c", 13))) == []
        h.lose(0)
        assert [(row["user"], row["visits"]) for row in h.advance("2s")] == [("a", 2)]
        assert sorted((row["user"], row["visits"]) for row in h.end()) == [("b", 1), ("c", 1)]
        assert {row["user"]: row["n"] for row in h.state(0, "visits")} == {"a": 2, "b": 1, "c": 1}


def test_two_operators_one_after_the_other():
    rows = me.stream(source("word string"))
    chained = rows.key_by("word").count().key_by("count").aggregate(words="count")
    with harness(chained) as h:
        h.batch(words("a b b"))
        h.rescale(3)
        h.lose(0)
        h.batch(words("a c"))
        seen = Counter([1, 2, 2, 1])
        assert counts(h.state(0)) == {"a": 2, "b": 2, "c": 1}
        assert {row["count"]: row["words"] for row in h.state(1)} == dict(seen)


# --- two inputs ----------------------------------------------------------------------------------


def test_a_join_takes_rows_of_both_sides():
    orders = me.stream(source("id bigint, item string, ts timestamp"))
    payments = me.stream(source("order_id bigint, amount bigint, paid timestamp"))
    joined = orders.join(payments, on={"id": "order_id"}, within="10s", how="left")
    with harness(joined) as h:
        h.batch(left=[{"id": 1, "item": "book", "ts": at(1)}, {"id": 2, "item": "pen", "ts": at(2)}])
        h.rescale(3)
        pairs = h.batch(right=[{"order_id": 1, "amount": 5, "paid": at(4)}])
        assert [(row["id"], row["item"], row["amount"]) for row in pairs] == [(1, "book", 5)]
        alone = h.end()
        assert [(row["item"], row["amount"]) for row in alone] == [("pen", None)]
        with pytest.raises(InvalidOption, match="2 sources; give left= and right="):
            h.batch([{"id": 1}])


# --- workers -------------------------------------------------------------------------------------

TEXTS = ["a b c d e f g", "a a h i", "b c j k l", "z z z a"]


def test_bins_move_and_nothing_is_lost(counting):
    with harness(counting, workers=2, bins=32) as h:
        h.batch(words(TEXTS[0]))
        grown = h.rescale(4)
        assert (grown.status, grown.report.workers_after) == ("done", (0, 1, 2, 3))
        h.batch(words(TEXTS[1]))
        first, last = h.query.assignment["0:count"][0], h.query.assignment["0:count"][31]
        moved = h.move({0: (first + 1) % 4, 31: (last + 1) % 4}, schedule="fluid")
        assert (moved.report.bins, moved.report.steps) == (2, 2)
        h.batch(words(TEXTS[2]))
        assert h.rebalance(tau=0.5).status == "done"
        assert len(h.rescale(1).report.workers_after) == 1
        h.batch(words(TEXTS[3]))
        assert counts(h.state()) == counts(h.latest("word")) == recount(*TEXTS)
        assert h.query.version > 4
        assert all(row["count"] > 0 for row in h.output())
        assert len(h.output()) == sum(len(set(text.split())) for text in TEXTS)


def test_a_lost_executor_is_replaced_and_its_state_read_again(counting):
    with harness(counting, workers=3) as h:
        h.batch(words(TEXTS[0]))
        before = h.query.assignment
        h.lose(1)
        h.batch(words(TEXTS[1]))
        assert h.query.assignment == before
        assert counts(h.state()) == recount(*TEXTS[:2])


def test_where_none_comes_back_the_others_take_over(counting):
    with harness(counting, workers=3, executors_within_s=1.0) as h:
        h.batch(words(TEXTS[0]))
        h.lose(1, replace=False)
        h.batch(words(TEXTS[1]))
        assert set(h.query.assignment["0:count"]) == {0, 2}
        assert [each.facts["workers"] for each in h.query.events if each.name == "lost"] == [[1]]
        assert counts(h.state()) == recount(*TEXTS[:2])
        with pytest.raises(InvalidOption, match="there is no worker 1; there are: 0, 2"):
            h.lose(1)


def test_a_loss_while_bins_move_hurts_nobody(counting):
    with harness(counting, workers=2, copy_bytes=1) as h:
        h.batch(words(TEXTS[0]))
        migration = h.query.rescale(3, schedule="fluid")
        h.batch(words(TEXTS[1]))
        h.lose(0)
        h.batch(words(TEXTS[2]))
        assert h.finish(migration).status == "done"
        assert counts(h.state()) == recount(*TEXTS[:3])
        assert len(set(h.query.assignment["0:count"])) == 3


def test_a_driver_that_starts_again_in_the_middle_of_a_migration_goes_on_with_it(counting):
    with harness(counting, workers=2, copy_bytes=1) as h:
        h.batch(words(TEXTS[0]))
        target = h.query.rescale(3, schedule="fluid").plans["0:count"].owner
        h.batch(words(TEXTS[1]))
        assert tuple(h.query.assignment["0:count"]) != target
        h.restart()
        for _ in range(200):
            if tuple(h.query.assignment["0:count"]) == target:
                break
            h.idle()
        assert tuple(h.query.assignment["0:count"]) == target
        h.batch(words(TEXTS[2]))
        assert counts(h.state()) == counts(h.latest("word")) == recount(*TEXTS[:3])


def test_a_restart_goes_on_with_the_next_batch(counting):
    with harness(counting) as h:
        h.batch(words("a"))
        h.restart()
        assert h.query.version == 0
        assert counts(h.batch(words("a b"))) == {"a": 2, "b": 1}
        assert h.query.version == 1


def test_a_checkpoint_outlives_its_harness(counting, tmp_path):
    for n in (1, 2):
        with harness(counting, checkpoint=tmp_path / "checkpoint", workers=n) as h:
            assert counts(h.batch(words("a"))) == {"a": n}


def test_an_exception_of_the_user_fails_the_query_with_its_bin():
    def broken(rows, state):
        raise ValueError("no such thing")

    rows = me.stream(source("word string"))
    failing = rows.key_by("word").fold(broken, state="n bigint", output="n bigint")
    with harness(failing) as h, pytest.raises(QueryFailed, match="no such thing"):
        h.batch(words("a"))
