"""Exact outlooks for tests: in one process, in one call."""

from meander.outlook.exact import Case, solved


def solve(*inputs, **options):
    """The exact outlook of load, state, transitions and what else `Case.of` takes."""
    return solved(Case.of(*inputs, **options))
