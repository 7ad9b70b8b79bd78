"""The arithmetic of `./dev bench flink`: one form of record for both systems, and figures of it. No Spark, no Flink.

Rows are numbered. Row n is in lane n % lanes, as in the partitions of a topic: Flink reads several lanes, ours has one.
The first `fill` rows count every key once; all others are the load, whose row m is created at `begin_s + m / rate`,
whatever the system does (an open loop). A commit says how many rows of each lane it covers, and when it was out:

    ours     the entry of Spark's commit log, which comes after our own manifest
    Flink    the last task of the sink has been told that the checkpoint is complete

so one stick measures both. Throughput is rows over time between two commits.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from meander_lab.benchmarks.engine_figures import quantile

OURS, HEAP, ROCKSDB = "ours", "flink heap", "flink rocksdb"
SYSTEMS = (OURS, HEAP, ROCKSDB)
BACKENDS = {HEAP: "hashmap", ROCKSDB: "rocksdb"}
LAWS = ("ints", "texts", "zipf")
MIN_COMMITS = 3
"""So many commits of new rows come at least in the time that counts; on a busy machine it is longer for them."""
MAX_SAMPLES_PER_S = 1000
"""Rows of a second whose latency is looked at; of a higher rate, every so manieth row."""


class Commit(NamedTuple):
    """When a commit was out, in seconds since 1970, and how many rows of each lane it covers."""

    at_s: float
    positions: tuple[int, ...]

    @property
    def rows(self) -> int:
        """How many rows it covers."""
        return sum(self.positions)


@dataclass(frozen=True)
class PeerCase:
    """What one run does.

    Args:
        part: throughput, latency or rescale.
        system: ours, or Flink on one of its state backends.
        law: how keys are chosen and what they are: ints, texts (both uniform) or zipf.
        keys: how many.
        fill: how many keys are counted once before the load begins; all or none.
        rate: rows a second, 0 for as many as are taken.
        warm_s: seconds of load that do not count.
        seconds: seconds that count; in a rescale so many before it and so many from its beginning on.
        interval_ms: Flink's checkpoint interval.
        rows_a_batch: rows in a batch of ours where rate is 0.
    """

    part: str
    system: str
    law: str = "ints"
    keys: int = 1_000_000
    fill: int = 0
    rate: int = 0
    warm_s: float = 10.0
    seconds: float = 20.0
    interval_ms: int = 1000
    rows_a_batch: int = 1_000_000
    repeat: int = 0

    @property
    def name(self) -> str:
        """What a table calls the case: all that runs of it share, without the system."""
        if self.part == "throughput":
            return f"{self.law}, {self.keys:,} keys"
        return f"{self.rate:,} rows/s, {self.keys:,} keys"

    @property
    def column(self) -> str:
        """What a table calls the system; Flink's latency depends on its interval."""
        return (
            f"{self.system}, {self.interval_ms} ms" if self.part == "latency" and self.system != OURS else self.system
        )

    def __str__(self) -> str:
        return f"{self.part}: {self.column}, {self.name}"


@dataclass
class PeerRecord:
    """What came of one run; times in seconds since 1970.

    `problem` says why the run is worth nothing: it failed, or its counts are wrong.
    """

    case: PeerCase
    commits: list[Commit] = field(default_factory=list)
    begin_s: float = 0.0
    marks: dict[str, float] = field(default_factory=dict)
    rows_counted: int = 0
    problem: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain lists and numbers, ready for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> PeerRecord:
        """What `to_dict` has made."""
        commits = [Commit(at_s, tuple(positions)) for at_s, positions in fields["commits"]]
        return cls(**{**fields, "case": PeerCase(**fields["case"]), "commits": commits})


# --- one run ---------------------------------------------------------------------------------


def with_rows(commits: Sequence[Commit]) -> list[Commit]:
    """The commits that cover more rows than the one before, oldest first."""
    kept: list[Commit] = []
    for each in sorted(commits, key=lambda commit: commit.at_s):
        if each.rows > (kept[-1].rows if kept else 0):
            kept.append(each)
    return kept


def is_long_enough(commits: Sequence[Commit], steady_s: float) -> bool:
    """Whether enough commits of new rows have come since then for a rate, or a usual gap, to be told."""
    return sum(each.at_s > steady_s for each in with_rows(commits)) >= MIN_COMMITS


def rows_per_s(commits: Sequence[Commit], start_s: float, stop_s: float) -> float:
    """Rows over time between the first and the last commit within the given time."""
    inside = [each for each in with_rows(commits) if start_s <= each.at_s <= stop_s]
    if len(inside) < 2:
        return math.nan
    return (inside[-1].rows - inside[0].rows) / (inside[-1].at_s - inside[0].at_s)


Span = tuple[float, float]
"""From one time to another, in seconds since 1970."""

EVER: Span = (-math.inf, math.inf)


def latencies_ms(record: PeerRecord, created_in: Span = EVER, committed_in: Span = EVER) -> NDArray[np.float64]:
    """From creation to commit, of rows that were created and committed in the given times; a sample of high rates."""
    case, lanes = record.case, max((len(each.positions) for each in record.commits), default=1)
    step = max(1, case.rate // MAX_SAMPLES_PER_S // lanes)
    parts, before = [np.empty(0)], (0,) * lanes
    for each in with_rows(record.commits):
        is_in = committed_in[0] < each.at_s <= committed_in[1]
        for lane, (low, high) in enumerate(zip(before, each.positions, strict=True) if is_in else ()):
            # A lane's first rows fill the state. Of the others every so manieth is looked at, and always the oldest.
            rows = np.arange(low, high, step) * lanes + lane - case.fill
            created = record.begin_s + rows[rows >= 0] / case.rate
            parts.append((each.at_s - created[(created_in[0] <= created) & (created < created_in[1])]) * 1000)
        before = each.positions
    return np.concatenate(parts)


def gaps_s(commits: Sequence[Commit], start_s: float, stop_s: float) -> list[float]:
    """The seconds between commits of new rows, of those gaps that lie in or reach into the given time."""
    times = [each.at_s for each in with_rows(commits)]
    return [after - before for before, after in pairwise(times) if after > start_s and before < stop_s]


def figures(record: PeerRecord) -> dict[str, float]:
    """The figures of one run by name; which ones depends on its part."""
    marks = record.marks
    if record.case.part == "throughput":
        return {"rows/s": rows_per_s(record.commits, marks["steady"], marks["end"])}
    if record.case.part == "latency":
        rows = latencies_ms(record, (marks["steady"], marks["end"]))
        return {"p50 ms": _quantile(rows, 0.5), "p99 ms": _quantile(rows, 0.99), "max ms": _largest(rows)}
    before = latencies_ms(record, (marks["steady"], math.inf), (-math.inf, marks["rescale"]))
    during = latencies_ms(record, (-math.inf, marks["end"]), (marks["rescale"], math.inf))
    usual = gaps_s(record.commits, marks["steady"], marks["rescale"])
    gaps = gaps_s(record.commits, marks["rescale"], marks["end"])
    silence, usual_s = max(gaps, default=math.nan), statistics.median(usual) if usual else math.nan
    return {
        "usual gap s": usual_s,
        "longest silence s": silence,
        "silence / usual gap": silence / usual_s,
        "worst before ms": _largest(before),
        "worst in rescale ms": _largest(during),
        "worst in rescale / before": _largest(during) / _largest(before),
    }


def _quantile(values: NDArray[np.float64], share: float) -> float:
    return quantile(values.tolist(), share) if values.size else math.nan


def _largest(values: NDArray[np.float64]) -> float:
    return float(values.max()) if values.size else math.nan


# --- many runs -------------------------------------------------------------------------------

BIGGER_IS_BETTER = ("rows/s",)

Medians = dict[str, dict[str, dict[str, float]]]
"""Case, system, figure -> its median over the runs."""


def medians(records: Sequence[PeerRecord], part: str) -> Medians:
    """The median of every figure over the good runs of each case and system."""
    runs: dict[tuple[str, str], list[dict[str, float]]] = {}
    for record in records:
        if record.case.part == part and record.problem is None:
            runs.setdefault((record.case.name, record.case.column), []).append(figures(record))
    result: Medians = {}
    for (case, system), rows in runs.items():
        result.setdefault(case, {})[system] = {
            name: statistics.median(row[name] for row in rows) for name in rows[0]
        }  # fmt: skip
    return result


def ratio(case: Mapping[str, Mapping[str, float]], system: str, name: str) -> float:
    """A figure of ours over the same of a system, both of one case; nan where one is missing."""
    ours, theirs = (case.get(each, {}).get(name, math.nan) for each in (OURS, system))
    return ours / theirs if theirs else math.nan
