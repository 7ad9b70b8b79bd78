"""Everything Meander raises on purpose.

    MeanderError
    ├── InvalidProblem    a planning problem that makes no sense (also a ValueError)
    ├── InvalidOption     an option or a name that a planner or schedule does not know (also a ValueError)
    ├── Infeasible        no assignment keeps the load cap; carries the smallest tau that would do
    ├── TooLarge          an exact answer would take too long; says what to use instead
    └── InvalidPlan       a plan that does not hold when it is recomputed, or starts from an assignment that is gone

Each message is one sentence that names the offending thing and the next step.
"""

from __future__ import annotations


class MeanderError(Exception):
    """Base of all errors of this library."""


class InvalidProblem(MeanderError, ValueError):
    """A planning problem that makes no sense, with the field or bin that is wrong."""


class InvalidOption(MeanderError, ValueError):
    """A name or an option that does not exist or has a value it cannot have."""


class Infeasible(MeanderError):
    """No assignment keeps every worker's load within the cap.

    `smallest_tau` is the smallest tau for which the same planner has an answer, or None where no tau helps; the
    message states it rounded up.
    """

    def __init__(self, message: str, smallest_tau: float | None = None) -> None:
        super().__init__(message)
        self.smallest_tau = smallest_tau


class TooLarge(MeanderError):
    """The problem is too large to be answered exactly in reasonable time."""


class InvalidPlan(MeanderError):
    """A plan that contradicts its problem or itself."""
