"""Keys for which a function raises, set aside: what it had half done is undone, and there is an end to it."""

import datetime as dt
import json

import numpy as np
import pyarrow as pa
import pytest

import meander as me
from meander.operators.culprits import MAX_TRACE, Culprits
from meander.operators.fold import Fold
from meander.operators.operator import Now
from meander.route.keys import KeyType
from meander.route.schema import schema
from naive import NaiveState

START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
COLUMNS = "user string, at timestamp, v long"


def source():
    return me.stream(me.testing.source(COLUMNS)).key_by("user")


def rows(*given):
    return [{"user": user, "at": START + dt.timedelta(seconds=at), "v": v} for user, at, v in given]


def picky(user, rows, state):
    state.update(n=(state.n or 0) + len(rows))
    yield user, state.n
    if any(row.v == 13 for row in rows):
        raise ArithmeticError("thirteen is unlucky")


def counting():
    return source().map_with_state(picky, "n long", "user string, n long")


def test_the_rows_of_a_key_that_fails_go_aside_and_what_was_half_done_is_undone():
    with me.testing.harness(counting(), on_error="dead_letter") as h:
        h.batch(rows(("ann", 0, 1), ("bob", 0, 1)))
        assert h.batch(rows(("ann", 1, 1), ("bob", 1, 1), ("bob", 1, 13))) == [{"user": "ann", "n": 2}]
        assert sorted((row["user"], row["n"]) for row in h.state()) == [("ann", 2), ("bob", 1)]
        dead = h.dead()
        assert {(letter["kind"], letter["version"], letter["operator"]) for letter in dead} == {("failed", 1, 0)}
        assert sorted(json.loads(letter["row"])["v"] for letter in dead) == [1, 13]
        for letter in dead:
            first, place, line, last = letter["reason"].split("\n")
            assert (first, last) == ("Traceback (most recent call last):", "ArithmeticError: thirteen is unlucky")
            assert "in picky" in place
            assert "raise ArithmeticError" in line
        last = h.query.last_progress
        assert (last.rows, last.dead, last.emitted) == (3, 2, 1)
        h.restart()
        assert h.batch(rows(("bob", 2, 1))) == [{"user": "bob", "n": 2}]
        assert h.dead() == dead


def test_without_it_the_first_exception_ends_the_query_and_the_sentence_names_it():
    with me.testing.harness(counting()) as h, pytest.raises(me.QueryFailed) as failed:
        h.batch(rows(("bob", 0, 13)))
    first = str(failed.value).splitlines()[0]
    assert "on_error='dead_letter'" in first


def test_a_timer_that_fails_is_a_dead_letter_and_fires_no_more():
    def reminders(user, rows, state):
        if state.timed_out:
            state.clear()
            yield user, -1
            if user == "bob":
                raise ArithmeticError("a bad day")
        for row in rows:
            state.update(n=row.v)

    stream = source().map_with_state(reminders, "n long", "user string, n long", timeout="1s")
    with me.testing.harness(stream, on_error="dead_letter") as h:
        h.batch(rows(("ann", 0, 5), ("bob", 0, 6)))
        out = h.batch(rows(("cyd", 60, 1))) + h.idle()
        assert out == [{"user": "ann", "n": -1}]
        (letter,) = h.dead()
        assert letter["kind"] == "timer"
        assert json.loads(letter["row"]) == {"user": "bob", "timer": str(START + dt.timedelta(seconds=1))}
        assert [row["n"] for row in h.state() if row["user"] == "bob"] == [6], "the state is as it was"
        h.batch(rows(("cyd", 120, 1)))
        h.idle()
        assert len(h.dead()) == 1
        h.batch(rows(("bob", 120, 7)))
        h.end()
        assert len(h.dead()) == 2, "rows that come later set a timer anew"


def test_a_condition_of_a_join_that_fails_sets_the_new_rows_of_the_key_aside():
    def near(pairs):
        prices = pairs["price"].to_numpy()
        if (prices == 13).any():
            raise ArithmeticError("thirteen is unlucky")
        return prices > 0

    ads = me.stream(me.testing.source("item long, at timestamp, price long"))
    views = me.stream(me.testing.source("item long, at timestamp"))
    joined = ads.join(views, on="item", within="1 minute", where=near)
    with me.testing.harness(joined, on_error="dead_letter") as h:
        h.batch(left=[{"item": item, "at": START, "price": price} for item, price in ((1, 13), (2, 5))])
        out = h.batch(right=[{"item": item, "at": START} for item in (1, 2)])
        assert [row["item"] for row in out] == [2]
        (letter,) = h.dead()
        assert json.loads(letter["row"])["right.item"] == 1


def test_a_value_that_does_not_fit_is_of_its_key_too():
    def typed(user, rows, state):
        yield user, "many" if user == "bob" else 1

    stream = source().map_with_state(typed, "n long", "user string, n long")
    with me.testing.harness(stream, on_error="dead_letter") as h:
        assert h.batch(rows(("ann", 0, 1), ("bob", 0, 1))) == [{"user": "ann", "n": 1}]
        (letter,) = h.dead()
        assert "\n" not in letter["reason"], "what is ours of the traceback helps nobody"
        assert letter["reason"].startswith("meander.errors.MeanderError: the function 'typed' of map_with_state")


def test_after_so_many_rows_the_query_ends_and_nothing_of_that_batch_is_committed():
    with me.testing.harness(counting(), on_error="dead_letter", errors=3) as h:
        h.batch(rows(("ann", 0, 13), ("bob", 0, 13)))
        with pytest.raises(
            me.QueryFailed, match=r"thirteen is unlucky; .* more rows since the start than errors=3"
        ) as failed:
            h.batch(rows(("cyd", 0, 13), ("cyd", 0, 1)))
        assert "in picky" in str(failed.value)
        assert (h.query.version, len(h.dead())) == (0, 2)
        h.restart()
        assert h.batch(rows(("cyd", 0, 13), ("cyd", 0, 1))) == [], "a start counts anew"
        assert len(h.dead()) == 4


def test_the_workers_errors_are_counted_together():
    with me.testing.harness(counting(), workers=4, on_error="dead_letter", errors=9) as h:
        users = [(f"u{number}", 0, 13) for number in range(10)]
        with pytest.raises(me.QueryFailed, match=r"for 10 rows since the start, more than errors=9; "):
            h.batch(rows(*users))
        assert h.query.version == -1
        h.restart()
        assert h.batch(rows(*users[1:], ("ann", 0, 1))) == [{"user": "ann", "n": 1}]


def test_a_function_that_mixes_keys_cannot_be_helped():
    def lonely(rows, state):
        if state.num_rows == 2:
            raise ArithmeticError("two is company")
        return None, None

    stream = source().fold(lonely, "n long", "n long")
    with me.testing.harness(stream, workers=1, on_error="dead_letter") as h:
        with pytest.raises(me.QueryFailed, match=r"two is company; it does not raise for any key alone"):
            h.batch(rows(("ann", 0, 1), ("bob", 0, 1)))
        assert not h.dead()


def test_all_rows_have_one_key_where_there_is_none():
    stream = me.stream(me.testing.source(COLUMNS)).key_by().map_with_state(
        lambda key, rows, state: [(1 // min(row.v for row in rows),)], "n long", "n long"
    )  # fmt: skip
    with me.testing.harness(stream, on_error="dead_letter") as h:
        assert h.batch(rows(("ann", 0, 0), ("bob", 0, 1))) == []
        assert h.batch(rows(("ann", 0, 1))) == [{"n": 1}]
        assert len(h.dead()) == 2


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"on_error": "skip"}, "on_error is 'fail' or 'dead_letter', not 'skip'"),
        ({"errors": 0}, "errors is 0; it must be a whole number"),
    ],
)
def test_slips(options, sentence):
    with pytest.raises(me.InvalidOption, match=sentence):
        me.testing.harness(counting(), **options)


def key_of(user):
    return KeyType.of(schema("user string")).encode([pa.array([user])])


def fold_over(users, bad):
    """Trials of a fold that fails for some users: how often it was called, and whom it is found to fail for."""
    calls = []

    def function(rows, state):
        calls.append(state.num_rows)
        if bad & set(state["user"].to_pylist()):
            raise ArithmeticError("x" * 10 * MAX_TRACE)
        return None, None

    operator = Fold(schema("user string"), ["user"], function, "n int", "n int")
    keys = operator.key.encode([pa.array(users)])
    found = [*Culprits(operator, pa.table({"user": users}), keys, NaiveState(operator).begin, Now(0))]
    return calls, found


def test_the_search_is_short_and_finds_the_same_in_any_order_of_rows():
    users = [f"u{number}" for number in range(1000)]
    bad = {"u7", "u8", "u500"}
    calls, found = fold_over(users, bad)
    assert {users[culprit.rows[0]] for culprit in found} == bad
    assert len(calls) <= 2 * len(bad) * np.log2(1000)
    last = max(users, key=lambda user: key_of(user).spread[0])
    calls, _ = fold_over(users, {last})
    assert len(calls) <= np.log2(1000) + 4, "what must be in the second half is not looked for there first"
    turned = users[::-1]
    _, again = fold_over(turned, bad)
    assert [turned[culprit.rows[0]] for culprit in again] == [users[culprit.rows[0]] for culprit in found]


def test_a_traceback_is_cut_to_its_end():
    _, (culprit,) = fold_over(["ann", "bob"], {"bob"})
    assert len(culprit.trace) == MAX_TRACE + 4
    assert culprit.trace.startswith("... x")
