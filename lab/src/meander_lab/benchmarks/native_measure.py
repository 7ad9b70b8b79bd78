"""The arithmetic of `./dev bench native`: batches, phases and their figures, and medians over runs. No Spark.

A run is a row of phases, and every batch from the first phase on belongs to one. Some are *steady*; in the others
something is done, and they last until it is over and two whole batches more have ended. What is done to a query is
held against the steady phase before it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

from meander_lab.benchmarks.engine_figures import quantile

LIVE, PEER = "live", "peer"
DEFAULT, ROCKSDB = "default", "rocksdb"
NAN = math.nan
BACK = 1.5
"""A batch that takes at most so many times the usual is as it was; with 3 executors of 4 it may take 4/3 of it."""

BARE, WATCHED = "not attached", "attached"
MADE, SKEWED = "skew is made", "skewed"
SPREADING, SPREAD = "during spread()", "spread"
GROWING, GROWN = "during rescale(4)", "on 4"
DRAINING, DRAINED = "drained removal, rescale(3)", "on 3"
AGAIN, GROWN_AGAIN = "back, rescale(4)", "on 4 again"
LOSING, LOST = "undrained removal", "on 3, as Spark left it"
BEFORE = "before"
REFUSED, ONE = "repartition, stopped in a batch", "after the first"
QUIET, TWO = "repartition, stopped in between", "after the second"

PHASES = {
    LIVE: (BARE, WATCHED, MADE, SKEWED, SPREADING, SPREAD, GROWING, GROWN, DRAINING, DRAINED, AGAIN, GROWN_AGAIN,
           LOSING, LOST),
    PEER: (BEFORE, REFUSED, ONE, QUIET, TWO),
}  # fmt: skip
"""The phases of each kind of case, in order."""


class NativeBatch(NamedTuple):
    """One of Spark's batches: when it ended and how long it took, as its progress says, and how many rows it had."""

    number: int
    ended_s: float
    took_ms: float
    rows: int


@dataclass(frozen=True)
class NativeCase:
    """What one driver process does.

    Args:
        kind: live, a query that is attached to; or peer, one that is stopped, repartitioned and started again.
        partitions: of its state, at first.
        store: default or rocksdb.
        keys, rows: how many keys there are, and how many rows a batch has.
        batches: how many of them a steady phase has.
    """

    kind: str
    partitions: int
    store: str = DEFAULT
    keys: int = 200_000
    rows: int = 50_000
    batches: int = 15
    repeat: int = 0

    @property
    def query(self) -> tuple[str, int, str]:
        """What cases of the same figures have in common."""
        return self.kind, self.partitions, self.store

    def __str__(self) -> str:
        return f"{self.kind}, {self.partitions} partitions, {self.store} store"


@dataclass
class NativePhase:
    """Batches `first` to `last` of a run.

    Args:
        steady: whether nothing is done to the query.
        moved: partitions that arrived elsewhere, or had to; None: nobody looked.
        seconds: how long what was done took.
        placed: how many partitions each executor had at the end, most first.
        stopped_s, started_s: when the query was stopped and started again, where it was.
        spent_s: how long each part of that took.
    """

    name: str
    first: int
    last: int
    began_s: float
    ended_s: float
    steady: bool = True
    moved: int | None = None
    seconds: float | None = None
    placed: list[int] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    stopped_s: float | None = None
    started_s: float | None = None
    spent_s: Mapping[str, float] = field(default_factory=dict)
    failed: str | None = None


@dataclass
class NativeRecord:
    """What came of one run: its phases as far as they went, its batches, and whether the counts were right."""

    case: NativeCase
    phases: list[NativePhase] = field(default_factory=list)
    batches: list[NativeBatch] = field(default_factory=list)
    counted: int | None = None
    rows: int | None = None
    events: list[dict[str, Any]] = field(default_factory=list)
    failed: str | None = None

    @property
    def is_right(self) -> bool:
        """Whether every row of every committed batch was counted once."""
        return self.counted is not None and self.counted == self.rows

    def hear(self, event: Mapping[str, Any]) -> None:
        """Take in what the driver process has told."""
        match event["event"]:
            case "phase":
                self.phases.append(NativePhase(**event["phase"]))
            case "batches":
                self.batches += [NativeBatch(*each) for each in event["batches"]]
            case "counted":
                self.counted, self.rows = event["counted"], event["rows"]
            case "events":
                self.events += event["events"]

    def to_dict(self) -> dict[str, Any]:
        """Plain lists and numbers, ready for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> NativeRecord:
        """What `to_dict` has made."""
        parts = {
            "case": NativeCase(**fields["case"]),
            "phases": [NativePhase(**each) for each in fields["phases"]],
            "batches": [NativeBatch(*each) for each in fields["batches"]],
        }
        return cls(**{**fields, **parts})


def skewed(partitions: int, executors: Sequence[str]) -> dict[int, str]:
    """Three quarters of the partitions on the first executor, and the others share the rest.

    >>> skewed(8, ["0", "1", "2"])
    {0: '0', 1: '0', 2: '0', 3: '0', 4: '0', 5: '0', 6: '1', 7: '2'}
    """
    many = partitions * 3 // 4
    others = executors[1:] or executors
    return {at: executors[0] if at < many else others[(at - many) % len(others)] for at in range(partitions)}


def typical(owners: Sequence[str], executors: Sequence[str]) -> tuple[str, int]:
    """The executor whose number of partitions is nearest to the mean, and that number.

    >>> typical(["0", "1", "1", "2", "2", "2"], ["0", "1", "2"])
    ('1', 2)
    """
    mean = len(owners) / len(executors)
    executor = min(executors, key=lambda each: abs(owners.count(each) - mean))
    return executor, owners.count(executor)


# --- one phase in figures --------------------------------------------------------------------


@dataclass(frozen=True)
class NativeFigures:
    """One phase of one run, or the medians of several runs; `nan` where there was nothing to measure.

    Args:
        worst_of_before: the worst batch over the median of the steady phase before.
        withheld_s: the longest time between two results, less the usual one before.
        slow: batches that took more than `BACK` times the median before.
        until_back: batches until one took no more than that again; 0 where none took more.
        stopped_s: from the last result before a stop to the first after the start.
    """

    batches: float = NAN
    median_ms: float = NAN
    p99_ms: float = NAN
    worst_ms: float = NAN
    worst_of_before: float = NAN
    withheld_s: float = NAN
    slow: float = NAN
    until_back: float = NAN
    stopped_s: float = NAN
    moved: float = NAN
    seconds: float = NAN


def figures(record: NativeRecord) -> dict[str, NativeFigures]:
    """The figures of every phase of a run that was reached, by name; phases of one name count as one."""
    named: dict[str, list[NativePhase]] = {}
    for each in record.phases:
        named.setdefault(each.name, []).append(each)
    return {name: _figures(record, phases) for name, phases in named.items()}


def _figures(record: NativeRecord, phases: Sequence[NativePhase]) -> NativeFigures:
    batches = [batch for each in phases for batch in within(record.batches, each)]
    took = [each.took_ms for each in batches]
    before = _before(record, phases[0])
    usual = statistics.median([each.took_ms for each in before]) if before else NAN
    slow = [each > BACK * usual for each in took]
    return NativeFigures(
        batches=float(len(took)), median_ms=statistics.median(took) if took else NAN,
        p99_ms=quantile(took, 0.99) if took else NAN,
        worst_ms=max(took, default=NAN), worst_of_before=max(took, default=NAN) / usual,
        withheld_s=_withheld_s(record.batches, batches, before),
        slow=float(sum(slow)) if before else NAN, until_back=_until_back(slow) if before else NAN,
        stopped_s=_stopped_s(record.batches, phases[0]),
        moved=NAN if phases[0].moved is None else float(phases[0].moved),
        seconds=NAN if phases[0].seconds is None else phases[0].seconds,
    )  # fmt: skip


def _until_back(slow: Sequence[bool]) -> float:
    at = slow.index(True) if True in slow else 0
    return float(slow.index(False, at)) if False in slow[at:] else NAN


def within(batches: Iterable[NativeBatch], phase: NativePhase) -> list[NativeBatch]:
    """The batches of a phase that had rows."""
    return [each for each in batches if phase.first <= each.number <= phase.last and each.rows]


def _before(record: NativeRecord, phase: NativePhase) -> list[NativeBatch]:
    """The batches of the last steady phase before this one."""
    at = record.phases.index(phase)
    steady = next((each for each in reversed(record.phases[:at]) if each.steady), None)
    return [] if steady is None else within(record.batches, steady)


def _withheld_s(batches: Sequence[NativeBatch], during: Sequence[NativeBatch], before: Sequence[NativeBatch]) -> float:
    usual, gaps = gaps_s(batches, before), gaps_s(batches, during)
    return max(0.0, max(gaps) - statistics.median(usual)) if usual and gaps else NAN


def gaps_s(batches: Sequence[NativeBatch], some: Iterable[NativeBatch]) -> list[float]:
    """The seconds between the end of each of some batches and the end of the one before it."""
    earlier = {after: before for before, after in pairwise(sorted(each.ended_s for each in batches if each.rows))}
    return [each.ended_s - earlier[each.ended_s] for each in some if each.ended_s in earlier]


def _stopped_s(batches: Sequence[NativeBatch], phase: NativePhase) -> float:
    """From the last result before the stop to the first after the start; nan where there was none."""
    stopped, started = phase.stopped_s, phase.started_s
    if stopped is None or started is None:
        return NAN
    last = max((each.ended_s for each in batches if each.rows and each.ended_s <= stopped), default=NAN)
    return min((each.ended_s for each in batches if each.rows and each.ended_s >= started), default=NAN) - last


# --- over runs -------------------------------------------------------------------------------

FiguresByPhase = dict[tuple[str, int, str], dict[str, NativeFigures]]
"""Kind, partitions and store of a query, then the phase."""


def figures_in(records: Iterable[NativeRecord]) -> FiguresByPhase:
    """The medians over the runs of each query, phase by phase, of what was measured in any of them."""
    runs: dict[tuple[str, int, str], list[dict[str, NativeFigures]]] = {}
    for record in records:
        runs.setdefault(record.case.query, []).append(figures(record))
    return {
        query: {
            name: middle([run[name] for run in phases if name in run])
            for name in PHASES[query[0]]
            if any(name in run for run in phases)
        }
        for query, phases in runs.items()
    }


def middle(runs: Sequence[NativeFigures]) -> NativeFigures:
    """The median of every figure over those runs that have it."""
    plain = [asdict(each) for each in runs]
    have = {name: [each[name] for each in plain if not math.isnan(each[name])] for name in plain[0]}
    return NativeFigures(**{name: statistics.median(each) if each else NAN for name, each in have.items()})


def ratio(figures: Mapping[str, NativeFigures], over: str, under: str, of: Callable[[NativeFigures], float]) -> float:
    """A figure of one phase over that of another; nan where one is missing."""
    above, below = of(figures.get(over, NativeFigures())), of(figures.get(under, NativeFigures()))
    return above / below if below else NAN
