"""Support for tests on real Spark: streams that are cut into batches exactly, recounts, and processes to kill."""

from __future__ import annotations

import itertools
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from meander.migration.events import Event, EventLog
from meander.sinks import Sink

PATIENCE_S = 400
"""How long anything may take on a machine that is busy with other things."""


STARTED_SOON = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_ARCHIVE = os.environ.get("MEANDER_JVM_ARCHIVE")
_FROM_ARCHIVE = f" -XX:SharedArchiveFile={_ARCHIVE} -Xlog:cds=off -Xlog:cds+dynamic=off" if _ARCHIVE else ""
QUICK = STARTED_SOON + _FROM_ARCHIVE
BRIEF: dict[str, Any] = {
    "spark__driver__extraJavaOptions": QUICK, "spark__executor__extraJavaOptions": QUICK,
    "spark__ui__enabled": False,
}  # fmt: skip
"""Settings for a Spark that does not live long: its JVMs are not worth compiling well for, only starting soon."""


class Feed:
    """Parquet files that Spark reads as a stream, `parts` files to a batch, in the order they were added."""

    def __init__(self, folder: Path, schema: pa.Schema, parts: int = 1) -> None:
        self.folder, self.schema, self.parts = folder, schema, parts
        folder.mkdir(parents=True, exist_ok=True)
        self._count = len(list(folder.glob("*.parquet")))
        # Spark takes the oldest files first, and goes by whole seconds on some file systems.
        self._began = time.time() - 100_000

    def add(self, *batches: pa.Table) -> Feed:
        """Append batches, each of them whole or not at all."""
        for rows in batches:
            cuts = [rows.num_rows * part // self.parts for part in range(self.parts + 1)]
            for low, high in itertools.pairwise(cuts):
                hidden = self.folder / f"_{self._count}"
                pq.write_table(rows.slice(low, high - low).cast(self.schema), hidden)
                stamp = self._began + self._count
                os.utime(hidden, (stamp, stamp))
                hidden.rename(self.folder / f"{self._count:06d}.parquet")
                self._count += 1
        return self

    def read(self, spark: Any, **options: str) -> Any:
        """The stream."""
        from pyspark.sql.pandas.types import from_arrow_schema

        reader = spark.readStream.schema(from_arrow_schema(self.schema)).option("maxFilesPerTrigger", self.parts)
        return reader.options(**options).parquet(str(self.folder))


def cut(rows: pa.Table, batches: int, rng: random.Random) -> list[pa.Table]:
    """The rows in so many batches of random lengths, some of them empty."""
    cuts = sorted(rng.randint(0, rows.num_rows) for _ in range(batches - 1))
    ends = [0, *cuts, rows.num_rows]
    return [rows.slice(low, high - low) for low, high in itertools.pairwise(ends)]


def tuples(rows: pa.Table, names: Sequence[str]) -> list[tuple[Any, ...]]:
    """These columns as one tuple for each row."""
    return list(zip(*(rows[name].to_pylist() for name in names), strict=True))


def recounted(batches: Iterable[pa.Table], key: Sequence[str]) -> list[dict[tuple[Any, ...], int]]:
    """What `count` must emit with each batch: the keys of its rows, with their counts so far."""
    so_far: Counter[tuple[Any, ...]] = Counter()
    emitted = []
    for batch in batches:
        found = tuples(batch, key)
        so_far.update(found)
        emitted.append({each: so_far[each] for each in set(found)})
    return emitted


def by_batch(rows: pa.Table, key: Sequence[str], value: str = "count") -> dict[int, dict[tuple[Any, ...], Any]]:
    """Rows that a sink took, as a mapping from key to value for each batch; no key may stand twice in one."""
    found: dict[int, dict[tuple[Any, ...], Any]] = {}
    for batch, each, result in zip(rows["batch"].to_pylist(), tuples(rows, key), rows[value].to_pylist(), strict=True):
        assert each not in found.setdefault(batch, {}), f"batch {batch} emits {each} twice"
        found[batch][each] = result
    return found


def files_written(folder: Path) -> pa.Table:
    """Everything that a files sink has written, with the number of its batch."""
    tables = []
    for each in sorted(folder.glob("batch=*")):
        assert (each / "_SUCCESS").exists(), f"{each} is not whole"
        for file in sorted(each.glob("*.parquet")):
            rows = pq.ParquetFile(file).read()
            tables.append(rows.append_column("batch", pa.array([int(each.name[6:])] * rows.num_rows, pa.int64())))
    return pa.concat_tables(tables)


def output_files(folder: Path) -> dict[str, tuple[int, int]]:
    """Every file and folder that a files sink has committed, with what tells whether it was ever touched again."""
    paths = [path for batch in folder.glob("batch=*") for path in (batch, *batch.rglob("*"))]
    return {str(path): (path.stat().st_ino, path.stat().st_mtime_ns) for path in paths}


class Several(Sink):
    """Sinks that take the same output."""

    def __init__(self, *sinks: Any) -> None:
        self.sinks = sinks

    def prepare(self, *version: Any) -> list[Any]:
        return [sink.prepare(*version) for sink in self.sinks]

    def commit(self, tokens: list[Any]) -> None:
        self._with_tokens("commit", tokens)

    def abort(self, tokens: list[Any]) -> None:
        self._with_tokens("abort", tokens)

    def sweep(self, last: Any) -> None:
        for sink in self.sinks:
            sink.sweep(last)

    def _with_tokens(self, action: str, tokens: list[Any]) -> None:
        for sink, token in zip(self.sinks, tokens, strict=True):
            if token is not None:
                getattr(sink, action)(token)


def state_of(checkpoint: Path, operator: int = 0, table: str | None = None) -> list[dict[str, Any]]:
    """The committed rows of a state table, read from the checkpoint alone."""
    from meander.store.reader import Reader

    reader = Reader.open(checkpoint)
    pieces = reader.state(operator, reader.table(operator, table))
    return [row for piece in pieces for row in piece.drop_columns(["bin"]).to_pylist()]


def side_of(checkpoint: Path, kind: Any) -> list[dict[str, Any]]:
    """The late or dead rows that the checkpoint keeps."""
    from meander.store.reader import Reader

    return [row for piece in Reader.open(checkpoint).side(kind) for row in piece.to_pylist()]


def at_events(call: Callable[[Event], object], patch: Callable[..., None] = setattr) -> None:
    """Call this where and when an event happens: unlike for a listener, the query waits for it, with its locks."""
    emit = EventLog.emit

    def emitted(self: EventLog, event: str, **facts: Any) -> None:
        emit(self, event, **facts)
        call(self.entries[-1])

    patch(EventLog, "emit", emitted)


def wait_until(done: Callable[[], Any], what: str, timeout_s: float = PATIENCE_S) -> Any:
    """Wait until this returns something, and return it."""
    deadline = time.monotonic() + timeout_s
    while True:
        found = done()
        if found:
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"gave up waiting for {what}")
        time.sleep(0.02)


def processes() -> dict[int, tuple[int, str]]:
    """Every process that runs: its parent and its command line."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            state, parent = stat[stat.rindex(")") + 2 :].split()[:2]
            if state != "Z":
                found[int(entry.name)] = (int(parent), command)
    return found


def below(pid: int) -> dict[int, tuple[int, str]]:
    """The processes that a process has started, and those that they have."""
    every = processes()
    found: dict[int, tuple[int, str]] = {}
    wanted = {pid}
    while wanted:
        wanted = {each for each, (parent, _) in every.items() if parent in wanted and each not in found}
        found.update({each: every[each] for each in wanted})
    return found


def python_workers(pid: int) -> list[int]:
    """The Python processes that run tasks of the Spark application of a driver; not the daemons that fork them."""
    found = below(pid)
    daemons = {each for each, (_, command) in found.items() if re.search(r" -m (\S+\.daemon|torn)\b", command)}
    return sorted(each for each in daemons if found[each][0] in daemons)


def executors(pid: int) -> list[int]:
    """The JVMs of the executors below a process."""
    return sorted(pid for pid, (_, command) in below(pid).items() if "CoarseGrainedExecutorBackend" in command)


def kill(pid: int, how: int = signal.SIGKILL) -> bool:
    """Send a signal, and return whether there was a process to send it to."""
    try:
        os.kill(pid, how)
    except ProcessLookupError:
        return False
    return True


class Program:
    """A driver program in a process of its own; it prints one JSON object per line, which are its events."""

    def __init__(
        self, path: Path, options: dict[str, Any], log: Path, variables: Mapping[str, str] | None = None
    ) -> None:
        self.events: list[dict[str, Any]] = []
        self.log = log
        environment = {
            **os.environ,
            "SPARK_LOCAL_DIRS": str(log.parent / "local"),
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]),
            **(variables or {}),
        }
        with log.open("ab") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-u", str(path), json.dumps(options)],
                stdout=subprocess.PIPE, stderr=errors, env=environment, text=True,
            )  # fmt: skip
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                if line.startswith("{"):
                    self.events.append(json.loads(line))

    @property
    def pid(self) -> int:
        """The driver's Python process."""
        return self.process.pid

    @property
    def ended(self) -> bool:
        """Whether the driver's Python process has ended."""
        return self.process.poll() is not None

    def told(self, event: str) -> list[dict[str, Any]]:
        """The events of this name so far."""
        return [each for each in list(self.events) if each["event"] == event]

    def wait_for(self, event: str, count: int = 1) -> dict[str, Any]:
        """Wait for the event, or for its so-manieth occurrence."""

        def look() -> Any:
            found = self.told(event)
            if len(found) >= count:
                return found[count - 1]
            assert not self.ended, f"the program ended before {event}:\n{self.text()}"
            return None

        return wait_until(look, event)

    def wait(self) -> int:
        """Wait for the end and return the exit status."""
        status = self.process.wait(PATIENCE_S)
        self._reader.join(10)
        return status

    def text(self) -> str:
        """The last lines of what it wrote to its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-40:])

    def tree(self) -> list[int]:
        """The process and all below it; nothing once it has ended: its number may be another process's by now."""
        return [] if self.ended else [self.pid, *below(self.pid)]

    def end(self) -> None:
        """Kill what is left of it."""
        left = self.tree()
        for pid in left:
            kill(pid)
        self.process.wait(PATIENCE_S)


def as_ints(values: Sequence[int]) -> pa.Table:
    """A table with one column of whole numbers, `key`."""
    return pa.table({"key": pa.array(values, pa.int64())})
