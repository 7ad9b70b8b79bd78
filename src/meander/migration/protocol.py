"""The protocol of a migration as a state machine: events in, instructions out, nothing else.

    planned -> copying -> ready -> flipped -> released          each step of a migration, in their order
       ^_________|_________|         a target that was lost has to be given its copies again: the step is returned

A version is the clock. When one opens, the machine says who owns what in it (`Flip`), who holds more than it owns
(`Hold`), and what is to be copied (`Copy`) or written so that it can be copied soon (`Snapshot`); a copy that nobody
is to hold any more goes. Only when that version is committed has any of it happened: a version that opens again,
because its first attempt was lost, gets instructions anew. What a worker holds is what it has reported, never what it
was sent.

Beside the steps of the plan under way there are those of the control stream. They have no phases: each flips at its
batch, copied or not, and the plan leaves the bins alone that it decides about.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from meander.errors import Damaged
from meander.migration.control_rows import ControlStep, due
from meander.migration.orders import (
    Bins,
    Cancelled,
    Committed,
    Controlled,
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
from meander.migration.steps import COPY_BYTES, CopyBudget, Json, OperatorMove, Step, restated
from meander.types import BinId, Bytes, WorkerId

OPEN_STEPS = 4
"""So many steps may be copied ahead of the one that flips next: else one step would wait for another's snapshot."""

SEEN_STEPS = 2 * OPEN_STEPS
"""So many steps a version may be about: those that flip together in it, and those that are copied meanwhile."""


@dataclass(frozen=True)
class Kept:
    """A step that has flipped, of which migration, and since when; the control stream is no migration."""

    migration: int | None
    step: Step
    since: int


class Protocol:
    """The machine. It is deterministic: the same events give the same instructions."""

    def __init__(self) -> None:
        self.migration: int | None = None
        """The number of the migration under way."""
        self.control: tuple[ControlStep, ...] = ()
        """What the control stream has decided, by batch."""
        self.steps: tuple[Step, ...] = ()
        """Those that have not flipped, in their order."""
        self.kept: tuple[Kept, ...] = ()
        self.phases: dict[int, Phase] = {}
        self.total = 0
        """How many steps the migration has in all."""
        self._ending: tuple[Outcome, str] = ("done", "")
        self._held: dict[tuple[int, WorkerId], Bins] = {}
        self._plan_budget, self._control_budget = CopyBudget(), CopyBudget()
        self._open: tuple[int, tuple[Kept, ...], tuple[Kept, ...]] | None = None
        self._committed: int | None = None
        self._measured_bytes: Bytes = COPY_BYTES
        self._waited = 0

    @property
    def busy(self) -> bool:
        """Whether anything is to be flipped, or released."""
        return self.migration is not None or bool(self.control or self.kept)

    @property
    def budget(self) -> CopyBudget:
        """How much is copied at a time: what the migration under way says, or else the control stream."""
        return self._control_budget if self.migration is None else self._plan_budget

    def wants(self, batch: int) -> bool:
        """Whether there is something to do after this batch without waiting for another one."""
        if self.kept or not all(self._has(move) for move in self._ahead(self.control, self.steps)):
            return True
        if not self.steps:
            return self.migration is not None
        first = self.steps[0]
        return first.at is None or first.at <= batch

    @property
    def flipping(self) -> tuple[Step, ...]:
        """The steps of a plan that flip in the version that is open."""
        return tuple(each.step for each in self._flips if each.migration is not None)

    @property
    def _flips(self) -> tuple[Kept, ...]:
        return self._open[1] if self._open else ()

    @property
    def left(self) -> tuple[Step, ...]:
        """The steps of the plan that have not flipped once the version that is open is committed."""
        steps, moved = self.steps, list[OperatorMove]()
        for flip in self._flips:
            if isinstance(flip.step, ControlStep):
                steps = _without(steps, flip.step.bins)
            elif self._ending[0] == "done" and flip.migration == self.migration:
                steps = steps[1:]
            elif self._ending[0] == "done":
                moved += flip.step.moves
        return restated(moved, steps, self.total) if moved else steps

    @property
    def workers(self) -> set[WorkerId]:
        """Those who give, take or keep bins, whether or not they own any."""
        keeping = {move.source for each in self.kept for move in each.step.moves}
        return keeping.union(*(step.workers for step in (*self.control, *self.steps)))

    def on(self, event: Event) -> list[Instruction]:
        """Take an event and return what is to be done."""
        match event:
            case Planned():
                return self._plan(event)
            case Controlled(steps, budget):
                self.control, self._control_budget = steps, budget
                return []
            case Opened():
                self._open = None  # what an earlier attempt was to flip may not be wanted any more
                self._measured_bytes = event.copy_bytes
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
        self.migration, self._plan_budget, self.steps = event.migration, event.budget, event.steps
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
        is_kept = any(each.migration is not None for each in self.kept)
        # A flip that was ordered happens if its version is committed, whatever has come since.
        if self.migration is None or self.steps or is_kept or self.flipping:
            return []
        number, self.migration = self.migration, None
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
        decided = due(self.control, event.batch)
        steps = self.steps if decided is None else _without(self.steps, decided.bins)
        ready = self._flipping(steps, event)
        now = ((None, decided), *((self.migration, step) for step in ready))
        flips = tuple(Kept(migration, step, event.version) for migration, step in now if step is not None)
        kept, released = self._keeping(event.version, flips)
        self._open = (event.version, flips, kept)
        instructions: list[Instruction] = []
        if moves := tuple(move for each in flips for move in each.step.moves):
            instructions.append(Flip(event.version, moves))
        # A copy whose bin has flipped back is its owner's again: it is not kept any more, and must not go.
        last_owner = {move[:2]: move.target for each in (*released, *kept) for move in each.step.moves}
        holding: dict[tuple[int, WorkerId], dict[BinId, None]] = defaultdict(dict)
        for move in (move for each in kept for move in each.step.moves):
            if last_owner[move[:2]] != move.source:
                holding[move.operator, move.source][move.bin] = None
        copy: dict[tuple[int, WorkerId], dict[BinId, None]] = defaultdict(dict)
        write: dict[tuple[int, WorkerId], dict[BinId, None]] = defaultdict(dict)
        left: dict[tuple[str, WorkerId], float] = {}
        begun: set[OperatorMove] = set()
        later = [step for step in self.control if step.at is not None and step.at > event.batch]
        new_owner = {move[:2]: move.target for move in moves}
        for move in self._ahead(later, steps[len(ready) :]):
            owner = new_owner.get(move[:2], move.source)
            at, source = (move.operator, move.target), (move.operator, owner)
            if owner == move.target:
                continue
            if self._has(move):
                holding[at][move.bin] = None
            elif (move.operator, move.bin) in event.stale:
                if move.bin in write[source] or self._affords(left, ("write", owner), move.bytes):
                    write[source][move.bin] = None
                    begun.add(move)
            elif move.bin in copy[at] or self._affords(left, ("copy", move.target), move.bytes):
                copy[at][move.bin] = None
                begun.add(move)
        instructions += self._begin(begun)
        instructions += [Hold(*at, tuple(bins)) for at, bins in sorted(holding.items())]
        instructions += [Copy(*at, tuple(bins)) for at, bins in sorted(copy.items()) if bins]
        return instructions + [Snapshot(*at, tuple(bins)) for at, bins in sorted(write.items()) if bins]

    def _begin(self, begun: Collection[OperatorMove]) -> list[Instruction]:
        """Steps of which bins are being copied, or written to be copied, are no longer only planned."""
        instructions: list[Instruction] = []
        for step in self.steps[:SEEN_STEPS]:
            is_planned = self.phases[step.number] is Phase.PLANNED
            if is_planned and any(move in begun for move in step.moves):
                instructions += self._enter(step, Phase.COPYING)
        return instructions

    def _enter(self, step: Step, phase: Phase) -> list[Instruction]:
        assert self.migration is not None
        if self.phases[step.number] is phase:
            return []
        self.phases[step.number] = phase
        return [Entered(self.migration, step.number, phase)]

    def _flipping(self, steps: Sequence[Step], event: Opened) -> Sequence[Step]:
        """The steps that flip in this version: the next one, if it is ready, due, or has waited too long.

        And those behind it that may join it, as far as they are ready and are about other bins.
        """
        if not steps:
            return ()
        step = steps[0]
        due = step.at is not None and event.batch >= step.at
        if step.at is not None and not due:
            return ()
        if not (due or step.forced or self._is_ready(step) or self._waited >= self.budget.patience):
            return ()
        bins: set[tuple[int, BinId]] = set()
        for count, step in enumerate(steps):
            mine = {move[:2] for move in step.moves}
            if count > 0 and not (step.joins and self._is_ready(step) and not mine & bins):
                return steps[:count]
            bins |= mine
        return steps

    def _is_ready(self, step: Step) -> bool:
        return all(self._has(move) for move in step.moves)

    def _keeping(self, version: int, flips: Iterable[Kept]) -> tuple[tuple[Kept, ...], tuple[Kept, ...]]:
        """The steps whose old copies stay in this version, and those whose copies go; the oldest first."""
        everything = (*self.kept, *flips)
        young = [each for each in everything if version - each.since < self.budget.release_after]
        while young and sum(each.step.bytes for each in young) > self.budget.keep_bytes:
            young.pop(0)
        return tuple(young), tuple(each for each in everything if each not in young)

    def _ahead(self, *lists: Sequence[Step]) -> Iterable[OperatorMove]:
        """What is to be copied, of each list the next step first: as many as a few versions' budget has room for.

        A bin that moves more than once is copied from its owner of today to each of its next ones.
        """
        for steps in lists:
            room = float(OPEN_STEPS * self._copy_bytes)
            owner: dict[tuple[int, BinId], WorkerId] = {}
            for at, step in enumerate(steps[:OPEN_STEPS]):
                # What is there already stays, however little can be copied now.
                missing = sum(move.bytes for move in step.moves if not self._has(move))
                if step.forced or (at > 0 and room < missing):
                    break
                room -= missing
                for move in step.moves:
                    source = owner.setdefault(move[:2], move.source)
                    if move.target != source:
                        yield move._replace(source=source)

    def _affords(self, left: dict[tuple[str, WorkerId], float], who: tuple[str, WorkerId], size: Bytes) -> bool:
        """Whether there is room for so many bytes; the first bin always fits."""
        if who in left and left[who] < size:
            return False
        left[who] = left.get(who, float(self._copy_bytes)) - size
        return True

    @property
    def _copy_bytes(self) -> Bytes:
        """What a worker may copy in a version: as the budget says, or as was measured."""
        return self._measured_bytes if self.budget.copy_bytes is None else self.budget.copy_bytes

    def _has(self, move: OperatorMove) -> bool:
        held = self._held.get((move.operator, move.target))
        return held is not None and bool(held[move.bin])

    # --- a version is committed ------------------------------------------------------------

    def _commit(self, event: Committed) -> list[Instruction]:
        if self._committed is not None and event.version <= self._committed:
            return []  # what it says about who holds what may be out of date
        self._committed = event.version
        before, self._held = self._held, dict(event.held)
        if self._open is None or event.version != self._open[0]:
            return self._after(before)
        (_, flips, kept), left = self._open, self.left
        self._open = None
        instructions: list[Instruction] = []
        for flip in flips:
            if flip.migration is not None:
                self._waited = 0
                instructions += self._note(flip, Phase.FLIPPED)
        if flips and self.migration is not None:
            new = [step for step in left if step.number not in self.phases]
            self.phases |= {step.number: Phase.PLANNED for step in new}
            instructions += [Entered(self.migration, step.number, Phase.PLANNED) for step in new]
            self.steps, self.total = left, len(self.phases)
        gone = [each for each in (*self.kept, *flips) if each not in kept]
        self.kept = tuple(each for each in kept if each in self.kept or each in flips)
        instructions += self._let_go(gone)
        if event.troubles:
            return instructions + self._end("failed", event.troubles[0])
        return instructions + self._after(before) + self._finish()

    def _let_go(self, gone: Iterable[Kept]) -> list[Instruction]:
        instructions: list[Instruction] = []
        gone = list(gone)
        self.kept = tuple(each for each in self.kept if each not in gone)
        for each in gone:
            instructions += self._note(each, Phase.RELEASED)
        return instructions

    def _note(self, each: Kept, phase: Phase) -> list[Instruction]:
        """A step has flipped, or is released; those of the control stream have no phases."""
        if each.migration is None:
            return []
        if each.migration == self.migration:
            self.phases[each.step.number] = phase
        return [Entered(each.migration, each.step.number, phase)]

    def _after(self, before: Held) -> list[Instruction]:
        """Look how far the next steps are, now that it is known who holds what."""
        if self.migration is None:
            return []
        instructions: list[Instruction] = []
        gained = not self.steps
        for step in self.steps[:SEEN_STEPS]:
            have = [self._has(move) for move in step.moves]
            if all(have):
                instructions += self._enter(step, Phase.READY)
            elif any(have) or self.phases[step.number] is Phase.READY:
                instructions += self._enter(step, Phase.COPYING)
            if step is self.steps[0]:
                gained = all(have) or sum(have) > sum(_of(before, move) for move in step.moves)
        self._waited = 0 if gained else self._waited + 1
        return instructions + self._finish()


def _without(steps: Sequence[Step], bins: Collection[tuple[int, BinId]]) -> tuple[Step, ...]:
    """The same steps, but for moves of these bins."""
    return tuple(replace(step, moves=tuple(move for move in step.moves if move[:2] not in bins)) for step in steps)


def _of(held: Held, move: OperatorMove) -> bool:
    bins = held.get((move.operator, move.target))
    return bins is not None and bool(bins[move.bin])
