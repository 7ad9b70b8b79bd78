"""The inner loops of the exact outlook: partitionings by rank, costs of pairs, and the cheapest way on from each.

A table of partitionings has one row each: the ends of the intervals, ascending, short ones repeating the last end.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from meander.kernel import kernel

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]
Costs = NDArray[Any]
"""Costs of pairs, as 32-bit or 64-bit floats."""

NOBODY = -1


@kernel
def unrank(reach: Ints, ways: Ints, intervals: int, start: int, table: Ints) -> None:
    """Fill a table with the partitionings start, start + 1, ... of those into so many intervals, in lexical order.

    An interval that begins at x ends at reach[x] at the latest; ways[r, x] is how often the bins from x on can be cut
    into r intervals.
    """
    bins = reach.size - 1
    for row in range(table.shape[0]):
        rank, at = start + row, 0
        for done in range(intervals):
            rest = intervals - done - 1
            end = at + 1
            while rank >= ways[rest, end]:
                rank -= ways[rest, end]
                end += 1
            table[row, done] = end
            at = end
        for column in range(intervals, table.shape[1]):
            table[row, column] = bins


@kernel
def within(reach: Ints, table: Ints) -> Flags:
    """Which partitionings of a table have no interval that goes beyond its reach."""
    fits = np.ones(table.shape[0], dtype=np.bool_)
    for row in range(table.shape[0]):
        at = 0
        for column in range(table.shape[1]):
            if table[row, column] > reach[at]:
                fits[row] = False
                break
            at = table[row, column]
    return fits


@kernel
def shared_ends(table: Ints) -> Ints:
    """How many leading ends each partitioning has in common with the one before it; 0 for the first."""
    shared = np.zeros(table.shape[0], dtype=np.int64)
    for row in range(1, table.shape[0]):
        column = 0
        while column < table.shape[1] and table[row, column] == table[row - 1, column]:
            column += 1
        shared[row] = column
    return shared


@kernel
def kept_by_all(state: Floats, a: Ints, keeps: Flags, table: Ints, shared: Ints, first: int, kept: Floats) -> None:
    """The most state that can stay between `a` and each partitioning of a table, from row `first` on.

    `state` is a prefix sum. An interval of `a` whose flag in `keeps` is off keeps nothing: its worker leaves. The walk
    along the bins is that of `partitions.kept`; it starts where a row differs from the one before it, so in a
    table in lexical order most of it is done once for many rows.
    """
    bins = state.size - 1
    width = table.shape[1]
    # Before the j-th interval of a row: the interval of a, and the best with it (free, matched).
    at_a = np.zeros(width + 1, dtype=np.int64)
    at_none, at_left = np.zeros(width + 1), np.full(width + 1, -np.inf)
    for row in range(first, table.shape[0]):
        j = shared[row] if row > first else 0
        at = table[row, j - 1] if j > 0 else 0
        i, none, left = at_a[j], at_none[j], at_left[j]
        right, both = -np.inf, -np.inf
        while at < bins:
            a_end, b_end = a[i], table[row, j]
            end = min(a_end, b_end)
            if keeps[i]:
                both = max(both, none + (state[end] - state[at]))
            at = end
            if a_end == end:
                i += 1
                none, right = max(none, left), max(right, both)
                left, both = -np.inf, -np.inf
            if b_end == end:
                j += 1
                none, left = max(none, right), max(left, both)
                right, both = -np.inf, -np.inf
                at_a[j], at_none[j], at_left[j] = i, none, left
        kept[row] = max(none, left)


@kernel
def pair_costs(state: Floats, froms: Ints, tos: Ints, same: bool, costs: Costs) -> None:
    """Fill a block of costs between two tables; one between a table and itself is computed once for both directions."""
    total = state[state.size - 1]
    keeps = np.ones(froms.shape[1], dtype=np.bool_)
    shared = shared_ends(tos)
    kept = np.zeros(tos.shape[0])
    for p in range(froms.shape[0]):
        first = p if same else 0
        kept_by_all(state, froms[p], keeps, tos, shared, first, kept)
        for q in range(first, tos.shape[0]):
            costs[p, q] = max(0.0, total - kept[q])
            if same:
                costs[q, p] = costs[p, q]


@kernel
def cheapest_across(costs: Costs, onward: Floats, allowed: Flags, least: Floats, choice: Ints) -> None:
    """For each row of a block and each number of workers, the column with the least cost and onward cost together.

    allowed[n, q] says whether column q may be chosen for the n-th number of workers. `least` and `choice` are filled.
    """
    columns = np.zeros(costs.shape[1], dtype=np.int64)
    ahead = np.zeros(costs.shape[1])
    for n in range(onward.shape[0]):
        count = 0
        for q in range(costs.shape[1]):
            if allowed[n, q]:
                columns[count], ahead[count] = q, onward[n, q]
                count += 1
        for p in range(costs.shape[0]):
            best, which = np.inf, NOBODY
            for k in range(count):
                through = costs[p, columns[k]] + ahead[k]
                if through < best:
                    best, which = through, columns[k]
            least[n, p], choice[n, p] = best, which


@kernel
def cheapest_down(costs: Costs, onward: Floats, allowed: Flags, least: Floats, choice: Ints) -> None:
    """The same for each column of a block and the rows that may be chosen: costs are the same in both directions."""
    least[:] = np.inf
    choice[:] = NOBODY
    for n in range(onward.shape[0]):
        for p in range(costs.shape[0]):
            if allowed[n, p]:
                ahead = onward[n, p]
                for q in range(costs.shape[1]):
                    through = costs[p, q] + ahead
                    if through < least[n, q]:
                        least[n, q], choice[n, q] = through, p


@kernel
def keepers(state: Floats, a: Ints, keeps: Flags, b: Ints) -> Ints:
    """Which interval of `a` keeps each interval of `b`, so that the most state stays; NOBODY where none does.

    As in `kept_by_all`, with the way remembered. States are 0 (neither interval matched), 1 (that of a), 2 (that of
    b) and 3 (both).
    """
    bins = state.size - 1
    most = a.size + b.size
    value = np.array([0.0, -np.inf, -np.inf, -np.inf])
    came = np.zeros((most, 4), dtype=np.int64)  # the state before the overlap, plus 4 if the overlap is matched
    pairs = np.zeros((most, 2), dtype=np.int64)
    i, j, at, step = 0, 0, 0, 0
    while at < bins:
        end = min(a[i], b[j])
        pairs[step, 0], pairs[step, 1] = i, j
        way = np.arange(4)
        # Also what has no state is kept where it is.
        if keeps[i] and value[0] + (state[end] - state[at]) >= value[3]:
            value[3], way[3] = value[0] + (state[end] - state[at]), 4
        at = end
        if a[i] == end:
            i += 1
            for to, other in ((0, 1), (2, 3)):
                if value[other] >= value[to]:
                    value[to], way[to] = value[other], way[other]
                value[other] = -np.inf
        if b[j] == end:
            j += 1
            for to, other in ((0, 2), (1, 3)):
                if value[other] >= value[to]:
                    value[to], way[to] = value[other], way[other]
                value[other] = -np.inf
        came[step] = way
        step += 1
    keeper = np.full(b.size, NOBODY)
    which = np.argmax(value)
    for back in range(step - 1, -1, -1):
        if came[back, which] >= 4:
            keeper[pairs[back, 1]] = pairs[back, 0]
        which = came[back, which] % 4
    return keeper
