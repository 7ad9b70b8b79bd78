"""The balancer of a running query, whichever engine runs it: it looks at every batch, decides, and moves bins live."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Protocol

from meander.control.policies import Action, Choice, Decision, Policy, View
from meander.errors import Infeasible, InvalidOption, MeanderError
from meander.logs import logger
from meander.migration.handle import Migration
from meander.migration.movable import Movable
from meander.migration.mover import Mover
from meander.migration.request import Proposal, Request
from meander.pictures import many
from meander.planning import planners

LOOK_EVERY_S = 0.1
MAX_DECISIONS = 1000
NOT_FOR_BALANCERS = ("at", "mode", "operator", "workers")


class Balanced(Movable, Protocol):
    """An engine that a balancer can look at."""

    def view(self, operator: int) -> View:
        """What a policy sees of an operator."""


class Balancer:
    """Keeps one query balanced, in a thread of its own, until it is stopped or the query ends."""

    def __init__(
        self,
        engine: Balanced,
        mover: Mover,
        policies: Mapping[int, Policy],
        options: Mapping[str, Any],
        every_s: float = LOOK_EVERY_S,
        waits: bool = True,
    ) -> None:
        for unfit in NOT_FOR_BALANCERS:
            if unfit in options:
                raise InvalidOption(f"keep_balanced has no option {unfit!r}: it moves bins live, when it is time to")
        self._engine, self._mover, self._policies = engine, mover, policies
        self._every_s, self._waits = every_s, waits
        self._options = {"planner": next(iter(policies.values())).planner, **options}
        for operator in policies:
            mover.request("rebalance", operator, self._options)  # an option that nobody takes is refused now
        self._decisions: deque[Decision] = deque(maxlen=MAX_DECISIONS)
        self._since = engine.status().version
        self._seen: dict[int, int] = {}
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="meander-balancer", daemon=True)

    def __repr__(self) -> str:
        state = "looking" if self.is_active else "stopped"
        return f"<Balancer: {many(len(self._decisions), 'decision')}, {state}>"

    @property
    def decisions(self) -> list[Decision]:
        """What it has decided, oldest first; the last thousand."""
        return list(self._decisions)

    @property
    def decision(self) -> Decision | None:
        """What it decided last."""
        return self._decisions[-1] if self._decisions else None

    @property
    def is_active(self) -> bool:
        """Whether it still looks."""
        return self._thread.is_alive()

    def start(self) -> Balancer:
        """Begin to look."""
        self._thread.start()
        return self

    def stop(self) -> None:
        """Look no more; a migration that is under way goes on.

        Example:
            >>> balancer = query.keep_balanced(alpha=0.5)
            >>> balancer.stop()
            >>> balancer.is_active
            False
        """
        self._stopped.set()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join()

    def look(self) -> None:
        """Look once at every operator that had a batch since the last look, decide, and act."""
        for operator, policy in self._policies.items():
            view = self._engine.view(operator)
            samples = tuple(each for each in view.samples if each.batch > self._since)
            if not samples or samples[-1].batch == self._seen.get(operator):
                continue
            self._seen[operator] = samples[-1].batch
            try:
                self._look(operator, policy, replace(view, samples=samples))
            except MeanderError as problem:
                self._note(operator, Choice("stay", f"it could not be done: {problem}", 0.0, 0), 0)
                policy.moved(any_bin=False)

    def _run(self) -> None:
        while not self._stopped.wait(self._every_s):
            if not self._engine.status().is_active:
                return
            try:
                self.look()
            except Exception:
                logger.exception("the balancer could not look; it tries again", extra={"query": self._engine.name})

    def _look(self, operator: int, policy: Policy, view: View) -> None:
        migration = self._mover.migration
        is_moving = migration is not None and not migration.is_over
        choice = policy.decide(replace(view, is_moving=is_moving))
        if choice.action == "stay" or self._stopped.is_set():
            self._note(operator, choice, 0)
            return
        request, proposal = self._plan(operator, choice)
        if proposal.bins:
            self._note(operator, choice, proposal.bins)
            migration = self._mover.move(request, proposal)
            if self._waits:
                self._await(migration)
                # What was counted meanwhile is of the time of the migration: the policy's rest begins after it.
                policy.decide(replace(self._engine.view(operator), is_moving=True))
        else:
            nothing = f"{choice.reason}; the planner found nothing to move"
            self._note(operator, Choice(choice.action, nothing, choice.imbalance, choice.workers), 0)
        policy.moved(any_bin=bool(proposal.bins))

    def _plan(self, operator: int, choice: Choice) -> tuple[Request, Proposal]:
        """What is to move, planned with the figures that the policy decided on."""
        options = dict(self._options)
        known = {*planners()[str(options["planner"])].options, "load", "tau"}
        options |= {name: value for name, value in choice.options.items() if name in known and value is not None}
        kind = "rescale" if choice.action == "rescale" else "rebalance"
        if kind == "rescale":
            options["workers"] = choice.workers
        request = self._mover.request(kind, operator, options)
        try:
            return request, self._engine.propose(request)
        except Infeasible:
            if "tau" in self._options or "tau" not in options:
                raise
            # With bins as they are nobody can keep the policy's own cap: the smallest that can be kept is next best.
            request = self._mover.request(kind, operator, {**options, "tau": None})
            return request, self._engine.propose(request)

    def _await(self, migration: Migration) -> None:
        while not migration.is_over and not self._stopped.is_set() and self._engine.status().is_active:
            self._stopped.wait(0.05)

    def _note(self, operator: int, choice: Choice, bins: int) -> None:
        name, version = self._engine.operators[operator], self._engine.status().version
        action: Action = choice.action
        before = next((each for each in reversed(self._decisions) if each.operator == name), None)
        if before is not None and (before.version, before.action) == (version, action):
            return
        now = Decision(version, name, action, choice.reason, choice.imbalance, choice.workers, bins)
        self._decisions.append(now)
        if action != "stay":
            self._engine.emit(
                "balancer", operator=name, action=action, reason=choice.reason, imbalance=choice.imbalance,
                workers=choice.workers, bins=bins,
            )  # fmt: skip
