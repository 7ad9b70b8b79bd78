"""How much of a migration may be done at a time, and how patient it is."""

from __future__ import annotations

from dataclasses import dataclass

from meander.options import positive, whole

NO_LIMIT = 1 << 50


@dataclass(frozen=True)
class CopyBudget:
    """How much the binned engine copies at a time.

    Args:
        copy_bytes: what a worker may copy, and what it may write for others to copy, in one version. One bin is
            always allowed, however large it is.
        copy_ms: for how long a worker may copy in one version.
        release_after: for how many versions after a flip the old owner keeps its copy.
        keep_bytes: of all such copies at most so much is kept.
        patience: a step that gains no bin in so many versions is forced: what is missing is read when it flips.
    """

    copy_bytes: int = 32 << 20
    copy_ms: float = 100.0
    release_after: int = 2
    keep_bytes: int = 256 << 20
    patience: int = 50

    def __post_init__(self) -> None:
        whole("copy_bytes", self.copy_bytes, 1, NO_LIMIT)
        positive("copy_ms", self.copy_ms)
        whole("release_after", self.release_after, 0, 1 << 20)
        whole("keep_bytes", self.keep_bytes, 0, NO_LIMIT)
        whole("patience", self.patience, 1, 1 << 30)


@dataclass(frozen=True)
class SteeringPatience:
    """How patient the native engine is with Spark.

    Args:
        fresh_bytes: changes since the last snapshot that may be read again when a partition is loaded elsewhere.
        snapshot_batches: for so many batches it waits for a fresher snapshot, then it moves without.
        tries: so often a partition is steered before it is given up.
    """

    fresh_bytes: int = 256 << 10
    snapshot_batches: int = 4
    tries: int = 4

    def __post_init__(self) -> None:
        whole("fresh_bytes", self.fresh_bytes, 0)
        whole("snapshot_batches", self.snapshot_batches, 0, 1 << 20)
        whole("tries", self.tries, 1, 1000)


Budget = CopyBudget | SteeringPatience
