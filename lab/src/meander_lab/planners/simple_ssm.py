"""Simple_SSM: the slow dynamic programme of Ding et al., Figure 2, kept as an oracle for tests.

It solves every sub-problem (bins, owners, intervals) by Lemma 3.1 and shares nothing with `ssm`.
"""

from __future__ import annotations

from functools import cache

from meander.errors import InvalidProblem, TooLarge
from meander.planning.intervals import Piece, no_intervals, target_of
from meander.planning.planner import Target, planner
from meander.planning.problem import ROUNDING, Problem
from meander.types import WorkerId, runs

MOST_WORK = 50_000_000
"""m^3 n^3 n'^2, the paper's bound on its time."""

Solution = tuple[float, tuple[tuple[int, int, int | None], ...]]
INFEASIBLE: Solution = (float("-inf"), ())


@planner(keeps_cap=True, contiguous=True)
def simple_ssm(problem: Problem) -> Target:
    """The paper's slow dynamic programme for the same answer as ssm, for tests on small problems.

    Raises:
        InvalidProblem: the present map is not made of intervals, or pins or capacities are given: use ssm.
        TooLarge: the problem is beyond what this takes in seconds: use ssm.
        Infeasible: as ssm does.
    """
    if problem.pinned or not (problem.is_contiguous and problem.has_equal_capacities):
        raise InvalidProblem(
            "simple_ssm takes present maps made of intervals, without pinned bins or unequal capacities; "
            "use planner 'ssm'"
        )
    m, n, wanted = problem.bins, len(set(problem.owner)), problem.wanted
    if m**3 * n**3 * min(m, wanted) ** 2 > MOST_WORK:
        raise TooLarge(f"simple_ssm is for tests; {m} bins and {wanted} workers are too many; use planner 'ssm'")
    pieces = [run for run in runs(problem.owner) if run.worker in problem.survivors]
    cap = (1 + problem.tau) * problem.total_load / wanted

    def alone(alpha: int, beta: int, gamma: int, delta: int) -> Solution:
        """All bins of the sub-problem as one interval, for the owner that gains the most from it."""
        if sum(problem.load[alpha:beta]) > cap * (1 + ROUNDING):
            return INFEASIBLE
        best: Solution = (0.0, ((alpha, beta, None),))
        for y in range(gamma, delta):
            gain = sum(problem.state[max(alpha, pieces[y].start) : max(alpha, min(beta, pieces[y].stop))])
            if gain > best[0]:
                best = (gain, ((alpha, beta, y),))
        return best

    @cache
    def best(alpha: int, beta: int, gamma: int, delta: int, intervals: int) -> Solution:
        """Bins alpha..beta-1 in at most so many intervals, kept by owners gamma..delta-1."""
        most = alone(alpha, beta, gamma, delta)
        for x in range(alpha + 1, beta):
            for y in range(gamma, delta + 1):
                for on_the_left in range(1, intervals):
                    left = best(alpha, x, gamma, y, on_the_left)
                    if left is INFEASIBLE:
                        continue
                    right = best(x, beta, y, delta, intervals - on_the_left)
                    if right is not INFEASIBLE and left[0] + right[0] > most[0]:
                        most = (left[0] + right[0], left[1] + right[1])
        return most

    gain, intervals = best(0, m, 0, len(pieces), min(m, wanted))
    if gain < 0:
        raise no_intervals(problem)

    def keeper(y: int | None) -> WorkerId | None:
        return None if y is None else pieces[y].worker

    speed = problem.capacity(problem.candidates[0])
    return target_of(problem, [Piece(start, stop, keeper(y), speed) for start, stop, y in intervals])
