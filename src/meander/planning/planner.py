"""What a planner is: a function from a problem to a target, with a name and a promise.

A planner decides only who owns what afterwards. Moves, cost and loads follow from that in one place, `Plan.of`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from time import perf_counter
from typing import Concatenate, Generic, NamedTuple, ParamSpec

from meander.options import Named
from meander.planning.plans import Plan
from meander.planning.problem import Problem
from meander.types import WorkerId

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
        starts_alone: whether a comparison begins with its own map, since its answer does not depend on who owns what
            now; or the name of the planner with whose map it begins.
    """

    kind = "planner"

    def __init__(
        self,
        target: Callable[Concatenate[Problem, Options], Target],
        keeps_cap: bool,
        contiguous: bool,
        name: str | None = None,
        starts_alone: bool | str = False,
    ) -> None:
        super().__init__(target, name)
        self.target = target
        self.keeps_cap = keeps_cap
        self.contiguous = contiguous
        self.starts_alone = starts_alone
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
    *, keeps_cap: bool, contiguous: bool = False, name: str | None = None, starts_alone: bool | str = False
) -> Callable[[Callable[Concatenate[Problem, Options], Target]], Planner[Options]]:
    """Make a planner of a function that decides a target; its name and docstring become the planner's."""

    def make(target: Callable[Concatenate[Problem, Options], Target]) -> Planner[Options]:
        return Planner(target, keeps_cap, contiguous, name, starts_alone)

    return make
