"""Output is shown when its version is committed, once, whichever drivers were at work on it and wherever they ended."""

from __future__ import annotations

import os
import random
import re
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest

import meander as me
from meander.clock import ManualClock
from meander.engine.driver.ports import OutputLost, SinkWrite
from meander.engine.driver.run import QueryRun
from meander.engine.driver.settings import Settings
from meander.engine.spark.exchange import SparkOutput
from meander.engine.worker.output import OutputForm
from meander.errors import Fenced
from meander.prepared import OutputFolder
from meander.sinks import Files
from meander.store.location import Location
from meander.store.manifest import Log
from meander.testing.inprocess import InProcessCluster, InProcessJobs
from meander.testing.stream import InProcessLaunch
from streams import PATIENCE_S, as_ints, output_files, recounted, state_of


class Killed(BaseException):
    """The process ends here."""


class TableFiles(Files):
    """The files sink over tables; a hook may hold or end the driver at any moment."""

    def __init__(self, path, hook=lambda moment, version: None):
        super().__init__(str(path), "parquet", {})
        self.hook = hook

    def prepare(self, output, write):
        self.hook("before", write.version)
        token = super().prepare(output, write)
        self.hook("prepared", write.version)
        return token

    def save(self, output, folder, write):
        if isinstance(output, SparkOutput):
            self.hook("writing", write.version)
            super().save(output, folder, write)
            return
        folder.mkdir(parents=True)
        half = len(output) // 2
        pq.write_table(output.slice(0, half), folder / "part-0.parquet")
        self.hook("writing", write.version)
        pq.write_table(output.slice(half), folder / "part-1.parquet")

    def commit(self, token):
        self.hook("manifest", token["version"])
        super().commit(token)
        self.hook("committed", token["version"])


class WritingJobs(InProcessJobs):
    """Workers write files for the sink, however few rows they have."""

    @property
    def form(self):
        return OutputForm(folder=str(self.sink.folder.hidden), inline=0)

    def prepare(self, output, write):
        schema = self.operators[-1].output
        return self.sink.prepare(SparkOutput(schema, output.inline, output.files, None, None, form=self.form), write)


class Case:
    """One checkpoint and one folder, for several drivers in this process."""

    def __init__(self, folder, seed=1, batches=6, jobs=InProcessJobs):
        rng = random.Random(seed)
        self.folder, self.jobs = folder, jobs
        self.batches = [as_ints([rng.randrange(9) for _ in range(20)]) for _ in range(batches)]
        self.drivers = 0

    def start(self, hook=lambda moment, version: None, **settings):
        self.drivers += 1
        operators = [node.operator for node in me.stream(me.testing.source("key bigint")).key_by("key").count().nodes]
        cluster = InProcessCluster(self.folder / f"executors{self.drivers}", 2)
        jobs = self.jobs(operators, self.batches[0].schema, cluster, self.sink(hook))
        checkpoint = str(self.folder / "ck")
        chosen = Settings(checkpoint, 2, 8, copy_ms=1e9, **settings)
        location = Location.of(checkpoint, fsync=chosen.fsync)
        launch = InProcessLaunch(operators, location, cluster, jobs, chosen, ManualClock(), 2, f"d{self.drivers}")
        return QueryRun(launch)

    def sink(self, hook):
        return TableFiles(self.folder / "out", hook)

    def put_aside(self, run, problems):
        """Put a batch in a thread of its own, which keeps what it ends with."""

        def put():
            try:
                self.put(run)
            except (Exception, Killed) as problem:
                problems.append(problem)

        thread = threading.Thread(target=put)
        thread.start()
        return thread

    def put(self, run, count=1):
        for _ in range(count):
            run.stream.put(self.batches[run.stream.next_batch])

    def check(self, versions):
        """What plain readers find in the folder, and the state, are what a recount gives."""
        expected = [
            {"key": key, "count": count, "batch": batch}
            for batch, counts in enumerate(recounted(self.batches[:versions], ["key"]))
            for (key,), count in counts.items()
        ]
        arrow = pyarrow.dataset.dataset(self.folder / "out", partitioning="hive").to_table().to_pylist()
        pandas = pd.read_parquet(self.folder / "out").astype({"batch": int}).to_dict("records")
        for rows in (arrow, pandas):
            assert sorted(rows, key=repr) == sorted(expected, key=repr)
        total = {row["key"]: row["count"] for row in expected}
        assert {row["key"]: row["count"] for row in state_of(self.folder / "ck")} == total

    def prepared(self):
        return [path.name for path in OutputFolder.of(str(self.folder / "out")).prepared()]


class Hold:
    """A hook that stops a driver once, at a moment of a version, until it may go on; or die at the next moment."""

    def __init__(self, moment, version, dies=False):
        self.at, self.entered, self.go_on = (moment, version), threading.Event(), threading.Event()
        self.dies = dies

    def __call__(self, moment, version):
        if self.entered.is_set() and self.dies:
            raise Killed
        if (moment, version) == self.at and not self.entered.is_set():
            self.entered.set()
            assert self.go_on.wait(PATIENCE_S)


@pytest.mark.parametrize("jobs", [InProcessJobs, WritingJobs])
@pytest.mark.parametrize("ahead", [1, 3])
@pytest.mark.parametrize(
    ("moment", "dies"), [("before", False), ("before", True), ("writing", False), ("prepared", False)]
)
def test_a_driver_that_wakes_in_its_sink_leaves_the_output_of_the_next_one_alone(tmp_path, moment, dies, ahead, jobs):
    case, hold, problems = Case(tmp_path, jobs=jobs), Hold(moment, 2, dies), []
    first = case.start(hold)
    case.put(first, 2)

    asleep = case.put_aside(first, problems)
    assert hold.entered.wait(PATIENCE_S)
    second = case.start()
    case.put(second, ahead)
    case.check(2 + ahead)
    committed = output_files(tmp_path / "out")
    hold.go_on.set()
    asleep.join()
    assert [type(each) for each in problems] == [Killed if dies else Fenced]
    assert output_files(tmp_path / "out") == committed
    case.check(2 + ahead)
    case.put(second)
    case.check(3 + ahead)
    second.stop()
    assert case.prepared() == []


def test_a_driver_that_wakes_after_its_manifest_changes_nothing(tmp_path):
    case, hold, problems = Case(tmp_path), Hold("manifest", 1), []
    first = case.start(hold)
    case.put(first)
    asleep = case.put_aside(first, problems)
    assert hold.entered.wait(PATIENCE_S)
    assert not (tmp_path / "out" / "batch=1").exists()
    second = case.start()
    case.check(2)
    case.put(second, 2)
    hold.go_on.set()
    asleep.join()
    assert problems == []
    case.check(4)
    assert case.prepared() == []


@pytest.mark.parametrize("moment", ["before", "writing", "prepared", "manifest", "committed"])
@pytest.mark.parametrize("fsync", [False, True])
@pytest.mark.parametrize("jobs", [InProcessJobs, WritingJobs])
def test_a_kill_at_any_moment_of_the_sink_loses_and_doubles_nothing(tmp_path, moment, fsync, jobs):
    case = Case(tmp_path, jobs=jobs)

    def kill(at, version):
        if (at, version) == (moment, 2):
            raise Killed

    first = case.start(kill, fsync=fsync)
    case.put(first, 2)
    with pytest.raises(Killed):
        case.put(first)
    shown = 3 if moment == "committed" else 2
    assert sorted(path.name for path in (tmp_path / "out").glob("batch=*")) == [f"batch={n}" for n in range(shown)]
    committed = 3 if moment in ("manifest", "committed") else 2
    assert Log.open(Location.of(tmp_path / "ck")).index.version == committed - 1
    second = case.start(fsync=fsync)
    assert case.prepared() == [], "what nobody will commit is gone"
    case.check(committed)
    case.put(second, 2)
    case.check(committed + 2)


def test_what_a_driver_leaves_that_wakes_very_late_is_swept(tmp_path):
    case = Case(tmp_path, batches=40)
    case.put(case.start())
    second = case.start()
    folder = OutputFolder.of(str(tmp_path / "out"))
    late = folder.prepare(SinkWrite(30, 0), lambda path: Path(path).mkdir(parents=True))
    live = folder.prepare(SinkWrite(20, second.driver.log.epoch), lambda path: Path(path).mkdir(parents=True))
    case.put(second, 15)
    assert case.prepared() == [live["name"]], "an earlier driver's is gone, and a later version's is not"
    folder.abort(live)
    assert late["name"] not in case.prepared()
    case.check(16)


def test_output_that_cannot_be_committed_ends_the_query_and_one_that_was_taken_away_does_not(tmp_path, caplog):
    case = Case(tmp_path)
    thief = []

    def steal(moment, version):
        if (moment, version) == ("manifest", 1):
            thief.extend(case.prepared())
            for name in thief:
                OutputFolder.of(str(tmp_path / "out")).abort({"name": name})

    first = case.start(steal)
    case.put(first)
    with pytest.raises(
        OutputLost, match="version 1 is neither prepared in .* nor committed in .*; let one query alone"
    ):
        case.put(first)
    assert len(thief) == 1
    assert isinstance(first.exception(), OutputLost)
    case.start()
    assert "version 1 is neither prepared" in caplog.text


# --- the folder ------------------------------------------------------------------------------------------------------


def made(text):
    def save(path):
        Path(path).mkdir(parents=True)
        (Path(path) / "part.txt").write_text(text)

    return save


def test_a_folder_that_was_written_before_goes_on_and_is_replaced_as_a_whole(tmp_path):
    """As an earlier release left it: a version that was never committed, in its final place."""
    old = tmp_path / "out" / "batch=0"
    made("old")(old)
    (old / "other.txt").write_text("old")
    folder = OutputFolder.of(f"file://{tmp_path}/out/")
    token = folder.prepare(SinkWrite(0, 1), made("new"))
    assert (old / "part.txt").read_text() == "old"
    for _ in range(2):
        folder.commit(token)
        assert [path.name for path in old.iterdir()] == ["part.txt"]
        assert (old / "part.txt").read_text() == "new"
    assert folder.prepared() == []


@pytest.mark.parametrize("moment", [2, 3], ids=["when the old one is to go", "when the old one is gone"])
@pytest.mark.parametrize("event", ["kill", "another commit"])
def test_whatever_happens_while_a_folder_is_replaced_the_committed_one_is_there_in_the_end(
    tmp_path, monkeypatch, moment, event
):
    made("old")(tmp_path / "batch=0")
    folder = OutputFolder.of(str(tmp_path))
    token = folder.prepare(SinkWrite(0, 1), made("new"))
    rename, calls = Path.rename, []

    def interrupted(path, target):
        calls.append(path)
        if len(calls) == moment:
            if event == "kill":
                raise Killed
            folder.commit(token)
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", interrupted)
    if event == "kill":
        with pytest.raises(Killed):
            folder.commit(token)
    folder.commit(token)
    assert (tmp_path / "batch=0" / "part.txt").read_text() == "new"
    folder.sweep(SinkWrite(0, 1))
    assert (tmp_path / "batch=0" / "part.txt").read_text() == "new"
    assert folder.prepared() == []


def test_a_write_that_fails_leaves_nothing(tmp_path):
    def fails(path):
        made("half")(path)
        raise RuntimeError("no more")

    folder = OutputFolder.of(str(tmp_path))
    with pytest.raises(RuntimeError, match="no more"):
        folder.prepare(SinkWrite(0, 0), fails)
    assert folder.prepared() == []


def test_two_drivers_that_commit_one_token_at_once_show_it_once(tmp_path):
    folder = OutputFolder.of(str(tmp_path))
    for version in range(50):
        token = folder.prepare(SinkWrite(version, 0), made("rows"))
        start = threading.Barrier(2)

        def commit(token=token, start=start):
            start.wait()
            folder.commit(token)

        threads = [threading.Thread(target=commit) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (tmp_path / f"batch={version}" / "part.txt").read_text() == "rows"
    assert folder.prepared() == []


def test_with_fsync_all_is_on_disk_before_the_manifest_and_the_rename_after_it(tmp_path, monkeypatch):
    synced = []
    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda at: (synced.append(str(Path(f"/proc/self/fd/{at}").readlink())), fsync(at)))
    folder = OutputFolder.of(str(tmp_path / "a" / "out"))
    token = folder.prepare(SinkWrite(0, 0, fsync=True), made("rows"))
    hidden = f"{tmp_path}/a/out/.prepared/{token['name']}"
    assert synced[-3:] == [f"{hidden}/part.txt", hidden, f"{tmp_path}/a/out/.prepared"]
    assert synced[:-3] == [str(tmp_path), f"{tmp_path}/a", f"{tmp_path}/a/out"], "folders that are new"
    synced.clear()
    folder.commit(token)
    assert synced == [f"{tmp_path}/a/out"]
    synced.clear()
    folder.commit(folder.prepare(SinkWrite(1, 0), made("rows")))
    assert synced == []


@pytest.mark.parametrize("path", ["s3a://user:secret@bucket/out", "hdfs://name/out", "dbfs:/out"])
def test_a_folder_without_an_atomic_rename_is_refused_by_name(path):
    with pytest.raises(
        me.InvalidOption, match=f"cannot write to {path.partition(':')[0]}: it needs a folder"
    ) as refusal:
        me.sinks.files(path)
    assert "secret" not in str(refusal.value)


def test_a_folder_of_another_host_is_refused():
    with pytest.raises(me.InvalidOption, match=r"me.sinks.files is file://\*\*\*@host/out, which names a host"):
        me.sinks.files("file://user:secret@host/out")


# --- one step: a function --------------------------------------------------------------------------------------------


class Frame:
    """As much of a DataFrame as a function needs that collects it."""

    def __init__(self, table):
        self._table = table

    def collect(self):
        return [tuple(row.values()) for row in self._table.to_pylist()]


class Function(me.sinks.Sink):
    """A function of rows and number, on tables; a hook may hold the driver before it is called."""

    def __init__(self, function, hook):
        self.function, self.hook = function, hook

    def prepare(self, output, write):
        self.hook("before", write.version)
        self.function(Frame(output), write.version)


@pytest.fixture
def upsert(tmp_path):
    """The function of the page on sinks."""
    page = (Path(me.__file__).parents[2] / "docs/write-to-a-sink.md").read_text()
    (code,) = [block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "def upsert" in block]
    names = {"data": tmp_path}
    exec(code, names)
    return names["upsert"]


def held(folder):
    with closing(sqlite3.connect(folder / "counts.db")) as database:
        return dict(database.execute("SELECT * FROM counts").fetchall())


def test_the_function_of_the_page_takes_a_version_twice_and_none_that_comes_too_late(tmp_path, upsert):
    first, second = (Frame(pa.table({"user": ["ann"], "count": [count]})) for count in (1, 2))
    for frame, number in ((first, 0), (first, 0), (second, 1), (second, 1)):
        upsert(frame, number)
    with pytest.raises(RuntimeError, match="version 0 comes too late: a later one is there"):
        upsert(first, 0)
    assert held(tmp_path) == {"ann": 2}


@pytest.mark.parametrize("ahead", [1, 3])
def test_the_function_of_the_page_refuses_a_driver_that_was_replaced(tmp_path, upsert, ahead):
    case, hold, problems = Case(tmp_path), Hold("before", 2), []
    case.sink = lambda hook: Function(upsert, hook)
    first = case.start(hold)
    case.put(first, 2)
    asleep = case.put_aside(first, problems)
    assert hold.entered.wait(PATIENCE_S)
    second = case.start()
    case.put(second, ahead)
    hold.go_on.set()
    asleep.join()
    assert [type(each) for each in problems] == [Fenced]
    total = {key: count for counts in recounted(case.batches[: 2 + ahead], ["key"]) for (key,), count in counts.items()}
    assert held(tmp_path) == {str(key): count for key, count in total.items()}


# --- in memory -------------------------------------------------------------------------------------------------------


def test_output_in_memory_is_shown_when_it_is_committed_and_once():
    rows = {count: pa.table({"key": [1], "count": [count]}) for count in (1, 2, 3)}
    outputs = {count: SparkOutput(each.schema, [each], [], None, None) for count, each in rows.items()}
    memory = me.sinks.memory()
    vain = memory.prepare(outputs[1], SinkWrite(0, 0))
    token = memory.prepare(outputs[2], SinkWrite(0, 4))
    assert memory.latest("key") == []
    for _ in range(2):
        memory.commit(token)
        memory.abort(vain)
        assert memory.to_arrow().to_pylist() == [{"batch": 0, "key": 1, "count": 2}]
    late, live = memory.prepare(outputs[3], SinkWrite(1, 0)), memory.prepare(outputs[3], SinkWrite(1, 4))
    memory.sweep(SinkWrite(0, 4))
    for each in (late, vain):
        memory.commit(each)
    assert memory.latest("key") == [{"key": 1, "count": 2}]
    memory.commit(live)
    assert memory.latest("key") == [{"key": 1, "count": 3}]


def test_a_harness_shows_committed_output_only(monkeypatch):
    with me.testing.harness(me.stream(me.testing.source("key bigint")).key_by("key").count()) as h:
        h.batch(as_ints([1]))

        def killed(log, commit):
            raise Killed

        with monkeypatch.context() as patch:
            patch.setattr(Log, "append", killed)
            with pytest.raises(Killed):
                h.batch(as_ints([1]))
        assert h.output() == [{"key": 1, "count": 1}]
        h.restart()
        h.batch(as_ints([1]))
        assert h.output() == [{"key": 1, "count": 1}, {"key": 1, "count": 2}]


def test_another_sink_says_what_it_cannot_commit(tmp_path, caplog):
    token = OutputFolder.of(str(tmp_path)).prepare(SinkWrite(0, 0), made("rows"))
    other = me.sinks.files(tmp_path / "elsewhere")
    for sink in (me.sinks.memory(), me.sinks.console()):
        sink.commit(token)
    assert caplog.text.count("the last version was prepared for another sink") == 2
    other.commit(token)
    assert (tmp_path / "batch=0" / "part.txt").read_text() == "rows"


def test_a_memory_sink_keeps_the_last_versions():
    class Output:
        def __init__(self, number):
            self.rows = pa.table({"n": [number]})

        def to_arrow(self):
            return self.rows

    sink = me.sinks.memory("numbers", versions=3)
    for version in range(5):
        sink.commit(sink.prepare(Output(version), SinkWrite(version, 0)))
    assert sink.to_arrow().to_pylist() == [{"batch": version, "n": version} for version in (2, 3, 4)]
    with pytest.raises(me.InvalidOption, match="versions is 0"):
        me.sinks.memory(versions=0)


def test_the_name_of_a_memory_sink_can_be_that_of_a_view():
    for name in ("", "my counts", "1st", "a-b", "db.counts"):
        with pytest.raises(me.InvalidOption, match="cannot be one; write letters, digits and _"):
            me.sinks.memory(name)
    assert me.sinks.memory("_counts2").name == "_counts2"
    assert me.sinks.memory().name is None
