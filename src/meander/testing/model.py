"""Workers as a model behind the same messages: what they hold is a dictionary, and an operator adds up values.

The real worker code decides what to release, apply, install and copy (`update`); only files and kernels are modelled.
A value above 1 comes again, one smaller, a few versions later: such post-dated records are part of the state, so they
travel with their bin.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from meander.engine.driver.graph import Graph
from meander.engine.driver.ports import (
    Job,
    JobInput,
    JobLost,
    JobResult,
    OperatorOutput,
    OutputSink,
    Place,
    Routing,
    SinkToken,
    SinkWrite,
)
from meander.engine.worker.bin_numbers import BinNumbers
from meander.engine.worker.catch_up import update, wanted
from meander.engine.worker.messages import Bins, Control, Fault, TaskReport, Token
from meander.engine.worker.output import ROWS, OutputForm
from meander.errors import MeanderError
from meander.operators.operator import BinnedOperator
from meander.route.keys import KeyType
from meander.store import bitmap
from meander.store.entries import FileRef, SnapshotRef
from meander.store.files import Attempt
from meander.testing.faults import Chance, MemoryLocation
from meander.testing.inprocess import InProcessCluster
from meander.types import WorkerId

NOTHING = -1
"""The version of a store that holds nothing."""


class Row(NamedTuple):
    """A value for a key."""

    key: int
    value: int


class Sum(NamedTuple):
    """The state of a key: its total, and the values that come again, each with its version, in the order they arose."""

    total: int = 0
    coming: tuple[tuple[int, int], ...] = ()

    def is_due(self, version: int) -> bool:
        """Whether a value comes again in this version."""
        return any(when <= version for when, _ in self.coming)


NO_SUM = Sum()

Contents = Mapping[int, Sum]
"""The keys of a bin, or those that a version changed, with absolute values."""


class Misled(MeanderError):
    """A worker was told to do what it cannot: nothing but a fault in the driver leads here."""


class SumOperator(BinnedOperator):
    """The operator of the model; what it computes is in `operate`."""

    name = "sum"
    tables = ()
    key = KeyType.of([pa.field("key", pa.int64())])

    def __init__(self, bins: int) -> None:
        self.bins = bins

    def run(self, *_: Any) -> Any:
        """The model runs without tables."""
        raise Misled("the operator of the model runs in the model alone")

    @property
    def fingerprint(self) -> dict[str, Any]:
        """What must not change between restarts."""
        return {"operator": self.name, "key": [], "tables": {}, "options": {}}


def bin_of(operator: int, key: int, bins: int) -> int:
    """The bin of a key; operators spread keys differently."""
    return (key * (2 * operator + 1) + operator) % bins


def operate(before: Sum, values: Iterable[int], version: int) -> tuple[Sum, list[int]]:
    """What becomes of a key in one version, and the totals on the way: first what comes again now, then what is new."""
    total, totals = before.total, []
    coming = [each for each in before.coming if each[0] > version]
    for value in [*(value for when, value in before.coming if when <= version), *values]:
        total += value
        totals.append(total)
        if value > 1:
            coming.append((version + 1 + value % 3, value - 1))
    return Sum(total, tuple(coming)), totals


def passed_on(key: int, totals: Sequence[int]) -> list[Row]:
    """The rows that an operator emits for a key."""
    return [Row(key, 1 + total % 3) for total in totals]


@dataclass
class Store:
    """What one worker holds of one operator beside its executor; it outlives processes, not the executor."""

    version: int = NOTHING
    bins: dict[int, dict[int, Sum]] = field(default_factory=dict)
    is_torn: bool = False
    token: Token = field(default_factory=lambda: Token(0, 0, 0))

    def reset(self) -> None:
        """Hold nothing."""
        self.version, self.bins, self.is_torn = NOTHING, {}, False

    def held(self, bins: int) -> Bins:
        """Which bins are held."""
        return np.array([bin_ in self.bins for bin_ in range(bins)])


class ModelJobs:
    """The driver's port `Jobs` over modelled workers."""

    def __init__(
        self, graph: Graph, location: MemoryLocation, cluster: InProcessCluster, sink: OutputSink, chance: Chance
    ) -> None:
        self.graph, self.location, self.cluster, self.sink, self.chance = graph, location, cluster, sink, chance
        self.stores: dict[tuple[str, str, int, int], Store] = {}
        self._zombies: list[tuple[Control, tuple[Row, ...], Place]] = []

    @property
    def form(self) -> OutputForm:
        """As rows."""
        return ROWS

    def nothing(self) -> tuple[Row, ...]:
        """No rows."""
        return ()

    def waves(self, input: JobInput, routing: Routing, max_bytes: int) -> list[tuple[Row, ...]]:
        """The rows of an operator in one piece, or by chance in two waves of bins."""
        rows, bins = tuple(self._rows(routing.operator, input, {})), len(routing.slots)
        if bins < 2 or self.chance.rng.random() < 0.9:
            return [rows]
        return [tuple(row for row in rows if bin_of(routing.operator, row.key, bins) % 2 == at) for at in (0, 1)]

    def free(self, waves: Sequence[tuple[Row, ...]]) -> None:
        """There is nothing to give back."""

    def run(self, input: JobInput, job: Job) -> JobResult:
        """Run every worker of every operator."""
        self._let_zombies_run()
        reports: list[TaskReport] = []
        emitted: dict[int, list[Row]] = {}
        for routing, controls in zip(job.routings, job.controls, strict=True):
            at = routing.operator
            parts: list[list[Row]] = [[] for _ in range(routing.count)]
            for row in input.pieces[at] if at in input.pieces else self._rows(at, input, emitted):
                parts[routing.slots[bin_of(routing.operator, row.key, len(routing.slots))]].append(row)
            emitted[at] = output = []
            tasks = list(zip(controls, map(tuple, parts), job.places, strict=True))
            for number, task in enumerate(tasks):
                try:
                    report, answer = self._task(*task)
                except JobLost:
                    if self.chance.rng.random() < self.chance.rates.zombie:
                        self._zombies += tasks[number:]
                    raise
                reports += [report] * (2 if self.chance.happens("doubled") else 1)
                output += answer
        return JobResult(tuple(reports), (tuple(output),))

    def _rows(self, at: int, input: JobInput, emitted: Mapping[int, Sequence[Row]]) -> list[Row]:
        """The rows of all links of an operator; every source is the batch."""
        outputs = {**input.outputs, **emitted}
        return [
            row for link in self.graph.links[at] for row in (input.batch if link.origin < 0 else outputs[link.origin])
        ]

    def lose(self, executor: str) -> None:
        """An executor is gone, with what its workers held."""
        self.stores = {at: store for at, store in self.stores.items() if at[0] != executor}

    def _let_zombies_run(self) -> None:
        tasks, self._zombies = self._zombies, []
        for task in tasks:
            with suppress(JobLost):
                self._task(*task)

    def read(self, output: OperatorOutput) -> tuple[Row, ...]:
        """The output of an operator as rows for those that read it."""
        return tuple(row for part in output.inline for row in part)

    def prepare(self, output: OperatorOutput, write: SinkWrite) -> SinkToken:
        """Give the output of a version to the sink."""
        return self.sink.prepare(self.read(output), write)

    def rehearse(self, places: Sequence[Place], bins: int) -> None:
        """There is nothing to warm."""

    def cancel(self, tag: str) -> None:
        """Jobs end before anyone could cancel them."""

    # --- one task ------------------------------------------------------------------------------

    def _task(self, control: Control, rows: tuple[Row, ...], place: Place) -> tuple[TaskReport, list[Row]]:
        if place.executor not in self.cluster.ids():
            raise JobLost(f"executor {place.executor} is gone")
        self.chance.lose_task()
        at = (place.executor, control.directory, control.operator, control.worker)
        store = self.stores.get(at) or self.stores.setdefault(at, Store())
        ids = (control.token, control.operator, control.worker, place.process)
        if control.token < store.token:
            return TaskReport(*ids, fault=Fault("stale", "a later attempt has begun")), []
        store.token = control.token
        if store.is_torn:
            store.reset()
        if not self._catch_up(store, control):
            return TaskReport(*ids, fault=Fault("reload", f"worker {control.worker} lacks bins")), []
        delta, output = self._operate(store, control, rows)
        snapshot = self._snapshot(store, control)
        report = self._report(store, control, place, rows, delta, snapshot)
        self.chance.lose_task()
        return report, output

    def _catch_up(self, store: Store, control: Control) -> bool:
        """Bring the store to the version before; False if bins are missing whose files the driver did not name."""
        todo = update(store.held(control.bins), store.version, wanted(control))
        if todo.lacking.size:
            return False
        if todo.reset:
            store.reset()
        self._begin_change(store)
        for bin_ in todo.release.tolist():
            del store.bins[bin_]
        store.is_torn = False
        if todo.advance:
            self._begin_change(store)
            for ref in control.advance:
                for bin_, contents in self.location.value(ref["path"]).items():
                    if bin_ in store.bins:
                        store.bins[bin_].update(contents)
            store.version = control.token.version - 1
            store.is_torn = False
        copies = todo.copy.tolist()
        self._install(store, todo.install.tolist(), control)
        self._install(store, copies[: self.chance.rng.randint(0, len(copies))], control)
        return True

    def _install(self, store: Store, bins: list[int], control: Control) -> None:
        before = control.token.version - 1
        if bins and store.bins and store.version != before:
            raise Misled(f"worker {control.worker} holds version {store.version}, and version {before} is to join it")
        if bins:
            self._begin_change(store)
            for bin_ in bins:
                store.bins[bin_] = {}
                for part in control.load:
                    if part.bins[bin_]:
                        store.bins[bin_].update(self.location.value(part.file["path"]).get(bin_, {}))
            store.version = before
            store.is_torn = False

    def _begin_change(self, store: Store) -> None:
        """A store is torn until its change is done; by chance the process ends before that."""
        store.is_torn = True
        if self.chance.happens("torn"):
            raise JobLost("a process ended in the middle of a change")

    def _operate(
        self, store: Store, control: Control, rows: Iterable[Row]
    ) -> tuple[dict[int, dict[int, Sum]], list[Row]]:
        version, owned = control.token.version, control.owned
        wave, waves = control.wave
        values: defaultdict[int, dict[int, list[int]]] = defaultdict(dict)
        for row in rows:
            bin_ = bin_of(control.operator, row.key, control.bins)
            if not owned[bin_]:
                raise Misled(f"a row of key {row.key} came to worker {control.worker}, which does not own its bin")
            values[bin_].setdefault(row.key, []).append(row.value)
        delta: dict[int, dict[int, Sum]] = {}
        output: list[Row] = []
        for bin_ in owned.nonzero()[0].tolist():
            contents, new = store.bins.get(bin_), values.get(bin_, {})
            if contents is None or store.version != version - 1:
                raise Misled(f"worker {control.worker} owns bin {bin_} in version {version} and lacks its state")
            if bin_ % waves != wave:
                continue
            due = {key for key, each in contents.items() if each.coming and each.is_due(version)}
            for key in sorted(due | new.keys()) if due or new else ():
                changed, totals = operate(contents.get(key, NO_SUM), sorted(new.get(key, ())), version)
                delta.setdefault(bin_, {})[key] = changed
                output += passed_on(key, totals)
        return delta, output

    def _snapshot(self, store: Store, control: Control) -> dict[int, dict[int, Sum]]:
        if control.snapshot is None:
            return {}
        return {bin_: dict(store.bins[bin_]) for bin_ in control.snapshot.nonzero()[0].tolist()}

    def _report(
        self,
        store: Store,
        control: Control,
        place: Place,
        rows: Sequence[Row],
        delta: Mapping[int, Contents],
        snapshot: Mapping[int, Contents],
    ) -> TaskReport:
        token, worker = control.token, WorkerId(control.worker)
        attempt = Attempt(token.version, control.operator, worker, token.epoch, token.attempt)
        owned = control.owned.tolist()
        sizes = np.array([len(store.bins[bin_]) if is_mine else 0 for bin_, is_mine in enumerate(owned)])
        loads = [0] * control.bins
        for row in rows:
            loads[bin_of(control.operator, row.key, control.bins)] += 1
        return TaskReport(
            token, control.operator, control.worker, place.process, rows=len(rows), bytes=1 << 40,
            new_rows=len(rows) if any(link.is_new for link in self.graph.links[control.operator]) else 0,
            delta=self._keep(attempt.path("deltas"), delta, control, worker).to_json() if delta else None,
            snapshot=None if control.snapshot is None else SnapshotRef(
                self._keep(attempt.path("snapshots"), snapshot, control, worker), token.version - 1
            ).to_json(),
            held=store.held(control.bins), copied=0, loads=BinNumbers.of(loads),
            state_rows=BinNumbers.of(sizes), state_bytes=BinNumbers.of(sizes * 10),
            spent_ms={"busy": float(len(rows))},
        )  # fmt: skip

    def _keep(self, path: str, bins: Mapping[int, Contents], control: Control, worker: WorkerId) -> FileRef:
        self.location.files[path] = bins
        rows = sum(len(contents) for contents in bins.values())
        covered = bitmap.bitmap(list(bins), control.bins)
        return FileRef(worker, rows, rows, 0, path, bins=covered)
