"""Moving bins of a running query, in every way: results equal a recount, nothing lost, nothing twice."""

from __future__ import annotations

import random
from collections import Counter
from datetime import datetime, timedelta

import pyarrow as pa
import pytest

import meander as me
from meander.checkpoint.location import Location
from meander.checkpoint.manifest import Log
from meander.engine.driver import hook
from streams import PATIENCE_S, Feed, state_of, wait_until

pytestmark = pytest.mark.spark

BINS = 32


def words(rows: int, rng: random.Random) -> pa.Table:
    return pa.table({"word": [f"w{int(rng.paretovariate(0.5)) % 300}" for _ in range(rows)]})


class LastWords(me.sinks.Memory):
    """Keeps output as long as it may, then fails."""

    def __init__(self):
        super().__init__("output")
        self.left: int | None = None
        """So many versions more are taken; None: all."""

    def write(self, output, version):
        if self.left == 0:
            raise me.QueryFailed("the driver is gone")
        self.left = None if self.left is None else self.left - 1
        super().write(output, version)


class Case:
    """A query that counts words, fed batch by batch, with what it must have emitted so far."""

    def __init__(self, spark, folder, chain=False, seed=1, rows=300, **options):
        self.spark, self.folder, self.rng, self.rows = spark, folder, random.Random(seed), rows
        self.feed = Feed(folder / "in", pa.schema([("word", pa.string())]))
        self.sink = LastWords()
        self.chain = chain
        self.options = {"workers": 2, "bins": BINS, "idle_after_s": 0.3, "snapshot_every": 8, "retain": 1000, **options}
        self.given: list[Counter] = []
        self.query = self.start()

    def start(self):
        stream = me.stream(self.feed.read(self.spark)).key_by("word").count()
        if self.chain:
            stream = stream.key_by("count").count("words")
        return stream.start(self.folder / "ck", self.sink, **self.options)

    @property
    def log(self):
        """What is committed, read from the checkpoint alone."""
        return Log.open(Location.of(str(self.folder / "ck")))

    def go(self, batches=1):
        """Feed batches and wait until they are committed."""
        for _ in range(batches):
            rows = words(self.rows, self.rng)
            self.given.append(Counter(rows["word"].to_pylist()))
            self.feed.add(rows)
        self.query.process_all_available()

    def check(self):
        """Every batch has emitted the counts so far of exactly its words, and the state is what a recount has."""
        so_far, expected = Counter(), []
        for batch in self.given:
            so_far += batch
            expected.append({word: so_far[word] for word in batch})
        batch_of = {each.version: each.batch for each in self.log.commits(0)}
        emitted: dict[int, dict[str, int]] = {}
        found = self.sink.to_arrow()
        for version, word, count in zip(*(found[name].to_pylist() for name in ("batch", "word", "count")), strict=True):
            batch = batch_of[version]
            assert word not in emitted.setdefault(batch, {}), f"batch {batch} emits {word} twice"
            emitted[batch][word] = count
        assert [emitted[batch] for batch in sorted(emitted)] == expected
        assert {row["word"]: row["count"] for row in state_of(self.folder / "ck")} == so_far
        assert self.query.misrouted == 0

    def finish(self):
        self.query.stop()
        self.check()


@pytest.fixture
def case(spark, tmp_path):
    made = []

    def make(**options):
        made.append(Case(spark, tmp_path, **options))
        return made[-1]

    yield make
    for each in made:
        if each.query.is_active:
            each.query.stop()


def owners(query) -> list[int]:
    return next(iter(query.assignment.values()))


def test_rescale_up_and_down_while_rows_come(case):
    case = case(rows=200)
    case.go(2)
    for workers, schedule, options in ((4, "batched", {"max_bins": 3}), (3, "fluid", {}), (1, "matching", {})):
        move = case.query.rescale(workers, schedule=schedule, **options)
        wait_until(lambda: move.status != "waiting", "the migration to begin")  # noqa: B023
        case.go(3)
        assert move.wait(PATIENCE_S)
        assert len(case.query.workers) == workers
        report = move.report
        assert (report.outcome, report.workers_after) == ("done", tuple(case.query.workers))
        assert report.bins == len(next(iter(move.plans.values())).moves) == move.progress.bins > 0
        assert report.steps == len(move.steps) > 1
        assert (report.rows_held, report.longest_hold_ms, report.rows_misrouted) == (0, 0, 0)
        assert report.processes_before == report.processes_after
        assert move.progress.eta_s == 0
        assert schedule in str(report)
    phases = [each["event"] for each in case.query.events if each.get("migration") == 1 and each.get("step") == 0]
    assert phases == ["planned", "copying", "ready", "flipped", "released"]
    case.go()
    case.finish()


def test_a_migration_goes_on_when_nothing_comes(case):
    case = case()
    case.go(2)
    version = case.query.version
    assert case.query.rescale(3, schedule="fluid").wait(PATIENCE_S)
    assert case.query.version > version
    case.go()
    case.finish()


def test_before_the_first_row_there_is_nothing_to_copy(case):
    case = case()
    move = case.query.rescale(3)
    assert move.wait(PATIENCE_S)
    assert (move.status, len(case.query.workers), case.query.version) == ("done", 3, -1)
    case.go(2)
    assert len(case.query.workers) == 3
    case.finish()


def test_rebalance_and_move_and_dry_runs(case):
    case = case(workers=3)
    case.go(2)
    before = owners(case.query)
    proposal = case.query.move({0: 2, 1: 2, 31: 0}, dry_run=True)
    assert (proposal.bins, [plan.planner for plan in proposal.plans.values()]) == (3, ["by hand"])
    assert proposal.bytes > 0
    assert proposal.versions >= 2
    assert case.query.rescale(2, dry_run=True).workers != ()
    assert owners(case.query) == before
    assert case.query.move({0: 2, 1: 2, 31: 0}).wait(PATIENCE_S)
    assert (owners(case.query)[0], owners(case.query)[1], owners(case.query)[31]) == (2, 2, 0)
    assert case.query.move(dict.fromkeys(range(BINS), 0)).wait(PATIENCE_S)
    assert case.query.workers == [0]
    move = case.query.move({bin_: bin_ % 2 for bin_ in range(BINS)}, schedule="all_at_once")
    assert move.wait(PATIENCE_S)
    case.go(2)
    balanced = case.query.rebalance(0.2)
    assert balanced.wait(PATIENCE_S)
    assert not next(iter(balanced.plans.values())).over_cap
    case.finish()


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda q: q.rescale(0), "workers"),
        (lambda q: q.rescale(BINS + 1), "workers"),
        (lambda q: q.rescale(3, planner="best"), "there is no planner 'best'"),
        (lambda q: q.rescale(3, schedule="soon"), "there is no schedule 'soon'"),
        (lambda q: q.rescale(3, mode="dead"), "there is no mode 'dead'"),
        (lambda q: q.rescale(3, speed=3), "rescale has no option 'speed'"),
        (lambda q: q.rescale(3, operator="join"), "there is no operator 'join'"),
        (lambda q: q.rescale(3, at="noon"), "a time of day is written"),
        (lambda q: q.rescale(3, copy_ms=0), "copy_ms"),
        (lambda q: q.move({BINS: 1}), "bin"),
        (lambda q: q.move({1: -1}), "worker of bin 1"),
        (lambda q: q.move({1: 1}, tau=0.1), "move has no option 'tau'"),
        (lambda q: q.rescale(3, mode="pause_bins", operator=1), "pause_bins holds rows back before the first operator"),
        (lambda q: q.rescale(3, mode="pause", at=7), "mode pause moves bins as soon as it begins"),
    ],
)
def test_slips_are_told_at_once(slips, call, named):
    with pytest.raises(me.InvalidOption, match=named):
        call(slips)


@pytest.fixture(scope="module")
def slips(spark, tmp_path_factory):
    case = Case(spark, tmp_path_factory.mktemp("slips"), chain=True)
    yield case.query
    case.query.stop()


def test_cancel_keeps_what_has_flipped(case):
    case = case()
    case.go(2)
    before = owners(case.query)
    move = case.query.rescale(4, schedule="fluid", gap=2)
    wait_until(lambda: move.progress.steps >= 1, "the first flip")
    move.cancel()
    assert move.wait(PATIENCE_S)
    assert move.status == "cancelled"
    changed = sum(a != b for a, b in zip(before, owners(case.query), strict=True))
    assert 0 < changed == move.report.bins < len(next(iter(move.plans.values())).moves)
    case.go(2)
    assert case.query.rescale(2).wait(PATIENCE_S)
    case.finish()


def test_a_second_plan_replaces_the_first(case):
    case = case()
    case.go(2)
    first = case.query.rescale(4, schedule="fluid", gap=3)
    wait_until(lambda: first.progress.steps >= 1, "the first flip")
    second = case.query.rescale(3)
    assert second.wait(PATIENCE_S)
    assert first.wait(PATIENCE_S)
    assert (first.status, second.status) == ("replaced", "done")
    assert len(case.query.workers) == 3
    assert case.query.migration is second
    case.go(2)
    case.finish()


def test_a_restarted_query_goes_on_with_its_migration_and_stays_rescaled(case):
    case = case()
    case.go(2)
    move = case.query.rescale(4, schedule="fluid", gap=1)
    wait_until(lambda: move.progress.steps >= 1, "the first flip")
    goal = list(next(iter(move.plans.values())).owner)
    case.query.stop()
    assert owners(case.query) != goal
    case.query = case.start()
    assert case.query.migration.wait(PATIENCE_S)
    assert owners(case.query) == goal
    case.go(2)
    case.query.stop()
    case.query = case.start()
    assert owners(case.query) == goal
    case.go(1)
    case.query.stop()
    case.options["workers"] = 3
    case.query = case.start()
    case.go(1)
    assert len(case.query.workers) == 3
    case.finish()


def test_operators_of_a_chain_flip_together_or_alone(case):
    case = case(chain=True)
    case.go(2)
    move = case.query.rescale(3, schedule="batched", max_bins=6)
    case.go(2)
    assert move.wait(PATIENCE_S)
    for owned in case.query.assignment.values():
        assert set(owned) == {0, 1, 2}
    flips = [each for each in case.query.events if each["event"] == "flipped"]
    assert len(flips) == len(move.steps) == max(-(-len(plan.moves) // 6) for plan in move.plans.values())
    alone = case.query.rescale(1, operator=1)
    assert alone.wait(PATIENCE_S)
    first, second = case.query.assignment.values()
    assert (len(set(first)), len(set(second))) == (3, 1)
    case.go(2)
    case.query.stop()
    counts = {row["word"]: row["count"] for row in state_of(case.folder / "ck")}
    assert counts == sum(case.given, Counter())
    so_far, emitted = Counter(), Counter()
    for batch in case.given:
        so_far += batch
        emitted.update(so_far[word] for word in batch)
    assert {row["count"]: row["words"] for row in state_of(case.folder / "ck", operator=1)} == emitted
    assert case.query.misrouted == 0


@pytest.mark.parametrize("mode", ["pause", "pause_bins", "restart"])
def test_the_other_ways_give_the_same_results(case, mode):
    case = case()
    case.go(2)
    move = case.query.rescale(3, mode=mode, operator=0 if mode == "pause_bins" else None)
    wait_until(lambda: move.status != "waiting", "the migration to begin")
    for _ in range(4):
        case.go(1)
    assert move.wait(PATIENCE_S)
    report = move.report
    assert (report.mode, report.outcome, len(case.query.workers)) == (mode, "done", 3)
    assert report.longest_hold_ms > 0
    case.go(2)
    back = case.query.rescale(2, release_after=0)
    assert back.wait(PATIENCE_S)
    case.finish()


def test_rows_held_back_come_once_also_when_the_driver_ends_in_between(case, monkeypatch):
    case = case(idle_after_s=60)
    case.go(2)
    move = case.query.rescale(3, mode="pause_bins")
    wait_until(lambda: move.status == "running", "rows to be held back")
    case.sink.left = 1  # the version of the rows that need not wait
    with pytest.raises(me.QueryFailed, match="the driver is gone"):
        case.go(1)
    assert 0 < case.log.last.rows < sum(case.given[-1].values())
    assert case.log.last.journal["hook"]["name"] == "pause_bins"
    case.sink.left = None
    with monkeypatch.context() as patch:
        patch.setattr(hook, "Plugins", lambda group: {})
        with pytest.raises(me.CheckpointError, match="the hook 'pause_bins', and no installed package has it"):
            case.start()
    case.query = case.start()
    case.go(2)
    first, second, *_ = (each for each in case.log.commits(0) if each.batch == 2)
    assert (first.tick, second.tick, first.rows + second.rows) == (0, 1, case.rows)
    assert "hook" not in second.journal
    assert case.query.migration.wait(PATIENCE_S)
    assert len(case.query.workers) == 3
    case.finish()


def test_rows_wait_by_the_key_as_it_is_computed(spark, tmp_path):
    """An expression for the key may replace the column it reads: it is computed once, also where rows wait."""
    from pyspark.sql import functions as F

    feed = Feed(tmp_path / "in", pa.schema([("word", pa.string())]))
    rng, given = random.Random(5), Counter()
    stream = me.stream(feed.read(spark)).key_by(F.concat(F.lit("a "), F.col("word")).alias("word")).count()
    query = stream.start(tmp_path / "ck", me.sinks.memory(), workers=2, bins=BINS, idle_after_s=60)
    moves = []
    for _ in range(3):
        rows = words(300, rng)
        given.update(f"a {word}" for word in rows["word"].to_pylist())
        feed.add(rows)
        query.process_all_available()
        if not moves:
            moves.append(query.rescale(3, mode="pause_bins"))
            wait_until(lambda: moves[0].status == "running", "rows to be held back")
    assert moves[0].wait(PATIENCE_S)
    query.stop()
    assert 0 < moves[0].report.rows_held < 600
    assert query.misrouted == 0
    assert {row["word"]: row["count"] for row in state_of(tmp_path / "ck")} == given


def test_moves_as_data_take_effect_at_their_batch(spark, tmp_path):
    control = Feed(tmp_path / "control", pa.schema([(name, pa.int64()) for name in ("batch", "bin", "worker")]))
    told = [(4, 0, 1), (4, 5, 1), (6, 0, 0), (5, 99, 1), (1, 31, 2)]
    control.add(pa.table(dict(zip(("batch", "bin", "worker"), map(list, zip(*told, strict=True)), strict=True))))
    case = Case(spark, tmp_path, control=control.read(spark))
    try:
        case.go(1)
        wait_until(lambda: any(each["event"] == "planned" for each in case.query.events), "the moves")
        control.add(pa.table({"batch": [6], "bin": [7], "worker": [1]}))  # what came before is not forgotten for it
        wait_until(lambda: any(each.get("migration") == 2 for each in case.query.events), "the second moves")
        owner_at: dict[int, tuple[int, int, int]] = {}
        for _ in range(7):
            case.go(1)
            last = case.log.last
            owner = last.operators[0].owner
            owner_at[last.batch] = (owner[0], owner[5], owner[31])
        assert [owner_at[batch][0] for batch in (3, 4, 5, 6, 7)] == [0, 1, 1, 0, 0]
        assert [owner_at[batch][1] for batch in (3, 4, 5)] == [0, 1, 1]
        assert owner_at[3][2] == 2
        assert owners(case.query)[7] == 1
        (refused,) = [each for each in case.query.events if each["event"] == "refused"]
        assert refused["reason"] == "there is no bin 99: the bins are 0 to 31"
        case.finish()
    finally:
        if case.query.is_active:
            case.query.stop()
    with pytest.raises(me.InvalidOption, match="control needs the columns batch, bin, worker"):
        Case(spark, tmp_path / "other", control=case.feed.read(spark))


def test_moves_can_be_prepared_for_a_batch_or_a_time(case):
    case = case()
    case.go(2)
    move = case.query.rescale(3, at=5, schedule="all_at_once")
    wait_until(lambda: move.progress.phase == "ready", "the copies")
    assert len(case.query.workers) == 2
    case.go(3)
    assert len(case.query.workers) == 2
    case.go(1)
    assert len(case.query.workers) == 3
    assert move.wait(PATIENCE_S)
    later = case.query.rescale(2, at=datetime.now() + timedelta(seconds=1.5))
    assert later.status == "waiting"
    assert later.wait(PATIENCE_S)
    assert len(case.query.workers) == 2
    case.query.rescale(3, at=datetime.now() + timedelta(hours=1)).cancel()
    case.finish()


def test_windows_close_once_while_their_bins_move(spark, tmp_path):
    """A worker holds copies of bins that are not its own yet, or no longer: their windows are not its to close."""
    start = datetime(2026, 1, 1)

    def second(at: int) -> pa.Table:
        times = pa.array([start + timedelta(seconds=at)] * 40, pa.timestamp("us", "UTC"))
        return pa.table({"key": [f"k{number}" for number in range(40)], "at": times})

    feed = Feed(tmp_path / "in", second(0).schema).add(second(0))
    sink = me.sinks.memory()
    stream = me.stream(feed.read(spark)).key_by("key").window("at", "1 second", emit="final").count()
    query = stream.start(tmp_path / "ck", sink, workers=2, bins=BINS, idle_after_s=60, release_after=3)
    query.process_all_available()
    move = query.rescale(3, schedule="fluid")
    wait_until(lambda: move.status != "waiting", "the migration to begin")
    for at in range(1, 24):
        feed.add(second(at))
        query.process_all_available()
    assert move.wait(PATIENCE_S)
    query.stop()
    assert query.exception() is None
    assert move.report.bins > 5
    closed = Counter((row["key"], row["window_start"].second) for row in sink.to_arrow().to_pylist())
    assert closed == Counter({(f"k{number}", at): 1 for number in range(40) for at in range(23)})
