"""The driver of the soak: both queries, rescaled in turn every 20 s by a seeded choice, until a file says the end.

It is started with its options as JSON, and prints what happens, one JSON object a line. Killed and started again, it
goes on with both queries, and with a migration that was under way.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

import meander as me
from fault.matrix.program import tell
from fault.soak.audit import QUERIES, RETAIN, RETAIN_SIDE, SNAPSHOT_EVERY
from fault.soak.samples import worker_folders
from meander.engine.driver import batch_loop
from meander.engine.spark.gateway import Gateway
from streams import PATIENCE_S, QUICK, Feed, wait_until

EXECUTORS, BINS = 4, 32
SETTINGS: dict[str, Any] = {
    "workers": 2, "bins": BINS, "retain": RETAIN, "snapshot_every": SNAPSHOT_EVERY, "retain_side": RETAIN_SIDE,
    "idle_after_s": 0.5, "executors_within_s": 300,
}  # fmt: skip
TOUCHED = "-XX:+AlwaysPreTouch"
"""A heap is in memory from its first minute on: what a JVM takes beyond it is what grows."""
SPARK: dict[str, Any] = {
    # What Spark remembers of the past is soon full: what grows then is a leak.
    "spark__driver__memory": "600m", "spark__driver__extraJavaOptions": f"{QUICK} -Xms600m {TOUCHED}",
    "spark__executor__memory": "480m", "spark__executor__extraJavaOptions": f"{QUICK} -Xms480m {TOUCHED}",
    "spark__ui__retainedJobs": 50, "spark__ui__retainedStages": 50, "spark__ui__retainedTasks": 200,
    "spark__ui__retainedDeadExecutors": 5, "spark__sql__ui__retainedExecutions": 20,
    "spark__sql__streaming__minBatchesToRetain": 20,
    "spark__sql__streaming__fileSource__log__cleanupDelay": "60s",
}  # fmt: skip
NEWEST_FILES = "200s"
"""Files are stamped a second apart: Spark remembers no more than the last 200 of them."""


class Moving:
    """A query, and the migration of it that is under way."""

    def __init__(self, name: str, root: Path, spark: Any) -> None:
        workload = QUERIES[name]
        feeds = [
            Feed(root / name / f"in{at}", schema).read(spark, maxFileAge=NEWEST_FILES)
            for at, schema in enumerate(workload.inputs)
        ]
        stream = workload.describe(*map(me.stream, feeds))
        sink = me.sinks.files(str(root / name / "out"))
        self.name = name
        self.query = stream.start(root / name / "ck" / "q", sink, name=name, **SETTINGS)
        self.move = self.query.migration
        self._began_s = time.time()
        tell("started", query=name, version=self.query.version, is_resumed=self.move is not None)

    def change(self, rng: random.Random) -> None:
        """Go to another number of workers, or move some bins; unless bins move already."""
        if self.move is not None:
            tell("busy", query=self.name)
            return
        schedule = rng.choice(["batched", "fluid", "matching", "all_at_once"])
        options: dict[str, Any] = {"max_bins": rng.randint(2, 8)} if schedule == "batched" else {}
        workers, self._began_s = self.query.workers, time.time()
        if rng.random() < 0.2 and len(workers) > 1:
            targets = {bin_: rng.choice(workers) for bin_ in rng.sample(range(BINS), BINS // 4)}
            self.move = self.query.move(targets, schedule=schedule, **options)
        else:
            count = rng.choice([each for each in range(1, EXECUTORS + 1) if each != len(workers)])
            self.move = self.query.rescale(count, schedule=schedule, **options)

    def look(self) -> None:
        """Tell of a migration that has ended; raise what the query has failed of."""
        if not self.query.is_active:
            raise self.query.exception() or RuntimeError(f"{self.name} has ended without an error")
        if self.move is None or not self.move.is_over:
            return
        move, self.move = self.move, None
        goal = [list(map(int, plan.owner)) for plan in move.plans.values()]
        owners = list(self.query.assignment.values())
        tell(
            "migrated", query=self.name, status=move.status, reason=move.reason, kind=move.request.kind,
            schedule=move.request.schedule, is_at_goal=not goal or goal == owners, workers=len(self.query.workers),
            began_s=self._began_s, ended_s=time.time(),
        )  # fmt: skip


def run(options: dict[str, Any], moving: list[Moving]) -> None:
    """Rescale the queries in turn until the end is asked for, and let what is under way end."""
    rng, finish = random.Random(f"{options['seed']}/{options['run']}"), Path(options["root"]) / "finish"
    turns, due_s = itertools.cycle(moving), time.monotonic() + options["rescale_s"]
    while not finish.exists() and os.getppid() != 1:
        for each in moving:
            each.look()
        if time.monotonic() >= due_s:
            due_s += options["rescale_s"]
            next(turns).change(rng)
        time.sleep(0.1)
    for each in moving:
        wait_until(lambda: each.look() or each.move is None, f"the migration of {each.name}")  # noqa: B023


def main(options: dict[str, Any]) -> None:
    """Start both queries, and run them to their end."""
    batch_loop.MAX_PROGRESS = (
        50  # as with Spark: of a thousand versions, two KiB each, it would fill for twenty minutes
    )
    spark = me.session(f"local-cluster[{EXECUTORS},1,1024]", **SPARK)
    spark.sparkContext.setLogLevel("OFF")
    gateway, local = Gateway(spark), Path(os.environ["SPARK_LOCAL_DIRS"])
    wait_until(lambda: len(gateway.executors()) == EXECUTORS, f"{EXECUTORS} executors", PATIENCE_S)
    try:
        moving = [Moving(name, Path(options["root"]), spark) for name in QUERIES]
        tell("ready")
        run(options, moving)
        for each in moving:
            each.query.process_all_available()
        places = sorted(place for each in moving for place in each.query.places.values())
        tell("moved", places=places, folders=sorted(worker_folders(local).values()))
        facts = {each.name: {"version": each.query.version, "misrouted": each.query.misrouted} for each in moving}
        for each in moving:
            each.query.stop()
    except Exception as problem:
        logging.exception("a query has failed")
        tell("failed", kind=type(problem).__name__, message=str(problem))
        raise SystemExit(3) from None
    tell("done", folders=sorted(map(str, worker_folders(local))), queries=facts)
    spark.stop()


if __name__ == "__main__":
    logging.basicConfig(format="%(asctime)s %(message)s")
    logging.getLogger("meander").setLevel(logging.INFO)
    main(json.loads(sys.argv[1]))
