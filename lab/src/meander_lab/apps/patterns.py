"""Maximal frequent patterns of a sliding window: the papers' second application.

    tweets ----> Generator --(pattern, +1 or -1)--> Detector ----> results
    feedback ------^   feedback passes through         |
       ^-------- subsets of what became frequent ------+

A pattern is a combination of up to `size` distinct words of one tweet. It is frequent while at least `threshold` tweets
of the window have it, and maximal while no frequent pattern has one word more. A pattern that became or ceased to be
frequent tells those with one word less, which live in other bins: its feedback goes through a `FeedbackLoop` and
reaches them in a later batch. Feedback changes what is maximal and never what is frequent, so the loop comes to rest by
itself.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from itertools import combinations
from math import comb
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from meander.errors import InvalidOption
from meander.operators.operator import Now, Operator
from meander.operators.times import microseconds
from meander.options import whole
from meander.sinks import Memory, memory, sink_of
from meander.state.declare import KeyedTable, Timers
from meander_lab.apps.loop import FeedbackLoop, settle
from meander_lab.apps.words import words_of

if TYPE_CHECKING:
    from datetime import timedelta

    from pyspark.sql import Column, DataFrame

    from meander.streams import Query, Stream

FEEDBACK = "pattern string, above bigint, at bigint"
RESULTS = ["pattern", "count", "maximal", "at"]
MOST_PATTERNS = 100_000
SETTLE_S = 600.0


@dataclass(frozen=True)
class SearchRules:
    """What is looked for.

    Args:
        window_us: how long a tweet counts, in microseconds.
        threshold: so many tweets of the window must have a pattern that is frequent.
        size: words in a pattern at most.
        words: distinct words of a tweet that are looked at; the others, those that come last, are left out.
    """

    window_us: int
    threshold: int
    size: int
    words: int

    def __post_init__(self) -> None:
        whole("window", self.window_us, 1)
        whole("threshold", self.threshold, 1)
        whole("words", self.words, 1, 1000)
        whole("size", self.size, 1, 16)
        if self.patterns > MOST_PATTERNS:
            raise InvalidOption(
                f"a tweet of {self.words} words has {self.patterns:,} patterns of up to {self.size} words; at most "
                f"{MOST_PATTERNS:,} are allowed: take a smaller size, or fewer words"
            )

    @property
    def patterns(self) -> int:
        """How many patterns a tweet can have."""
        return sum(comb(self.words, many) for many in range(1, min(self.size, self.words) + 1))


class Generator(Operator):
    """The patterns of every tweet, +1 when it comes and -1 when it leaves the window; feedback passes through.

    A tweet leaves when the frontier is more than `window` after its time. An id that is in the window already, and a
    tweet that is too old for it, change nothing.
    """

    input = ("id bigint, at timestamp, words string", "pattern string, above bigint, at timestamp")
    output = "pattern string, change bigint, above bigint, at timestamp"
    time = ("at", None)
    ordered = False
    state = {  # noqa: RUF012
        "tweets": KeyedTable(key="id bigint", value="words string"),
        "leave": Timers(key="id bigint"),
    }

    def __init__(self, window_us: int, size: int) -> None:
        self.window_us, self.size = window_us, size

    def on_batch(
        self, tweets: pa.RecordBatch, feedback: pa.RecordBatch, state: Mapping[str, Any], now: Now
    ) -> pa.Table:
        """Take tweets into the window."""
        new = self._new(tweets, state, now)
        at = new["at"].cast(pa.int64())
        state["tweets"].put(new["id"], new["words"])
        state["leave"].set(pc.add(at, self.window_us), new["id"])
        back = pa.table({"pattern": feedback["pattern"], "above": feedback["above"], "at": feedback["at"]})
        return _summed([_changes(new["words"], new["at"], 1, self.size), back])

    def on_time(self, due: Mapping[str, pa.RecordBatch], state: Mapping[str, Any], now: Now) -> pa.Table:
        """Let tweets leave the window."""
        gone = due["leave"]
        words = state["tweets"].get(gone["id"])["words"]
        state["tweets"].delete(gone["id"])
        return _summed([_changes(words, gone["time"], -1, self.size)])

    def _new(self, tweets: pa.RecordBatch, state: Mapping[str, Any], now: Now) -> pa.RecordBatch:
        """The tweets that come into the window, each id once."""
        kept = pc.and_kleene(pc.is_valid(tweets["at"]), pc.not_equal(tweets["words"], ""))
        if now.frontier is not None:
            is_late = pc.less(tweets["at"].cast(pa.int64()), now.frontier - self.window_us)
            kept = pc.and_kleene(kept, pc.invert(is_late))
        tweets = tweets.filter(kept)
        tweets = tweets.filter(pc.invert(state["tweets"].found(tweets["id"])))
        if len(tweets["id"].unique()) < tweets.num_rows:
            # Which of them it is must not depend on the order in which they came.
            tweets = tweets.sort_by([("id", "ascending"), ("at", "ascending"), ("words", "ascending")])
            ids = tweets["id"].to_numpy()
            tweets = tweets.filter(pa.array(np.append(True, ids[1:] != ids[:-1])))
        return tweets


class Detector(Operator):
    """The maximal frequent patterns, as they change, and feedback for those with one word less.

    A row with `maximal` is a result: a pattern that is maximal, with its count, or that is so no more. One with `above`
    is feedback: so many more patterns with one word more are frequent. `at` is when the newest cause of it arrived:
    a tweet that came, or one that left the window.
    """

    input = "pattern string, change bigint, above bigint, at timestamp"
    output = "pattern string, count bigint, maximal boolean, at timestamp, above bigint"
    ordered = False
    state = {"patterns": KeyedTable(key="pattern string", value="count bigint, above bigint")}  # noqa: RUF012

    def __init__(self, threshold: int) -> None:
        self.threshold = threshold

    def on_batch(self, rows: pa.RecordBatch, state: Mapping[str, Any], now: Now) -> pa.Table:
        """Count, and say what changed."""
        changed = _summed([pa.Table.from_batches([rows])])
        patterns = changed["pattern"].combine_chunks()
        before = state["patterns"].get(patterns)
        count_before, above_before = (before[name].fill_null(0).to_numpy() for name in ("count", "above"))
        count, above = count_before + changed["change"].to_numpy(), above_before + changed["above"].to_numpy()
        self._keep(state["patterns"], patterns, count, above)
        was, is_ = count_before >= self.threshold, count >= self.threshold
        # Feedback may overtake other feedback; below none is none.
        was_maximal, is_maximal = was & (above_before <= 0), is_ & (above <= 0)
        shown = np.flatnonzero((was_maximal != is_maximal) | (is_maximal & (count != count_before)))
        results = pa.table(
            {
                "pattern": patterns.take(pa.array(shown)),
                "count": count[shown],
                "maximal": is_maximal[shown],
                "at": changed["at"].take(pa.array(shown)),
                "above": pa.nulls(shown.size, pa.int64()),
            }
        )
        return pa.concat_tables([results, self._feedback(changed, np.flatnonzero(was != is_), is_)])

    @staticmethod
    def _keep(table: Any, patterns: pa.Array, count: NDArray[np.int64], above: NDArray[np.int64]) -> None:
        there = (count != 0) | (above != 0)
        kept, gone = pa.array(np.flatnonzero(there)), pa.array(np.flatnonzero(~there))
        table.put(patterns.take(kept), pa.table({"count": count[there], "above": above[there]}))
        table.delete(patterns.take(gone))

    @staticmethod
    def _feedback(changed: pa.Table, turned: NDArray[np.int64], is_: NDArray[np.bool_]) -> pa.Table:
        """What patterns that became frequent, or ceased to be, say to those with one word less."""
        feedback: dict[str, list[Any]] = {"pattern": [], "above": [], "at": []}
        rows = changed.take(pa.array(turned))
        times = rows["at"].cast(pa.int64()).to_pylist()
        for pattern, frequent, at in zip(rows["pattern"].to_pylist(), is_[turned].tolist(), times, strict=True):
            for smaller in subsets(pattern):
                feedback["pattern"].append(smaller)
                feedback["above"].append(1 if frequent else -1)
                feedback["at"].append(at)
        many = len(feedback["pattern"])
        return pa.table(
            {
                "pattern": pa.array(feedback["pattern"], pa.string()),
                "count": pa.nulls(many, pa.int64()),
                "maximal": pa.nulls(many, pa.bool_()),
                "at": pa.array(feedback["at"], pa.int64()).cast(pa.timestamp("us", "UTC")),
                "above": pa.array(feedback["above"], pa.int64()),
            }
        )


class Patterns:
    """A running search for patterns: its query, and what it has found."""

    def __init__(self, query: Query, sink: object) -> None:
        self.query, self.sink = query, sink

    @property
    def maximal(self) -> dict[str, int]:
        """The maximal frequent patterns and their counts, as this process has seen them; for a sink in memory."""
        if not isinstance(self.sink, Memory):
            raise InvalidOption("only me.sinks.memory can be asked for what is there now; ask where your sink writes")
        return {row["pattern"]: row["count"] for row in self.sink.latest("pattern") if row["maximal"]}

    def settle(self, timeout_s: float = SETTLE_S) -> None:
        """Wait until all tweets are counted and nothing goes round any more; not for an endless source."""
        settle(self.query, timeout_s)

    def stop(self) -> None:
        """Stop; started again with the same checkpoint it goes on, also with what was going round."""
        self.query.stop()


def start(
    tweets: DataFrame,
    checkpoint: str | os.PathLike[str],
    sink: object = None,
    *,
    window: str | float | timedelta = "90 seconds",
    threshold: int = 20,
    size: int = 3,
    words: int = 12,
    **options: Any,
) -> Patterns:
    """Search a stream of tweets for maximal frequent patterns, until it is stopped.

    A result is `pattern` (its words in order, with blanks between them), `count`, `maximal` (false: it is so no more)
    and `at`, when what changed it arrived. The last result of a pattern stands.

    Args:
        tweets: a streaming DataFrame with `id` (each tweet's own), `at` (its time) and `text`.
        checkpoint: a folder, local or seen by all executors; feedback goes round in it, in `feedback/`.
        sink: one of `me.sinks`, or a function of (df, batch_id); by default one in memory.
        window: how long a tweet counts, by event time.
        threshold: so many tweets of the window must have a pattern.
        size: words in a pattern at most.
        words: distinct words of a tweet that are looked at, the first ones. Twelve words have 298 patterns of up to
            three.
        options: those of `Stream.start`: workers, bins, trigger, ...
    """
    rules = SearchRules(microseconds("window", window), threshold, size, words)
    results = sink_of(memory("patterns") if sink is None else sink)
    folder = Path(os.fspath(checkpoint)) / "feedback"
    loop = FeedbackLoop(folder, divided, results)
    check_same_rules(folder / "rules.json", rules)
    stream = detected(tweets, loop.read(tweets.sparkSession, FEEDBACK), rules)
    query = stream.start(checkpoint, loop, **options)
    return Patterns(query, results)


def detected(tweets: DataFrame, feedback: DataFrame, rules: SearchRules) -> Stream:
    """The two operators over tweets and what comes back."""
    from pyspark.sql import functions as F

    import meander as me

    for column in ("id", "at", "text"):
        if column not in tweets.columns:
            raise InvalidOption(f"tweets have no column {column!r}; they need id, at and text")
    came = tweets.select(F.col("id").cast("bigint").alias("id"), "at", canonical(F.col("text"), rules.words))
    back = feedback.select("pattern", "above", F.timestamp_micros("at").alias("at"))
    # Feedback only passes through the first operator, anywhere: it is spread by its hash.
    spread = me.stream(back).key_by(F.xxhash64("pattern").alias("spread"))
    changes = me.stream(came).key_by("id").connect(spread).process(Generator(rules.window_us, rules.size))
    return changes.key_by("pattern").process(Detector(rules.threshold))


def canonical(text: Column, words: int) -> Column:
    """The first so many distinct words of a text, in order of the alphabet, with blanks between them."""
    from pyspark.sql import functions as F

    return F.array_join(F.array_sort(F.slice(F.array_distinct(words_of(text)), 1, words)), " ").alias("words")


def divided(rows: pa.Table) -> tuple[pa.Table, list[dict[str, Any]]]:
    """The results, and the rows that go back."""
    is_back = pc.is_valid(rows["above"])
    back = rows.filter(is_back).select(["pattern", "above", "at"])
    back = back.set_column(2, "at", back["at"].cast(pa.int64()))
    return rows.filter(pc.invert(is_back)).select(RESULTS), back.to_pylist()


def subsets(pattern: str) -> list[str]:
    """The patterns with one word less.

    >>> subsets("apache spark storm"), subsets("storm")
    (['apache spark', 'apache storm', 'spark storm'], [])
    """
    words = pattern.split(" ")
    return [" ".join(fewer) for fewer in combinations(words, len(words) - 1)] if len(words) > 1 else []


def patterns_of(words: pa.Array, size: int) -> tuple[NDArray[np.int64], pa.Array]:
    """All patterns of tweets, each with the position of its tweet; a tweet is its sorted words with blanks between."""
    lists = pc.split_pattern(words, " ")
    lengths, flat = pc.list_value_length(lists).to_numpy(), lists.flatten()
    starts = np.cumsum(lengths) - lengths
    owners, patterns = [np.zeros(0, np.int64)], [pa.array([], pa.string())]
    for length in np.unique(lengths).tolist():
        which = np.flatnonzero(lengths == length)
        for many in range(1, min(size, length) + 1):
            chosen = np.array([*combinations(range(length), many)], np.int64)
            places = starts[which][:, None, None] + chosen[None]
            columns = [flat.take(pa.array(places[..., at].ravel())) for at in range(many)]
            patterns.append(columns[0] if many == 1 else pc.binary_join_element_wise(*columns, " "))
            owners.append(np.repeat(which, len(chosen)))
    return np.concatenate(owners), pa.concat_arrays(patterns)


def _changes(words: pa.Array, at: pa.Array, change: int, size: int) -> pa.Table:
    owners, patterns = patterns_of(words, size)
    return pa.table({"pattern": patterns, "change": np.full(owners.size, change), "at": at.take(pa.array(owners))})


def _summed(parts: list[pa.Table]) -> pa.Table:
    """The changes of each pattern, added up, with the time of the newest."""
    rows = pa.concat_tables(parts, promote_options="default")
    for name in ("change", "above"):
        if name not in rows.column_names:
            rows = rows.append_column(name, pa.nulls(rows.num_rows, pa.int64()))
    sums = rows.group_by("pattern", use_threads=False).aggregate([("change", "sum"), ("above", "sum"), ("at", "max")])
    change, above = (sums[f"{name}_sum"].fill_null(0) for name in ("change", "above"))
    return pa.table({"pattern": sums["pattern"], "change": change, "above": above, "at": sums["at_max"]})


def check_same_rules(path: Path, rules: SearchRules) -> None:
    """Refuse other rules than those by which the counts in a checkpoint were made."""
    try:
        before = json.loads(path.read_text())
    except FileNotFoundError:
        hidden = path.with_suffix(".part")
        hidden.write_text(json.dumps(asdict(rules)))
        hidden.replace(path)
        return
    for name, value in asdict(rules).items():
        if before.get(name) != value:
            raise InvalidOption(
                f"this search began with {name} {before.get(name)} and is given {value}; take that, or a new checkpoint"
            )
