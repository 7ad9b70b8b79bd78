"""What users ask for when bins are to move, for either engine: checked, planned, carried out, one after the other."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any

from meander.clock import Clock, SystemClock
from meander.errors import InvalidOption
from meander.migration.handle import Migration
from meander.migration.movable import Movable
from meander.migration.request import Live, Mode, Proposal, Request
from meander.migration.steps import Budget, CopyBudget, SteeringPatience
from meander.options import Plugins, amount, positive, whole
from meander.pictures import many
from meander.planning import planners
from meander.scheduling import schedules

OTHERS = ("at", "executors_within_s", "keep_executors")
"""Options that belong neither to a planner, nor to a schedule, nor to a budget."""


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
        self._operator_options: dict[str, dict[int, Mapping[str, Any]]] = {}
        self._clock, self._background = clock or SystemClock(), background

    def prefer(self, planner: str, options: Mapping[int, Mapping[str, Any]]) -> None:
        """Give a planner these options for an operator from here on, where the request does not say otherwise."""
        self._operator_options[planner] = {**self._operator_options.get(planner, {}), **options}

    def request(self, kind: str, operator: str | int | None, options: Mapping[str, Any]) -> Request:
        """Check options and make a request of them."""
        if "dry_run" in options:
            raise InvalidOption(f"{kind} has no option 'dry_run': plan_{kind} takes the same, and moves nothing")
        if kind == "move":
            for unfit in sorted({"planner", "tau"} & options.keys()):
                raise InvalidOption(
                    f"move has no option {unfit!r}: it is you who says which {self.engine.unit} go where"
                )
        operators = operators_of(operator, self.engine.operators)
        known = self._operator_options.get(str(options.get("planner")), {})
        return request_of(
            kind, operators, self.engine.bins, self.engine.mode, self.defaults, self.executors_within_s, options, known,
            self._clock.wall_ms() / 1000,
        )  # fmt: skip

    def plan(self, kind: str, operator: str | int | None, options: Mapping[str, Any]) -> Proposal:
        """Say what would move, and move nothing."""
        return self.engine.propose(self.request(kind, operator, options))

    def migrate(self, kind: str, operator: str | int | None, options: Mapping[str, Any]) -> Migration:
        """Move bins as asked."""
        request = self.request(kind, operator, options)
        proposal = self.engine.draft(request)
        self.engine.check_active("move its bins")
        return self.move(request, proposal)

    def move(self, request: Request, proposal: Proposal) -> Migration:
        """Begin a migration."""
        if self.migration is not None:
            self.migration.give_way()
        migration = Migration(self.engine, request, proposal, self._clock)
        self.migration = migration  # before it starts: a listener may ask for it at the first event
        return migration.start(self._background)

    def resume(self, number: int, proposal: Proposal, budget: Budget) -> None:
        """Hold a migration that a driver before this one has begun."""
        request = Request("resume", tuple(self.engine.ledger().operators), budget)
        self.migration = Migration(self.engine, request, proposal, self._clock).resume(number, self._background)


@functools.cache
def modes() -> Mapping[str, Mode]:
    """The ways of moving bins by name: live, and those of installed packages."""
    return Plugins("meander.modes", {"live": Live()})


def request_of(
    kind: str,
    operators: tuple[int, ...],
    bins: int,
    mode: Mode,
    defaults: Budget,
    within_s: float,
    options: Mapping[str, Any],
    operator_options: Mapping[int, Mapping[str, Any]] = MappingProxyType({}),
    now_s: float = 0.0,
) -> Request:
    """Check options and make a request of them; every option goes to whom it belongs.

    Args:
        kind: rescale, rebalance or move.
        operators: the operators concerned.
        bins: how many bins each of them has.
        mode: how bins are moved where the options do not say otherwise.
        defaults: the budget where the options do not say otherwise.
        within_s: how long to wait for executors where the options do not say otherwise.
        options: everything else; `Request` has what is not a planner's or a schedule's.
        operator_options: what the planner is given for an operator, where the options do not say otherwise.
        now_s: the time, in seconds since 1970: a time of day is the next one after it.
    """
    rest = dict(options)
    if "mode" in rest:
        mode = _chosen("mode", rest.pop("mode"), modes())
    batch, moment = _moment(rest.pop("at", None), now_s)
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
        raise InvalidOption(
            f"load has {many(len(load), 'entry', 'entries')} but there are {many(bins, 'bin')}; give one for each"
        )
    return tuple(float(amount(f"load of bin {bin_}", value)) for bin_, value in enumerate(load))


def operators_of(operator: str | int | None, known: Mapping[int, str]) -> tuple[int, ...]:
    """The operators that a user means by a number or a name, such as "0:count" or "count"; None: all."""
    if operator is None:
        return tuple(known)
    matches = [at for at, name in known.items() if operator in (at, name, name.partition(":")[2])]
    if len(matches) != 1 or isinstance(operator, bool):
        raise InvalidOption(f"there is no operator {operator!r}; there are: {', '.join(known.values())}")
    return (matches[0],)


def _moment(at: object, now_s: float) -> tuple[int | None, float | None]:
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
        now = datetime.fromtimestamp(now_s)
        then = now.replace(hour=clock.hour, minute=clock.minute, second=clock.second, microsecond=0)
        return None, (then if then > now else then + timedelta(days=1)).timestamp()
    raise InvalidOption(f"at is {at!r}; a time of day is written '02:00' or '02:00:30'")
