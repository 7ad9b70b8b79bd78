"""What migrations to come will cost, by partitioning, and the migration that is cheapest with that in mind.

An outlook is made once from bins and transitions and then used at every migration. It minimises

    cost now + gamma * C[n', P']        n' the workers wanted, P' the partitioning chosen

with C the projected cost of all migrations after this one. With gamma = 0 that is the cost of planner 'ssm'.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from meander.errors import InvalidProblem
from meander.outlook.transitions import Transitions
from meander.pictures import many
from meander.planning.intervals import Piece, target_of
from meander.planning.planner import Target
from meander.planning.problem import ROUNDING, Problem
from meander.types import WorkerId, is_contiguous, runs

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]
Tables = Mapping[str, Mapping[str, NDArray[Any]]]
"""Columns by table and name; a column is a vector, or a matrix with one row for each row of the table."""

FAR = 0.3
"""Beyond this distance of loads or sizes an outlook is about other bins; see `Outlook.distance`."""

OTHER_CAP = 1.25
"""By so much the cap may be larger or smaller than the one an outlook was made for."""

NOBODY = -1
"""The keeping run of an interval that a worker without bins takes."""


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Premises:
    """What an outlook follows from.

    Attributes:
        load: work of each bin.
        state: bytes of state of each bin.
        tau: the load cap that was asked for.
        taus: the one that was used, by number of workers: raised to the smallest feasible one where `tau` is not.
        gamma: how much the next migration counts against this one.
        transitions: how often n workers become n'.
    """

    load: Floats
    state: Floats
    tau: float
    taus: Mapping[int, float]
    gamma: float
    transitions: Transitions

    @property
    def premises(self) -> dict[str, Any]:
        """These fields alone, by name."""
        return {each.name: getattr(self, each.name) for each in fields(Premises)}

    @property
    def bins(self) -> int:
        """Number of bins, m."""
        return self.load.size

    def inputs(self) -> dict[str, Any]:
        """What the answer follows from, ready for JSON."""
        return {
            "load": self.load.tolist(),
            "state": self.state.tolist(),
            "tau": float(self.tau),
            "gamma": float(self.gamma),
            "transitions": self.transitions.to_dict(),
        }


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Outlook(Premises):
    """What migrations to come will cost, and what it was computed from.

    A kind of outlook is a subclass, `class MyOutlook(Outlook, kind="mine")`. It says in `inputs` what its answer
    follows from, turns itself into `facts` (ready for JSON) and `to_tables`, and is built again by `from_tables`.
    """

    kind: ClassVar[str]
    kinds: ClassVar[dict[str, type[Outlook]]] = {}

    def __init_subclass__(cls, kind: str, **rest: Any) -> None:
        super().__init_subclass__(**rest)
        cls.kind = kind
        Outlook.kinds[kind] = cls

    def __repr__(self) -> str:
        lo, hi = self.transitions.lo, self.transitions.hi
        bins = many(self.bins, "bin")
        return f"<{self.kind} outlook of {bins}, {lo} to {hi} workers, tau {self.tau:g}, gamma {self.gamma:g}>"

    @cached_property
    def fingerprint(self) -> str:
        """The same for the same inputs, in every process."""
        return fingerprint_of(self.kind, self.inputs())

    def facts(self) -> dict[str, Any]:
        """All that is not in a table, ready for JSON: the inputs and the taus that were used."""
        return {**self.inputs(), "taus": {str(n): tau for n, tau in self.taus.items()}}

    def to_tables(self) -> Tables:
        """The large part, as columns."""
        raise NotImplementedError

    @classmethod
    def from_tables(cls, facts: Mapping[str, Any], tables: Tables) -> Self:
        """Build an outlook from what `facts` and `to_tables` gave."""
        raise NotImplementedError

    def choose(self, problem: Problem) -> Target:
        """Return the assignment with the least bytes moved now and gamma times the projected ones together.

        Raises:
            InvalidProblem: the problem is not of the kind this outlook is about; `unfit` says why.
            Infeasible: nothing this outlook knows of keeps the problem's cap.
        """
        raise NotImplementedError

    def estimate(self, problem: Problem, owner: Sequence[WorkerId]) -> float:
        """Bytes that move if `owner` owns the bins, plus gamma times what is projected to come after that."""
        raise NotImplementedError

    def distance(self, problem: Problem) -> float:
        """How far the problem's bins are from those of this outlook: the part of load, or of state, that is elsewhere.

        That is half the sum over all bins of how much their share of the load differs, or of the state if that is more:
        0 for the same bins, 1 where all the load lies on bins that had none.
        """
        then, now = (self.load, self.state), (problem.load_array, problem.state_array)
        return max(float(np.abs(_shares(a) - _shares(b)).sum()) / 2 for a, b in zip(then, now, strict=True))

    def unfit(self, problem: Problem) -> str | None:
        """Why this outlook has nothing to say about a problem; None where it has."""
        lo, hi = self.transitions.lo, self.transitions.hi
        if problem.bins != self.bins:
            return f"the outlook is about {many(self.bins, 'bin')} and the problem has {problem.bins}"
        if not lo <= problem.wanted <= hi:
            return f"the outlook is about {lo} to {hi} workers and the problem wants {problem.wanted}"
        if not problem.is_contiguous:
            return "the outlook is about intervals of bins and the present owners hold several each"
        if problem.pinned or not problem.has_equal_capacities:
            return "the outlook is about equal workers and bins that may all move"
        tau = self.taus[problem.wanted]
        if not (1 + self.tau) / OTHER_CAP <= 1 + problem.tau <= (1 + tau) * OTHER_CAP:
            workers = many(problem.wanted, "worker")
            return f"the outlook is about tau {tau:.3g} for {workers} and the problem has {problem.tau:.3g}"
        far = self.distance(problem)
        if far > FAR:
            return f"{far:.0%} of load or state is not where the outlook has it, more than {FAR:.0%}; make a new one"
        return None

    def refuse_unfit(self, problem: Problem) -> None:
        """Raise `InvalidProblem` where this outlook has nothing to say."""
        why = self.unfit(problem)
        if why is not None:
            raise InvalidProblem(f"{why}; make an outlook for it, or use planner 'ssm'")

    def present(self, problem: Problem) -> tuple[Ints, Flags]:
        """The ends of the present intervals, and whether the worker of each may stay."""
        stays, pieces = set(problem.survivors), runs(problem.owner)
        return np.array([run.stop for run in pieces]), np.array([run.worker in stays for run in pieces])

    def target(self, problem: Problem, ends: Ints, keepers: Ints) -> Target:
        """The assignment by intervals with these ends, each kept by the worker of a present interval, or by NOBODY."""
        present = runs(problem.owner)
        speed = problem.capacity(problem.candidates[0])
        begins = [0, *ends.tolist()]
        return target_of(
            problem,
            [
                Piece(begin, end, present[keeper].worker if keeper != NOBODY else None, speed)
                for begin, end, keeper in zip(begins[:-1], begins[1:], keepers.tolist(), strict=True)
            ],
        )

    def moved(self, problem: Problem, owner: Sequence[WorkerId]) -> float:
        """Bytes that move if `owner` owns the bins; refuses a target that is no list of intervals."""
        self.refuse_unfit(problem)
        if len(owner) != self.bins or not is_contiguous(owner):
            raise InvalidProblem("the target is no list of intervals, and this outlook projects costs only of those")
        pairs = zip(problem.state, problem.owner, owner, strict=True)
        return float(sum(size for size, old, new in pairs if old != new))

    @staticmethod
    def common(facts: Mapping[str, Any]) -> dict[str, Any]:
        """The fields that every kind has, from `facts`."""
        return {
            "load": np.array(facts["load"], dtype=np.float64),
            "state": np.array(facts["state"], dtype=np.float64),
            "tau": facts["tau"],
            "taus": {int(n): tau for n, tau in facts["taus"].items()},
            "gamma": facts["gamma"],
            "transitions": Transitions.from_dict(facts["transitions"]),
        }


def cap_of(problem: Problem) -> float:
    """The most load a worker may carry, with what counts as rounding."""
    return (1 + problem.tau) * problem.total_load / problem.wanted * (1 + ROUNDING)


def _shares(values: Floats) -> Floats:
    total = values.sum()
    return values / total if total > 0 else values


def fingerprint_of(kind: str, inputs: Mapping[str, Any]) -> str:
    """SHA-256 of a kind and its inputs, in hex."""
    text = json.dumps({"kind": kind, **inputs}, sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()
