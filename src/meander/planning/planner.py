"""What a planner is, and what it answers: a plan.

A planner is a function from a problem to a target, with a name and a promise. It decides only who owns what afterwards.
Moves, cost and loads follow from that in one place, `Plan.of`.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from types import MappingProxyType
from typing import Any, Concatenate, Generic, NamedTuple, ParamSpec

from meander.errors import InvalidPlan
from meander.options import Named, total
from meander.pictures import many
from meander.planning.problem import ROUNDING, Problem
from meander.types import BinId, Bytes, Move, WorkerId


@dataclass(frozen=True)
class Plan:
    """A target assignment with the moves that lead to it.

    Attributes:
        planner: the name of the planner that made it.
        before: the owner of each bin now.
        owner: the owner of each bin afterwards.
        workers: everyone who is there afterwards, ascending, also those who own nothing.
        moves: the bins that change their owner, ascending by bin.
        cost: bytes that move.
        gain: bytes that stay.
        loads: load of each worker afterwards.
        caps: the most load each worker may carry.
        elapsed_ms: how long the planner took.
        notes: what the planner wants to be known, such as why it could not do better.
    """

    planner: str
    before: tuple[WorkerId, ...]
    owner: tuple[WorkerId, ...]
    workers: tuple[WorkerId, ...]
    moves: tuple[Move, ...]
    cost: Bytes
    gain: Bytes
    loads: Mapping[WorkerId, float]
    caps: Mapping[WorkerId, float]
    elapsed_ms: float = field(default=0.0, compare=False)
    notes: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        problem: Problem,
        owner: Sequence[WorkerId],
        workers: Collection[WorkerId],
        planner: str = "by hand",
        elapsed_ms: float = 0.0,
        notes: Sequence[str] = (),
    ) -> Plan:
        """Derive moves, cost, gain and loads from a target owner map and the workers it is for."""
        target, state = tuple(owner), problem.state
        strangers = set(target) - set(workers)
        if len(target) != problem.bins or strangers:
            who = f"worker {min(strangers)}, who is not there" if strangers else f"{many(len(target), 'bin')}"
            raise InvalidPlan(
                f"the target names {who}; it must give each of the {many(problem.bins, 'bin')} to one of the workers"
            )
        moves = tuple(
            Move(BinId(j), source, to, state[j])
            for j, (source, to) in enumerate(zip(problem.owner, target, strict=True))
            if source != to
        )
        loads = dict.fromkeys(sorted(workers), 0.0)
        for worker, load in zip(target, problem.load, strict=True):
            loads[worker] += load
        cost = total([move.bytes for move in moves])
        return cls(
            planner=planner,
            before=problem.owner,
            owner=target,
            workers=tuple(loads),
            moves=moves,
            cost=cost,
            gain=total(state) - cost,
            loads=MappingProxyType(loads),
            caps=MappingProxyType(problem.caps(tuple(loads))),
            elapsed_ms=elapsed_ms,
            notes=tuple(notes),
        )

    def __hash__(self) -> int:
        return hash((self.planner, self.before, self.owner, self.workers))

    def __reduce__(self) -> tuple[Any, ...]:
        values = (getattr(self, name) for name in self.__dataclass_fields__)
        return Plan, tuple(dict(value) if isinstance(value, Mapping) else value for value in values)

    @property
    def over_cap(self) -> tuple[WorkerId, ...]:
        """Workers that carry more than their cap, ascending; empty for every planner that keeps the cap."""
        slack = sys.float_info.min  # below it, floats lose digits
        return tuple(w for w in self.workers if self.loads[w] > self.caps[w] * (1 + ROUNDING) + slack)

    def to_dict(self) -> dict[str, Any]:
        """What it says, as plain lists and numbers, ready for JSON.

        Returns:
            The fields, by name.
        """
        return {
            "planner": self.planner,
            "workers": list(self.workers),
            "before": list(self.before),
            "owner": list(self.owner),
            "moves": [move._asdict() for move in self.moves],
            "cost": self.cost,
            "gain": self.gain,
            "loads": {str(w): x for w, x in self.loads.items()},
            "caps": {str(w): x for w, x in self.caps.items()},
            "over_cap": list(self.over_cap),
            "elapsed_ms": self.elapsed_ms,
            "notes": list(self.notes),
        }


Options = ParamSpec("Options")


class Target(NamedTuple):
    """What a planner decides: the owner of each bin, everyone who will be there, and what the user should know."""

    owner: list[WorkerId]
    workers: list[WorkerId]
    notes: tuple[str, ...] = ()


class Planner(Named, Generic[Options]):
    """A planner: call it with a problem to get a plan.

    Attributes:
        name: what `meander.plan(problem, planner=...)` calls it.
        summary: one line for people.
        keeps_cap: whether every answer keeps the load cap (else `Infeasible` is raised).
        contiguous: whether every answer gives each worker one interval of neighbouring bins.
    """

    kind = "planner"

    def __init__(
        self,
        target: Callable[Concatenate[Problem, Options], Target],
        keeps_cap: bool,
        contiguous: bool,
        name: str | None = None,
    ) -> None:
        super().__init__(target, name)
        self.target = target
        self.keeps_cap = keeps_cap
        self.contiguous = contiguous
        self.__signature__ = inspect.signature(target).replace(return_annotation=Plan)

    def __call__(self, problem: Problem, /, *args: Options.args, **options: Options.kwargs) -> Plan:
        """Return the plan for this problem."""
        self.check_options(list(options))
        started = perf_counter()
        owner, workers, notes = self.target(problem, *args, **options)
        elapsed_ms = (perf_counter() - started) * 1e3
        return Plan.of(problem, owner, workers, self.name, elapsed_ms, notes)

    @functools.cached_property  # asking Python for a signature takes longer than a small plan
    def options(self) -> dict[str, inspect.Parameter]:
        """The options this planner takes, by name."""
        return dict(list(inspect.signature(self.target).parameters.items())[1:])


def planner(
    *, keeps_cap: bool, contiguous: bool = False, name: str | None = None
) -> Callable[[Callable[Concatenate[Problem, Options], Target]], Planner[Options]]:
    """Make a planner of a function that decides a target; its name and docstring become the planner's."""

    def make(target: Callable[Concatenate[Problem, Options], Target]) -> Planner[Options]:
        return Planner(target, keeps_cap, contiguous, name)

    return make
