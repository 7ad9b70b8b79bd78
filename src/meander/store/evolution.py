"""How a query may change between two starts: what is harmless, what adds to the state, and what is refused.

    the design that is stored + the fingerprints of the query now -> judge -> the design from the next version on

What is harmless is allowed and said. What adds, renames or converts happens only where `start` was told so. Everything
else would give stored state another meaning, and is refused in one sentence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import pyarrow as pa

from meander.errors import ChangedQuery, InvalidOption
from meander.store.changes import ADD, NEXT, OperatorChange
from meander.store.design import Design, Json, StateLayout
from meander.store.lookup import type_of

Converter = Callable[[pa.Table], Any]
Evolve = str | Converter | Mapping[str, Converter]
"""What a user says of changes: "add", a function for the table that has changed, or functions by names of tables."""


def _always(then: Any, now: Any) -> bool:
    return True


class OptionRule(NamedTuple):
    """What may become of an option between two starts; an option without a rule must stay as it is.

    Args:
        note: what it means that it changed, for the log.
        is_harmless: whether it may go from one value to another.
        reason: why not, where it may not.
    """

    note: str
    is_harmless: Callable[[Any, Any], bool] = _always
    reason: str = ""


@dataclass(frozen=True)
class Evolution:
    """What `start` was told about changes of the query: `evolve`, `renames` and `defaults`, checked.

    Args:
        is_wanted: whether state may be added, and converted.
        function: what converts the one table whose columns have changed.
        functions: what converts tables, by their names.
        renames: new names by old ones, of columns, tables, aggregates or operators.
        defaults: values of new columns, by their names.
    """

    is_wanted: bool = False
    function: Converter | None = None
    functions: Mapping[str, Converter] = field(default_factory=dict)
    renames: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        evolve: Evolve | None,
        renames: Mapping[str, str] | None = None,
        defaults: Mapping[str, Any] | None = None,
    ) -> Evolution:
        """Read what a user has written; InvalidOption where it is no way to change a query."""
        function = evolve if callable(evolve) else None
        functions = dict(evolve) if isinstance(evolve, Mapping) else {}
        if isinstance(evolve, Mapping):
            is_fit = bool(evolve) and all(map(callable, evolve.values()))
        else:
            is_fit = evolve in (None, "add") or function is not None
        if not is_fit:
            raise InvalidOption(
                f'evolve is {evolve!r}; it is "add", a function of a table that returns the new one, or such functions '
                "by the names of their tables"
            )
        for name, given in (("renames", renames or {}), ("defaults", defaults or {})):
            if not isinstance(given, Mapping) or not all(isinstance(key, str) for key in given):
                raise InvalidOption(f"{name} is {given!r}; give a dictionary of names")
            if given and evolve is None:
                raise InvalidOption(f'{name} are a part of an evolution; give evolve="add" too')
        old, new = [*(renames or {})], [*(renames or {}).values()]
        if not all(isinstance(each, str) and each for each in new):
            raise InvalidOption(f"renames is {renames!r}; give the new name, a text, for each old one")
        if len(set(new)) < len(new) or {*old, *(each.rpartition(".")[2] for each in old)} & set(new):
            raise InvalidOption(
                f"renames is {renames!r}, in which a name is both old and new, or new twice; rename in two starts, or "
                "let a function do it"
            )
        return cls(evolve is not None, function, functions, renames or {}, defaults or {})

    def converter(self, table: str) -> Converter | None:
        """The function that converts a table."""
        return self.functions.get(table, self.function)


class Ruling(NamedTuple):
    """What the query is from its next version on, and what is to be said about that, a sentence each."""

    design: Design
    notes: tuple[str, ...] = ()
    is_new: bool = False

    @property
    def change(self) -> Design | None:
        """The design, where it is another one than before."""
        return self.design if self.is_new else None


def judge(
    stored: Design,
    now: Sequence[Json],
    evolution: Evolution,
    rules: Sequence[Mapping[str, OptionRule]],
    before: int = -1,
) -> Ruling:
    """Whether a query may go on with the state of a checkpoint, and as what.

    Args:
        stored: what the checkpoint is.
        now: the fingerprint of each operator of the query.
        evolution: what the user has said about changes.
        rules: for each operator, which of its options may change.
        before: the last version that is committed.

    Raises:
        ChangedQuery: the state would get another meaning.
        InvalidOption: what the user has said fits neither what is stored nor the query.
    """
    if len(now) < len(stored.operators) or (len(now) > len(stored.operators) and not evolution.is_wanted):
        then, this = (" -> ".join(map(_name, each)) or "none" for each in (stored.operators, now))
        further = f"{ADD} the further ones begin empty, or " if len(now) > len(stored.operators) > 0 else ""
        raise ChangedQuery(f"the checkpoint has the operators {then}, the query has {this}; {further}{NEXT}")
    pairs = [
        OperatorChange(at, then, after, evolution.renames)
        for at, (then, after) in enumerate(zip(stored.operators, now, strict=False))
    ]
    _check_names(pairs, now, evolution)
    layouts, notes = list(stored.layouts), []
    for change, own_rules in zip(pairs, [*rules, *[{}] * (len(pairs) - len(rules))], strict=False):
        converted = [name for name in change.changed_tables() if evolution.converter(name) is not None]
        layout = change.layout(converted, own_rules, evolution.is_wanted, before)
        notes += change.notes
        if layout is not None:
            defaults = {name: evolution.defaults[name] for name in evolution.defaults if name in change.added}
            layouts[change.number] = (*layouts[change.number], _with_defaults(layout, defaults))
    _check_functions(pairs, evolution)
    for at, each in enumerate(now[len(pairs) :], len(pairs)):
        layouts.append((StateLayout(each.get("tables", {})),))
        notes.append(f"operator {at} ({each.get('operator')}) is new and begins empty")
    design = replace(stored, operators=tuple(now), layouts=tuple(layouts))
    return Ruling(design, tuple(notes), design != stored)


def _name(fingerprint: Json) -> str:
    return str(fingerprint.get("operator"))


def listed(names: Iterable[str]) -> str:
    """Names, in order, for a sentence."""
    return ", ".join(sorted(names)) or "none"


def _check_names(pairs: Sequence[OperatorChange], now: Sequence[Json], evolution: Evolution) -> None:
    """Refuse names of renames, defaults and functions that nothing has."""
    for old, new in evolution.renames.items():
        if not any(change.renames_it(old) or change.has_now(new) for change in pairs):
            raise InvalidOption(
                f"renames says that {old!r} is now {new!r}, but the checkpoint has no {old!r}, or the query no {new!r}"
            )
    tables = [(name, table) for each in now for name, table in each.get("tables", {}).items()]
    columns = {column for _, table in tables for column, _ in table.get("values", ())}
    names = {name for name, _ in tables}
    for what, given, known in (("defaults", evolution.defaults, columns), ("evolve", evolution.functions, names)):
        for name in given:
            if name not in known:
                raise InvalidOption(f"{what} names {name!r}, which is not in the state; there are: {listed(known)}")


def _check_functions(pairs: Sequence[OperatorChange], evolution: Evolution) -> None:
    """One function is for one table: of several that have changed, nobody knows which it means."""
    if evolution.function is None:
        return
    tables = [name for change in pairs for name in change.changed_tables()]
    if len(tables) > 1:
        raise InvalidOption(
            f"evolve is one function, and the columns of the tables {listed(tables)} have changed; give functions by "
            f'their names, such as evolve={{"{tables[0]}": function}}'
        )


def _with_defaults(layout: StateLayout, defaults: Mapping[str, Any]) -> StateLayout:
    """The layout, in which new columns have these values."""
    sources = dict(layout.sources)
    for name, source in sources.items():
        kinds = dict(layout.tables[name]["values"])
        own = {
            column: _as_text(column, value, type_of(kinds[column]))
            for column, value in defaults.items()
            if column in kinds and column not in source.columns and value is not None
        }
        sources[name] = replace(source, defaults=own)
    return replace(layout, sources=sources)


def _as_text(column: str, value: Any, kind: pa.DataType) -> str:
    try:
        text = pa.array([value], kind).cast(pa.string())
        return str(text.cast(kind).cast(pa.string())[0].as_py())
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise InvalidOption(f"the default of {column!r} is {value!r}, which is no {kind}: {error}") from None
