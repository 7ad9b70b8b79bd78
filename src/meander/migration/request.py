"""A wish for bins to move, the ways in which they can be moved, and the plan that comes of it."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain, count, islice
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from meander.errors import Infeasible
from meander.migration.ledger import Ledger
from meander.migration.protocol import OPEN_STEPS
from meander.migration.steps import COPY_BYTES, Budget, CopyBudget, Step, joined
from meander.options import whole, worker_id
from meander.pictures import bin_strip, facts, many
from meander.planning import Plan, Problem
from meander.scheduling import schedule
from meander.types import Bytes, WorkerId

if TYPE_CHECKING:
    from meander.migration.handle import Migration


class Mode(Protocol):
    """A way of moving bins.

    Ours is live: bins are copied ahead, flip at a version, and are released later. Others, to compare it with, are
    plug-ins under the entry points `meander.modes`.
    """

    name: str
    forced: bool
    """Whether bins flip as soon as their turn comes, and are read at that moment."""

    def adapt(self, request: Request) -> Request:
        """The request as this mode carries it out; raises `InvalidOption` where it cannot."""

    def run(self, migration: Migration) -> None:
        """Carry a migration out, or begin to."""

    def ended(self, migration: Migration) -> None:
        """The migration is over: clean up."""


class Live:
    """Let the engine do it, version by version."""

    name = "live"
    forced = False

    def adapt(self, request: Request) -> Request:
        """As it is."""
        return request

    def run(self, migration: Migration) -> None:
        """Submit the steps to the engine."""
        migration.submit()

    def ended(self, migration: Migration) -> None:
        """There is nothing to clean up."""


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


@dataclass(frozen=True, repr=False)
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

    def __repr__(self) -> str:
        return f"<Proposal {self}>"

    def __str__(self) -> str:
        steps = many(len(self.steps), "step")
        workers = ", ".join(map(str, self.workers))
        return f"{many(self.bins, 'bin')}, {self.bytes:,.0f} bytes in {steps}, to workers {workers}"

    def _repr_html_(self) -> str:
        shown = {
            "moves": f"{many(self.bins, 'bin')}, {self.bytes:,.0f} bytes",
            "in": f"{many(len(self.steps), 'step')}, at least {many(self.versions, 'version')}",
            **{f"note {number}": note for number, note in enumerate(self.notes, 1)},
        }
        pictures = [
            bin_strip(owner, f"{name} {when}")
            for name, plan in self.plans.items()
            for when, owner in (("now", plan.before), ("then", plan.owner))
        ]
        return facts("proposal", shown, *pictures)

    def to_dict(self) -> dict[str, Any]:
        """What it says, as plain lists and numbers, ready for JSON.

        Returns:
            The plans, the steps and what they cost.

        Example:
            >>> query.plan_rescale(3).to_dict()["workers"]
            [0, 1, 2]
        """
        return {
            "plans": {name: plan.to_dict() for name, plan in self.plans.items()},
            "steps": [{"bytes": step.bytes, "moves": [list(move) for move in step.moves]} for step in self.steps],
            "bins": self.bins,
            "bytes": self.bytes,
            "versions": self.versions,
            "workers": list(self.workers),
            "notes": list(self.notes),
        }

    @property
    def notes(self) -> tuple[str, ...]:
        """What planners want to be known, such as why one could not do better."""
        notes = (f"{name}: {note}" for name, plan in self.plans.items() for note in plan.notes)
        return tuple(dict.fromkeys(notes))

    @property
    def planner_ms(self) -> float:
        """How long the planner took for all operators."""
        return sum(plan.elapsed_ms for plan in self.plans.values())


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
    budget, joins = request.budget, False
    if name == "batched" and not options and isinstance(budget, CopyBudget):
        # A step is no more than each worker can copy in one version, so that the first ones give relief soon. Those
        # that are ready flip together.
        options = {"max_bytes": budget.copy_bytes or COPY_BYTES, "max_bins": max(16, ledger.bins // 16)}
        joins = not request.mode.forced
    cut = {
        operator: schedule(plan.before, plan.owner, name, state=ledger.state_bytes[operator].tolist(), **options)
        for operator, plan in plans.items()
    }
    steps = joined(cut, request.at_batch, request.mode.forced, joins)
    moving = sum(len(plan.moves) for plan in plans.values())
    size = sum(step.bytes for step in steps)
    owners = {worker for operator in ledger.operators for worker in _owners_after(plans, ledger, operator)}
    versions = 0 if ledger.version < 0 or not moving else len(steps) + 1
    if versions and isinstance(budget, CopyBudget):
        flips = -(-len(steps) // OPEN_STEPS) if joins else len(steps)
        versions = max(flips, -(-int(size) // (budget.copy_bytes or COPY_BYTES))) + 1 + budget.release_after
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
