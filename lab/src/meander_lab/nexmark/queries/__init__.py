"""NEXMark's questions, one short file each, on the public operators of this library.

    q0 .. q9, q11, q17 .. q20   what is asked, of whom, and what a row of the answer is
    beam                        the same as Beam defines them
    winning, joining, passing   operators that several of them share
    groups, times, lines        what those need
    options                     what can be chosen

The definitions are those of Flink's SQL (nexmark/nexmark on GitHub), with windows that can be of any size. A query is
built over three streams; stateless parts are expressions of Spark, before anything is shuffled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING, NamedTuple

from meander.errors import InvalidOption
from meander_lab.nexmark.queries import beam, q0, q1, q2, q3, q4, q5, q6, q7, q8, q9, q11, q17, q18, q19, q20
from meander_lab.nexmark.queries.lines import lines, shared
from meander_lab.nexmark.queries.options import DIALECTS, Options

if TYPE_CHECKING:
    import pyarrow as pa

    from meander.streams import Stream
    from meander_lab.nexmark.streams import Events

__all__ = ["QUERIES", "Options", "QueryDefinition", "named"]


class AnswerShape(NamedTuple):
    """What an answer looks like.

    Args:
        key: None: every row that is emitted stands. Else those of the newest version for each value of these columns.
        columns: the columns of the answer, in order.
        renamed: what the stream calls some of them.
    """

    key: tuple[str, ...] | None
    columns: tuple[str, ...]
    renamed: Mapping[str, str]


@dataclass(frozen=True)
class QueryDefinition:
    """One query: its name, and the module that asks it."""

    name: str
    module: ModuleType

    @property
    def title(self) -> str:
        """What it asks, in one line."""
        return (self.module.__doc__ or "").partition("\n")[0].rstrip(".")

    @property
    def text(self) -> str:
        """What it asks, what a row of the answer is, and what happens to ties and late rows."""
        return (self.module.__doc__ or "").strip()

    @property
    def dialects(self) -> tuple[str, ...]:
        """Whose definitions it can be asked by."""
        return DIALECTS if self.name in beam.BUILD else DIALECTS[:1]

    @property
    def key(self) -> tuple[str, ...] | None:
        """What a row of the answer in Flink's dialect is known by; see `AnswerShape`."""
        return self.shape("flink").key

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the answer in Flink's dialect."""
        return self.shape("flink").columns

    def shape(self, dialect: str) -> AnswerShape:
        """What the answer looks like in a dialect."""
        mine, renamed = self.module.COLUMNS, getattr(self.module, "RENAMED", {})
        if dialect == "beam":
            return AnswerShape(None, beam.COLUMNS.get(self.name, mine), beam.RENAMED.get(self.name, renamed))
        return AnswerShape(self.module.KEY, mine, renamed)

    @property
    def lines(self) -> int:
        """The lines of code of its own file."""
        return lines(Path(str(self.module.__file__)))

    @property
    def shared_lines(self) -> int:
        """The lines of code of the files it shares with other queries."""
        return sum(map(lines, shared(Path(str(self.module.__file__)))))

    def build(self, events: Events, options: Options | None = None) -> Stream:
        """The stream of answers over these events."""
        options = options or Options()
        if options.dialect not in self.dialects:
            raise InvalidOption(
                f"{self.name} cannot be asked in the dialect {options.dialect!r}; take {self.dialects[0]!r}"
            )
        build = beam.BUILD[self.name] if options.dialect == "beam" else self.module.build
        stream: Stream = build(events, options)
        return stream

    def shown(self, emitted: pa.Table, dialect: str = "flink") -> pa.Table:
        """The rows that the stream emitted, in the columns of the answer."""
        shape = self.shape(dialect)
        emitted = emitted.select([shape.renamed.get(name, name) for name in shape.columns])
        return emitted.rename_columns(list(shape.columns))


QUERIES: Mapping[str, QueryDefinition] = MappingProxyType(
    {
        module.__name__.rpartition(".")[2]: QueryDefinition(module.__name__.rpartition(".")[2], module)
        for module in (q0, q1, q2, q3, q4, q5, q6, q7, q8, q9, q11, q17, q18, q19, q20)
    }
)
"""All queries by name, in order."""


def named(name: str) -> QueryDefinition:
    """The query of this name; InvalidOption lists those there are."""
    if name not in QUERIES:
        raise InvalidOption(f"there is no query {name!r}; there are: {', '.join(QUERIES)}")
    return QUERIES[name]
