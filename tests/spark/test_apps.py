"""The papers' applications on Spark: words recounted, and patterns against a search by brute force."""

from __future__ import annotations

import random
import re
from collections import Counter
from itertools import combinations

import pyarrow as pa
import pytest

import meander as me
from meander_lab.apps import patterns, words
from meander_lab.apps.source import at_rate
from meander_lab.apps.tweets import Tweets
from streams import Feed, wait_until

pytestmark = pytest.mark.spark

SCHEMA = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", "UTC")), ("text", pa.string())])
SECOND = 1_000_000


def test_words_are_counted_with_the_time_of_the_last_one(spark, tmp_path):
    lines = ["To be, or not to be: that's the question", "  'Tis -- NOTHING!", "", "to BE"]
    feed = Feed(tmp_path / "in", SCHEMA)
    for number, line in enumerate(lines):
        feed.add(pa.table({"id": [number], "at": pa.array([number * SECOND], SCHEMA.field("at").type), "text": [line]}))
    sink = me.sinks.memory()
    stream = words.counted(feed.read(spark), text="text", at="at")
    stream.start(tmp_path / "ck", sink, workers=2, trigger={"availableNow": True}).await_termination()
    split = [re.findall(r"[a-z]+(?:'[a-z]+)?", line.lower()) for line in lines]
    last = {word: number for number, line in enumerate(split) for word in line}
    found = {row["word"]: (row["count"], row["at"].timestamp()) for row in sink.latest("word")}
    assert found == {word: (n, last[word]) for word, n in Counter(word for line in split for word in line).items()}
    with pytest.raises(me.InvalidOption, match="there is no column 'value'; there are: id, at, text"):
        words.counted(feed.read(spark))


class Talk:
    """Tweets of a few words, at random times, and what a search for their patterns must find."""

    def __init__(self, folder, seed):
        self.rng, self.feed, self.now, self.given = random.Random(seed), Feed(folder, SCHEMA), 0, []

    def add(self, many=40):
        rows = []
        for _ in range(many):
            self.now += self.rng.randrange(2 * SECOND)
            said = ["x", *self.rng.choices("abcdefgh", weights=[8, 7, 6, 5, 4, 3, 2, 1], k=self.rng.randint(1, 5))]
            rows.append((len(self.given), self.now, " ".join(said)))
            self.given.append((self.now, frozenset(dict.fromkeys(said))))
        columns = zip(*rows, strict=True)
        self.feed.add(pa.table([pa.array(list(c), f.type) for c, f in zip(columns, SCHEMA, strict=True)], SCHEMA))

    def expected(self, window_s, threshold, size):
        inside = [said for at, said in self.given if at >= self.now - window_s * SECOND]
        counts = Counter(
            frozenset(some) for said in inside for k in range(1, size + 1) for some in combinations(sorted(said), k)
        )
        frequent = {pattern: count for pattern, count in counts.items() if count >= threshold}
        return {
            " ".join(sorted(pattern)): count
            for pattern, count in frequent.items()
            if not any(pattern < other for other in frequent)
        }


@pytest.mark.slow
def test_patterns_are_exact_through_a_rescale_a_crash_in_the_loop_and_a_restart(spark, tmp_path):
    talk, sink = Talk(tmp_path / "in", 4), me.sinks.memory()
    failing = []

    class Fragile(type(sink)):
        """A sink in memory that can fail: what a version has left by then is there when it is made again."""

        def prepare(self, output, write):
            token = super().prepare(output, write)
            if failing:
                raise RuntimeError(failing.pop())
            return token

    sink = Fragile("patterns")

    def start(workers):
        return patterns.start(
            talk.feed.read(spark), tmp_path / "ck", sink, window=60, threshold=6, size=3, workers=workers, bins=16,
            idle_after_s=0.3,
        )  # fmt: skip

    search = start(2)
    talk.add()
    talk.add()
    search.settle()
    assert search.maximal == talk.expected(60, 6, 3)
    assert any(" " in pattern for pattern in search.maximal)
    assert not all(row["maximal"] for row in sink.to_arrow().to_pylist())

    move = search.query.rescale(3)
    talk.add()
    move.wait(60)
    talk.add()
    search.settle()
    assert len(search.query.workers) == 3
    assert search.maximal == talk.expected(60, 6, 3)

    # The sink has taken a version, and its feedback lies there; then it fails, before anything is committed.
    failing.append("as if the process had died")
    version = search.query.version
    talk.add()
    with pytest.raises(RuntimeError, match="as if the process had died"):
        search.settle()
    assert search.query.version == version
    search.stop()
    assert [int(path.name.split("-")[1]) for path in (tmp_path / "ck/feedback/waiting").iterdir()] == [version + 1]
    search = start(None)
    talk.add()
    search.settle()
    assert len(search.query.workers) == 3
    assert search.maximal == talk.expected(60, 6, 3)

    # Stopped while feedback has gone out and nobody has read it.
    talk.add()
    wait_until(lambda: search.query.version > version + 3 or list((tmp_path / "ck/feedback/rows").glob("*")), "a round")
    search.stop()
    talk.add()
    search = start(None)
    search.settle()
    assert search.maximal == talk.expected(60, 6, 3)
    assert search.query.misrouted == 0
    assert not list((tmp_path / "ck/feedback/waiting").iterdir())
    search.stop()
    with pytest.raises(me.InvalidOption, match="began with threshold 6 and is given 7"):
        patterns.start(talk.feed.read(spark), tmp_path / "ck", window=60, threshold=7)


def test_generated_tweets_come_at_their_rate_and_are_searched(spark, tmp_path):
    config = Tweets(vocabulary=20, mean_words=4, seed=2)
    tweets = at_rate(spark, 1e6, tweets=config, start=1_000_000.0, count=300)
    search = patterns.start(tweets, tmp_path / "ck", window="1 hour", threshold=20, size=2, words=5, workers=2, bins=16)
    search.settle()
    said = [list(dict.fromkeys(text.split()))[:5] for text in config.texts(0, 300).to_pylist()]
    counts = Counter(tuple(some) for each in said for k in (1, 2) for some in combinations(sorted(each), k))
    frequent = {pattern: n for pattern, n in counts.items() if n >= 20}
    pairs = {word for pattern in frequent if len(pattern) == 2 for word in pattern}
    expected = {" ".join(p): n for p, n in frequent.items() if len(p) == 2 or p[0] not in pairs}
    assert search.maximal == expected
    assert 0 < len(pairs) < len(frequent)
    times = {row["at"].timestamp() for row in search.sink.to_arrow().to_pylist()}
    assert min(times) >= 1_000_000.0
    assert max(times) <= 1_000_000.0 + 300 / 1e6
    search.stop()
