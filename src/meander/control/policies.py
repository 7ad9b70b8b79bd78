"""The policies of a balancer: each sees a view of one operator and decides, with a reason. No clock and no thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, Protocol

import numpy as np

from meander.control.straggler import Straggler, StragglerRules
from meander.control.threshold import Look, Threshold, ThresholdRules
from meander.control.window import Sample
from meander.errors import InvalidOption
from meander.measure import spread
from meander.types import WorkerId

Action = Literal["stay", "balance", "rescale"]


@dataclass(frozen=True, eq=False)
class View:
    """What a policy sees of one operator.

    Args:
        samples: what was counted in the last batches, oldest first.
        workers: who is there, with or without bins.
        capacities: how fast they are, where they are not alike.
        batch_ms: how long the last batch took.
        trigger_ms: the trigger's interval; 0: as fast as it goes.
        is_moving: a migration is under way.
    """

    samples: tuple[Sample, ...]
    workers: tuple[WorkerId, ...]
    capacities: Mapping[WorkerId, float] = field(default_factory=dict)
    batch_ms: float = 0.0
    trigger_ms: float = 0.0
    is_moving: bool = False


@dataclass(frozen=True, repr=False)
class Decision:
    """What was decided after a version: to stay, to balance or to rescale; why; and what was moved for it.

    Args:
        version: the version, or batch, after which it was decided.
        operator: which operator it is about, as in `query.assignment`.
        action: stay, balance or rescale.
        reason: in one sentence, with the figures.
        imbalance: how uneven it was, in the policy's own measure.
        workers: how many workers are wanted.
        bins: how many bins the plan moves.
    """

    version: int
    operator: str
    action: Action
    reason: str
    imbalance: float
    workers: int
    bins: int = 0

    def to_dict(self) -> dict[str, Any]:
        """What it says, as plain texts and numbers, ready for JSON.

        Returns:
            The fields, by name.
        """
        return asdict(self)

    def __repr__(self) -> str:
        return f"<Decision {self}>"

    def __str__(self) -> str:
        return f"{self.operator} after version {self.version}: {self.action}, {self.reason}"


@dataclass(frozen=True)
class Choice:
    """What a policy wants: an action with its reason, and what a plan for it is made with."""

    action: Action
    reason: str
    imbalance: float
    workers: int
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of the request: load, tau, and what planners take beside the problem."""


class Policy(Protocol):
    """Decides whether it is time to move."""

    planner: str
    """The planner that fits it, where the user names none."""

    def decide(self, view: View) -> Choice:
        """What to do now."""

    def moved(self, any_bin: bool) -> None:
        """What it wanted has been done, or there was nothing to move."""


class StragglerPolicy:
    """Lightens the worker that all others wait for (Ls-Stream)."""

    planner = "annealing"

    def __init__(self, rules: StragglerRules) -> None:
        self.rules = rules
        self._straggler = Straggler(rules)

    def decide(self, view: View) -> Choice:
        """What to do now."""
        for sample in view.samples:
            self._straggler.note(sample)
        verdict = self._straggler.decide(view.workers, view.is_moving)
        options: dict[str, Any] = {}
        if verdict.action != "stay" and verdict.view is not None:
            options = {**verdict.view.options(self.rules.target(verdict.workers)), "load": verdict.view.load.tolist()}
        return Choice(verdict.action, verdict.reason, verdict.imbalance, verdict.workers, options)

    def moved(self, any_bin: bool) -> None:
        """What it wanted has been done, or there was nothing to move."""
        self._straggler.balanced(any_bin)


class ThresholdPolicy:
    """Rebalances when the busiest worker has been too far above the mean for a few looks, and it would pay."""

    planner = "free"

    def __init__(self, rules: ThresholdRules) -> None:
        self.rules = rules
        self._threshold = Threshold(rules)
        self._look: Look | None = None

    def decide(self, view: View) -> Choice:
        """What to do now."""
        self._look = look = look_of(view)
        advice = self._threshold.decide(look)
        options: dict[str, Any] = {"tau": self.rules.tau} if advice.move else {}
        return Choice("balance" if advice.move else "stay", advice.reason, look.imbalance, len(view.workers), options)

    def moved(self, any_bin: bool) -> None:
        """What it wanted has been done, or there was nothing to move."""
        if self._look is not None:
            self._threshold.moved(self._look)


def look_of(view: View) -> Look:
    """What the threshold wants to know, from the busy times of the last batch."""
    if not view.samples:
        return Look(-1, 0.0, 0, view.batch_ms, view.trigger_ms, 0.0, view.is_moving)
    newest = view.samples[-1]
    owners = sorted({WorkerId(each) for each in (*newest.owner, *view.workers)})
    busy_s = [newest.busy_s.get(worker, 0.0) for worker in owners]
    capacities = [view.capacities.get(worker, 1.0) for worker in owners]
    idle = len(set(view.workers) - set(newest.owner))
    over = spread(busy_s, capacities)[0] if any(busy_s) else 0.0
    fair_s = sum(busy_s) / sum(capacities)
    straggler_s = max(np.array(busy_s) / np.array(capacities)) - fair_s
    return Look(
        newest.batch, over, idle, view.batch_ms, view.trigger_ms, max(0.0, straggler_s * 1000), view.is_moving
    )  # fmt: skip


POLICIES: dict[str, tuple[type[Any], Callable[[Any], Policy]]] = {
    "straggler": (StragglerRules, StragglerPolicy),
    "threshold": (ThresholdRules, ThresholdPolicy),
}


def policy_factory(name: str, options: dict[str, Any], workers: Sequence[int]) -> Callable[[], Policy]:
    """What makes the policy of this name for each operator; takes its rules out of the options.

    Raises:
        InvalidOption: there is no such policy, a rule has a value it cannot have, or could never fire.
    """
    if name not in POLICIES:
        raise InvalidOption(f"there is no policy {name!r}; there are: {', '.join(POLICIES)}")
    rules_type, make = POLICIES[name]
    rules = rules_type(**{each.name: options.pop(each.name) for each in fields(rules_type) if each.name in options})
    if isinstance(rules, StragglerRules):
        rules.limit(len(workers))
    return lambda: make(rules)
