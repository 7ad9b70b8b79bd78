"""Moves that come as data (Megaphone's control stream): rows of batch, bin and worker, from any streaming DataFrame."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from meander.errors import InvalidOption
from meander.migration.protocol import Rules
from meander.migration.steps import Shift, Step
from meander.spark.engine import Engine
from meander.types import BinId, WorkerId

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

    from meander.spark.running import Query

COLUMNS = ("batch", "bin", "worker")
FOLDER = "control"
LOOK_EVERY_S = 0.05


class Update(NamedTuple):
    """As of a batch, a worker owns a bin of an operator."""

    batch: int
    stage: int
    bin: BinId
    worker: WorkerId


def check(control: DataFrame) -> None:
    """Refuse a DataFrame that cannot be a control stream."""
    if not getattr(control, "isStreaming", False):
        raise InvalidOption("control is not a streaming DataFrame; make one with spark.readStream")
    whole = {"tinyint", "smallint", "int", "bigint"}
    types = dict(control.dtypes)
    wrong = [name for name in COLUMNS if types.get(name) not in whole]
    if wrong or types.get("operator", "int") not in whole:
        raise InvalidOption(
            f"control needs the columns {', '.join(COLUMNS)}, and may have operator, all of them whole numbers; it has "
            f"{', '.join(f'{name} {kind}' for name, kind in types.items())}"
        )


class Steering:
    """Reads the control stream of a query beside it, and turns what comes into steps of one long migration."""

    def __init__(self, query: Query, control: DataFrame) -> None:
        self.query, self.control = query, control
        self._inner: StreamingQuery | None = None

    def start(self) -> Steering:
        """Begin to read, from where the last start has ended."""
        folder = f"{self.query._engine.log.location.uri}/{FOLDER}"
        self._inner = self.control.writeStream.foreachBatch(self).option("checkpointLocation", folder).start()
        return self

    def stop(self) -> None:
        """Read no more."""
        if self._inner is not None:
            self._inner.stop()

    def is_mine(self, query_id: str) -> bool:
        """Whether a stream of Spark is this one."""
        return self._inner is not None and self._inner.id == query_id

    def __call__(self, rows: DataFrame, batch: int) -> None:
        """Take over some updates; returns when they are in the journal, so that they are not read again."""
        told = [row.asDict() for row in rows.collect()]
        engine = self.query._engine
        with engine.lock:
            good = [update for row in told if (update := self._checked(engine, row)) is not None]
            if not good or engine.stopping:
                return
            version = engine.version
            self._submit(engine, good)
        while self.query.version == version and not engine.stopping and engine.failure is None:
            time.sleep(LOOK_EVERY_S)

    def _checked(self, engine: Engine, row: dict[str, Any]) -> Update | None:
        """A row as an update; one that makes no sense is told of, and left out."""
        stage, bins = row.get("operator") or 0, engine.settings.bins
        update = Update(row["batch"], stage, row["bin"], row["worker"])
        reason = None
        if None in update:
            reason = "a number is missing"
        elif not 0 <= stage < len(engine.ledger.owners):
            reason = f"there is no operator {stage}"
        elif not 0 <= update.bin < bins:
            reason = f"there is no bin {update.bin}: the bins are 0 to {bins - 1}"
        elif not 0 <= update.worker < 1 << 31:
            reason = f"{update.worker} cannot be the number of a worker"
        elif not engine.gateway.local:
            workers = {*engine.moves.participants, update.worker}
            cores = sum(place.cores for place in engine.seats.places.now())
            if len(workers) > cores:
                reason = f"worker {update.worker} needs a core, and all {cores} have a worker; rescale first"
        if reason is None:
            return update
        engine.moves.happenings.tell("refused", version=engine.version, row=row, reason=reason)
        return None

    def _submit(self, engine: Engine, updates: Sequence[Update]) -> None:
        """Add updates to what has not flipped yet; that is in the journal, so a restart or another plan loses none."""
        left = [
            Update(0 if step.at is None else step.at, shift.stage, shift.bin, shift.target)
            for step in engine.moves.protocol.steps
            for shift in step.shifts
        ]
        steps = self._steps(engine, sorted([*left, *updates], key=lambda each: each.batch))
        rules = Rules(engine.settings.copy_bytes, engine.settings.release_after)
        engine.moves.copy_ms = engine.settings.copy_ms
        engine.moves.begin(steps, rules, lambda _: None)

    def _steps(self, engine: Engine, updates: Sequence[Update]) -> list[Step]:
        """One step for each batch, from whoever owns a bin when its turn comes."""
        owners = [each.copy() for each in engine.ledger.owners]
        steps: list[Step] = []
        for batch in sorted({update.batch for update in updates}):
            shifts: dict[tuple[int, int], Shift] = {}
            for _, stage, bin_, worker in (each for each in updates if each.batch == batch):
                source = WorkerId(int(owners[stage][bin_]))
                size = int(engine.ledger.state_bytes[stage][bin_])
                shifts.pop((stage, bin_), None)
                if source != worker:
                    shifts[stage, bin_] = Shift(stage, bin_, source, worker, size)
            for shift in shifts.values():
                owners[shift.stage][shift.bin] = shift.target
            steps.append(Step(len(steps), tuple(shifts.values()), batch))
        return steps
