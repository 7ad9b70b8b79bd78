"""The schemes that `./dev bench join` compares: BiStream, BiStream-ContRand, FastJoin, Ls-Stream and Meander.

All of them run the same join over the same tables. They differ in where rows go, and in what they do about a straggler.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from time import process_time

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from meander.control import Sample, Straggler, StragglerRules
from meander.measure.load import load_imbalance
from meander.operators.custom import SIDE, SIDES
from meander.operators.join import Join, JoinSide
from meander.operators.pairs import Bounds
from meander.planning import plan
from meander.planning.problem import Problem
from meander.route.keys import Keys
from meander.state.spans import Spans
from meander.types import Move, WorkerId
from meander_lab.benchmarks.join_cluster import STAYS, Counted, Floats, JoinFeed, JoinSetting, JoinWorker, Route, Words

OUR_ALPHA = 0.2
"""With a measured gamma LI is that of busy times, which a straggler twice as busy as the mean brings to 1."""

FINE = 1 << 16
"""Of so many parts of the hash, each instance of a hash join has its share, in order."""


class BiStream:
    """A hash join: every key has its instance, and nothing moves."""

    name = "BiStream"

    def __init__(self, feed: JoinFeed, setting: JoinSetting) -> None:
        self.setting = setting
        self.operator = Join(**feed.options(setting.within_s))
        self.moved_rows = 0

    def held(self, worker: int) -> Sequence[int]:
        """All bins: they are only for counting here."""
        return range(self.setting.bins)

    def route(self, keys: Keys, plain: Words, batch: int) -> Route:
        """By the hash of the key."""
        return sorted_by(self._hashed(keys, self.setting.workers), self.setting.workers)

    def after(self, counted: Counted, workers: Sequence[JoinWorker]) -> None:
        """Nothing moves."""

    @property
    def table(self) -> int:
        """There is none."""
        return 0

    @staticmethod
    def _hashed(keys: Keys, parts: int) -> Words:
        return keys.bins(FINE).astype(np.int64) * parts // FINE


class ContRand(BiStream):
    """BiStream-ContRand: a key has a subgroup. Its rows are each stored at a random member, and look at all members."""

    name = "ContRand"

    def __init__(self, feed: JoinFeed, setting: JoinSetting) -> None:
        super().__init__(feed, setting)
        self.operator = PartlyStored(**feed.options(setting.within_s))
        if setting.workers % setting.subgroup:
            raise ValueError(f"{setting.workers} workers cannot be in subgroups of {setting.subgroup}")

    def route(self, keys: Keys, plain: Words, batch: int) -> Route:
        """To all members of the key's subgroup."""
        size, workers = self.setting.subgroup, self.setting.workers
        group = self._hashed(keys, workers // size)
        at = sorted_by(group, workers // size)
        keeper = np.random.default_rng([self.setting.seed, batch]).integers(0, size, len(group))[at.rows]
        pieces = [slice(first, last) for first, last in zip(at.cuts[:-1], at.cuts[1:], strict=True)]
        rows = np.concatenate([at.rows[piece] for piece in pieces for _ in range(size)])
        stays = np.concatenate([keeper[piece] == member for piece in pieces for member in range(size)])
        cuts = np.append(0, np.cumsum(np.repeat(np.diff(at.cuts), size)))
        return Route(rows, cuts, stays)


class PartlyStored(Join):
    """A join that stores only rows that are to stay; the others look for partners.

    Right rows meet the left ones of earlier batches that are stored here, left rows all right ones that are: with
    every row stored once in its subgroup, each pair is found once.
    """

    def _side(self, rows: pa.Table, keys: Keys, side: int, frontier: int | None) -> JoinSide:
        mine = super()._side(rows, keys, side, frontier)
        at = np.flatnonzero(rows[SIDE].to_numpy() == side)
        kept = np.setdiff1d(at, mine.late, assume_unique=True) if mine.late.size else at
        stays = rows[STAYS].combine_chunks().to_numpy(zero_copy_only=False)[kept]
        return _Partly(mine.columns, mine.times, mine.rows, mine.late, mine.newest, mine.matched, stays)


@dataclass
class _Partly(JoinSide):
    stays: NDArray[np.bool_]

    def store(self, spans: Spans, bounds: Bounds, matched: str | None = None) -> None:
        """Remember the rows that are to stay."""
        at = np.flatnonzero(self.stays)
        picked = pa.array(at)
        columns, times = [each.take(picked) for each in self.columns], self.times[at]
        JoinSide(columns, times, self.rows.take(picked), self.late, None, self.matched[at]).store(
            spans, bounds, matched
        )


class FastJoin(BiStream):
    """A hash join with a table of keys that are elsewhere: the heaviest instance hands keys to the lightest.

    Which keys, GreedyFit says: those that lighten most for each stored row first, as long as the heavy one stays the
    heavier one. It is repeated with the next pair of instances while LI is above alpha, as Meander's planner does.
    What it knows of every key is counted off the clock, and so is the choice.
    """

    name = "FastJoin"

    def __init__(self, feed: JoinFeed, setting: JoinSetting) -> None:
        super().__init__(feed, setting)
        self.away = np.full(feed.keys, -1, np.int64)
        self.known, self.owner = np.empty(0, np.int64), np.empty(0, np.int64)
        self.instances = self._hashed(self.operator.key.encode([pa.array(np.arange(feed.keys))]), setting.workers)
        self.recent: deque[tuple[int, tuple[Words, Words]]] = deque()
        self.loads: deque[Floats] = deque(maxlen=setting.window)
        self.rested = 0

    def route(self, keys: Keys, plain: Words, batch: int) -> Route:
        """By the table where the key is in it, else by the hash."""
        to = self._hashed(keys, self.setting.workers)
        if self.known.size:
            at = np.minimum(np.searchsorted(self.known, plain), self.known.size - 1)
            to = np.where(self.known[at] == plain, self.owner[at], to)
        return sorted_by(to, self.setting.workers)

    def after(self, counted: Counted, workers: Sequence[JoinWorker]) -> None:
        """Count keys, and move some where LI is above alpha."""
        by_side = [np.bincount(counted.keys[counted.sides == at], minlength=self.away.size) for at in range(2)]
        self.recent.append((counted.newest_us, (by_side[0], by_side[1])))
        oldest = counted.newest_us - self.operator.bounds.before - self.operator.bounds.span
        while self.recent[0][0] < oldest:
            self.recent.popleft()
        self.loads.append(counted.loads())
        self.rested += 1
        if len(self.loads) < self.setting.window or self.rested < self.setting.window:
            return
        if load_imbalance(np.mean(self.loads, axis=0)) > self.setting.alpha:
            self.rested = 0
            self._move(self._greedy_fit(), workers, counted)

    @property
    def table(self) -> int:
        """How many keys are in it."""
        return int(self.known.size)

    def _greedy_fit(self) -> list[tuple[Words, int, int]]:
        """Keys, from where, and to where."""
        newest = list(self.recent)[-self.setting.window :]
        queued = [np.mean([each[1][at] for each in newest], axis=0) for at in range(2)]
        stored = [np.sum([each[1][at] for each in self.recent], axis=0) for at in range(2)]
        load = (sum(stored) + sum(queued) + stored[0] * queued[1] + stored[1] * queued[0]) / 2
        place = np.where(self.away >= 0, self.away, self.instances)
        moves = []
        for _ in range(4 * self.setting.workers):
            loads = np.bincount(place, load, minlength=self.setting.workers)
            if load_imbalance(loads) <= self.setting.alpha:
                break
            heavy, light = int(loads.argmax()), int(loads.argmin())
            mine = np.flatnonzero((place == heavy) & (load > 0))
            mine = mine[np.argsort(-load[mine] / np.maximum(sum(stored)[mine], 1), kind="stable")]
            gap, chosen = loads[heavy] - loads[light], []
            for key in mine.tolist():
                if 2 * load[key] < gap:
                    gap -= 2 * load[key]
                    chosen.append(key)
            if not chosen:
                break
            keys = np.array(chosen, np.int64)
            place[keys] = light
            moves.append((keys, heavy, light))
        return moves

    def _move(self, moves: list[tuple[Words, int, int]], workers: Sequence[JoinWorker], counted: Counted) -> None:
        span = self.operator.bounds.span
        first = (counted.newest_us - self.operator.bounds.before) // span - 2
        spans = np.arange(first, counted.newest_us // span + 1) * span
        for keys, source, target in moves:
            self.moved_rows += hand_over(workers[source], workers[target], np.sort(keys), spans)
            self.away[keys] = target
        self.known = np.flatnonzero(self.away >= 0)
        self.owner = self.away[self.known]


def hand_over(source: JoinWorker, target: JoinWorker, keys: Words, spans: Words) -> int:
    """Move the stored rows of single keys, out of both tables, and return how many there were."""
    parts = {}
    with source.working() as holding:
        tables = holding.begin()
        for side in SIDES:
            table = tables[side]
            rows = Spans(table).find([pa.array(np.repeat(keys, spans.size))], np.tile(spans, keys.size)).rows
            parts[side] = table.keys(rows), {name: table.get(name, rows) for name, _ in table.spec.values}
            table.discard(rows)
        holding.advance(holding.version + 1, {side: table.delta() for side, table in tables.items()})
    with target.working() as holding:
        tables = holding.begin()
        for side, (columns, values) in parts.items():
            table = tables[side]
            rows = table.touch(table.spec.key.encode(columns))
            for name, column in values.items():
                table.set(name, rows, column)
            table.mark(rows)
        holding.advance(holding.version + 1, {side: table.delta() for side, table in tables.items()})
    return sum(len(columns[0]) for columns, _ in parts.values())


class LsStream(BiStream):
    """Ls-Stream by the paper: bins, an array that says whose they are, `control.Straggler` judges, `annealing` plans.

    Load is gamma * memory + (1 - gamma) * stored * queued rows with a gamma of 0.5, and plans end just below alpha.
    Bins move a few at a time between two batches, and have their new owner from the next one on. What the judging and
    the planning takes is in `planning_s`, and off the clock: in the engine it is the driver's, while batches go on.
    """

    name = "Ls-Stream"

    def rules(self) -> StragglerRules:
        """By which rules stragglers are lightened."""
        return StragglerRules(alpha=self.setting.alpha, aim=self.setting.alpha, window=self.setting.window)

    def __init__(self, feed: JoinFeed, setting: JoinSetting) -> None:
        super().__init__(feed, setting)
        self.owner = np.arange(setting.bins, dtype=np.int64) * setting.workers // setting.bins
        self.straggler = Straggler(self.rules())
        self.pending: list[Move] = []
        self.planning_s = 0.0
        self.reasons: list[str] = []

    def held(self, worker: int) -> Sequence[int]:
        """The bins it owns."""
        return np.flatnonzero(self.owner == worker).tolist()

    def route(self, keys: Keys, plain: Words, batch: int) -> Route:
        """By the owner of the key's bin."""
        return sorted_by(self.owner[keys.bins(self.setting.bins)], self.setting.workers)

    def after(self, counted: Counted, workers: Sequence[JoinWorker]) -> None:
        """Judge, plan, and move the next few bins."""
        queued = tuple(each.sum(axis=0).astype(np.float64) for each in counted.queued)
        self.straggler.note(Sample(
            counted.batch, counted.interval_s, tuple(each.sum(axis=0).astype(np.float64) for each in counted.stored),
            queued, queued[0] + queued[1], {WorkerId(w): float(s) for w, s in enumerate(counted.busy_s)},
            self.owner.tolist(),
        ))  # fmt: skip
        if not self.pending:
            self._judge()
        now, self.pending = self.pending[: self.setting.step_bins], self.pending[self.setting.step_bins :]
        for source, target in sorted({(move.source, move.target) for move in now}):
            bins = [move.bin for move in now if (move.source, move.target) == (source, target)]
            self._move(bins, workers[source], workers[target])
        if now and not self.pending:
            self.straggler.balanced(True)

    @property
    def table(self) -> int:
        """An entry for each bin, whatever moves."""
        return len(self.owner)

    def _judge(self) -> None:
        began = process_time()
        verdict = self.straggler.decide(range(self.setting.workers), moving=False)
        if verdict.action == "balance" and verdict.view is not None:
            view = verdict.view
            problem = Problem(
                load=view.load.tolist(),
                state=view.stored.tolist(),
                owner=list(view.owner),
                workers=self.setting.workers,
            )
            self.pending = list(
                plan(problem, "annealing", **view.options(self.straggler.rules.target(self.setting.workers))).moves
            )
            self.reasons.append(verdict.reason)
            if not self.pending:
                self.straggler.balanced(False)
        self.planning_s += process_time() - began

    def _move(self, bins: Sequence[int], source: JoinWorker, target: JoinWorker) -> None:
        with source.working() as holding:
            parts = holding.extract(bins)
        with target.working() as holding:
            holding.install(bins, [parts], holding.version)
        with source.working() as holding:
            holding.release(bins)
        self.moved_rows += sum(table.num_rows for table in parts.values())
        self.owner[list(bins)] = target.number


class Meander(LsStream):
    """The same with Meander's rules: gamma is measured, alpha 0.2 (`OUR_ALPHA`), and plans aim at half of it."""

    name = "Meander"

    def rules(self) -> StragglerRules:
        """By which rules stragglers are lightened."""
        return StragglerRules(alpha=OUR_ALPHA, aim=OUR_ALPHA / 2, gamma="measured", window=self.setting.window)


SCHEMES = {each.name: each for each in (BiStream, ContRand, FastJoin, LsStream, Meander)}


def sorted_by(to: Words, workers: int) -> Route:
    """Rows by the worker they go to, in their order."""
    narrow = to.astype(np.uint8 if workers <= 256 else np.int64)
    return Route(np.argsort(narrow, kind="stable"), np.append(0, np.cumsum(np.bincount(narrow, minlength=workers))))
