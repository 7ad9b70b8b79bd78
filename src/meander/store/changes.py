"""What has changed of one operator between two starts, found by comparing fingerprints; and why it is refused."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NoReturn

from meander.errors import ChangedQuery
from meander.store.design import Json, StateLayout, TableSource

if TYPE_CHECKING:
    from meander.store.evolution import OptionRule

NEXT = "start with a new checkpoint, or with the query as it was"
ADD = 'with evolve="add"'

PARTS = ("rest", "sum", "sum.rest", "count", "squares", "squares.rest", "values", "sketch")
"""What stands behind the name of an aggregate in the names of its state columns."""

ONE_ROW = ("first", "last")
"""Aggregates that all come from one row: what a further one had in that row is not known."""

LISTS = "collect_list"

_KNOWN = ("operator", "inputs", "key", "tables", "options")


class OperatorChange:
    """One operator as it is stored and as it is now.

    A rename holds where the old name is stored, the new one is not, and the query has the new one: so it may stay in a
    program that is started again.
    """

    def __init__(self, number: int, then: Json, now: Json, renames: Mapping[str, str]) -> None:
        self.number, self.then, self.now, self.renames = number, then, now, renames
        self.notes: list[str] = []
        self.added: list[str] = []
        """The columns of state that are new."""
        self._additions: list[str] = []

    # --- names ---------------------------------------------------------------------------------

    def renames_it(self, old: str) -> bool:
        """Whether a rename is of something that this operator has."""
        return old in self._used

    def has_now(self, name: str) -> bool:
        """Whether something of the operator is called so now."""
        aggregates = self.now.get("options", {}).get("aggregates", {})
        tables = self.now.get("tables", {})
        columns = [column for table in tables.values() for column, _ in (*table["key"], *table["values"])]
        named = (self.now.get("operator"), *aggregates, *tables, *columns, *_texts(self.now.get("options", {})))
        return name in named

    @cached_property
    def _used(self) -> set[str]:
        places = [
            self._renamed([self.then.get("operator")], [self.now.get("operator")]),
            self._renamed(self._key_names(self.then), self._key_names(self.now)),
            self._renamed(self._aggregates(self.then), self._aggregates(self.now)),
            self._table_names,
            *(self._column_names(now) for now in self._tables_now),
        ]
        scoped = {f"{then}.{old}" for then, now in self._kept_tables for old in self._column_names(now)}
        return {old for place in places for old in place} | scoped | {*self._of_options}

    @property
    def _of_options(self) -> dict[str, str]:
        """New names by old ones, of columns of the input that options name."""
        then, now = ([*_texts(side.get("options", {}))] for side in (self.then, self.now))
        return self._renamed(then, now)

    def _renamed(self, then: Iterable[Any], now: Iterable[Any], scope: str | None = None) -> dict[str, str]:
        """New names by old ones, of the names of one place."""
        old, new = set(then), set(now)
        names = {}
        for name, other in self.renames.items():
            within, _, bare = name.rpartition(".")
            wanted = bare if scope is not None and within == scope else name
            if wanted in old and other in new and other not in old:
                names[wanted] = other
        return names

    def _key_names(self, side: Json) -> list[str]:
        return [name for name, _ in side.get("key", [])]

    def _aggregates(self, side: Json) -> Json:
        aggregates: Json = side.get("options", {}).get("aggregates", {})
        return aggregates

    @property
    def _tables_now(self) -> Json:
        tables: Json = self.now.get("tables", {})
        return tables

    @cached_property
    def _table_names(self) -> dict[str, str]:
        return self._renamed(self.then.get("tables", {}), self._tables_now)

    @cached_property
    def _kept_tables(self) -> list[tuple[str, str]]:
        """The tables that are there now and were there before: the name then, and now."""
        names = ((self._table_names.get(then, then), then) for then in self.then.get("tables", {}))
        return [(then, now) for now, then in names if now in self._tables_now]

    def _column_names(self, table: str) -> dict[str, str]:
        """New names of the value columns of a table that is there now, by old ones: also those of aggregates."""
        then = next((then for then, now in self._kept_tables if now == table), None)
        if then is None:
            return {}
        old = [name for name, _ in self.then["tables"][then]["values"]]
        new = [name for name, _ in self._tables_now[table]["values"]]
        names: dict[str, str] = {}
        for name, other in self._renamed(self._aggregates(self.then), self._aggregates(self.now)).items():
            names |= {column: other + column[len(name) :] for column in old if _is_state_of(column, name)}
        return names | self._renamed(old, new, then)

    # --- tables --------------------------------------------------------------------------------

    def changed_tables(self) -> list[str]:
        """The tables, by their names now, that were there before with other columns."""
        return [now for _, now in self._kept_tables if any(self._difference(now))]

    def _columns(self, table: str) -> tuple[dict[str, tuple[str, str]], dict[str, str]]:
        """The columns of a table that were there before, by their names now, with name and type then; those now."""
        then = next(then for then, now in self._kept_tables if now == table)
        names = self._column_names(table)
        before = {names.get(name, name): (name, kind) for name, kind in self.then["tables"][then]["values"]}
        return before, dict(self._tables_now[table]["values"])

    def _difference(self, table: str) -> tuple[list[str], list[str], list[str]]:
        """The columns of a table that are gone, those of another type, and those that are new."""
        before, after = self._columns(table)
        gone = [name for name in before if name not in after]
        other = [name for name in after if name in before and before[name][1] != after[name]]
        return gone, other, [name for name in after if name not in before]

    # --- the verdict ---------------------------------------------------------------------------

    def layout(
        self, converted: Sequence[str], rules: Mapping[str, OptionRule], is_wanted: bool, before: int
    ) -> StateLayout | None:
        """The new layout of the operator's tables, None where it is as it was; ChangedQuery where that cannot be.

        Args:
            converted: the tables that a function of the user's converts.
            rules: which options may change.
            is_wanted: whether state may be added.
            before: the last version of the layout that is stored.
        """
        self._check_operator_and_key()
        if not converted:
            self._check_aggregates()
        self._check_tables(converted)
        self._check_options(rules, bool(converted))
        self._check_rest()
        if self._additions and not is_wanted:
            self.refuse(self._additions[0], f"{ADD} it begins empty, or {NEXT}")
        self.notes += [f"{self.who} {what}" for what in self._additions]
        self.notes += [f"{self.who}: {name!r} was called {old!r}" for old, name in self._all_renames()]
        if self.then.get("tables") == self.now.get("tables"):
            return None
        sources = {now: self._source(then, now, now in converted) for then, now in self._kept_tables}
        return StateLayout(self._tables_now, sources, before)

    def refuse(self, what: str, advice: str = NEXT) -> NoReturn:
        """Say what has changed and what to do."""
        raise ChangedQuery(f"{self.who} {what}; {advice}")

    @property
    def who(self) -> str:
        """The operator, for sentences."""
        return f"operator {self.number}" + (f" ({self.then['operator']})" if "operator" in self.then else "")

    def _all_renames(self) -> list[tuple[str, str]]:
        places: list[Mapping[str, str]] = [
            self._renamed([self.then.get("operator")], [self.now.get("operator")]),
            self._renamed(self._key_names(self.then), self._key_names(self.now)),
            self._renamed(self._aggregates(self.then), self._aggregates(self.now)),
            self._table_names,
            *(self._column_names(now) for now in self._tables_now if not self._aggregates(self.now)),
        ]
        return [*dict.fromkeys(pair for place in places for pair in place.items())]

    def _check_operator_and_key(self) -> None:
        then, now = self.then.get("operator"), self.now.get("operator")
        if then != now and self._renamed([then], [now]).get(str(then)) != now:
            self.refuse(f"was {then} and is now {now}")
        before, after = self.then.get("inputs"), self.now.get("inputs")
        if before != after:
            self.refuse(f"took rows of {_origins(before)} and now takes rows of {_origins(after)}")
        before, after = self.then.get("key"), self.now.get("key")
        if before != after and self._with_renamed_key(before) != after:
            self.refuse(f"was keyed by {_columns(before)} and is now keyed by {_columns(after)}")

    def _with_renamed_key(self, key: Sequence[Sequence[str]] | None) -> list[list[str]]:
        names = self._renamed(self._key_names(self.then), self._key_names(self.now))
        return [[names.get(name, name), kind] for name, kind in key or ()]

    def _check_aggregates(self) -> None:
        then, now = self._aggregates(self.then), self._aggregates(self.now)
        names = self._renamed(then, now)
        before = {names.get(name, name): state for name, state in then.items()}
        for name, state in before.items():
            if name not in now:
                self.refuse(f"had the aggregate {name!r} and has it no more", _rename_advice(name, [*now], [*before]))
            if _with_names(state, self._of_options) != now[name]:
                self.refuse(f"had the aggregate {name}={_short(state)} and now has {name}={_short(now[name])}")
        for name in now:
            if name in before:
                continue
            function = now[name][0]
            if function in ONE_ROW and any(state[0] == function for state in then.values()):
                self.refuse(f"has a new aggregate {name!r}, and what it was in the {function} row so far is not known")
            self._additions.append(f"has a new aggregate {name!r}")

    def _check_tables(self, converted: Sequence[str]) -> None:
        kept = dict(self._kept_tables)
        for name in self.then.get("tables", {}):
            if name not in kept:
                missing = [each for each in self._tables_now if each not in kept.values()]
                self.refuse(f"had the table {name!r} and has it no more", _rename_advice(name, missing, []))
            self._check_table(name, kept[name], kept[name] in converted)
        self._additions += [f"has a new table {name!r}" for name in self._tables_now if name not in kept.values()]

    def _check_table(self, then: str, name: str, is_converted: bool) -> None:
        table, now = self.then["tables"][then], self._tables_now[name]
        gone, other, new = self._difference(name)
        is_other_key = self._with_renamed_key(table["key"]) != now["key"]
        if is_other_key or ((gone or other) and not is_converted):
            advice = NEXT if is_other_key else self._column_advice(name, gone, new)
            self.refuse(f"had {_table(table)} in the table {then!r} and now has {_table(now)}", advice)
        self.added += new
        before, after = self._columns(name)
        if is_converted:
            self.notes.append(f"{self.who} has the rows of table {name!r} converted")
        elif not self._aggregates(self.now):
            self._additions += [f"has a new column {column!r} in the table {name!r}" for column in new]
        if not (gone or other or new) and [*before] != [*after]:
            self.notes.append(f"{self.who} has the columns of table {name!r} in another order")

    def _column_advice(self, table: str, gone: Sequence[str], new: Sequence[str]) -> str:
        if gone and new:
            return _rename_advice(gone[0], new, [])
        return f"a function given as evolve= can convert the table {table!r}, or {NEXT}"

    def _check_options(self, rules: Mapping[str, OptionRule], is_converted: bool) -> None:
        then, now = self.then.get("options", {}), self.now.get("options", {})
        for name in sorted({*then, *now}):
            old, new = _in_both(then.get(name), now.get(name))
            if new in (old, _with_names(old, self._of_options)) or name == "aggregates":
                continue
            if name == "by" and (is_converted or (old is None and not self._has_lists)):
                continue
            said = f"had {name}={_short(old)} and now has {name}={_short(new)}"
            rule = rules.get(name)
            if rule is None or not rule.is_harmless(old, new):
                reason = f": {rule.reason}" if rule is not None and rule.reason else ""
                self.refuse(f"{said}{reason}")
            self.notes.append(f"{self.who} {said}: {rule.note}")

    @property
    def _has_lists(self) -> bool:
        """Whether there are lists, which are in order of `by` where there is one."""
        return any(state[0] == LISTS for state in self._aggregates(self.then).values())

    def _check_rest(self) -> None:
        for name in sorted({*self.then, *self.now} - {*_KNOWN}):
            old, new = self.then.get(name), self.now.get(name)
            if old == new:
                continue
            if name != "output":
                self.refuse(f"had {name} {_short(old)} and now has {_short(new)}")
            if not self._additions and not self.renames:
                self.notes.append(f"{self.who} emits the columns {_columns(new)}")

    def _source(self, then: str, now: str, is_converted: bool) -> TableSource:
        table = self.then["tables"][then]
        before, after = self._columns(now)
        if is_converted and any(self._difference(now)):
            names = {name: name for name, _ in table["values"]}
            return TableSource(then, tuple(name for name, _ in table["key"]), names, function=True)
        columns = {name: before[name][0] for name in after if name in before}
        return TableSource(then, tuple(name for name, _ in table["key"]), columns)


def _rename_advice(name: str, now: Sequence[str], before: Sequence[str]) -> str:
    fresh = [each for each in now if each not in before]
    if not fresh:
        return NEXT
    return f'say evolve="add" and renames={{"{name}": "{fresh[0]}"}} if that is what it is called now, or {NEXT}'


def _in_both(then: Any, now: Any) -> tuple[Any, Any]:
    """Two values of an option; of options by name, what is about names that both have."""
    if not all(each is None or isinstance(each, dict) for each in (then, now)):
        return then, now
    names = {*(then or {})} & {*(now or {})}
    return {name: then[name] for name in names}, {name: now[name] for name in names}


def _texts(value: Any) -> Iterator[str]:
    """All texts in the values of options."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _texts(each)


def _with_names(value: Any, names: Mapping[str, str]) -> Any:
    """The value of an option with other names of columns."""
    if isinstance(value, str):
        return names.get(value, value)
    return [_with_names(each, names) for each in value] if isinstance(value, list) else value


def _is_state_of(column: str, aggregate: str) -> bool:
    return column == aggregate or any(column == f"{aggregate}.{part}" for part in PARTS)


def _columns(columns: Any) -> str:
    try:
        return ", ".join(f"{name} {type_}" for name, type_ in columns) or "nothing"
    except (TypeError, ValueError):
        return _short(columns)


def _table(table: Json) -> str:
    return f"({_columns(table['key'])} -> {_columns(table['values'])})"


def _origins(inputs: Sequence[Sequence[str]] | None) -> str:
    if inputs is None:
        return "what is before it"
    return " with ".join(" and ".join(each) for each in inputs)


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 100 else f"{text[:97]}..."
