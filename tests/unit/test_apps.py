"""The papers' applications without Spark: what tweets are made of, and patterns against a search by brute force."""

import math
import random
import re
from collections import Counter
from itertools import combinations, pairwise

import numpy as np
import pyarrow as pa
import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from effort import examples
from meander.engine.driver.ports import SinkWrite
from meander.engine.spark.exchange import SparkOutput
from meander.errors import InvalidOption
from meander.operators.custom import Custom, paired
from meander.route.schema import schema
from meander.sinks import Sink
from meander_lab.apps import loop, patterns, source
from meander_lab.apps.tweets import Tweets
from meander_lab.cli import experiment as command
from meander_lab.experiments import LIVE, Finding, Live, LiveTiming, ding_live, ding_window
from meander_lab.experiments.delays import Delays, longest_gap_s
from naive import Engine, RealState, listed

# --- tweets ---


@given(st.integers(0, 10_000), st.integers(0, 60), st.integers(0, 60))
@examples(30)
def test_a_tweet_is_the_same_whichever_are_made_with_it(first, before, after):
    alone = Tweets(vocabulary=500).texts(first + before, first + before + 3)
    among = Tweets(vocabulary=500).texts(first, first + before + 3 + after)
    assert among.slice(before, 3).to_pylist() == alone.to_pylist()


def test_other_seeds_make_other_tweets():
    assert Tweets(seed=1).texts(0, 50).to_pylist() != Tweets(seed=2).texts(0, 50).to_pylist()


def test_words_are_as_skewed_as_zipf_says():
    config = Tweets(vocabulary=300, exponent=1.0, heat=0.0, seed=5)
    texts = [text.split() for text in config.texts(0, 20_000).to_pylist()]
    counts = Counter(word for text in texts for word in text)
    assert len(counts) == 300
    total, weights = sum(counts.values()), [1 / (rank + 11) for rank in range(300)]
    for rank, (_, count) in enumerate(counts.most_common(20)):
        expected = total * weights[rank] / sum(weights)
        assert abs(count - expected) < 6 * math.sqrt(expected)
    lengths = [len(text) for text in texts]
    assert (min(lengths), max(lengths) <= 30) == (1, True)
    # A log-normal with median 8 and sigma 0.5, rounded down to whole numbers of words and cut at 30.
    assert 7.5 < np.mean(lengths) < 10


def test_a_topic_is_hot_for_a_while_and_its_words_come_together():
    config = Tweets(vocabulary=5000, topic_every=1000, topic_lasts=400, topic_words=3, heat=0.2, seed=9)
    texts = [frozenset(text.split()) for text in config.texts(3000, 4000).to_pylist()]
    pairs = Counter(pair for text in texts for pair in combinations(sorted(text), 2))
    (first, _), (second, _), (third, _) = pairs.most_common(3)
    topic = set(first) | set(second) | set(third)
    assert len(topic) == 3
    with_two = [len(text & topic) >= 2 for text in texts]
    # 0.2 of 400 are on the topic, and of those 0.8^3 + 3 * 0.8^2 * 0.2 = 0.9 have two of its words, if long enough.
    assert 40 < sum(with_two[:400]) < 110
    assert sum(with_two[400:]) < 5


def test_tweets_that_make_no_sense_are_refused():
    for wrong, said in (
        ({"heat": 1.5}, "heat is 1.5"),
        ({"vocabulary": 0}, "vocabulary is 0"),
        ({"topic_lasts": 6000}, "from 0 to 5000"),
    ):
        with pytest.raises(InvalidOption, match=said):
            Tweets(**wrong)


# --- the source ---


def reader(**options):
    given = {"rate": "100", "start": "0", "count": "1000", "most": "400", "tasks": "2", "tweets": "{}"}
    return source.TweetReader({**given, **options})


def test_what_has_arrived_is_told_by_the_clock(monkeypatch):
    made = reader(start=str(5_000_000))
    for now, start, next_ in (
        (4.0, 0, 0),
        (5.0, 0, 1),
        (6.0, 0, 101),
        (6.0, 150, 150),
        (9.0, 0, 400),
        (99.0, 900, 1000),
    ):
        monkeypatch.setattr(source.time, "time", lambda now=now: now)
        assert made.latestOffset({"next": start}, None) == {"next": next_}


def test_each_tweet_is_read_once_with_the_time_of_its_arrival():
    made = reader(rate="3", count="100000", start="7")
    stretches = made.partitions({"next": 4}, {"next": 4 + 3 * source.A_TASK})
    assert len(stretches) == 2
    rows = pa.Table.from_batches([batch for stretch in stretches for batch in made.read(stretch)])
    ids = rows["id"].to_pylist()
    assert ids == [*range(4, 4 + 3 * source.A_TASK)]
    assert rows["at"].cast(pa.int64()).to_pylist() == [7 + number * 1_000_000 // 3 for number in ids]
    assert rows["text"].to_pylist() == Tweets().texts(4, 4 + 3 * source.A_TASK).to_pylist()
    assert made.partitions({"next": 4}, {"next": 4}) == []


def test_lines_of_a_text_are_taken_again_and_again(tmp_path):
    (tmp_path / "text").write_text("to be\n\n  or not \nto be\n\n")
    made = reader(text=str(tmp_path / "text"))
    (batch,) = made.read(source.Stretch(2, 6))
    assert batch["text"].to_pylist() == ["to be", "to be", "or not", "to be"]


def test_a_text_that_cannot_be_read_is_named(tmp_path):
    (tmp_path / "blank").write_text("\n \n")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    for name, said in (
        ("nowhere", "cannot read .*nowhere: no such"),
        ("blank", "blank has only blank"),
        ("binary", "UTF-8"),
    ):
        with pytest.raises(InvalidOption, match=said):
            source.lines_of(tmp_path / name)


# --- patterns ---

TWEETS, BACK = (
    schema("id bigint, at timestamp, words string"),
    schema("spread bigint, pattern string, above bigint, at timestamp"),
)


def by_force(tweets, newest, window, threshold, size):
    """The maximal frequent patterns of the tweets in the window, from their definition alone."""
    inside = [set(words) for words, at in tweets if at >= newest - window]
    every = {frozenset(some) for words in inside for k in range(1, size + 1) for some in combinations(sorted(words), k)}
    counts = {pattern: sum(pattern <= words for words in inside) for pattern in every}
    frequent = {pattern: count for pattern, count in counts.items() if count >= threshold}
    return {
        " ".join(sorted(pattern)): count
        for pattern, count in frequent.items()
        if not any(pattern < other for other in frequent)
    }


class Chain:
    """Both operators and the loop, version after version; feedback comes back when it is told to."""

    def __init__(self, window, threshold, size, tmp_path=None, parts=1):
        generator = Custom(patterns.Generator(window, size), (TWEETS, BACK), (["id"], ["spread"]))
        detector = Custom(patterns.Detector(threshold), generator.output, ["pattern"])
        states = [None, None]
        if tmp_path is not None:
            states = [RealState(operator, tmp_path / operator.name) for operator in (generator, detector)]
        self.generator = Engine(generator, states[0], parts, keyed=["key"])
        self.detector = Engine(detector, states[1], parts)
        self.round, self.maximal, self.changes = [], {}, []

    def version(self, tweets, back):
        out = self.generator.batch(self._rows(tweets, back)).rows
        empty = self.detector.operator.input.empty_table()
        found = self.detector.batch(pa.concat_tables([empty, out]) if out is not None else empty).rows
        if found is None:
            return
        results, feedback = patterns.divided(found)
        self.round.append(feedback)
        for pattern, count, maximal, _ in listed(results):
            self.changes.append((pattern, count, maximal))
            assert maximal or pattern in self.maximal
            assert self.maximal.get(pattern) != (count if maximal else None)
            self.maximal.pop(pattern, None)
            if maximal:
                self.maximal[pattern] = count

    def settle(self):
        """Versions without tweets until nothing comes back."""
        for _ in range(4):
            back = [row for file in self.round for row in file]
            self.round.clear()
            self.version([], back)
        assert not any(self.round)

    @staticmethod
    def _rows(tweets, back):
        kinds = pa.schema([*paired(TWEETS, BACK), ("key", pa.int64())])
        rows = [(0, id_, at, " ".join(sorted(words)), None, None, None, None, id_) for id_, words, at in tweets]
        for number, row in enumerate(back):
            rows.append((1, None, None, None, number, row["pattern"], row["above"], row["at"], number))
        columns = list(zip(*rows, strict=True)) or [[]] * len(kinds)
        return pa.table([pa.array(list(c), f.type) for c, f in zip(columns, kinds, strict=True)], schema=kinds)


tweets = st.tuples(st.frozensets(st.sampled_from("abcde"), min_size=1), st.integers(0, 6))
"""Words, and how much later than the one before, or up to three earlier."""
batches = st.lists(st.tuples(st.lists(tweets, max_size=8), st.integers(0, 3)), min_size=1, max_size=8)
"""Tweets of a version, and how many files of feedback come back in it, whichever they are."""


@given(batches, st.integers(1, 12), st.integers(1, 4), st.integers(1, 4), st.randoms(use_true_random=False))
@examples(20)
def test_what_is_left_in_the_end_are_the_maximal_frequent_patterns_of_the_window(cut, window, threshold, size, rng):
    chain = Chain(window, threshold, size, parts=rng.choice((1, 2)))
    seen, at, number = [], 0, 0
    for rows, returned in cut:
        came = []
        for words, later in rows:
            at = max(0, at + later - 3)
            came.append((number, words, at))
            number += 1
        back = [chain.round.pop(rng.randrange(len(chain.round))) for _ in range(min(returned, len(chain.round)))]
        rng.shuffle(came)
        chain.version(came, [row for file in back for row in file])
        seen += [(words, time) for _, words, time in came]
    chain.settle()
    newest = max((time for _, time in seen), default=0)
    assert chain.maximal == by_force(seen, newest, window, threshold, size)
    state = chain.detector.state.committed["patterns"]
    alive = {some for words, time in seen if time >= newest - window for k in range(1, size + 1)
             for some in combinations(sorted(words), k)}  # fmt: skip
    assert set(state) == {(" ".join(some),) for some in alive}
    assert len(chain.generator.state.committed["tweets"]) == sum(time >= newest - window for _, time in seen)


def test_a_pattern_is_suppressed_when_a_larger_one_is_frequent_and_comes_back_when_it_is_not(tmp_path):
    chain = Chain(10, 2, 3, tmp_path, parts=2)
    chain.version([(1, "ab", 0), (2, "ab", 5), (3, "a", 6)], [])
    assert chain.maximal == {"a": 3, "b": 2, "a b": 2}
    assert sorted((row["pattern"], row["above"]) for row in chain.round[0]) == [("a", 1), ("b", 1)]
    chain.settle()
    assert chain.maximal == {"a b": 2}
    assert [change for change in chain.changes if not change[2]] == [("a", 3, False), ("b", 2, False)]
    chain.version([(4, "z", 12)], [])  # and at 12 the first one has left
    chain.settle()
    assert chain.maximal == {"a": 2}
    chain.version([(5, "z", 40)], [])
    chain.settle()
    assert chain.maximal == {}
    assert chain.detector.state.holding.extract(range(8))["patterns"].num_rows == 1


def test_an_id_that_comes_again_and_a_tweet_that_is_too_old_change_nothing():
    chain = Chain(10, 1, 1)
    chain.version([(1, "b", 20), (1, "a", 20), (2, "", 20)], [])
    chain.version([(1, "c", 25), (3, "d", 9), (4, "e", 10)], [])
    chain.settle()
    # 10 is within ten of 20, and no more within ten of 25.
    assert chain.maximal == {"a": 1}


@given(st.lists(st.frozensets(st.sampled_from("abcdefg"), min_size=1), max_size=6), st.integers(1, 5))
def test_patterns_of_tweets_are_their_combinations(given_, size):
    texts = [" ".join(sorted(words)) for words in given_]
    owners, found = patterns.patterns_of(pa.array(texts, pa.string()), size)
    expected = [(at, " ".join(some)) for at, words in enumerate(given_) for k in range(1, size + 1)
                for some in combinations(sorted(words), k)]  # fmt: skip
    assert sorted(zip(owners.tolist(), found.to_pylist(), strict=True)) == sorted(expected)


def test_rules_that_make_no_sense_or_have_changed_are_refused(tmp_path):
    rules = patterns.SearchRules(5, 2, 3, 12)
    assert rules.patterns == 12 + 66 + 220
    with pytest.raises(InvalidOption, match="a tweet of 60 words has 5,985,197 patterns of up to 5 words"):
        patterns.SearchRules(5, 2, 5, 60)
    with pytest.raises(InvalidOption, match="threshold is 0"):
        patterns.SearchRules(5, 0, 3, 12)
    patterns.check_same_rules(tmp_path / "rules.json", rules)
    patterns.check_same_rules(tmp_path / "rules.json", rules)
    with pytest.raises(InvalidOption, match="began with threshold 2 and is given 3; take that, or a new checkpoint"):
        patterns.check_same_rules(tmp_path / "rules.json", patterns.SearchRules(5, 3, 3, 12))


# --- the loop ---


class Kept(Sink):
    def __init__(self):
        self.versions, self.shown = {}, []

    def prepare(self, output, write):
        self.versions[write.version] = output.to_arrow().to_pylist()
        return write.version

    def commit(self, token):
        self.shown.append(token)


def an_output(*rows):
    columns = schema(patterns.Detector.output)
    table = pa.Table.from_pylist([dict(zip(columns.names, row, strict=True)) for row in rows], columns)
    return SparkOutput(columns, [table], [], None, None)


BACK_ROW = ("a", None, None, 5, 1)
RESULT = ("a b", 3, True, 5, None)


def test_feedback_goes_round_once_its_version_is_committed(tmp_path):
    results = Kept()
    round_ = loop.FeedbackLoop(tmp_path, patterns.divided, results)
    round_.prepare(an_output(BACK_ROW, RESULT), SinkWrite(0, 0))
    assert [row["pattern"] for row in results.versions[0]] == ["a b"]
    assert (list(round_.rows.iterdir()), results.shown) == ([], [])
    (waiting,) = round_.waiting.iterdir()
    assert waiting.read_text() == '{"above": 1, "at": 5, "pattern": "a"}\n'
    # Not committed, and its driver is gone: the next one makes it again, and sweeps what the first has left.
    again = loop.FeedbackLoop(tmp_path, patterns.divided, results)
    again.sweep(SinkWrite(-1, 1))
    assert not list(round_.waiting.iterdir())
    again.abort(again.prepare(an_output(BACK_ROW), SinkWrite(0, 1)))
    assert not list(round_.waiting.iterdir())
    token = again.prepare(an_output(RESULT, BACK_ROW), SinkWrite(0, 1))
    # Committed twice, as after a restart, it goes round once; the file is gone when Spark has read it.
    again.commit(token)
    assert [path.name for path in round_.rows.iterdir()] == ["000000000000.json"]
    (round_.rows / "000000000000.json").unlink()
    again.commit(token)
    assert (list(round_.rows.iterdir()), list(round_.waiting.iterdir()), results.shown) == ([], [], [0, 0])


def test_a_folder_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidOption, match="feedback cannot go round in .*: not a directory; give a local checkpoint"):
        loop.FeedbackLoop(tmp_path / "file" / "there", patterns.divided, Kept())


def test_subsets_of_random_patterns_have_one_word_less():
    rng = random.Random(3)
    for _ in range(50):
        words = sorted(rng.sample("abcdefghij", rng.randint(2, 6)))
        smaller = patterns.subsets(" ".join(words))
        assert sorted(smaller) == sorted(" ".join(w for w in words if w != left) for left in words)


# --- the experiments ---


def test_a_delay_is_from_arrival_to_commit():
    stamps = pa.array([1_000_000, 1_500_000, 4_000_000, 9_000_000], pa.timestamp("us", "UTC"))
    found = Delays.of(pa.table({"batch": [0, 0, 1, 7], "at": stamps}), {0: 2_000, 1: 4_250})
    assert found.ms.tolist() == pytest.approx([1000.0, 500.0, 250.0])
    assert found.between(1.5, 4.0).ms.tolist() == pytest.approx([500.0])
    assert (found.count, found.mean_ms) == (3, pytest.approx(1750 / 3))
    assert math.isnan(found.between(50, 60).mean_ms)
    assert math.isnan(found.between(50, 60).p99_ms)
    assert Delays.of(pa.table({"batch": pa.array([], pa.int64()), "at": stamps[:0]}), {}).count == 0


@given(st.lists(st.integers(0, 100), min_size=2, max_size=12, unique=True), st.integers(0, 100), st.integers(0, 50))
def test_the_longest_gap_is_one_that_touches_the_time_asked_for(ends, first, more):
    last, ordered = first + more, sorted(ends)
    gaps = [b - a for a, b in pairwise(ordered) if a < last and b > first]
    assert longest_gap_s([1000 * end for end in ends], first, last) == pytest.approx(max(gaps, default=0))


def test_a_course_is_scaled_as_a_whole():
    quick = LiveTiming.quick().scaled()
    assert quick.windows_s == pytest.approx((7.2, 14.4))
    assert (quick.minute_s, quick.after_s, quick.scale) == pytest.approx((7.2, 14.4, 0.12))
    half = LiveTiming().scaled(0.5)
    assert (half.windows_s, half.window_s, half.minute_s) == ((15.0, 30.0, 45.0, 60.0, 75.0), 45.0, 30.0)
    with pytest.raises(InvalidOption, match="scale is 0"):
        LiveTiming().scaled(0)
    live = Live(None, LiveTiming())
    assert 40 < LIVE["ding-window"].minutes(live) < 90
    assert 28 < LIVE["ding-live"].minutes(live) < 35


def window_rows(scale=1.0, **means):
    return [
        {
            "input": "generated", "window_s": window, "planner": planner, "mean_ms": ms, "before_ms": 100.0,
            "percent": 25.0, "scale": scale, "tweets_per_s": 40.0,
        }
        for planner, each in means.items()
        for window, ms in zip((30.0, 60.0), each, strict=True)
    ]  # fmt: skip


def test_the_paragraph_on_windows_follows_the_figures():
    said = ding_window.says(window_rows(ssm=(200, 300), mtm=(150, 310), consistent_hash=(250, 290), even=(400, 500)))
    assert "8 workers became 6 at 40 tweets a second; all times are the papers'." in said
    assert "that of ssm grows from 200.00 to 300.00 ms" in said
    assert "ssm is below consistent hashing at 1 of 2 windows and mtm at 1" in said
    assert "mtm is below ssm at 1 (paper: all)" in said
    assert "even is at least 400 ms" in said
    assert "1.50 to 5.00 times what it was" in said
    rows = window_rows(0.5, ssm=(2, 2), mtm=(2, 2), consistent_hash=(2, 2), even=(2, 2))
    assert "all times are 0.5 of the papers'" in ding_window.says(rows)


def live_rows(live, restart, scale=1.0):
    common = {
        "input": "generated", "moves_in": 3, "window_s": 90.0, "tweets_per_s": 40.0, "scale": scale,
        "workers_before": 10, "workers_after": 8,
    }  # fmt: skip
    return [
        {**common, "mode": mode, "minute": minute, "mean_ms": ms, "longest_gap_s": gap}
        for mode, each, gap in (("live", live, 0.8), ("restart", restart, 9.0))
        for minute, ms in enumerate(each, 1)
    ]


def test_the_paragraph_on_live_migration_follows_the_figures(tmp_path):
    rows = live_rows(live=(900, 100, 150, 120), restart=(900, 100, 3000, math.nan))
    said = ding_live.says(rows)
    assert "in minute 3 of 4 at 40 tweets a second" in said
    assert "With live the mean delay is 100 ms in the minutes before and at most 150 ms" in said
    assert "at most 3000 ms in one from then on, 30.0 times as much" in said
    assert "between two commits is 9.0 s" in said
    assert "a restart is 20.0 times that of live" in said
    assert "run into each other" not in said
    assert "a minute is 6 s here" in ding_live.says(live_rows((1, 7000, 2, 3), (1, 2, 3, 4), 0.1))
    assert "run into each other" in ding_live.says(live_rows((1, 7000, 2, 3), (1, 2, 3, 4), 0.1))
    others = window_rows(ssm=(200, 300), mtm=(150, 310), consistent_hash=(250, 290), even=(400, 500))
    for name, found, draw in (("live", rows, ding_live.draw), ("window", others, ding_window.draw)):
        written = Finding(name, found, "", lambda figure, draw=draw, found=found: draw(figure, found)).write(tmp_path)
        assert [path.suffix for path in written] == [".csv", ".png"]


def experiment(*arguments):
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.command()(command.experiment)
    return CliRunner().invoke(app, [str(each) for each in arguments])


def test_the_command_names_slips_before_spark_is_started(tmp_path, monkeypatch):
    import meander

    monkeypatch.setattr(meander, "session", None)
    (tmp_path / "blank").write_text("\n")
    for arguments, said in (
        (("ding-live", tmp_path / "nowhere"), "cannot read .*nowhere: no such file"),
        (("ding-live", tmp_path / "blank"), "only blank lines"),
        (("ding-window", "a", "b"), "ding-window takes one text, not 2"),
        (("ding-window", "--scale", "0"), "scale is 0"),
        (("ding-window", "--rate", "-1"), "--rate is -1"),
        (("ding-window", "--outlooks", "there"), "--outlooks is not for ding-window"),
        (("ding-cost", "--scale", "0.5"), "--scale is for ding-window and ding-live, not for ding-cost"),
        (("ding-wind",), "the experiments are ding-cost, .*, ding-window, ding-live"),
    ):
        done = experiment(*arguments)
        assert done.exit_code != 0
        assert isinstance(done.exception, InvalidOption), done.exception
        assert re.search(said, str(done.exception)), done.exception
    listed_ = experiment().stdout
    assert "ding-window  How late" in listed_
    assert "(Figure 15)" in listed_
