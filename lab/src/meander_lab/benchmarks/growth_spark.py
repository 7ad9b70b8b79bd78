"""The cases of `./dev bench growth` on Spark, `local[2]`: what Spark itself says a batch took."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import meander as me
from meander_lab.benchmarks import engine_peers as peers
from meander_lab.benchmarks.engine_records import preload
from meander_lab.benchmarks.growth_case import GrowthCase, GrowthFigures


class SparkGrowth:
    """One Spark application for all cases."""

    def __init__(self) -> None:
        self.spark = peers.session("meander-bench-growth")
        self.spark.sparkContext.setLogLevel("OFF")

    def measure(self, case: GrowthCase, folder: Path) -> GrowthFigures:
        """What a batch of a case takes; the driver's part is what it does before and after its Spark job."""
        feed = peers.NumberFeed(self.spark, case.keys)
        stream: Any = me.stream(feed.rows)
        for _ in range(case.chain):
            stream = stream.key_by("key").count()
        sink = me.sinks.format("noop", mode="overwrite")
        query = stream.start(folder / "checkpoint", sink, workers=case.workers, bins=case.bins)
        running = peers.Running.of(self.spark, query)
        try:
            preload(feed, running, case.keys)
            loaded = len(feed.ranges) + case.warm
            for turn in range(case.warm + case.batches):
                feed.push(turn * case.rows, (turn + 1) * case.rows)
                running.settle()
            progress = running.progress()[loaded:]
            mine = [each for each in query.recent_progress if each.batch in {one["batchId"] for one in progress}]
        finally:
            running.stop()
        spent = [each.spent_ms for each in mine]
        return GrowthFigures(
            batch_ms=statistics.median(float(each["durationMs"]["triggerExecution"]) for each in progress),
            driver_ms=statistics.median(each["plan"] + each["sink"] + each["commit"] for each in spent),
            driver_mean_ms=statistics.fmean(each["plan"] + each["sink"] + each["commit"] for each in spent),
            worker_ms=statistics.median(max(worker.spent_ms["busy"] for worker in each.workers) for each in mine),
        )
