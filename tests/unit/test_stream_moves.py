"""Bins of a running stream move, without Spark: by every schedule, in part, prepared ahead, and over restarts.

What every runtime must do is in tests/contract; here is what needs no runtime to be shown.
"""

from __future__ import annotations

import random
from collections import Counter
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

import meander as me

BINS = 32


def words(rows: int, rng: random.Random) -> pa.Table:
    return pa.table({"word": [f"w{int(rng.paretovariate(0.5)) % 300}" for _ in range(rows)]})


class Case:
    """A stream that counts words, fed batch by batch, with what it must have emitted so far."""

    def __init__(self, workers: int = 2, rows: int = 300, chain: bool = False) -> None:
        stream = me.stream(me.testing.source("word string")).key_by("word").count()
        if chain:
            stream = stream.key_by("count").count("words")
        self.h = me.testing.harness(stream, workers, BINS, snapshot_every=8, retain=1000)
        self.rng, self.rows = random.Random(1), rows
        self.given: list[Counter[str]] = []
        self.versions: list[int] = []

    @property
    def query(self) -> me.Query:
        return self.h.query

    @property
    def owners(self) -> list[int]:
        return next(iter(self.query.assignment.values()))

    def go(self, batches: int = 1) -> None:
        for _ in range(batches):
            rows = words(self.rows, self.rng)
            self.given.append(Counter(rows["word"].to_pylist()))
            self.h.batch(rows)
            self.versions.append(self.query.version)

    def go_until_the_first_flip(self, move: me.Migration) -> None:
        while not move.poll() and move.progress.steps < 1:
            self.go()

    def check(self) -> None:
        """Every batch has emitted the counts so far of exactly its words, and the state is what a recount has."""
        so_far: Counter[str] = Counter()
        for batch, version in zip(self.given, self.versions, strict=True):
            so_far += batch
            rows = self.h.sink.versions[version].to_pylist()
            assert len(rows) == len(batch)
            assert {row["word"]: row["count"] for row in rows} == {word: so_far[word] for word in batch}
        assert len(self.h.output()) == sum(map(len, self.given))  # versions without rows emit nothing
        assert {row["word"]: row["count"] for row in self.h.state()} == so_far
        assert self.query.misrouted == 0


@pytest.fixture
def case():
    cases = []

    def start(**options):
        cases.append(Case(**options))
        return cases[-1]

    yield start
    for each in cases:
        each.h.close()


def test_rescale_up_and_down_by_every_schedule_while_rows_come(case):
    case = case(rows=200)
    case.go(2)
    for workers, schedule, options in ((4, "batched", {"max_bins": 3}), (3, "fluid", {}), (1, "matching", {})):
        move = case.query.rescale(workers, schedule=schedule, **options)
        assert not move.poll()
        case.go(3)
        case.h.finish(move)
        assert len(case.query.workers) == workers
        report = move.report
        assert (report.outcome, report.workers_after) == ("done", tuple(case.query.workers))
        assert report.bins == len(next(iter(move.plans.values())).moves) == move.progress.bins > 0
        assert report.steps == len(move.steps) > 1
        assert (report.rows_held, report.longest_hold_ms, report.rows_misrouted) == (0, 0, 0)
        assert move.progress.eta_s == 0
        assert schedule in str(report)
    phases = [each.name for each in case.query.events if each.migration == 1 and each.step == 0]
    assert phases == ["planned", "copying", "ready", "flipped", "released"]
    case.go()
    case.check()


def test_rebalance_and_move_and_plans(case):
    case = case(workers=3)
    case.go(2)
    before = case.owners
    proposal = case.query.plan_move({0: 2, 1: 2, 31: 0})
    assert (proposal.bins, [plan.planner for plan in proposal.plans.values()]) == (3, ["by hand"])
    assert proposal.bytes > 0
    assert proposal.versions >= 2
    assert case.query.plan_rescale(2).workers != ()
    assert case.owners == before
    case.h.move({0: 2, 1: 2, 31: 0})
    assert (case.owners[0], case.owners[1], case.owners[31]) == (2, 2, 0)
    case.h.move(dict.fromkeys(range(BINS), 0))
    assert case.query.workers == [0]
    case.h.move({bin_: bin_ % 2 for bin_ in range(BINS)}, schedule="all_at_once")
    case.go(2)
    balanced = case.h.rebalance(0.2)
    assert not next(iter(balanced.plans.values())).over_cap
    case.check()


SLIPS = {
    "workers": lambda q: q.rescale(0),
    "workers is 33": lambda q: q.rescale(BINS + 1),
    "there is no planner 'best'": lambda q: q.rescale(3, planner="best"),
    "there is no schedule 'soon'": lambda q: q.rescale(3, schedule="soon"),
    "there is no mode 'dead'": lambda q: q.rescale(3, mode="dead"),
    "rescale has no option 'speed'": lambda q: q.rescale(3, speed=3),
    "there is no operator 'join'": lambda q: q.rescale(3, operator="join"),
    "a time of day is written": lambda q: q.rescale(3, at="noon"),
    "copy_ms": lambda q: q.rescale(3, copy_ms=0),
    "bin": lambda q: q.move({BINS: 1}),
    "worker of bin 1": lambda q: q.move({1: -1}),
    "move has no option 'tau'": lambda q: q.move({1: 1}, tau=0.1),
    "pause_bins holds rows back before the first operator": lambda q: q.rescale(3, mode="pause_bins", operator=1),
    "mode pause moves bins as soon as it begins": lambda q: q.rescale(3, mode="pause", at=7),
}
"""What the refusal of a slip names, and the slip."""


def test_slips_are_refused_at_once_and_nothing_moves(case):
    query = case(chain=True).query
    before = query.assignment
    for sentence, slip in SLIPS.items():
        with pytest.raises(me.InvalidOption, match=sentence):
            slip(query)
    assert (query.assignment, query.migration) == (before, None)


def test_cancel_keeps_what_has_flipped(case):
    case = case()
    case.go(2)
    before = case.owners
    move = case.query.rescale(4, schedule="fluid", gap=2)
    case.go_until_the_first_flip(move)
    move.cancel()
    case.h.finish(move)
    assert move.status == "cancelled"
    changed = sum(a != b for a, b in zip(before, case.owners, strict=True))
    assert 0 < changed == move.report.bins < len(next(iter(move.plans.values())).moves)
    case.go(2)
    assert case.h.rescale(2).status == "done"
    case.check()


def test_a_second_plan_replaces_the_first(case):
    case = case()
    case.go(2)
    first = case.query.rescale(4, schedule="fluid", gap=3)
    case.go_until_the_first_flip(first)
    second = case.h.rescale(3)
    assert first.poll()
    assert (first.status, second.status) == ("replaced", "done")
    assert len(case.query.workers) == 3
    assert case.query.migration is second
    case.go(2)
    case.check()


def test_a_restarted_query_goes_on_with_its_migration_and_stays_rescaled(case):
    case = case()
    case.go(2)
    move = case.query.rescale(4, schedule="fluid", gap=1)
    case.go_until_the_first_flip(move)
    goal = list(next(iter(move.plans.values())).owner)
    assert case.owners != goal
    case.h.restart()
    case.h.finish(case.query.migration)
    assert case.owners == goal
    case.go(2)
    case.h.restart()
    assert case.owners == goal
    case.go()
    case.check()


def test_operators_of_a_chain_flip_together_or_alone(case):
    case = case(chain=True)
    case.go(2)
    move = case.query.rescale(3, schedule="batched", max_bins=6)
    case.go(2)
    case.h.finish(move)
    for owned in case.query.assignment.values():
        assert set(owned) == {0, 1, 2}
    flips = [each for each in case.query.events if each.name == "flipped"]
    assert len(flips) == len(move.steps) == max(-(-len(plan.moves) // 6) for plan in move.plans.values())
    case.h.rescale(1, operator=1)
    first, second = case.query.assignment.values()
    assert (len(set(first)), len(set(second))) == (3, 1)
    case.go(2)
    so_far, reached = Counter(), Counter()
    for batch in case.given:
        so_far += batch
        reached.update(so_far[word] for word in batch)
    assert {row["word"]: row["count"] for row in case.h.state(0)} == so_far
    assert {row["count"]: row["words"] for row in case.h.state(1)} == reached
    assert case.query.misrouted == 0


def test_moves_can_be_prepared_for_a_batch(case):
    case = case()
    case.go(2)
    move = case.query.rescale(3, at=5, schedule="all_at_once")
    while move.progress.phase != "ready":
        assert not move.poll()
        case.h.idle()
    case.go(3)
    assert len(case.query.workers) == 2
    case.go()
    assert len(case.query.workers) == 3
    case.h.finish(move)
    case.check()


@pytest.mark.parametrize("later", [timedelta(seconds=90), timedelta(days=1000)])
def test_a_migration_waits_for_its_time_by_the_clock_of_the_harness(later):
    with Case().h as h:
        h.batch([{"word": "a"}])
        at = datetime.fromtimestamp(h.clock.wall_ms() / 1000, UTC) + later
        move = h.rescale(3, at=at)
        assert move.status == "done"
        assert h.query.workers == [0, 1, 2]
        assert h.clock.wall_ms() / 1000 >= at.timestamp()


def test_a_time_of_day_is_the_next_one_by_the_clock_of_the_harness():
    with Case().h as h:
        h.batch([{"word": "a"}])
        now = datetime.fromtimestamp(h.clock.wall_ms() / 1000)
        at = (now + timedelta(hours=3)).replace(second=0, microsecond=0)
        assert h.rescale(3, at=f"{at:%H:%M}").status == "done"
        assert 0 <= h.clock.wall_ms() / 1000 - at.timestamp() < 60


def test_a_bin_that_is_copied_in_chunks_flips_once_with_its_last_one():
    with Case().h as h:
        for batch in range(4):  # of very different sizes
            h.batch([{"word": f"w{batch}{number}"} for number in range(400) if number % 7 or batch % 2])
        move = h.query.rescale(5, schedule="phases")
        looks = [move.progress]
        chunks = [bin_ for step in move.steps for bin_ in (each.bin for each in step.moves)]
        while not move.poll():
            h.batch([{"word": "w00"}])
            looks.append(move.progress)
        assert move.status == "done"
        flips = [bin_ for each in h.query.events if each.name == "flipping" for bin_ in each.facts["bins"]]
        assert sorted(flips) == sorted(set(flips)) == sorted(chunks)
        assert max(each.bins for each in looks) == looks[-1].of_bins == len(flips)
        assert all(each.eta_s is None or each.eta_s >= 0 for each in looks)
        assert looks[-1].bytes == looks[-1].of_bytes


def test_rebalance_does_what_it_can_about_a_hot_bin_and_keeps_a_tau_that_was_named():
    with Case().h as h:
        for _ in range(3):
            h.batch([{"word": "hot"}] * 500 + [{"word": f"w{number}"} for number in range(20)])
        with pytest.raises(me.Infeasible):
            h.rebalance(0.2)
        assert h.rebalance().status == "done"


def test_windows_close_once_while_their_bins_move():
    """A worker holds copies of bins that are not its own yet, or no longer: their windows are not its to close."""
    start = datetime(2026, 1, 1, tzinfo=UTC)
    stream = me.stream(me.testing.source("key string, at timestamp")).key_by("key").window("at", "1s", emit="final")

    def second(at):
        return [{"key": f"k{number}", "at": start + timedelta(seconds=at)} for number in range(40)]

    with me.testing.harness(stream.count(), 2, BINS, release_after=3, idle_after_s=60) as h:
        h.batch(second(0))
        move = h.query.rescale(4, schedule="fluid")
        for at in range(1, 24):
            move.poll()
            h.batch(second(at))
            h.idle()
        h.finish(move)
        assert move.report.bins > 5
        closed = Counter((row["key"], row["window_start"].second) for row in h.output())
        assert closed == Counter({(f"k{number}", at): 1 for number in range(40) for at in range(23)})


def test_by_default_steps_that_are_ready_flip_together_and_as_named_one_at_a_time():
    took = {}
    for schedule in (None, "fluid"):
        with me.testing.harness(me.stream(me.testing.source("n int")).key_by("n").count(), 2, 256) as h:
            h.batch([{"n": number} for number in range(2000)])
            move = h.query.rescale(8, me.MoveOptions(schedule=schedule))
            while not move.poll():
                h.batch([{"n": 1}])
            assert len(move.steps) > 4
            took[schedule] = (move.report.versions, len(move.steps))
            assert h.batch([{"n": 7}]) == [{"n": 7, "count": 2}]
    assert took[None][0] < took[None][1] < took["fluid"][1] <= took["fluid"][0]
