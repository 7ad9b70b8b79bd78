"""What a simulation runs on: modelled workers in memory, or the real worker code over files; each with its oracle."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from meander.engine.driver.ports import Jobs, OutputSink, Place
from meander.engine.worker.messages import Control, TaskReport
from meander.operators.aggregate import Aggregate
from meander.operators.count import Count
from meander.operators.operator import BinnedOperator
from meander.store.entries import Commit
from meander.store.location import Location
from meander.store.manifest import Log
from meander.store.reader import Reader
from meander.testing.faults import Chance, MemoryLocation, RiskyFolder, RiskySink
from meander.testing.inprocess import InProcessCluster, InProcessJobs
from meander.testing.model import NO_SUM, ModelJobs, Row, Sum, SumOperator, bin_of, operate, passed_on

Emitted = Counter[tuple[Any, ...]]
State = dict[tuple[int, Any], Any]
"""The state of each key, by operator."""


class Backend(Protocol):
    """What a simulation runs on, and what should come out."""

    cluster: InProcessCluster
    sink: RiskySink

    @property
    def operators(self) -> Sequence[BinnedOperator]:
        """What the query computes."""

    @property
    def location(self) -> Location:
        """Where its checkpoint is."""

    @property
    def jobs(self) -> Jobs:
        """What runs attempts."""

    def rows(self, rng: random.Random) -> Any:
        """The rows of a batch."""

    def expected(self, commits: Sequence[Commit], batches: Mapping[int, Any]) -> tuple[list[Emitted], State]:
        """What each version must emit and what must be the state in the end, counted anew in plain Python."""

    def emitted(self, output: Any) -> Emitted:
        """The rows that the sink got in one call."""

    def state(self, log: Log) -> State:
        """What the checkpoint holds, bin by bin."""


class ModelBackend:
    """Modelled workers behind the same messages, and a checkpoint in memory."""

    KEYS, ROWS = 12, 4

    def __init__(self, chance: Chance, bins: int, operators: int, executors: int) -> None:
        self.bins = bins
        self.operators = [SumOperator(bins) for _ in range(operators)]
        self.location = MemoryLocation.new(chance)
        self.cluster = InProcessCluster(Path("/nonexistent"), executors)
        self.sink = RiskySink(chance)
        self.jobs = ModelJobs(operators, self.location, self.cluster, self.sink, chance)

    def rows(self, rng: random.Random) -> tuple[Row, ...]:
        """The rows of a batch."""
        return tuple(Row(rng.randrange(self.KEYS), rng.randint(1, 4)) for _ in range(rng.randint(0, self.ROWS)))

    def expected(self, commits: Sequence[Commit], batches: Mapping[int, Any]) -> tuple[list[Emitted], State]:
        """Every key by itself, version by version."""
        sums: list[dict[int, Sum]] = [{} for _ in self.operators]
        due: list[defaultdict[int, set[int]]] = [defaultdict(set) for _ in self.operators]
        outputs: list[Emitted] = []
        for commit in commits:
            rows: list[Row] = list(batches[commit.batch]) if commit.tick == 0 else []
            for mine, calendar in zip(sums, due, strict=True):
                values: dict[int, list[int]] = {}
                for row in rows:
                    values.setdefault(row.key, []).append(row.value)
                rows = []
                for key in sorted(calendar.pop(commit.version, set()) | values.keys()):
                    mine[key], totals = operate(mine.get(key, NO_SUM), sorted(values.get(key, ())), commit.version)
                    rows += passed_on(key, totals)
                    for when, _ in mine[key].coming:
                        calendar[when].add(key)
            outputs.append(Counter(rows))
        return outputs, {(at, key): each for at, mine in enumerate(sums) for key, each in mine.items()}

    def emitted(self, output: Any) -> Emitted:
        """The rows that the sink got in one call."""
        return Counter(output)

    def state(self, log: Log) -> State:
        """Snapshots and deltas of every bin, put together."""
        state: State = {}
        for operator in range(len(self.operators)):
            for bin_ in range(self.bins):
                for part in log.index.parts(operator, [bin_]):
                    assert part.file.path is not None
                    for key, each in self.location.value(part.file.path).get(bin_, {}).items():
                        assert bin_of(operator, key, self.bins) == bin_, f"key {key} is in bin {bin_}"
                        state[operator, key] = each
        return state


class RiskyJobs(InProcessJobs):
    """The real worker code, whose processes end by chance before or after a task."""

    def __init__(
        self,
        operators: Sequence[BinnedOperator],
        schema: pa.Schema,
        cluster: InProcessCluster,
        sink: OutputSink,
        chance: Chance,
    ) -> None:
        super().__init__(operators, schema, cluster, sink)
        self.chance = chance

    def run_task(
        self, operator: BinnedOperator, control: Control, rows: pa.Table, place: Place, last: bool
    ) -> tuple[TaskReport, pa.Table | None]:
        """One worker's part."""
        self.chance.lose_task()
        answer = super().run_task(operator, control, rows, place, last)
        self.chance.lose_task()
        return answer


class RealBackend:
    """The real worker code over real state files and a real checkpoint, in a folder."""

    KEYS, ROWS = 40, 30

    def __init__(self, chance: Chance, bins: int, operators: int, executors: int, folder: Path) -> None:
        self.bins = bins
        schema = pa.schema([("key", pa.int64())])
        count = Count(schema, ["key"])
        self.operators: list[BinnedOperator] = [count]
        if operators > 1:
            self.operators.append(Aggregate(count.output, ["key"], {"top": ("max", "count"), "n": "count"}))
        self.location = RiskyFolder.at(str(folder / "checkpoint"), chance)
        self.cluster = InProcessCluster(folder / "executors", executors)
        self.sink = RiskySink(chance)
        self.jobs = RiskyJobs(self.operators, schema, self.cluster, self.sink, chance)

    def rows(self, rng: random.Random) -> pa.Table:
        """The rows of a batch."""
        keys = [rng.randrange(self.KEYS) for _ in range(rng.randint(0, self.ROWS))]
        return pa.table({"key": pa.array(keys, pa.int64())})

    def expected(self, commits: Sequence[Commit], batches: Mapping[int, Any]) -> tuple[list[Emitted], State]:
        """Counts by key, and how often and how high each count came out."""
        counts: Counter[int] = Counter()
        updates: Counter[int] = Counter()
        outputs = []
        for commit in commits:
            keys = batches[commit.batch]["key"].to_pylist() if commit.tick == 0 else []
            counts.update(keys)
            updates.update(set(keys))
            last = len(self.operators) > 1
            rows: list[tuple[Any, ...]] = [(key, counts[key], updates[key]) for key in set(keys)]
            outputs.append(Counter(row if last else row[:2] for row in rows))
        state: State = {(0, key): (count,) for key, count in counts.items()}
        if len(self.operators) > 1:
            state |= {(1, key): (counts[key], updates[key]) for key in updates}
        return outputs, state

    def emitted(self, output: Any) -> Emitted:
        """The rows that the sink got in one call."""
        return Counter(tuple(row.values()) for row in output.to_pylist())

    def state(self, log: Log) -> State:
        """The tables of every operator, as a reader of the checkpoint sees them."""
        reader = Reader.open(self.location.root)
        state: State = {}
        for operator in range(len(self.operators)):
            for piece in reader.state(operator, reader.table(operator, None)):
                for row in piece.drop_columns(["bin"]).to_pylist():
                    key, *values = row.values()
                    state[operator, key] = tuple(values)
        return state
