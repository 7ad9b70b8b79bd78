"""The production driver under seeded faults: a whole query in one process, with everything that can go wrong.

One source of chance decides about rows, requests and faults, so a seed is a story that can be told again:

    >>> Simulation(seed=7).run().versions >= 40
    True

Executors are lost for a while or for good, processes die in the middle of a change, tasks of a lost job run late, the
driver crashes around the sink and the log, another one takes over while the old one goes on. Meanwhile requests to
rescale, rebalance and move, cancellations, rows of a control stream, idle ticks and a balancer come whenever they like.
After every version the commit is looked at; in the end state and output are counted anew.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from meander.clock import ManualClock
from meander.control.balancer import Balancer
from meander.control.policies import StragglerPolicy
from meander.control.straggler import StragglerRules
from meander.engine.driver.placement import Placement
from meander.engine.driver.run import QueryRun
from meander.engine.driver.settings import Settings
from meander.errors import MeanderError
from meander.migration.control_rows import ControlRow
from meander.migration.control_stream import ControlStream
from meander.migration.mover import Mover
from meander.store.entries import Commit
from meander.testing.backends import Backend, ModelBackend, Origins, RealBackend
from meander.testing.faults import Chance, FaultRates
from meander.testing.model import ModelJobs
from meander.testing.stream import InProcessLaunch, InProcessStream

MIN_VERSIONS, MIN_MIGRATIONS, MIN_FAULTS = 40, 1, 3
"""What a story has at least: a seed that shows less proves little."""
LAST_VERSIONS = 2
"""So many come after the story, when nothing goes wrong any more."""
MOST_WORKERS = 3
"""A source, a target and one that only looks on: more of them show nothing that these do not."""
MAX_STEPS = 1000
MAX_SETTLE = 300
SHARED_MEMORY = Path("/dev/shm")
"""Where files cost no disk; they are gone with the simulation anyway."""


CHAINS: dict[int, Origins] = {1: [(-1,)], 2: [(-1,), (0,)]}
GRAPHS: list[Origins] = [
    [(-1,), (-1,), (0, 1)], [(-1,), (0, 0)], [(-1,), (0, -1)], [(-1,), (0,), (0,), (1, 2)], [(-1,), (-1, 0), (-1, 0, 1)]
]  # fmt: skip
"""What operators of a query with branches take rows from; -1 is the source. A fourth of the seeds have such a one."""
REAL_GRAPH: Origins = [(-1,), (-1,), (0, 1, 0)]


class Violation(AssertionError):
    """Something that must never be, with the seed that shows it."""


@dataclass(frozen=True)
class Outcome:
    """What happened in a simulation."""

    seed: int
    versions: int
    migrations: int
    faults: int
    restarts: int


class Simulation:
    """One seed."""

    def __init__(
        self, seed: int, real: bool = False, rates: FaultRates | None = None, versions: int = MIN_VERSIONS
    ) -> None:
        self.seed, self.is_real, self.wanted = seed, real, versions
        self.chance = Chance(seed, rates or FaultRates())
        self.min_faults = 0 if rates == FaultRates.none() else MIN_FAULTS
        self.rng = self.chance.rng
        self.commits: list[Commit] = []
        self.batches: dict[int, object] = {}
        self.restarts = 0
        self.finished = 0
        self.old: list[QueryRun] = []
        self._left: set[tuple[int, ...]] | None = None
        self._rows: tuple[ControlRow, ...] = ()
        """Rows of the control stream that were accepted and have not taken effect."""

    def run(self) -> Outcome:
        """Go through the story and check it; raises `Violation`."""
        with self._folder() as root:
            try:
                self._set_up(Path(root))
                self._story()
                self._settle()
                self._check_end()
            except Violation:
                raise
            except Exception as problem:
                raise Violation(f"seed {self.seed}, version {len(self.commits) - 1}: {problem!r}") from problem
        return Outcome(self.seed, len(self.commits), self.finished, self.faults, self.restarts)

    @property
    def faults(self) -> int:
        """How many faults there have been."""
        return sum(self.chance.counts.values())

    def _folder(self) -> AbstractContextManager[str]:
        if not self.is_real:
            return nullcontext("/nonexistent")
        parent = SHARED_MEMORY if os.access(SHARED_MEMORY, os.W_OK) else None
        return tempfile.TemporaryDirectory(prefix="meander-sim-", dir=parent)

    def _set_up(self, folder: Path) -> None:
        rng = self.rng
        bins, operators = rng.choice([4, 8]), rng.choice([1, 1, 2])
        executors = rng.randint(1, MOST_WORKERS)
        has_branches, branches = self.seed % 4 == 3, GRAPHS[self.seed // 4 % len(GRAPHS)]
        self.backend: Backend = (
            RealBackend(self.chance, bins, REAL_GRAPH if has_branches else CHAINS[operators], executors, folder)
            if self.is_real
            else ModelBackend(self.chance, bins, branches if has_branches else CHAINS[operators], executors)
        )
        self.clock = ManualClock()
        settings = Settings(
            self.backend.location.uri, rng.randint(1, executors), bins, executors_within_s=1.0,
            snapshot_every=rng.choice([2, 4, 8]), retain=rng.choice([3, 10]), copy_ms=1e9,
            copy_bytes=rng.choice([1, 50, 1 << 20]), release_after=rng.choice([0, 1, 2, 4]), attempts=20,
        )  # fmt: skip
        self.launch = InProcessLaunch(
            self.backend.graph, self.backend.location, self.backend.cluster, self.backend.jobs, settings,
            self.clock, settings.workers, f"seed{self.seed}",
        )  # fmt: skip
        with self.chance.paused():
            self._start()
            self._batch()
            self._look()

    # --- the story -----------------------------------------------------------------------------

    def _story(self) -> None:
        for _ in range(MAX_STEPS):
            if self._has_enough:
                return
            self._wreck()
            with self._may_end():
                self._pick()()
                self._poll()
            self._look()
        raise Violation(
            f"seed {self.seed}: only {len(self.commits)} versions, {self.finished} finished migrations and "
            f"{self.faults} faults in {MAX_STEPS} steps"
        )

    @property
    def _has_enough(self) -> bool:
        enough = len(self.commits) >= self.wanted - LAST_VERSIONS and self.finished >= MIN_MIGRATIONS
        return enough and self.faults >= self.min_faults

    def _pick(self) -> Callable[[], None]:
        actions = (
            self._batch, self._tick, self._rescale, self._rebalance, self._move, self._cancel, self._control,
            self._balance,
        )  # fmt: skip
        return self.rng.choices(actions, (60, 12, 5, 3, 4, 2, 3, 4))[0]

    @contextmanager
    def _may_end(self) -> Iterator[None]:
        """A crash or a failed query is followed by another driver."""
        try:
            yield
        except MeanderError:
            if not self.query.driver.loop.failure and not self.chance.counts:
                raise
            self._left = None
            self._restart()

    def _batch(self) -> None:
        stream = self.query.stream
        assert isinstance(stream, InProcessStream)
        self._put(stream)

    def _put(self, stream: InProcessStream) -> None:
        number = stream.next_batch
        rows = self.batches.setdefault(number, self.backend.rows(self.rng))
        self.clock.advance(self.rng.choice([0.1, 1.0]))
        stream.put(rows)

    def _tick(self) -> None:
        loop = self.query.driver.loop
        before = loop.version
        self.clock.advance(5.0)
        is_wanted = loop.tick_if_wanted()
        if loop.version != before + is_wanted:
            raise Violation(f"seed {self.seed}: one tick made {loop.version - before} versions")

    def _rescale(self) -> None:
        self.mover.migrate(
            "rescale", self._operator(), {"workers": self.rng.randint(1, MOST_WORKERS), **self._schedule()}
        )

    def _rebalance(self) -> None:
        self.mover.migrate("rebalance", self._operator(), self._schedule())

    def _move(self) -> None:
        record = self.query.driver.record
        workers = self.rng.sample(range(MOST_WORKERS), self.rng.randint(1, 2))
        bins = self.rng.sample(range(record.bins), self.rng.randint(1, 3))
        targets = {bin_: self.rng.choice(workers) for bin_ in bins}
        self.mover.migrate("move", self.rng.randrange(len(record.owners)), {"targets": targets, **self._schedule()})

    def _operator(self) -> int | None:
        return self.rng.choice([None, 0])

    def _schedule(self) -> dict[str, object]:
        later = {"at": self._next_batch() + self.rng.randint(0, 4)} if self.rng.random() < 0.15 else {}
        return {"schedule": self.rng.choice(["all_at_once", "fluid", "batched", "matching"]), **later}

    def _next_batch(self) -> int:
        stream = self.query.stream
        assert isinstance(stream, InProcessStream)
        return stream.next_batch

    def _cancel(self) -> None:
        if self.mover.migration is not None:
            self.mover.migration.cancel()

    def _control(self) -> None:
        driver = self.query.driver
        rows = [
            {
                "batch": self._next_batch() + self.rng.randint(0, 3),
                "bin": self.rng.randrange(driver.record.bins + 1),
                "worker": self.rng.randrange(MOST_WORKERS),
                "operator": 0,
            }
            for _ in range(self.rng.randint(1, 3))
        ]
        with driver.loop.lock:
            cores = sum(place.cores for place in driver.cluster.executors())
            ControlStream(driver.coordinator, driver.settings.budget).take(rows, cores, self._next_batch() - 1)
        self._rows = driver.coordinator.control.rows

    def _balance(self) -> None:
        self.balancer.look()

    def _poll(self) -> None:
        migration = self.mover.migration
        if migration is not None and not migration.is_over and migration.poll():
            self.finished += migration.status == "done"

    # --- what goes wrong -----------------------------------------------------------------------

    def _wreck(self) -> None:
        chance, cluster = self.chance, self.backend.cluster
        for place in cluster.executors():
            if chance.happens("executor_lost"):
                self._lose(place.executor, replace=True)
            elif len(cluster.ids()) > 1 and chance.happens("executor_gone"):
                self._lose(place.executor, replace=False)
        if chance.happens("restart"):
            self.query.stop()
            self._restart()
        if chance.happens("usurp"):
            self.old = [*self.old[-1:], self.query]
            self._restart()
        if self.old and self.rng.random() < 0.2:
            self._let_old_driver_go_on()
        if self.rng.random() < 0.1:
            self.backend.sink.wake()

    def _lose(self, executor: str, replace: bool) -> None:
        self.backend.cluster.lose(executor, replace)
        jobs = self.backend.jobs
        if isinstance(jobs, ModelJobs):
            jobs.lose(executor)

    def _let_old_driver_go_on(self) -> None:
        """A driver that was replaced processes its next batch: it must find out, and commit nothing."""
        old = self.old.pop(0)
        assert isinstance(old.stream, InProcessStream)
        entries = self.backend.location.list("manifests")
        try:
            self._put(old.stream)
        except MeanderError:
            pass
        else:
            raise Violation(f"seed {self.seed}: a driver that was replaced has gone on")
        if self.backend.location.list("manifests") != entries:
            raise Violation(f"seed {self.seed}: a driver that was replaced has committed")

    def _restart(self) -> None:
        self.restarts += 1
        for _ in range(50):
            try:
                self._start()
                break
            except MeanderError:
                self._left = None
                if len(self.backend.cluster.ids()) < 2:
                    self.backend.cluster.request(2)
        else:
            raise Violation(f"seed {self.seed}: the query does not start any more")
        self._rows = self.query.driver.coordinator.control.rows  # what was not committed, the stream brings again
        left = self._moves_left()
        if self._left is not None and left != self._left and not self._has_lost_workers:
            raise Violation(f"seed {self.seed}: after a restart {len(left)} moves are left, before {len(self._left)}")

    def _start(self) -> None:
        # A driver starts in a process of its own: it does not know where the workers of the one before are. Else the
        # story would depend on when Python finds the old one to be garbage.
        Placement.everywhere.clear()
        self.query = QueryRun(self.launch, self.clock)
        budget = self.query.driver.settings.budget
        self.mover = Mover(self.query, budget, 1.0, self.clock, background=False)
        policies = {0: StragglerPolicy(StragglerRules(window=2, rest=2, alpha=None))}
        self.balancer = Balancer(self.query, self.mover, policies, {"planner": "free"}, waits=False)

    # --- what must be --------------------------------------------------------------------------

    def _moves_left(self) -> set[tuple[int, ...]]:
        coordinator = self.query.driver.coordinator
        moves = {(move.operator, move.bin, move.target) for step in coordinator.protocol.steps for move in step.moves}
        return moves | set(coordinator.control.rows)

    @property
    def _has_lost_workers(self) -> bool:
        return any(each.name == "lost" for each in self.query.driver.events.entries)

    def _look(self) -> None:
        """Look at every commit that has come since the last look."""
        log = self.query.driver.log
        before = len(self.commits)
        if log.index.version >= before:
            self.commits += log.commits(before)
            self._left = self._moves_left()
        for at, commit in enumerate(self.commits[before:], before):
            self._check_commit(at, commit)
            self._check_control(commit)
        self._rows = self.query.driver.coordinator.control.rows

    def _check_commit(self, at: int, commit: Commit) -> None:
        if commit.version != at:
            raise Violation(f"seed {self.seed}: version {commit.version} came where {at} was next")
        if at > 0:
            last = self.commits[at - 1]
            follows = (commit.batch, commit.tick) in ((last.batch + 1, 0), (last.batch, last.tick + 1))
            if not follows:
                raise Violation(
                    f"seed {self.seed}: batch {commit.batch}.{commit.tick} came after {last.batch}.{last.tick}"
                )
        for operator, part in enumerate(commit.operators):
            covered: set[int] = set()
            for ref in part.deltas:
                for bin_ in ref.members():
                    if part.owner[bin_] != ref.worker:
                        raise Violation(
                            f"seed {self.seed}: worker {ref.worker} wrote bin {bin_} of operator {operator} in "
                            f"version {at}, which worker {part.owner[bin_]} owned"
                        )
                    if bin_ in covered:
                        raise Violation(f"seed {self.seed}: two deltas of version {at} cover one bin")
                    covered.add(bin_)

    def _check_control(self, commit: Commit) -> None:
        """A row is in effect at its batch, unless its worker was lost."""
        for row in self._rows:
            owner = commit.operators[row.operator].owner[row.bin]
            is_due = (row.batch, 0) == (commit.batch, commit.tick)
            if is_due and owner != row.worker and not self._has_lost_workers:
                raise Violation(f"seed {self.seed}: {row} did not take effect: worker {owner} owns the bin")

    def _settle(self) -> None:
        """Nothing goes wrong any more: what is under way must end."""
        self.chance.stop()
        self.old = []
        self.backend.sink.wake()
        for _ in range(MAX_SETTLE):
            with self._may_end():
                if not self.query.driver.coordinator.protocol.busy:
                    break
                self._batch()
                self._poll()
            self._look()
        else:
            raise Violation(f"seed {self.seed}: a migration does not end within {MAX_SETTLE} versions")
        for _ in range(LAST_VERSIONS):
            self._batch()
        self._look()

    def _check_end(self) -> None:
        driver = self.query.driver
        self._poll()
        for operator in driver.record.operators:
            for worker in driver.coordinator.participants:
                held = driver.holdings.of(operator, worker)
                owned = driver.record.owners[operator] == worker
                if held is None or (held != owned).any():
                    raise Violation(f"seed {self.seed}: worker {worker} holds other bins than it owns in the end")
        outputs, state = self.backend.expected(self.commits, self.batches)
        if sorted(self.backend.sink.versions) != list(range(len(outputs))):
            raise Violation(f"seed {self.seed}: the sink shows other versions than those that are committed")
        for version, output in enumerate(outputs):
            calls, shown = self.backend.sink.calls[version], self.backend.sink.versions[version]
            if any(self.backend.emitted(rows) != output for rows in (*calls, shown)):
                raise Violation(f"seed {self.seed}: the sink got other rows of version {version} than a recount gives")
        if self.backend.state(driver.log) != state:
            raise Violation(f"seed {self.seed}: the state in the end is not what a recount gives")
