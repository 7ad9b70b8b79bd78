"""Run a query over events, move its bins meanwhile, and gather its final rows."""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from meander import sinks
from meander.engine.driver.version_progress import VersionProgress
from meander.errors import InvalidOption, MigrationFailed
from meander.progress import Tell, nobody
from meander.scheduling import schedules
from meander_lab.nexmark.queries import Options, QueryDefinition

if TYPE_CHECKING:
    from meander.migration.handle import Migration
    from meander.migration.report import Report
    from meander.streams import Query
    from meander_lab.nexmark.streams import Events

BATCH = "batch"
LOOK_EVERY_S = 0.02
_SCHEDULED_MOVE = re.compile(r"(?P<schedule>[a-z_]+)@(?P<at>\d+(\.\d+)?)%(:(?P<workers>\d+))?")


@dataclass(frozen=True)
class ScheduledMove:
    """A migration to make on the way: in these steps, after this share of the input, to so many workers.

    Without a number of workers a quarter of the bins moves, half of those of every second worker, and the next such
    move takes them back: Megaphone's way to unbalance a query and to balance it again.
    """

    schedule: str
    at: float
    workers: int | None = None

    @classmethod
    def of(cls, text: str) -> ScheduledMove:
        """Read "batched@50%" or "batched@50%:4"."""
        match = _SCHEDULED_MOVE.fullmatch(text.strip())
        if not match or float(match["at"]) > 100:
            raise InvalidOption(
                f"the migration {text!r} cannot be read; write a schedule and when, as in batched@50%, and to go to 4 "
                "workers, batched@50%:4"
            )
        if match["schedule"] not in schedules():
            raise InvalidOption(f"there is no schedule {match['schedule']!r}; there are: {', '.join(schedules())}")
        return cls(match["schedule"], float(match["at"]) / 100, int(match["workers"]) if match["workers"] else None)


@dataclass(frozen=True)
class Input:
    """The events of a run, and how they come: in a number of batches, or within so many seconds. They end."""

    events: Events
    batches: int | None = None
    seconds: float | None = None


@dataclass(frozen=True)
class NexmarkOutcome:
    """What came of a run.

    Args:
        rows: the final result, in order of its columns.
        batches: the progress of every batch, as `query.recent_progress` has it.
        moves: what was moved on the way.
        late: rows that came too late to count.
        seconds: how long the query ran.
    """

    rows: pa.Table
    batches: list[VersionProgress]
    moves: list[Report]
    late: int
    seconds: float

    @property
    def events(self) -> int:
        """How many events the query has read, of the kinds it reads."""
        return sum(each.rows for each in self.batches)


@dataclass
class NexmarkRun:
    """One run of one query."""

    definition: QueryDefinition
    input: Input
    options: Options = field(default_factory=Options)
    moves: Sequence[ScheduledMove] = ()
    workers: int | None = None
    bins: int = 256
    tell: Tell = nobody
    settings: Mapping[str, Any] = field(default_factory=dict)
    _seen: dict[int, VersionProgress] = field(default_factory=dict)
    _began: float = 0.0

    def go(self, checkpoint: str | Path | None = None) -> NexmarkOutcome:
        """Run it to the end of its input; without a checkpoint, in one that is thrown away."""
        if checkpoint is not None:
            return self._go(Path(checkpoint))
        with tempfile.TemporaryDirectory(prefix="meander-nexmark-") as folder:
            return self._go(Path(folder) / "checkpoint")

    def _go(self, checkpoint: Path) -> NexmarkOutcome:
        sink = sinks.memory(self.definition.name)
        stream = self.definition.build(self.input.events, self.options)

        settings: dict[str, Any] = {"workers": self.workers, "bins": self.bins, "retain": 2, **self.settings}
        ending: dict[str, Any] = {"trigger": {"availableNow": True}, "at_end": "close"}
        self._began = time.monotonic()
        query = stream.start(checkpoint, sink, name=f"nexmark-{self.definition.name}", **ending, **settings)
        try:
            moves = self._migrate(query)
            self._watch(query, 1.0)
            query.await_termination()
            self._look(query)
        finally:
            query.stop()
        seconds = time.monotonic() - self._began
        batches = [self._seen[version] for version in sorted(self._seen)]
        self.tell(100, 100, self.definition.name)
        return NexmarkOutcome(
            self._final(sink.to_arrow(), stream.schema),
            batches,
            [move.report for move in moves],
            sum(each.late for each in batches),
            seconds,
        )

    def _final(self, emitted: pa.Table, schema: pa.Schema) -> pa.Table:
        dialect = self.options.dialect
        return self.definition.shown(final_rows(emitted, self.definition.shape(dialect).key, schema), dialect)

    def _migrate(self, query: Query) -> list[Migration]:
        """Make the migrations that were asked for, each when its time has come and the one before is over."""
        moves: list[Migration] = []
        before: dict[int, int] | None = None
        for scheduled in sorted(self.moves, key=lambda each: each.at):
            if not self._watch(query, scheduled.at):
                break
            if scheduled.workers is not None:
                move = query.rescale(scheduled.workers, schedule=scheduled.schedule)
            elif before is not None:
                move, before = query.move(before, schedule=scheduled.schedule), None
            else:
                (owner, *_) = query.assignment.values()
                targets = quarter(owner)
                move, before = query.move(targets, schedule=scheduled.schedule), {bin_: owner[bin_] for bin_ in targets}
            moves.append(move)
            try:
                while not move.wait(LOOK_EVERY_S, show=False):
                    self._look(query)
            except MigrationFailed:
                if query.exception() is not None:
                    raise
                break  # the input was over first, and the report says how far it came
        return moves

    def _watch(self, query: Query, share: float) -> bool:
        """Wait until this share of the input is committed; False where the query has ended before."""
        while self._share() < share:
            if not query.is_active:
                return False
            time.sleep(LOOK_EVERY_S)
            self._look(query)
            self.tell(round(100 * min(1.0, self._share())), 100, self.definition.name)
        return query.is_active

    def _share(self) -> float:
        if self.input.seconds is not None:
            return (time.monotonic() - self._began) / self.input.seconds
        assert self.input.batches is not None
        return (max((each.batch for each in self._seen.values()), default=-1) + 1) / self.input.batches

    def _look(self, query: Query) -> None:
        self._seen.update({each.version: each for each in query.recent_progress})


def quarter(owner: Sequence[int]) -> dict[int, int]:
    """A quarter of the bins and where they would go: half of those of one half of the workers, to the other half."""
    workers = sorted(set(owner))
    if len(workers) < 2:
        raise InvalidOption("a single worker has nobody to give bins to; start with --workers 2, or say batched@50%:2")
    half = len(workers) // 2
    givers, takers = workers[:half], workers[half:]
    mine = [[bin_ for bin_, who in enumerate(owner) if who == giver] for giver in givers]
    bins_to_move = [bin_ for bins in mine for bin_ in bins[: (len(bins) + 1) // 2]]
    return {bin_: takers[at % len(takers)] for at, bin_ in enumerate(bins_to_move)}


def final_rows(emitted: pa.Table, key: Sequence[str] | None, schema: pa.Schema) -> pa.Table:
    """What stands at the end: every row, or for each key those of the newest version that spoke of it; in order."""
    if not emitted.num_rows:
        return schema.empty_table()
    if key is not None:
        newest = emitted.group_by(list(key)).aggregate([(BATCH, "max")]).rename_columns([*key, BATCH])
        emitted = emitted.join(newest, keys=[*key, BATCH], join_type="inner")
    rows = emitted.select(schema.names).combine_chunks()
    return rows.sort_by([(name, "ascending") for name in rows.column_names])


Run, Shift = NexmarkRun, ScheduledMove
"""Their former names, for those who still import them."""
