"""How far a migration is, and what it did to the stream: numbers for people."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from meander.pictures import facts, many, progress_html
from meander.types import Bytes


@dataclass(frozen=True)
class Progress:
    """How far a migration is.

    Args:
        phase: what is being done, in a word.
        bins, of_bins: bins that have flipped, and all that shall.
        bytes, of_bytes: their state.
        steps, of_steps: steps that have flipped, and all.
        eta_s: seconds until the last flip at the pace so far, None while nothing has flipped.
        unit: what bins are called: Spark's own are state partitions.
    """

    phase: str
    bins: int
    of_bins: int
    bytes: Bytes
    of_bytes: Bytes
    steps: int
    of_steps: int
    eta_s: float | None = None
    unit: str = "bins"

    def to_dict(self) -> dict[str, Any]:
        """What it says, as plain texts and numbers, ready for JSON.

        Returns:
            The fields, by name.

        Example:
            >>> migration.progress.to_dict()["phase"]
            'done'
        """
        return asdict(self)

    def __str__(self) -> str:
        left = "" if self.eta_s is None else f", about {self.eta_s:.0f} s left"
        size = f"{self.bytes:,.0f} of {self.of_bytes:,.0f} bytes"
        step = f"step {self.steps} of {self.of_steps}"
        return f"{self.phase}: {self.bins} of {many(self.of_bins, self.unit.removesuffix('s'))}, {size}, {step}{left}"

    def _repr_html_(self) -> str:
        return progress_html("moving state", self.bins, self.of_bins, str(self))


@dataclass(frozen=True)
class Latency:
    """How long versions took, in milliseconds: the median, the 99th percentile and the worst of `count`."""

    count: int
    median_ms: float
    p99_ms: float
    max_ms: float

    @classmethod
    def of(cls, took_ms: Sequence[float]) -> Latency | None:
        """Summarise times; None where there are none.

        >>> Latency.of([3.0, 1.0, 2.0])
        Latency(count=3, median_ms=2.0, p99_ms=3.0, max_ms=3.0)
        """
        if not took_ms:
            return None
        ascending = sorted(took_ms)
        return cls(len(ascending), at_share(ascending, 0.5), at_share(ascending, 0.99), ascending[-1])


def at_share(ascending: Sequence[float], share: float) -> float:
    """The smallest of the ascending values that at least this share of them does not exceed."""
    return ascending[max(0, math.ceil(share * len(ascending)) - 1)]


@dataclass(frozen=True, repr=False)
class Report:
    """What a migration was and what it did to the stream.

    Args:
        mode: how bins were moved: live, native for Spark's own state, or a mode of the lab.
        outcome: done, cancelled, replaced, failed, or running while it is under way; `reason` says why.
        planner, planner_ms: who chose, and how long that took.
        schedule: how it was cut into steps.
        workers_before, workers_after: who owned bins.
        bins, bytes, steps: what has flipped, and in how many steps.
        versions: how many versions were made meanwhile; `duration_s` how long that was.
        before, during, after: how long versions took before it, while it was under way, and since.
        rows_held: rows that had to wait because of it, and `longest_hold_ms` for how long at most.
        rows_misrouted: rows that came to a worker that did not own their bin.
        processes_before, processes_after: the executors' process ids, by host.
    """

    mode: str
    outcome: str
    reason: str
    planner: str
    planner_ms: float
    schedule: str
    workers_before: tuple[int, ...]
    workers_after: tuple[int, ...]
    bins: int
    bytes: Bytes
    steps: int
    versions: int
    duration_s: float
    before: Latency | None
    during: Latency | None
    after: Latency | None
    rows_held: int = 0
    longest_hold_ms: float = 0.0
    rows_misrouted: int = 0
    processes_before: tuple[str, ...] = ()
    processes_after: tuple[str, ...] = ()
    executors: Mapping[str, int] = field(default_factory=dict)
    """Executors that were asked for, that came and that were let go."""
    remarks: tuple[str, ...] = ()
    """What did not go as it should, or should be known of the plan, a sentence each."""

    def __repr__(self) -> str:
        return f"<Report {str(self).partition(chr(10))[0]}>"

    def _repr_html_(self) -> str:
        first, *lines = str(self).splitlines()
        rows = {"what": first, **{f"{at}": line.strip() for at, line in enumerate(lines, 1)}}
        return facts(f"migration: {self.outcome}", rows)

    def to_dict(self) -> dict[str, Any]:
        """What it says, as plain lists and numbers, ready for JSON.

        Returns:
            The fields, by name.

        Example:
            >>> migration.report.to_dict()["workers_after"]
            (0, 1, 2)
        """
        return asdict(self)

    def __str__(self) -> str:
        native = self.mode == "native"
        nouns = ("executor", "partition", ("batch", "batches")) if native else ("worker", "bin", ("version",))
        who, bin_, version = nouns

        def line(name: str, latency: Latency | None) -> str:
            if latency is None:
                return f"  {name:<7} none"
            worst = f"median {latency.median_ms:.0f} ms, p99 {latency.p99_ms:.0f} ms, worst {latency.max_ms:.0f} ms"
            return f"  {name:<7} {worst} ({many(latency.count, *version)})"

        reason = f" ({self.reason})" if self.reason else ""
        change = f"{len(self.workers_before)} -> {many(len(self.workers_after), who)}"
        lines = [
            f"{self.outcome}{reason}: {change}, {many(self.bins, bin_)}, {self.bytes:,.0f} bytes in "
            f"{many(self.steps, 'step')} and {many(self.versions, *version)}, "
            f"{self.duration_s:.1f} s",
            f"  planned by {self.planner} in {self.planner_ms:.1f} ms, moved {self.mode}, {self.schedule}",
            line("before", self.before),
            line("during", self.during),
            line("after", self.after),
        ]
        if not native:
            held = f"rows held {self.rows_held}, for {self.longest_hold_ms:.0f} ms at most"
            lines.append(f"  {held}, misrouted {self.rows_misrouted}")
        return "\n".join([*lines, *(f"  {remark}" for remark in self.remarks)])
