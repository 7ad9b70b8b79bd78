"""Answers by brute force, and random problems to ask for. Nothing here uses a planner."""

from __future__ import annotations

import itertools
import random

from hypothesis import strategies as st

from meander import Problem
from meander.errors import InvalidProblem

SLACK = 1 + 1e-9


def possible_workers(problem: Problem) -> list[tuple[int, ...]]:
    """Every set of workers that may be there afterwards."""
    there = sorted({*problem.owner, *problem.idle})
    if not isinstance(problem.workers, int):
        return [tuple(problem.workers)]
    stay = [w for w in there if w not in problem.must_leave]
    missing = problem.workers - len(stay)
    if missing >= 0:
        return [(*stay, *range(max(there) + 1, max(there) + 1 + missing))]
    holders = {problem.owner[j] for j in problem.pinned}
    return [chosen for chosen in itertools.combinations(stay, problem.workers) if holders <= set(chosen)]


def best_contiguous_gain(problem: Problem) -> float | None:
    """The most bytes that can stay over all contiguous assignments within the cap; None where there is none."""
    m = problem.bins
    best = None
    for workers in possible_workers(problem):
        speed = {w: problem.capacities.get(w, 1.0) for w in workers}
        cap = {w: (1 + problem.tau) * sum(problem.load) * speed[w] / sum(speed.values()) for w in workers}
        for cuts in itertools.combinations_with_replacement(range(m + 1), len(workers) - 1):
            pieces = list(itertools.pairwise((0, *cuts, m)))
            weight = [sum(problem.load[a:b]) for a, b in pieces]
            gain = {
                w: [sum(problem.state[j] for j in range(a, b) if problem.owner[j] == w) for a, b in pieces]
                for w in workers
            }
            for order in itertools.permutations(workers):
                if any(weight[i] > cap[w] * SLACK for i, w in enumerate(order)):
                    continue
                placed = {j: w for (a, b), w in zip(pieces, order, strict=True) for j in range(a, b)}
                if any(placed[j] != problem.owner[j] for j in problem.pinned):
                    continue
                total = sum(gain[w][i] for i, w in enumerate(order))
                best = total if best is None else max(best, total)
    return best


def random_problem(rng: random.Random, *, scattered: bool = False, options: bool = False) -> Problem:
    """A small problem: 1 to 7 bins, 1 to 4 workers, with or without pins, capacities and workers that must leave."""
    while True:
        m = rng.randint(1, 7)
        ids = rng.sample(range(6), rng.randint(1, 4))
        owner = [rng.choice(ids) for _ in range(m)]
        if not scattered:
            owner.sort(key=ids.index)
        heavy, large = rng.choice([0, 1, 3, 10]), rng.choice([0, 1, 3, 9])
        fields = {
            "load": [rng.randint(0, heavy) for _ in range(m)],
            "state": [rng.randint(0, large) for _ in range(m)],
            "owner": owner,
            "workers": rng.randint(1, 4),
            "tau": rng.choice([0, 0.2, 0.5, 1, 2]),
            "must_leave": [w for w in sorted(set(owner)) if rng.random() < 0.15],
        }
        plain = Problem(**fields)
        if options:
            everyone = (*plain.survivors, *plain.newcomers)
            if rng.random() < 0.6:
                fields["capacities"] = {w: rng.choice([0.5, 1, 2]) for w in everyone}
            if rng.random() < 0.6:
                fields["pinned"] = [j for j in range(m) if rng.random() < 0.2 and owner[j] in plain.survivors]
        try:
            return Problem(**fields)
        except InvalidProblem:
            continue


def _numbers(high: int) -> st.SearchStrategy[int | float]:
    return st.integers(0, high) | st.floats(0, high, allow_nan=False, width=32)


@st.composite
def problems(draw: st.DrawFn, max_bins: int = 24, plain: bool = False) -> Problem:
    """Any problem, with fractions and whole numbers, growing and shrinking, with options unless `plain`."""
    m = draw(st.integers(1, max_bins))
    owner = draw(st.lists(st.integers(0, 7), min_size=m, max_size=m))
    if draw(st.booleans()) or plain:
        owner.sort()
    fields = {
        "load": draw(st.lists(_numbers(50), min_size=m, max_size=m)),
        "state": draw(st.lists(_numbers(1000), min_size=m, max_size=m)),
        "owner": owner,
        "workers": draw(st.integers(1, 6)),
        "tau": draw(st.sampled_from([0.0, 0.1, 0.5, 1.2, 4.0])),
    }
    if plain:
        return Problem(**fields)
    present = sorted(set(owner))
    fields["must_leave"] = draw(st.lists(st.sampled_from(present), max_size=2, unique=True))
    if draw(st.booleans()):
        fields["idle"] = [9, 11]
    if draw(st.booleans()):
        open_to = [w for w in range(14) if w not in fields["must_leave"]]
        fields["workers"] = draw(st.lists(st.sampled_from(open_to), min_size=1, max_size=5, unique=True))
    known = Problem(**fields)
    everyone = sorted({*known.survivors, *known.newcomers})
    if draw(st.booleans()):
        fields["capacities"] = {w: draw(st.sampled_from([0.5, 1.0, 3.0])) for w in everyone}
    if draw(st.booleans()):
        free = [j for j in range(m) if owner[j] in known.survivors]
        holders = set(known.survivors[: known.wanted])
        allowed = [j for j in free if owner[j] in holders]
        if allowed:
            fields["pinned"] = draw(st.lists(st.sampled_from(allowed), max_size=3, unique=True))
    return Problem(**fields)
