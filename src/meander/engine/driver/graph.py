"""The operators of a query and how they hang together: a chain, or a graph in which rows go one way only.

The numbers of operators are an order in which each comes after all whose rows it takes; the last one feeds the sink.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property

from meander.engine.worker.links import Link
from meander.operators.operator import BinnedOperator
from meander.store.entries import Json


@dataclass(frozen=True)
class Graph:
    """What a query computes, and where each operator takes its rows from.

    Args:
        operators: first to last.
        links: the links of each operator.
    """

    operators: tuple[BinnedOperator, ...]
    links: tuple[tuple[Link, ...], ...]

    @classmethod
    def of(cls, operators: Sequence[BinnedOperator] | Graph) -> Graph:
        """A graph as it is; operators alone are a chain over one source."""
        if isinstance(operators, Graph):
            return operators
        links = ((Link(at - 1, tuple(each.key.names), is_new=at == 0),) for at, each in enumerate(operators))
        return cls(tuple(operators), tuple(links))

    @property
    def fingerprints(self) -> list[Json]:
        """What must not change between restarts; where an operator takes its rows from, if the one before is not it."""
        return [
            {**operator.fingerprint, **({} if self._is_in_chain(at) else {"inputs": self._inputs(at)})}
            for at, operator in enumerate(self.operators)
        ]

    def is_ready(self, at: int, outputs: Collection[int]) -> bool:
        """Whether everything an operator reads is there: batches are, and these outputs."""
        return all(link.origin < 0 or link.origin in outputs for link in self.links[at])

    def job(self, waiting: Collection[int]) -> tuple[int, ...]:
        """Those of the operators that have not run that can be one job: each hands its rows to one other, or to none.

        An operator that several read ends a job, for it must not run again for each of them.
        """
        last = next(at for at in sorted(waiting) if self._readers[at] != 1)
        mine = {last}
        for at in range(last, -1, -1):
            if at in mine:
                mine |= {link.origin for link in self.links[at] if link.origin in waiting}
        return tuple(sorted(mine))

    @cached_property
    def _readers(self) -> Counter[int]:
        return Counter(link.origin for links in self.links for link in links)

    def _is_in_chain(self, at: int) -> bool:
        links = self.links[at]
        return len(links) == 1 and links[0].side is None and links[0].origin == at - 1

    def _inputs(self, at: int) -> list[list[str]]:
        """Where the rows of each input come from, by the names that a person sees."""
        sides: dict[int, list[str]] = {}
        for link in self.links[at]:
            origin = f"operator {link.origin}" if link.origin >= 0 else f"source {~link.origin}"
            sides.setdefault(link.side or 0, []).append(origin)
        return [sides[side] for side in sorted(sides)]
