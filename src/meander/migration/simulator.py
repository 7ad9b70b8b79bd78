"""A whole stream in one process, with everything that can go wrong: it drives the protocol in tests.

    user -> controller -> control messages -> workers -> reports -> controller -> log

One `random.Random` decides about everything, so a seed is a story that can be told again. Messages are lost, late and
repeated; processes die in the middle of a change, machines are lost for a while or for good, controllers crash before
and after they commit, or live on when another one has taken over; plans and cancellations come whenever they like.

>>> stream = Simulation(seed=7, faults=Faults.many())
>>> stream.run(60)
>>> stream.settle()
>>> stream.controller.protocol.busy
False
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import count

from meander.errors import Fenced, MeanderError
from meander.migration.protocol import Cancelled, Event, Planned, Rules
from meander.migration.simulated_controller import Controller, Did, Log, Owners, Story
from meander.migration.simulated_worker import Control, Died, Report, Row, Worker
from meander.migration.steps import Step, joined
from meander.types import BinId, Move, WorkerId


class Crashed(MeanderError):
    """The controller is gone."""


class Stuck(MeanderError):
    """A migration does not end although nothing goes wrong any more."""


@dataclass(frozen=True)
class Faults:
    """How likely things are: for a message, for a moment of a worker's or controller's work, or for a tick.

    Args:
        lose, repeat, late: what happens to a message.
        die: a worker's process ends, at each moment at which it could; its store may be left torn.
        lost: a machine is lost in a tick, and the worker comes back with nothing; `gone`: it does not come back.
        crash: a controller ends, at each moment of a commit and in a tick.
        usurp: another controller takes over in a tick, and the old one does not know.
        plan, cancel: the user wants something in a tick.
        busy: a worker has no time to copy all it should.
        trouble: a bin cannot be copied.
        remind: the protocol hears of a commit again.
    """

    lose: float = 0.0
    repeat: float = 0.0
    late: float = 0.0
    die: float = 0.0
    lost: float = 0.0
    gone: float = 0.0
    crash: float = 0.0
    usurp: float = 0.0
    plan: float = 0.0
    cancel: float = 0.0
    busy: float = 0.0
    trouble: float = 0.0
    remind: float = 0.0

    @classmethod
    def many(cls, rate: float = 0.05) -> Faults:
        """Everything goes wrong now and then."""
        ticks = {"lost": rate / 4, "gone": rate / 20, "crash": rate / 4, "usurp": rate / 4, "cancel": rate / 4}
        messages = {"lose": rate, "repeat": 2 * rate, "late": 2 * rate, "die": rate / 4}
        return cls(**messages, **ticks, plan=rate, busy=0.5, trouble=rate / 20, remind=2 * rate)


@dataclass(frozen=True)
class Shape:
    """How large the stream is; `chain` is how many parts a bin may have before it is written whole to be copied."""

    bins: int = 8
    stages: int = 1
    workers: tuple[int, ...] = (0, 2, 3, 7)
    keys: int = 24
    rows: int = 6
    chain: int = 4


class Network:
    """Messages on their way. They come in any order, more than once, or never."""

    def __init__(self, rng: random.Random) -> None:
        self.rng, self.flying, self._serial = rng, list[tuple[int, int, Control | Report]](), count()

    def send(self, message: Control | Report, now: int, faults: Faults) -> None:
        """Send a message off."""
        if self.rng.random() < faults.lose:
            return
        for _ in range(2 if self.rng.random() < faults.repeat else 1):
            delay = self.rng.randint(0, 40) if self.rng.random() < faults.late else self.rng.randint(0, 1)
            heapq.heappush(self.flying, (now + delay, next(self._serial), message))

    def due(self, now: int) -> Iterator[Control | Report]:
        """What has arrived by now."""
        while self.flying and self.flying[0][0] <= now:
            yield heapq.heappop(self.flying)[2]


class Simulation:
    """A stream under way. `check` is called after every tick, to look at whatever it likes."""

    def __init__(
        self,
        seed: int,
        faults: Faults | None = None,
        shape: Shape | None = None,
        check: Callable[[Simulation], None] = lambda _: None,
        rules: Callable[[random.Random], Rules] | None = None,
    ) -> None:
        self.rng, self.faults, self.shape, self.check = random.Random(seed), faults or Faults(), shape or Shape(), check
        self.rules = rules or any_rules
        self.now = 0
        self.alive = {WorkerId(worker) for worker in self.shape.workers}
        self.network = Network(self.rng)
        self.workers = {
            (stage, worker): Worker(stage, worker, self.shape.bins, self._may_die, self._time_for)
            for stage in range(self.shape.stages)
            for worker in sorted(self.alive)
        }
        first = sorted(self.alive)[: self.rng.randint(1, len(self.alive))]
        self.log = Log(tuple(tuple(self._some(first)) for _ in range(self.shape.stages)))
        self.story: Story = []
        self.input: dict[int, tuple[Row, ...]] = {}
        self.targets: dict[int, Owners] = {}
        """What each plan led to."""
        self.flowing = True
        self.old: list[Controller] = []
        """Controllers that do not know that they are over."""
        self.controller = self._start()

    @property
    def version(self) -> int:
        """The last committed version."""
        return self.log.last.version

    def run(self, ticks: int) -> None:
        """Go on for so many ticks, with faults."""
        for _ in range(ticks):
            self._tick()

    def settle(self, ticks: int = 1000) -> None:
        """Go on without faults and without rows until no migration is under way, for so many ticks at most."""
        self.faults, self.old, self.flowing = Faults(), [], False
        until = self.now + ticks
        while self.controller.protocol.busy or self.controller.asked:
            if self.now > until:
                raise Stuck(f"migration {self.controller.protocol.migration} does not end within {ticks} ticks")
            self._tick()

    def ask_for_plan(self, owner: Owners | None = None) -> None:
        """Want these owners, or any, from the next version on."""
        self.controller.asked.append(lambda now: self._plan(now, owner))

    # --- one tick --------------------------------------------------------------------------

    def _tick(self) -> None:
        self.now += 1
        self._wreck()
        for message in list(self.network.due(self.now)):
            if isinstance(message, Control):
                self._deliver(message)
            else:
                self._let_all(partial(Controller.on, report=message, now=self.now))
        self._let_all(partial(Controller.tick, now=self.now))
        self.check(self)

    def _let_all(self, act: Callable[[Controller], None]) -> None:
        for controller in (*self.old, self.controller):
            try:
                act(controller)
            except (Fenced, Crashed):
                if controller is self.controller:
                    self.controller = self._start()
                self.old = [each for each in self.old if each is not controller]

    def _start(self) -> Controller:
        def send(control: Control) -> None:
            self.network.send(control, self.now, self.faults)

        return Controller(self.log, self._rows, self.alive, send, self._may_crash, self.story, self.shape.chain)

    def _deliver(self, control: Control) -> None:
        if control.worker not in self.alive:
            return
        report = self.workers[control.stage, control.worker].on(control)
        if report is not None:
            if not report.lacks:
                self.story.append(Did(report.token, report.stage, report.worker, tuple(report.delta)))
            if control.wanted.copied.size and self._chance(self.faults.trouble):
                report = replace(report, trouble="a file could not be read")
            self.network.send(report, self.now, self.faults)

    def _wreck(self) -> None:
        """Let happen what happens to machines, controllers and users."""
        faults = self.faults
        for worker in sorted(self.alive):
            if len(self.alive) > 1 and self._chance(faults.gone):
                self.alive.remove(worker)
            elif self._chance(faults.lost):
                for stage in range(self.shape.stages):
                    self.workers[stage, worker].lose()
                # Else it finds out when the worker says what it lacks.
                if self._chance(0.5):
                    self.controller.lose({worker})
        if self._chance(faults.crash):
            self.controller = self._start()
        if self._chance(faults.usurp):
            self.old, self.controller = [*self.old, self.controller], self._start()
        if self._chance(faults.remind) and self.controller.past:
            self.controller.carry(self.rng.choice(self.controller.past))
        for ask, rate in ((self._plan, faults.plan), (self._cancel, faults.cancel)):
            if self._chance(rate):
                if self._chance(0.5):
                    self.controller.carry(ask(self.controller.owner))
                else:
                    self.controller.asked.append(ask)

    # --- chance ----------------------------------------------------------------------------

    def _chance(self, rate: float) -> bool:
        return rate > 0 and self.rng.random() < rate

    def _some(self, workers: list[WorkerId]) -> list[WorkerId]:
        return [self.rng.choice(workers) for _ in range(self.shape.bins)]

    def _may_die(self) -> None:
        if self._chance(self.faults.die):
            raise Died

    def _may_crash(self) -> None:
        if self._chance(self.faults.crash):
            raise Crashed

    def _time_for(self, bins: int) -> int:
        return self.rng.randint(0, bins) if self._chance(self.faults.busy) else bins

    def _rows(self, version: int) -> tuple[Row, ...]:
        if version not in self.input:
            many = self.rng.randint(0, self.shape.rows) if self.flowing else 0
            rows = [Row(self.rng.randrange(self.shape.keys), self.rng.randint(1, 4)) for _ in range(many)]
            self.input[version] = tuple(rows)
        return self.input[version]

    # --- the user --------------------------------------------------------------------------

    def _cancel(self, _: Owners) -> Event:
        return Cancelled("the user said so")

    def _plan(self, now: Owners, owner: Owners | None = None) -> Event:
        """A plan from the owners there are to others, in any steps."""
        rng = self.rng
        alive = sorted(self.alive)
        chosen = rng.sample(alive, rng.randint(1, len(alive)))
        target = owner or tuple(tuple(self._some(chosen)) for _ in now)
        if owner is None:
            keep = rng.choice([0.0, 0.5, 0.9])
            pairs = [zip(before, after, strict=True) for before, after in zip(now, target, strict=True)]
            target = tuple(tuple(a if a in alive and rng.random() < keep else b for a, b in pair) for pair in pairs)
        number = len(self.targets) + 1
        self.targets[number] = target
        schedules = {}
        for stage, (before, after) in enumerate(zip(now, target, strict=True)):
            moves = [
                Move(BinId(bin_), a, b, rng.randint(0, 60))
                for bin_, (a, b) in enumerate(zip(before, after, strict=True))
                if a != b
            ]
            rng.shuffle(moves)
            schedules[stage] = list(self._cut(moves))
        at = self.version + rng.randint(0, 9) if rng.random() < 0.15 else None
        return Planned(number, tuple(map(self._maybe_forced, joined(schedules, at))), self.rules(rng))

    def _cut(self, moves: list[Move]) -> Iterator[list[Move]]:
        size = self.rng.randint(1, self.shape.bins)
        while moves:
            if self.rng.random() < 0.1:
                yield []
            yield moves[:size]
            moves = moves[size:]

    def _maybe_forced(self, step: Step) -> Step:
        return replace(step, forced=self.rng.random() < 0.1)


def any_rules(rng: random.Random) -> Rules:
    """Narrow and wide limits."""
    return Rules(
        copy_bytes=rng.choice([1, 50, 1000]),
        release_after=rng.choice([0, 1, 2, 4]),
        keep_bytes=rng.choice([0, 100, 10_000]),
        patience=rng.choice([1, 3, 10]),
    )
