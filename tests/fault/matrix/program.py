"""The driver program of the cells: it takes orders from a folder, runs a query for each, and prints what happens.

It is started with the session's options as JSON. An order is a query: where it reads and writes, its operator, its
sink, and the phase to be held in. One session serves many cells, as long as nothing kills the driver.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

import meander as me
from fault.matrix.faults import CLUSTER, EXECUTORS
from fault.matrix.phases import SETTLED, Gate, install
from fault.matrix.workloads import WORKLOADS
from meander.engine.driver import batch_loop, delivery
from meander.engine.spark.gateway import Gateway
from streams import BRIEF, PATIENCE_S, Feed, wait_until

WORKERS, BINS = 2, 16
SWEEP_EVERY = 4
SETTINGS: dict[str, Any] = {"snapshot_every": 4, "idle_after_s": 0.5, "retain": 1}
SWEPT = (batch_loop, delivery)
"""Modules that say after how many versions old files go."""


def tell(event: str, **facts: Any) -> None:
    """Print an event."""
    print(json.dumps({"event": event, **facts}), flush=True)


class FailingFiles(me.sinks.Files):
    """A folder of files that fails while a file asks it to."""

    def __init__(self, order: Order) -> None:
        super().__init__(str(order.root / "out"), "parquet", {})
        self.order = order

    def form(self, *query: Any) -> Any:
        """However little it is, workers write it."""
        return super().form(*query)._replace(inline=0)

    def save(self, *version: Any) -> None:
        self.order.fail_if_asked()
        super().save(*version)
        self.order.session.gate.reach("sink")


class Numbered:
    """A function that keeps each version under its number, and ignores numbers up to the newest that it has."""

    def __init__(self, order: Order) -> None:
        self.order, self.folder = order, order.root / "out"
        self.folder.mkdir(exist_ok=True)

    def __call__(self, rows: Any, number: int) -> None:
        self.order.fail_if_asked()
        if number > max((int(each.stem) for each in self.folder.glob("[0-9]*.parquet")), default=-1):
            hidden = self.folder / f"_{os.getpid()}"
            pq.write_table(rows.toArrow(), hidden)
            hidden.rename(self.folder / f"{number}.parquet")
        self.order.session.gate.reach("sink")


class Order:
    """One query: it is started, moves its bins if it is asked to, and runs until a file says that all was fed."""

    def __init__(self, session: Session, fields: dict[str, Any]) -> None:
        self.session, self.fields = session, fields
        self.root = Path(fields["root"])
        self.workload = WORKLOADS[fields["operator"]]
        self.query: Any = None

    def fail_if_asked(self) -> None:
        """Fail as a sink does, while there is a file that says so."""
        if (self.root / "fail-sink").exists():
            raise OSError("the sink is out of order")

    def run(self) -> None:
        """Run the query to its end, and tell of it."""
        try:
            self._start()
            if self.fields["moves"]:
                self._move()
            ends = [self.root / "finish", self.root / f"stop-{self.fields['run']}"]
            wait_until(lambda: any(each.exists() for each in ends) or not self.query.is_active, "the end")
            if ends[1].exists():
                self.query.stop()
                tell("stopped")
                return
            self.query.process_all_available()
            self._settle_move()
            self.query.stop()
        except Exception as problem:
            failure = (self.query and self.query.exception()) or problem
            if self.query is not None:
                with suppress(Exception):  # it has failed before
                    self.query.stop()
            tell("failed", kind=type(failure).__name__, message=str(failure))
            return
        status = self.query.migration and self.query.migration.status
        facts = {"misrouted": self.query.misrouted, "version": self.query.version, "migration": status}
        tell("done", folders=folders(), **facts)

    def _start(self) -> None:
        feeds = [
            Feed(self.root / f"in{at}", schema).read(self.session.spark)
            for at, schema in enumerate(self.workload.inputs)
        ]
        sink = FailingFiles(self) if self.fields["sink"] == "files" else Numbered(self)
        stream = self.workload.describe(*map(me.stream, feeds))
        self.query = stream.start(self.root / "ck" / "q", sink, workers=WORKERS, bins=BINS, **SETTINGS)
        self.session.gate.facts = self._facts
        if self.workload.is_balanced:
            self.query.keep_balanced(alpha=0.3, window=2, rest=2)
        tell("started", version=self.query.version)

    def _facts(self) -> dict[str, Any]:
        """Who sits where, and between whom bins move."""
        moves = [move for step in self.session.gate.coordinator.protocol.steps for move in step.moves]
        return {
            "seats": {int(worker): int(each.split(":")[1]) for worker, each in self.query.places.items()},
            "sources": sorted({int(move.source) for move in moves}),
            "targets": sorted({int(move.target) for move in moves}),
        }

    def _move(self) -> None:
        """Go to one worker more; where that is wanted, think better of it."""
        wait_until(lambda: self.query.version >= SETTLED or not self.query.is_active, "some versions")
        options = {"schedule": "batched", "max_bins": 2, "keep_executors": True}
        try:
            move = self.query.rescale(WORKERS + 1, **options)
            if self.fields["moves"] == "cancel":
                wait_until(lambda: move.is_over or self._has_copied, "a step to be copied")
                move.cancel()
        except me.MeanderError as problem:
            tell("refused", message=str(problem))

    @property
    def _has_copied(self) -> bool:
        return any(each.name == "copying" for each in self.query.events) or not self.query.is_active

    def _settle_move(self) -> None:
        """Let a migration end; who has lost its executor for good ends it too."""
        move = self.query.migration
        wait_until(lambda: move is None or move.is_over or not self.query.is_active, "the migration")


class Session:
    """Spark, and the orders that come."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.orders = Path(options["orders"])
        os.environ["MEANDER_TORN"] = options["tokens"]
        self.gate = Gate(tell)
        self.order: Order | None = None
        install(self.gate, lambda: bool(self.order and self.order.fields["is_before_job"]))
        for module in SWEPT:
            if hasattr(module, "SWEEP_EVERY"):
                module.SWEEP_EVERY = SWEEP_EVERY
        self._executors = EXECUTORS if options["master"] == CLUSTER else 1
        settings = {"spark__python__daemon__module": "torn", **options["spark"]}
        self.spark = me.session(options["master"], **BRIEF, **settings)
        self.spark.sparkContext.setLogLevel("OFF")
        self._gateway = Gateway(self.spark)

    def serve(self) -> None:
        """Take orders until there are no more."""
        number = 0
        while True:
            wait_until(lambda: len(self._gateway.executors()) == self._executors, f"{self._executors} executors")
            tell("ready")
            path = self.orders / f"{number}.json"
            wait_until(lambda: path.exists() or os.getppid() == 1, "an order", 10 * PATIENCE_S)  # noqa: B023
            fields = json.loads(path.read_text())
            self.order = Order(self, fields)
            self.gate.facts = dict
            self.gate.arm(fields["phase"], Path(fields["go"]))
            self.order.run()
            self.gate.arm(None, Path())
            number += 1


def folders() -> list[str]:
    """The workers' folders that are still beside the executors."""
    return sorted(str(each) for each in Path(os.environ["SPARK_LOCAL_DIRS"]).glob("**/meander-*"))


if __name__ == "__main__":
    logging.basicConfig(format="%(asctime)s %(message)s")
    logging.getLogger("meander").setLevel(logging.INFO)
    Session(json.loads(sys.argv[1])).serve()
