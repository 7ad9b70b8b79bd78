"""The operators of a query as its jobs see them, and what Spark does to rows before, between and behind them.

    Branch      rows of a source or of an operator, and the shapes they go through
    NodeInput   a branch on its way into an operator
    OperatorNode  an operator with its inputs: the nodes of a query hang together by them
    Dataflow    all nodes and sources of a query, in order

Frames between two operators carry reports of workers among the rows: a shape leaves those alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from meander.engine.driver.graph import Graph
from meander.engine.worker.links import Link
from meander.engine.worker.rows import BAD, REPORT, SLOT
from meander.operators.operator import BinnedOperator

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


@dataclass(frozen=True)
class Shape:
    """One change to rows: other columns, by name and expression (None: the column of that name), or fewer rows."""

    columns: Mapping[str, Column | None] | None = None
    condition: Column | None = None

    @property
    def names(self) -> tuple[str, ...] | None:
        """The columns where they are selected by name alone, which needs no Spark."""
        if self.columns is None or any(each is not None for each in self.columns.values()):
            return None
        return tuple(self.columns)

    def applied(self, frame: DataFrame, aside: str | None = None) -> DataFrame:
        """The rows in their new shape; those in which the column `aside` is not null stay, with that column."""
        from pyspark.sql import functions as F

        if self.condition is not None:
            condition = of_rows(self.condition, aside)
            frame = frame.where(condition if aside is None else condition | F.col(f"`{aside}`").isNotNull())
        if self.columns is None:
            return frame
        marks = [name for name in (aside, SLOT) if name is not None and name in frame.columns]
        kept = [F.col(f"`{name}`") for name in marks]
        named = [
            F.col(f"`{name}`") if column is None else of_rows(column, aside).alias(name)
            for name, column in self.columns.items()
        ]
        return frame.select(*kept, *named)


Origin: TypeAlias = Any
"""Where rows come from: an `OperatorNode`, or a source, a DataFrame of Spark or what stands for one."""


@dataclass(frozen=True, eq=False)
class Branch:
    """Rows of one origin, and the shapes that they go through; of a streaming DataFrame's those are in it already."""

    origin: Origin
    shapes: tuple[Shape, ...] = ()

    @property
    def is_emitted(self) -> bool:
        """Whether an operator emits these rows."""
        return isinstance(self.origin, OperatorNode)


@dataclass(frozen=True, eq=False)
class NodeInput:
    """Rows on their way into an operator.

    Args:
        branch: where they come from.
        key: the columns of the operator's key, as they are called here.
        side: which of two inputs of the operator they are, None where it has one.
        columns: columns that have to be computed first, behind the shapes, as Spark expressions.
        bad: an expression that says why a row cannot be used, null where it can.
    """

    branch: Branch
    key: tuple[str, ...]
    side: int | None = None
    columns: Mapping[str, Column] = field(default_factory=dict)
    bad: Column | None = None

    def computed(self, frame: DataFrame) -> DataFrame:
        """The rows of its origin as they come to the operator."""
        marks = {} if self.bad is None else {BAD: self.bad}
        if self.branch.shapes:
            frame, marks = shaped(frame.withColumns(marks) if marks else frame, self.branch.shapes), {}
        aside = aside_of(frame)
        columns = marks | {name: of_rows(column, aside) for name, column in self.columns.items()}
        return frame.withColumns(columns) if columns else frame


@dataclass(frozen=True, eq=False)
class OperatorNode:
    """One operator of a query, and how its rows come out of what is before it."""

    operator: BinnedOperator
    inputs: tuple[NodeInput, ...]


@dataclass(frozen=True, eq=False)
class Dataflow:
    """A query: its operators in order, each behind all whose rows it takes, and the sources that they read."""

    nodes: tuple[OperatorNode, ...]
    sources: tuple[Origin, ...]
    graph: Graph

    @classmethod
    def of(cls, branches: Sequence[Branch]) -> Dataflow:
        """Everything that these rows come from; each operator and each source is there once."""
        nodes: list[OperatorNode] = []
        sources: list[Origin] = []

        def visit(origin: Origin) -> None:
            if not isinstance(origin, OperatorNode):
                if _number(sources, origin) is None:
                    sources.append(origin)
            elif _number(nodes, origin) is None:
                for each in origin.inputs:
                    visit(each.branch.origin)
                nodes.append(origin)

        for branch in branches:
            visit(branch.origin)
        return cls(tuple(nodes), tuple(sources), _graph(nodes, sources))


def _number(among: Sequence[Origin], origin: Origin) -> int | None:
    return next((at for at, each in enumerate(among) if each is origin), None)


def _graph(nodes: Sequence[OperatorNode], sources: Sequence[Origin]) -> Graph:
    links: list[tuple[Link, ...]] = []
    new = set(range(len(sources)))
    for node in nodes:
        mine = []
        for each in node.inputs:
            source = _number(sources, each.branch.origin)
            before = _number(nodes, each.branch.origin)
            origin = ~source if source is not None else before
            assert origin is not None, "what is read comes before"
            mine.append(Link(origin, each.key, each.side, is_new=source in new))
            new.discard(-1 if source is None else source)
        links.append(tuple(mine))
    return Graph(tuple(node.operator for node in nodes), tuple(links))


def shaped(frame: DataFrame, shapes: Sequence[Shape]) -> DataFrame:
    """The rows of an operator after these shapes, one after the other."""
    for each in shapes:
        frame = each.applied(frame, aside_of(frame))
    return frame


def aside_of(frame: DataFrame) -> str | None:
    """The column that is null in rows and not in what shapes leave alone: reports of workers, rows that are bad."""
    return next((name for name in (REPORT, BAD) if name in frame.columns), None)


def of_rows(value: Column, aside: str | None) -> Column:
    """The expression where the column `aside` is null, else null.

    Inside a condition Spark refuses what makes several rows of one, or none: no report can get lost.
    """
    from pyspark.sql import functions as F

    return value if aside is None else F.when(F.col(f"`{aside}`").isNull(), value)
