"""An outlook whose projected costs were learned by practice: prices of intervals that add up.

See `practice` for how they are learned and `learned_kernel` for what they are made of.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, Self

import numpy as np

from meander.outlook import learned_kernel as kernel
from meander.outlook.outlook import Floats, Outlook, Tables, cap_of
from meander.outlook.practice import SETS, Effort, Learned, Lesson
from meander.planning.intervals import no_intervals
from meander.planning.planner import Target
from meander.planning.problem import Problem
from meander.types import WorkerId, runs

STILL = 0.01
"""Up to this distance the loads count as those that were practised with; see `Outlook.distance`."""

PROPOSALS = 29
PLAIN = 5
"""So many assignments are proposed, the first ones by the prices alone, at full and at lesser strength."""

MOST_CELLS = 700_000
"""Cells of all tables of one answer, about 4 ms, if there are many proposals; ten times that for the plain ones only.

Where even that is too little, as with thousands of bins, the prices alone decide.
"""


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class LearnedOutlook(Outlook, kind="learned"):
    """Projected costs as sums of prices of intervals.

    Attributes:
        drift: how much loads changed from one migration to the next in practice, where they did.
        effort: how much was practised.
        weights: for "still" and "drifting" loads, one row for each number of workers from transitions.lo on: prices of
            intervals as shares of all state, see `learned_kernel`.
        rehearsed: for each set, the mean share of state that a migration moved in rehearsal, by these prices and by
            planner 'ssm'.
    """

    drift: float
    effort: Mapping[str, Any]
    weights: Mapping[str, Floats]
    rehearsed: Mapping[str, tuple[float, float]]

    @classmethod
    def of(cls, lesson: Lesson, effort: Effort, results: Mapping[str, Learned]) -> Self:
        """The outlook that comes of a lesson: what was learned for each set, and what it was learned from."""
        return cls(
            **lesson.premises,
            drift=lesson.drift,
            effort=asdict(effort),
            weights={which: each.weights for which, each in results.items()},
            rehearsed={which: (each.moves, each.ssm_moves) for which, each in results.items()},
        )

    def inputs(self) -> dict[str, Any]:
        """What the answer follows from, ready for JSON."""
        return {**super().inputs(), "drift": self.drift, "effort": dict(self.effort)}

    def facts(self) -> dict[str, Any]:
        """All that is not in a table, ready for JSON."""
        return {**super().facts(), "rehearsed": {name: list(each) for name, each in self.rehearsed.items()}}

    def to_tables(self) -> Tables:
        """One table: a row for each number of workers, with the weights of each set."""
        return {"prices": dict(self.weights)}

    @classmethod
    def from_tables(cls, facts: Mapping[str, Any], tables: Tables) -> Self:
        """Build an outlook from what `facts` and `to_tables` gave."""
        return cls(
            **cls.common(facts),
            drift=facts["drift"],
            effort=facts["effort"],
            weights={name: tables["prices"][name] for name in SETS},
            rehearsed={name: (each[0], each[1]) for name, each in facts["rehearsed"].items()},
        )

    def choose(self, problem: Problem) -> Target:
        """Return the assignment with the least bytes moved now and gamma times the projected ones together.

        The prices propose assignments, and one more migration is looked at from each of them.

        Raises:
            InvalidProblem: the problem is not of the kind this outlook is about; `unfit` says why.
            Infeasible: no assignment by intervals keeps the problem's cap.
        """
        self.refuse_unfit(problem)
        scene = self.scene_of(problem)
        ends, keeps = self.present(problem)
        edge = np.array([0, *ends])
        proposals = self._proposals(scene, problem.wanted)
        at = problem.wanted - self.transitions.lo
        if proposals:
            strengths, noise = proposed(scene.weights.shape[1])
            new_ends, keepers, _ = kernel.look(
                scene.load, scene.state, edge, keeps, scene.caps, problem.wanted, self.transitions.lo, scene.row,
                scene.weights, self.gamma, strengths[:proposals], noise[:proposals],
            )  # fmt: skip
        else:
            new_ends, keepers, _ = kernel.best(
                scene.load, scene.state, edge, keeps, scene.caps[at], problem.wanted, scene.weights[at]
            )
        if not new_ends.size:
            raise no_intervals(problem)
        return self.target(problem, new_ends, keepers)

    def estimate(self, problem: Problem, owner: Sequence[WorkerId]) -> float:
        """Bytes that move if `owner` owns the bins, plus gamma times what is projected to come after that."""
        moved = self.moved(problem, owner)
        scene = self.scene_of(problem)
        ends, lo = np.array([run.stop for run in runs(owner)]), self.transitions.lo
        if self._proposals(scene, problem.wanted):
            ahead = kernel.onward(scene.load, scene.state, ends, scene.caps, lo, scene.row, scene.weights)
            return moved + self.gamma * ahead
        at = problem.wanted - lo
        values = np.zeros(scene.weights.shape[1])
        kernel.features(scene.load, scene.state, ends, problem.wanted, scene.caps[at], values)
        return moved + float(values @ scene.weights[at])

    def scene_of(self, problem: Problem) -> Scene:
        """A problem as the kernels take it."""
        load, state = kernel.prefix_sums(problem.load_array), kernel.prefix_sums(problem.state_array)
        lo, hi = self.transitions.lo, self.transitions.hi
        caps = np.array([kernel.cap_for(load, n, problem.tau) for n in range(lo, hi + 1)])
        caps[problem.wanted - lo] = cap_of(problem)
        which = "still" if self.distance(problem) <= STILL else "drifting"
        weights = self.weights[which] * (self.gamma * state[-1])
        return Scene(load, state, caps, np.array(self.transitions.row(problem.wanted)), weights)

    def _proposals(self, scene: Scene, workers: int) -> int:
        """How many assignments to propose; none: the prices decide."""
        window = scene.caps[workers - self.transitions.lo] / max(scene.load[-1], sys.float_info.min)
        likely = int((scene.row >= kernel.RARE * scene.row.max()).sum())
        cells = (1 + likely) * workers * self.bins * max(1.0, min(1.0, window) * self.bins)
        many = int(min(PROPOSALS, MOST_CELLS / cells))
        return many if many >= PLAIN else PLAIN if PLAIN * cells <= 10 * MOST_CELLS else 0


class Scene(NamedTuple):
    """A problem as the kernels take it: sums of load and state, caps, chances and discounted prices by workers."""

    load: Floats
    state: Floats
    caps: Floats
    row: Floats
    weights: Floats


@functools.cache
def proposed(features: int) -> tuple[Floats, Floats]:
    """Strength and noise of each proposal, always the same."""
    others = PROPOSALS - PLAIN
    strengths = np.concatenate([np.linspace(0, 1, PLAIN), np.linspace(0, 1, others)])
    noise = np.zeros((PROPOSALS, features))
    noise[PLAIN:] = kernel.ASTRAY * np.random.default_rng(0).random((others, features))
    # Should there be time for some of them only, they shall be of all strengths.
    order = np.concatenate([np.arange(PLAIN), PLAIN + np.random.default_rng(1).permutation(others)])
    return strengths[order], noise[order]
