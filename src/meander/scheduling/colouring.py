"""Edge colouring of bipartite multigraphs: the engine of `matching`, and of `batched`.

An edge joins a vertex on the left (a worker that sends) with one on the right (a worker that receives). A
colouring is proper if no two edges of one colour share a vertex. By König's theorem as many colours as the
highest degree suffice; the proof is the algorithm: an edge takes a colour that is free at both ends, and
where there is none, a path of edges that alternate between two colours is swapped so that one becomes free.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import TypeVar

Item = TypeVar("Item")
Edge = tuple[int, int]


def colour(edges: Sequence[Edge], colours: int) -> list[int]:
    """Return a proper colour 0..colours-1 for each edge, low colours first.

    `colours` must be at least the highest degree; vertices are numbered from 0 on either side.

    >>> colour([(0, 0), (0, 1), (1, 0)], colours=2)
    [0, 1, 1]
    """
    painted = _Colouring(edges, colours)
    for edge in range(len(edges)):
        painted.add(edge, start=0)
    return painted.colour


def colour_evenly(edges: Sequence[Edge], colours: int) -> list[int]:
    """Return a proper colour for each edge such that no colour has two edges more than another.

    >>> edges = [(0, 0), (1, 1), (2, 2), (3, 3)]
    >>> colour(edges, colours=2), colour_evenly(edges, colours=2)
    ([0, 0, 0, 0], [0, 1, 0, 1])
    """
    painted, start = _Colouring(edges, colours), 0
    for edge in range(len(edges)):
        start = (painted.add(edge, start) + 1) % colours
    painted.level()
    return painted.colour


def grouped(items: Sequence[Item], colours: Sequence[int]) -> list[list[Item]]:
    """Group items by their colour: one list for each of the colours 0..max, in the order of the items."""
    groups: list[list[Item]] = [[] for _ in range(max(colours, default=-1) + 1)]
    for item, colour_ in zip(items, colours, strict=True):
        groups[colour_].append(item)
    return groups


def numbered(names: Sequence[Hashable]) -> list[int]:
    """Give equal names equal numbers 0, 1, 2, ..., in the order in which they first come up."""
    numbers: dict[Hashable, int] = {}
    return [numbers.setdefault(name, len(numbers)) for name in names]


class _Colouring:
    """Edges with their colours, and for every vertex the edge of each colour.

    `used` holds the colours of a vertex a second time, as the bits of a number: a free colour is then found
    in a few machine words, however many there are. Index 0 is the left side, 1 the right.
    """

    def __init__(self, edges: Sequence[Edge], colours: int) -> None:
        vertices = [max((edge[side] for edge in edges), default=-1) + 1 for side in (0, 1)]
        self.edges = edges
        self.colours = colours
        self.colour = [-1] * len(edges)
        self.at: list[list[dict[int, int]]] = [[{} for _ in range(n)] for n in vertices]
        self.used = [[0] * n for n in vertices]

    def add(self, edge: int, start: int) -> int:
        """Colour one more edge, with the first colour from `start` on that is free at both ends, if any."""
        left, right = self.edges[edge]
        used = self.used[0][left] | self.used[1][right]
        colour = start + _lowest_zero(used >> start)
        if colour >= self.colours:
            colour = _lowest_zero(used)
        if colour >= self.colours:
            colour = _lowest_zero(self.used[0][left])
            other = _lowest_zero(self.used[1][right])
            # The path never comes to `left`: it would arrive there by the colour that is free there.
            self.swap(list(self.path(1, right, colour, other)), colour, other)
        for side, vertex in ((0, left), (1, right)):
            self.at[side][vertex][colour] = edge
            self.used[side][vertex] |= 1 << colour
        self.colour[edge] = colour
        return colour

    def path(self, side: int, vertex: int, first: int, second: int) -> Iterator[int]:
        """Walk from a vertex along edges that alternate between two colours, as far as they go."""
        edge = self.at[side][vertex].get(first)
        while edge is not None:
            yield edge
            side, first, second = 1 - side, second, first
            edge = self.at[side][self.edges[edge][side]].get(first)

    def swap(self, path: Sequence[int], one: int, other: int) -> None:
        """Exchange two colours along a path that cannot be made longer."""
        for edge in path:
            for side, vertex in enumerate(self.edges[edge]):
                del self.at[side][vertex][self.colour[edge]]
        for edge in path:
            self.colour[edge] = swapped = one + other - self.colour[edge]
            for side, vertex in enumerate(self.edges[edge]):
                self.at[side][vertex][swapped] = edge
                self.used[side][vertex] ^= 1 << one | 1 << other  # twice, so not at all, at inner vertices

    def level(self) -> None:
        """Swap paths until the colours have equally many edges, up to one."""
        members = [set(group) for group in grouped(range(len(self.edges)), self.colour)]
        members += [set() for _ in range(self.colours - len(members))]
        by_size = sorted(range(self.colours), key=lambda c: -len(members[c]))
        share, rest = divmod(len(self.edges), self.colours)
        surplus = {c: len(members[c]) - share - (i < rest) for i, c in enumerate(by_size)}
        rich = [c for c in by_size if surplus[c] > 0]
        poor = [c for c in by_size if surplus[c] < 0]
        while rich:
            giver, taker = rich[-1], poor[-1]
            path = self._giving_path(members[giver], giver, taker)
            self.swap(path, giver, taker)
            members[giver] ^= set(path)
            members[taker] ^= set(path)
            surplus[giver] -= 1
            surplus[taker] += 1
            if not surplus[giver]:
                rich.pop()
            if not surplus[taker]:
                poor.pop()

    def _giving_path(self, members: set[int], giver: int, taker: int) -> list[int]:
        """Find a path with one more edge of `giver` than of `taker`; if the giver has more, there is one."""
        for edge in sorted(members):
            for side, vertex in enumerate(self.edges[edge]):
                if taker not in self.at[side][vertex]:
                    path = list(self.path(side, vertex, giver, taker))
                    if len(path) % 2:
                        return path
        raise AssertionError(f"colour {giver} has no more edges than colour {taker}")


def _lowest_zero(bits: int) -> int:
    return (~bits & (bits + 1)).bit_length() - 1
