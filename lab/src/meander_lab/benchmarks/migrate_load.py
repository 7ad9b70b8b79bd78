"""Rows at a rate that does not wait for the query, the batches Spark made of them, and our query. For ./dev bench.

Spark's own `rate` source hands out whole seconds, would hide all that is shorter, and cannot fill the state first. So
the rows come from the feed of `./dev bench engine`: it is given ranges of numbers and makes rows of them inside the
JVM. First come ranges that count every key once, then those of every 20 milliseconds, each row created on time by the
clock, whether or not anybody takes it. The feed outlives a query that is stopped and started again, as Kafka would.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import meander as me
from meander_lab.benchmarks.engine_peers import NumberFeed
from meander_lab.benchmarks.migrate_measure import CommittedBatch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

EVERY_S = 0.02
FILL = 1_000_000
AHEAD = 100_000
"""Rows that wait for the query in a closed loop."""


def session(executors: int, app: str, native: bool = False) -> SparkSession:
    """Executors that are processes of their own, with one core each; Spark's own queries get Spark's own settings."""
    settings = {"spark.executor.memory": "1g", "spark.driver.memory": "2g", "spark.log.level": "ERROR"}
    settings |= {"spark.sql.adaptive.enabled": "false", "spark.sql.shuffle.partitions": "2"}
    settings["spark.ui.enabled"] = "false"
    if native:
        settings |= {"spark.locality.wait": "3s", "spark.scheduler.revive.interval": "1s"}
    options = {name.replace(".", "__"): value for name, value in settings.items()}
    return me.session(f"local-cluster[{executors},1,1024]", app, **options)


class Commits:
    """The batches that Spark has committed, as its logs in a checkpoint tell.

    The logs' files say when they were written. Spark removes old ones, so they are read as they come.
    """

    def __init__(self, folder: Path, feed: NumberFeed) -> None:
        self.batches: list[CommittedBatch] = []
        self._folder, self._feed = folder, feed
        self._next, self._offset = 0, -1
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="commits", daemon=True)
        self._thread.start()

    @property
    def taken(self) -> int:
        """How many rows, beyond those that fill, are out."""
        return max((each.end for each in self.batches), default=0)

    def close(self) -> None:
        """Look for the last time."""
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(EVERY_S):
            self._look()
        self._look()

    def _look(self) -> None:
        while True:
            commit = self._folder / "commits" / str(self._next)
            if not commit.exists():
                return
            ended_s = commit.stat().st_mtime
            offsets = self._folder / "offsets" / str(self._next)
            offset, began_s = int(offsets.read_text().splitlines()[-1]), offsets.stat().st_mtime
            ranges = [each for each in self._feed.ranges[self._offset + 1 : offset + 1] if each[0] >= 0]
            first, end = (ranges[0][0], ranges[-1][1]) if ranges else (0, 0)
            self.batches.append(CommittedBatch(self._next, began_s, ended_s, first, end))
            self._next, self._offset = self._next + 1, max(offset, self._offset)


class Load:
    """Creates rows: so many a second from `load_s` on, or with rate 0 always some more than the query has taken."""

    def __init__(self, feed: NumberFeed, commits: Commits, rate: int) -> None:
        self.load_s = 0.0
        self._feed, self._commits, self._rate = feed, commits, rate
        self._made = 0
        self._open, self._ended = threading.Event(), threading.Event()
        self._open.set()
        self._thread = threading.Thread(target=self._run, name="load", daemon=True)

    def start(self) -> None:
        """Begin with row 0."""
        self.load_s = time.time()
        self._thread.start()

    def hold(self) -> None:
        """Let rows be created and wait elsewhere until `release`; they grow old as ever."""
        self._open.clear()

    def release(self) -> None:
        """Let everything through that has waited."""
        self._open.set()

    def stop(self) -> None:
        """Create no more rows."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(EVERY_S - (time.time() - self.load_s) % EVERY_S):
            if not self._open.is_set():
                continue
            due = int((time.time() - self.load_s) * self._rate) if self._rate else self._commits.taken + 2 * AHEAD
            # In a closed loop a range is a batch's worth; crumbs would make more batches of fewer rows.
            if due - self._made >= (1 if self._rate else AHEAD):
                self._feed.push(self._made, due)
                self._made = due


def fill(feed: NumberFeed, keys: int, settle: Callable[[], None]) -> None:
    """Count every key once."""
    for start in range(0, keys, FILL):
        feed.push(-min(start + FILL, keys), -start)
        settle()


class Ours:
    """A count by key of Meander's, to Spark's `noop` sink."""

    def __init__(self, rows: DataFrame, folder: Path, workers: int, bins: int, trigger_s: float = 0.0) -> None:
        trigger = {"processingTime": f"{round(trigger_s * 1000)} milliseconds"} if trigger_s else None
        sink = me.sinks.format("noop", mode="overwrite")
        counted = me.stream(rows).key_by("key").count()
        self.query = counted.start(folder, sink, workers=workers, bins=bins, trigger=trigger)
        self.log = folder / "spark"

    @property
    def owner(self) -> list[int]:
        """Who owns each bin."""
        return next(iter(self.query.assignment.values()))

    def settle(self) -> None:
        """Until everything that was pushed is out."""
        self.query.process_all_available()

    def check(self) -> None:
        """Raise what the query has failed of."""
        problem = self.query.exception()
        if problem is not None:
            raise problem

    def move(self, to: Mapping[int, int], mode: str, schedule: str, within_s: float, **options: Any) -> dict[str, Any]:
        """Move bins, and return the report once it is done; raises where a bin has not arrived."""
        moving = self.query.move(dict(to), mode=mode, schedule=schedule, **options)
        if not moving.wait(within_s):
            raise TimeoutError(f"the migration was not over within {within_s:.0f} s: {moving.progress}")
        owner = self.owner
        astray = [bin_ for bin_, worker in to.items() if owner[bin_] != worker]
        if astray:
            raise RuntimeError(f"{len(astray)} of {len(to)} bins have not moved, bin {astray[0]} for one")
        return dict(moving.report.to_dict())

    def stop(self) -> None:
        """End it."""
        self.query.stop()
