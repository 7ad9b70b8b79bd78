"""The engine with executors in processes of their own: the same answers as in one."""

from __future__ import annotations

import os
import random
from collections import Counter

import pyarrow as pa
import pytest

import meander as me
from meander.outlook.practice import Effort
from streams import (
    BRIEF,
    PATIENCE_S,
    Feed,
    Several,
    by_batch,
    cut,
    executors,
    files_written,
    recounted,
    state_of,
    wait_until,
)

pytestmark = pytest.mark.spark

NOW = {"availableNow": True}


@pytest.fixture(scope="module")
def spark():
    session = me.session(
        "local-cluster[2,1,1024]", spark__executor__memory="1g", spark__sql__shuffle__partitions=2, **BRIEF
    )
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


def words(rows: int, rng: random.Random) -> pa.Table:
    return pa.table({"word": [f"w{int(rng.paretovariate(0.5)) % 200}" for _ in range(rows)]})


def test_counts_equal_a_recount_and_each_worker_has_an_executor(spark, tmp_path):
    """Started as soon as there is a session: the executors are still to come."""
    rng = random.Random(21)
    batches = cut(words(1500, rng), 3, rng)
    feed = Feed(tmp_path / "in", batches[0].schema, parts=2).add(*batches)
    stream = me.stream(feed.read(spark)).key_by("word").count()
    memory, files = me.sinks.memory(), me.sinks.files(str(tmp_path / "out"))

    query = stream.start(tmp_path / "ck", Several(memory, files), snapshot_every=2, trigger=NOW)
    query.await_termination(PATIENCE_S)
    expected = {number: found for number, found in enumerate(recounted(batches, ["word"])) if found}
    assert by_batch(memory.to_arrow(), ["word"]) == expected
    assert by_batch(files_written(tmp_path / "out"), ["word"]) == expected
    assert query.misrouted == 0
    assert len(query.workers) == len(executors(os.getpid())) == 2


@pytest.mark.slow
def test_a_query_looks_ahead_on_its_own_executors(spark, tmp_path):
    rng = random.Random(23)
    batches = [words(400, rng) for _ in range(3)]
    feed = Feed(tmp_path / "in", batches[0].schema).add(batches[0])
    query = me.stream(feed.read(spark)).key_by("word").count().start(tmp_path / "ck", me.sinks.memory(), bins=64)
    query.process_all_available()
    back_and_forth = me.Transitions.given([[0, 1], [1, 0]], lo=1)
    little = Effort(rounds=2, tasks=2, steps=100, rehearsals=2, length=20)
    for exactly in (True, False):
        query.look_ahead(back_and_forth, tau=0.3, exactly=exactly, effort=little)
        move = query.rescale(1 if exactly else 2, planner="mtm", tau=0.3, keep_executors=True)
        move.wait(PATIENCE_S)
        assert (move.report.planner, move.report.remarks) == ("mtm", ())
        feed.add(batches[2 if exactly else 1])
        query.process_all_available()
    query.stop()
    assert (len(query.workers), query.misrouted) == (2, 0)
    expected = Counter(word for batch in batches for word in batch["word"].to_pylist())
    assert {row["word"]: row["count"] for row in state_of(tmp_path / "ck")} == expected


def test_a_chain_and_a_large_output_on_executors(spark, tmp_path):
    rng = random.Random(23)
    batches = cut(words(800, rng), 3, rng)
    feed = Feed(tmp_path / "in", batches[0].schema).add(*batches)
    stream = me.stream(feed.read(spark)).key_by("word").count().key_by().top_k(2, by="count", identity=["word"])
    sink = me.sinks.memory()
    query = stream.start(tmp_path / "ck", sink, trigger=NOW)
    query.await_termination(PATIENCE_S)
    total = recounted([pa.concat_tables(batches)], ["word"])[0]
    best = sorted(((n, word) for (word,), n in total.items()), key=lambda each: (-each[0], each[1]))[:2]
    emitted = sink.to_arrow().to_pylist()
    last = [row for row in emitted if row["batch"] == max(row["batch"] for row in emitted)]
    assert [(row["count"], row["word"]) for row in sorted(last, key=lambda row: row["rank"])] == best
    assert query.misrouted == 0

    rows = pa.table({"key": [f"{n:>60}" for n in range(60_000)]})
    told = []

    def curious(df, version):
        told.append((df.count(), len(df.limit(1).collect()), df.agg({"count": "max"}).collect()[0][0]))

    feed = Feed(tmp_path / "large", rows.schema).add(rows, rows)
    query = me.stream(feed.read(spark)).key_by("key").count().start(tmp_path / "ck2", curious, trigger=NOW)
    query.await_termination(PATIENCE_S)
    assert told == [(60_000, 1, 1), (60_000, 1, 2)]
    assert query.misrouted == 0
    assert len(state_of(tmp_path / "ck2")) == 60_000


def test_the_users_exception_comes_back_from_an_executor(spark, tmp_path):
    def fails(rows, state):
        raise KeyError("nothing here")

    feed = Feed(tmp_path / "in", pa.schema([("word", pa.string())])).add(words(10, random.Random(1)))
    query = (
        me.stream(feed.read(spark))
        .key_by("word")
        .fold(fails, "n bigint", "word string")
        .start(tmp_path / "ck", me.sinks.memory(), trigger=NOW)
    )
    with pytest.raises(me.QueryFailed, match="KeyError: 'nothing here'"):
        query.await_termination(PATIENCE_S)
    assert "in fails" in str(query.exception())
    assert query.version == -1


def test_functions_over_keys_reach_executors_that_cannot_import_them(spark, tmp_path):
    factor = 10

    def scaled(user, rows, state):
        state.update(n=(state.n or 0) + factor * len(rows))
        return [(user, state.n)]

    batches = [words(300, random.Random(seed)) for seed in (1, 2)]
    feed = Feed(tmp_path / "in", pa.schema([("word", pa.string())])).add(*batches)
    total = recounted([pa.concat_tables(batches)], ["word"])[0]
    for number, function in enumerate((scaled, lambda key, rows, state: scaled(key, rows, state))):
        sink = me.sinks.memory()
        stream = (
            me.stream(feed.read(spark)).key_by("word").map_with_state(function, "n bigint", "word string, n bigint")
        )
        query = stream.start(tmp_path / f"ck{number}", sink, trigger=NOW)
        query.await_termination(PATIENCE_S)
        assert {row["word"]: row["n"] for row in sink.latest("word")} == {word: 10 * n for (word,), n in total.items()}
        assert query.misrouted == 0


class Steady:
    """A query over numbers that keep coming, and its check at the end."""

    def __init__(self, spark, folder, **options):
        from pyspark.sql import functions as F

        self.spark, self.folder = spark, folder
        self.key = lambda number: F.pmod(F.xxhash64(number), F.lit(3000)).alias("key")
        rate = spark.readStream.format("rate").option("rowsPerSecond", 2000).load()
        stream = me.stream(rate.select(self.key(rate["value"]))).key_by("key").count()
        self.query = stream.start(folder / "ck", me.sinks.memory(), bins=32, **options)
        self.go(2)

    def go(self, versions: int) -> None:
        wanted = self.query.version + versions
        wait_until(lambda: self.query.version >= wanted or self.query.exception(), "more versions")
        assert self.query.exception() is None

    def finish(self) -> None:
        self.query.stop()
        numbers = self.spark.range(sum(each.rows for each in self.query.recent_progress))
        counted = numbers.select(self.key(numbers["id"])).groupBy("key").count().collect()
        expected = {row["key"]: row["count"] for row in counted}
        assert {row["key"]: row["count"] for row in state_of(self.folder / "ck")} == expected
        assert self.query.misrouted == 0


def test_a_query_that_changes_keeps_its_state_and_its_function_reaches_the_executors(spark, tmp_path):
    rng = random.Random(27)
    batches = [words(200, rng) for _ in range(3)]
    feed = Feed(tmp_path / "in", batches[0].schema).add(batches[0])
    source = me.stream(feed.read(spark))

    def run(stream, **changed):
        query = stream.start(tmp_path / "ck", me.sinks.memory(), bins=16, trigger=NOW, snapshot_every=64, **changed)
        query.await_termination(PATIENCE_S)
        return query

    def counted(word, rows, state):
        state.update(n=(state.n or 0) + len(rows))

    def in_halves(word, rows, state):
        state.update(halves=(state.halves or 0.0) + len(rows) / 2)

    def converted(rows):
        return rows.append_column("halves", pa.array([n / 2 for n in rows["n"].to_pylist()], pa.float64()))

    whole = source.key_by("word").map_with_state(counted, state="n long", output="word string")
    half = source.key_by("word").map_with_state(in_halves, state="halves double", output="word string")
    run(whole)
    feed.add(batches[1])
    with pytest.raises(me.CheckpointError, match='renames={"n": "halves"}'):
        run(half)
    query = run(half, evolve=converted, copy_bytes=1)
    assert "evolving" in [event.name for event in query.events]
    feed.add(batches[2], batches[0])
    query = run(half.key_by("word").count(), evolve={"states": converted})
    assert query.last_progress.unconverted == 0, "its second version writes what its first one has read"
    assert list(query.assignment) == ["0:map_with_state", "1:count"]
    expected = Counter(word for batch in (*batches, batches[0]) for word in batch["word"].to_pylist())
    halves = me.checkpoint(tmp_path / "ck").to_arrow("map_with_state").to_pylist()
    assert {row["word"]: row["halves"] for row in halves} == {word: n / 2 for word, n in expected.items()}


@pytest.mark.slow
def test_bins_move_between_executors_without_a_process_ending(spark, tmp_path):
    steady = Steady(spark, tmp_path, workers=1)
    query = steady.query
    before = executors(os.getpid())
    up = query.rescale(2, keep_executors=True)
    assert up.wait(PATIENCE_S)
    assert len(query.workers) == 2
    assert (up.report.rows_held, up.report.longest_hold_ms, up.report.rows_misrouted) == (0, 0, 0)
    assert set(up.report.processes_before) < set(up.report.processes_after)
    swapped = query.move({bin_: 1 - owner for bin_, owner in enumerate(query.assignment["0:count"])})
    assert swapped.wait(PATIENCE_S)
    assert swapped.report.processes_before == swapped.report.processes_after
    steady.go(2)
    down = query.rescale(1, keep_executors=True)
    assert down.wait(PATIENCE_S)
    assert len(query.workers) == 1
    assert executors(os.getpid()) == before
    steady.go(2)
    steady.finish()


@pytest.mark.slow
def test_executors_go_when_they_are_drained_come_when_they_are_needed_and_can_be_restarted(spark, tmp_path):
    steady = Steady(spark, tmp_path, workers=2)
    query = steady.query
    first = executors(os.getpid())
    down = query.rescale(1)
    assert down.wait(PATIENCE_S)
    wait_until(lambda: len(executors(os.getpid())) == 1, "the executor to go")
    assert set(executors(os.getpid())) < set(first)
    assert down.report.executors == {"asked": 0, "came": 0, "let_go": 1}
    steady.go(2)
    up = query.rescale(2)
    assert up.wait(PATIENCE_S)
    assert up.report.executors == {"asked": 1, "came": 1, "let_go": 0}
    second = executors(os.getpid())
    assert len(second) == 2
    steady.go(2)
    bins = {bin_: 1 - owner for bin_, owner in enumerate(query.assignment["0:count"]) if bin_ % 4 == 0}
    restarted = query.move(bins, mode="restart_workers")
    assert restarted.wait(PATIENCE_S)
    assert not set(restarted.report.processes_before) & set(restarted.report.processes_after)
    assert restarted.report.longest_hold_ms > 0
    assert {bin_: query.assignment["0:count"][bin_] for bin_ in bins} == bins
    steady.go(2)
    steady.finish()
