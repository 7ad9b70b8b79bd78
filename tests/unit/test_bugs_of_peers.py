"""Bugs that Spark, Flink, Kafka Streams and RisingWave have had, as tests of this engine; each names its bug.

Further ones need what one process does not have, or stand where their subject is:

| bug | test |
| --- | --- |
| flink 13055: a worker that was cut off goes on | also `fault/test_migration_faults`: executors are stopped |
| spark 54697: a file goes that a snapshot still needs | `unit/test_checkpoint_retention`: started after every version |
| risingwave 13774: a move of everything at once doubles memory | `./dev bench migrate`: peak memory |
| spark 38291: a disk that is full | `unit/test_checkpoint_location`, `fault/test_migration_faults`: the disk is full |
| kafka 17942: a record that cannot be read | `unit/test_bad_rows`: dead letters |
"""

import datetime as dt
import threading
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest

import meander as me
from meander.engine.worker.messages import Token
from meander.engine.worker.task import Stale, sole
from meander.errors import Fenced
from meander.store import statefile
from meander.store.location import Location
from meander.store.reader import Reader
from meander.store.verify import verify

START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
KEYS = range(60)


def counting():
    return me.stream(me.testing.source("k bigint")).key_by("k").count()


def rows(*keys):
    return [{"k": key} for each in keys for key in each]


class Recount:
    """Feeds a harness and counts beside it."""

    def __init__(self, h):
        self.h, self.counts = h, Counter()

    def batch(self, *keys):
        self.counts.update(key for each in keys for key in each)
        touched = {key for each in keys for key in each}
        found = {row["k"]: row["count"] for row in self.h.batch(rows(*keys))}
        assert found == {key: self.counts[key] for key in touched}

    def check(self):
        """State and output, each against the recount."""
        state = self.h.state()
        assert len(state) == len(self.counts), "a key is there once"
        assert {row["k"]: row["count"] for row in state} == self.counts
        assert {row["k"]: row["count"] for row in self.h.latest("k")} == self.counts


def test_kafka_12540_a_bin_that_comes_back_is_not_served_from_a_stale_copy():
    with me.testing.harness(counting(), release_after=50) as h:
        recount = Recount(h)
        recount.batch(KEYS)
        (owners,) = h.query.assignment.values()
        mine = [bin_ for bin_, worker in enumerate(owners) if worker == 0]
        for target in (1, 0, 1, 0):
            h.move(dict.fromkeys(mine, target))
            recount.batch(KEYS, KEYS)
        recount.check()


def test_flink_18296_a_driver_that_was_replaced_deletes_nothing_that_the_next_one_needs(tmp_path):
    options = {"checkpoint": tmp_path / "ck", "retain": 1, "snapshot_every": 2}
    with me.testing.harness(counting(), **options) as old:
        recount = Recount(old)
        for _ in range(5):
            recount.batch(KEYS)
        with me.testing.harness(counting(), **options) as new:
            recount.h = new
            recount.batch(KEYS)
            with pytest.raises(Fenced):
                old.batch(rows(KEYS))
            old.query.stop()
            for _ in range(4):
                recount.batch(KEYS)
                assert verify(Location.of(tmp_path / "ck")).damaged == []
            new.restart()
            recount.batch(KEYS)
            assert {row["k"]: row["count"] for row in new.state()} == recount.counts


def test_spark_54602_files_of_an_attempt_that_failed_are_not_paired_with_the_next_ones_manifest(tmp_path, monkeypatch):
    """Killed between the deltas and the manifest; then another batch, of the same number, is committed."""
    with me.testing.harness(counting(), checkpoint=tmp_path / "ck", snapshot_every=2, retain=2) as h:
        recount = Recount(h)
        for version in range(6):
            with monkeypatch.context() as patch:

                def dies(rows, write):
                    raise OSError("killed")

                patch.setattr(h.sink, "prepare", dies)
                with pytest.raises(OSError, match="killed"):
                    h.batch(rows(range(100), range(version, 100)))
            h.restart()
            recount.batch(range(100), range(version, 100))
            assert verify(Location.of(tmp_path / "ck")).damaged == []
            for worker in (0, 1):
                h.lose(worker)
            recount.check()


def test_spark_54298_what_was_deleted_does_not_return_from_snapshots_and_deltas(tmp_path):
    stream = me.stream(me.testing.source("k bigint, at timestamp")).key_by("k").window("at", "1 minute").count()
    with me.testing.harness(stream, checkpoint=tmp_path / "ck", snapshot_every=3) as h:
        for minute in range(8):
            at = START + dt.timedelta(minutes=minute, seconds=1)
            h.batch([{"k": key, "at": at} for key in KEYS])
            h.lose(minute % 2)
            h.batch([{"k": 1, "at": at}])
            live = {(row["k"], row["window_start"]) for row in h.state()}
            assert {start for _, start in live} == {at.replace(second=0)}
            assert len(live) == len(KEYS)


@pytest.mark.parametrize("most", [1, 7])
def test_flink_14042_reads_that_return_less_than_was_asked_for_lose_nothing(most):
    table = pa.table({"__bin": pa.array(np.arange(300) // 40, pa.int32()), "x": np.arange(300)})
    data = statefile.write({"timers": table}, 8).data.to_pybytes()

    class Short:
        """A file that gives a few bytes at a time."""

        closed = False

        def __init__(self):
            self.at = 0

        def size(self):
            return len(data)

        def seek(self, to, whence=0):
            self.at = to if whence == 0 else len(data) + to
            return self.at

        def tell(self):
            return self.at

        def read(self, count=-1):
            part = data[self.at : self.at + min(count, most)] if count >= 0 else data[self.at :]
            self.at += len(part)
            return part

        def readable(self):
            return True

        def seekable(self):
            return True

        def close(self):
            pass

        def flush(self):
            pass

    assert statefile.read(pa.PythonFile(Short(), mode="r"))["timers"].equals(table)
    some = statefile.read(pa.PythonFile(Short(), mode="r"), [2, 3])["timers"]
    assert some["x"].to_pylist() == list(range(80, 160))


class Alarm(me.Operator):
    """Sets a timer for the time of its row, which may be long past, and tells when it fires."""

    input = "k bigint, at timestamp"
    output = "k bigint, time timestamp"
    state = {"alarms": me.Timers(key="k bigint")}  # noqa: RUF012
    time = "at"

    def on_batch(self, rows, state, now):
        state["alarms"].set(rows["at"], rows["k"])

    def on_time(self, due, state, now):
        return due["alarms"].select(["k", "time"])


def test_spark_55474_timers_at_and_below_the_watermark_fire_once_around_a_move():
    stream = me.stream(me.testing.source("k bigint, at timestamp")).key_by("k").process(Alarm())
    with me.testing.harness(stream) as h:
        h.batch([{"k": 0, "at": START + dt.timedelta(hours=1)}])
        past = [{"k": key, "at": START + dt.timedelta(minutes=key)} for key in range(1, 61)]
        h.batch(past)
        h.rescale(3)
        h.batch([])
        h.move({0: 1, 1: 0})
        h.end()
        fired = Counter((row["k"], row["time"]) for row in h.output())
        assert set(fired.values()) == {1}
        assert {key for key, _ in fired} == set(range(61))
        assert h.state(0, "alarms") == []


def test_flink_22584_a_rescale_of_nothing_and_of_next_to_nothing_loses_nothing():
    with me.testing.harness(counting(), workers=1) as h:
        recount = Recount(h)
        h.rescale(4)
        recount.batch([7])
        h.rescale(1)
        h.rescale(3)
        recount.batch([7], KEYS)
        h.idle()
        h.rescale(2)
        recount.batch(KEYS)
        recount.check()


def test_risingwave_8199_every_bin_has_one_owner_and_every_key_one_row_after_recovery(tmp_path):
    with me.testing.harness(counting(), checkpoint=tmp_path / "ck") as h:
        recount = Recount(h)
        for workers in (4, 2, 3):
            h.query.rescale(workers, schedule="fluid")
            recount.batch(KEYS)
            h.lose(0)
            h.restart()
            recount.batch(KEYS)
            (owners,) = h.query.assignment.values()
            last = Reader.open(tmp_path / "ck").log.last
            assert list(last.operators[0].owner) == list(owners)
            assert len(owners) == 16
            recount.check()


@pytest.mark.parametrize("jump_s", [3600.0, -3600.0])
def test_risingwave_1995_a_wall_clock_that_jumps_neither_loses_nor_repeats_a_version(jump_s, monkeypatch):
    with me.testing.harness(counting(), idle_time="wall") as h:
        recount = Recount(h)
        recount.batch(KEYS)
        now = h.clock.wall_ms
        monkeypatch.setattr(h.clock, "wall_ms", lambda: now() + int(jump_s * 1000))
        recount.batch(KEYS)
        h.idle()
        h.restart()
        recount.batch(KEYS)
        assert sorted(h.sink.versions) == list(range(h.query.version + 1))
        recount.check()


def test_kafka_8478_a_thousand_tasks_that_come_and_go_are_never_two_in_one_folder(tmp_path):
    """And kafka 15088: a task that has failed leaves no lock behind."""
    inside, most, problems = [], [], []

    def come_and_go(name):
        for attempt in range(500):
            try:
                with sole(tmp_path, Token(1, attempt, 0)):
                    inside.append(name)
                    most.append(len(inside))
                    inside.remove(name)
                    if attempt % 7 == 0:
                        raise OSError("the task has failed")
            except Stale:
                pass  # the other one is ahead
            except OSError as problem:
                problems.append(problem)

    threads = [threading.Thread(target=come_and_go, args=(name,)) for name in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(most) == 1
    assert problems
    with sole(tmp_path, Token(2, 0, 0)):
        pass


def test_flink_13055_an_attempt_that_wakes_after_a_later_one_touches_no_state(tmp_path):
    with sole(tmp_path, Token(1, 3, 1)):
        pass
    for late in (Token(1, 3, 0), Token(1, 2, 5), Token(0, 9, 9)):
        with pytest.raises(Stale, match="is older than attempt"), sole(tmp_path, late):
            pytest.fail("it was let in")


def test_spark_51706_a_sink_that_reads_one_row_only_does_not_cut_the_state(monkeypatch):
    with me.testing.harness(counting()) as h:
        prepare = h.sink.prepare
        monkeypatch.setattr(h.sink, "prepare", lambda output, write: prepare(output.slice(0, 1), write))
        for _ in range(3):
            assert len(h.batch(rows(KEYS))) == 1
        assert {row["k"]: row["count"] for row in h.state()} == dict.fromkeys(KEYS, 3)


def test_spark_53881_a_restart_in_the_middle_of_a_repartition_goes_on_with_it():
    with me.testing.harness(counting(), workers=2) as h:
        recount = Recount(h)
        recount.batch(KEYS)
        h.query.rescale(4, schedule="fluid")
        for _ in range(4):
            recount.batch(KEYS)
            h.restart()
        h.finish(h.query.migration)
        (owners,) = h.query.assignment.values()
        assert set(owners) == {0, 1, 2, 3}
        recount.batch(KEYS)
        recount.check()
