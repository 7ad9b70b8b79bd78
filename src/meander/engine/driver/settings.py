"""How a query runs: the options of `start`, checked when they are given."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from meander.errors import InvalidOption
from meander.migration.steps import CopyBudget
from meander.options import positive, whole
from meander.pictures import many
from meander.route.hashing import MOST_BINS


@dataclass(frozen=True)
class Settings:
    """The options of one query.

    Args:
        checkpoint: folder.
        workers: how many workers own the bins.
        bins: into how many slices the keys are cut: a power of two, which only `meander rebin` changes.
        snapshot_every: every bin is written whole at least once in so many versions.
        retain: how many old versions can still be read.
        retain_side: of how many versions late rows and dead letters are kept, at least.
        fsync: survive a loss of power, not only of processes.
        idle_after_s: with no rows for so long, due timers fire and windows close without waiting for rows.
        idle_time: what event time does meanwhile: "hold", or "wall": it goes on as the clock does.
        at_end: what event time does when an availableNow query has read everything: "hold", or "close": it goes to its
            end, so that all windows close and all timers fire. Rows of a later run are then late.
        executors_within_s: how long to wait for executors to come back before other workers take their bins over.
        on_error: what becomes of a key's rows for which a function of yours raises: "fail", the query ends, or
            "dead_letter", they are set aside with the traceback, and all other rows go on.
        errors: after so many rows that are set aside so, since the start, the query ends all the same.
        skip_batch: leave out this batch, which is the next one and can never succeed; once it was, the query goes on.
        attempts: how often one batch is tried when executors are lost.
        hand_over_bytes: a worker's batch above this goes over in several parts.
        copy_bytes: how much state a worker copies ahead in one version while bins move; None: as fast as it can.
        copy_ms: how long it may take for that; None: so that the version hardly takes longer.
        release_after: for how many versions a worker keeps its copy of a bin that has moved.
    """

    checkpoint: str
    workers: int
    bins: int = 256
    name: str | None = None
    snapshot_every: int = 32
    retain: int = 10
    retain_side: int = 100_000
    fsync: bool = False
    idle_after_s: float = 1.0
    idle_time: str = "hold"
    at_end: str = "hold"
    on_error: str = "fail"
    errors: int = 1000
    skip_batch: int | None = None
    attempts: int = 10
    executors_within_s: float = 60.0
    hand_over_bytes: int = 64 << 20
    copy_bytes: int | None = None
    copy_ms: float | None = None
    release_after: int = 2

    def __post_init__(self) -> None:
        whole("workers", self.workers, 1, 1 << 15)
        bins = whole("bins", self.bins, 1, MOST_BINS)
        if bins & (bins - 1):
            below = 1 << (bins.bit_length() - 1)
            raise InvalidOption(f"bins must be a power of two, not {bins}; nearest: {below}, {2 * below}")
        if self.workers > bins:
            raise InvalidOption(
                f"{many(self.workers, 'worker')} cannot share {many(bins, 'bin')}; take as many bins as workers or more"
            )
        whole("snapshot_every", self.snapshot_every, 1, 1 << 20)
        whole("retain", self.retain, 1, 1 << 30)
        whole("retain_side", self.retain_side, 1, 1 << 30)
        whole("errors", self.errors, 1, 1 << 50)
        if self.skip_batch is not None:
            whole("skip_batch", self.skip_batch, 0)
        whole("attempts", self.attempts, 1, 100)
        whole("hand_over_bytes", self.hand_over_bytes, 1 << 16, 1 << 31)
        _ = self.budget
        positive("idle_after_s", self.idle_after_s)
        positive("executors_within_s", self.executors_within_s)
        if self.idle_time not in ("hold", "wall"):
            raise InvalidOption(f"idle_time is 'hold' or 'wall', not {self.idle_time!r}")
        if self.at_end not in ("hold", "close"):
            raise InvalidOption(f"at_end is 'hold' or 'close', not {self.at_end!r}")
        if self.on_error not in ("fail", "dead_letter"):
            raise InvalidOption(f"on_error is 'fail' or 'dead_letter', not {self.on_error!r}")
        if self.name is not None and not re.fullmatch(r"[a-z0-9_-]{1,64}", self.name):
            raise InvalidOption(f"the name {self.name!r} may have only a-z, 0-9, _ and -, and at most 64 of them")

    @classmethod
    def of(cls, *positional: Any, **named: Any) -> Settings:
        """The settings that a user has given; a name that is none is refused with those that there are."""
        unknown = sorted(named.keys() - cls.__dataclass_fields__.keys())
        if unknown:
            known = ", ".join(cls.__dataclass_fields__)
            raise InvalidOption(f"start has no option {unknown[0]!r}; there are: sink, trigger, {known}")
        return cls(*positional, **named)

    @property
    def budget(self) -> CopyBudget:
        """How much a migration copies at a time, where it does not say otherwise."""
        return CopyBudget(copy_bytes=self.copy_bytes, copy_ms=self.copy_ms, release_after=self.release_after)
