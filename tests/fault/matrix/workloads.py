"""The operators of the cells: the rows of their batches, and an independent recount in plain Python."""

from __future__ import annotations

import datetime as dt
import random
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pyarrow as pa

from fault.matrix.recounts import Batch, JoinedPairs, Rows, WindowCounts
from fault.matrix.rows import UTC, at, newest_second, pairs_of, seconds_of, sessions_of, table_of

KEYS, ROWS = 40, 120
BATCH_S = 10
"""Each batch has ten seconds of event time to itself, and some rows that come far too late."""
LATE_BATCHES = 5
GAP_S = 6.5
"""No two whole seconds are so far apart: nothing falls on a boundary."""


@dataclass(frozen=True)
class Expected:
    """What must come of some batches: the rows of each batch, or all rows; state by operator and table; late rows."""

    output: Sequence[Rows]
    states: Mapping[tuple[int, str | None], Rows]
    late: int = 0


class Workload(ABC):
    """One query, described with the public API alone."""

    inputs: ClassVar[tuple[pa.Schema, ...]]
    columns: ClassVar[tuple[str, ...]]
    """Those of the output that are recounted."""
    state: ClassVar[Mapping[tuple[int, str | None], tuple[str, ...]]]
    """The columns of each state table that are recounted."""
    is_by_batch: ClassVar[bool] = True
    """Whether each batch emits its own rows; otherwise a row may come with any later version."""
    is_balanced: ClassVar[bool] = False
    """Whether a balancer moves bins too."""

    @abstractmethod
    def describe(self, *streams: Any) -> Any:
        """The stream with the operators on it."""

    @abstractmethod
    def batch(self, rng: random.Random, number: int) -> Batch:
        """The rows of a batch, a table for each input."""

    @abstractmethod
    def expect(self, batches: Sequence[Batch]) -> Expected:
        """What must come of these batches once all timers have fired."""


class Timed(Workload):
    """Rows of a key and a time."""

    inputs = (pa.schema([("key", pa.int64()), ("at", UTC)]),)
    keys, rows = KEYS, ROWS

    def batch(self, rng: random.Random, number: int) -> Batch:
        first = number * BATCH_S
        rows = [(rng.randrange(self.keys), first + rng.randrange(BATCH_S)) for _ in range(self.rows)]
        rows.append((0, first + BATCH_S - 1))
        if number >= LATE_BATCHES:
            # Of keys of their own: in an open session of its key a late row would still count.
            rows += [(self.keys + second, first - LATE_BATCHES * BATCH_S + second) for second in range(3)]
        return (table_of(rows, self.inputs[0]),)


class Count(Timed):
    """How many rows each key has had."""

    columns = ("key", "count")
    state: ClassVar = {(0, None): ("key", "count")}

    def describe(self, *streams: Any) -> Any:
        return streams[0].key_by("key").count()

    def expect(self, batches: Sequence[Batch]) -> Expected:
        total: Counter[int] = Counter()
        output = []
        for (rows,) in batches:
            now = rows["key"].to_pylist()
            total.update(now)
            output.append(Counter((key, total[key]) for key in set(now)))
        return Expected(output, {(0, None): Counter(total.items())})


class Dedup(Timed):
    """The first row of each key."""

    columns = ("key", "at")
    state: ClassVar = {(0, None): ("key",)}

    def describe(self, *streams: Any) -> Any:
        return streams[0].key_by("key").dedup(time="at")

    def batch(self, rng: random.Random, number: int) -> Batch:
        """New keys come with every batch."""
        (rows,) = super().batch(rng, number)
        keys = [key * (number + 1) for key in rows["key"].to_pylist()]
        return (rows.set_column(0, "key", pa.array(keys, pa.int64())),)

    def expect(self, batches: Sequence[Batch]) -> Expected:
        known: dict[int, Any] = {}
        output = []
        for (rows,) in batches:
            first: dict[int, Any] = {}
            for key, time in pairs_of(rows):
                if key not in known:
                    first[key] = min(time, first.get(key, time))
            known |= first
            output.append(Counter(first.items()))
        return Expected(output, {(0, None): Counter((key,) for key in known)})


class Sliding(Timed):
    """How many rows each key has had in the last twenty seconds, every ten."""

    columns = ("key", "window_start", "window_end", "count")
    state: ClassVar = {(0, None): ("key", "window_start", "count")}
    SIZE_S, SLIDE_S = 20, 10

    def describe(self, *streams: Any) -> Any:
        return streams[0].key_by("key").window("at", f"{self.SIZE_S}s", slide=f"{self.SLIDE_S}s").count()

    def recount(self) -> WindowCounts:
        """One that takes batch after batch."""
        return WindowCounts(self.SIZE_S, self.SLIDE_S)

    def expect(self, batches: Sequence[Batch]) -> Expected:
        recount = self.recount()
        output = [recount.add(batch) for batch in batches]
        return Expected(output, {(0, None): recount.kept}, recount.late)


class Sessions(Timed):
    """How many rows each session of a key has, once it is over."""

    columns = ("key", "window_start", "window_end", "count")
    state: ClassVar = {(0, "sessions"): ("key", "window_start", "count")}
    is_by_batch = False

    def describe(self, *streams: Any) -> Any:
        return streams[0].key_by("key").window("at", gap=f"{int(GAP_S * 1000)}ms").count()

    def expect(self, batches: Sequence[Batch]) -> Expected:
        seconds: dict[int, list[int]] = defaultdict(list)
        frontier, late = None, 0
        for (rows,) in batches:
            for key, second in seconds_of(rows):
                is_late = frontier is not None and second < frontier
                late += is_late
                if not is_late:
                    seconds[key].append(second)
            frontier = newest_second(rows, frontier)
        output: Rows = Counter()
        kept: Rows = Counter()
        for key, times in seconds.items():
            for session in sessions_of(sorted(times), GAP_S):
                end = session[-1] + GAP_S
                if end < frontier:
                    output[key, at(session[0]), at(end), len(session)] += 1
                else:
                    kept[key, at(session[0]), len(session)] += 1
        return Expected([output], {(0, "sessions"): kept}, late)


class Timers(Timed):
    """Keys that were not there for a while, by timers of an operator of the user's own."""

    columns = ("key", "since")
    state: ClassVar = {(0, "last"): ("key", "at")}
    is_by_batch = False

    def describe(self, *streams: Any) -> Any:
        import pyarrow.compute as pc

        import meander as me

        class Silent(me.Operator):  # inside, so that it reaches workers that cannot import this module
            input = "key bigint, at timestamp"
            output = "key bigint, since timestamp"
            time = "at"
            state: ClassVar = {
                "last": me.KeyedTable(key="key bigint", value="at timestamp"),
                "alarms": me.Timers(key="key bigint"),
            }

            def on_batch(self, rows, state, now):
                state["last"].put(rows["key"], rows)
                state["alarms"].set(pc.add(rows["at"], pa.scalar(dt.timedelta(seconds=GAP_S))), rows["key"])

            def on_time(self, due, state, now):
                alarms = due["alarms"]
                since = state["last"].get(alarms["key"])["at"]
                silent = pc.equal(pc.add(since, pa.scalar(dt.timedelta(seconds=GAP_S))), alarms["time"])
                return pa.table({"key": alarms["key"], "since": since}).filter(silent)

        return streams[0].key_by("key").process(Silent)

    def batch(self, rng: random.Random, number: int) -> Batch:
        """Nothing comes late here: what a late row means is the operator's own affair."""
        (rows,) = super().batch(rng, number)
        return (rows.slice(0, ROWS + 1),)

    def expect(self, batches: Sequence[Batch]) -> Expected:
        last: dict[int, int] = {}
        alarms: set[tuple[int, int]] = set()
        output: Rows = Counter()
        for (rows,) in batches:
            for key, second in sorted(seconds_of(rows), key=lambda row: row[1]):
                last[key] = second
                alarms.add((key, second))
            # They ring with the next version, before its rows.
            frontier = newest_second(rows)
            due = {(key, second) for key, second in alarms if second + GAP_S < frontier}
            alarms -= due
            output.update((key, at(second)) for key, second in due if last[key] == second)
        return Expected([output], {(0, "last"): Counter((key, at(second)) for key, second in last.items())})


class TopCounts(Workload):
    """A chain: how often each player came, and the three that came most in each team."""

    inputs = (pa.schema([("team", pa.int64()), ("player", pa.int64())]),)
    columns = ("team", "player", "count", "rank")
    state: ClassVar = {(0, None): ("team", "player", "count"), (1, "rows"): ("team", "player", "count")}
    TEAMS, PLAYERS, BEST = 6, 12, 3

    def describe(self, *streams: Any) -> Any:
        counts = streams[0].key_by("team", "player").count()
        return counts.key_by("team").top_k(self.BEST, by="count", identity=["player"])

    def batch(self, rng: random.Random, number: int) -> Batch:
        rows = [(rng.randrange(self.TEAMS), rng.randrange(self.PLAYERS)) for _ in range(ROWS // 4)]
        return (table_of(rows, self.inputs[0]),)

    def expect(self, batches: Sequence[Batch]) -> Expected:
        total: Counter[tuple[int, int]] = Counter()
        best: dict[int, list[tuple[int, int]]] = {}
        output = []
        for (rows,) in batches:
            total.update(pairs_of(rows))
            now: Rows = Counter()
            for team in set(rows["team"].to_pylist()):
                ranked = sorted((-count, player) for (each, player), count in total.items() if each == team)
                if best.get(team) != ranked[: self.BEST]:
                    best[team] = ranked[: self.BEST]
                    now.update((team, player, -n, rank) for rank, (n, player) in enumerate(best[team], 1))
            output.append(now)
        counts = Counter((*who, count) for who, count in total.items())
        return Expected(output, {(0, None): counts, (1, "rows"): counts})


class BalancedJoin(Workload):
    """Pairs of rows of two streams that are near in time, while a balancer moves bins."""

    inputs = (
        pa.schema([("cell", pa.int64()), ("at", UTC), ("order", pa.int64())]),
        pa.schema([("cell", pa.int64()), ("at", UTC), ("taxi", pa.int64())]),
    )
    columns = ("cell", "order", "taxi")
    state: ClassVar = {(0, "left"): ("cell", "order"), (0, "right"): ("cell", "taxi")}
    is_by_batch = False
    is_balanced = True
    CELLS, WITHIN_S = 12, 10
    rows, lateness_s = ROWS // 2, 3600

    def describe(self, *streams: Any) -> Any:
        left, right = streams
        return left.join(right, on="cell", within=f"{self.WITHIN_S}s", lateness=f"{self.lateness_s}s")

    def batch(self, rng: random.Random, number: int) -> Batch:
        first = number * BATCH_S
        sides = []
        for schema in self.inputs:
            cells = [min(rng.randrange(self.CELLS), rng.randrange(self.CELLS)) for _ in range(self.rows)]
            rows = [(cell, first + rng.randrange(BATCH_S), number * self.rows + n) for n, cell in enumerate(cells)]
            sides.append(table_of(rows, schema))
        return tuple(sides)

    def expect(self, batches: Sequence[Batch]) -> Expected:
        recount = JoinedPairs(self.WITHIN_S)
        output = sum((recount.add(batch) for batch in batches), Counter())
        return Expected(
            [output], {(0, side): recount.since(0, number) for number, side in enumerate(("left", "right"))}
        )


WORKLOADS: dict[str, Workload] = {
    "count": Count(),
    "sliding window": Sliding(),
    "sessions": Sessions(),
    "timers": Timers(),
    "join with balancer": BalancedJoin(),
    "top_k over counts": TopCounts(),
    "dedup": Dedup(),
}


@dataclass
class Input:
    """The batches of one cell, in the order in which they come; the same for the same seed."""

    workload: Workload
    seed: int
    batches: list[Batch] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._rng = random.Random(self.seed)

    def next(self) -> Batch:
        """Make one batch more."""
        self.batches.append(self.workload.batch(self._rng, len(self.batches)))
        return self.batches[-1]
