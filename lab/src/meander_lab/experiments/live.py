"""What experiments on a running query share: its times, its rate, the query itself and how late its results are."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from meander.errors import QueryFailed
from meander.options import positive
from meander.outlook.practice import Effort
from meander.progress import Tell, nobody
from meander_lab.experiments.delays import Delays

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from meander.streams import Query
    from meander_lab.apps.patterns import Patterns

BINS = 64
"""As many as in the papers."""

SIZE, WORDS = 3, 8
"""Words in a pattern, and words of a tweet that are looked at, at most: 92 patterns a tweet."""

SHARE = 0.01
FEWEST = 5
"""A pattern is frequent if one of a hundred tweets of the window has it, and at least so many."""

PART_OF = 0.3
"""How much of the rate that the machine could just keep up with is used."""

A_BATCH = 500
STEADY, WARM_UP = 6, 8
"""Versions that are measured to find that rate, after those that fill the window and load what has to be loaded."""

CALIBRATED_WITHIN_S = 120.0
LOOK_EVERY_S = 0.2
CALM = 1.5
"""Delays of up to so many times what they were before count as calm again."""


PRACTICE = Effort(rounds=3, tasks=8, steps=500, rehearsals=8, length=100)
"""For an outlook that is made while the query waits: less than where there is time."""


@dataclass(frozen=True)
class LiveTiming:
    """The times of an experiment, as in the papers; `scale` shortens all of them.

    Args:
        windows_s: sizes of the window for `ding-window`.
        window_s: size of the window for `ding-live`.
        after_s: how long after the start of a migration results are looked at.
        before_s: how long before it.
        minute_s: a minute.
        minutes: how many `ding-live` has.
        moves_in: in which of them it rescales.
        effort: how much is practised for an outlook.
        scale: what all times are multiplied with.
    """

    windows_s: tuple[float, ...] = (30.0, 60.0, 90.0, 120.0, 150.0)
    window_s: float = 90.0
    after_s: float = 120.0
    before_s: float = 30.0
    minute_s: float = 60.0
    minutes: int = 14
    moves_in: int = 7
    effort: Effort = PRACTICE
    scale: float = 1.0

    @classmethod
    def quick(cls) -> LiveTiming:
        """A few minutes in all: two windows, and a minute of six to eight seconds."""
        little = Effort(rounds=2, tasks=2, steps=100, rehearsals=2, length=20)
        return cls(windows_s=(60.0, 120.0), effort=little, scale=0.12)

    def scaled(self, scale: float | None = None) -> LiveTiming:
        """The times as they are to be waited for."""
        by = self.scale if scale is None else float(positive("scale", scale))
        return replace(
            self, windows_s=tuple(by * each for each in self.windows_s), window_s=by * self.window_s,
            after_s=by * self.after_s, before_s=by * self.before_s, minute_s=by * self.minute_s, scale=by,
        )  # fmt: skip


@dataclass
class Live:
    """All that an experiment on a running query needs.

    Args:
        spark: the session it runs on.
        timing: its times, scaled.
        text: a file whose lines are the tweets; None: they are generated.
        rate: tweets a second; None: as many as fit, see `calibrated`.
        tell: told how far it is.
        say: told, in sentences, what was decided on the way.
    """

    spark: SparkSession
    timing: LiveTiming
    text: Path | None = None
    rate: float | None = None
    tell: Tell = nobody
    say: Callable[[str], None] = lambda said: None

    @property
    def input(self) -> str:
        """What the tweets are, in a word."""
        return "generated" if self.text is None else self.text.stem

    def calibrated(self, workers: int) -> float:
        """Tweets a second: as given, or a part of what the machine can just do, tried out now."""
        if self.rate is None:
            with self._folder() as folder:
                most = self._closed_loop(folder, workers)
            self.rate = float(f"{PART_OF * most:.2g}")
            self.say(
                f"With {workers} workers and no pause between batches {most:.0f} tweets a second were searched just "
                f"now; {self.rate:g} a second are used, so that there is room."
            )
        return self.rate

    @contextmanager
    def running(self, window_s: float, workers: int) -> Iterator[SearchRun]:
        """A search for patterns at the calibrated rate, ended in the end."""
        from meander_lab.apps.source import at_rate

        rate = self.calibrated(workers)
        with self._folder() as folder:
            began_s = time.time()
            tweets = at_rate(self.spark, rate, text=self.text, start=began_s)
            threshold = max(FEWEST, round(SHARE * rate * window_s))
            run = SearchRun(self._search(tweets, folder, workers, window_s, threshold), began_s, self.tell)
            try:
                yield run
            finally:
                run.search.stop()

    def _closed_loop(self, folder: Path, workers: int) -> float:
        """Tweets a second where a batch follows the other: of a stream that is always ahead of the query."""
        from meander_lab.apps.source import at_rate

        rate = 100.0 * A_BATCH
        tweets = at_rate(self.spark, rate, text=self.text, start=time.time() - 1e6, most=A_BATCH)
        window_s = 4 * A_BATCH / rate
        search = self._search(tweets, folder, workers, window_s, round(max(FEWEST, SHARE * 4 * A_BATCH)))
        try:
            run = SearchRun(search, time.time(), self.tell)
            deadline = time.monotonic() + CALIBRATED_WITHIN_S
            while len(run.ended_ms) < WARM_UP + STEADY and time.monotonic() < deadline:
                run.look("trying how much the machine can do", len(run.ended_ms), WARM_UP + STEADY)
        finally:
            search.stop()
        ends = [end for _, end in sorted(run.ended_ms.items())]
        if len(ends) < 3:
            raise QueryFailed(
                f"not even 3 batches of {A_BATCH} tweets were searched in {CALIBRATED_WITHIN_S:g} s; "
                "give a rate with --rate, or wait until the machine has less to do"
            )
        steady = ends[-min(STEADY, len(ends) - 1) - 1 :]
        return A_BATCH * (len(steady) - 1) / max(0.001, (steady[-1] - steady[0]) / 1e3)

    def _search(self, tweets: Any, folder: Path, workers: int, window_s: float, threshold: int) -> Patterns:
        from meander_lab.apps import patterns

        return patterns.start(
            tweets, folder / "checkpoint", window=window_s, threshold=threshold, size=SIZE, words=WORDS,
            workers=workers, bins=BINS, retain=2,
        )  # fmt: skip

    @contextmanager
    def _folder(self) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(prefix="meander-experiment-", ignore_cleanup_errors=True) as folder:
            yield Path(folder)


class SearchRun:
    """One search while it runs, and how late its results were."""

    def __init__(self, search: Patterns, began_s: float, tell: Tell = nobody) -> None:
        self.search, self.began_s, self._tell = search, began_s, tell
        self.ended_ms: dict[int, int] = {}
        """When each version was committed."""

    @property
    def query(self) -> Query:
        """The query."""
        return self.search.query

    def look(self, what: str = "", done: float = 0, total: float = 0) -> None:
        """Wait a moment, and take in what has been committed since; raises what the query has failed of."""
        if what:
            self._tell(int(done), int(total), what)
        time.sleep(LOOK_EVERY_S)
        problem = self.query.exception()
        if problem is not None:
            raise problem
        # Only the last thousand versions can be looked back on.
        self.ended_ms.update({each.version: each.ended_ms for each in self.query.recent_progress})

    def until(self, moment_s: float, what: str) -> None:
        """Wait until a moment, in seconds since 1970."""
        first = time.time()
        while time.time() < moment_s:
            self.look(what, time.time() - first, moment_s - first)

    def caught_up(self, moment_s: float, what: str) -> None:
        """Wait until everything that arrived before a moment has been committed, as far as results tell."""
        limit = time.time() + 60 + 2 * max(0.0, time.time() - moment_s)
        while time.time() < limit:
            delays = self.delays
            if delays.count and delays.at_s.max() >= moment_s:
                return
            self.look(what)

    def calm(self, usual_ms: float, within_s: float, what: str) -> None:
        """Wait until results are about as late as usual again, at most so long."""
        limit = time.time() + within_s
        while time.time() < limit:
            recent = self.delays.between(time.time() - max(2.0, 3 * usual_ms / 1e3), time.time())
            if recent.count and recent.mean_ms <= CALM * usual_ms:
                return
            self.look(what)

    @property
    def delays(self) -> Delays:
        """How late each result was so far."""
        rows: pa.Table = self.search.sink.to_arrow()  # type: ignore[attr-defined]
        if "at" not in rows.column_names:
            return Delays.of(pa.table({"batch": pa.array([], pa.int64()), "at": pa.array([], pa.int64())}), {})
        return Delays.of(rows.select(["batch", "at"]), self.ended_ms)
