"""A NEXMark query under load whose bins move and move back: what the driver process does. For `./dev bench nexmark`.

Separate executor processes with one core each, `local-cluster[2,1,1024]`, a worker on each: half of the first one's
bins go to the second, 25 % of all, and come back. The source is `Events.at_rate`, which began some seconds before the
query: these events fill its state as fast as it takes them, and the rest come on time. Events count as committed when
all the kinds that the query reads are past them.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import meander as me
from meander_lab.benchmarks.migrate_case import mark, tell
from meander_lab.benchmarks.migrate_load import Commits, Ours, session
from meander_lab.benchmarks.migrate_measure import CommittedBatch
from meander_lab.benchmarks.nexmark_figures import READS, TimelineCase, sustained
from meander_lab.nexmark.generator.config import Config
from meander_lab.nexmark.queries import Options, named
from meander_lab.nexmark.running import quarter
from meander_lab.nexmark.streams import Events

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXECUTORS = 2
SETTLE_S = 3.0
"""Copies that a migration leaves are released a few batches after its end."""
BEHIND_S = 0.25
"""A batch that begins with all but so many seconds of the events has caught up."""
STARTS_S = 5.0
"""A query takes about so long to start, in which events arrive and wait for it."""
GUESS = 50_000
"""Events in a second of event time while it is found out how many a query can take."""
WITHIN_S = 180.0


class NexmarkSystem(Ours):
    """A query of NEXMark at a rate, to Spark's `noop` sink."""

    def __init__(self, spark: SparkSession, case: TimelineCase, folder: Path, **source: Any) -> None:
        variant = case.variant
        usual = Config()
        in_flight = variant.in_flight(case.rate or GUESS, usual.generators, usual.auctions_in_flight)
        events = Events.at_rate(
            spark, case.rate or GUESS * variant.dilation, config=replace(usual, auctions_in_flight=in_flight),
            dilation=variant.dilation, per_batch=case.per_batch, columns=READS[variant.query],
            **{name: value for name, value in source.items() if name != "trigger"},
        )  # fmt: skip
        stream = named(variant.query).build(events, Options(variant.window_s, variant.slide_s))
        sink = me.sinks.format("noop", mode="overwrite")
        self.query = stream.start(folder, sink, workers=EXECUTORS, bins=case.bins, trigger=source.get("trigger"))
        self.log = folder / "spark"


class EventCommits(Commits):
    """The batches that Spark has committed, as ranges of events."""

    def __init__(self, folder: Path) -> None:
        self._end = 0
        super().__init__(folder, None)  # type: ignore[arg-type]

    def _look(self) -> None:
        while (commit := self._folder / "commits" / str(self._next)).exists():
            offsets = self._folder / "offsets" / str(self._next)
            end = event_of(offsets.read_text())
            times = offsets.stat().st_mtime, commit.stat().st_mtime
            self.batches.append(CommittedBatch(self._next, *times, self._end, max(end, self._end)))
            self._next, self._end = self._next + 1, max(end, self._end)


def event_of(offsets: str) -> int:
    """Up to which event all kinds have been taken, by an entry of Spark's offset log; below it are two lines."""
    return min(json.loads(line)["event"] for line in offsets.splitlines()[2:] if line != "-")


class TimelineStage:
    """A query under load, and the clock of it."""

    def __init__(self, system: NexmarkSystem, taken: EventCommits, load_s: float, rate: float) -> None:
        self.system, self.taken, self.load_s, self.rate = system, taken, load_s, rate

    def sleep(self, seconds: float) -> None:
        """Wait while the query runs; raises what it failed of."""
        end = time.time() + seconds
        while (left := end - time.time()) > 0:
            self.system.check()
            time.sleep(min(left, 0.25))

    def catch_up(self, within_s: float) -> None:
        """Wait until batches begin with all events that have arrived."""
        deadline = time.time() + within_s
        while not self.is_level:
            if time.time() > deadline:
                raise TimeoutError(f"{self.rate:,.0f} events/s are too many: it did not catch up in {within_s:.0f} s")
            self.sleep(0.1)

    @property
    def is_level(self) -> bool:
        """Whether the last batch left nothing behind that had arrived when it began."""
        done = self.taken.batches
        return bool(done) and done[-1].began_s - (self.load_s + done[-1].end / self.rate) < BEHIND_S

    def state(self) -> dict[str, int]:
        """Rows and bytes of state that all workers have."""
        last = self.system.query.last_progress
        workers = last.workers if last else ()
        return {name: sum(getattr(each, name) for each in workers) for name in ("state_rows", "state_bytes")}


@contextmanager
def on_stage(spark: SparkSession, case: TimelineCase) -> Iterator[TimelineStage]:
    """Start the query, with the events of some seconds waiting for it."""
    with tempfile.TemporaryDirectory(prefix="meander-bench-", ignore_cleanup_errors=True) as folder:
        # Spark's offsets have whole milliseconds.
        load_s = round(time.time() + STARTS_S - case.fill_s, 3)
        system = NexmarkSystem(spark, case, Path(folder) / "ours", start=load_s)
        taken = EventCommits(system.log)
        try:
            yield TimelineStage(system, taken, load_s, case.rate)
            taken.close()
            tell("batches", batches=taken.batches)
        finally:
            taken.close()
            with suppress(Exception):
                system.stop()


def carry_out(case: TimelineCase) -> None:
    """Run one case: fill, unbalance, be steady, move back, be steady."""
    spark = session(EXECUTORS, f"meander-bench-{case.name}")
    try:
        with on_stage(spark, case) as stage:
            tell("mark", name="load", at=stage.load_s)
            stage.catch_up(WITHIN_S)
            mark("warm")
            stage.sleep(case.warm_s)
            owner = stage.system.owner
            there = quarter(owner)
            mark("first")
            stage.system.move(there, "live", case.schedule, WITHIN_S)
            mark("first_moved")
            stage.sleep(SETTLE_S)
            stage.catch_up(WITHIN_S)
            mark("steady")
            stage.sleep(case.steady_s)
            state = stage.state()
            mark("move")
            report = stage.system.move({bin_: owner[bin_] for bin_ in there}, "live", case.schedule, WITHIN_S)
            moved_s = mark("moved")
            tell("told", told={**report, **state})
            stage.sleep(case.steady_s)
            # What arrived before the end of the move has to come out before the end of the run.
            deadline = moved_s + WITHIN_S
            while stage.load_s + stage.taken.taken / case.rate < moved_s and time.time() < deadline:
                stage.sleep(0.1)
            mark("end")
    finally:
        spark.stop()


def calibrate(cases: Sequence[TimelineCase], batches: int, leave_out: int = 2) -> None:
    """Find out how many events a second each query takes in large batches, one after the other, and tell."""
    spark = session(EXECUTORS, "meander-bench-rates")
    rates: dict[str, float] = {}
    every: list[CommittedBatch] = []
    try:
        for case in cases:
            with tempfile.TemporaryDirectory(prefix="meander-bench-", ignore_cleanup_errors=True) as folder:
                ending = {"events": case.per_batch * (batches + leave_out), "trigger": {"availableNow": True}}
                system = NexmarkSystem(spark, case, Path(folder) / "ours", **ending)
                taken = EventCommits(system.log)
                try:
                    if not system.query.await_termination(WITHIN_S):
                        raise TimeoutError(f"{case.name}: {batches} batches took more than {WITHIN_S:.0f} s")
                finally:
                    taken.close()
                    system.stop()
                rates[case.name] = sustained(taken.batches, leave_out)
                every += taken.batches
        tell("told", told={"rates": rates})
        tell("batches", batches=every)
    finally:
        spark.stop()
