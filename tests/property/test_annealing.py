"""Ls-Stream's planner on random problems, through the checker and against what its docstring says."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from effort import examples
from meander.planning.annealing import annealing
from meander.planning.check import check
from meander.planning.problem import Problem

SIZE = st.one_of(st.just(0), st.integers(0, 20), st.floats(0.01, 1e6))
ROWS = st.one_of(st.just(0), st.integers(0, 50), st.floats(0, 100))
EPSILON = Fraction(1, 10**6)
QUICK = {"T": 1.0, "T_min": 0.1, "eta": 0.7}


@st.composite
def problems(draw: st.DrawFn, same_workers: bool = False) -> Problem:
    """Growing, shrinking, worker sets, gaps in the ids, idle and leaving workers, capacities, pinned bins."""
    ids = draw(st.lists(st.integers(0, 20), min_size=1, max_size=5, unique=True))
    owner = draw(st.lists(st.sampled_from(ids), min_size=1, max_size=20))
    present = sorted({*owner, *draw(st.sets(st.integers(0, 20), max_size=2))})
    facts = {
        "load": draw(st.lists(SIZE, min_size=len(owner), max_size=len(owner))),
        "state": draw(st.lists(SIZE, min_size=len(owner), max_size=len(owner))),
        "owner": owner,
        "idle": sorted(set(present) - set(owner)),
    }
    if same_workers:
        facts["workers"] = len(present)
    else:
        facts["must_leave"] = draw(st.sets(st.sampled_from(present), max_size=2))
        if draw(st.booleans()):
            facts["workers"] = draw(st.integers(1, 8))
        else:
            facts["workers"] = (draw(st.sets(st.integers(0, 25), max_size=6)) - facts["must_leave"]) or {26}
    bare = Problem(**facts)
    known = sorted({*bare.current, *bare.survivors, *bare.newcomers})
    facts["capacities"] = draw(st.dictionaries(st.sampled_from(known), st.floats(0.1, 8), max_size=4))
    if bare.survivors:
        keep = draw(st.sets(st.sampled_from(bare.survivors), max_size=bare.wanted))
        can = [j for j, w in enumerate(owner) if w in keep]
        facts["pinned"] = draw(st.sets(st.sampled_from(can), max_size=4)) if can else ()
    return Problem(**facts)


@st.composite
def options(draw: st.DrawFn, problem: Problem) -> dict:
    """Any mix of measured rows, rates and settings."""
    per_bin = st.lists(ROWS, min_size=problem.bins, max_size=problem.bins)
    mapping = st.dictionaries(st.sampled_from(problem.current), st.floats(0.01, 1e4), min_size=1)
    given_options = draw(
        st.fixed_dictionaries(
            {"alpha": st.sampled_from([0.05, 0.3, 1.0, 2.0]), "choose": st.sampled_from(["annealing", "greedy"])},
            optional={
                "stored": per_bin,
                "queued": per_bin,
                "arrivals": per_bin,
                "gamma": st.floats(0, 1),
                "service": st.one_of(st.floats(0.01, 1e4), mapping),
                "seed": st.integers(0, 2**40),
            },
        )
    )
    if problem.bins <= 8 and draw(st.booleans()):
        given_options["choose"] = "exhaustive"
    return QUICK | given_options


def loads_of_bins(problem: Problem, chosen: dict) -> list[Fraction]:
    """What a bin takes, from the problem or by equations 7, 9 and 11."""
    if "stored" not in chosen or "queued" not in chosen:
        return [Fraction(x) for x in problem.load]
    gamma = Fraction(chosen.get("gamma", 0.5))
    pairs = [(Fraction(s), Fraction(q)) for s, q in zip(chosen["stored"], chosen["queued"], strict=True)]
    return [gamma * (s + q) + (1 - gamma) * s * q for s, q in pairs]


class Scales:
    """Loads of workers under an assignment, in exact arithmetic."""

    def __init__(self, problem: Problem, workers: tuple[int, ...], owner: tuple[int, ...], bins: list[Fraction]):
        self.capacity = {w: Fraction(problem.capacity(w)) for w in workers}
        self.load = dict.fromkeys(workers, Fraction(0))
        for w, x in zip(owner, bins, strict=True):
            self.load[w] += x
        self.mean = sum(bins, Fraction(0)) / sum(self.capacity.values())
        self.use = {w: self.load[w] / self.capacity[w] for w in workers}

    @property
    def imbalance(self) -> Fraction:
        if not self.mean:
            return Fraction(0)
        return max(max(self.use.values()) - self.mean, self.mean - min(self.use.values())) / self.mean

    def can_give(self, source: int, target: int, load: Fraction) -> bool:
        """Condition (31) by a clear margin."""
        left = (self.load[source] - load) / self.capacity[source]
        return left > (self.load[target] + load) / self.capacity[target] + EPSILON * self.mean


@examples(150)
@given(st.data())
def test_plans_pass_the_checker_with_all_options(data):
    problem = data.draw(problems())
    plan = annealing(problem, **data.draw(options(problem)))
    check(problem, plan, cap=False)
    assert all(plan.owner[j] == problem.owner[j] for j in problem.pinned)
    assert not set(plan.owner) & set(problem.must_leave)


@examples(120)
@given(st.data())
def test_imbalance_never_grows_and_nothing_moves_within_alpha(data):
    problem = data.draw(problems(same_workers=True))
    chosen = data.draw(options(problem))
    plan = annealing(problem, **chosen)
    bins = loads_of_bins(problem, chosen)
    before = Scales(problem, plan.workers, problem.owner, bins).imbalance
    after = Scales(problem, plan.workers, plan.owner, bins).imbalance
    assert plan.workers == problem.current
    assert after <= before + EPSILON
    if before < Fraction(chosen["alpha"]) - EPSILON:
        assert plan.moves == ()


@examples(150)
@given(st.data())
def test_it_ends_balanced_or_where_no_bin_can_be_handed_over(data):
    problem = data.draw(problems())
    chosen = data.draw(options(problem))
    plan = annealing(problem, **chosen)
    bins = loads_of_bins(problem, chosen)
    end, alpha = Scales(problem, plan.workers, plan.owner, bins), Fraction(chosen["alpha"])
    free = [j for j in range(problem.bins) if j not in problem.pinned and bins[j] > EPSILON * end.mean]
    if end.imbalance > alpha + EPSILON:
        least = min(end.use.values())
        lags = least < end.mean * (1 - alpha - EPSILON)
        stuck = [j for j in free if lags or end.use[plan.owner[j]] > end.mean * (1 + alpha + EPSILON)]
        targets = [w for w in plan.workers if end.use[w] <= least + EPSILON * end.mean]
        assert any(not any(end.can_give(plan.owner[j], w, bins[j]) for j in stuck) for w in targets)
    for target in set(problem.newcomers) - set(plan.owner):
        assert not any(end.can_give(plan.owner[j], target, bins[j]) for j in free)


@examples(40)
@given(st.data())
def test_the_same_seed_gives_the_same_plan(data):
    problem = data.draw(problems())
    chosen = data.draw(options(problem))
    assert annealing(problem, **chosen) == annealing(problem, **chosen)


@examples(50)
@given(problems(), st.sampled_from([0.25, 4.0, 1024.0]))
def test_units_of_capacity_do_not_matter(problem, factor):
    facts = problem.to_dict()
    everyone = {*problem.current, *problem.newcomers}
    scaled = {str(w): factor * problem.capacity(w) for w in everyone}
    assert annealing(Problem(**facts | {"capacities": scaled}), alpha=0.3, **QUICK).owner == (
        annealing(problem, alpha=0.3, **QUICK).owner
    )
