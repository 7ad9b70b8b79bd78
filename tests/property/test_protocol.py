"""The protocol by itself, over stories of versions, losses and plans in which everything goes wrong."""

import json
import random
from collections import Counter, defaultdict

import hypothesis
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples
from meander.migration.control_rows import ControlRow, ControlRows
from meander.migration.orders import (
    Cancelled,
    Committed,
    Controlled,
    Copy,
    Entered,
    Finished,
    Flip,
    Gone,
    Hold,
    Lost,
    Opened,
    Phase,
    Planned,
    Snapshot,
)
from meander.migration.protocol import Protocol
from meander.migration.steps import CopyBudget, OperatorMove, Step

# A seed means nothing to its neighbours, so there is nothing to be gained by looking for a smaller one.
by_seed = settings(examples(60), phases=[p for p in hypothesis.Phase if p is not hypothesis.Phase.shrink])
seeds = st.integers(0, 2**32)


class Story:
    """A query whose workers are sets of bins; it does what the protocol says, and knows the whole truth."""

    def __init__(self, seed, eager=False):
        self.rng = random.Random(seed)
        self.eager = eager
        """No step is forced, and patience is endless: nothing may flip before it is copied."""
        self.bins, self.operators = self.rng.choice([1, 5, 8]), self.rng.choice([1, 1, 2])
        self.alive = set(self.rng.choice([(0, 4), (0, 2, 3, 7)]))
        self.owners = [self.some_owners() for _ in range(self.operators)]
        self.has = defaultdict(set)
        self.protocol, self.version, self.count = Protocol(), 0, 0
        self.targets, self.orders = {}, []
        self.phases, self.ways, self.seen = {}, Counter(), Counter()
        self.control = ControlRows()

    def some_owners(self):
        return [self.rng.choice(sorted(self.alive)) for _ in range(self.bins)]

    # --- events ----------------------------------------------------------------------------------

    def on(self, event):
        told = self.protocol.on(event)
        for each in told:
            match each:
                case Entered(migration, step, phase):
                    self.ways[self.phases.get((migration, step)), phase] += 1
                    self.phases[migration, step] = phase
                case Finished(migration, outcome, _):
                    self.seen[outcome] += 1
                    if outcome == "done":
                        self.check_target(self.targets[migration])
        self.seen.update(type(each).__name__ for each in told)
        return told

    def plan(self):
        target = [self.some_owners() for _ in range(self.operators)]
        moves = [
            OperatorMove(operator, bin_, self.owners[operator][bin_], goal, self.rng.choice([1, 30]))
            for operator in range(self.operators)
            for bin_, goal in enumerate(target[operator])
            if goal != self.owners[operator][bin_]
        ]
        self.rng.shuffle(moves)
        steps = []
        while moves:
            size = self.rng.randint(1, 4)
            steps.append(self.step(len(steps), moves[:size]))
            moves = moves[size:]
        self.count += 1
        self.targets[self.count] = target
        budget = CopyBudget(
            copy_bytes=self.rng.choice([1, 40, 1 << 20]), release_after=self.rng.choice([0, 1, 2, 5]),
            keep_bytes=self.rng.choice([0, 30, 1 << 20]),
            patience=1 << 20 if self.eager else self.rng.choice([1, 3, 9]),
        )  # fmt: skip
        self.on(Planned(self.count, tuple(steps), budget))

    def steer(self):
        """Rows of a control stream come, for batches after the one that is open."""
        rows = [
            ControlRow(
                self.version + self.rng.randint(1, 5), self.rng.randrange(self.operators),
                self.rng.randrange(self.bins), self.rng.choice(sorted(self.alive)),
            )
            for _ in range(self.rng.randint(1, 4))
        ]  # fmt: skip
        self.control = self.control.with_rows(rows, CopyBudget(release_after=self.rng.choice([0, 2])))
        self.see_control()

    def see_control(self):
        owners = [np.array(each) for each in self.owners]
        self.on(Controlled(self.control.steps(owners, [[10] * self.bins] * self.operators), self.control.budget))

    def step(self, number, moves):
        chance = 1.0 if self.eager else self.rng.random()
        at = self.version + self.rng.randint(0, 5) if chance < 0.1 else None
        joins = number > 0 and self.rng.random() < 0.5
        return Step(number, tuple(moves), at, forced=0.1 < chance < 0.2, joins=joins)

    def lose(self, worker):
        self.has = defaultdict(set, {at: bins for at, bins in self.has.items() if at[1] != worker})

    def let_go(self, worker):
        """A worker is gone for good, and others take over its bins."""
        self.alive.discard(worker)
        self.lose(worker)
        for owners in self.owners:
            owners[:] = [self.rng.choice(sorted(self.alive)) if owner == worker else owner for owner in owners]
        self.control = self.control.without({worker})

    def disturb(self):
        chance = self.rng.random()
        if chance < 0.25:
            worker = self.rng.choice(sorted(self.alive))
            self.lose(worker)
            self.on(Lost(frozenset({worker})))
        elif chance < 0.32 and len(self.alive) > 1:
            worker = self.rng.choice(sorted(self.alive))
            self.let_go(worker)
            self.on(Gone(frozenset({worker})))
            self.see_control()
        elif chance < 0.37:
            self.on(Cancelled("enough"))
        elif chance < 0.6:
            self.plan()
        elif chance < 0.75 and not self.eager:
            self.steer()

    # --- versions --------------------------------------------------------------------------------

    def open(self):
        stale = frozenset(
            (operator, bin_)
            for operator in range(self.operators)
            for bin_ in range(self.bins)
            if self.rng.random() < 0.1
        )
        event = Opened(self.version, self.version, stale)
        told = [each for each in self.on(event) if not isinstance(each, Entered)]
        again = [each for each in self.on(event) if not isinstance(each, Entered)]
        assert again == told, "a version that opens again is as it was, unless something has happened"
        self.check_orders(told)
        self.orders = told

    def owners_then(self, orders):
        owners = [list(each) for each in self.owners]
        for move in (move for told in orders if isinstance(told, Flip) for move in told.moves):
            owners[move.operator][move.bin] = move.target
        return owners

    def commit(self):
        resumed = Protocol.from_json(json.loads(json.dumps(self.protocol.to_json())))
        assert resumed.steps == self.protocol.left
        self.owners = self.owners_then(self.orders)
        for row in self.control.rows:
            if row.batch == self.version:
                self.seen["row"] += 1
                assert self.owners[row.operator][row.bin] == row.worker, f"{row} is not in effect"
                for target in self.targets.values():  # it decides for every plan that was made before
                    target[row.operator][row.bin] = row.worker
        beside = defaultdict(set)
        for told in self.orders:
            match told:
                case Hold(operator, worker, bins):
                    beside[operator, worker] |= set(bins) & self.has[operator, worker]
                case Copy(operator, worker, bins):
                    beside[operator, worker] |= {bin_ for bin_ in bins if self.rng.random() < 0.6}
        self.has = defaultdict(set)
        for operator in range(self.operators):
            for worker in self.alive:
                own = {bin_ for bin_, owner in enumerate(self.owners[operator]) if owner == worker}
                self.has[operator, worker] = own | beside[operator, worker]
        self.on(Committed(self.version, {at: self.flags(bins) for at, bins in self.has.items()}))
        if resumed.busy:
            assert self.protocol.steps == resumed.steps, "who starts again goes on where this one is"
        self.control = self.control.after(self.version)
        self.see_control()
        self.version += 1

    def flags(self, bins):
        return np.isin(np.arange(self.bins), sorted(bins))

    def live(self, versions=60):
        for _ in range(versions):
            self.open()
            while self.rng.random() < 0.3:
                self.disturb()
                # What comes while a flip is under way does not undo it, where it is committed after all.
                if self.rng.random() < 0.8 or not self.is_still_possible():
                    self.open()
            self.commit()
        return self

    def is_still_possible(self):
        """Whether the attempt that is under way can still succeed: everyone who takes part is there."""
        return all(owner in self.alive for each in self.owners_then(self.orders) for owner in each)

    def settle(self):
        """Nothing goes wrong any more: whatever is under way ends, and how soon is known."""
        protocol, budget = self.protocol, self.protocol.budget
        steps, patience = protocol.steps, budget.patience
        dated = (*steps, *protocol.control)
        last = max((step.at - self.version for step in dated if step.at is not None), default=0)
        for _ in range(
            sum((len(s.moves) + 2) * (patience + 1) for s in steps) + max(0, last) + budget.release_after + 4
        ):
            if not protocol.busy:
                break
            self.open()
            self.commit()
        assert not protocol.busy
        assert not protocol.kept

    # --- what must hold --------------------------------------------------------------------------

    def check_orders(self, orders):
        after = self.owners_then(orders)
        for told in orders:
            match told:
                case Flip(version, moves):
                    assert version == self.version
                    self.seen["together"] += len(self.protocol.flipping) > 1
                    for move in moves:
                        assert self.owners[move.operator][move.bin] == move.source, (
                            f"{move} is not its source's to give"
                        )
                        has = move.bin in self.has[move.operator, move.target]
                        assert has or not self.eager, f"{move} flips before it is copied"
                case Hold(operator, worker, bins) | Copy(operator, worker, bins):
                    assert all(after[operator][bin_] != worker for bin_ in bins), f"{told} of bins it owns"
                case Snapshot(operator, worker, bins):
                    assert all(after[operator][bin_] == worker for bin_ in bins), f"{told} of bins of others"
        assert len([told for told in orders if isinstance(told, Flip)]) <= 1

    def check_target(self, target):
        for owners, goal in zip(self.owners, target, strict=True):
            for owner, wanted in zip(owners, goal, strict=True):
                assert owner == wanted or wanted not in self.alive, f"done, and elsewhere: {owners}, {goal}"


@by_seed
@given(seeds)
def test_orders_make_sense_whatever_happens_and_the_journal_is_what_is_left(seed):
    story = Story(seed).live()
    story.settle()


@by_seed
@given(seeds)
def test_with_time_enough_a_bin_flips_only_once_its_target_has_said_that_it_holds_it(seed):
    Story(seed, eager=True).live()


@by_seed
@given(seeds)
def test_a_plan_made_when_all_is_quiet_is_in_effect_in_the_end(seed):
    story = Story(seed).live(30)
    story.settle()
    story.plan()
    target = story.targets[story.count]
    story.settle()
    assert story.owners == target
    assert story.protocol.phases == dict.fromkeys(story.protocol.phases, Phase.RELEASED)


def test_all_that_can_happen_happens():
    """Else the properties would be about less than they say."""
    seen = sum((Story(seed).live().seen for seed in range(40)), Counter())
    rare = {"done", "replaced", "cancelled", "failed", "Flip", "Hold", "Copy", "Snapshot", "row", "together"}
    assert not {name for name in rare if seen[name] < 5}, seen


def test_phases_only_go_the_ways_that_are_drawn():
    """planned -> copying -> ready -> flipped -> released, and back to planned or copying before the flip."""
    ways = sum((Story(seed).live().ways for seed in range(20)), Counter())
    early = {Phase.PLANNED, Phase.COPYING, Phase.READY}
    drawn = {(a, b) for a in early for b in {*early, Phase.FLIPPED} if a is not b} | {(Phase.FLIPPED, Phase.RELEASED)}
    drawn.add((None, Phase.PLANNED))
    assert set(ways) <= drawn, set(ways) - drawn
    assert {(Phase.COPYING, Phase.READY), (Phase.READY, Phase.FLIPPED), (Phase.READY, Phase.PLANNED)} <= set(ways)


def test_the_same_events_give_the_same_instructions():
    one, two = (Story(11).live() for _ in range(2))
    assert one.seen == two.seen
    assert one.owners == two.owners
    assert one.protocol.to_json() == two.protocol.to_json()
