"""The protocol of a migration as a state machine: events in, instructions out, nothing else.

    planned -> copying -> ready -> flipped -> released          each step of a migration, in their order
       ^_________|_________|         a target that was lost has to be given its copies again: the step is returned

A version is the clock. When one opens, the machine says who owns what in it (`Flip`), who holds more than it owns
(`Hold`), and what is to be copied (`Copy`) or written so that it can be copied soon (`Snapshot`); a copy that nobody
is to hold any more goes. Only when that version is committed has any of it happened: a version that opens again,
because its first attempt was lost, gets instructions anew. What a worker holds is what it has reported, never what it
was sent.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from meander.errors import Damaged
from meander.migration.orders import (
    Bins,
    Cancelled,
    Committed,
    Copy,
    Entered,
    Event,
    Finished,
    Flip,
    Gone,
    Held,
    Hold,
    Instruction,
    Lost,
    Opened,
    Outcome,
    Phase,
    Planned,
    Snapshot,
)
from meander.migration.steps import CopyBudget, Json, OperatorMove, Step, restated
from meander.types import BinId, Bytes, WorkerId

OPEN_STEPS = 4
"""So many steps may be copied ahead of the one that flips next: else one step would wait for another's snapshot."""


@dataclass(frozen=True)
class Kept:
    """A step that has flipped, of which migration, and since when."""

    migration: int
    step: Step
    since: int


class Protocol:
    """The machine. It is deterministic: the same events give the same instructions."""

    def __init__(self) -> None:
        self.migration: int | None = None
        """The number of the migration under way."""
        self.budget = CopyBudget()
        self.steps: tuple[Step, ...] = ()
        """Those that have not flipped, in their order."""
        self.kept: tuple[Kept, ...] = ()
        self.phases: dict[int, Phase] = {}
        self.total = 0
        """How many steps the migration has in all."""
        self._ending: tuple[Outcome, str] = ("done", "")
        self._held: dict[tuple[int, WorkerId], Bins] = {}
        self._open: tuple[int, Kept | None, tuple[Kept, ...]] | None = None
        self._committed: int | None = None
        self._waited = 0

    @property
    def busy(self) -> bool:
        """Whether a migration is under way."""
        return self.migration is not None

    def wants(self, batch: int) -> bool:
        """Whether there is something to do after this batch without waiting for another one."""
        if not self.steps or self.kept:
            return self.busy
        first = self.steps[0]
        is_copied = all(self._has(move) for move in self._ahead(None))
        return first.at is None or first.at <= batch or not is_copied

    @property
    def flipping(self) -> Step | None:
        """The step that flips in the version that is open."""
        return self._open[1].step if self._open and self._open[1] else None

    @property
    def left(self) -> tuple[Step, ...]:
        """The steps that have not flipped once the version that is open is committed."""
        flip = self._open[1] if self._open else None
        if flip is None or self._ending[0] != "done":
            return self.steps
        return self.steps[1:] if flip.migration == self.migration else restated(flip.step, self.steps, self.total)

    @property
    def workers(self) -> set[WorkerId]:
        """Those who take part in the migration, whether or not they own bins."""
        taking = {worker for step in self.steps for worker in step.workers}
        return taking | {move.source for each in self.kept for move in each.step.moves}

    def on(self, event: Event) -> list[Instruction]:
        """Take an event and return what is to be done."""
        match event:
            case Planned():
                return self._plan(event)
            case Opened():
                return self._orders(event) if self.busy else []
            case Committed():
                return self._commit(event)
            case Lost(workers):
                return self._lose(workers)
            case Gone(workers):
                return self._give_up(workers)
            case Cancelled(reason):
                return self._end("cancelled", reason)

    # --- the journal -----------------------------------------------------------------------

    def to_json(self) -> Json | None:
        """What is left of the migration once the open version is committed; None where there is none under way.

        It is written with every version that is committed, so that another driver can go on from there. What a worker
        holds is not in it: after a restart nobody holds anything, and copies are made anew. Nor is what was flipped:
        the manifest says who owns each bin. A step that is not there any more has flipped.
        """
        if self.migration is None:
            return None
        left = self.left
        total = max([self.total, *(step.number + 1 for step in left)])
        steps = [step.to_json() for step in left]
        return {"migration": self.migration, "total": total, "rules": dict(vars(self.budget)), "steps": steps}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any] | None) -> Protocol:
        """The machine of which `to_json` wrote what was left; an idle one for None."""
        protocol = cls()
        if fields is None:
            return protocol
        try:
            steps = tuple(Step.from_json(each) for each in fields["steps"])
            protocol.on(Planned(fields["migration"], steps, CopyBudget(**fields["rules"])))
            protocol.total = int(fields["total"])
        except (KeyError, TypeError, ValueError) as error:
            raise Damaged(
                f"the journal of the migration cannot be read ({error!r}); restore the last manifest"
            ) from None
        ahead = {step.number for step in steps}
        protocol.phases |= {number: Phase.RELEASED for number in range(protocol.total) if number not in ahead}
        return protocol

    # --- plans -----------------------------------------------------------------------------

    def _plan(self, event: Planned) -> list[Instruction]:
        instructions: list[Instruction] = []
        if self.migration is not None:
            # All that one without steps still did was to wait for its last release.
            if self.steps:
                self._ending = ("replaced", f"by migration {event.migration}")
            instructions.append(Finished(self.migration, *self._ending))
        self.migration, self.budget, self.steps = event.migration, event.budget, event.steps
        self.phases = {step.number: Phase.PLANNED for step in event.steps}
        self.total = len(event.steps)
        self._ending = ("done", "")
        instructions += [Entered(event.migration, step.number, Phase.PLANNED) for step in event.steps]
        instructions += self._after({})
        self._waited = 0
        return instructions

    def _end(self, outcome: Outcome, reason: str) -> list[Instruction]:
        if self.migration is None:
            return []
        self._ending, self.steps = (outcome, reason), ()
        return self._finish()

    def _finish(self) -> list[Instruction]:
        """Be over once nothing is left to flip and nothing to release."""
        # A flip that was ordered happens if its version is committed, whatever has come since.
        if self.migration is None or self.steps or self.kept or self.flipping:
            return []
        number, self.migration, self._open = self.migration, None, None
        return [Finished(number, *self._ending)]

    # --- losses ----------------------------------------------------------------------------

    def _lose(self, workers: Collection[WorkerId]) -> list[Instruction]:
        for at in [at for at in self._held if at[1] in workers]:
            del self._held[at]
        instructions: list[Instruction] = []
        for step in self.steps:
            if any(move.target in workers for move in step.moves):
                some = any(self._has(move) for move in step.moves)
                instructions += self._enter(step, Phase.COPYING if some else Phase.PLANNED)
        return instructions

    def _give_up(self, workers: Collection[WorkerId]) -> list[Instruction]:
        instructions = self._lose(workers)
        hit = any(step.workers & set(workers) for step in self.steps)
        theirs = [each for each in self.kept if each.step.workers & set(workers)]
        # Who takes over a bin may be one that keeps a copy since an earlier flip: it is no longer a copy that may go.
        bins = {(move.operator, move.bin) for each in theirs for move in each.step.moves}
        instructions += self._let_go([each for each in self.kept if any(move[:2] in bins for move in each.step.moves)])
        if hit:
            gone = ", ".join(str(worker) for worker in sorted(workers))
            instructions += self._end("failed", f"worker {gone} is gone, and others have taken over its bins")
        return instructions + self._finish()

    # --- a version opens -------------------------------------------------------------------

    def _orders(self, event: Opened) -> list[Instruction]:
        flip = self._flipping(event)
        assert self.migration is not None
        flipped = Kept(self.migration, flip, event.version) if flip else None
        kept, released = self._keeping(event.version, flipped)
        self._open = (event.version, flipped, kept)
        instructions: list[Instruction] = []
        if flip is not None and flip.moves:
            instructions.append(Flip(event.version, flip.moves))
        # A copy whose bin has flipped back is its owner's again: it is not kept any more, and must not go.
        owner = {move[:2]: move.target for each in (*released, *kept) for move in each.step.moves}
        holding: dict[tuple[int, WorkerId], dict[BinId, None]] = defaultdict(dict)
        for move in (move for each in kept for move in each.step.moves):
            if owner[move[:2]] != move.source:
                holding[move.operator, move.source][move.bin] = None
        copy: dict[tuple[int, WorkerId], list[BinId]] = defaultdict(list)
        write: dict[tuple[int, WorkerId], list[BinId]] = defaultdict(list)
        left: dict[tuple[str, WorkerId], float] = {}
        for move in self._ahead(flip):
            at = (move.operator, move.target)
            if self._has(move):
                holding[at][move.bin] = None
            elif (move.operator, move.bin) in event.stale:
                if self._affords(left, ("write", move.source), move.bytes):
                    write[move.operator, move.source].append(move.bin)
            elif self._affords(left, ("copy", move.target), move.bytes):
                copy[at].append(move.bin)
        begun = {move for at, bins in [*copy.items(), *write.items()] for move in ((at[0], each) for each in bins)}
        instructions += self._begin(begun)
        instructions += [Hold(*at, tuple(bins)) for at, bins in sorted(holding.items())]
        instructions += [Copy(*at, tuple(bins)) for at, bins in sorted(copy.items())]
        return instructions + [Snapshot(*at, tuple(bins)) for at, bins in sorted(write.items())]

    def _begin(self, bins: Collection[tuple[int, BinId]]) -> list[Instruction]:
        """Steps of which bins are being copied, or written to be copied, are no longer only planned."""
        instructions: list[Instruction] = []
        for step in self.steps[: OPEN_STEPS + 1]:
            is_planned = self.phases[step.number] is Phase.PLANNED
            if is_planned and any((move.operator, move.bin) in bins for move in step.moves):
                instructions += self._enter(step, Phase.COPYING)
        return instructions

    def _enter(self, step: Step, phase: Phase) -> list[Instruction]:
        assert self.migration is not None
        if self.phases[step.number] is phase:
            return []
        self.phases[step.number] = phase
        return [Entered(self.migration, step.number, phase)]

    def _flipping(self, event: Opened) -> Step | None:
        """The step that flips in this version: the next one, if it is ready, due, or has waited too long."""
        if not self.steps:
            return None
        step = self.steps[0]
        due = step.at is not None and event.batch >= step.at
        if step.at is not None and not due:
            return None
        ready = all(self._has(move) for move in step.moves)
        return step if ready or due or step.forced or self._waited >= self.budget.patience else None

    def _keeping(self, version: int, flip: Kept | None) -> tuple[tuple[Kept, ...], tuple[Kept, ...]]:
        """The steps whose old copies stay in this version, and those whose copies go; the oldest first."""
        everything = (*self.kept, *([flip] if flip else []))
        young = [each for each in everything if version - each.since < self.budget.release_after]
        while young and sum(each.step.bytes for each in young) > self.budget.keep_bytes:
            young.pop(0)
        return tuple(young), tuple(each for each in everything if each not in young)

    def _ahead(self, flip: Step | None) -> Iterable[OperatorMove]:
        """What is to be copied, the next step first: as many steps as the budget of a few versions has room for."""
        coming = [step for step in self.steps if step is not flip]
        room = float(4 * self.budget.copy_bytes)
        for at, step in enumerate(coming[:OPEN_STEPS]):
            if step.forced or (at > 0 and room < step.bytes):
                return
            room -= step.bytes
            yield from step.moves

    def _affords(self, left: dict[tuple[str, WorkerId], float], who: tuple[str, WorkerId], size: Bytes) -> bool:
        """Whether there is room for so many bytes; the first bin always fits."""
        if who in left and left[who] < size:
            return False
        left[who] = left.get(who, float(self.budget.copy_bytes)) - size
        return True

    def _has(self, move: OperatorMove) -> bool:
        held = self._held.get((move.operator, move.target))
        return held is not None and bool(held[move.bin])

    # --- a version is committed ------------------------------------------------------------

    def _commit(self, event: Committed) -> list[Instruction]:
        if self._committed is not None and event.version <= self._committed:
            return []  # what it says about who holds what may be out of date
        self._committed = event.version
        before, self._held = self._held, dict(event.held)
        if self._open is None or event.version != self._open[0] or self.migration is None:
            return self._after(before) if self.busy else []
        (_, flip, kept), left = self._open, self.left
        self._open = None
        instructions: list[Instruction] = []
        gone = [each for each in self.kept if each not in kept]
        if flip is not None:
            self._waited = 0
            if flip.migration == self.migration:
                self.phases[flip.step.number] = Phase.FLIPPED
            instructions.append(Entered(flip.migration, flip.step.number, Phase.FLIPPED))
            for step in left:
                if step.number not in self.phases:
                    self.phases[step.number] = Phase.PLANNED
                    instructions.append(Entered(self.migration, step.number, Phase.PLANNED))
            self.steps, self.total = left, len(self.phases)
            if flip not in kept:
                gone.append(flip)
        self.kept = tuple(each for each in kept if each in self.kept or each is flip)
        instructions += self._let_go(gone)
        if event.troubles:
            return instructions + self._end("failed", event.troubles[0])
        return instructions + self._after(before) + self._finish()

    def _let_go(self, gone: Iterable[Kept]) -> list[Instruction]:
        instructions: list[Instruction] = []
        gone = list(gone)
        self.kept = tuple(each for each in self.kept if each not in gone)
        for each in gone:
            if each.migration == self.migration:
                self.phases[each.step.number] = Phase.RELEASED
            instructions.append(Entered(each.migration, each.step.number, Phase.RELEASED))
        return instructions

    def _after(self, before: Held) -> list[Instruction]:
        """Look how far the next steps are, now that it is known who holds what."""
        if self.migration is None:
            return []
        instructions: list[Instruction] = []
        gained = not self.steps
        for step in self.steps[: OPEN_STEPS + 1]:
            have = [self._has(move) for move in step.moves]
            if all(have):
                instructions += self._enter(step, Phase.READY)
            elif any(have) or self.phases[step.number] is Phase.READY:
                instructions += self._enter(step, Phase.COPYING)
            if step is self.steps[0]:
                gained = all(have) or sum(have) > sum(_of(before, move) for move in step.moves)
        self._waited = 0 if gained else self._waited + 1
        return instructions + self._finish()


def _of(held: Held, move: OperatorMove) -> bool:
    bins = held.get((move.operator, move.target))
    return bins is not None and bool(bins[move.bin])
