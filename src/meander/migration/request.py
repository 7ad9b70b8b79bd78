"""What a user asks for when bins are to move, checked when it is asked; and the plan that comes of it."""

from __future__ import annotations

import functools
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import chain, count, islice
from types import MappingProxyType
from typing import Any

import numpy as np

from meander.errors import Infeasible, InvalidOption
from meander.migration.budget import Budget, CopyBudget, SteeringPatience
from meander.migration.ledger import Ledger
from meander.migration.modes import Live, Mode
from meander.migration.steps import Step, joined
from meander.options import amount, plugins, positive, whole, worker_id
from meander.planning import Plan, Problem, planners
from meander.scheduling import schedule, schedules
from meander.types import Bytes, WorkerId

OTHERS = ("at", "executors_within_s", "keep_executors")
"""Options that belong neither to a planner, nor to a schedule, nor to a budget."""


@functools.cache
def modes() -> Mapping[str, Mode]:
    """The ways of moving bins by name: live, and those of installed packages."""
    return MappingProxyType({**plugins("meander.modes"), "live": Live()})


@dataclass(frozen=True)
class Request:
    """One wish for bins to move.

    Args:
        kind: rescale, rebalance or move.
        operators: the operators concerned, by number.
        budget: how much is done at a time.
        executors_within_s: how long to wait for executors that have to come first.
        workers: for rescale, how many there shall be.
        among: for rebalance, who takes part; None: those who own something.
        targets: for move, the new owner of each bin.
        tau: the load cap; None is the usual one, or the smallest that can be kept.
        is_even: whether everyone shall have as many bins as can be, whatever they weigh.
        load: what each bin of the operators is to count as; None: as it was measured.
        at_batch, at_time: the batch, or the time in seconds since 1970, from which on it shall be in effect.
        keep_executors: let no executor go.
        leaving: workers that shall hold nothing afterwards, whatever the plan says.
        releases: whether executors that hold nothing afterwards are let go.
        planner, planner_options: who chooses, and what it takes beyond the problem.
        operator_options: what it takes for an operator, unless `planner_options` has it.
        schedule, schedule_options: how the moves are cut into steps.
        mode: how bins are moved.
    """

    kind: str
    operators: tuple[int, ...]
    budget: Budget = field(default_factory=CopyBudget)
    executors_within_s: float = 60.0
    workers: int | None = None
    among: tuple[WorkerId, ...] | None = None
    targets: Mapping[int, WorkerId] = field(default_factory=dict)
    tau: float | None = None
    is_even: bool = False
    load: tuple[float, ...] | None = None
    planner: str = "free"
    planner_options: Mapping[str, Any] = field(default_factory=dict)
    operator_options: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    schedule: str = "batched"
    schedule_options: Mapping[str, Any] = field(default_factory=dict)
    mode: Mode = field(default_factory=Live)
    at_batch: int | None = None
    at_time: float | None = None
    keep_executors: bool = False
    leaving: frozenset[WorkerId] = frozenset()
    releases: bool = True


@dataclass(frozen=True)
class Proposal:
    """What would move: a plan for each operator, the steps, and what that costs.

    Args:
        plans: by operator, as in `query.assignment`.
        steps: what flips together, in order.
        bins, bytes: how much state changes hands.
        versions: how many versions it takes at least, with the budget for copies.
        workers: who owns bins afterwards.
        revision: of the ledger that it was planned from.
    """

    plans: Mapping[str, Plan]
    steps: tuple[Step, ...]
    bins: int
    bytes: Bytes
    versions: int
    workers: tuple[WorkerId, ...]
    revision: int = 0

    @property
    def notes(self) -> tuple[str, ...]:
        """What planners want to be known, such as why one could not do better."""
        notes = (f"{name}: {note}" for name, plan in self.plans.items() for note in plan.notes)
        return tuple(dict.fromkeys(notes))

    @property
    def planner_ms(self) -> float:
        """How long the planner took for all operators."""
        return sum(plan.elapsed_ms for plan in self.plans.values())


def request_of(
    kind: str,
    operators: tuple[int, ...],
    bins: int,
    defaults: Budget,
    within_s: float,
    options: Mapping[str, Any],
    operator_options: Mapping[int, Mapping[str, Any]] = MappingProxyType({}),
) -> Request:
    """Check options and make a request of them; every option goes to whom it belongs.

    Args:
        kind: rescale, rebalance or move.
        operators: the operators concerned.
        bins: how many bins each of them has.
        defaults: the budget where the options do not say otherwise.
        within_s: how long to wait for executors where the options do not say otherwise.
        options: everything else; `Request` has what is not a planner's or a schedule's.
        operator_options: what the planner is given for an operator, where the options do not say otherwise.
    """
    rest = dict(options)
    mode = _chosen("mode", rest.pop("mode", "live"), modes())
    batch, moment = _moment(rest.pop("at", None))
    planner, cut = rest.pop("planner", "free"), rest.pop("schedule", "batched")
    known = {"planner": planners(), "schedule": schedules()}
    for what, name in (("planner", planner), ("schedule", cut)):
        if name not in known[what]:
            raise InvalidOption(f"there is no {what} {name!r}; there are: {', '.join(known[what])}")
    request = Request(
        kind, operators, _budget(defaults, rest),
        executors_within_s=positive("executors_within_s", rest.pop("executors_within_s", within_s)),
        mode=mode, at_batch=batch, at_time=moment, keep_executors=bool(rest.pop("keep_executors", False)),
        workers=rest.pop("workers", None), among=rest.pop("among", None), targets=rest.pop("targets", {}),
        tau=rest.pop("tau", None), is_even=bool(rest.pop("is_even", False)),
        load=_per_bin(rest.pop("load", None), bins),
        leaving=frozenset(rest.pop("leaving", ())), releases=bool(rest.pop("releases", True)),
        planner=planner, schedule=cut,
        schedule_options={name: rest.pop(name) for name in list(rest) if name in schedules()[cut].options},
        planner_options={name: rest.pop(name) for name in list(rest) if name in planners()[planner].options},
        operator_options=operator_options,
    )  # fmt: skip
    if rest:
        names = [*schedules()[cut].options, *planners()[planner].options, *vars(request.budget), *OTHERS]
        raise InvalidOption(
            f"{kind} has no option {min(rest)!r}; with planner {planner} and schedule {cut} there are: "
            f"{', '.join(dict.fromkeys(names))}"
        )
    return mode.adapt(request)


def _budget(defaults: Budget, options: dict[str, Any]) -> Budget:
    """The budget that options ask for; takes its own out of them."""
    fields = {name: options.pop(name, value) for name, value in vars(defaults).items()}
    return CopyBudget(**fields) if isinstance(defaults, CopyBudget) else SteeringPatience(**fields)


def _chosen(what: str, name: object, known: Mapping[str, Mode]) -> Mode:
    if not isinstance(name, str) or name not in known:
        raise InvalidOption(f"there is no {what} {name!r}; there are: {', '.join(known)}")
    return known[name]


def _per_bin(load: Sequence[float] | None, bins: int) -> tuple[float, ...] | None:
    if load is None:
        return None
    if len(load) != bins:
        raise InvalidOption(f"load has {len(load)} entries but there are {bins} bins; give one for each")
    return tuple(float(amount(f"load of bin {bin_}", value)) for bin_, value in enumerate(load))


def operators_of(operator: str | int | None, known: Mapping[int, str]) -> tuple[int, ...]:
    """The operators that a user means by a number or a name, such as "0:count" or "count"; None: all."""
    if operator is None:
        return tuple(known)
    matches = [at for at, name in known.items() if operator in (at, name, name.partition(":")[2])]
    if len(matches) != 1 or isinstance(operator, bool):
        raise InvalidOption(f"there is no operator {operator!r}; there are: {', '.join(known.values())}")
    return (matches[0],)


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


def propose(request: Request, ledger: Ledger, names: Mapping[int, str], present: Collection[WorkerId]) -> Proposal:
    """Plan what the request asks for, from the assignment as it is now."""
    if request.is_even:
        even = replace(request, is_even=False, load=(1.0,) * ledger.bins)
        try:
            return propose(replace(even, tau=0.0), ledger, names, present)
        except Infeasible as error:
            return propose(replace(even, tau=(error.smallest_tau or 0.0) * (1 + 1e-9)), ledger, names, present)
    plans = _plans(request, ledger, present)
    name, options = request.schedule, dict(request.schedule_options)
    budget = request.budget
    if name == "batched" and not options and isinstance(budget, CopyBudget):
        # A step is what each worker can copy in one version, so that steps follow one another at every version.
        options = {"max_bytes": budget.copy_bytes, "max_bins": max(16, ledger.bins // 16)}
    cut = {
        operator: schedule(plan.before, plan.owner, name, state=ledger.state_bytes[operator].tolist(), **options)
        for operator, plan in plans.items()
    }
    steps = joined(cut, request.at_batch, request.mode.forced)
    moving = sum(len(plan.moves) for plan in plans.values())
    size = sum(step.bytes for step in steps)
    owners = {worker for operator in ledger.operators for worker in _owners_after(plans, ledger, operator)}
    versions = 0 if ledger.version < 0 or not moving else len(steps) + 1
    if versions and isinstance(budget, CopyBudget):
        versions = max(len(steps), -(-int(size) // budget.copy_bytes)) + 1 + budget.release_after
    named = {names[operator]: plan for operator, plan in plans.items()}
    return Proposal(named, steps, moving, size, versions, tuple(sorted(owners)), ledger.revision)


def _owners_after(plans: Mapping[int, Plan], ledger: Ledger, operator: int) -> list[WorkerId]:
    return list(plans[operator].owner) if operator in plans else ledger.workers_of(operator)


def _plans(request: Request, ledger: Ledger, present: Collection[WorkerId]) -> dict[int, Plan]:
    if request.kind == "move":
        return {operator: _by_hand(request, ledger, operator) for operator in request.operators}
    if request.kind == "rebalance":
        among = request.among
        return {each: _plan(request, ledger, each, among or ledger.workers_of(each)) for each in request.operators}
    staying = _staying(request, ledger, present)
    return {operator: _plan(request, ledger, operator, staying) for operator in request.operators}


def _plan(request: Request, ledger: Ledger, operator: int, workers: int | Collection[WorkerId]) -> Plan:
    options = {**request.operator_options.get(operator, {}), **request.planner_options}
    return ledger.plan(operator, workers, request.planner, request.tau, options=options, load=request.load)


def _staying(request: Request, ledger: Ledger, present: Collection[WorkerId]) -> list[WorkerId]:
    """Which workers there shall be, the same for all operators concerned.

    More: those that are there, then new ones with the smallest free numbers. Fewer: as the planner decides for the
    operator with the most state, and the others follow.
    """
    wanted = request.workers
    assert wanted is not None
    owning = sorted({worker for operator in request.operators for worker in ledger.workers_of(operator)})
    if wanted >= len(owning):
        idle = sorted(set(present) - set(owning))
        new = (WorkerId(each) for each in count() if each not in owning and each not in idle)
        return sorted([*owning, *islice(chain(idle, new), wanted - len(owning))])
    heaviest = max(request.operators, key=lambda operator: (int(ledger.state_bytes[operator].sum()), -operator))
    mine = ledger.workers_of(heaviest)
    if len(mine) > wanted:
        mine = sorted(set(_plan(request, ledger, heaviest, wanted).owner))
    return sorted([*mine, *(worker for worker in owning if worker not in mine)][:wanted])


def _by_hand(request: Request, ledger: Ledger, operator: int) -> Plan:
    owners = ledger.owners[operator].tolist()
    goal = list(owners)
    for bin_, worker in request.targets.items():
        goal[whole("bin", bin_, 0, ledger.bins - 1)] = worker_id(f"worker of bin {bin_}", worker)
    workers = sorted(set(goal))
    state = ledger.state_bytes[operator].tolist()
    problem = Problem(np.ones(ledger.bins).tolist(), state, owners, sorted({*owners, *workers}), tau=ledger.bins)
    began = time.perf_counter()
    return Plan.of(problem, goal, sorted({*owners, *workers}), "by hand", (time.perf_counter() - began) * 1000)
