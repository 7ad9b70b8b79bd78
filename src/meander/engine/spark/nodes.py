"""The chain of a query as its jobs see it: operators, and what Spark does to rows before, between and behind them.

Frames between two operators carry reports of workers among the rows: a shape leaves those alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

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


@dataclass(frozen=True)
class OperatorNode:
    """One operator of the chain, and how its rows come out of what is before it.

    `shapes` are applied to the rows first. `columns` have to be computed then, as Spark expressions; `bad` is an
    expression that says why a row cannot be used, null where it can.
    """

    operator: BinnedOperator
    columns: Mapping[str, Column]
    bad: Column | None = None
    shapes: Sequence[Shape] = ()

    def computed(self, frame: DataFrame) -> DataFrame:
        """The rows with the columns that have to be computed first."""
        frame = shaped(frame, self.shapes)
        aside = aside_of(frame)
        columns = {name: of_rows(column, aside) for name, column in self.columns.items()}
        if self.bad is not None:
            columns[BAD] = self.bad
        return frame.withColumns(columns) if columns else frame


def shaped(frame: DataFrame, shapes: Sequence[Shape]) -> DataFrame:
    """The rows of an operator after these shapes, one after the other."""
    for each in shapes:
        frame = each.applied(frame, aside_of(frame))
    return frame


def aside_of(frame: DataFrame) -> str | None:
    """The column that is null in rows and not in reports of workers; None where there are no reports."""
    return REPORT if REPORT in frame.columns else None


def of_rows(value: Column, aside: str | None) -> Column:
    """The expression where the column `aside` is null, else null.

    Inside a condition Spark refuses what makes several rows of one, or none: no report can get lost.
    """
    from pyspark.sql import functions as F

    return value if aside is None else F.when(F.col(f"`{aside}`").isNull(), value)
