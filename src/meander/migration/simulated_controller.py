"""The controller of the simulator, and the log that outlives it: versions made in attempts, committed or never.

It asks the protocol what each attempt is to do, says so to the workers, and waits for a report of every one of them.
What it knows of the workers is what they reported and what it was told of losses, and both may be out of date.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

import numpy as np

from meander.errors import Fenced
from meander.migration import journal
from meander.migration.protocol import (
    Committed,
    Copy,
    Event,
    Finished,
    Flip,
    Gone,
    Hold,
    Instruction,
    Lost,
    Opened,
    Snapshot,
)
from meander.migration.simulated_worker import Contents, Control, Report, Row, Token, Told, bin_of
from meander.migration.update import Bins, Wanted
from meander.types import BinId, WorkerId

Owners = tuple[tuple[WorkerId, ...], ...]
"""The owner of each bin, by stage."""
Seat = tuple[int, WorkerId]
Place = tuple[int, BinId]

WAITS = 5
"""So many ticks it waits for reports before it tries again."""


@dataclass(frozen=True, eq=False)
class Commit:
    """One version: who owned what, what changed, what came out, and what is left of the migration."""

    version: int
    token: Token
    owner: Owners
    deltas: Mapping[Place, Contents] = field(default_factory=dict)
    written: Mapping[Place, Contents] = field(default_factory=dict)
    output: tuple[tuple[Told, ...], ...] = ()
    journal: str = "null"


@dataclass(frozen=True, eq=False)
class Tried:
    """An attempt that began: who owns what in it, and what the protocol had to say."""

    token: Token
    owner: Owners
    told: tuple[Instruction, ...]


@dataclass(frozen=True, eq=False)
class Did:
    """A worker has done its part of an attempt, and updated keys of these bins."""

    token: Token
    stage: int
    worker: WorkerId
    bins: tuple[BinId, ...]


@dataclass(frozen=True, eq=False)
class Ended:
    """A migration is over in a controller's eyes, and these are the owners then."""

    epoch: int
    owner: Owners
    how: Finished


Story = list[Tried | Did | Commit | Ended]


class Log:
    """Commits in a row, and the state of each bin as they make it. Only who claimed it last may append."""

    def __init__(self, owner: Owners) -> None:
        self.commits = [Commit(-1, Token(0, -1, 0), owner)]
        self.epoch = 0
        self._parts: dict[Place, list[tuple[int, bool, Contents]]] = defaultdict(list)

    @property
    def last(self) -> Commit:
        """The newest commit; before the first version, one that says who begins."""
        return self.commits[-1]

    def claim(self) -> int:
        """Take over: nobody who came before can append any more."""
        self.epoch += 1
        return self.epoch

    def append(self, commit: Commit) -> None:
        """Make a version count, all of it or nothing."""
        if commit.token.epoch != self.epoch:
            raise Fenced(f"epoch {commit.token.epoch} is over since {self.epoch} was claimed; leave")
        assert commit.version == self.last.version + 1
        self.commits.append(commit)
        for place, contents in commit.written.items():
            self._parts[place].append((commit.version - 1, True, contents))
        for place, contents in commit.deltas.items():
            self._parts[place].append((commit.version, False, contents))

    def parts(self, place: Place, version: int) -> tuple[Contents, ...]:
        """What a bin is made of as of a version: its newest snapshot, and the deltas since."""
        found: list[Contents] = []
        for since, is_whole, contents in reversed(self._parts[place]):
            if since <= version:
                found.append(contents)
                if is_whole:
                    break
        return tuple(reversed(found))

    def delta(self, place: Place, version: int) -> Contents:
        """What a version changed in a bin."""
        return self.commits[version + 1].deltas.get(place, {})


@dataclass(eq=False)
class Attempt:
    """An attempt under way, and the reports that have come."""

    token: Token
    owner: Owners
    since: int
    seats: frozenset[Seat]
    reports: dict[Seat, Report] = field(default_factory=dict)


class Controller:
    """Who makes versions. A new one starts from the log, and knows of nobody that holds anything.

    Args:
        log: what is committed.
        rows: the rows of a version: the same ones, however often it is asked.
        alive: the workers there are; one that is no longer among them does not come back.
        send: gives a message to the network.
        risk: raises by chance, where the process may end.
        story: what happens is noted here.
        chain: a bin with more parts than this is stale.
    """

    def __init__(
        self, log: Log, rows: Callable[[int], tuple[Row, ...]], alive: Collection[WorkerId],
        send: Callable[[Control], None], risk: Callable[[], None], story: Story, chain: int,
    ) -> None:  # fmt: skip
        self.log, self.rows, self.alive, self.send, self.risk = log, rows, alive, send, risk
        self.story, self.chain = story, chain
        self.epoch = log.claim()
        self.version, self.owner = log.last.version, log.last.owner
        self.protocol = journal.from_json(json.loads(log.last.journal))
        self.held: dict[Seat, Bins] = {}
        self.asked: list[Callable[[Owners], Event]] = []
        """What the user wants, made into events before the next version."""
        self.past: list[Committed] = []
        self.trying: Attempt | None = None
        self._attempts = 0

    def carry(self, event: Event) -> list[Instruction]:
        """Give an event to the protocol."""
        told = self.protocol.on(event)
        self.story += [Ended(self.epoch, self.owner, each) for each in told if isinstance(each, Finished)]
        return told

    def lose(self, workers: Collection[WorkerId]) -> None:
        """Workers have lost what they held."""
        self.held = {seat: held for seat, held in self.held.items() if seat[1] not in workers}
        self.carry(Lost(frozenset(workers)))

    def tick(self, now: int) -> None:
        """Begin the next version, or this one again if reports are missing for too long."""
        if self.trying is None or now - self.trying.since > WAITS:
            self.open(now)

    def open(self, now: int) -> None:
        """Begin an attempt at the next version."""
        if self.trying is None:
            asked, self.asked = self.asked, []
            for ask in asked:
                self.carry(ask(self.owner))
        self._replace_gone()
        version = self.version + 1
        self._attempts += 1
        token = Token(self.epoch, version, self._attempts)
        told = self.carry(Opened(version, version, self._stale()))
        owner = [list(each) for each in self.owner]
        for shift in (shift for each in told if isinstance(each, Flip) for shift in each.shifts):
            owner[shift.stage][shift.bin] = shift.target
        owners = tuple(map(tuple, owner))
        workers = {worker for each in owners for worker in each} | self.protocol.workers
        seats = [(stage, worker) for stage in range(len(owners)) for worker in sorted(workers)]
        self.trying = Attempt(token, owners, now, frozenset(seats))
        self.story.append(Tried(token, owners, tuple(told)))
        for seat in seats:
            self.send(self._control(token, seat, owners[seat[0]], told))

    def _control(self, token: Token, seat: Seat, owner: tuple[WorkerId, ...], told: Collection[Instruction]) -> Control:
        stage, worker = seat
        size = len(owner)
        mine = [each for each in told if isinstance(each, Hold | Copy | Snapshot) and (each.stage, each.worker) == seat]
        owned = np.array([each == worker for each in owner], np.bool_)
        copied = [bin_ for each in mine if isinstance(each, Copy) for bin_ in each.bins]
        held = owned.copy()
        held[copied + [bin_ for each in mine if isinstance(each, Hold) for bin_ in each.bins]] = True
        needed = owned.copy()
        needed[copied] = True
        loadable = needed & ~self.held[seat] if seat in self.held else needed
        wanted = Wanted(token.version, owned, held, loadable, np.array(copied, np.int64))
        before = self.version
        return Control(
            token, stage, worker, wanted,
            advance={bin_: self.log.delta((stage, bin_), before) for bin_ in _members(held)} if before >= 0 else {},
            load={bin_: self.log.parts((stage, bin_), before) for bin_ in _members(loadable)},
            written=tuple(bin_ for each in mine if isinstance(each, Snapshot) for bin_ in each.bins),
            rows=tuple(row for row in self.rows(token.version) if owned[bin_of(stage, row.key, size)]),
        )  # fmt: skip

    def _stale(self) -> frozenset[Place]:
        coming = {shift[:2] for step in self.protocol.steps for shift in step.shifts}
        return frozenset(place for place in coming if len(self.log.parts(place, self.version)) > self.chain)

    def _replace_gone(self) -> None:
        """Give the bins of workers that will not come back to others: to one that has them, if there is one."""
        owning = {worker for each in self.owner for worker in each}
        gone = (owning | self.protocol.workers) - set(self.alive)
        if not gone:
            return
        stay = sorted(owning - gone) or sorted(self.alive)
        owner = [list(each) for each in self.owner]
        for stage, each in enumerate(owner):
            for bin_, worker in enumerate(each):
                if worker in gone:
                    having = [w for w in stay if (stage, w) in self.held and self.held[stage, w][bin_]]
                    each[bin_] = having[0] if having else stay[bin_ % len(stay)]
        self.owner = tuple(map(tuple, owner))
        self.held = {seat: held for seat, held in self.held.items() if seat[1] not in gone}
        self.carry(Gone(frozenset(gone)))

    def on(self, report: Report, now: int) -> None:
        """Take a report; when all of an attempt are in, commit it."""
        trying = self.trying
        if trying is None or report.token != trying.token:
            return
        if report.lacks:
            self.lose({report.worker})
            self.open(now)
            return
        trying.reports.setdefault((report.stage, report.worker), report)
        if trying.reports.keys() == trying.seats:
            self._commit(trying)

    def _commit(self, trying: Attempt) -> None:
        reports = [trying.reports[seat] for seat in sorted(trying.seats)]
        commit = Commit(
            trying.token.version, trying.token, trying.owner,
            deltas={(each.stage, bin_): new for each in reports for bin_, new in each.delta.items()},
            written={(each.stage, bin_): new for each in reports for bin_, new in each.written.items()},
            output=tuple(
                tuple(told for each in reports if each.stage == stage for told in each.output)
                for stage in range(len(trying.owner))
            ),
            journal=json.dumps(journal.to_json(self.protocol)),
        )  # fmt: skip
        self.risk()
        self.log.append(commit)
        self.story.append(commit)
        self.risk()
        self.version, self.owner, self.trying = commit.version, commit.owner, None
        self.held = {(each.stage, each.worker): each.held for each in reports}
        event = Committed(commit.version, self.held, tuple(each.trouble for each in reports if each.trouble))
        self.past = [*self.past[-2:], event]
        self.carry(event)


def _members(bins: Bins) -> list[BinId]:
    return [BinId(bin_) for bin_ in np.flatnonzero(bins).tolist()]
