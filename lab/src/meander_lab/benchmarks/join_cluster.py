"""Workers with a core each, on a machine that has fewer: what the schemes of `./dev bench join` run on.

Every worker has state of its own, in real tables, and runs the real join. They run one after the other, and a worker
is busy for as long as its work takes of the CPU's time: what others do on the machine does not count. A batch takes

    the overhead + the time of routing / workers + the time of the busiest worker

and the clock is a virtual one that goes by it. Rows arrive by that clock, and their arrival is their event time. A
batch begins when the one before has ended, but not before an interval is over since that one began, and has all rows
that have arrived by then. So backlog and latency are those of as many cores as there are workers, as far as cores do
not disturb each other. Rows are made, and figures are counted, off that clock.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import process_time
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from meander.measure.load import Resources, load_imbalance
from meander.operators.custom import SIDE, SIDES
from meander.operators.join import Join
from meander.operators.operator import Now
from meander.operators.pairs import Pairs
from meander.route.columns import whole_column
from meander.route.keys import Keys
from meander.state.holding import Holding
from meander_lab.apps.rides import Rides, distance_km
from meander_lab.apps.zipf import ZipfStreams

Words = NDArray[np.int64]
Floats = NDArray[np.float64]

NEAR = 0.01
"""Pairs of the Zipf streams whose x differ by less come out: 2 % of those with one key."""

NEAR_KM = 0.3
"""Orders and taxis of one cell that are no farther from each other come out."""

US = 1_000_000

MOST = 2
"""A batch has what arrives in so many intervals, at most; the rest waits."""


@dataclass(frozen=True)
class JoinSetting:
    """What is the same for all schemes.

    Attributes:
        workers: how many there are.
        bins: how many bins Meander has; the others count their load in as many.
        within_s: rows match if they are at most so far apart.
        interval_s: a batch begins no earlier than this after the last one began.
        overhead_s: what a batch costs before and after its operators.
        alpha: the LI that balancers leave alone.
        window: so many batches make a decision, and so many are left alone after it.
        step_bins: so many bins move between two batches.
        subgroup: workers in a subgroup of ContRand.
        seed: of all that is left to chance.
    """

    workers: int = 8
    bins: int = 256
    within_s: float = 0.002
    interval_s: float = 0.1
    overhead_s: float = 0.01
    alpha: float = 1.0
    window: int = 4
    step_bins: int = 16
    subgroup: int = 2
    seed: int = 0


class JoinFeed:
    """Rows of two streams that come at one rate, as the join takes them."""

    def __init__(self, source: ZipfStreams | Rides) -> None:
        self.source = source
        self.key = "key" if isinstance(source, ZipfStreams) else "cell"
        self.schemas = (source.schema(0), source.schema(1))
        self.keys = source.keys if isinstance(source, ZipfStreams) else 4**source.order
        self.looked_at = 0

    def rows(self, begin_us: int, end_us: int, rate: float) -> tuple[pa.Table, pa.ChunkedArray]:
        """All rows that arrive in a time, half of them on each side, and their keys. The rate is that of both."""
        sides = []
        for side in range(2):
            first, last = (int(np.ceil(at / US * rate / 2)) for at in (begin_us, end_us))
            sides.append(self.source.rows(side, first, last - first, rate / 2))
        keys = pa.chunked_array([each[self.key].combine_chunks() for each in sides])
        return paired_rows(sides[0], sides[1]), keys

    def where(self, pairs: Pairs) -> NDArray[np.bool_]:
        """Which pairs are near each other; counts those that were looked at."""
        self.looked_at += pairs.num_rows
        if self.key == "key":
            return np.asarray(np.abs(_plain(pairs, "x") - _plain(pairs, "x_right")) < NEAR)
        places = (_plain(pairs, name) for name in ("lon", "lat", "lon_right", "lat_right"))
        return np.asarray(distance_km(*places) < NEAR_KM)

    def options(self, within_s: float) -> dict[str, Any]:
        """What a join of these streams is made of."""
        names = [self.key]
        return {"input": self.schemas, "key": (names, names), "within": within_s, "where": self.where}


@dataclass
class JoinWorker:
    """State of its own, and how long it was busy since that was last asked."""

    number: int
    holding: Holding
    busy_s: float = 0.0

    @contextmanager
    def working(self) -> Iterator[Holding]:
        """The CPU's time of what is done here is this worker's."""
        began = process_time()
        try:
            yield self.holding
        finally:
            self.busy_s += process_time() - began

    def run(self, operator: Join, rows: pa.Table, keys: Keys, now: Now) -> pa.Table | None:
        """One batch: what comes out. The state goes forward by the delta, as in the engine."""
        with self.working() as holding:
            tables = holding.begin()
            out = operator.run(rows, keys, tables, now)
            holding.advance(holding.version + 1, {name: table.delta() for name, table in tables.items()})
        return out.rows

    def stored(self) -> tuple[Words, ...]:
        """Rows of each bin, by side."""
        return tuple(self.holding.rows(side) for side in SIDES)

    def asked_s(self) -> float:
        """How long it was busy since it was last asked."""
        busy, self.busy_s = self.busy_s, 0.0
        return busy


@dataclass(frozen=True)
class Counted:
    """What was counted in a batch: stored and queued rows by side, worker and bin, and who was busy for how long."""

    batch: int
    interval_s: float
    stored: tuple[Words, Words]
    queued: tuple[Words, Words]
    busy_s: Floats
    keys: Words
    sides: Words
    frontier_us: int | None
    newest_us: int

    def loads(self) -> Floats:
        """The load of each worker by eq. 11 and 12: that of each bin with the rows it has there, summed."""
        sums = []
        for worker in range(len(self.busy_s)):
            at = [each[worker] for each in (*self.stored, *self.queued)]
            sums.append(float(Resources((at[0], at[1]), (at[2], at[3])).load.sum()))
        return np.array(sums)


@dataclass(frozen=True)
class JoinBatch:
    """One batch by the virtual clock, in seconds, with the rows that arrived from `since_s` to `until_s`.

    `loads` are those of the workers, `busy_s` their times.
    """

    number: int
    begin_s: float
    end_s: float
    since_s: float
    until_s: float
    rows: int
    looked_at: int
    routing_s: float
    busy_s: Floats
    loads: Floats
    moved_rows: int
    table: int

    @property
    def took_s(self) -> float:
        """From its beginning to its end."""
        return self.end_s - self.begin_s


@dataclass(frozen=True)
class Route:
    """Where rows go: those of `rows` from cuts[w] to cuts[w + 1] are worker w's. `stored` says which of them stay."""

    rows: Words
    cuts: Words
    stored: NDArray[np.bool_] | None = None


class Scheme(Protocol):
    """Who joins what, and what is done about stragglers."""

    name: str
    operator: Join
    moved_rows: int
    """State that has moved so far."""

    def held(self, worker: int) -> Sequence[int]:
        """The bins a worker holds in the beginning."""

    def route(self, keys: Keys, plain: Words, batch: int) -> Route:
        """Where the rows of a batch go."""

    def after(self, counted: Counted, workers: Sequence[JoinWorker]) -> None:
        """Take what a batch has counted, and move what should."""

    @property
    def table(self) -> int:
        """How many entries the routing table has."""


@dataclass
class JoinCluster:
    """A scheme at work: `run` goes on for some batches at some rate."""

    scheme: Scheme
    feed: JoinFeed
    setting: JoinSetting
    folder: Path
    keep: bool = False
    kept: list[pa.Table] = field(default_factory=list)

    def __post_init__(self) -> None:
        operator, bins = self.scheme.operator, self.setting.bins
        self.workers = []
        for number in range(self.setting.workers):
            holding = Holding.open(self.folder / f"{self.scheme.name}-{number}", operator.tables, bins)
            holding.install(list(self.scheme.held(number)), [], -1)
            self.workers.append(JoinWorker(number, holding))
        self.number, self.clock_s, self.begun_s, self.read_us = 0, self.setting.interval_s, 0.0, 0
        self.frontier: int | None = None

    def run(self, rate: float, batches: int, interval_s: float | None = None) -> list[JoinBatch]:
        """Some batches with rows at a rate (a second, of both sides), an interval apart if they can keep up."""
        wait_s = self.setting.interval_s if interval_s is None else interval_s
        return [self._batch(rate, wait_s) for _ in range(batches)]

    def skip(self) -> None:
        """Leave out what has arrived and was not read: no later batch has to do with it."""
        self.read_us = max(self.read_us, int((self.clock_s - self.setting.interval_s) * US))

    def close(self) -> None:
        """Let go of the state."""
        for worker in self.workers:
            worker.holding.close()

    def _batch(self, rate: float, wait_s: float) -> JoinBatch:
        begin_s = max(self.clock_s, self.begun_s + wait_s)
        # An overloaded cluster must not fall into batches that grow without end.
        since_us, until_us = self.read_us, int(min(begin_s, self.read_us / US + MOST * self.setting.interval_s) * US)
        rows, column = self.feed.rows(since_us, until_us, rate)
        looked_before, moved_before = self.feed.looked_at, self.scheme.moved_rows
        plain = column.combine_chunks().to_numpy()
        began = process_time()
        keys = self.scheme.operator.key.encode([column])
        route = self.scheme.route(keys, plain, self.number)
        sorted_rows, sorted_keys = rows.take(pa.array(route.rows)), keys.take(route.rows)
        parts = []
        for first, last in zip(route.cuts[:-1].tolist(), route.cuts[1:].tolist(), strict=True):
            mine = sorted_rows.slice(first, last - first)
            if route.stored is not None:
                mine = mine.append_column(STAYS, pa.array(route.stored[first:last]))
            parts.append((mine, sorted_keys.take(np.arange(first, last))))
        routing_s = (process_time() - began) / len(self.workers)
        now = Now(self.number, self.frontier)
        for worker, (mine, its_keys) in zip(self.workers, parts, strict=True):
            output = worker.run(self.scheme.operator, mine, its_keys, now)
            if self.keep and output is not None:
                self.kept.append(output)
        # What was moved after the batch before is work of this one.
        busy_s = np.array([worker.asked_s() for worker in self.workers])
        end_s = begin_s + self.setting.overhead_s + routing_s + float(busy_s.max())
        counted = self._count(rows, keys, plain, route, busy_s, begin_s)
        batch = JoinBatch(
            self.number, begin_s, end_s, since_us / US, until_us / US, rows.num_rows,
            self.feed.looked_at - looked_before, routing_s, busy_s, counted.loads(), moved_before, self.scheme.table,
        )  # fmt: skip
        self.scheme.after(counted, self.workers)
        self.number, self.read_us = self.number + 1, until_us
        self.begun_s, self.clock_s = begin_s, end_s
        self.frontier = counted.newest_us if rows.num_rows else self.frontier
        return batch

    def _count(self, rows: pa.Table, keys: Keys, plain: Words, route: Route, busy_s: Floats, begin_s: float) -> Counted:
        bins, count = self.setting.bins, len(self.workers)
        side, bin_of = rows[SIDE].to_numpy(), keys.bins(bins)
        worker_of = np.repeat(np.arange(count), np.diff(route.cuts))
        cell = worker_of * bins + bin_of[route.rows]
        queued = [
            np.bincount(cell[side[route.rows] == each], minlength=count * bins).reshape(count, bins)
            for each in range(2)
        ]
        held = [worker.stored() for worker in self.workers]
        stored = [np.stack([each[at] for each in held]) for at in range(2)]
        newest = [rows[f"{name}.ts"].cast(pa.int64()).to_numpy() for name in SIDES]
        ends = [int(np.nanmax(each)) for each in newest if np.isfinite(each).any()]
        frontier = max(min(ends), self.frontier or 0) if len(ends) == 2 else (self.frontier or 0)
        return Counted(
            self.number, max(begin_s - self.begun_s, 1e-6), (stored[0], stored[1]), (queued[0], queued[1]), busy_s,
            plain, side, self.frontier, frontier,
        )  # fmt: skip


STAYS = "__stays"
"""Whether a row is stored where it is, or only looks for partners there."""


@contextmanager
def cluster(scheme: Scheme, feed: JoinFeed, setting: JoinSetting, keep: bool = False) -> Iterator[JoinCluster]:
    """A cluster whose state is gone afterwards."""
    pa.set_cpu_count(1)
    with tempfile.TemporaryDirectory(prefix="meander-bench-join-", ignore_cleanup_errors=True) as folder:
        simulation = JoinCluster(scheme, feed, setting, Path(folder), keep)
        try:
            yield simulation
        finally:
            simulation.close()


def paired_rows(left: pa.Table, right: pa.Table) -> pa.Table:
    """Rows of both sides as one table: those of the left, then those of the right."""
    count = left.num_rows, right.num_rows
    columns: dict[str, pa.ChunkedArray] = {SIDE: pa.chunked_array([np.repeat(np.arange(2, dtype=np.int32), count)])}
    for side, (name, table) in enumerate(zip(SIDES, (left, right), strict=True)):
        for column in table.column_names:
            mine = table[column].combine_chunks()
            nothing = pa.nulls(count[1 - side], mine.type)
            columns[f"{name}.{column}"] = pa.chunked_array([mine, nothing] if side == 0 else [nothing, mine])
    return pa.table(columns)


def latencies(batches: Sequence[JoinBatch], points: int = 50) -> Mapping[str, float]:
    """Seconds from the arrival of rows to the end of their batch: mean, p99 and max. Rows arrive evenly."""
    at = (np.arange(points) + 0.5) / points
    seconds = np.concatenate([each.end_s - each.since_s - (each.until_s - each.since_s) * at for each in batches])
    weights = np.repeat([each.rows / points for each in batches], points)
    order = np.argsort(seconds)
    below = np.cumsum(weights[order]) / weights.sum()
    return {
        "mean_s": float(np.average(seconds, weights=weights)),
        "p99_s": float(seconds[order][np.searchsorted(below, 0.99)]),
        "max_s": max(each.end_s - each.since_s for each in batches),
    }


def imbalance(batches: Sequence[JoinBatch]) -> float:
    """LI (eq. 13) of the loads that the workers had on the mean of these batches."""
    return load_imbalance(np.mean([each.loads for each in batches], axis=0))


def _plain(pairs: Pairs, name: str) -> Floats:
    return np.asarray(whole_column(pairs[name]).to_numpy())
