"""Any bin to any worker: the fewest bytes moved under the load cap."""

from __future__ import annotations

from meander.planning.planner import Target, planner
from meander.planning.problem import Problem
from meander.planning.ssm import ssm


@planner(keeps_cap=True)
def free(problem: Problem, *, nodes: int = 200_000) -> Target:
    """Move any bin to any worker: the fewest bytes found under the load cap."""
    return ssm.target(problem)
