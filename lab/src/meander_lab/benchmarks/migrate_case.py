"""One run in a driver process of its own: what that process does, and how it is started and watched. For ./dev bench.

The process is the benchmark's own file with `--case JSON`. It prints one JSON object a line: {"event": ...}. Whoever
started it reads these, samples the memory of all its processes meanwhile, and ends what is left of them.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meander_lab.benchmarks import migrate_memory as memory
from meander_lab.benchmarks.engine_peers import NumberFeed
from meander_lab.benchmarks.migrate_load import Commits, Load, Ours, fill, session
from meander_lab.benchmarks.migrate_measure import NONE, CommittedBatch, MoveCase, MoveRecord, quarter
from meander_lab.benchmarks.migrate_native import Native

SCHEDULES = ("all_at_once", "fluid", "batched", "matching")
RESTARTS = ("restart", "restart_workers")
NATIVES = ("native", "native_quiet")
MODES = (NONE, *SCHEDULES, *RESTARTS, *NATIVES)
EXECUTORS = 4
WORKERS = 2
SETTLE_S = 5.0
"""Copies that a migration leaves are released a few batches after its end."""


# --- in the driver process -------------------------------------------------------------------


def tell(event: str, **facts: Any) -> None:
    """Print one event."""
    print(json.dumps({"event": event, **facts}), flush=True)


@dataclass
class MoveStage:
    """A query under load with all keys in its state, and the clock of it."""

    system: Ours | Native
    load: Load
    commits: Commits

    def sleep(self, seconds: float) -> None:
        """Wait while the query runs; raises what it failed of."""
        end = time.time() + seconds
        while (left := end - time.time()) > 0:
            self.system.check()
            time.sleep(min(left, 0.5))


@contextmanager
def on_stage(case: MoveCase, workers: int = WORKERS, executors: int = EXECUTORS) -> Iterator[MoveStage]:
    """Start Spark and the query, count every key once, and let the load begin."""
    spark = session(executors, f"meander-bench-{case.mode}", case.is_native)
    feed = NumberFeed(spark, case.keys)
    with tempfile.TemporaryDirectory(prefix="meander-bench-", ignore_cleanup_errors=True) as folder:
        system: Ours | Native
        if case.is_native:
            system = Native(feed.rows, Path(folder) / "native", workers, case.trigger_s)
        else:
            system = Ours(feed.rows, Path(folder) / "ours", workers, case.bins, case.trigger_s)
        commits = Commits(system.log, feed)
        load = Load(feed, commits, case.rate)
        try:
            fill(feed, case.keys, system.settle)
            load.start()
            tell("mark", name="load", at=load.load_s)
            yield MoveStage(system, load, commits)
            load.stop()
            commits.close()
            tell("batches", batches=commits.batches)
        finally:
            load.stop()
            with suppress(Exception):
                system.stop()
            spark.stop()


def mark(name: str) -> float:
    """Note that something happens now."""
    now = time.time()
    tell("mark", name=name, at=now)
    return now


def carry_out(case: MoveCase) -> None:
    """Run one case of `./dev bench migrate`: steady, move, and steady again."""
    with on_stage(case) as stage:
        stage.sleep(case.warm_s)
        mark("steady")
        stage.sleep(case.seconds)
        began = mark("move")
        report = move(stage, case)
        if case.mode == NONE:
            stage.sleep(case.seconds)
        mark("moved")
        tell("told", told=report)
        stage.sleep(SETTLE_S)
        mark("settled")
        stage.sleep(max(0.0, began + case.seconds - time.time()))
        # Rows that were created while nothing came out have to come out before the end.
        wanted, deadline = (time.time() - stage.load.load_s) * case.rate, time.time() + 2 * case.seconds
        while stage.commits.taken < wanted and time.time() < deadline:
            stage.sleep(0.1)
        mark("end")


def move(stage: MoveStage, case: MoveCase) -> dict[str, Any]:
    """Move a quarter of the state in the way of the case, and return what is told of it once it is done."""
    system = stage.system
    if case.mode == NONE:
        return {}
    if isinstance(system, Native):
        report = system.repartition(2 * WORKERS, stage.load, quiet=case.mode == "native_quiet")
        out = time.time() - stage.load.load_s
        # It is over when the first result of what waited is out.
        while stage.commits.taken < out * case.rate - 1:
            stage.sleep(0.05)
        return report
    mode, schedule = ("live", case.mode) if case.mode in SCHEDULES else (case.mode, "all_at_once")
    to = quarter(system.owner)
    return system.move(to, mode, schedule, within_s=20 * case.seconds + 120, **case.options)


# --- outside ---------------------------------------------------------------------------------


class Failed(Exception):
    """The driver process ended without doing what it should."""


def run(benchmark: str, option: str, log: Path, within_s: float) -> MoveRecord:
    """Run a case of a benchmark in a process of its own, and return what it told and what memory it took."""
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable}
    # Whoever ends this process means those it has started as well.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    record = MoveRecord(MoveCase(NONE, 0, 1))
    with log.open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-u", "-m", f"meander_lab.benchmarks.{benchmark}", "--case", option],
            stdout=subprocess.PIPE, stderr=errors, env=environment, text=True,
        )  # fmt: skip
    reader = threading.Thread(target=_read, args=(process, record), daemon=True)
    reader.start()
    try:
        with memory.MemoryWatch(process.pid) as watch:
            status = process.wait(within_s)
        reader.join(10)
        if status or not record.batches:
            raise Failed(_last_words(log))
    except subprocess.TimeoutExpired:
        raise Failed(f"it was not over within {within_s:.0f} s; see {log}") from None
    finally:
        _end(process)
    record.memory = watch.samples
    return record


def _read(process: subprocess.Popen[str], record: MoveRecord) -> None:
    assert process.stdout is not None
    with process.stdout as lines:
        for line in lines:
            if not line.startswith("{"):
                continue
            event = json.loads(line)
            if event["event"] == "mark":
                record.marks[event["name"]] = event["at"]
            elif event["event"] == "batches":
                record.batches = [CommittedBatch(*each) for each in event["batches"]]
            elif event["event"] == "told":
                record.told |= event["told"]


def _last_words(log: Path) -> str:
    lines = [line for line in log.read_text(errors="replace").splitlines() if line and not line.startswith("\t")]
    said = [line for line in lines if "Error" in line or "Exception" in line] or lines or ["nothing was said"]
    return f"{said[-1][:300]} (see {log})"


def _end(process: subprocess.Popen[str]) -> None:
    """Kill what is left of the process and those below it."""
    left = memory.below(process.pid, memory.processes())
    for pid in (process.pid, *left):
        if pid != process.pid or process.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    process.wait(30)
