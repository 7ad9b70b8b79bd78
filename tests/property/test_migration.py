"""Megaphone's three properties, and what must hold in every step, over streams in which everything goes wrong."""

import heapq
from collections import Counter, defaultdict
from dataclasses import replace
from functools import partial
from itertools import count

import hypothesis
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meander.migration import journal, simulated_worker, simulator
from meander.migration.protocol import Copy, Entered, Flip, Hold, Phase, Protocol, Release, Snapshot
from meander.migration.simulated_controller import Commit, Controller, Did, Ended, Tried
from meander.migration.simulated_worker import Misled, bin_of
from meander.migration.simulator import Faults, Shape, Simulation, Stuck

# A seed means nothing to its neighbours, so there is nothing to be gained by looking for a smaller one.
phases = [hypothesis.Phase.explicit, hypothesis.Phase.reuse, hypothesis.Phase.generate]
patient = partial(settings, deadline=None, max_examples=50, phases=phases)

faults = st.one_of(
    st.builds(Faults.many, st.sampled_from([0.01, 0.03, 0.1])),
    st.builds(
        Faults,
        lose=st.sampled_from([0.0, 0.02]), repeat=st.sampled_from([0.0, 0.2]), late=st.sampled_from([0.0, 0.1]),
        die=st.sampled_from([0.0, 0.01]), lost=st.sampled_from([0.0, 0.01]), gone=st.sampled_from([0.0, 0.002]),
        crash=st.sampled_from([0.0, 0.02]), usurp=st.sampled_from([0.0, 0.01]), plan=st.sampled_from([0.03, 0.1]),
        cancel=st.sampled_from([0.0, 0.02]), busy=st.sampled_from([0.0, 0.8]), trouble=st.sampled_from([0.0, 0.01]),
        remind=st.sampled_from([0.0, 0.1]),
    ),
)  # fmt: skip
shapes = st.builds(
    Shape,
    bins=st.sampled_from([1, 5, 8]), stages=st.sampled_from([1, 1, 2]), workers=st.sampled_from([(0, 4), (0, 2, 3, 7)]),
    keys=st.sampled_from([4, 24]), chain=st.sampled_from([1, 3, 30]),
)  # fmt: skip
seeds = st.integers(0, 2**32)


class Oracle:
    """One thread and one heap: records and post-dated records, in the order of their times."""

    def __init__(self):
        self.heap, self.serial, self.totals, self.done = [], count(), Counter(), -1
        self.output, self.states = {}, {-1: {}}

    def up_to(self, version, rows):
        while self.done < version:
            self.done += 1
            now, output = self.done, defaultdict(list)
            for row in rows[now]:
                heapq.heappush(self.heap, (now, 1, next(self.serial), row.key, row.value))
            while self.heap and self.heap[0][0] == now:
                _, _, _, key, value = heapq.heappop(self.heap)
                self.totals[key] += value
                output[key].append((value, self.totals[key]))
                if value > 1:
                    heapq.heappush(self.heap, (now + 1 + value % 3, 0, next(self.serial), key, value - 1))
            self.output[now] = dict(output)
            coming = {key: [] for key in self.totals}
            for when, _, _, key, value in sorted(self.heap, key=lambda each: each[2]):
                coming[key].append((when, value))
            self.states[now] = {key: (total, tuple(coming[key])) for key, total in self.totals.items()}


class Watch:
    """What must hold after every step; it knows the whole truth, which nobody in the simulation does."""

    def __init__(self, eager=False):
        self.oracle, self.read, self.eager = Oracle(), 0, eager
        self.tried, self.did = {}, defaultdict(lambda: defaultdict(set))
        self.updates, self.known = {}, {}

    def __call__(self, stream):
        self.oracle.up_to(stream.version, stream.input)
        for each in stream.story[self.read :]:
            match each:
                case Tried():
                    self.tried[each.token] = each
                    self.orders_make_sense(stream, each)
                case Did():
                    for bin_ in each.bins:
                        self.did[each.token][each.stage, bin_].add(each.worker)
                case Commit():
                    self.commit_is_right(stream, each)
                case Ended():
                    self.end_is_the_target(stream, each)
        self.read = len(stream.story)
        self.bins_are_whole(stream)

    def bins_are_whole(self, stream):
        """Whoever holds a bin holds all of it, as of the version it says, and that version is committed."""
        for worker in stream.workers.values():
            if worker.torn or not worker.bins:
                continue
            truth = self.truth(worker.stage, worker.version, stream.shape.bins)
            for bin_, contents in worker.bins.items():
                assert contents == truth[bin_], f"worker {worker.worker}, bin {bin_} as of {worker.version}"

    def truth(self, stage, version, bins):
        if (stage, version) not in self.known:
            found = self.known[stage, version] = [{} for _ in range(bins)]
            for key, state in self.oracle.states[version].items():
                found[bin_of(stage, key, bins)][key] = state
        return self.known[stage, version]

    def orders_make_sense(self, stream, tried):
        before = next(each for each in stream.log.commits if each.version == tried.token.version - 1).owner
        beside = defaultdict(set)
        for told in tried.told:
            match told:
                case Flip(version, shifts):
                    assert version == tried.token.version
                    for shift in shifts:
                        was = before[shift.stage][shift.bin]
                        assert was == shift.source or was not in stream.alive, f"{shift} is not its source's to give"
                        assert tried.owner[shift.stage][shift.bin] == shift.target
                        held = stream.controller.held.get((shift.stage, shift.target))
                        has = held is not None and held[shift.bin]
                        assert not self.eager or has, f"{shift} flips before it is copied"
                case Hold(stage, worker, bins) | Copy(stage, worker, bins):
                    beside[stage, worker] |= set(bins)
                    assert all(tried.owner[stage][bin_] != worker for bin_ in bins), f"{told} of bins it owns"
                case Snapshot(stage, worker, bins):
                    assert all(tried.owner[stage][bin_] == worker for bin_ in bins), f"{told} of bins it does not own"
        for told in tried.told:
            if isinstance(told, Release):
                assert all(tried.owner[told.stage][bin_] != told.worker for bin_ in told.bins), f"{told} of an owner"
                assert not beside[told.stage, told.worker] & set(told.bins), f"{told} and hold"

    def commit_is_right(self, stream, commit):
        """The owners are those before, with the flips of the one attempt that counts; a gone one's bins went over."""
        tried, before = self.tried[commit.token], stream.log.commits[commit.version].owner
        assert commit.owner == tried.owner
        flips = {(s.stage, s.bin): s.target for told in tried.told if isinstance(told, Flip) for s in told.shifts}
        for stage, owners in enumerate(commit.owner):
            for bin_, owner in enumerate(owners):
                was = before[stage][bin_]
                wanted = flips.get((stage, bin_), was)
                assert owner == wanted or was not in stream.alive, f"bin {bin_} of stage {stage} went to {owner}"
        self.updates[commit.version] = self.did.pop(commit.token, {})
        self.did = defaultdict(self.did.default_factory, {t: did for t, did in self.did.items() if t > commit.token})

    def end_is_the_target(self, stream, ended):
        if ended.how.outcome == "done":
            for owners, target in zip(ended.owner, stream.targets[ended.how.migration], strict=True):
                for owner, wanted in zip(owners, target, strict=True):
                    assert owner == wanted or wanted not in stream.alive, f"{ended.how} elsewhere: {owners}, {target}"


def told(stream):
    """What came out, by version and key."""
    found = {}
    for commit in stream.log.commits[1:]:
        for stage, rows in enumerate(commit.output):
            output = defaultdict(list)
            for row in rows:
                output[row.key].append((row.value, row.total))
            found[commit.version, stage] = dict(output)
    return found


def most_ticks(stream, steps=None, rules=None):
    """How long a migration may take when nothing goes wrong: every bin waits as long as patience allows."""
    protocol = stream.controller.protocol
    steps, rules = steps or protocol.steps, rules or protocol.rules
    waits = sum((len(step.shifts) + 1) * (rules.patience + 1) for step in steps)
    until = max((step.at - stream.version for step in steps if step.at is not None), default=0)
    # A version takes four ticks, if messages come at once, and the one under way may have to be begun again.
    return 4 * (waits + max(until, 0) + rules.release_after + 4) + 40


def lived(seed, chosen, shape, ticks=160):
    watch = Watch()
    stream = Simulation(seed, chosen, shape, watch)
    stream.run(ticks)
    return stream, watch


@patient()
@given(seeds, faults, shapes)
def test_correctness_outputs_are_those_of_one_thread_in_time_order(seed, chosen, shape):
    """Megaphone's property 1, post-dated records included."""
    stream, watch = lived(seed, chosen, shape)
    stream.settle(most_ticks(stream))
    stream.run(30)
    found = told(stream)
    assert found == {
        (v, stage): watch.oracle.output[v] for v in range(stream.version + 1) for stage in range(shape.stages)
    }


@patient()
@given(seeds, faults, shapes)
def test_migration_every_update_is_done_by_the_owner_of_its_version(seed, chosen, shape):
    """Megaphone's property 2: `configuration` is the flips that the committed attempts ordered, one after the other."""
    stream, watch = lived(seed, chosen, shape)
    stream.settle(most_ticks(stream))
    for version in range(stream.version + 1):
        owners = stream.log.commits[version + 1].owner
        for stage in range(shape.stages):
            touched = {bin_of(stage, key, shape.bins) for key in watch.oracle.output[version]}
            by = {bin_: who for (at, bin_), who in watch.updates[version].items() if at == stage}
            assert by == {bin_: {owners[stage][bin_]} for bin_ in touched}


@patient()
@given(seeds, faults, shapes)
def test_completion_everything_ends_once_nothing_goes_wrong_any_more(seed, chosen, shape):
    """Megaphone's property 3: without further rows, versions go on, migrations end, and the last plan is in effect."""
    stream, watch = lived(seed, chosen, shape)
    stream.settle(most_ticks(stream))
    stream.run(20)
    target = tuple(tuple(stream._some(sorted(stream.alive))) for _ in range(shape.stages))
    stream.ask_for_plan(target)
    before = stream.version
    stream.settle(most_ticks(stream) + 4 * 11 * 2 * shape.bins * shape.stages + 40)
    assert stream.log.last.owner == target
    assert not stream.controller.protocol.kept
    stream.run(30)
    assert stream.version > before + 5
    assert all(not watch.oracle.output[version] for version in range(stream.version - 3, stream.version)), "drained"


def test_all_that_can_happen_happens():
    """Else the properties would be about less than they say."""
    seen = Counter()
    for seed in range(25):
        stream, _ = lived(seed, Faults.many(0.04), Shape(stages=1 + seed % 2), 250)
        known = {}
        for each in stream.story:
            if isinstance(each, Ended):
                seen[each.how.outcome] += 1
            if isinstance(each, Tried):
                seen.update(type(told).__name__ for told in each.told)
                seen["tried again"] += known.get(each.token[:2], 0)
                known[each.token[:2]] = 1
                seen["resumed"] += each.token.attempt == 1 and any(isinstance(told, Hold | Copy) for told in each.told)
            if isinstance(each, Commit) and each.version > 0:
                seen["commits"] += 1
        bins = [contents for worker in stream.workers.values() for contents in worker.bins.values()]
        seen["post-dated"] += any(state.coming for contents in bins for state in contents.values())
        seen["gone"] += len(stream.workers) > len(stream.alive) * stream.shape.stages
        seen["takeovers"] += stream.log.epoch > 1
    rare = {"done", "replaced", "cancelled", "failed", "Flip", "Hold", "Copy", "Snapshot", "Release", "tried again"}
    assert not {name for name in rare | {"resumed", "post-dated", "gone", "takeovers"} if seen[name] < 5}, seen


def test_a_seed_is_a_story_that_can_be_told_again():
    one, two = (lived(11, Faults.many(), Shape(stages=2))[0] for _ in range(2))
    assert [type(each) for each in one.story] == [type(each) for each in two.story]
    assert told(one) == told(two)
    assert one.log.last.journal == two.log.last.journal


# --- the simulator sees what is wrong ------------------------------------------------------------


def is_caught(chosen=None, seeds=40):
    """Whether some stream comes to grief."""
    for seed in range(seeds):
        try:
            stream = Simulation(seed, chosen or Faults.many(0.03), Shape(stages=1 + seed % 2), Watch())
            stream.run(200)
            stream.settle(most_ticks(stream))
            target = tuple(tuple(stream._some(sorted(stream.alive))) for _ in range(stream.shape.stages))
            stream.ask_for_plan(target)
            stream.settle(2000)
            assert stream.log.last.owner == target
        except (AssertionError, Misled, Stuck, KeyError):
            return True
    return False


def test_what_is_right_is_not_caught():
    assert not is_caught(seeds=15)
    assert not is_caught(Faults(plan=0.2, busy=0.5, crash=0.05, lost=0.01), seeds=15)


real_update = simulated_worker.update
none = np.empty(0, np.int64)


def keeps_what_it_should_release(held, version, wanted):
    return replace(real_update(held, version, wanted), release=none)


def believes_a_store_two_versions_old(held, version, wanted):
    if version == wanted.version - 3 and held.any():
        version += 1
    return real_update(held, version, wanted)


def never_empties_its_store(held, version, wanted):
    todo = real_update(held, min(version, wanted.version - 1), wanted)
    return replace(todo, reset=False) if held.any() else todo


def takes_what_it_holds_to_be_current(held, version, wanted):
    return replace(real_update(held, wanted.version - 1, wanted), advance=False)


def installs_nothing(held, version, wanted):
    return replace(real_update(held, version, wanted), install=none)


@pytest.mark.parametrize(
    "broken",
    [
        keeps_what_it_should_release, believes_a_store_two_versions_old, never_empties_its_store,
        takes_what_it_holds_to_be_current, installs_nothing,
    ],
)  # fmt: skip
def test_a_broken_update_is_caught(monkeypatch, broken):
    monkeypatch.setattr(simulated_worker, "update", broken)
    assert is_caught(Faults(plan=0.2, busy=0.5, crash=0.05, lost=0.01))


def test_copies_that_do_not_advance_are_caught(monkeypatch):
    real = Controller._control

    def only_the_owned(self, token, seat, owner, told):
        control = real(self, token, seat, owner, told)
        mine = {bin_: delta for bin_, delta in control.advance.items() if control.wanted.owned[bin_]}
        return replace(control, advance=mine)

    monkeypatch.setattr(Controller, "_control", only_the_owned)
    assert is_caught()


def patient_rules(rng):
    return replace(simulator.any_rules(rng), patience=10**6)


def test_a_flip_before_the_copy_is_caught(monkeypatch):
    """With time enough and nothing forced, a bin flips only once its target has said that it holds it."""
    monkeypatch.setattr(Simulation, "_maybe_forced", lambda self, step: replace(step, at=None, forced=False))
    eager = partial(Watch, eager=True)
    calm = Faults(busy=0.5, plan=0.05, lost=0.003)

    def run():
        for seed in range(10):
            Simulation(seed, calm, Shape(), eager(), patient_rules).run(150)

    run()
    monkeypatch.setattr(Protocol, "_has", lambda self, shift: True)
    with pytest.raises(AssertionError, match="flips before it is copied"):
        run()


def test_a_flip_that_counts_before_it_is_committed_is_caught(monkeypatch):
    real = Protocol._orders

    def hasty(self, event):
        told = real(self, event)
        if self.flipping is not None:
            self.steps, self._open = self.steps[1:], None
        return told

    monkeypatch.setattr(Protocol, "_orders", hasty)
    assert is_caught()


@pytest.mark.parametrize("left", [lambda p: p.steps, lambda p: p.left[1:]], ids=["too much", "too little"])
def test_a_journal_that_forgets_or_repeats_a_step_is_caught(monkeypatch, left):
    real = journal.to_json

    def wrong(protocol):
        shown = Protocol()
        shown.__dict__ |= vars(protocol) | {"steps": left(protocol), "_open": None}
        return real(shown)

    monkeypatch.setattr(journal, "to_json", wrong)
    assert is_caught(Faults.many(0.06))


def test_a_worker_that_obeys_an_old_attempt_is_caught(monkeypatch):
    """Its base would go back to a version that is over, and its report would be taken for that of another."""
    monkeypatch.setattr(simulated_worker.Worker, "seen", property(lambda _: (0, 0, 0), lambda *_: None), False)
    real = Controller.on

    def any_report(self, report, now):
        same = self.trying is not None and report.token.version == self.trying.token.version
        real(self, replace(report, token=self.trying.token) if same else report, now)

    monkeypatch.setattr(Controller, "on", any_report)
    assert is_caught(Faults.many(0.06))


def test_phases_only_go_the_ways_that_are_drawn():
    """planned -> copying -> ready -> flipped -> released, and back to planned or copying before the flip."""
    ways = Counter()
    for seed in range(15):
        now = {}
        stream = Simulation(seed, Faults.many(0.03), Shape(stages=1 + seed % 2))
        real = stream._start

        def started(real=real, now=now):
            controller = real()
            carry = controller.carry

            def noted(event):
                told = carry(event)
                for each in told:
                    if isinstance(each, Entered):
                        at = (controller.epoch, each.migration, each.step)
                        ways[now.get(at), each.phase] += 1
                        now[at] = each.phase
                return told

            controller.carry = noted
            return controller

        stream._start, stream.controller = started, started()
        stream.run(250)
    early = {Phase.PLANNED, Phase.COPYING, Phase.READY}
    drawn = {(a, b) for a in early for b in {*early, Phase.FLIPPED} if a is not b} | {(Phase.FLIPPED, Phase.RELEASED)}
    first = {(None, phase) for phase in Phase}
    assert set(ways) <= drawn | first, set(ways) - drawn - first
    assert {(Phase.COPYING, Phase.READY), (Phase.READY, Phase.FLIPPED), (Phase.READY, Phase.PLANNED)} <= set(ways)
