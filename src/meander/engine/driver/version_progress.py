"""What a version did, for people: rows, milliseconds, and each worker's part."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from meander.engine.driver.commit import VersionReports
from meander.engine.worker.messages import TaskReport
from meander.pictures import many
from meander.store.entries import Commit
from meander.types import OperatorId, WorkerId


@dataclass(frozen=True)
class WorkerProgress:
    """What one worker did for one operator in a version.

    Args:
        operator: the number of the operator in the chain.
        worker: who.
        rows: the rows that came.
        state_rows, state_bytes: what it holds now.
        spent_ms: milliseconds by what they were spent on; `busy` is the sum of its own work.
    """

    operator: OperatorId
    worker: WorkerId
    rows: int
    state_rows: int
    state_bytes: int
    spent_ms: Mapping[str, float]

    @classmethod
    def of(cls, report: TaskReport) -> WorkerProgress:
        """What a task has reported."""
        state_rows, state_bytes = report.state_rows.total, report.state_bytes.total
        operator, worker = OperatorId(report.operator), WorkerId(report.worker)
        return cls(operator, worker, report.rows, state_rows, state_bytes, dict(report.spent_ms))


@dataclass(frozen=True, repr=False)
class VersionProgress:
    """What a version did.

    Args:
        version, batch: its number, and that of Spark's batch.
        tick: 0 for a batch; otherwise it is the version of an idle stream, the so-many-th after that batch.
        rows, late, dead: rows that came, of those the ones that came too late, and the dead letters.
        ended_ms: when it was committed, in milliseconds since 1970.
        emitted: rows that the last operator gave to the sink.
        flipped, copied, misrouted: bins that changed hands, bins that were copied ahead, rows that came to the wrong
            worker.
        unconverted: bins whose state is still to be written in the layout of a changed query.
        rows_per_s: rows by the time it took.
        spent_ms: the driver's milliseconds by what they were spent on; their sum is how long it took.
        workers: each worker's part.
    """

    version: int
    batch: int
    tick: int
    rows: int
    late: int
    dead: int
    ended_ms: int
    emitted: int
    flipped: int
    copied: int
    misrouted: int
    unconverted: int
    rows_per_s: float
    spent_ms: Mapping[str, float]
    workers: tuple[WorkerProgress, ...]

    @classmethod
    def of(
        cls, commit: Commit, reports: VersionReports, flipped: int, unconverted: int, spent_s: Mapping[str, float]
    ) -> VersionProgress:
        """What was committed, with what the workers have reported."""
        whole_s = sum(spent_s.values())
        return cls(
            version=commit.version, batch=commit.batch, tick=commit.tick,
            rows=commit.rows, late=commit.late, dead=commit.dead, ended_ms=commit.time_ms,
            emitted=sum(report.emitted for report in reports.by_operator[-1]),
            flipped=flipped, copied=reports.total("copied"), misrouted=reports.total("misrouted"),
            unconverted=unconverted,
            rows_per_s=commit.rows / whole_s if whole_s else 0.0,
            spent_ms={name: round(spent * 1000, 1) for name, spent in spent_s.items()},
            workers=tuple(map(WorkerProgress.of, reports.reports)),
        )  # fmt: skip

    @property
    def took_ms(self) -> float:
        """How long it took in all."""
        return sum(self.spent_ms.values())

    @property
    def state_bytes(self) -> int:
        """What all workers hold."""
        return sum(each.state_bytes for each in self.workers)

    def to_dict(self) -> dict[str, Any]:
        """What it says, as plain lists and numbers, ready for JSON.

        Returns:
            The fields, by name.

        Example:
            >>> query.last_progress.to_dict()["rows"]
            10
        """
        return asdict(self)

    def __repr__(self) -> str:
        return f"<VersionProgress {self}>"

    def __str__(self) -> str:
        what = f"batch {self.batch}" if self.tick == 0 else f"tick {self.tick} after batch {self.batch}"
        rows = many(self.rows, "row")
        return f"version {self.version} ({what}): {rows} in {self.took_ms:.0f} ms, {self.emitted:,} emitted"
