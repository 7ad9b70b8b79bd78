"""The design of a query as its state has it: the fingerprint of each operator, and the layouts its tables have had.

A checkpoint begins with the design in `meander.json`. The first version of a changed query has the new one in its
commit, so old and new change places in one entry of the log. Files that are older keep the layout they were written
in, by its number; whoever reads them brings their rows to the newest one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

Json: TypeAlias = dict[str, Any]


@dataclass(frozen=True)
class TableSource:
    """Where the rows of a table come from when its layout is new.

    Args:
        table: its name in the layout before.
        key: the names that the key's columns had there, in their order.
        columns: the name that each value column had there; one that is not named is new.
        defaults: the value of a new column, as text; null where none is named.
        function: whether a function of the user's makes the new rows.
    """

    table: str
    key: tuple[str, ...]
    columns: Mapping[str, str]
    defaults: Mapping[str, str] = field(default_factory=dict)
    function: bool = False

    def to_json(self) -> Json:
        """The source as a JSON object."""
        fields: Json = {"table": self.table, "key": list(self.key), "columns": dict(self.columns)}
        if self.defaults:
            fields["defaults"] = dict(self.defaults)
        if self.function:
            fields["function"] = True
        return fields

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> TableSource:
        """The source that `to_json` wrote."""
        return cls(
            fields["table"], tuple(fields["key"]), fields["columns"], fields.get("defaults", {}),
            fields.get("function", False),
        )  # fmt: skip


@dataclass(frozen=True)
class StateLayout:
    """The tables of an operator as they were for a while.

    Args:
        tables: {name: {key, values}}, as in a fingerprint.
        sources: where the rows of each table come from; a table without one begins empty.
        before: the last version of the layout before; -1 for the first one.
    """

    tables: Json
    sources: Mapping[str, TableSource] = field(default_factory=dict)
    before: int = -1

    @property
    def functions(self) -> list[str]:
        """The tables whose rows a function of the user's makes."""
        return [name for name, source in self.sources.items() if source.function]

    def to_json(self) -> Json:
        """The layout as a JSON object."""
        sources = {name: source.to_json() for name, source in self.sources.items()}
        return {"tables": self.tables, "sources": sources, "before": self.before}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> StateLayout:
        """The layout that `to_json` wrote."""
        sources = {name: TableSource.from_json(each) for name, each in fields["sources"].items()}
        return cls(fields["tables"], sources, fields["before"])


@dataclass(frozen=True)
class Design:
    """What a query is: the fingerprint of each operator, and all layouts of its tables, the newest last."""

    operators: tuple[Json, ...]
    layouts: tuple[tuple[StateLayout, ...], ...]

    @classmethod
    def first(cls, operators: Sequence[Json]) -> Design:
        """The design that a checkpoint begins with."""
        return cls(tuple(operators), tuple((StateLayout(each.get("tables", {})),) for each in operators))

    def number(self, operator: int) -> int:
        """The number of the newest layout of an operator."""
        return len(self.layouts[operator]) - 1

    @property
    def numbers(self) -> list[int]:
        """The number of the newest layout of each operator."""
        return [len(each) - 1 for each in self.layouts]

    def to_json(self) -> Json:
        """The design as a JSON object."""
        layouts = [[layout.to_json() for layout in each] for each in self.layouts]
        return {"stages": list(self.operators), "layouts": layouts}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Design:
        """The design that `to_json` wrote."""
        layouts = tuple(tuple(StateLayout.from_json(layout) for layout in each) for each in fields["layouts"])
        return cls(tuple(fields["stages"]), layouts)
