"""The arithmetic of `./dev bench nexmark`: which queries, at which rate, and what a run comes to. No Spark.

Events arrive on a clock of their own, event i at `load + i / rate`, whatever the query does (an open loop). An event's
latency is from there to the commit of its batch, by Spark's own log. As in Megaphone, a first move unbalances the
query; what is told is the move back:

    load .. steady   the query fills its state and gets warm, and the first move is made
    steady .. move   nothing moves: what everything is compared with
    move .. moved    the move back
"""

from __future__ import annotations

import csv
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meander_lab.benchmarks.engine_figures import quantile
from meander_lab.benchmarks.migrate_measure import CommittedBatch, of_moving, of_steady, row_latencies_ms

SCHEDULES = ("batched", "all_at_once")
EVERY_S = 0.25
"""Megaphone records the latency so often."""

SHARES = {"person": 1 / 50, "auction": 3 / 50, "bid": 46 / 50}
"""Which part of all events is of a kind."""

READS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "q1": {"bid": ("auction", "bidder", "price", "dateTime", "extra")},
    "q2": {"bid": ("auction", "price")},
    "q3": {"person": ("id", "name", "city", "state"), "auction": ("id", "seller", "category")},
    "q4": {"auction": ("id", "dateTime", "expires", "category"), "bid": ("auction", "price", "dateTime")},
    "q5": {"bid": ("auction", "dateTime")},
    "q6": {"auction": ("id", "dateTime", "expires", "seller"), "bid": ("auction", "price", "dateTime")},
    "q7": {"bid": ("auction", "bidder", "price", "dateTime", "extra")},
    "q8": {"person": ("id", "name", "dateTime"), "auction": ("seller", "dateTime")},
}
"""The kinds of events that each query reads, and the columns of them."""


@dataclass(frozen=True)
class Variant:
    """A query as it is taken through a move.

    Args:
        query: which one.
        dilation: how many seconds of event time go by in a second.
        window_s, slide_s: the windows, in event time; None for those of the query.
        open_s: how long an auction is open, in real seconds. Otherwise there are as many open ones as in Beam, and
            the higher the rate, the shorter they are.
    """

    query: str
    dilation: float = 1.0
    window_s: float | None = None
    slide_s: float | None = None
    open_s: float | None = None

    @property
    def share(self) -> float:
        """Which part of all events it reads."""
        return sum(SHARES[kind] for kind in READS[self.query])

    def in_flight(self, rate: float, generators: int, usual: int) -> int:
        """How many auctions each generator has open at a time."""
        if self.open_s is None:
            return usual
        return max(1, round(self.open_s * rate * SHARES["auction"] / generators))


VARIANTS: Mapping[str, Variant] = {
    "q1": Variant("q1"),
    "q2": Variant("q2"),
    "q3": Variant("q3"),
    "q4": Variant("q4", open_s=20.0),
    "q5": Variant("q5"),
    "q5-dilated": Variant("q5", 60.0, 3600.0, 60.0),
    "q6": Variant("q6", open_s=20.0),
    "q7": Variant("q7"),
    "q8": Variant("q8"),
    "q8-dilated": Variant("q8", 79.0, 12 * 3600.0),
}
"""What is taken through a move: each query, and as in the paper two of them with time dilated."""


@dataclass(frozen=True)
class TimelineCase:
    """One run: a query, the schedule of both moves, events a second, and the seconds of each phase.

    Args:
        name: one of `VARIANTS`.
        schedule: in which steps bins move.
        rate: events of all kinds in a second; 0 to find out how many the query can take.
        fill_s: the events of so many seconds are there before the query starts and fill its state.
        warm_s: seconds between the time when it has caught up and the first move.
        steady_s: seconds between the moves, and after the second one.
        bins: how many.
        limit: rows that a batch has at most.
    """

    name: str
    schedule: str
    rate: float = 0.0
    fill_s: float = 8.0
    warm_s: float = 5.0
    steady_s: float = 10.0
    bins: int = 256
    limit: int = 150_000

    @property
    def variant(self) -> Variant:
        """The query, and how it is asked."""
        return VARIANTS[self.name]

    @property
    def per_batch(self) -> int:
        """Events of all kinds that a batch has at most."""
        return math.ceil(self.limit / self.variant.share)

    def __str__(self) -> str:
        return f"{self.name}, {self.schedule}, {self.rate:,.0f} events/s"


@dataclass
class TimelineRecord:
    """What came of one run: its batches, the times in seconds since 1970, and what the mover told."""

    case: TimelineCase
    batches: list[CommittedBatch] = field(default_factory=list)
    marks: dict[str, float] = field(default_factory=dict)
    told: dict[str, Any] = field(default_factory=dict)
    failed: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain lists and numbers, ready for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> TimelineRecord:
        """What `to_dict` has made."""
        batches = [CommittedBatch(*each) for each in fields["batches"]]
        return cls(
            TimelineCase(**fields["case"]), batches, dict(fields["marks"]), dict(fields["told"]), fields["failed"]
        )


# --- rates -----------------------------------------------------------------------------------


def sustained(batches: Sequence[CommittedBatch], leave_out: int) -> float:
    """Events a second that were taken from commit to commit, one batch after the other, without the first ones."""
    kept = [each for each in batches if each.rows][leave_out:]
    before = [each for each in batches if each.rows][leave_out - 1]
    return sum(each.rows for each in kept) / (kept[-1].ended_s - before.ended_s)


def whole_rate(most: float, dilation: float = 1.0) -> float:
    """The highest rate up to `most` at which event time keeps step with real time.

    The generator has a whole number of events in a second of event time, and of microseconds between two.
    """
    per_event_s = max(1, min(math.floor(most / dilation), 1_000_000))
    for rate in range(per_event_s, 0, -1):
        gap_us = _gap_us(rate)
        # Rounded down; the generator rounds to the nearest and must come back to the same gap.
        if 1_000_000 / gap_us * dilation <= most and _gap_us(max(1, round(1_000_000 / gap_us))) == gap_us:
            return 1_000_000 / gap_us * dilation
    return dilation


def _gap_us(rate: int) -> int:
    return (1_000_000 + rate // 2) // rate


# --- one run in figures ----------------------------------------------------------------------


@dataclass(frozen=True)
class TimelineFigures:
    """One run in figures; latencies of events in ms, `nan` where there was nothing to measure."""

    rate: float
    steady_p50: float
    steady_p99: float
    steady_max: float
    p99: float
    max: float
    duration_s: float
    moved_bytes: float
    moved_bins: float
    steps: float
    state_bytes: float
    state_rows: float

    @property
    def max_of_steady(self) -> float:
        """The largest latency of the move back over that of the steady time before it."""
        return self.max / self.steady_max

    @property
    def p99_of_steady(self) -> float:
        """The 99th percentile of the move back over that of the steady time before it."""
        return self.p99 / self.steady_p99


def figures(record: TimelineRecord) -> TimelineFigures:
    """The figures of one run."""
    marks, rate = record.marks, record.case.rate
    steady = row_latencies_ms(of_steady(record.batches, marks), marks["load"], rate)  # type: ignore[arg-type]
    moving = row_latencies_ms(of_moving(record.batches, marks, rate), marks["load"], rate)  # type: ignore[arg-type]
    report = record.told
    return TimelineFigures(
        rate,
        _share(steady, 0.5), _share(steady, 0.99), _share(steady, 1.0), _share(moving, 0.99), _share(moving, 1.0),
        marks["moved"] - marks["move"],
        float(report.get("bytes", 0)), float(report.get("bins", 0)), float(report.get("steps", 0)),
        float(report.get("state_bytes", 0)), float(report.get("state_rows", 0)),
    )  # fmt: skip


def _share(values: NDArray[np.float64], share: float) -> float:
    return quantile(values.tolist(), share) if values.size else math.nan


def middle(runs: Sequence[TimelineFigures]) -> TimelineFigures:
    """The median of every figure over runs of the same case."""
    plain = [asdict(each) for each in runs]
    return TimelineFigures(**{name: statistics.median(each[name] for each in plain) for name in plain[0]})


def timeline(record: TimelineRecord) -> list[tuple[float, float]]:
    """Seconds since the move back began, and the largest latency in ms of the events that arrived in those 250 ms."""
    marks, rate = record.marks, record.case.rate
    # Of a high rate one event for each millisecond is looked at, and the first of each batch.
    step = max(1, int(rate) // 1000)
    worst: dict[int, float] = {}
    for each in record.batches:
        arrived = marks["load"] - marks["move"] + np.arange(each.first, each.end, step) / rate
        slots, firsts = np.unique(np.floor(arrived / EVERY_S).astype(np.int64), return_index=True)
        for slot, first in zip(slots.tolist(), firsts.tolist(), strict=True):
            latency_ms = (each.ended_s - marks["move"] - float(arrived[first])) * 1000
            worst[slot] = max(worst.get(slot, 0.0), latency_ms)
    return [(slot * EVERY_S, worst[slot]) for slot in sorted(worst)]


def shown(record: TimelineRecord) -> list[tuple[float, float]]:
    """The timeline without the time in which the query fills its state and catches up."""
    begin_s = record.marks.get("warm", record.marks["steady"]) - record.marks["move"]
    return [(at, latency) for at, latency in timeline(record) if at >= begin_s]


# --- files -----------------------------------------------------------------------------------


def write_csv(path: Path, rows: Iterable[Mapping[str, object]]) -> Path:
    """Write rows that have the same columns; numbers as they are."""
    kept = list(rows)
    with path.open("w", newline="") as file:
        if kept:
            writer = csv.DictWriter(file, list(kept[0]))
            writer.writeheader()
            writer.writerows(kept)
    return path


def at_rates(cases: Sequence[TimelineCase], rates: Mapping[str, float]) -> list[TimelineCase]:
    """The cases at the rates that were found for their queries; those without one are left out."""
    return [replace(case, rate=rates[case.name]) for case in cases if case.name in rates]
