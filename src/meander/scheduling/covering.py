"""A matching that covers given vertices: the engine of `phases`.

Vertices are numbered from 0 on either side of a bipartite graph; index 0 is the left side, 1 the right. A set
of vertices is a number whose bits are its members, so that a whole row of the graph is handled in a few
machine words.
"""

from __future__ import annotations

from collections.abc import Iterator

ALL = -1
"""The set of all vertices: every bit is set."""


class Covering:
    """A graph and a matching in it that is repaired, not rebuilt, when the graph or the wishes change.

    Attributes:
        edges: for each side and vertex, the set of its neighbours.
        mate: for each side and vertex, the vertex it is matched with, or -1.
        matched: for each side, the set of vertices that are matched.
    """

    def __init__(self, left: int, right: int) -> None:
        self.edges = [[0] * left, [0] * right]
        self.mate = [[-1] * left, [-1] * right]
        self.matched = [0, 0]

    def connect(self, left: int, right: int) -> None:
        """Add an edge."""
        self.edges[0][left] |= 1 << right
        self.edges[1][right] |= 1 << left

    def disconnect(self, left: int, right: int) -> None:
        """Take an edge away, also from the matching."""
        self.edges[0][left] &= ~(1 << right)
        self.edges[1][right] &= ~(1 << left)
        if self.mate[0][left] == right:
            for side, vertex in ((0, left), (1, right)):
                self.mate[side][vertex] = -1
                self.matched[side] &= ~(1 << vertex)

    def cover(self, left: int, right: int) -> bool:
        """Change the matching so that it covers these vertices of both sides; False if no matching does.

        What covers the left ones and what covers the right ones never stand in each other's way (Mendelsohn
        and Dulmage): a path that covers one more vertex of a side leaves the other side's vertices covered.
        """
        return all(self._cover(0, vertex, left) for vertex in bits(left & ~self.matched[0])) and all(
            self._cover(1, vertex, right) for vertex in bits(right & ~self.matched[1])
        )

    def extend(self) -> None:
        """Match as many vertices as possible; those that are matched stay so."""
        for vertex, neighbours in enumerate(self.edges[0]):
            if neighbours and self.mate[0][vertex] < 0:
                self._cover(0, vertex, ALL)

    def _cover(self, side: int, root: int, keep: int) -> bool:
        """Match `root` too, along an alternating path; on its side, no vertex in `keep` loses its mate."""
        other, came_from, seen, queue = 1 - side, {}, 0, [root]
        for vertex in queue:
            new = self.edges[side][vertex] & ~seen
            seen |= new
            for neighbour in bits(new & ~self.matched[other] or new):
                came_from[neighbour] = vertex
                holder = self.mate[other][neighbour]
                if holder >= 0 and keep >> holder & 1:
                    queue.append(holder)
                    continue
                if holder >= 0:
                    self.mate[side][holder] = -1
                    self.matched[side] &= ~(1 << holder)
                self.matched[side] |= 1 << root
                self.matched[other] |= 1 << neighbour
                self._rematch(side, root, neighbour, came_from)
                return True
        return False

    def _rematch(self, side: int, root: int, neighbour: int, came_from: dict[int, int]) -> None:
        while True:
            vertex = came_from[neighbour]
            freed = self.mate[side][vertex]
            self.mate[side][vertex], self.mate[1 - side][neighbour] = neighbour, vertex
            if vertex == root:
                return
            neighbour = freed


def bits(members: int) -> Iterator[int]:
    """List the members of a set, ascending.

    >>> list(bits(0b1010))
    [1, 3]
    """
    while members:
        lowest = members & -members
        yield lowest.bit_length() - 1
        members ^= lowest
