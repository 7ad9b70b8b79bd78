"""The program of the migration fault tests: it counts keys of a folder of files, and moves bins while it does.

It is started with its options as JSON and tells on its output, one JSON object a line, what it does. Where a migration
enters a phase it was told to be held in, the whole query waits there until a file appears.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import meander as me
from meander.engine.spark.gateway import Gateway
from streams import PATIENCE_S, Feed, as_ints, at_events, wait_until

OPTIONS = json.loads(sys.argv[1])
SIGNALS = Path(OPTIONS["signals"])
BETWEEN = 2
"""So many versions go by between two migrations."""


def tell(event, **facts):
    print(json.dumps({"event": event, **facts}), flush=True)


class Telling(me.sinks.Files):
    """Writes files through Spark, and says so."""

    def prepare(self, output, write):
        tell("sink", version=write.version)
        return super().prepare(output, write)


class Hook:
    """Holds a query once in the phase that is asked for."""

    def __init__(self, query, gateway):
        self.query, self.gateway, self.phase, self.step, self.flips, self.count = query, gateway, None, None, 0, 0
        at_events(self)

    def hold(self, phase, step):
        """Hold the migration that begins next when this step enters this phase; -1 is the last step."""
        self.step, self.flips, self.phase = step, 0, phase

    def __call__(self, told):
        event, wanted = told.name, self.step
        if event in ("lost", "executors", "dismissed", "finished"):
            tell("happened", what=told.to_dict())
        if event != self.phase:
            return
        move = self.query.migration
        # A flip has no number of its own: steps flip one after the other.
        step = self.flips if event == "flipping" else told.step
        self.flips += event == "flipping"
        if step != (wanted if wanted >= 0 else len(move.steps) + wanted):
            return
        self.phase = None
        if OPTIONS.get("let_none_come"):
            self.gateway.request_executors(len(self.gateway.executors()) - 1)
        until = f"go-{OPTIONS['run']}-{self.count}"
        self.count += 1
        moves = [each for step in move.steps for each in step.moves]
        tell(
            "held", phase=event, step=step, steps=len(move.steps), version=told.version, until=until,
            goal=goal(move), seats=seats(self.query),
            sources=sorted({int(each.source) for each in moves}),
            targets=sorted({int(each.target) for each in moves}),
        )  # fmt: skip
        wait_until((SIGNALS / until).exists, until)


def goal(move):
    """Who is to own each bin."""
    return [list(map(int, plan.owner)) for plan in move.plans.values()]


def seats(query):
    """The process of the executor that each worker sits on."""
    return {int(worker): int(process.split(":")[1]) for worker, process in query.places.items()}


def see_through(query, move):
    """Wait for the end of a migration, and tell of it."""
    try:
        ended = move.wait(PATIENCE_S)
    except me.MigrationFailed as problem:
        if not query.is_active:
            raise
        tell("refused", message=str(problem))
        ended = True
    assert ended, move.progress
    owned = list(query.assignment.values())
    report = move.report
    tell(
        "migrated", status=move.status, reason=report.reason, assignment=owned, workers=query.workers,
        at_goal=owned == goal(move), mode=report.mode, let_go=report.executors["let_go"],
        came=report.executors["came"], version=query.version, seats=seats(query),
    )  # fmt: skip


def let_versions_pass(query, count):
    first = query.version
    wait_until(lambda: query.version >= first + count or not query.is_active, f"{count} versions")


def moved_about(query, gateway):
    """Move bins as the test has said."""
    hook = Hook(query, gateway)
    if query.migration is not None:
        see_through(query, query.migration)
    for wish in OPTIONS["moves"]:
        let_versions_pass(query, BETWEEN)
        options = dict(wish)
        hold = options.pop("hold", None)
        if hold is not None:
            hook.hold(*hold)
        see_through(query, query.rescale(options.pop("workers"), **{"keep_executors": True, **options}))
        assert hold is None or hook.phase is None, f"no step was ever {hold}"


def folders():
    """The workers' folders that are beside the executors."""
    return sorted(str(each) for each in Path(os.environ["SPARK_LOCAL_DIRS"]).glob("**/meander-*"))


def session():
    """Spark, with all of its executors there, and the way to them."""
    master = OPTIONS.get("master", "local-cluster[3,1,1024]")
    spark = me.session(master, **OPTIONS.get("spark", {}))
    spark.sparkContext.setLogLevel("OFF")
    gateway = Gateway(spark)
    if not gateway.local:
        executors = OPTIONS.get("executors") or int(master.partition("[")[2].partition(",")[0])
        wait_until(lambda: len(gateway.executors()) == executors, f"{executors} executors")
    return spark, gateway


def main():
    os.environ["MEANDER_TORN"] = str(SIGNALS)
    spark, gateway = session()
    feed = Feed(Path(OPTIONS["input"]), as_ints([]).schema)
    quick = OPTIONS.get("quick", False)
    sink = (me.sinks.Files if quick else Telling)(OPTIONS["output"], "parquet", {})
    settings = {"workers": 2, "bins": 32, "snapshot_every": 4, "idle_after_s": 0.5, **OPTIONS.get("settings", {})}
    query = None
    try:
        query = me.stream(feed.read(spark)).key_by("key").count().start(OPTIONS["checkpoint"], sink, **settings)
        resumed = query.migration is not None
        tell("started", version=query.version, resumed=resumed, workers=query.workers, assignment=query.assignment)
        moved_about(query, gateway)
        tell("moved", version=query.version, seats=seats(query), folders=folders())
        wait_until(lambda: (SIGNALS / "finish").exists() or not query.is_active, "the end")
        query.process_all_available()
    except Exception as problem:
        found = (query and query.exception()) or problem
        tell("failed", kind=type(found).__name__, message=str(found), version=query and query.version)
        raise SystemExit(3) from None
    facts = {"version": query.version, "misrouted": query.misrouted, "assignment": list(query.assignment.values())}
    query.stop()
    tell("done", folders=folders(), **facts)
    spark.stop()


if __name__ == "__main__":
    import logging

    logging.basicConfig(format="%(asctime)s %(message)s")
    logging.getLogger("meander").setLevel(logging.INFO)
    main()
