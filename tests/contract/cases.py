"""Where a query of the contract runs: the same cases on every runtime, behind one small interface.

    case = runtime.start("count", workers=2)     one of `kinds.KINDS`, and options of `start`
    case.put(rows)                               one batch, and wait until it is committed
    case.query.rescale(3).wait()                 the public handle
    case.finish()                                stop, and compare sink and checkpoint with a recount

Only the classes of a runtime know Spark. Another runtime is one more pair of classes, and one more line in `RUNTIMES`.
"""

from __future__ import annotations

import random
import threading
from abc import ABC, abstractmethod
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from contract.kinds import KINDS, Rows
from meander.engine.driver.version_progress import VersionProgress
from streams import PATIENCE_S, state_of, wait_until

BINS = 16
CONTROL = pa.schema([(name, pa.int64()) for name in ("batch", "bin", "worker")])

BY_BATCHES = {"idle_after_s": 10 * PATIENCE_S}
"""Options for a query that makes versions only when rows come: it stands still while a test looks at it."""

BY_ITSELF = {"idle_after_s": 0.1}
"""Options for a query that soon goes on by itself when no rows come."""


class Gate:
    """What a sink does before it takes a version: nothing, or wait, or raise."""

    def __init__(self) -> None:
        self.problem: Exception | None = None
        self.entered, self.is_open = threading.Event(), threading.Event()
        self.is_open.set()

    def pass_through(self) -> None:
        """Called by the sink with every version."""
        self.entered.set()
        assert self.is_open.wait(PATIENCE_S)
        if self.problem is not None:
            raise self.problem


class Case(ABC):
    """One query with its feed, its sink and its checkpoint, over all of its starts."""

    query: Any

    def __init__(self, folder: Path, kind: str, options: dict[str, Any]) -> None:
        self.folder, self.kind, self.options = folder, KINDS[kind], options
        self.checkpoint = folder / "checkpoint"
        self.gate = Gate()
        self.batches: list[pa.Table] = []
        self._rng = random.Random(folder.name)
        self._progress: dict[int, VersionProgress] = {}

    # --- what a runtime provides -------------------------------------------------------------

    @abstractmethod
    def launch(self) -> Any:
        """Start the query with the options, on the checkpoint; returns its handle."""

    @abstractmethod
    def feed(self, batch: pa.Table) -> None:
        """Let the source have one more batch."""

    @abstractmethod
    def output(self) -> Rows:
        """The rows that the sink holds, each with the version that emitted it as `batch`."""

    @abstractmethod
    def steer(self, *moves: tuple[int, int, int]) -> None:
        """Put moves on the control stream: batch, bin and worker of each."""

    def lose_worker(self, worker: int, for_good: bool = False) -> None:
        """Let the process of a worker end without a word; `for_good`: and let no other come in its place."""
        raise NotImplementedError

    # --- what is the same everywhere -----------------------------------------------------------

    @property
    def assignment(self) -> list[int]:
        """Who owns each bin of the first operator."""
        return next(iter(self.query.assignment.values()))

    def add(self, *batches: pa.Table) -> None:
        """Add batches, and do not wait for them."""
        for batch in batches:
            self.batches.append(batch)
            self.feed(batch)

    def put(self, *batches: pa.Table) -> None:
        """Add batches, and wait until they are committed."""
        self.add(*batches)

        rows = sum(batch.num_rows for batch in self.batches)

        def is_committed() -> bool:
            if self.rows_done() == rows:
                return True
            if not self.query.is_active:
                self.query.process_all_available()  # raises what it has failed of
            return False

        wait_until(is_committed, "the rows to be committed")

    def samples(self, count: int) -> list[pa.Table]:
        """The next batches of rows that suit the query; a case always has the same."""
        first = len(self.batches)
        return [self.kind.sample(self._rng, first + each) for each in range(count)]

    def flow(self, batches: int = 1) -> None:
        """Put so many batches, one after the other."""
        for _ in range(batches):
            self.put(*self.samples(1))

    def events(self, event: str, **facts: Any) -> list[dict[str, Any]]:
        """The events of this name with these facts, so far."""
        every = [each.to_dict() for each in self.query.events if each.name == event]
        return [each for each in every if facts.items() <= each.items()]

    def await_event(self, event: str, **facts: Any) -> dict[str, Any]:
        """The first event of this name with these facts, as soon as there is one."""

        def look() -> Any:
            assert self.query.exception() is None
            return next(iter(self.events(event, **facts)), None)

        return wait_until(look, f"the event {event} {facts or ''}")

    def flow_until(self, event: str, **facts: Any) -> dict[str, Any]:
        """Put batches until there is such an event, and return it."""
        for _ in range(50):
            events = self.events(event, **facts)
            if events:
                return events[0]
            self.flow()
        raise AssertionError(f"there was no event {event} {facts or ''} in 50 batches")

    def progress(self) -> dict[int, VersionProgress]:
        """What each version did, over all starts."""
        self._progress.update({each.version: each for each in [*self.query.recent_progress, *self.query.recent_ticks]})
        return self._progress

    def rows_done(self) -> int:
        """The rows that are committed."""
        return sum(each.rows for each in self.progress().values())

    def idle(self) -> None:
        """Let no rows come until all that were added are committed and a version without any has followed."""

        def is_idle() -> bool:
            assert self.query.exception() is None
            is_done = self.rows_done() == sum(batch.num_rows for batch in self.batches)
            return is_done and max(self.progress().items())[1].tick > 0

        wait_until(is_idle, "a version without rows")

    def stop(self) -> None:
        """Stop the query."""
        self.query.stop()

    def restart(self, kind: str | None = None, **options: Any) -> None:
        """Start the query again on its checkpoint, with some options changed, after it has ended."""
        self.progress()
        self.kind = self.kind if kind is None else KINDS[kind]
        self.options = {**self.options, **options}
        self.query = self.launch()

    def check(self, at_end: bool = False) -> None:
        """What the sink holds and what the checkpoint holds is what a recount of all batches says."""
        recount, progress = self.kind.recount(self.batches, at_end), self.progress()
        output = [{**row, "batch": progress[row["batch"]].batch} for row in self.output()]
        assert self.kind.read_output(output) == recount.output
        for operator, state in enumerate(recount.states):
            assert self.kind.read_state(operator, state_of(self.checkpoint, operator)) == state
        assert self.query.misrouted == 0

    def finish(self) -> None:
        """Stop the query, which must not have failed, when all rows are in and all timers that are due have fired."""
        if self.query.is_active:
            self.query.process_all_available()
        self.stop()
        assert self.query.exception() is None
        self.check()

    def end(self) -> None:
        """Stop the query, however it stands: a test that has failed must not leave it to the next one."""
        self.gate.is_open.set()
        with suppress(Exception):
            self.query.stop()


class Runtime(ABC):
    """A place where queries run, for one test."""

    name: ClassVar[str]
    loses_workers: ClassVar[bool] = False
    """Whether a worker can be lost without the test."""
    has_executors: ClassVar[bool] = False
    """Whether workers sit on executors that come and go."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cases: list[Case] = []

    def start(self, kind: str, *batches: pa.Table, control: pa.Schema | None = None, **options: Any) -> Case:
        """Start a query of one of `KINDS`; batches are there before it starts, `control` is for a control stream."""
        settings = {"workers": 2, "bins": BINS, "snapshot_every": 4, "release_after": 0, **BY_ITSELF, **options}
        case = self.case(self.folder / f"case{len(self.cases)}", kind, control, settings)
        case.add(*batches)
        case.query = case.launch()
        self.cases.append(case)
        return case

    @abstractmethod
    def case(self, folder: Path, kind: str, control: pa.Schema | None, options: dict[str, Any]) -> Case:
        """A case that has not been started yet."""

    def end(self) -> None:
        """Stop what a test has left running."""
        for case in self.cases:
            case.end()
