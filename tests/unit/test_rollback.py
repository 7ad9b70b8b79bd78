"""Going back to an older version: old or new wherever it is killed, and what comes again gives the same output."""

from __future__ import annotations

import datetime as dt
import os
import random
import shutil
import socket
from contextlib import suppress

import pytest

import meander as me
from count_case import Case
from kills import Killed, changes
from meander.engine.driver.ports import OutputLost
from meander.errors import CheckpointError, Fenced, InvalidOption
from meander.store.location import Location
from meander.store.manifest import Log
from meander.store.reader import Reader

START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


def spark_log(case, name):
    return sorted(int(path.name) for path in (case.checkpoint / "spark" / name).iterdir())


def test_state_offsets_and_files_go_back_together_and_what_comes_again_gives_the_same(tmp_path):
    case = Case(tmp_path).start().put(6)
    rollback = case.rollback(2)
    assert (rollback.to, rollback.number, rollback.undone, rollback.batches, rollback.rows) == (2, 6, (3, 4, 5), 3, 60)
    assert case.state() == case.recount(3)
    assert case.shown() == case.emitted(3)
    assert (spark_log(case, "offsets"), spark_log(case, "commits")) == ([0, 1, 2], [0, 1, 2])
    kept = case.checkpoint / "undone" / "6" / "offsets"
    assert sorted(path.name for path in kept.iterdir()) == ["3", "4", "5"]
    assert sorted(path.name[2:3] for path in (tmp_path / "out" / ".undone").iterdir()) == ["3", "4", "5"]
    case.start().put(5)
    case.check(8)
    assert sorted(case.sink.calls) == [0, 1, 2, 3, 4, 5, 7, 8, 9, 10, 11]


def with_six_versions(folder):
    case = Case(folder)
    case.start().put(5)
    case.sink.dies_in = "commit"  # version 5 is committed, and not shown
    with pytest.raises(Killed):
        case.put()
    return case


def test_a_kill_at_every_point_leaves_the_old_version_or_the_new_one(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        count = changes(patch)
        with_six_versions(tmp_path / "all").rollback(2)
    with monkeypatch.context() as patch:
        before = changes(patch)
        with_six_versions(tmp_path / "before")
    points = count[0] - before[0]
    assert points > 15, "copies, an entry, offsets, commits, folders"
    outcomes = []
    with_six_versions(tmp_path / "case")
    shutil.copytree(tmp_path / "case", tmp_path / "copy")
    for point in range(points):
        shutil.rmtree(tmp_path / "case")
        shutil.copytree(tmp_path / "copy", tmp_path / "case")
        case = Case(tmp_path / "case")
        with monkeypatch.context() as patch:
            changes(patch, until=point)
            with pytest.raises(Killed):
                case.rollback(2)
        reader = Reader.open(case.checkpoint)
        version = reader.log.index.version
        assert case.state() == case.recount(6 if version == 5 else 3)
        assert version in (5, 6)
        assert not me.checkpoint(case.checkpoint).verify().damaged
        outcomes.append(version)
        case.start()
        assert case.run.stream.next_batch == (6 if version == 5 else 3)
        assert case.shown() == case.emitted(6 if version == 5 else 3)
        case.put(2)
        case.check(8 if version == 5 else 5)
    assert outcomes == sorted(outcomes)
    assert set(outcomes) == {5, 6}


def test_a_start_after_a_killed_rollback_may_be_killed_too(tmp_path, monkeypatch):
    """What is owed is done before Spark begins anything, and never after that."""
    case = with_six_versions(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr("meander.store.rollback.finish", lambda log: None)
        case.rollback(2)
    assert spark_log(case, "offsets") == [0, 1, 2, 3, 4, 5]
    for point in range(40):
        with monkeypatch.context() as patch:
            changes(patch, until=point)
            try:
                case.start()
            except Killed:
                continue
            break
    else:
        pytest.fail("it never starts")
    assert point > 5
    case.sink.dies_in = "prepare"  # version 7 is begun: the sink has heard of it
    with pytest.raises(Killed):
        case.put()
    case.start()
    assert spark_log(case, "offsets") == [0, 1, 2, 3], "what is begun is not undone by a rollback before it"
    case.put(4)
    case.check(7)


def test_a_number_that_was_begun_is_never_used_again(tmp_path):
    case = Case(tmp_path).start().put(4)
    case.sink.dies_in = "prepare"
    with pytest.raises(Killed):
        case.put()
    planned = me.checkpoint(case.checkpoint).rollback(1, dry_run=True)
    assert planned.number == 5, "the sink has heard of 4"
    assert case.state() == case.recount(4)
    assert case.rollback(1) == planned
    case.start().put(4)
    assert sorted(case.sink.calls) == [0, 1, 2, 3, 4, 6, 7, 8, 9]
    case.check(6)
    with pytest.raises(CheckpointError, match="version 3 was undone by a rollback"):
        me.checkpoint(case.checkpoint).to_arrow("count", version=3)
    with pytest.raises(CheckpointError, match="version 4 was undone"):
        case.rollback(4)


def test_a_driver_that_wakes_up_after_a_rollback_shows_nothing(tmp_path):
    case = with_six_versions(tmp_path)
    token = Log.open(Location.of(case.checkpoint)).last.sink
    case.rollback(2)
    with pytest.raises(OutputLost):
        case.sink.commit(token)
    case.put()  # it has committed the batch, as it believes, and so Spark notes that it is over
    assert spark_log(case, "commits") == [0, 1, 2, 5]
    with pytest.raises(Fenced):
        case.put()
    assert case.shown() == case.emitted(3)
    case.start()
    assert (spark_log(case, "offsets"), spark_log(case, "commits")) == ([0, 1, 2], [0, 1, 2])
    case.put(4)
    assert spark_log(case, "commits") == list(range(7))
    case.check(7)


def test_rollbacks_behind_one_another(tmp_path):
    case = Case(tmp_path).start().put(6)
    assert case.rollback(4).number == 6
    assert case.rollback(3).number == 7  # no query has run in between
    case.start().put(2)  # 8 and 9: batches 4 and 5
    again = case.rollback(8)
    assert (again.number, again.undone, again.batch) == (10, (9,), 4)
    case.start().put(3)  # 11, 12, 13
    back = case.rollback(1)
    assert (back.number, back.undone) == (14, (2, 3, 7, 8, 10, 11, 12, 13))
    case.start().put(4)
    case.check(6)
    assert [each.number for each in me.checkpoint(case.checkpoint).versions()] == [0, 1, 14, 15, 16, 17, 18]


@pytest.mark.parametrize("seed", range(4))
def test_any_sequence_of_batches_rollbacks_kills_and_sweeps_counts_every_row_once(tmp_path, seed, monkeypatch):
    rng = random.Random(seed)
    case = Case(tmp_path, seed, batches=80, retain=rng.choice([2, 5, 40]), snapshot_every=rng.choice([1, 3, 32]))
    case.start()
    line = []  # the version of each batch
    for _ in range(40):
        roll = rng.random()
        if roll < 0.7:
            case.put()
            line.append(case.run.driver.loop.version)
        elif roll < 0.8:
            case.start()
        elif len(line) > 1:
            known = me.checkpoint(case.checkpoint).versions()
            reachable = [each for each in known[:-1] if each.is_restorable]
            if not reachable:
                continue
            target = rng.choice(reachable)
            with monkeypatch.context() as patch:
                changes(patch, until=rng.choice([None, *range(20)]))
                with suppress(Killed):
                    case.rollback(target.number)
            case.start()
            batch = case.run.stream.next_batch
            assert batch in (target.batch + 1, len(line))
            del line[batch:]
        assert case.state() == case.recount(len(line))
    case.put(17)  # the sweep has come by
    case.check(len(line) + 17)
    live = {each.number for each in me.checkpoint(case.checkpoint).versions()}
    named = (
        {int(path.name[1:13]) for path in (case.checkpoint / "deltas").iterdir()}
        if (case.checkpoint / "deltas").exists()
        else set()
    )
    assert all(version in live or version < min(live) for version in named), "state of undone versions is swept"


# --- event time, late rows ------------------------------------------------------------------------


def test_ticks_late_rows_and_dead_letters_go_back_too(tmp_path):
    stream = me.stream(me.testing.source("key string, ts timestamp")).key_by("key").window("ts", "10s").count()
    rows = [
        [{"key": key, "ts": START + dt.timedelta(seconds=second)} for key, second in batch]
        for batch in (
            [("a", 1), ("b", 2)],
            [("a", 12), ("b", 14)],
            [("a", 25), (None, 25), ("b", 3)],  # b is too late, and one has no key
            [("a", 38)],
        )
    ]
    with me.testing.harness(stream, checkpoint=tmp_path / "ck") as harness:
        for batch in rows[:2]:
            harness.batch(batch)
            harness.idle()
        reached = harness.query.version
        frontier = harness.driver.event_time.frontiers
        for batch in rows[2:]:
            harness.batch(batch)
            harness.idle()
        expected = sorted(map(repr, harness.output()))
        late, dead = len(harness.late()), len(harness.dead())
        assert (late, dead) == (1, 1)
        kinds = [each.kind for each in me.checkpoint(tmp_path / "ck").versions()]
        assert {"tick", "batch"} == set(kinds)
        me.checkpoint(tmp_path / "ck").rollback(reached, take_over=True)
        harness.restart()
        assert harness.driver.event_time.frontiers == frontier
        assert (len(harness.late()), len(harness.dead())) == (0, 0)
        for batch in rows[2:]:
            harness.batch(batch)
            harness.idle()
        assert sorted(map(repr, harness.output())) == expected
        assert (len(harness.late()), len(harness.dead())) == (1, 1)


def test_an_announced_tick_is_undone_with_the_rest(tmp_path):
    stream = me.stream(me.testing.source("key string, ts timestamp")).key_by("key").window("ts", "10s").count()
    with me.testing.harness(stream, checkpoint=tmp_path / "ck") as harness:
        for second in (1, 12, 25):
            harness.batch([{"key": "a", "ts": START + dt.timedelta(seconds=second)}])

        def die(output, write):
            raise Killed

        harness.sink.prepare = die
        harness.clock.advance(5)
        with pytest.raises(Killed):
            harness.idle()
        log = Log.open(Location.of(tmp_path / "ck"))
        assert log.announced is not None
        rollback = me.checkpoint(tmp_path / "ck").rollback(0, take_over=True)
        assert rollback.number == log.announced.version + 1
        del harness.sink.prepare
        harness.restart()
        for second in (12, 25):
            harness.batch([{"key": "a", "ts": START + dt.timedelta(seconds=second)}])
        harness.end()
        counts = {(row["window_start"].second, row["count"]) for row in harness.output()}
        assert counts == {(0, 1), (10, 1), (20, 1)}


def test_owners_and_a_migration_under_way_stay_as_they_are(tmp_path):
    stream = me.stream(me.testing.source("user string")).key_by("user").count()
    with me.testing.harness(stream, workers=2, checkpoint=tmp_path / "ck") as harness:
        for _ in range(3):
            harness.batch([{"user": f"u{n}"} for n in range(30)])
        harness.rescale(4)
        owners = harness.query.assignment
        me.checkpoint(tmp_path / "ck").rollback(0, take_over=True)
        harness.restart()
        assert harness.query.assignment == owners
        harness.batch([{"user": "u1"}])
        assert {row["user"]: row["count"] for row in harness.state()} == {f"u{n}": 1 + (n == 1) for n in range(30)}


# --- refusals ---------------------------------------------------------------------------------------


def test_what_cannot_be_done_is_refused_in_one_sentence_and_changes_nothing(tmp_path):
    case = Case(tmp_path, batches=40, retain=3)
    case.start().put(36)
    opened = me.checkpoint(case.checkpoint)
    before = {path: path.read_bytes() for path in case.checkpoint.rglob("*") if path.is_file()}
    with pytest.raises(CheckpointError, match="a query of this process runs on .*; stop it first"):
        opened.rollback(34)
    case.run.stop()
    with pytest.raises(CheckpointError, match=r"the last driver .* ran on d1 with pid 1, .* cannot be seen from here"):
        opened.rollback(34)
    for to in (35, 40):
        with pytest.raises(InvalidOption, match=f"the last version is 35; give an older one than that, not {to}"):
            opened.rollback(to, take_over=True)
    with pytest.raises(InvalidOption, match="to is -1"):
        opened.rollback(-1, take_over=True)
    kept = [each.number for each in opened.versions() if each.is_restorable]
    with pytest.raises(CheckpointError) as refusal:
        opened.rollback(0, take_over=True)
    assert str(refusal.value).endswith(f"versions that can be reached: {kept[0]} to {kept[-2]}")
    assert 0 < kept[0] <= 33
    after = {path: path.read_bytes() for path in case.checkpoint.rglob("*") if path.is_file()}
    assert before == after


def test_a_process_that_lives_is_not_taken_over_unasked(tmp_path):
    case = Case(tmp_path).start().put(3)
    case.run.stop()
    log = Log.open(Location.of(case.checkpoint))
    log.claim(socket.gethostname(), os.getppid())
    with pytest.raises(CheckpointError, match=f"the process {os.getppid()}, .* is alive; stop the query"):
        me.checkpoint(case.checkpoint).rollback(1)
    log.claim(socket.gethostname(), os.getpid())
    assert me.checkpoint(case.checkpoint).rollback(1).to == 1


@pytest.mark.parametrize("harm", ["state", "offsets", "stateful source"])
def test_a_version_that_is_not_whole_is_not_gone_back_to(tmp_path, harm, monkeypatch):
    case = Case(tmp_path).start().put(4)
    if harm == "offsets":
        (case.checkpoint / "spark" / "offsets" / "1").unlink()
        sentence = "Spark has dropped batch 1 from its logs; versions that can be reached: 0, 2"
    elif harm == "stateful source":
        (case.checkpoint / "spark" / "state" / "0").mkdir(parents=True)
        sentence = "the source keeps state of its own.*; no other version can be reached"
    else:
        monkeypatch.setattr("meander.store.rollback.read_state", broken)
        sentence = "a file is torn; versions that can be reached: 0, 2"
    with pytest.raises(CheckpointError, match=f"cannot go back to version 1: {sentence}"):
        case.rollback(1)


def broken(location, file):
    raise CheckpointError("a file is torn")
