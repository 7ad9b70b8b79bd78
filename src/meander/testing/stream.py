"""A stream that a test feeds, as the driver's port `Stream`, and how a query is started on it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

from meander.clock import Clock
from meander.engine.driver.driver import Driver, claim
from meander.engine.driver.graph import Graph
from meander.engine.driver.ports import Cluster, Jobs, Rows
from meander.engine.driver.settings import Settings
from meander.migration.steps import Step
from meander.operators.operator import BinnedOperator
from meander.store.design import Design
from meander.store.evolution import Evolution
from meander.store.location import Location
from meander.store.manifest import Log
from meander.store.spark_logs import SPARK

KEPT_BATCHES = 100
"""Of so many batches Spark keeps its logs."""
QUERY_ID = "00000000-0000-0000-0000-000000000000"


class InProcessStream:
    """Batches that come when they are put; it writes the same logs that Spark does."""

    def __init__(self, location: Location, driver: Driver) -> None:
        self._location, self._driver = location, driver
        self._is_active = True
        path = f"{SPARK}/metadata"
        if not location.exists(path):
            location.write(path, json.dumps({"id": QUERY_ID}).encode())
        last = driver.log.last
        self.next_batch = 0 if last is None else last.batch + 1

    @property
    def id(self) -> str:
        """The query's id."""
        return QUERY_ID

    @property
    def is_active(self) -> bool:
        """Whether batches may still come."""
        return self._is_active and self._driver.loop.failure is None

    @property
    def is_quiet(self) -> bool:
        """Always: a batch is over when `put` returns."""
        return True

    @property
    def is_shared(self) -> bool:
        """Nobody else uses the executors."""
        return False

    def put(self, rows: Rows) -> None:
        """Process one batch."""
        number = self.next_batch
        path = f"{SPARK}/offsets/{number}"
        if not self._location.exists(path):
            text = "v1\n{}\n" + json.dumps({"batch": number, "rows": len(rows)})
            self._location.write(path, text.encode())
        self._driver.loop.process(rows, number)
        self._location.write(f"{SPARK}/commits/{number}", b"v1\n{}")
        for log in ("offsets", "commits"):
            self._location.delete(f"{SPARK}/{log}/{number - KEPT_BATCHES}")
        self.next_batch = number + 1

    def rows_behind(self) -> int:
        """Nothing waits."""
        return 0

    def process_all_available(self) -> None:
        """Everything that was put has been processed."""

    def wait(self, timeout_s: float) -> None:
        """It ends when it is stopped."""

    def failure(self) -> Exception | None:
        """It does not fail by itself."""
        return None

    def stop(self) -> None:
        """Bring no more batches."""
        self._is_active = False


@dataclass
class InProcessLaunch:
    """Everything a query is started with in this process."""

    operators: Sequence[BinnedOperator] | Graph
    location: Location
    cluster: Cluster
    jobs: Jobs
    settings: Settings
    clock: Clock
    requested: int | None = None
    name: str = "test"
    stream: type[InProcessStream] = InProcessStream
    background: bool = False
    starts: int = field(default=0)
    evolution: Evolution = field(default_factory=Evolution)

    def start(self, moved: Sequence[Step] = (), before: Driver | None = None) -> tuple[Driver, InProcessStream]:
        """Check everything, claim the checkpoint and start."""
        self.starts += 1
        run = f"{self.name}-{self.starts}"

        def settled(log: Log, design: Design | None) -> Driver:
            driver = Driver(
                self.operators, self.cluster, self.jobs, self.settings, log, self.clock, run, self.background, before,
                design,
            )  # fmt: skip
            return driver.settle(self.requested, None if before is None else moved)

        driver = claim(self.location, self.settings, self.operators, settled, self.name, self.starts, self.evolution)
        stream = self.stream(self.location, driver)
        driver.loop.attach(stream)
        return driver, stream
