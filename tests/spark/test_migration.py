"""Rows that wait on Spark while their bins move: they come once, by the key as it is computed, whoever ends in between.

How bins move on Spark is in tests/contract, and what needs no Spark in tests/unit/test_stream_moves.py.
"""

from __future__ import annotations

import random
from collections import Counter

import pyarrow as pa
import pytest

import meander as me
from meander.engine.driver import hook
from meander.store.location import Location
from meander.store.manifest import Log
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

    def prepare(self, output, write):
        if self.left == 0:
            raise me.QueryFailed("the driver is gone")
        self.left = None if self.left is None else self.left - 1
        return super().prepare(output, write)


class Case:
    """A query that counts words, fed batch by batch, with what it must have emitted so far."""

    def __init__(self, spark, folder, seed=1, rows=300, **options):
        self.spark, self.folder, self.rng, self.rows = spark, folder, random.Random(seed), rows
        self.feed = Feed(folder / "in", pa.schema([("word", pa.string())]))
        self.sink = LastWords()
        self.options = {"workers": 2, "bins": BINS, "idle_after_s": 0.3, "snapshot_every": 8, "retain": 1000, **options}
        self.given: list[Counter] = []
        self.query = self.start()

    def start(self):
        stream = me.stream(self.feed.read(self.spark)).key_by("word").count()
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
