"""What a simulation runs on: modelled workers in memory, or the real worker code over files; each with its oracle."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from meander.engine.driver.graph import Graph
from meander.engine.driver.ports import Jobs, OutputSink, Place
from meander.engine.worker.links import Link
from meander.engine.worker.messages import Control, TaskReport
from meander.operators.aggregate import Aggregate
from meander.operators.count import Count
from meander.operators.operator import BinnedOperator
from meander.store.entries import Commit
from meander.store.location import Location
from meander.store.manifest import Log
from meander.store.reader import Reader
from meander.testing.faults import Chance, MemoryLocation, RiskyFolder, RiskySink
from meander.testing.inprocess import InProcessCluster, InProcessJobs, Tables
from meander.testing.model import NO_SUM, ModelJobs, Row, Sum, SumOperator, bin_of, operate, passed_on

Emitted = Counter[tuple[Any, ...]]
State = dict[tuple[int, Any], Any]
"""The state of each key, by operator."""


Origins = Sequence[tuple[int, ...]]
"""Of each operator the numbers of those whose rows it takes; -1 is the source."""


def graph_of(operators: Sequence[BinnedOperator], origins: Origins) -> Graph:
    """Operators that take their rows from these."""
    return Graph(
        tuple(operators),
        tuple(
            tuple(Link(origin, tuple(operator.key.names), is_new=at == origin + 1 == 0) for origin in mine)
            for at, (operator, mine) in enumerate(zip(operators, origins, strict=True))
        ),
    )


class Backend(Protocol):
    """What a simulation runs on, and what should come out."""

    cluster: InProcessCluster
    sink: RiskySink

    @property
    def graph(self) -> Graph:
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

    def __init__(self, chance: Chance, bins: int, origins: Origins, executors: int) -> None:
        self.bins, self.origins = bins, origins
        self.graph = graph_of([SumOperator(bins) for _ in origins], origins)
        self.location = MemoryLocation.new(chance)
        self.cluster = InProcessCluster(Path("/nonexistent"), executors)
        self.sink = RiskySink(chance)
        self.jobs = ModelJobs(self.graph, self.location, self.cluster, self.sink, chance)

    def rows(self, rng: random.Random) -> tuple[Row, ...]:
        """The rows of a batch."""
        return tuple(Row(rng.randrange(self.KEYS), rng.randint(1, 4)) for _ in range(rng.randint(0, self.ROWS)))

    def expected(self, commits: Sequence[Commit], batches: Mapping[int, Any]) -> tuple[list[Emitted], State]:
        """Every key by itself, version by version."""
        sums: list[dict[int, Sum]] = [{} for _ in self.origins]
        due: list[defaultdict[int, set[int]]] = [defaultdict(set) for _ in self.origins]
        outputs: list[Emitted] = []
        for commit in commits:
            emitted: list[list[Row]] = []
            rows: list[Row] = list(batches[commit.batch]) if commit.tick == 0 else []
            for mine, calendar, origins in zip(sums, due, self.origins, strict=True):
                values: dict[int, list[int]] = {}
                for row in (row for origin in origins for row in (rows if origin < 0 else emitted[origin])):
                    values.setdefault(row.key, []).append(row.value)
                answer: list[Row] = []
                for key in sorted(calendar.pop(commit.version, set()) | values.keys()):
                    mine[key], totals = operate(mine.get(key, NO_SUM), sorted(values.get(key, ())), commit.version)
                    answer += passed_on(key, totals)
                    for when, _ in mine[key].coming:
                        calendar[when].add(key)
                emitted.append(answer)
            outputs.append(Counter(emitted[-1]))
        return outputs, {(at, key): each for at, mine in enumerate(sums) for key, each in mine.items()}

    def emitted(self, output: Any) -> Emitted:
        """The rows that the sink got in one call."""
        return Counter(output)

    def state(self, log: Log) -> State:
        """Snapshots and deltas of every bin, put together."""
        state: State = {}
        for operator in range(len(self.origins)):
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
        graph: Graph,
        schema: pa.Schema,
        cluster: InProcessCluster,
        sink: OutputSink,
        chance: Chance,
    ) -> None:
        super().__init__(graph, schema, cluster, sink)
        self.chance = chance

    def run_task(
        self, at: int, control: Control, rows: Tables, place: Place, last: bool
    ) -> tuple[TaskReport, pa.Table | None]:
        """One worker's part."""
        self.chance.lose_task()
        answer = super().run_task(at, control, rows, place, last)
        self.chance.lose_task()
        return answer


class RealBackend:
    """The real worker code over real state files and a real checkpoint, in a folder."""

    KEYS, ROWS = 40, 30

    def __init__(self, chance: Chance, bins: int, origins: Origins, executors: int, folder: Path) -> None:
        self.bins, self.origins = bins, origins
        schema = pa.schema([("key", pa.int64())])
        count = Count(schema, ["key"])
        top = Aggregate(count.output, ["key"], {"top": ("max", "count"), "n": "count"})
        before = [count] * (len(origins) - 1)
        self.graph = graph_of([*before, top if before else count], origins)
        self.location = RiskyFolder.at(str(folder / "checkpoint"), chance)
        self.cluster = InProcessCluster(folder / "executors", executors)
        self.sink = RiskySink(chance)
        self.jobs = RiskyJobs(self.graph, schema, self.cluster, self.sink, chance)

    def rows(self, rng: random.Random) -> pa.Table:
        """The rows of a batch."""
        keys = [rng.randrange(self.KEYS) for _ in range(rng.randint(0, self.ROWS))]
        return pa.table({"key": pa.array(keys, pa.int64())})

    def expected(self, commits: Sequence[Commit], batches: Mapping[int, Any]) -> tuple[list[Emitted], State]:
        """Counts by key, and how often and how high each count came out, along every link of the last operator."""
        counts: Counter[int] = Counter()
        updates: Counter[int] = Counter()
        outputs = []
        last, links = len(self.origins) - 1, len(self.origins[-1])
        for commit in commits:
            keys = batches[commit.batch]["key"].to_pylist() if commit.tick == 0 else []
            counts.update(keys)
            updates.update(set(keys))
            rows: list[tuple[Any, ...]] = [(key, counts[key], updates[key] * links) for key in set(keys)]
            outputs.append(Counter(row if last else row[:2] for row in rows))
        state: State = {(at, key): (count,) for at in range(max(1, last)) for key, count in counts.items()}
        if last:
            state |= {(last, key): (counts[key], updates[key] * links) for key in updates}
        return outputs, state

    def emitted(self, output: Any) -> Emitted:
        """The rows that the sink got in one call."""
        return Counter(tuple(row.values()) for row in output.to_pylist())

    def state(self, log: Log) -> State:
        """The tables of every operator, as a reader of the checkpoint sees them."""
        reader = Reader.open(self.location.root)
        state: State = {}
        for operator in range(len(self.origins)):
            for piece in reader.state(operator, reader.table(operator, None)):
                for row in piece.drop_columns(["bin"]).to_pylist():
                    key, *values = row.values()
                    state[operator, key] = tuple(values)
        return state
