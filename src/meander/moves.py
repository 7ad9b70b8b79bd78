"""The verbs that move bins, and who hears of it: the same for queries of Meander's own and for attached ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Generic, TypeVar

from meander.migration.events import Listener
from meander.migration.handle import Migration
from meander.migration.move_options import MoveOptions, options_of
from meander.migration.mover import Mover
from meander.migration.request import Proposal
from meander.options import mapping
from meander.types import BinId

Target = TypeVar("Target", int, str | int)
"""How an owner is named: by a worker's number, or by an executor's id."""


class Moves(Generic[Target]):
    """What `Query` and `Attached` share. Bins of an attached query are its state partitions, workers its executors."""

    def __init__(self, mover: Mover) -> None:
        self._mover = mover

    @property
    def migration(self) -> Migration | None:
        """The migration under way, or the last one."""
        return self._mover.migration

    def on_event(self, listener: Listener) -> None:
        """Call a function with every event from here on: one after the other, in a thread of its own.

        The query does not wait for it, and it may call anything of the query: `migration.cancel`, `rescale`, `stop`.
        What it raises is logged as a warning.

        Args:
            listener: a function of an `me.Event`.

        Example:
            >>> names = []
            >>> query.on_event(lambda event: names.append(event.name))
            >>> move = h.rescale(3)
            >>> "planned" in names, "finished" in names
            (True, True)
        """
        self._mover.engine.subscribe(listener)

    def off_event(self, listener: Listener) -> None:
        """Do not call a function any more; one that does not listen is no error.

        Args:
            listener: the same function or object that was given to `on_event`.

        Example:
            >>> query.on_event(print)
            >>> query.off_event(print)
        """
        self._mover.engine.unsubscribe(listener)

    def rebalance(
        self,
        tau: float | None = None,
        options: MoveOptions | None = None,
        *,
        operator: str | int | None = None,
        **keywords: Any,
    ) -> Migration:
        """Spread the load over the workers that are there, so that none has more than (1 + tau) times its share.

        Args:
            tau: without it 0.2, or the smallest that can be kept with bins as they are. One that you name is kept.
            options: how bins are moved, as a value.
            operator: one operator, by name or number; by default all.
            keywords: the same as keywords, and what the planner and the schedule take; see `me.MoveOptions`.

        Returns:
            The migration, which runs beside the query.

        Raises:
            InvalidOption: an option is not one that can be, or an attached query runs in local mode.
            Infeasible: there is no plan that keeps the `tau` that was named.
            QueryFailed: the query does not run any more.

        Example:
            >>> query.rebalance().reason
            ''
        """
        return self._migrate("rebalance", operator, _with_tau(tau, options, keywords))

    def plan_rebalance(
        self,
        tau: float | None = None,
        options: MoveOptions | None = None,
        *,
        operator: str | int | None = None,
        **keywords: Any,
    ) -> Proposal:
        """What `rebalance` would move if it were asked now; moves nothing.

        Args:
            tau: as for `rebalance`.
            options: as for `rebalance`.
            operator: as for `rebalance`.
            keywords: as for `rebalance`.

        Returns:
            The plan of each operator, the steps, and what they cost.

        Raises:
            InvalidOption: as for `rebalance`.
            Infeasible: as for `rebalance`.

        Example:
            >>> query.plan_rebalance(tau=0.5).workers
            (0, 1)
        """
        return self._plan("rebalance", operator, _with_tau(tau, options, keywords))

    def move(
        self,
        targets: Mapping[int, Target] | Mapping[BinId, Target],
        options: MoveOptions | None = None,
        *,
        operator: str | int | None = None,
        **keywords: Any,
    ) -> Migration:
        """Move these bins to these workers.

        Args:
            targets: the new owner of each bin: {bin: worker}; of an attached query {partition: executor}, by its id as
                `observe()` prints it.
            options: how bins are moved, as a value.
            operator: as for `rebalance`.
            keywords: as for `rebalance`, without a planner and without tau.

        Returns:
            The migration, which runs beside the query.

        Raises:
            InvalidOption: a bin, an owner or an option is not one that can be.
            QueryFailed: the query does not run any more.

        Example:
            >>> query.move({0: 1, 7: 1}).steps[0].moves[0].target
            1
        """
        goal = {"targets": self._owners(targets)}
        return self._migrate("move", operator, {**options_of(options, keywords), **goal})

    def plan_move(
        self,
        targets: Mapping[int, Target] | Mapping[BinId, Target],
        options: MoveOptions | None = None,
        *,
        operator: str | int | None = None,
        **keywords: Any,
    ) -> Proposal:
        """What `move` would cost if it were asked now; moves nothing.

        Args:
            targets: as for `move`.
            options: as for `move`.
            operator: as for `move`.
            keywords: as for `move`.

        Returns:
            The steps, and what they cost.

        Raises:
            InvalidOption: as for `move`.

        Example:
            >>> query.plan_move({0: 1, 15: 0}).bins
            2
        """
        goal = {"targets": self._owners(targets)}
        return self._plan("move", operator, {**options_of(options, keywords), **goal})

    def _owners(self, targets: Mapping[Any, Any]) -> dict[int, int]:
        """The new owner of each bin as plans have it."""
        return dict(mapping("targets", targets, "{bin: worker}"))

    def _migrate(self, kind: str, operator: str | int | None, options: Mapping[str, Any]) -> Migration:
        return self._mover.migrate(kind, operator, options)

    def _plan(self, kind: str, operator: str | int | None, options: Mapping[str, Any]) -> Proposal:
        return self._mover.plan(kind, operator, options)


def _with_tau(tau: float | None, options: MoveOptions | None, keywords: Mapping[str, Any]) -> dict[str, Any]:
    """What `rebalance` was given; its own tau counts before that of the options."""
    chosen = options_of(options, keywords)
    return {**chosen, "tau": chosen.get("tau") if tau is None else tau}
