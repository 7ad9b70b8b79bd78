"""The queries of the contract: their rows, their operators, and an independent recount of each in plain Python."""

from __future__ import annotations

import datetime as dt
import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import pyarrow as pa

UTC = pa.timestamp("us", tz="UTC")
MIDNIGHT = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
WINDOW_S = 10

Rows = list[dict[str, Any]]


class Recount(NamedTuple):
    """What a sink and the state of each operator must hold after some batches."""

    output: Any
    states: list[dict[Any, int]]


class Kind(ABC):
    """One query, described with the public API alone."""

    schema: pa.Schema
    operators: int = 1

    @abstractmethod
    def describe(self, stream: Any) -> Any:
        """The stream of the rows, with the operators on it."""

    @abstractmethod
    def sample(self, rng: random.Random, number: int) -> pa.Table:
        """Rows for the batch of this number."""

    @abstractmethod
    def recount(self, batches: Sequence[pa.Table], at_end: bool) -> Recount:
        """What must come of these batches; with `at_end`, event time is over."""

    @abstractmethod
    def read_output(self, rows: Rows) -> Any:
        """The rows of a sink, each with the number of its input batch, in a form to compare with the recount."""

    @abstractmethod
    def read_state(self, operator: int, rows: Rows) -> dict[Any, int]:
        """The state of an operator, in a form to compare with the recount."""


class Words(Kind):
    """How often each word has come so far. Every batch emits its words, each once, with the count so far."""

    schema = pa.schema([("word", pa.string())])

    def describe(self, stream: Any) -> Any:
        return stream.key_by("word").count()

    def sample(self, rng: random.Random, number: int) -> pa.Table:
        return words(f"w{rng.randrange(60)}" for _ in range(80))

    def recount(self, batches: Sequence[pa.Table], at_end: bool) -> Recount:
        total: Counter[str] = Counter()
        output = []
        for batch in batches:
            now = Counter(batch["word"].to_pylist())
            total += now
            output.append({word: total[word] for word in now})
        return Recount([each for each in output if each], [dict(total)])

    def read_output(self, rows: Rows) -> list[dict[Any, int]]:
        return by_batch(rows, "word", "count")

    def read_state(self, operator: int, rows: Rows) -> dict[Any, int]:
        return once([(row["word"], row["count"]) for row in rows])


class Chain(Words):
    """Two operators, one after the other: how often each word has come, and how often each such count was reached."""

    operators = 2

    def describe(self, stream: Any) -> Any:
        return super().describe(stream).key_by("count").count("words")

    def recount(self, batches: Sequence[pa.Table], at_end: bool) -> Recount:
        first = super().recount(batches, at_end)
        total: Counter[int] = Counter()
        output = []
        for counts in first.output:
            now = Counter(counts.values())
            total += now
            output.append({count: total[count] for count in now})
        return Recount(output, [*first.states, dict(total)])

    def read_output(self, rows: Rows) -> list[dict[Any, int]]:
        return by_batch(rows, "count", "words")

    def read_state(self, operator: int, rows: Rows) -> dict[Any, int]:
        key, value = ("word", "count") if operator == 0 else ("count", "words")
        return once([(row[key], row[value]) for row in rows])


class Fold(Words):
    """The same as `Words`, by a function of the user's own; it may refuse a word by raising."""

    def __init__(self, refuses: str | None = None) -> None:
        self.refuses = refuses

    def describe(self, stream: Any) -> Any:
        refuses = self.refuses

        def count_words(rows, state):  # inside, so that it reaches workers that cannot import this module
            import numpy as np
            import pyarrow as pa

            if refuses in rows["word"].to_pylist():
                raise ArithmeticError(f"{refuses} is one too many")
            counts = np.bincount(rows["__group"].to_numpy(), minlength=state.num_rows)
            counts = pa.array(counts + state["count"].fill_null(0).to_numpy(), pa.int64())
            return pa.table({"count": counts}), pa.table({"word": state["word"], "count": counts})

        return stream.key_by("word").fold(count_words, "count bigint", "word string, count bigint")


class Windows(Kind):
    """How often each key comes in ten seconds of event time. Every window is emitted once, when it has closed."""

    schema = pa.schema([("key", pa.string()), ("at", UTC)])

    def describe(self, stream: Any) -> Any:
        return stream.key_by("key").window("at", f"{WINDOW_S}s", emit="final").count()

    def sample(self, rng: random.Random, number: int) -> pa.Table:
        """Each batch is in a window of its own, the next one."""
        seconds = sorted(rng.randrange(WINDOW_S) for _ in range(40))
        return moments([(f"k{rng.randrange(20)}", WINDOW_S * number + second) for second in seconds])

    def recount(self, batches: Sequence[pa.Table], at_end: bool) -> Recount:
        counts: Counter[tuple[str, int]] = Counter()
        newest = 0
        for key, second in (row for batch in batches for row in key_and_second(batch.to_pylist(), "at")):
            counts[key, second // WINDOW_S * WINDOW_S] += 1
            newest = max(newest, second)
        over = {window for window in counts if at_end or window[1] + WINDOW_S <= newest}
        return Recount(
            {window: count for window, count in counts.items() if window in over},
            [{window: count for window, count in counts.items() if window not in over}],
        )

    def read_output(self, rows: Rows) -> dict[Any, int]:
        return self.read_state(0, rows)

    def read_state(self, operator: int, rows: Rows) -> dict[Any, int]:
        counts = [row["count"] for row in rows]
        return once(list(zip(key_and_second(rows, "window_start"), counts, strict=True)))


KINDS: dict[str, Kind] = {
    "count": Words(),
    "chain": Chain(),
    "fold": Fold(),
    "fold that refuses": Fold(refuses="unlucky"),
    "windows": Windows(),
}


def words(values: Any) -> pa.Table:
    """Rows of these words."""
    return pa.table({"word": pa.array(list(values), pa.string())})


def moments(values: Sequence[tuple[str, int]]) -> pa.Table:
    """Rows of these keys, at these seconds after midnight."""
    times = [MIDNIGHT + dt.timedelta(seconds=second) for _, second in values]
    return pa.table({"key": pa.array([key for key, _ in values], pa.string()), "at": pa.array(times, UTC)})


def key_and_second(rows: Rows, time: str) -> list[tuple[str, int]]:
    """The key of each row, and its second after midnight."""
    return [(row["key"], int((row[time] - MIDNIGHT).total_seconds())) for row in rows]


def by_batch(rows: Rows, key: str, value: str) -> list[dict[Any, int]]:
    """What was emitted with each batch, for those with which anything was, in their order."""
    batches: dict[int, list[tuple[Any, int]]] = {}
    for row in rows:
        batches.setdefault(row["batch"], []).append((row[key], row[value]))
    return [once(batches[batch]) for batch in sorted(batches)]


def once(pairs: Sequence[tuple[Any, int]]) -> dict[Any, int]:
    """Pairs as a mapping; no key may stand there twice."""
    twice = [key for key, times in Counter(key for key, _ in pairs).items() if times > 1]
    assert not twice, f"{twice} stand there more than once"
    return dict(pairs)
