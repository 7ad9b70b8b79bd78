"""Everything Meander raises on purpose.

    MeanderError
    ├── InvalidProblem    a planning problem that makes no sense (also a ValueError)
    ├── InvalidOption     an option or a name that a planner or schedule does not know (also a ValueError)
    ├── Infeasible        no assignment keeps the load cap; carries the smallest tau that would do
    ├── TooLarge          an exact answer would take too long; says what to use instead
    ├── InvalidPlan       a plan that does not hold when it is recomputed, or starts from an assignment that is gone
    ├── NoSpace           a disk or a memory limit is reached; nothing of the batch is committed
    ├── WrongPlace        a task ran on another executor than the one that holds its state; the batch is run again
    ├── QueryFailed       a running query has stopped because of a fault, with the cause
    ├── MigrationFailed   bins could not be moved as asked; the query goes on, and the message says who owns them
    └── CheckpointError   a checkpoint that cannot be used as it is
        ├── Fenced            another driver has taken over; this one commits nothing more
        ├── Damaged           a file of the checkpoint is missing, torn or has the wrong checksum
        ├── ChangedQuery      the query differs from the one whose state the checkpoint holds
        ├── ForeignCheckpoint Spark's part of the checkpoint does not belong to ours
        └── Exists            a file that was to be created exclusively is there already

Each message is one sentence that names the offending thing and the next step.
"""

from __future__ import annotations


class MeanderError(Exception):
    """Base of all errors of this library."""


class InvalidProblem(MeanderError, ValueError):
    """A planning problem that makes no sense, with the field or bin that is wrong."""


class InvalidOption(MeanderError, ValueError):
    """A name or an option that does not exist or has a value it cannot have."""


class Infeasible(MeanderError):
    """No assignment keeps every worker's load within the cap.

    `smallest_tau` is the smallest tau for which the same planner has an answer, or None where no tau helps; the
    message states it rounded up.
    """

    def __init__(self, message: str, smallest_tau: float | None = None) -> None:
        super().__init__(message)
        self.smallest_tau = smallest_tau


class TooLarge(MeanderError):
    """The problem is too large to be answered exactly in reasonable time."""


class InvalidPlan(MeanderError):
    """A plan that contradicts its problem or itself."""


class NoSpace(MeanderError):
    """A disk is full or a limit on memory is reached."""


class WrongPlace(MeanderError):
    """A task runs on another executor than the one its control message is meant for."""


class QueryFailed(MeanderError):
    """A query has stopped because of a fault; the message holds the cause, with the user's own traceback if any."""


class MigrationFailed(MeanderError):
    """Bins could not be moved as asked; the query itself goes on."""


class CheckpointError(MeanderError):
    """A checkpoint that cannot be used as it is."""


class Fenced(CheckpointError):
    """Another driver has taken over this checkpoint."""


class Damaged(CheckpointError):
    """A file of the checkpoint is missing, torn or has the wrong checksum."""


class ChangedQuery(CheckpointError):
    """The query differs from the one whose state the checkpoint holds."""


class ForeignCheckpoint(CheckpointError):
    """Spark's own checkpoint is not the one this checkpoint was written with."""


class Exists(CheckpointError):
    """A file that was to be created exclusively is there already."""
