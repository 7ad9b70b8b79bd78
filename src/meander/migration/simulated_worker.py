"""A worker of the simulator: it holds bins as of one version, and does what its control messages say.

    refuse an older attempt -> bring the bins to the version before (`update`) -> operate on the rows -> report

What it holds outlives its process, not its machine. A change is marked while it lasts: a process that finds the mark
empties the store, because another one died in between. Whoever operates sees the store and the message, nothing else.

The operator adds up the values of each key. A value above 1 comes again, one smaller, a few versions later: such
post-dated records are part of the state, so they travel with their bin.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from meander.errors import MeanderError
from meander.migration.update import Bins, Wanted, update
from meander.types import BinId, WorkerId

NOTHING = -1
"""The version of a store that holds nothing."""


class Token(NamedTuple):
    """Which attempt a message belongs to; a later one is greater."""

    epoch: int
    version: int
    attempt: int


class Row(NamedTuple):
    """A value for a key."""

    key: int
    value: int


class Told(NamedTuple):
    """One row of output: a key got a value, and its values now add up to `total`."""

    key: int
    value: int
    total: int


class Known(NamedTuple):
    """The state of a key: its total, and the values that come again, each with its version, in the order they arose."""

    total: int = 0
    coming: tuple[tuple[int, int], ...] = ()


Contents = Mapping[int, Known]
"""The keys of a bin, or those that a version changed, with absolute values."""


class Died(MeanderError):
    """The process is gone."""


class Misled(MeanderError):
    """A worker was told to do what it cannot: nothing but a fault in the protocol leads here."""


@dataclass(frozen=True, eq=False)
class Control:
    """What one worker of one stage is to do in one attempt.

    `advance` are the committed deltas of the version before, of the bins wanted; `load` has, for bins that can be read,
    their snapshot and deltas in order; `written` are bins to write whole.
    """

    token: Token
    stage: int
    worker: WorkerId
    wanted: Wanted
    advance: Mapping[BinId, Contents]
    load: Mapping[BinId, Sequence[Contents]]
    written: tuple[BinId, ...]
    rows: tuple[Row, ...]


@dataclass(frozen=True, eq=False)
class Report:
    """What one worker of one stage did in one attempt, or that it `lacks` bins and was not told where to read them."""

    token: Token
    stage: int
    worker: WorkerId
    held: Bins
    delta: Mapping[BinId, Contents] = field(default_factory=dict)
    written: Mapping[BinId, Contents] = field(default_factory=dict)
    output: tuple[Told, ...] = ()
    lacks: bool = False
    trouble: str = ""


def bin_of(stage: int, key: int, bins: int) -> BinId:
    """The bin of a key; stages spread keys differently."""
    return BinId((key * (2 * stage + 1) + stage) % bins)


def whole(parts: Iterable[Contents]) -> dict[int, Known]:
    """A bin from its snapshot and the deltas since."""
    found: dict[int, Known] = {}
    for part in parts:
        found.update(part)
    return found


def operate(before: Known, values: Iterable[int], key: int, version: int) -> tuple[Known, list[Told]]:
    """What becomes of a key in one version: first the values that come again now, then the new ones."""
    total, output = before.total, []
    coming = [each for each in before.coming if each[0] > version]
    for value in [*(value for when, value in before.coming if when <= version), *values]:
        total += value
        output.append(Told(key, value, total))
        if value > 1:
            coming.append((version + 1 + value % 3, value - 1))
    return Known(total, tuple(coming)), output


class Worker:
    """One worker of one stage. `risk` raises `Died` by chance, `time_for` says how many of some bins it can copy."""

    def __init__(
        self, stage: int, worker: WorkerId, bins: int, risk: Callable[[], None], time_for: Callable[[int], int]
    ) -> None:
        self.stage, self.worker, self.size, self.risk, self.time_for = stage, worker, bins, risk, time_for
        self.lose()

    def lose(self) -> None:
        """Come back on another machine, with nothing."""
        self.seen = Token(0, 0, 0)
        self.reset()

    def reset(self) -> None:
        """Hold nothing."""
        self.version = NOTHING
        self.bins: dict[BinId, dict[int, Known]] = {}
        self.torn = False

    @property
    def held(self) -> Bins:
        """Which bins are held."""
        return np.array([bin_ in self.bins for bin_ in range(self.size)], np.bool_)

    def on(self, control: Control) -> Report | None:
        """Do what the message says; nothing comes of one of an earlier attempt, or where the process dies."""
        if control.token < self.seen:
            return None
        self.seen = control.token
        if self.torn:
            self.reset()
        try:
            return self._attempt(control)
        except Died:
            return None

    def _attempt(self, control: Control) -> Report:
        if not self._bring(control):
            return Report(control.token, self.stage, self.worker, self.held, lacks=True)
        delta, output = self._operate(control)
        self.risk()
        written = {bin_: dict(self.bins[bin_]) for bin_ in control.written}
        return Report(control.token, self.stage, self.worker, self.held, delta, written, output)

    def _bring(self, control: Control) -> bool:
        """Bring the store to the version before; False if bins are missing that it was not told where to read."""
        before = control.token.version - 1
        todo = update(self.held, self.version, control.wanted)
        if todo.lacking.size:
            return False
        if todo.reset:
            self.reset()
        with self._change():
            for bin_ in todo.release.tolist():
                del self.bins[bin_]
                self.risk()
        if todo.advance:
            with self._change():
                for bin_, contents in self.bins.items():
                    contents.update(control.advance.get(bin_, {}))
                    self.risk()
                self.version = before
        self._install(todo.install.tolist(), control)
        self._install(todo.copy.tolist()[: self.time_for(todo.copy.size)], control)
        return True

    def _install(self, bins: list[BinId], control: Control) -> None:
        before = control.token.version - 1
        if bins and self.bins and self.version != before:
            raise Misled(f"worker {self.worker} holds version {self.version}; version {before} cannot stand beside it")
        if bins:
            with self._change():
                for bin_ in bins:
                    self.bins[bin_] = whole(control.load[bin_])
                    self.risk()
                self.version = before

    @contextmanager
    def _change(self) -> Iterator[None]:
        self.risk()
        self.torn = True
        yield
        # A process that dies in between does not come here.
        self.torn = False

    def _operate(self, control: Control) -> tuple[dict[BinId, Contents], tuple[Told, ...]]:
        """The delta and the output of this version; the store stays as it is."""
        version, owned = control.token.version, control.wanted.owned
        values: defaultdict[BinId, dict[int, list[int]]] = defaultdict(dict)
        for row in control.rows:
            bin_ = bin_of(self.stage, row.key, self.size)
            if not owned[bin_]:
                raise Misled(f"a row of key {row.key} came to worker {self.worker}, which does not own its bin")
            values[bin_].setdefault(row.key, []).append(row.value)
        output: list[Told] = []
        delta: dict[BinId, Contents] = {}
        for bin_ in map(BinId, np.flatnonzero(owned).tolist()):
            contents, new = self.bins.get(bin_), values.get(bin_, {})
            if contents is None or self.version != version - 1:
                raise Misled(f"worker {self.worker} owns bin {bin_} in version {version} and lacks its state")
            due = {key for key, known in contents.items() if any(when <= version for when, _ in known.coming)}
            changed: dict[int, Known] = {}
            for key in sorted(due | new.keys()):
                changed[key], told = operate(contents.get(key, Known()), new.get(key, ()), key, version)
                output += told
            if changed:
                delta[bin_] = changed
        return delta, tuple(output)
