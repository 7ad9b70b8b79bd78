"""A stream over its life, without Spark: what fails and starts again, what is refused, and the end of event time."""

from __future__ import annotations

import datetime as dt
import random

import pyarrow as pa
import pytest

import meander as me
from in_process import emitted
from meander.engine.driver.ports import JobLost
from meander.errors import ChangedQuery
from meander.route.keys import KeyType
from meander.store.reader import Reader
from meander.testing.inprocess import InProcessJobs
from streams import as_ints, by_batch, cut, recounted

NUMBERS = as_ints([]).schema


def numbers():
    return me.stream(me.testing.source(NUMBERS)).key_by("key")


def committed(checkpoint) -> int:
    """The last committed version, read from the checkpoint alone."""
    return Reader.open(checkpoint).log.index.version


def test_another_query_is_refused_and_harms_nothing(tmp_path):
    stream = me.stream(me.testing.source("key bigint, word string"))
    rows = [{"key": key, "word": word} for key, word in ((1, "a"), (2, "b"), (1, "a"))]
    with me.testing.harness(stream.key_by("key").count(), bins=64, checkpoint=tmp_path / "ck") as h:
        h.batch(rows)
        h.batch(rows)
    others = {
        "64 bins, not 128": (stream.key_by("key").count(), 128),
        "key int64": (stream.key_by("word").count(), 64),
        "count": (stream.key_by("key").dedup(), 64),
        "count -> top_k": (stream.key_by("key").count().key_by().top_k(2, by="count"), 64),
    }
    for sentence, (other, bins) in others.items():
        with pytest.raises(ChangedQuery) as refusal:
            me.testing.harness(other, bins=bins, checkpoint=tmp_path / "ck")
        assert sentence in str(refusal.value)
        assert "\n" not in str(refusal.value)
        assert len(str(refusal.value)) < 500
        assert "Traceback" not in str(refusal.value)
    with me.testing.harness(stream.key_by("key").count(), bins=64, checkpoint=tmp_path / "ck") as h:
        assert h.batch([{"key": 1, "word": "z"}]) == [{"key": 1, "count": 5}]


def test_the_users_exception_stops_the_query_with_its_traceback_and_bin(tmp_path):
    def picky(rows, state):
        def refuse_unlucky(keys):
            if 13 in keys:
                raise ArithmeticError("thirteen is unlucky")

        refuse_unlucky(rows["key"].to_pylist())
        return patient(rows, state)

    def patient(rows, state):
        return pa.table({"seen": [True] * state.num_rows}), state.select(["key"])

    options = {"bins": 256, "checkpoint": tmp_path / "ck"}
    with me.testing.harness(numbers().fold(picky, "seen boolean", "key bigint"), **options) as h:
        h.batch(as_ints(range(10)))
        with pytest.raises(me.QueryFailed) as ending:
            h.batch(as_ints(range(30)))
        text = str(ending.value)
        unlucky = KeyType.of([pa.field("key", pa.int64())]).encode([pa.array([13], pa.int64())])
        assert text.splitlines()[0].startswith("fold (operator 0, worker ")
        assert f"in bin {int(unlucky.bins(256)[0])} failed in version 1: ArithmeticError: thirteen is unlucky" in text
        assert "in refuse_unlucky" in text
        assert "in picky" in text
        assert not h.query.is_active
        assert h.query.exception() is ending.value
        assert committed(tmp_path / "ck") == h.query.version == 0
        assert set(h.sink.versions) == {0}

    with me.testing.harness(numbers().fold(patient, "seen boolean", "key bigint"), **options) as h:
        h.batch(as_ints(range(30)))
        assert sorted(row["key"] for row in h.state()) == list(range(30))
        assert h.query.misrouted == 0


def test_a_sink_that_fails_commits_nothing_and_a_restart_ends_the_same(tmp_path, monkeypatch):
    rng = random.Random(3)
    batches = cut(as_ints([rng.randrange(30) for _ in range(500)]), 4, rng)
    expected = recounted(batches, ["key"])
    with me.testing.harness(numbers().count(), checkpoint=tmp_path / "ck") as h:
        for version in range(3):

            def fails(rows, write):
                raise ValueError(f"no room for {write.version}")

            with monkeypatch.context() as patch:
                patch.setattr(h.sink, "prepare", fails)
                with pytest.raises(ValueError, match=f"no room for {version}"):
                    h.batch(batches[version])
            assert h.query.version == version - 1
            assert version == 0 or committed(tmp_path / "ck") == version - 1
            assert isinstance(h.query.exception(), ValueError)
            h.restart()
            h.batch(batches[version])
        h.batch(batches[3])
        rows = by_batch(pa.Table.from_pylist(emitted(h)), ["key"])
        assert rows == {number: found for number, found in enumerate(expected) if found}
        total = {each: n for found in expected for each, n in found.items()}
        assert {(row["key"],): row["count"] for row in h.state()} == total


@pytest.mark.parametrize("losses", [1, 2, 5])
def test_a_sink_whose_job_loses_a_process_is_called_again_with_the_same_rows(losses, monkeypatch):
    with me.testing.harness(numbers().count(), attempts=3) as h:
        take, run, calls, jobs = h.sink.prepare, InProcessJobs.run, [], []

        def prepare(rows, write):
            calls.append((rows.to_pylist(), write.version))
            if len(calls) <= losses:
                raise JobLost("an executor is gone")
            return take(rows, write)

        monkeypatch.setattr(h.sink, "prepare", prepare)
        monkeypatch.setattr(InProcessJobs, "run", lambda *job: jobs.append(job) or run(*job))
        if losses < 3:
            assert h.batch(as_ints([1])) == [{"key": 1, "count": 1}]
        else:
            with pytest.raises(JobLost):
                h.batch(as_ints([1]))
            assert h.query.version == -1
        assert calls == [([{"key": 1, "count": 1}], 0)] * min(losses + 1, 3)
        assert len(jobs) == 1, "the operators do not run again: their output is still there"


START = dt.datetime(2024, 5, 1, tzinfo=dt.UTC)


def ticking(*seconds: int) -> list[dict]:
    """Rows of one user at these seconds."""
    return [{"user": "a", "ts": START + dt.timedelta(seconds=second)} for second in seconds]


def test_event_time_ends_first_for_the_windows_that_others_count():
    stream = me.stream(me.testing.source("user string, ts timestamp"))
    stream = stream.key_by("user").window("ts", "10s", emit="final").count()
    # What the first windows say last must still be in time for the second ones.
    stream = stream.key_by("user").window("window_start", "20s", emit="final").aggregate(n=("sum", "count"))
    with me.testing.harness(stream) as h:
        h.batch(ticking(0, 1))
        h.batch(ticking(11, 12, 25))
        for _ in range(2):  # the second time there is nothing left to close
            h.end()
            assert sorted(row["n"] for row in h.output()) == [1, 4]
            assert h.late() == []
            h.restart()
        h.batch(ticking(40))
        assert len(h.late()) == 1


def test_an_idle_stream_closes_the_windows_that_are_due_and_no_others():
    stream = me.stream(me.testing.source("user string, ts timestamp"))
    with me.testing.harness(stream.key_by("user").window("ts", "10s", emit="final").count()) as h:

        def windows():
            """Those that came out: their start in seconds, and their count; none twice."""
            rows = h.output()
            closed = {int((row["window_start"] - START).total_seconds()): row["count"] for row in rows}
            assert len(closed) == len(rows)
            return closed

        h.batch(ticking(1, 2, 12, 25))
        h.idle()
        assert windows() == {0: 2, 10: 1}
        assert [len(h.query.recent_progress), len(h.query.recent_ticks)] == [1, 1]
        h.batch(ticking(31))
        h.idle()
        assert windows() == {0: 2, 10: 1, 20: 1}
        # A restart after ticks goes on as if there had been none.
        h.restart()
        h.batch(ticking(32, 45))
        h.idle()
        assert windows() == {0: 2, 10: 1, 20: 1, 30: 2}
        assert h.query.misrouted == 0
