"""A query that changes while its checkpoint stays: old or new wherever it is killed, and a recount agrees."""

from __future__ import annotations

import datetime as dt
import json
import random
from collections import Counter, defaultdict
from typing import ClassVar

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import meander as me
from kills import Killed, changes
from meander.cli.inspect import inspect
from meander.cli.show import AnswerFormat
from meander.errors import ChangedQuery, CheckpointError, QueryFailed
from meander.store.location import Location
from meander.store.manifest import Log
from meander.store.reader import Reader

BATCHES = 9
START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)

ORDERS = me.stream(me.testing.source("user string, price bigint")).key_by("user")
OLD = ORDERS.aggregate(n="count", paid=("sum", "price"))
NEW = ORDERS.aggregate(most=("max", "price"), spent=("sum", "price"), n="count", mean=("avg", "price"))
RENAMES = {"paid": "spent"}
LONGER = NEW.key_by("user").top_k(1, by="n")


def orders(seed=5, batches=BATCHES, users=30):
    rng = random.Random(seed)
    return [
        [{"user": f"u{rng.randrange(users)}", "price": rng.randrange(100)} for _ in range(25)] for _ in range(batches)
    ]


def recount(batches, since):
    """The state of NEW by brute force, where the query changed before batch `since`."""
    rows = [(each["user"], each["price"], at >= since) for at, batch in enumerate(batches) for each in batch]
    users = defaultdict(list)
    for user, price, is_new in rows:
        users[user].append((price, is_new))
    answer = {}
    for user, prices in users.items():
        fresh = [price for price, is_new in prices if is_new]
        mean = sum(fresh) / len(fresh) if fresh else None
        answer[user] = (len(prices), sum(price for price, _ in prices), max(fresh, default=None), mean)
    return answer


def state_of(harness):
    rows = {}
    for row in harness.state():
        mean = row["mean.sum"] / row["mean.count"] if row["mean.count"] else None
        rows[row["user"]] = (row["n"], row["spent"], row["most"], mean)
    return rows


def layouts_of(harness):
    """The layouts that files of the first operator have."""
    index = harness.driver.log.index
    return {ref.layout for ref in index.files(0)}


def next_batch(harness):
    return harness.driver.loop.stream.next_batch


def test_aggregates_are_added_and_renamed_and_their_order_does_not_matter(caplog):
    batches = orders()
    with me.testing.harness(OLD, bins=8) as h:
        for batch in batches[:3]:
            h.batch(batch)
        with pytest.raises(ChangedQuery, match='say evolve="add" and renames='):
            h.restart(NEW)
        with pytest.raises(ChangedQuery, match="had the aggregate 'paid'"):
            h.restart(NEW, evolve="add")
        with caplog.at_level("INFO", "meander"):
            h.restart(NEW, evolve="add", renames=RENAMES)
        said = [record.getMessage() for record in caplog.records if "since the last start" in record.getMessage()]
        assert any("'spent' was called 'paid'" in each for each in said)
        assert sum("has a new aggregate" in each for each in said) == 2
        for batch in batches[3:]:
            h.batch(batch)
        assert state_of(h) == recount(batches, 3)
        h.restart(NEW, evolve="add", renames=RENAMES)  # the program stays as it is
        h.restart(NEW)
        assert state_of(h) == recount(batches, 3)
        with pytest.raises(ChangedQuery, match="had the aggregate"):
            h.restart(OLD)


def test_the_state_is_written_anew_in_slices_also_while_nothing_comes():
    batches = orders()
    with me.testing.harness(OLD, bins=32, copy_bytes=1, snapshot_every=1 << 20) as h:
        for batch in batches[:3]:
            h.batch(batch)
        h.restart(NEW, evolve="add", renames=RENAMES)
        h.batch(batches[3])
        assert layouts_of(h) == {0, 1}
        left = [h.query.last_progress.unconverted]
        h.batch(batches[4])
        left.append(h.query.last_progress.unconverted)
        # One bin of each worker, for a byte is all that may be written, and the one whose turn it is in any case.
        assert 2 <= left[0] - left[1] <= 3
        assert h.query.version == 4
        h.idle()
        ticks = h.query.version - 4
        assert left[1] / 3 <= ticks <= left[1]
        assert layouts_of(h) == {1}
        names = [event.name for event in h.query.events if event.name in ("evolving", "rewritten", "evolved")]
        assert names == ["evolving", *["rewritten"] * (ticks + 2), "evolved"]
        [begun] = [event.facts["bins"] for event in h.query.events if event.name == "evolving"]
        assert sum(event.facts["bins"] for event in h.query.events if event.name == "rewritten") == begun > left[0]
        assert state_of(h) == recount(batches[:5], 3)
        h.idle()
        assert h.query.version == 4 + ticks, "no ticks any more"


def test_inspect_says_what_is_left(capsys):
    batches = orders()
    with me.testing.harness(OLD, bins=32, copy_bytes=1, snapshot_every=1 << 20) as h:
        for batch in batches[:3]:
            h.batch(batch)
        inspect(h.driver.settings.checkpoint, format=AnswerFormat.json)
        assert json.loads(capsys.readouterr().out)["conversion"] is None
        h.restart(NEW, evolve="add", renames=RENAMES)
        h.batch(batches[3])
        left = h.query.last_progress.unconverted
        inspect(h.driver.settings.checkpoint, format=AnswerFormat.json)
        assert json.loads(capsys.readouterr().out)["conversion"] == {"bins_left": left, "before": 2}
        inspect(h.driver.settings.checkpoint, format=AnswerFormat.table)
        said = " ".join(capsys.readouterr().out.split())
        assert f"{left} bins left; version 2, the way back, is kept until then" in said
        h.idle()
        inspect(h.driver.settings.checkpoint, format=AnswerFormat.json)
        assert json.loads(capsys.readouterr().out)["conversion"] is None


def test_what_is_half_way_is_read_moved_lost_and_restarted():
    batches = orders()
    with me.testing.harness(OLD, bins=32, copy_bytes=1, snapshot_every=1 << 20) as h:
        for batch in batches[:3]:
            h.batch(batch)
        before = {row["user"]: (row["n"], row["paid"]) for row in h.state()}
        h.restart(NEW, evolve="add", renames=RENAMES)
        h.batch(batches[3])
        assert state_of(h) == recount(batches[:4], 3)
        h.rescale(3, schedule="batched", max_bins=4)
        assert h.query.workers == [0, 1, 2]
        assert 0 in layouts_of(h), "or nothing was moved that was still to be converted"
        h.batch(batches[4])
        h.lose(1)
        h.batch(batches[5])
        h.restart(NEW)
        h.batch(batches[6])
        h.restart(NEW, evolve="add", renames=RENAMES)
        h.batch(batches[7])
        assert state_of(h) == recount(batches[:8], 3)
        old = me.checkpoint(h.driver.settings.checkpoint).to_arrow("aggregate", version=2).to_pylist()
        assert {row["user"]: (row["n"], row["paid"]) for row in old} == before
        assert not me.checkpoint(h.driver.settings.checkpoint).verify().damaged


def test_an_operator_is_added_at_the_end():
    batches = orders()
    with me.testing.harness(OLD, bins=8) as h:
        for batch in batches[:3]:
            h.batch(batch)
        h.rescale(3)
        with pytest.raises(
            ChangedQuery, match="has the operators aggregate, the query has aggregate -> top_k; with evolve"
        ):
            h.restart(LONGER)
        h.restart(LONGER, evolve="add", renames=RENAMES)
        for batch in batches[3:6]:
            h.batch(batch)
        h.rescale(2)
        for batch in batches[6:]:
            h.batch(batch)
        expected = recount(batches, 3)
        assert state_of(h) == expected
        counts, best = Counter(row["user"] for batch in batches[:3] for row in batch), {}
        for batch in batches[3:]:
            counts.update(row["user"] for row in batch)
            best |= {row["user"]: counts[row["user"]] for row in batch}
        assert {row["user"]: row["n"] for row in h.state(1, "top")} == best
        h.restart(LONGER)
        assert set(h.query.assignment) == {"0:aggregate", "1:top_k"}


def test_a_rollback_takes_an_operator_away_with_its_migration():
    batches = orders()
    with me.testing.harness(OLD, bins=8) as h:
        for batch in batches[:3]:
            h.batch(batch)
        h.restart(LONGER, evolve="add", renames=RENAMES)
        h.batch(batches[3])
        h.query.rescale(4, schedule="fluid", operator="1:top_k")
        h.batch(batches[4])
        assert h.driver.log.last.journal["migration"]
        me.checkpoint(h.driver.settings.checkpoint).rollback(to=2, take_over=True)
        with pytest.raises(ChangedQuery, match="had the aggregate 'paid'|has the operators aggregate, the query has"):
            h.restart(LONGER)
        h.restart(OLD)
        h.batch(batches[3])
        h.restart(LONGER, evolve="add", renames=RENAMES)
        h.batch(batches[4])
        h.idle()
        assert state_of(h) == recount(batches[:5], 4)


def test_a_tick_that_was_announced_is_made_by_the_longer_query():
    times = me.stream(me.testing.source("user string, at timestamp")).key_by("user")
    window = times.window("at", "10s").count()
    with me.testing.harness(window, bins=4) as h:
        for second in (1, 12, 25):
            h.batch([{"user": "a", "at": START + dt.timedelta(seconds=second)}])

        def die(output, write):
            raise Killed

        h.sink.prepare = die
        h.clock.advance(5)
        with pytest.raises(Killed):
            h.idle()
        del h.sink.prepare
        h.restart(window.key_by("user").count(name="windows"), evolve="add")
        assert h.driver.log.announced is not None
        h.batch([{"user": "a", "at": START + dt.timedelta(seconds=26)}])
        assert h.query.version == 4
        assert [row["windows"] for row in h.state(1)] == [1]


# --- windows ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [{"size": "10s"}, {"gap": "3s"}])
def test_windows_that_are_open_get_further_aggregates_and_may_become_final(shape):
    at = me.stream(me.testing.source("user string, price bigint, at timestamp")).key_by("user")

    def rows(*seconds):
        return [{"user": "a", "price": second, "at": START + dt.timedelta(seconds=second)} for second in seconds]

    further = {
        "total": ("sum", "price"),
        "kinds": ("count_distinct", "price"),
        "about": ("approx_count_distinct", "price"),
    }
    old = at.window("at", **shape, emit="update").aggregate(n="count")
    new = at.window("at", **shape, emit="final", lateness="1s").aggregate(**further, n="count", again="count")
    with me.testing.harness(old, bins=4) as h:
        h.batch(rows(1, 2, 11))
        h.restart(new, evolve="add")
        emitted = h.batch(rows(12, 13)) + h.batch(rows(40)) + h.end()
        shown = [tuple(row[name] for name in ("n", "again", "total", "kinds", "about")) for row in emitted]
        last = (3, 2, 25, 2, 2)
        assert shown[-2:] == [last, (1, 1, 40, 1, 1)]
        assert shown[:-2] in ([], [(2, 0, None, 0, 0)]), "the first is closed already, or comes out without what is new"


def test_a_larger_lateness_does_not_open_what_has_closed():
    at = me.stream(me.testing.source("user string, at timestamp")).key_by("user")

    def rows(*seconds):
        return [{"user": "a", "at": START + dt.timedelta(seconds=second)} for second in seconds]

    with me.testing.harness(at.window("at", "10s").count(), bins=4) as h:
        h.batch(rows(1, 5, 25))
        h.batch(rows(26))
        h.restart(at.window("at", "10s", lateness="60s").count())
        assert h.batch(rows(2)) == []
        assert len(h.late()) == 1, "its window has closed"
        h.batch(rows(31))
        [row] = h.batch(rows(27))
        assert row["count"] == 3, "it is late by the old lateness, and in time by the new one"


# --- functions over keys, and operators of one's own --------------------------------------------------


def visits(key, rows, state):
    state.update(n=(state.n or 0) + len(rows))
    yield {"user": key, "n": state.n}


def long_visits(user, rows, state):
    state.update(n=(state.n or 0) + len(rows), first=min([state.first or 0, *(row.price for row in rows)]))
    yield {"user": user, "n": state.n, "kind": state.kind}


def test_columns_of_map_with_state_begin_from_a_default():
    old = ORDERS.map_with_state(visits, state="n long", output="user string, n long")
    new = ORDERS.map_with_state(
        long_visits, state="kind string, first long, n long", output="user string, n long, kind string"
    )
    with me.testing.harness(old, bins=4) as h:
        h.batch([{"user": "ann", "price": 3}, {"user": "bob", "price": 3}])
        h.restart(new, evolve="add", defaults={"kind": "old"})
        h.batch([{"user": "ann", "price": -3}, {"user": "eve", "price": -5}])
        state = {row["user"]: (row["kind"], row["first"], row["n"]) for row in h.state()}
        assert state == {"ann": ("old", -3, 2), "bob": ("old", None, 1), "eve": (None, -5, 1)}
        h.restart()
        h.idle()
        assert {row["user"]: (row["kind"], row["first"], row["n"]) for row in h.state()} == state


class Pages(me.Operator):
    input = "user string, price bigint"
    output = "user string, n bigint"
    state: ClassVar = {"seen": me.KeyedTable(key="user string", value="price bigint")}

    def on_batch(self, rows, state, now):
        state["seen"].put(rows["user"], rows)
        return


class PagesWithNotes(Pages):
    state: ClassVar = {
        "prices": me.Multimap(key="user string", value="price bigint"),
        "latest": me.KeyedTable(key="user string", value="at timestamp, price bigint"),
    }

    def on_batch(self, rows, state, now):
        before = state["latest"].get(rows["user"])
        state["latest"].put(rows["user"], pa.table({"at": before["at"], "price": rows["price"]}))
        state["prices"].append(rows["user"], rows)


def test_tables_of_an_operator_are_added_and_renamed():
    PagesWithNotes.__name__ = "Pages"
    with me.testing.harness(ORDERS.process(Pages), bins=4) as h:
        h.batch([{"user": "ann", "price": 3}, {"user": "bob", "price": 4}])
        h.restart(
            ORDERS.process(PagesWithNotes), evolve="add", renames={"seen": "latest"}, defaults={"at": START}
        )  # fmt: skip
        h.batch([{"user": "bob", "price": 7}])
        latest = {row["user"]: (row["at"], row["price"]) for row in h.state(table="latest")}
        assert latest == {"ann": (START, 3), "bob": (START, 7)}
        assert [row["price"] for row in h.state(table="prices")] == [7]


# --- a function that converts ---------------------------------------------------------------------------


def cents(rows, state):
    return pa.table({"cents": pc.add(state["cents"].fill_null(0), sums(rows, state))}), None


def euros(rows, state):
    return pa.table(
        {"euros": pc.add(state["euros"].fill_null(0.0), pc.divide(sums(rows, state).cast("double"), 100.0))}
    ), None


def euros_and_more(rows, state):
    table, _ = euros(rows, state)
    return table.append_column("more", state["more"]), None


def sums(rows, state):
    totals = [0] * state.num_rows
    for group, price in zip(rows["__group"].to_pylist(), rows["price"].to_pylist(), strict=True):
        totals[group] += price
    return pa.array(totals, pa.int64())


CENTS = ORDERS.fold(cents, state="cents bigint", output="user string")
EUROS = ORDERS.fold(euros, state="euros double", output="user string")


def to_euros(rows):
    assert rows.column_names == ["user", "cents"]
    return rows.append_column("euros", pc.divide(rows["cents"].cast("double"), 100.0))


def euros_of(batches):
    totals = Counter()
    for batch in batches:
        for row in batch:
            totals[row["user"]] += row["price"]
    return {user: pytest.approx(total / 100) for user, total in totals.items()}


def test_a_function_converts_a_table_bin_by_bin_and_may_be_left_when_it_has_ended():
    batches = orders()
    with me.testing.harness(CENTS, bins=32, copy_bytes=1, snapshot_every=1 << 20) as h:
        place = h.driver.settings.checkpoint
        for batch in batches[:3]:
            h.batch(batch)
        with pytest.raises(ChangedQuery, match="a function given as evolve= can convert|say evolve="):
            h.restart(EUROS, evolve="add")
        h.restart(EUROS, evolve=to_euros)
        h.batch(batches[3])
        h.batch(batches[4])
        with pytest.raises(CheckpointError, match=r"'fold' is being converted by a function, .* read version 2,"):
            h.state()
        assert len(me.checkpoint(place).to_arrow("fold", version=2)) > 0
        with pytest.raises(ChangedQuery, match=r"'fold' that is being converted, .* give it again .*rollback\(to=2\)"):
            h.restart(EUROS)
        twice = ORDERS.fold(euros_and_more, state="euros double, more bigint", output="user string")
        with pytest.raises(ChangedQuery, match=r"has changed again, .* start with the query as it was until that has"):
            h.restart(twice, evolve="add")
        h.restart(EUROS, evolve={"fold": to_euros})
        h.rescale(3)
        h.batch(batches[5])
        h.idle()
        assert layouts_of(h) == {1}
        assert {row["user"]: row["euros"] for row in h.state()} == euros_of(batches[:6])
        h.restart(EUROS)
        h.batch(batches[6])
        h.restart(twice, evolve="add")
        h.batch(batches[7])
        assert {row["user"]: row["euros"] for row in h.state()} == euros_of(batches[:8])


def raises(rows):
    raise ValueError("no such rate")


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        (raises, r"raised ValueError in line \d+ of .*test_evolution.py: no such rate; mend it and start again"),
        (lambda rows: rows, "returned no column 'euros'; add it"),
        (lambda rows: None, "returned NoneType; return a pyarrow Table"),
        (lambda rows: to_euros(rows).slice(1), r"returned \d+ rows for \d+, or other keys"),
        (lambda rows: to_euros(rows).take(list(range(rows.num_rows))[::-1]), "or other keys; return the rows it gets"),
        (lambda rows: rows.append_column("euros", rows["user"]), "returned 'euros' as string, which cannot be double"),
    ],
)
def test_a_function_that_does_not_convert_ends_the_query_and_loses_nothing(function, sentence):
    with me.testing.harness(CENTS, workers=1, bins=4) as h:
        batch = [{"user": f"u{n}", "price": 250} for n in range(20)]
        h.batch(batch)
        h.restart(EUROS, evolve=function)
        with pytest.raises(QueryFailed, match=sentence) as caught:
            h.batch(batch)
        assert "\n" not in str(caught.value)
        h.restart(CENTS)
        h.batch(batch)
        assert {row["cents"] for row in h.state()} == {500}
        h.restart(EUROS, evolve=to_euros)
        h.batch(batch)
        h.idle()
        assert {row["euros"] for row in h.state()} == {7.5}


def test_the_way_back_is_kept_until_it_has_ended():
    batches = orders(batches=40, users=300)
    with me.testing.harness(CENTS, workers=1, bins=64, copy_bytes=1, snapshot_every=1 << 20, retain=2) as h:
        place = h.driver.settings.checkpoint
        for batch in batches[:3]:
            h.batch(batch)
        h.restart(EUROS, evolve=to_euros)
        for batch in batches[3:22]:  # the sweep has come by
            h.batch(batch)
        index = h.driver.log.index
        assert index.way_back == 2
        assert me.checkpoint(place).rollback(to=2, take_over=True).to == 2
        h.restart(CENTS)
        assert {row["user"]: row["cents"] / 100 for row in h.state()} == euros_of(batches[:3])
        h.batch(batches[3])
        h.restart(EUROS, evolve=to_euros)
        for batch in batches[4:]:
            h.batch(batch)
        h.idle()
        assert h.driver.log.index.way_back is None
        assert {row["user"]: row["euros"] for row in h.state()} == euros_of(batches)
        for batch in batches[:17]:
            h.batch(batch)
        with pytest.raises(CheckpointError):
            me.checkpoint(place).rollback(to=2, take_over=True)


def test_it_ends_within_a_number_of_versions_whatever_the_budget(monkeypatch):
    monkeypatch.setattr("meander.engine.driver.conversion.MAX_VERSIONS", 8)
    with me.testing.harness(OLD, bins=128, copy_bytes=1, snapshot_every=1 << 20) as h:
        h.batch(orders(users=1000, batches=1)[0] * 40)
        h.batch([{"user": f"u{n}", "price": 1} for n in range(1000)])
        h.restart(NEW, evolve="add", renames=RENAMES)
        left = []
        for _ in range(9):
            h.batch([{"user": "u1", "price": 1}])
            left.append(h.query.last_progress.unconverted)
        assert left[3] > 40
        assert left[-1] == 0


def test_it_ends_also_where_every_run_makes_one_version(monkeypatch):
    monkeypatch.setattr("meander.engine.driver.conversion.MAX_VERSIONS", 8)
    with me.testing.harness(OLD, workers=1, bins=16, snapshot_every=1 << 20) as h:
        h.batch([{"user": f"u{n}", "price": 1} for n in range(100)])
        h.restart(NEW, evolve="add", renames=RENAMES)
        for _ in range(8):
            h.batch([{"user": "u1", "price": 1}])
            h.restart()
        assert layouts_of(h) == {1}
        assert state_of(h) == {f"u{n}": (9, 9, 1, 1.0) if n == 1 else (1, 1, None, None) for n in range(100)}


# --- kills -------------------------------------------------------------------------------------------


class Kills:
    """A query that changes before batch 2, killed at a change of a file and started again until all batches are in."""

    def __init__(self, old, new, how, restart):
        self.old, self.new, self.how, self.again = old, new, how, restart
        self.batches = orders(seed=9, batches=5, users=12)

    def harness(self):
        h = me.testing.harness(self.old, workers=1, bins=4, copy_bytes=1, snapshot_every=1 << 20)
        for batch in self.batches[:2]:
            h.batch(batch)
        return h

    def story(self, h):
        h.restart(self.new, **self.how)
        h.batch(self.batches[2])
        h.batch(self.batches[3])
        h.idle()

    def points(self, monkeypatch):
        with self.harness() as h, monkeypatch.context() as patch:
            count = changes(patch)
            self.story(h)
            return count[0]

    def killed_at(self, point, monkeypatch):
        """Whether the query had changed in the checkpoint when it was killed, and the harness after all batches."""
        h = self.harness()
        with monkeypatch.context() as patch:
            changes(patch, until=point)
            with pytest.raises(Killed):
                self.story(h)
        log = Log.open(Location.of(h.driver.settings.checkpoint))
        is_new = log.index.design is not None
        assert is_new == (log.last.version >= 2)
        if is_new:
            with pytest.raises(ChangedQuery):
                h.restart(self.old)
            h.restart(self.new, **self.again)
        else:
            with pytest.raises(ChangedQuery):
                h.restart(self.new)
            h.restart(self.old)
            h.restart(self.new, **self.how)
        while next_batch(h) < len(self.batches):
            h.batch(self.batches[next_batch(h)])
        h.idle()
        assert not me.checkpoint(h.driver.settings.checkpoint).verify().damaged
        assert layouts_of(h) == {1}
        return is_new, h


def test_a_kill_at_every_point_of_an_addition_leaves_the_old_query_or_the_new_one(monkeypatch):
    case = Kills(OLD, LONGER, {"evolve": "add", "renames": RENAMES}, {})
    points = case.points(monkeypatch)
    assert points > 12, "a claim, announcements, offsets, entries, commits"
    outcomes = []
    for point in range(points):
        is_new, h = case.killed_at(point, monkeypatch)
        with h:
            assert state_of(h) == recount(case.batches, 2)
            counts, best = Counter(), {}
            for at, batch in enumerate(case.batches):
                counts.update(row["user"] for row in batch)
                best |= {row["user"]: counts[row["user"]] for row in batch if at >= 2}
            assert {row["user"]: row["n"] for row in h.state(1, "top")} == best
        outcomes.append(is_new)
    assert outcomes == sorted(outcomes)
    assert {*outcomes} == {False, True}


def test_a_kill_at_every_point_of_a_conversion_leaves_the_old_query_or_the_new_one(monkeypatch):
    case = Kills(CENTS, EUROS, {"evolve": to_euros}, {"evolve": to_euros})
    outcomes = []
    for point in range(case.points(monkeypatch)):
        is_new, h = case.killed_at(point, monkeypatch)
        with h:
            assert {row["user"]: row["euros"] for row in h.state()} == euros_of(case.batches)
        outcomes.append(is_new)
    assert outcomes == sorted(outcomes)
    assert {*outcomes} == {False, True}


def test_a_reader_describes_each_version_as_it_was():
    with me.testing.harness(OLD, bins=4) as h:
        h.batch([{"user": "a", "price": 3}])
        h.restart(LONGER, evolve="add", renames=RENAMES)
        h.batch([{"user": "a", "price": 4}])
        reader = Reader.open(h.driver.settings.checkpoint)
        assert [each["operator"] for each in reader.operators()] == ["aggregate", "top_k"]
        assert [each["operator"] for each in reader.operators(0)] == ["aggregate"]
        assert "paid" in reader.schema(0, "aggregate", 0).names
        assert "spent" in reader.schema(0, "aggregate").names
