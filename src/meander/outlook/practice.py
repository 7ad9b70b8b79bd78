"""Learning what migrations to come will cost by practising them, where the exact set of partitionings is too large.

A price for every interval is to be found such that a partitioning's prices add up to its projected cost. That is
approximate policy iteration: migrate by the present prices, from many partitionings, through numbers of workers drawn
from the transitions; fit the prices for which every partitioning passed costs what leaving it cost plus gamma times
the next one (least-squares temporal differences, with the mean over the next number of workers taken exactly); repeat.

Then the prices of all rounds, whole and weakened, are rehearsed on the same sequences of migrations, none of which
was practised on, and the best are kept. No prices at all, which is planner 'ssm', are always among them: what is kept
moved no more than `ssm` in rehearsal.

Two sets are learned. *Still* is for loads as they were given and may price each single boundary. *Drifting* is for
loads that change from migration to migration, and knows boundaries only by where in the work they lie.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from meander.errors import InvalidOption, TooLarge
from meander.options import amount, whole
from meander.outlook import learned_kernel as kernel
from meander.outlook.exact import Case
from meander.outlook.outlook import Floats, Premises
from meander.outlook.transitions import Transitions
from meander.progress import Tell

MOST_ENDS = 128
FEW_WEIGHTS = 3_000
"""Up to so many bins, and so many weights in all, each bin has a price of its own for a boundary behind it."""

MERGED = 64
"""More bins than `MOST_ENDS` are practised with as so many."""

MOST_WEIGHTS = 8_000
"""Weights for all numbers of workers: fitting them takes their square in memory."""

SETS = ("still", "drifting")
STRENGTHS = (0.25, 0.5, 0.75, 1.0)
"""How much of the prices may be kept."""

RIDGE = 1e-3
RESTART = 50


@dataclass(frozen=True)
class Effort:
    """How much is practised.

    Args:
        rounds: how often prices are fitted.
        tasks: into how many tasks the migrations of a round are cut.
        steps: migrations in each task.
        rehearsals: sequences on which prices are compared.
        length: migrations of each of them.
        daring: how often a step of practice goes astray.
        seed: of the random numbers.
    """

    rounds: int = 5
    tasks: int = 8
    steps: int = 2000
    rehearsals: int = 32
    length: int = 200
    daring: float = 0.3
    seed: int = 0

    def __post_init__(self) -> None:
        # The seeds of all practice lie below those of rehearsals.
        bounds = {"rounds": (2, 1000), "tasks": (1, 1000), "steps": (1, None), "rehearsals": (1, None)}
        for name, (least, most) in {**bounds, "length": (1, None), "seed": (0, 2**31)}.items():
            object.__setattr__(self, name, whole(name, getattr(self, name), least, most))
        object.__setattr__(self, "daring", float(amount("daring", self.daring)))
        if self.daring > 1:
            raise InvalidOption(f"daring is {self.daring:g}; it is how often a step goes astray, from 0 to 1")


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Lesson(Premises):
    """What prices are learned for.

    Attributes:
        drift: how much a bin's load changes from one migration to the next, as the standard deviation of its logarithm.
    """

    drift: float

    @classmethod
    def of(
        cls,
        load: Iterable[float],
        state: Iterable[float],
        transitions: Transitions,
        tau: float,
        gamma: float,
        drift: float,
    ) -> Lesson:
        """Check what is given and make a lesson of it."""
        case = Case.of(load, state, transitions, tau, gamma)
        drift = float(amount("drift", drift))
        if drift > 1:
            raise InvalidOption(f"drift is {drift:g}; it is how much a load changes between migrations, such as 0.05")
        if transitions.size * (kernel.END + 1) > MOST_WEIGHTS:
            raise TooLarge(
                f"{transitions.lo} to {transitions.hi} workers are too many numbers to learn prices for; "
                f"narrow lo and hi to at most {MOST_WEIGHTS // (kernel.END + 1)} of them"
            )
        return cls(**case.premises, drift=drift)

    @property
    def features(self) -> int:
        """How many weights there are for each number of workers."""
        each = kernel.END + self.load.size
        return each if self.load.size <= MOST_ENDS and self.transitions.size * each <= FEW_WEIGHTS else kernel.END + 1

    @property
    def nothing(self) -> Floats:
        """Prices of zero: planner 'ssm'."""
        return np.zeros((self.transitions.size, self.features))

    def drifts(self, which: str) -> tuple[float, float]:
        """How much loads change from migration to migration for this set, and how much they may have before."""
        return (self.drift, 4 * self.drift) if which == "drifting" else (0.0, 0.0)

    def of_bins(self) -> tuple[Floats, Floats, Floats, int, float]:
        """What every kernel takes first. Many bins are practised with as fewer, neighbours together.

        Their prices go by shares of load and state and are the same for any number of bins; practice takes the square
        of that number.
        """
        load, state = self.load, self.state
        if load.size > MOST_ENDS:
            starts = np.arange(MERGED) * load.size // MERGED
            load, state = np.add.reduceat(load, starts), np.add.reduceat(state, starts)
        return load, state, np.array(self.transitions.matrix), self.transitions.lo, self.tau


class Task(NamedTuple):
    """A piece of practice or of rehearsal; `weights` are prices times gamma."""

    which: str
    weights: Floats
    seed: int


class Samples(NamedTuple):
    """What steps of practice taught; see `learned_kernel.practise`."""

    left: NDArray[np.int64]
    before: NDArray[np.float32]
    after: NDArray[np.float32]
    cost: Floats


Everywhere = Callable[[Callable[[Any], Any], Sequence[Any]], Iterable[Any]]
"""Calls a function with each task, here or on executors, and gives the results in the order of the tasks."""


def practised(lesson: Lesson, effort: Effort, task: Task) -> Samples:
    """What a task of practice teaches."""
    drift, afar = lesson.drifts(task.which)
    return Samples(
        *kernel.practise(*lesson.of_bins(), task.weights, drift, afar, effort.steps, RESTART, effort.daring, task.seed)
    )


def rehearsed(lesson: Lesson, effort: Effort, task: Task) -> float:
    """The mean share of state that moves in a rehearsal."""
    drift, afar = lesson.drifts(task.which)
    return kernel.rehearse(*lesson.of_bins(), task.weights, drift, afar, effort.length, effort.length, task.seed)


def fitted(lesson: Lesson, which: str, samples: Sequence[Samples]) -> Floats:
    """The prices under which every step of practice costs what it did, and what comes after it, in least squares."""
    sizes, d = lesson.transitions.size, lesson.features
    steps = sum(len(each.left) for each in samples)
    system, cost = np.zeros((sizes * d, sizes * d)), np.zeros(sizes * d)
    for each in samples:
        for at in range(sizes):
            mine = each.left == at
            block = slice(at * d, (at + 1) * d)
            before = each.before[mine].astype(np.float64)
            system[block] -= lesson.gamma * (before.T @ each.after[mine])
            system[block, block] += before.T @ before
            cost[block] += before.T @ each.cost[mine]
    # What no step passed costs nothing more or less; the constant, the price of ending at all, is free.
    hold = np.full(d, RIDGE / sizes)
    hold[-1] = 1e-9
    if which == "drifting":
        hold[kernel.END : -1] = 1e6
    system[np.diag_indices_from(system)] += steps * np.tile(hold, sizes)
    return np.asarray(np.linalg.solve(system, cost), dtype=np.float64).reshape(sizes, d)


class Learned(NamedTuple):
    """What was learned for a set: weights, and the mean share of state that moved in rehearsal, with and without."""

    weights: Floats
    moves: float
    ssm_moves: float


def learn(
    lesson: Lesson,
    effort: Effort,
    everywhere: Everywhere,
    tell: Tell,
    remembered: Callable[[str], Floats | None] = lambda name: None,
    remember: Callable[[str, Floats], None] = lambda name, weights: None,
) -> dict[str, Learned]:
    """Learn the weights of both sets.

    Args:
        lesson: what they are for.
        effort: how much is practised.
        everywhere: where tasks run.
        tell: called with progress.
        remembered: weights that an earlier run, cut short, has kept under a name.
        remember: keeps weights under a name.
    """
    # Nothing to come counts, or nothing moves, or nothing has to.
    if lesson.gamma == 0 or not lesson.state.any() or not lesson.load.any():
        return {which: Learned(lesson.nothing, 0.0, 0.0) for which in SETS}
    weights = dict.fromkeys(SETS, lesson.nothing)
    rounds: list[dict[str, Floats]] = []
    for done in range(effort.rounds):
        tell(done, effort.rounds, "rounds of practice")
        known = {which: remembered(f"{which}-{done}") for which in SETS}
        if any(each is None for each in known.values()):
            seeds = range(effort.seed + done * effort.tasks, effort.seed + (done + 1) * effort.tasks)
            tasks = [Task(which, lesson.gamma * weights[which], seed) for which, seed in product(SETS, seeds)]
            samples = list(everywhere(partial(practised, lesson, effort), tasks))
            for which in SETS:
                mine = [each for task, each in zip(tasks, samples, strict=True) if task.which == which]
                fresh = fitted(lesson, which, mine)
                # Prices and practice chase each other; halfway they settle.
                known[which] = blend = fresh if done < 2 else (fresh + weights[which]) / 2
                remember(f"{which}-{done}", blend)
        weights = {which: each for which, each in known.items() if each is not None}
        rounds.append(weights)
    tell(effort.rounds, effort.rounds, "rounds of practice")
    return _best(lesson, effort, everywhere, rounds, tell)


def _best(
    lesson: Lesson, effort: Effort, everywhere: Everywhere, rounds: Sequence[dict[str, Floats]], tell: Tell
) -> dict[str, Learned]:
    """The prices of each set that moved least in rehearsal; with none, as ssm moves, should no others move less."""
    seeds = [1_000_000 + effort.seed + each for each in range(effort.rehearsals)]
    candidates = {
        which: [lesson.nothing, *(strength * each[which] for each in rounds[1:] for strength in STRENGTHS)]
        for which in SETS
    }
    tasks = [
        Task(which, discounted, seed)
        for which in SETS
        for discounted in [lesson.gamma * weights for weights in candidates[which]]
        for seed in seeds
    ]
    tell(0, len(tasks), "rehearsals")
    moves = np.array(list(everywhere(partial(rehearsed, lesson, effort), tasks)))
    moves = moves.reshape(len(SETS), -1, len(seeds)).mean(axis=2)
    tell(len(tasks), len(tasks), "rehearsals")
    best = {}
    for which, mean in zip(SETS, moves, strict=True):
        at = int(np.argmin(mean))
        best[which] = Learned(candidates[which][at], float(mean[at]), float(mean[0]))
    return best
