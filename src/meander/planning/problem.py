"""The question a planner answers: these bins, these owners, that many workers, this load cap."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from meander.errors import InvalidProblem
from meander.options import amount, kind, listed, number, whole, worker_id
from meander.pictures import many
from meander.types import Assignment, BinId, Bytes, WorkerId, is_contiguous

ROUNDING = 1e-9
"""A load counts as within its cap up to this relative excess: sums of floats are not exact."""

LARGEST_NUMBER = 1e100
"""Loads, sizes and capacities beyond this are refused: their sums and products would leave the range of floats."""

LARGEST_WORKER_COUNT = 1_000_000


@dataclass(frozen=True, init=False)
class Problem:
    """What is known before a migration: bins, owners, the workers wanted and the load cap.

    Args:
        load: work of each bin, in any unit, at least 0.
        state: bytes of state of each bin, at least 0.
        owner: the worker that owns each bin now (a sequence of ids, or an `Assignment`).
        workers: how many workers are wanted, or exactly which ones.
        tau: every worker's load may be at most (1 + tau) times its fair share.
        capacities: relative speed of workers; a worker that is not named has 1.0. The fair share is proportional
            to it. A list gives the capacities of workers 0, 1, 2, ...
        must_leave: workers that may own nothing afterwards.
        pinned: bins that must stay where they are.
        idle: workers that are there already and own nothing.

    Raises:
        InvalidProblem: the message names the bin or the field that is wrong.

    A worker that stays keeps its id. More workers than there are get new ids, above all present ones. Fewer: the
    planner chooses who leaves, unless `must_leave` or an explicit set of workers settles it.
    """

    load: tuple[float, ...]
    state: tuple[Bytes, ...]
    owner: tuple[WorkerId, ...]
    workers: int | tuple[WorkerId, ...]
    tau: float = 0.2
    capacities: Mapping[WorkerId, float] = field(default_factory=dict)
    must_leave: tuple[WorkerId, ...] = ()
    pinned: tuple[BinId, ...] = ()
    idle: tuple[WorkerId, ...] = ()

    def __init__(
        self,
        load: Iterable[float],
        state: Iterable[Bytes],
        owner: Iterable[int] | Assignment,
        workers: int | Collection[int],
        tau: float = 0.2,
        capacities: Mapping[int, float] | Sequence[float] = MappingProxyType({}),
        must_leave: Iterable[int] = (),
        pinned: Iterable[int] = (),
        idle: Iterable[int] = (),
    ) -> None:
        def put(name: str, value: object) -> None:
            object.__setattr__(self, name, value)

        put("load", _amounts("load", load))
        put("state", _amounts("state", state))
        owners = owner.owner if isinstance(owner, Assignment) else listed("owner", owner, InvalidProblem)
        put("owner", tuple(_worker(f"owner of bin {j}", w) for j, w in enumerate(owners)))
        if not self.load:
            raise InvalidProblem("a problem needs at least one bin; load is empty")
        for name in ("state", "owner"):
            if len(getattr(self, name)) != len(self.load):
                raise InvalidProblem(
                    f"{name} has {many(len(getattr(self, name)), 'entry', 'entries')} but load has {len(self.load)}; "
                    "give one of each for every bin"
                )
        put("workers", _wanted(workers))
        tau = number("tau", tau, InvalidProblem)
        if not 0 <= tau <= LARGEST_NUMBER:
            raise InvalidProblem(f"tau is {tau}; it must be a finite number of at least 0, such as 0.2")
        put("tau", tau)
        put("idle", _ids("idle", idle))
        put("must_leave", _ids("must_leave", must_leave))
        pins = pinned if isinstance(pinned, Set) else listed("pinned", pinned, InvalidProblem)
        put("pinned", tuple(sorted({_bin(b, len(self.load)) for b in pins})))
        self._check_workers()
        put("capacities", MappingProxyType(self._capacities(capacities)))

    def __hash__(self) -> int:
        return hash((self.load, self.state, self.owner, self.workers, self.tau, self.must_leave, self.pinned))

    def __reduce__(self) -> tuple[Any, ...]:
        return Problem.from_dict, (self.to_dict(),)

    def _check_workers(self) -> None:
        busy = sorted(set(self.idle) & set(self.owner))
        if busy:
            raise InvalidProblem(f"worker {busy[0]} is listed as idle but owns bin {self.owner.index(busy[0])}")
        strangers = sorted(set(self.must_leave) - set(self.current))
        if strangers:
            raise InvalidProblem(
                f"must_leave names worker {strangers[0]}, which is not there; there are workers {_some(self.current)}"
            )
        if not isinstance(self.workers, int):
            kept = sorted(set(self.workers) & set(self.must_leave))
            if kept:
                raise InvalidProblem(f"worker {kept[0]} is both wanted and in must_leave; name it in one of them")
        for j in self.pinned:
            if self.owner[j] not in self.survivors:
                raise InvalidProblem(
                    f"bin {j} is pinned to worker {self.owner[j]}, which has to leave; unpin the bin or keep the worker"
                )
        if len(self.holders) > self.wanted:
            raise InvalidProblem(
                f"{many(len(self.holders), 'worker')} hold pinned bins but only {self.wanted} may stay; "
                "unpin bins or keep more workers"
            )

    def _capacities(self, capacities: Mapping[int, float] | Sequence[float]) -> dict[WorkerId, float]:
        pairs = (
            capacities.items()
            if isinstance(capacities, Mapping)
            else enumerate(listed("capacities", capacities, InvalidProblem))
        )
        known = {*self.current, *self.candidates}
        checked = {}
        for key, value in pairs:
            worker = _worker("a worker in capacities", key)
            capacity = number(f"capacity of worker {worker}", value, InvalidProblem)
            if not 1 / LARGEST_NUMBER <= capacity <= LARGEST_NUMBER:
                raise InvalidProblem(f"capacity of worker {worker} is {capacity}; it must be finite and above 0")
            if worker not in known:
                raise InvalidProblem(
                    f"capacities names worker {worker}, which is neither there nor wanted; "
                    f"the workers are {_some(sorted(known))}"
                )
            checked[worker] = capacity
        return dict(sorted(checked.items()))

    # --- who is there, and who will be ---

    @property
    def bins(self) -> int:
        """Number of bins, m."""
        return len(self.load)

    @cached_property
    def current(self) -> tuple[WorkerId, ...]:
        """Workers that are there now, ascending: all owners and the idle ones."""
        return tuple(sorted({*self.owner, *self.idle}))

    @property
    def wanted(self) -> int:
        """Number of workers afterwards, n'."""
        return self.workers if isinstance(self.workers, int) else len(self.workers)

    @cached_property
    def survivors(self) -> tuple[WorkerId, ...]:
        """Present workers that may stay, ascending. Where there are more than `wanted`, the planner chooses."""
        if isinstance(self.workers, int):
            return tuple(w for w in self.current if w not in self.must_leave)
        return tuple(w for w in self.current if w in self.workers)

    @cached_property
    def newcomers(self) -> tuple[WorkerId, ...]:
        """Workers that will be added, ascending."""
        if not isinstance(self.workers, int):
            return tuple(w for w in self.workers if w not in self.current)
        first = self.current[-1] + 1
        return tuple(WorkerId(w) for w in range(first, first + self.wanted - len(self.survivors)))

    @cached_property
    def candidates(self) -> tuple[WorkerId, ...]:
        """Everyone who may be there afterwards, ascending: exactly those who will be, unless the planner chooses."""
        return tuple(sorted((*self.survivors, *self.newcomers)))

    @cached_property
    def holders(self) -> frozenset[WorkerId]:
        """Workers that hold pinned bins, and so have to stay."""
        return frozenset(self.owner[j] for j in self.pinned)

    @property
    def planner_chooses(self) -> bool:
        """Whether more workers may stay than are wanted, so that the planner decides who leaves."""
        return len(self.survivors) > self.wanted

    @cached_property
    def default_targets(self) -> tuple[WorkerId, ...]:
        """Everyone who is there afterwards, ascending, for planners that do not weigh who leaves.

        Where more may stay than are wanted, the owners of pinned bins stay, then those with the lowest ids.
        """
        stay = sorted(self.survivors, key=lambda w: (w not in self.holders, w))[: self.wanted]
        return tuple(sorted((*stay, *self.newcomers)))

    # --- the load cap ---

    @cached_property
    def total_load(self) -> float:
        """Load of all bins together."""
        return math.fsum(self.load)

    def capacity(self, worker: WorkerId) -> float:
        """The relative speed of a worker, 1.0 unless stated.

        Args:
            worker: whose.

        Returns:
            The speed.

        Example:
            >>> Problem([2, 1], [5, 5], [0, 0], 2, capacities={0: 2.0}).capacity(0)
            2.0
        """
        return self.capacities.get(worker, 1.0)

    def caps(self, workers: Collection[WorkerId]) -> dict[WorkerId, float]:
        """The largest load each of these workers may carry, if these are all there will be.

        Args:
            workers: who there will be.

        Returns:
            The cap of each.

        Example:
            >>> Problem([2, 2], [5, 5], [0, 0], 2, tau=0.5).caps([0, 1])
            {0: 3.0, 1: 3.0}
        """
        capacity = {w: self.capacity(w) for w in workers}
        per_unit = (1 + self.tau) * self.total_load / math.fsum(capacity.values())
        return {w: per_unit * c for w, c in capacity.items()}

    @cached_property
    def has_equal_capacities(self) -> bool:
        """Whether all workers that may be there afterwards are equally fast."""
        return len({self.capacity(w) for w in self.candidates}) <= 1

    # --- the same, for kernels ---

    @cached_property
    def load_array(self) -> NDArray[np.float64]:
        """`load` as a float64 vector."""
        return np.array(self.load, dtype=np.float64)

    @cached_property
    def state_array(self) -> NDArray[np.float64]:
        """`state` as a float64 vector."""
        return np.array(self.state, dtype=np.float64)

    @cached_property
    def is_contiguous(self) -> bool:
        """Whether every worker owns one interval of neighbouring bins now."""
        return is_contiguous(self.owner)

    # --- as JSON ---

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Problem:
        """A problem of what `to_dict` gives, as read from JSON.

        Args:
            data: the fields, by name.

        Returns:
            The problem, checked.

        Raises:
            InvalidProblem: a field is unknown or missing, or the problem makes no sense.

        Example:
            >>> Problem.from_dict({"load": [2, 1], "state": [5, 5], "owner": [0, 0], "workers": 2}).bins
            2
        """
        if not isinstance(data, Mapping):
            raise InvalidProblem(f"a problem is a JSON object with load, state, owner and workers, not {kind(data)}")
        fields = list(cls.__dataclass_fields__)
        for key in data:
            if key not in fields:
                raise InvalidProblem(f"a problem has no field {key!r}; the fields are {', '.join(fields)}")
        for key in ("load", "state", "owner", "workers"):
            if key not in data:
                raise InvalidProblem(f"the problem lacks the field {key!r}; it needs load, state, owner and workers")
        return cls(**data)

    def to_dict(self) -> dict[str, Any]:
        """What it asks, as plain lists and numbers, ready for JSON; options that were not used are left out.

        Returns:
            The fields, by name.

        Example:
            >>> Problem.from_dict(Problem([2, 1], [5, 5], [0, 0], 2).to_dict()).workers
            2
        """
        plain: dict[str, Any] = {
            "load": list(self.load),
            "state": list(self.state),
            "owner": list(self.owner),
            "workers": self.workers if isinstance(self.workers, int) else list(self.workers),
            "tau": self.tau,
        }
        if self.capacities:
            plain["capacities"] = {str(w): c for w, c in self.capacities.items()}
        for name in ("must_leave", "pinned", "idle"):
            if getattr(self, name):
                plain[name] = list(getattr(self, name))
        return plain


def _some(ids: Sequence[int]) -> str:
    shown = ", ".join(map(str, ids[:12]))
    return shown if len(ids) <= 12 else f"{shown} and {len(ids) - 12} more"


def _amounts(name: str, values: object) -> tuple[int | float, ...]:
    entries = enumerate(listed(name, values, InvalidProblem))
    return tuple(amount(f"{name} of bin {j}", value, InvalidProblem, LARGEST_NUMBER) for j, value in entries)


def _worker(what: str, value: object) -> WorkerId:
    return WorkerId(worker_id(what, value, InvalidProblem))


def _ids(name: str, values: Iterable[int]) -> tuple[WorkerId, ...]:
    # A set is allowed: ids have no order.
    ids = values if isinstance(values, Set) else listed(name, values, InvalidProblem)
    return tuple(sorted({_worker(f"a worker in {name}", w) for w in ids}))


def _bin(value: object, bins: int) -> BinId:
    if isinstance(value, np.integer):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < bins:
        raise InvalidProblem(f"pinned names bin {value!r}; the bins are 0 to {bins - 1}")
    return BinId(value)


def _wanted(workers: object) -> int | tuple[WorkerId, ...]:
    if isinstance(workers, np.integer):
        workers = int(workers)
    if isinstance(workers, int) and not isinstance(workers, bool):
        return whole("workers", workers, 1, LARGEST_WORKER_COUNT, InvalidProblem)
    if isinstance(workers, str | bytes | Mapping | float | bool) or not isinstance(workers, Iterable):
        raise InvalidProblem(f"workers must be how many workers are wanted or a list of their ids, not {kind(workers)}")
    wanted = _ids("workers", workers)
    if not wanted:
        raise InvalidProblem("workers is an empty list; at least one worker is needed")
    return wanted
