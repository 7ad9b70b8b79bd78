"""Exact outlooks for tests: in one process, in one call."""

from meander.outlook.exact import MOST_PARTITIONINGS, Case, solved
from meander.outlook.partitions import count
from meander.planning.intervals import prefix_sums


def solve(*inputs, **options):
    """The exact outlook of load, state, transitions and what else `Case.of` takes."""
    return solved(Case.of(*inputs, **options))


def sizes(case):
    """How many partitionings are feasible, by number of workers."""
    return {n: count(prefix_sums(case.load), n, case.cap(n), MOST_PARTITIONINGS) for n in case.taus}
