"""The number of a version names one content for good, whoever calls the sink with it and however often."""

from __future__ import annotations

import datetime as dt
import threading
from collections import defaultdict
from dataclasses import replace

import pyarrow as pa
import pytest

import meander as me
from meander.cli.inspect import inspect
from meander.cli.show import AnswerFormat
from meander.clock import ManualClock
from meander.engine.driver import hook as hooks
from meander.engine.driver.ports import OutputLost
from meander.engine.driver.run import QueryRun
from meander.engine.driver.settings import Settings
from meander.errors import Damaged, Fenced, ForeignCheckpoint, QueryFailed
from meander.store.location import Location
from meander.store.manifest import read_entry
from meander.store.reader import Reader
from meander.store.verify import verify
from meander.testing.inprocess import InProcessCluster, InProcessJobs
from meander.testing.stream import InProcessLaunch

START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


class Death(Exception):
    """The driver is gone, at this moment."""


class Seen:
    """A sink that ignores numbers it has seen, and a list of every call; by wish the driver dies behind a call."""

    def __init__(self):
        self.held = {}
        self.calls = defaultdict(list)
        self.meanwhile = None

    def prepare(self, rows, write):
        if self.meanwhile is not None:
            meanwhile, self.meanwhile = self.meanwhile, None
            meanwhile(rows, write)
        self._keep(rows, write)

    def commit(self, token):
        """There is no second step."""

    abort = sweep = commit

    def _keep(self, rows, write):
        listed = sorted((row["key"], row["window_start"].second, row["count"]) for row in rows.to_pylist())
        self.calls[write.version].append(listed)
        self.held.setdefault(write.version, listed)

    def die(self):
        """Let the driver die behind its next call."""

        def dies(rows, write):
            self._keep(rows, write)
            raise Death

        self.meanwhile = dies

    def rows(self):
        """What it holds, in order; every call of a number must have brought the same."""
        for number, calls in self.calls.items():
            assert all(call == calls[0] for call in calls), f"number {number} came with {calls}"
        return sorted(row for rows in self.held.values() for row in rows)


class Life:
    """A query that counts ten seconds of event time, over all of its drivers."""

    def __init__(self, folder):
        self.folder, self.clock, self.sink = folder, ManualClock(), Seen()
        self.cluster = InProcessCluster(folder / "executors", 2)

    def begin(self, emit="final", **settings):
        """Emit each window once, or with every change; then a tick emits nothing."""
        source = me.testing.source("key string, ts timestamp")
        stream = me.stream(source).key_by("key").window("ts", "10s", emit=emit).count()
        operators = [node.operator for node in stream.nodes]
        jobs = InProcessJobs(operators, source.schema, self.cluster, self.sink)
        chosen = Settings(str(self.folder / "ck"), 2, 4, **settings)
        self.launch = InProcessLaunch(
            operators, Location.of(self.folder / "ck"), self.cluster, jobs, chosen, self.clock, 2
        )
        self.restart()
        return self

    def restart(self):
        """The driver is gone, or goes on without knowing; another one takes over."""
        self.driver, self.stream = self.launch.start()

    @property
    def loop(self):
        return self.driver.loop

    def batch(self, rows):
        self.clock.advance(1.0)
        self.stream.put(pa.Table.from_pylist(rows, self.launch.jobs.schema))

    def idle(self, seconds=2.0):
        """Let nothing come, until there is nothing to do."""
        self.clock.advance(seconds)
        while self.loop.wants_tick and self.loop.tick_if_wanted():
            pass

    def end(self):
        """Let event time be over."""
        self.loop.settle()
        self.driver.event_time.end(0)
        self.loop.settle()

    def late(self):
        reader = Reader.open(self.folder / "ck")
        return [row for rows in reader.side("late") for row in rows.to_pylist()]

    def kinds(self):
        """The kinds of the entries of the log."""
        return [read_entry(self.driver.log.location, at)[0].kind for at in range(self.driver.log.next_sequence)]


@pytest.fixture
def life(tmp_path):
    return Life(tmp_path)


def rows_at(*seconds, key="a"):
    return [{"key": key, "ts": START + dt.timedelta(seconds=second)} for second in seconds]


def test_a_tick_that_the_sink_has_heard_of_keeps_its_number(life, capsys):
    h = life.begin("update")
    sink = h.sink
    h.batch(rows_at(1, 2))
    h.batch(rows_at(13))
    sink.die()
    with pytest.raises(Death):
        h.idle()
    assert verify(h.launch.location).damaged == []
    inspect(str(h.folder / "ck"), format=AnswerFormat.table)
    sentence = "version 2 is begun and not committed: batch 1, tick 1; the next start finishes it first"
    assert sentence in " ".join(capsys.readouterr().out.split())
    h.restart()
    h.batch(rows_at(27))
    h.end()
    assert verify(h.launch.location).damaged == []
    assert sink.rows() == [("a", 0, 2), ("a", 10, 1), ("a", 20, 1)]
    assert len(sink.calls[2]) == 2
    assert [(each.batch, each.tick) for each in h.loop.progress[:2]] == [(1, 1), (2, 0)]


def test_a_batch_that_the_sink_has_heard_of_keeps_its_number(life):
    h = life.begin("update")
    sink = h.sink
    h.batch(rows_at(1, 2))
    h.batch(rows_at(13))
    sink.die()
    with pytest.raises(Death):
        h.batch(rows_at(27))
    h.restart()
    h.idle(60)
    assert h.loop.version == 1, "the batch comes first"
    with pytest.raises(QueryFailed, match=r"batch 2 was begun before the query was started again"):
        h.loop.tick()
    h.batch(rows_at(27))
    h.idle()
    h.end()
    assert sink.rows() == [("a", 0, 2), ("a", 10, 1), ("a", 20, 1)]


def test_a_tick_that_was_announced_goes_by_its_own_time(life):
    h = life.begin(idle_time="wall")
    sink = h.sink
    h.batch(rows_at(1, 2, 13, 24))
    sink.die()
    with pytest.raises(Death):
        h.idle(4)  # until second 28: two windows close
    h.restart()
    h.clock.advance(600)  # a long time, in which the third would close too
    h.idle()
    assert sink.calls[1] == [[("a", 0, 2), ("a", 10, 1)]] * 2
    h.idle(60)
    assert sink.rows() == [("a", 0, 2), ("a", 10, 1), ("a", 20, 1)]


@pytest.mark.parametrize("again", ["idle", "end", "batch"])
def test_the_end_of_event_time_that_was_announced_stays_the_end(life, again):
    h = life.begin("update" if again == "end" else "final")
    sink = h.sink
    h.batch(rows_at(1))
    h.idle()
    sink.die()
    with pytest.raises(Death):
        h.end()
    h.restart()
    if again == "batch":
        h.batch(rows_at(3))
        assert len(h.late()) == 1
    else:
        getattr(h, again)()
    assert sink.rows() == [("a", 0, 1)]
    assert len(sink.calls[2]) == 2


def test_a_driver_that_was_replaced_in_its_sink_calls_it_with_what_its_successor_wrote(life):
    h = life.begin("update")
    sink = h.sink
    h.batch(rows_at(1, 2))
    h.batch(rows_at(13))

    def another_driver(*_):
        h.restart()
        h.batch(rows_at(27))
        h.idle()

    sink.meanwhile, old = another_driver, h.driver
    with pytest.raises(Fenced):
        h.idle()
    assert h.loop.failure is None, "the new one goes on"
    assert h.driver is not old
    h.end()
    assert sink.rows() == [("a", 0, 2), ("a", 10, 1), ("a", 20, 1)]
    assert len(sink.calls[2]) == 2


def test_a_tick_whose_output_was_lost_is_announced_once(life):
    h = life.begin()
    sink = h.sink
    h.batch(rows_at(1, 2))
    h.batch(rows_at(13))

    def lost(*_):
        raise OutputLost("the executor is gone")

    sink.meanwhile = lost
    h.idle()
    assert h.kinds() == ["claim", "commit", "commit", "announcement", "commit"]
    assert sink.rows() == [("a", 0, 2)]


def test_a_tick_that_failed_comes_before_the_next_batch_of_the_same_driver(life):
    h = life.begin("update")
    sink = h.sink
    h.batch(rows_at(1, 2))
    h.batch(rows_at(13))
    sink.die()
    with pytest.raises(Death):
        h.loop.settle()
    h.batch(rows_at(27))
    h.end()
    assert sink.rows() == [("a", 0, 2), ("a", 10, 1), ("a", 20, 1)]


def test_a_tick_that_failed_before_it_was_announced_leaves_event_time_as_it_was(life, monkeypatch):
    h = life.begin("update", idle_time="wall")
    h.batch(rows_at(1, 2))
    h.batch(rows_at(13))
    with monkeypatch.context() as patch:

        def fails(*_):
            raise QueryFailed("a timer of the user's has failed")

        patch.setattr(h.launch.jobs, "run", fails)
        with pytest.raises(QueryFailed):
            h.idle(60)
    h.sink.die()
    with pytest.raises(Death):
        h.batch(rows_at(14, 27))
    h.restart()
    h.batch(rows_at(14, 27))
    assert h.sink.rows() == [("a", 0, 2), ("a", 10, 1), ("a", 10, 2), ("a", 20, 1)]
    assert h.late() == []


# --- a hook that makes two versions of a batch ---------------------------------------------------


class Halves:
    """Makes a version of the keys before `note["from"]`, and one of the others."""

    name = "halves"

    def __init__(self, note=None, begin=None):
        self.note, self.begin = note, begin

    @property
    def holds_ticks(self):
        return self.note is not None

    def make(self, loop, batch):
        border = self.note["from"] if self.note else self.begin
        if border is None:
            loop.advance(batch)
        else:
            self._advance(loop, batch, border, {"from": border}, first=True)
            self.finish(loop, batch)

    def finish(self, loop, batch):
        if self.note is not None:
            self._advance(loop, batch, self.note["from"], None, first=False)

    def _advance(self, loop, batch, border, note, first):
        rows = batch.rows.filter(pa.compute.less(batch.rows["key"], border))
        if not first:
            rows = batch.rows.filter(pa.compute.greater_equal(batch.rows["key"], border))
        before, self.note = self.note, note
        try:
            loop.advance(replace(batch, rows=rows, tick=0 if first else 1))
        except Exception:
            self.note = before
            raise


@pytest.mark.parametrize("dies_at", [2, 3])
def test_a_version_of_some_bins_that_the_sink_has_heard_of_keeps_its_bins(life, monkeypatch, dies_at):
    monkeypatch.setattr(hooks, "Plugins", lambda group: {"halves": Halves})
    h = life.begin()
    sink = h.sink
    h.batch([*rows_at(1), *rows_at(2, 3, key="b")])
    h.batch([*rows_at(11), *rows_at(11, key="b")])
    h.loop.use(Halves(begin="b"))
    batch = [*rows_at(12, 21), *rows_at(22, 23, key="b")]
    if dies_at == 2:
        sink.die()
    else:
        sink.meanwhile = lambda *_: sink.die()  # it dies behind the call after this one
    with pytest.raises(Death):
        h.batch(batch)
    h.restart()
    h.stream.next_batch = 2  # Spark has not noted that it was made
    h.idle()
    assert h.loop.version == dies_at - 1, "the rest of the batch comes first"
    h.batch(batch)
    h.end()
    late = [(row["key"], row["ts"].second) for row in h.late()]
    kept = [("a", 10, 2), ("a", 20, 1), ("b", 10, 1), ("b", 20, 2)]
    assert sink.rows() == sorted([("a", 0, 1), ("b", 0, 2), *kept])
    assert late == []
    assert len(sink.calls[dies_at]) == 2


def test_another_batch_in_place_of_the_one_that_was_announced_is_refused(life, monkeypatch):
    monkeypatch.setattr(hooks, "Plugins", lambda group: {"halves": Halves})
    h = life.begin()
    sink = h.sink
    h.batch([*rows_at(1), *rows_at(2, 3, key="b")])
    h.loop.use(Halves(begin="b"))
    sink.die()
    with pytest.raises(Death):
        h.batch([*rows_at(12), *rows_at(22, key="b")])
    offsets = h.folder / "ck" / "spark" / "offsets" / "1"
    announced = offsets.read_text()
    offsets.unlink()
    h.restart()
    assert offsets.read_text() == announced, "the announcement has it"
    offsets.write_text(announced.replace("2", "1"))
    with pytest.raises(ForeignCheckpoint, match=r"version 1 was begun with batch 1, and Spark runs batch 1 or ano"):
        h.batch(rows_at(12))


# --- the race at the end of a query --------------------------------------------------------------


def test_the_ticker_does_not_take_our_own_manifest_for_another_drivers(life):
    h = life.begin()
    h.batch(rows_at(1, 2))
    h.batch(rows_at(13))
    driver = h.driver
    looks = []
    inner = driver.log.location

    def create(path, data):
        """The file is there, and not yet in the driver's memory: at this moment the ticker looks."""
        replace(inner, exclusive=None).create(path, data)
        look = threading.Thread(target=driver.ticker.look)
        look.start()
        look.join(0.2)
        looks.append(look)

    driver.log.location = replace(inner, exclusive=create)
    h.stream.stop()
    driver.loop.settle()
    assert looks
    for look in looks:
        look.join()
    assert driver.loop.failure is None
    driver.log.location = inner


# --- what a driver fails of that was replaced ------------------------------------------------------


def test_a_replaced_driver_says_so_whatever_it_meets(life, monkeypatch):
    h = life.begin()
    h.batch(rows_at(1))
    first, stream = h.driver, h.stream
    h.restart()
    h.batch(rows_at(2))

    def misses(*_):
        raise Damaged("a state file is missing")

    monkeypatch.setattr(first.loop.attempts, "run", misses)
    with pytest.raises(Fenced, match="has taken over"):
        stream.put(pa.Table.from_pylist(rows_at(2), h.launch.jobs.schema))
    assert isinstance(first.loop.failure, Fenced)
    assert isinstance(first.loop.failure.__cause__, Damaged)


@pytest.mark.parametrize("is_replaced", [True, False])
def test_a_stream_that_fails_beside_another_drivers_has_been_replaced(life, monkeypatch, is_replaced):
    h = life.begin()
    run = QueryRun(h.launch)
    h.driver, h.stream = run.driver, run.stream
    h.batch(rows_at(1))
    if is_replaced:
        h.restart()
    of_spark = QueryFailed("Multiple streaming queries are concurrently using the checkpoint")
    monkeypatch.setattr(run.stream, "failure", lambda: of_spark)
    problem = run.exception()
    assert isinstance(problem, Fenced) if is_replaced else problem is of_spark
