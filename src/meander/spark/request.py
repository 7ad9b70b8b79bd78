"""What a user asks for when bins are to move, checked when it is asked; and the plan that comes of it."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import chain, count, islice
from typing import Any, Literal

import numpy as np

from meander.errors import InvalidOption
from meander.migration.protocol import Rules
from meander.migration.steps import Step, joined
from meander.planning import Plan, Problem, planners
from meander.scheduling import schedule, schedules
from meander.spark.ledger import Ledger
from meander.spark.settings import Settings
from meander.types import Bytes, WorkerId
from meander.values import amount, positive, whole, worker_id

Mode = Literal["live", "pause", "pause_bins", "restart", "restart_workers"]
MODES: tuple[Mode, ...] = ("live", "pause", "pause_bins", "restart", "restart_workers")
KINDS = ("rescale", "rebalance", "move")

NO_LIMIT = 1 << 50

OTHERS = ("copy_bytes", "copy_ms", "release_after", "keep_bytes", "patience", "executors_within_s", "keep_executors")
"""Options that belong neither to a planner nor to a schedule."""


@dataclass(frozen=True)
class Request:
    """One wish for bins to move.

    Args:
        kind: rescale, rebalance or move.
        stages: the operators concerned, by number.
        workers: for rescale, how many there shall be.
        among: for rebalance, who takes part; None: those who own something.
        targets: for move, the new owner of each bin.
        tau: the load cap; None is the usual one, or the smallest that can be kept.
        load: what each bin of the operators is to count as; None: as it was measured.
        at: the batch, or the time in seconds since 1970, from which on it shall be in effect.
    """

    kind: str
    stages: tuple[int, ...]
    rules: Rules = field(default_factory=Rules)
    copy_ms: float = 100.0
    executors_within_s: float = 60.0
    workers: int | None = None
    among: tuple[WorkerId, ...] | None = None
    targets: Mapping[int, WorkerId] = field(default_factory=dict)
    tau: float | None = None
    load: tuple[float, ...] | None = None
    planner: str = "free"
    planner_options: Mapping[str, Any] = field(default_factory=dict)
    schedule: str = "batched"
    schedule_options: Mapping[str, Any] = field(default_factory=dict)
    mode: Mode = "live"
    at_batch: int | None = None
    at_time: float | None = None
    keep_executors: bool = False


@dataclass(frozen=True)
class Proposal:
    """What would move: a plan for each operator, the steps, and what that costs.

    Args:
        plans: by operator, as in `query.assignment`.
        steps: what flips together, in order.
        bins, bytes: how much state changes hands.
        versions: how many versions it takes at least, with the budget for copies.
        workers: who owns bins afterwards.
    """

    plans: Mapping[str, Plan]
    steps: tuple[Step, ...]
    bins: int
    bytes: Bytes
    versions: int
    workers: tuple[WorkerId, ...]

    @property
    def notes(self) -> tuple[str, ...]:
        """What planners want to be known, such as why one could not do better."""
        said = (f"{name}: {note}" for name, plan in self.plans.items() for note in plan.notes)
        return tuple(dict.fromkeys(said))

    @property
    def planner_ms(self) -> float:
        """How long the planner took for all operators."""
        return sum(plan.elapsed_ms for plan in self.plans.values())


def made(kind: str, settings: Settings, stages: tuple[int, ...], given: Mapping[str, Any]) -> Request:
    """Check what was given and make a request of it; every option goes to whom it belongs."""
    options = dict(given)
    mode = options.pop("mode", "live")
    if mode not in MODES:
        raise InvalidOption(f"there is no mode {mode!r}; there are: {', '.join(MODES)}")
    if mode == "pause_bins" and set(stages) != {0}:
        raise InvalidOption("mode pause_bins holds rows back before the first operator; say operator=0")
    rules = Rules(
        copy_bytes=whole("copy_bytes", options.pop("copy_bytes", settings.copy_bytes), 1, NO_LIMIT),
        release_after=whole("release_after", options.pop("release_after", settings.release_after), 0, 1 << 20),
        keep_bytes=whole("keep_bytes", options.pop("keep_bytes", Rules().keep_bytes), 0, NO_LIMIT),
        patience=whole("patience", options.pop("patience", Rules().patience), 1, 1 << 30),
    )
    copy_ms = positive("copy_ms", options.pop("copy_ms", settings.copy_ms))
    within_s = positive("executors_within_s", options.pop("executors_within_s", settings.executors_within_s))
    batch, moment = _moment(options.pop("at", None))
    request = Request(
        kind, stages, rules, copy_ms, within_s, mode=mode,
        at_batch=batch, at_time=moment, keep_executors=bool(options.pop("keep_executors", False)),
        workers=options.pop("workers", None), targets=options.pop("targets", {}), tau=options.pop("tau", None),
        load=_per_bin(options.pop("load", None), settings.bins), **chosen(options),
    )  # fmt: skip
    refuse_rest(kind, options, request, OTHERS)
    return request


def _per_bin(load: Sequence[float] | None, bins: int) -> tuple[float, ...] | None:
    if load is None:
        return None
    if len(load) != bins:
        raise InvalidOption(f"load has {len(load)} entries but there are {bins} bins; give one for each")
    return tuple(float(amount(f"load of bin {bin_}", value)) for bin_, value in enumerate(load))


def stages_of(operator: str | int | None, known: Mapping[int, str]) -> tuple[int, ...]:
    """The operators that a user means by a number or a name, such as "0:count" or "count"; None: all."""
    if operator is None:
        return tuple(known)
    found = [at for at, name in known.items() if operator in (at, name, name.partition(":")[2])]
    if len(found) != 1 or isinstance(operator, bool):
        raise InvalidOption(f"there is no operator {operator!r}; there are: {', '.join(known.values())}")
    return (found[0],)


def chosen(options: dict[str, Any]) -> dict[str, Any]:
    """Take planner and schedule, and what they take, out of options; returns them as fields of a `Request`."""
    planner, cut = options.pop("planner", "free"), options.pop("schedule", "batched")
    known = {"planner": planners(), "schedule": schedules()}
    for what, name in (("planner", planner), ("schedule", cut)):
        if name not in known[what]:
            raise InvalidOption(f"there is no {what} {name!r}; there are: {', '.join(known[what])}")
    return {
        "planner": planner,
        "schedule": cut,
        "schedule_options": {name: options.pop(name) for name in list(options) if name in schedules()[cut].options},
        "planner_options": {name: options.pop(name) for name in list(options) if name in planners()[planner].options},
    }


def refuse_rest(kind: str, options: Mapping[str, Any], request: Request, others: Sequence[str]) -> None:
    """Refuse an option that nobody has taken, naming those there are."""
    if options:
        has = [*schedules()[request.schedule].options, *planners()[request.planner].options, *others]
        raise InvalidOption(
            f"{kind} has no option {min(options)!r}; with planner {request.planner} and schedule {request.schedule} "
            f"there are: {', '.join(dict.fromkeys(has))}"
        )


def _moment(at: object) -> tuple[int | None, float | None]:
    """A batch, or seconds since 1970, of what a user calls a moment."""
    if at is None:
        return None, None
    if isinstance(at, bool) or not isinstance(at, int | str | datetime):
        raise InvalidOption(f"at is {at!r}; give a batch number, a datetime, or a time of day such as '02:00'")
    if isinstance(at, int):
        return whole("at", at, 0), None
    if isinstance(at, datetime):
        return None, at.timestamp()
    for form in ("%H:%M", "%H:%M:%S"):
        try:
            clock = datetime.strptime(at, form)
        except ValueError:
            continue
        now = datetime.now()
        then = now.replace(hour=clock.hour, minute=clock.minute, second=clock.second, microsecond=0)
        return None, (then if then > now else then + timedelta(days=1)).timestamp()
    raise InvalidOption(f"at is {at!r}; a time of day is written '02:00' or '02:00:30'")


def proposed(
    request: Request, ledger: Ledger, names: Mapping[int, str], present: Collection[WorkerId], version: int
) -> Proposal:
    """Plan what the request asks for, from the assignment as it is now."""
    plans = _plans(request, ledger, present)
    forced = request.mode == "pause"
    name, options = request.schedule, dict(request.schedule_options)
    if request.mode in ("pause", "restart", "restart_workers"):
        name, options = "all_at_once", {}
    elif name == "batched" and not options:
        # A step is what each worker can copy in one version, so that steps follow one another at every version.
        options = {"max_bytes": max(1, request.rules.copy_bytes), "max_bins": max(16, ledger.bins // 16)}
    cut = {
        stage: schedule(plan.before, plan.owner, name, state=ledger.state_bytes[stage].tolist(), **options)
        for stage, plan in plans.items()
    }
    steps = joined(cut, request.at_batch, forced)
    moving = sum(len(plan.moves) for plan in plans.values())
    size = sum(step.bytes for step in steps)
    owners = {worker for stage in ledger.stages for worker in _owners_after(plans, ledger, stage)}
    copies = -(-int(size) // request.rules.copy_bytes)
    versions = 0 if version < 0 or not moving else max(len(steps), copies) + 1 + request.rules.release_after
    named = {names[stage]: plan for stage, plan in plans.items()}
    return Proposal(named, steps, moving, size, versions, tuple(sorted(owners)))


def _owners_after(plans: Mapping[int, Plan], ledger: Ledger, stage: int) -> list[WorkerId]:
    return list(plans[stage].owner) if stage in plans else ledger.workers_of(stage)


def _plans(request: Request, ledger: Ledger, present: Collection[WorkerId]) -> dict[int, Plan]:
    common: dict[str, Any] = {
        "planner": request.planner, "tau": request.tau, "options": request.planner_options, "load": request.load
    }  # fmt: skip
    if request.kind == "move":
        return {stage: _by_hand(request, ledger, stage) for stage in request.stages}
    if request.kind == "rebalance":
        among = request.among
        return {stage: ledger.plan(stage, among or ledger.workers_of(stage), **common) for stage in request.stages}
    assert request.workers is not None
    staying = _staying(request, ledger, present, common)
    return {stage: ledger.plan(stage, staying, **common) for stage in request.stages}


def _staying(
    request: Request, ledger: Ledger, present: Collection[WorkerId], common: Mapping[str, Any]
) -> list[WorkerId]:
    """Which workers there shall be, the same for all operators concerned.

    More: those that are there, then new ones with the smallest free numbers. Fewer: as the planner decides for the
    operator with the most state, and the others follow.
    """
    wanted = request.workers
    assert wanted is not None
    owning = sorted({worker for stage in request.stages for worker in ledger.workers_of(stage)})
    if wanted >= len(owning):
        idle = sorted(set(present) - set(owning))
        new = (WorkerId(each) for each in count() if each not in owning and each not in idle)
        return sorted([*owning, *islice(chain(idle, new), wanted - len(owning))])
    heaviest = max(request.stages, key=lambda stage: (int(ledger.state_bytes[stage].sum()), -stage))
    mine = ledger.workers_of(heaviest)
    if len(mine) > wanted:
        mine = sorted(set(ledger.plan(heaviest, wanted, **common).owner))
    return sorted([*mine, *(worker for worker in owning if worker not in mine)][:wanted])


def _by_hand(request: Request, ledger: Ledger, stage: int) -> Plan:
    owners = ledger.owners[stage].tolist()
    goal = list(owners)
    for bin_, worker in request.targets.items():
        goal[whole("bin", bin_, 0, ledger.bins - 1)] = worker_id(f"worker of bin {bin_}", worker)
    workers = sorted(set(goal))
    state = ledger.state_bytes[stage].tolist()
    problem = Problem(np.ones(ledger.bins).tolist(), state, owners, sorted({*owners, *workers}), tau=ledger.bins)
    began = time.perf_counter()
    return Plan.of(problem, goal, sorted({*owners, *workers}), "by hand", (time.perf_counter() - began) * 1000)
