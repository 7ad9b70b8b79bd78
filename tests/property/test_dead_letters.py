"""What a function raises for touches nobody else: a run with poison is a run without it, moves and restarts between."""

import datetime as dt
import json
from collections import Counter

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

import meander as me
from effort import examples

START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
POISON = 13
"""A row with this value makes every function raise."""
ALARM = 7
"""One with this value makes the timer raise that it sets."""
COLUMNS = "user string, at timestamp, v long"


class Boom(Exception):
    """What the functions raise."""


def source():
    return me.stream(me.testing.source(COLUMNS)).key_by("user")


def poisoned(rows):
    """Raise for a poison row, somewhere in the middle of the work."""
    if POISON in rows:
        raise Boom("poison")


def visits(user, rows, state):
    state.update(n=(state.n or 0) + len(rows))
    for row in rows:
        state.update(last=row.v)
        yield user, state.n, row.v
        poisoned([row.v])
    if state.timed_out:
        yield user, state.n, -1
        if state.last == ALARM:
            raise Boom("alarm")
        state.clear()


def careful_visits(user, rows, state):
    if not (state.timed_out and state.last == ALARM):
        yield from visits(user, rows, state)


def doubled(row):
    yield row.user, row.v
    poisoned([row.v])
    yield row.user, 2 * row.v


def spent(rows, state):
    sums = rows.group_by("__group").aggregate([("v", "sum")])
    totals = pc.add(state["total"].fill_null(0), pc.take(sums["v_sum"], pc.sort_indices(sums["__group"])))
    poisoned(rows["v"].to_pylist())
    return pa.table({"total": totals}), pa.table({"user": state["user"], "total": totals})


class Reminders(me.Operator):
    """Keeps all rows of a user and sets a timer for each, some of them so that they fail."""

    input = COLUMNS
    output = "user string, v long, n long"
    state = {  # noqa: RUF012
        "all": me.Multimap(key="user string", value="v long"),
        "wake": me.Timers(key="user string", payload="v long"),
        "later": me.Timers(key="user string", payload="v long"),
    }
    time = "at"
    is_careful = False

    def on_batch(self, rows, state, now):
        state["all"].append(rows["user"], rows.select(["v"]))
        at = rows["at"].cast(pa.int64())
        state["wake"].set(pc.add(at, 2_000_000), rows["user"], rows)
        state["later"].set(pc.add(at, 4_000_000), rows["user"], rows)
        poisoned(rows["v"].to_pylist())

    def on_time(self, due, state, now):
        answers = []
        for timers in due.values():
            counts = state["all"].counts(timers["user"])
            answers.append(pa.table({"user": timers["user"], "v": timers["v"], "n": counts}))
        every = pa.concat_tables(answers)
        bad = every.filter(pc.equal(every["v"], ALARM))["user"].unique()
        state["all"].delete(every["user"].combine_chunks())
        if bad and not self.is_careful:
            raise Boom("alarm")
        return every


class CarefulReminders(Reminders):
    """The same, without what it would fail of."""

    def on_time(self, due, state, now):
        users = {row["user"] for timers in due.values() for row in timers.to_pylist() if row["v"] == ALARM}
        good = {
            name: timers.filter(pc.invert(pc.is_in(timers["user"], pa.array(sorted(users), pa.string()))))
            for name, timers in due.items()
        }
        return super().on_time(good, state, now)


def chained():
    both = source().flat_map(doubled, "user string, v long")
    return both.key_by("user").fold(spent, "total long", "user string, total long")


STREAMS = {
    "map_with_state": lambda: source().map_with_state(
        visits, "n long, last long", "user string, n long, v long", timeout="3s"
    ),
    "flat_map": lambda: source().flat_map(doubled, "user string, v long"),
    "fold": lambda: source().fold(spent, "total long", "user string, total long"),
    "operator": lambda: source().process(Reminders),
    "chain": chained,
}
CAREFUL = STREAMS | {
    "map_with_state": lambda: source().map_with_state(
        careful_visits, "n long, last long", "user string, n long, v long", timeout="3s"
    ),
    "operator": lambda: source().process(CarefulReminders),
}
values = st.sampled_from([1, 2, 3, 5, ALARM, POISON])
rows = st.tuples(st.sampled_from("abcdef"), st.integers(0, 3), values)
batches = st.lists(st.lists(rows, max_size=8), min_size=1, max_size=5)
between = st.lists(st.sampled_from(["none", "rescale", "restart", "lose", "idle"]), min_size=5, max_size=5)


def as_rows(number, batch):
    return [
        {"user": user, "at": START + dt.timedelta(seconds=2 * number + second), "v": v} for user, second, v in batch
    ]


def disturb(h, action, number):
    match action:
        case "rescale":
            h.rescale(1 + number % 3)
        case "restart":
            h.restart()
        case "lose":
            h.lose(h.query.workers[0])
        case "idle":
            h.idle()


def outcome(h):
    states = [
        Counter(map(repr, h.state(at, spec.name)))
        for at, operator in enumerate(h.driver.operators)
        for spec in operator.tables
    ]
    return Counter(map(repr, h.output())), states


@pytest.mark.parametrize("name", STREAMS)
@examples(12)
@given(batches, between)
def test_a_run_with_poison_is_a_run_without_it(name, all_batches, actions):
    aside = Counter()
    with me.testing.harness(CAREFUL[name](), bins=8) as h:
        for number, batch in enumerate(all_batches):
            every = as_rows(number, batch)
            bad = {row["user"] for row in every if row["v"] == POISON}
            aside.update(json.dumps(row, default=str) for row in every if row["user"] in bad)
            h.batch([row for row in every if row["user"] not in bad])
        h.end()
        expected = outcome(h)
        assert not h.dead()
    with me.testing.harness(STREAMS[name](), bins=8, on_error="dead_letter") as h:
        for number, (batch, action) in enumerate(zip(all_batches, actions, strict=False)):
            h.batch(as_rows(number, batch))
            assert h.query.last_progress.rows == len(batch)
            disturb(h, action, number)
        h.end()
        assert outcome(h) == expected
        dead = h.dead()
    failed = [json.loads(letter["row"]) for letter in dead if letter["kind"] == "failed"]
    assert Counter(json.dumps(row) for row in failed) == aside
    timers = [letter for letter in dead if letter["kind"] == "timer"]
    assert len(failed) + len(timers) == len(dead)
    assert all(letter["reason"].endswith("Boom: poison") for letter in dead if letter["kind"] == "failed")
    assert all(letter["reason"].endswith("Boom: alarm") and "timer" in letter["row"] for letter in timers)
