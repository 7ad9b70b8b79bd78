"""A planner taken through a series of worker counts: what every migration moved, and how even it left the load."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from types import MappingProxyType
from typing import Any, NamedTuple

from meander.errors import Infeasible, InvalidOption
from meander.options import amount, chosen, listed, whole
from meander.planning import Plan, Planner, Problem, planners
from meander.planning.problem import LARGEST_WORKER_COUNT
from meander.types import Bytes, WorkerId
from meander_lab.replay.bins import Bins
from meander_lab.replay.starting import balanced, start_of

Owners = tuple[WorkerId, ...]
Progress = Callable[[int, int], None]
"""Called after each migration with how many are done and how many there are in all."""

MOST = 100


class Raised(NamedTuple):
    """How often tau had to be raised to the smallest feasible one, and to what at most; 0.0 where it never was."""

    times: int
    most: float


@dataclass(frozen=True)
class Migrated:
    """One migration of a replay.

    Attributes:
        before: workers before it.
        workers: workers after it.
        bytes: bytes moved.
        state_bytes: bytes of all state then.
        heaviest: load of the heaviest worker after it, as a multiple of the fair share.
        asked: the tau that was asked for.
        tau: the tau that was planned with: the same, or the smallest feasible one where that is larger.
        ms: how long the planner took.
        notes: the notes of the plan.
        owner: who owned each bin after it; empty in a mean of several seeds.
    """

    before: int
    workers: int
    bytes: Bytes
    state_bytes: Bytes
    heaviest: float
    asked: float
    tau: float
    ms: float
    notes: tuple[str, ...] = ()
    owner: Owners = ()

    @property
    def percent(self) -> float:
        """Bytes moved as per cent of all state."""
        return 100 * self.bytes / self.state_bytes if self.state_bytes else 0.0

    @property
    def raised(self) -> bool:
        """Whether the tau that was asked for was infeasible."""
        return self.tau > self.asked


@dataclass(frozen=True)
class Replay:
    """What a planner did over a series of migrations.

    Attributes:
        planner: its name.
        start: who owned each bin before the first migration; empty in a mean of several seeds.
        migrations: one after the other.
        seeds: how many seeds this is the mean of.
    """

    planner: str
    start: Owners
    migrations: tuple[Migrated, ...]
    seeds: int = 1

    @property
    def total_bytes(self) -> Bytes:
        """Bytes moved by all migrations together."""
        return sum(each.bytes for each in self.migrations)

    @property
    def percent_per_migration(self) -> float:
        """Bytes moved as per cent of all state, the mean over the migrations."""
        return statistics.fmean(each.percent for each in self.migrations)

    @property
    def imbalance(self) -> tuple[float, ...]:
        """Load of the heaviest worker after each migration, as a multiple of the fair share."""
        return tuple(each.heaviest for each in self.migrations)

    @property
    def raised(self) -> Raised:
        """How often tau was infeasible, and the largest that was used instead."""
        taus = [each.tau for each in self.migrations if each.raised]
        return Raised(len(taus), max(taus, default=0.0))

    @property
    def median_ms(self) -> float:
        """What the planner took for one migration, the median."""
        return statistics.median(each.ms for each in self.migrations)

    @property
    def notes(self) -> dict[str, int]:
        """The notes of the plans, each with the number of its migrations, in order of appearance."""
        times: dict[str, int] = {}
        for note in (note for each in self.migrations for note in dict.fromkeys(each.notes)):
            times[note] = times.get(note, 0) + 1
        return times

    def rows(self) -> list[dict[str, Any]]:
        """Return one plain object for each migration, ready for a table, CSV or JSON."""
        return [
            {
                "planner": self.planner,
                "migration": k,
                "workers_before": each.before,
                "workers": each.workers,
                "bytes_moved": each.bytes,
                "state_bytes": each.state_bytes,
                "percent_moved": each.percent,
                "heaviest": each.heaviest,
                "tau": each.tau,
                "ms": each.ms,
                "notes": "; ".join(each.notes),
            }
            for k, each in enumerate(self.migrations)
        ]


def replay(
    counts: Iterable[int],
    bins: Bins,
    planner: str | Callable[[Problem], Plan] = "ssm",
    tau: float = 0.2,
    *,
    options: Mapping[str, Any] = MappingProxyType({}),
    most: int = MOST,
    seeds: int = 1,
    progress: Progress | None = None,
) -> Replay:
    """Return what a planner does when the number of workers changes as given.

    Args:
        counts: the number of workers, one after the other; each step from one to the next is a migration.
        bins: their load and state at each migration.
        planner: one of `planners()`, by name or itself, or any function from a problem to a plan.
        tau: the load cap of every migration. Where it is infeasible the smallest feasible one is taken, and noted.
        options: what the planner takes beyond a problem.
        most: how many migrations to replay, from the first on.
        seeds: for planners with an option `seed`, take the mean over so many seeds, from the one in `options` or
            the planner's own on.
        progress: called after each migration.

    Raises:
        InvalidOption: there is no such planner or option, or there are no two counts.

    Planners start from the same balanced intervals; `even` starts from its own answer, and
    `consistent_hash` and `redist` from the ring of their seed, as only there they move little.

    Example:
        >>> result = replay([2, 3, 2], Bins.measured([1] * 12, [1] * 12), "ssm", tau=0.0)
        >>> result.total_bytes, result.imbalance
        (8.0, (1.0, 1.0))
    """
    series = series_of(counts, most)
    if isinstance(planner, str):
        planner = chosen("planner", planner, planners())
    if not isinstance(planner, Planner):
        if options:
            raise InvalidOption("options are for planners by name; bind those of a function of your own to it")
        name = getattr(planner, "__name__", "by hand")
        return through(name, series, bins, partial(_called, planner), tau, progress=progress)
    planner.check_options(list(options))
    runs = whole("seeds", seeds, 1) if "seed" in planner.options else 1
    replays = []
    for turn in range(runs):
        settings = dict(options)
        if "seed" in planner.options:
            settings["seed"] = whole("seed", options.get("seed", planner.options["seed"].default), 0) + turn
        start = start_of(planner.name, series[0], bins, settings)
        report = _report_of_turn(progress, turn, runs) if progress else None
        step = partial(_called, partial(planner, **settings))
        replays.append(through(planner.name, series, bins, step, tau, start=start, progress=report))
    return replays[0] if runs == 1 else _mean(replays)


def through(
    name: str,
    counts: Sequence[int],
    bins: Bins,
    step: Callable[[int, Problem], Plan],
    tau: float,
    *,
    start: Sequence[WorkerId] | None = None,
    progress: Progress | None = None,
) -> Replay:
    """Return the replay of a function of the number of the migration, counted from 0, and its problem."""
    owner = tuple(start if start is not None else balanced(bins.at(0)[0], counts[0]))
    there: Iterable[WorkerId] = map(WorkerId, range(counts[0]))
    begin, wanted_tau = owner, float(amount("tau", tau))
    done = []
    for k, (before, workers) in enumerate(pairwise(counts)):
        load, state = bins.at(k)
        idle = sorted(set(there) - set(owner))
        problem = Problem(load, state, owner, workers, wanted_tau, idle=idle)
        plan, used = _within(partial(step, k), problem)
        owner, there = plan.owner, plan.workers
        done.append(
            Migrated(
                before=before,
                workers=workers,
                bytes=plan.cost,
                state_bytes=plan.cost + plan.gain,
                heaviest=max(plan.loads.values()) * workers / problem.total_load,
                asked=wanted_tau,
                tau=used,
                ms=plan.elapsed_ms,
                notes=plan.notes,
                owner=owner,
            )
        )
        if progress:
            progress(k + 1, len(counts) - 1)
    return Replay(name, begin, tuple(done))


def series_of(counts: Iterable[int], most: int = MOST) -> list[int]:
    """Return the counts of the first `most` migrations as a list, checked."""
    most = whole("most", most, 1)
    series = [
        whole(f"the number of workers at place {k}", count, 1, LARGEST_WORKER_COUNT)
        for k, count in enumerate(listed("counts", counts)[: most + 1])
    ]
    if len(series) < 2:
        raise InvalidOption(
            "the number of workers never changes, so there is nothing to replay; give two counts or more"
        )
    return series


def _within(step: Callable[[Problem], Plan], problem: Problem) -> tuple[Plan, float]:
    """Return the plan and the tau it keeps: the problem's, or the smallest feasible one where that is larger."""
    try:
        return step(problem), problem.tau
    except Infeasible as error:
        if error.smallest_tau is None:
            raise
        tau = error.smallest_tau
    try:
        return step(replace(problem, tau=tau)), tau
    except Infeasible:
        # What was found for one cap may miss another one by the last digits.
        tau += (1 + tau) * 1e-8
        return step(replace(problem, tau=tau)), tau


def _called(planner: Callable[[Problem], Plan], _: int, problem: Problem) -> Plan:
    return planner(problem)


def _report_of_turn(progress: Progress, turn: int, runs: int) -> Progress:
    return lambda done, total: progress(turn * total + done, runs * total)


def _mean(replays: Sequence[Replay]) -> Replay:
    migrations = []
    for same in zip(*(each.migrations for each in replays), strict=True):
        migrations.append(
            replace(
                same[0],
                bytes=statistics.fmean(each.bytes for each in same),
                heaviest=statistics.fmean(each.heaviest for each in same),
                tau=max(each.tau for each in same),
                ms=statistics.fmean(each.ms for each in same),
                notes=tuple(dict.fromkeys(note for each in same for note in each.notes)),
                owner=(),
            )
        )
    return Replay(replays[0].planner, (), tuple(migrations), len(replays))
