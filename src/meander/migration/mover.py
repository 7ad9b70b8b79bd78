"""The user's requests to move bins, for either engine: checked, planned, carried out, one after the other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meander.clock import Clock, SystemClock
from meander.migration.budget import Budget
from meander.migration.handle import Migration
from meander.migration.movable import Movable
from meander.migration.request import Proposal, Request, operators_of, request_of


class Mover:
    """Moves the bins of one query. A request that comes while another one is under way replaces it."""

    def __init__(
        self,
        engine: Movable,
        defaults: Budget,
        executors_within_s: float = 60.0,
        clock: Clock | None = None,
        background: bool = True,
    ) -> None:
        self.engine, self.defaults, self.executors_within_s = engine, defaults, executors_within_s
        self.migration: Migration | None = None
        """The migration under way, or the last one."""
        self.operator_options: dict[str, dict[int, dict[str, Any]]] = {}
        """What a planner is given for an operator, where the request does not say otherwise, by planner."""
        self._clock, self._background = clock or SystemClock(), background

    def request(self, kind: str, operator: str | int | None, options: Mapping[str, Any]) -> Request:
        """Check options and make a request of them."""
        operators = operators_of(operator, self.engine.operators)
        known = self.operator_options.get(str(options.get("planner")), {})
        return request_of(kind, operators, self.engine.bins, self.defaults, self.executors_within_s, options, known)

    def propose(self, kind: str, operator: str | int | None, options: Mapping[str, Any]) -> Proposal:
        """What would move."""
        return self.engine.propose(self.request(kind, operator, options))

    def migrate(self, kind: str, operator: str | int | None, options: Mapping[str, Any]) -> Migration | Proposal:
        """Move bins as asked; with `dry_run` only say what would move."""
        options = dict(options)
        dry_run = options.pop("dry_run", False)
        request = self.request(kind, operator, options)
        if dry_run:
            return self.engine.propose(request)
        later = self.engine.recruits_first and request.workers is not None
        proposal = Proposal({}, (), 0, 0, 0, ()) if later else self.engine.propose(request)
        self.engine.check_active("move its bins")
        return self.move(request, proposal)

    def move(self, request: Request, proposal: Proposal) -> Migration:
        """Begin a migration."""
        if self.migration is not None:
            self.migration.give_way()
        self.migration = Migration(self.engine, request, proposal, self._clock).start(self._background)
        return self.migration

    def resume(self, number: int, proposal: Proposal, budget: Budget) -> None:
        """Hold a migration that a driver before this one has begun."""
        request = Request("resume", tuple(self.engine.ledger().operators), budget)
        self.migration = Migration(self.engine, request, proposal, self._clock).resume(number)
