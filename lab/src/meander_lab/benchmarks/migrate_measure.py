"""The arithmetic of `./dev bench migrate`: latencies, gaps and memory of one run, and medians over runs. No Spark.

Rows are created on a clock of their own, row i at `load_s + i / rate`, whatever the query does (an open loop). A batch
is a range of rows; it is out when Spark's commit log names it, and began when Spark's offset log did. So:

    latency       of a row: from its creation to the commit of its batch; of a batch: that of its oldest row
    batch time    from the entry in the offset log to the one in the commit log
    gap           between two commits that follow one another

The files of both logs are written by Spark itself, for a native query as for one of Meander's, so one stick measures
all. Meander's own manifest is written before Spark's commit and is part of the time.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from meander_lab.benchmarks.engine_figures import quantile

NONE = "none"
"""The mode in which nothing moves."""


class CommittedBatch(NamedTuple):
    """One of Spark's batches: when it began and was committed, and its rows first..end-1; none while filling."""

    number: int
    began_s: float
    ended_s: float
    first: int
    end: int

    @property
    def rows(self) -> int:
        """How many rows it had."""
        return self.end - self.first


class MemorySample(NamedTuple):
    """Memory of one role's processes at one time: resident, and with pages they share shared out."""

    at_s: float
    role: str
    rss_bytes: int
    pss_bytes: int


@dataclass(frozen=True)
class MoveCase:
    """What one run does; a driver process of its own runs it.

    Args:
        mode: what moves the bins: none, a schedule, restart, restart_workers, native or native_quiet.
        keys, bins: how much state, in how many slices.
        rate: rows a second, 0 for as many as are taken.
        warm_s: seconds of load before anything counts.
        seconds: seconds before the move, and at least so many from its beginning on.
        trigger_s: Spark's trigger interval; 0: the next batch begins when the last one ends.
        options: of the move.
    """

    mode: str
    keys: int
    bins: int
    rate: int = 20_000
    warm_s: float = 10.0
    seconds: float = 30.0
    trigger_s: float = 0.0
    repeat: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_native(self) -> bool:
        """Whether it is a query of Spark's own."""
        return self.mode.startswith("native")

    def __str__(self) -> str:
        return f"{self.mode}, {self.keys:,} keys, {self.bins:,} bins"


@dataclass
class MoveRecord:
    """What came of one run: its batches, the times in seconds since 1970, the memory, and what the mover told."""

    case: MoveCase
    batches: list[CommittedBatch] = field(default_factory=list)
    marks: dict[str, float] = field(default_factory=dict)
    memory: list[MemorySample] = field(default_factory=list)
    told: dict[str, Any] = field(default_factory=dict)
    failed: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain lists and numbers, ready for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> MoveRecord:
        """What `to_dict` has made."""
        return cls(
            MoveCase(**fields["case"]),
            [CommittedBatch(*each) for each in fields["batches"]],
            dict(fields["marks"]),
            [MemorySample(*each) for each in fields["memory"]],
            dict(fields["told"]),
            fields["failed"],
        )


# --- moves -----------------------------------------------------------------------------------


def quarter(owner: Sequence[int], share: float = 0.25) -> dict[int, int]:
    """Which bins move, and where to: an even part of every worker's bins, to one new worker for each.

    >>> quarter([0, 0, 0, 0, 1, 1, 1, 1])
    {0: 2, 4: 3}
    """
    workers = sorted(set(owner))
    new = {worker: max(workers) + 1 + at for at, worker in enumerate(workers)}
    chosen: dict[int, int] = {}
    for worker in workers:
        bins = [bin_ for bin_, each in enumerate(owner) if each == worker]
        count = max(1, round(len(bins) * share))
        for at in range(count):
            chosen[bins[at * len(bins) // count]] = new[worker]
    return chosen


# --- time ------------------------------------------------------------------------------------


def latency_ms(batch: CommittedBatch, load_s: float, rate: int) -> float:
    """How long the oldest row of a batch took."""
    return (batch.ended_s - load_s - batch.first / rate) * 1000


def row_latencies_ms(batches: Iterable[CommittedBatch], load_s: float, rate: int) -> NDArray[np.float64]:
    """How long the rows took; of a high rate, as many as one for each millisecond."""
    step = max(1, rate // 1000)
    parts = [
        (each.ended_s - load_s - np.arange(each.first, each.end, step) / rate) * 1000 for each in batches if each.rows
    ]
    return np.concatenate(parts) if parts else np.empty(0)


def gaps_s(batches: Sequence[CommittedBatch], start_s: float, stop_s: float) -> list[float]:
    """The seconds between commits of results, of those gaps that lie in or reach into the given time."""
    ended = sorted(each.ended_s for each in batches if each.rows)
    return [after - before for before, after in pairwise(ended) if after > start_s and before < stop_s]


def without_results_s(
    batches: Sequence[CommittedBatch], steady: tuple[float, float], moving: tuple[float, float]
) -> float:
    """The longest gap between two results while bins move, less the median one before; never below 0."""
    usual, gaps = gaps_s(batches, *steady), gaps_s(batches, *moving)
    if not usual or not gaps:
        return float("nan")
    return max(0.0, max(gaps) - statistics.median(usual))


def of_steady(batches: Sequence[CommittedBatch], marks: Mapping[str, float]) -> list[CommittedBatch]:
    """The batches with rows that were out between the end of the warm-up and the beginning of the move."""
    return [each for each in batches if each.rows and marks["steady"] < each.ended_s <= marks["move"]]


def of_moving(batches: Sequence[CommittedBatch], marks: Mapping[str, float], rate: int) -> list[CommittedBatch]:
    """The batches that were out after the move began and have a row that was created before it was over."""
    over = (marks["moved"] - marks["load"]) * rate
    return [each for each in batches if each.rows and each.ended_s > marks["move"] and each.first <= over]


# --- memory ----------------------------------------------------------------------------------


def totals(memory: Sequence[MemorySample], start: str = "executor") -> list[tuple[float, float]]:
    """Time and bytes (PSS), summed over the roles whose name begins so."""
    sums: dict[float, float] = {}
    for each in memory:
        if each.role.startswith(start):
            sums[each.at_s] = sums.get(each.at_s, 0.0) + each.pss_bytes
    return sorted(sums.items())


def peak_of_steady(series: Sequence[tuple[float, float]], marks: Mapping[str, float]) -> tuple[float, float]:
    """The median before the move, and the peak from its beginning to its end."""
    before = [value for at, value in series if marks["steady"] <= at <= marks["move"]]
    # What was copied is there until it is released, a few batches after the last flip.
    during = [value for at, value in series if marks["move"] < at <= marks["settled"]]
    nothing = float("nan")
    return statistics.median(before) if before else nothing, max(during, default=nothing)


def peaks(memory: Sequence[MemorySample], marks: Mapping[str, float]) -> dict[str, tuple[float, float]]:
    """For every role: the median of its bytes before the move, and their peak during it."""
    roles = sorted({each.role for each in memory})
    return {role: peak_of_steady(totals(memory, role), marks) for role in roles}


# --- one run in figures ----------------------------------------------------------------------


@dataclass(frozen=True)
class MoveFigures:
    """One run, or the medians of several, in figures; `nan` where there was nothing to measure."""

    steady_p99_ms: float
    worst_ms: float
    p99_ms: float
    steady_batch_p99_ms: float
    worst_batch_ms: float
    duration_s: float
    silent_s: float
    beyond_steady_s: float
    moved_bytes: float
    moved_bins: float
    steady_memory: float
    peak_memory: float
    steady_python: float
    peak_python: float

    @property
    def worst_of_steady(self) -> float:
        """Worst latency while moving over the steady 99th percentile."""
        return self.worst_ms / self.steady_p99_ms

    @property
    def worst_batch_of_steady(self) -> float:
        """Worst batch time while moving over the steady 99th percentile."""
        return self.worst_batch_ms / self.steady_batch_p99_ms

    @property
    def memory_of_steady(self) -> float:
        """Peak memory of all executors while moving over the steady one."""
        return self.peak_memory / self.steady_memory


def figures(record: MoveRecord) -> MoveFigures:
    """The figures of one run."""
    marks, rate = record.marks, record.case.rate
    load = marks["load"]
    steady, moving = of_steady(record.batches, marks), of_moving(record.batches, marks, rate)
    # Rows that were created before the end come out after it.
    last = max([marks["moved"], *[each.ended_s for each in moving]])
    spans = (marks["steady"], marks["move"]), (marks["move"], last)
    usual = gaps_s(record.batches, *spans[0])
    longest = max(gaps_s(record.batches, *spans[1]), default=float("nan")) - 1.5 * _quantile(usual, 0.99)
    rows = row_latencies_ms(moving, load, rate)
    memory = peak_of_steady(totals(record.memory), marks)
    python = peak_of_steady(_python_only(record.memory), marks)
    return MoveFigures(
        steady_p99_ms=_quantile([latency_ms(each, load, rate) for each in steady], 0.99),
        worst_ms=max((latency_ms(each, load, rate) for each in moving), default=float("nan")),
        p99_ms=_quantile(rows.tolist(), 0.99),
        steady_batch_p99_ms=_quantile([(each.ended_s - each.began_s) * 1000 for each in steady], 0.99),
        worst_batch_ms=max(((each.ended_s - each.began_s) * 1000 for each in moving), default=float("nan")),
        duration_s=marks["moved"] - marks["move"],
        silent_s=without_results_s(record.batches, *spans),
        beyond_steady_s=max(longest, 0.0),  # in this order nan stays nan
        moved_bytes=float(record.told.get("bytes", 0)),
        moved_bins=float(record.told.get("bins", 0)),
        steady_memory=memory[0], peak_memory=memory[1], steady_python=python[0], peak_python=python[1],
    )  # fmt: skip


def middle(runs: Sequence[MoveFigures]) -> MoveFigures:
    """The median of every figure over runs of the same case."""
    plain = [asdict(each) for each in runs]
    return MoveFigures(**{name: statistics.median(each[name] for each in plain) for name in plain[0]})


def _python_only(memory: Sequence[MemorySample]) -> list[tuple[float, float]]:
    return totals([each for each in memory if each.role.endswith("python")])


def _quantile(values: Sequence[float], share: float) -> float:
    return quantile(values, share) if values else float("nan")
