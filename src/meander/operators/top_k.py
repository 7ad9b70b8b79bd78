"""The best rows of each key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from meander.errors import InvalidOption
from meander.operators.operator import BinnedOperator, Now, Output, field_of, key_of, output_of
from meander.operators.ordering import Groups, Words, ascending, first_of_groups, refinements, same, sorted_rows
from meander.operators.times import newest_of, time_type
from meander.options import whole
from meander.route.columns import column_of_words, is_octets, whole_column, words_of
from meander.route.keys import Keys
from meander.state.spans import positions
from meander.state.spec import TableSpec
from meander.state.table import Table

PLACE, SIZE, NUMBER, KNOWN, NULLS = "top.place", "top.size", "row.number", "rows.known", "identity.nulls"


class TopK(BinnedOperator):
    """The key's columns, the others and the rank (1 is best) of the k best rows of every key whose best changed.

    A row is better if its `by` is larger (smaller with `largest=False`); NaN is the largest number, and a row without
    a value comes last. Rows of equal `by` are in ascending order of their other columns, so arrival never decides.

    Without `identity` every row counts for ever: these are the best rows that ever came. With `identity`, rows are
    updates, as those that `count` emits: a row takes the place of the one before that has the same identity. All
    identities are kept, because one that falls lets another rise that was seen long ago; finding it reads all rows of
    that key, while values that only improve cost nothing extra. Of rows with one identity in one batch, and with
    `time` also across batches, the newest counts, then the best. An identity never leaves: the stream says what its
    value is, not that it is gone.
    """

    name = "top_k"

    def __init__(
        self,
        input: pa.Schema,
        key: Sequence[str],
        k: int,
        by: str,
        *,
        largest: bool = True,
        identity: Sequence[str] | None = None,
        time: str | None = None,
        rank: str = "rank",
    ) -> None:
        self.input = input
        self.key = key_of(input, key)
        self.k = whole("k", k, 1, 1_000_000)
        field_of(input, by, "by")
        if by in self.key.names:
            raise InvalidOption(
                f"by names {by!r}, a column of the key, which is the same in all its rows; name another"
            )
        if pa.types.is_nested(input.field(by).type):
            raise InvalidOption(f"by names the column {by!r} of type {input.field(by).type}, which has no order")
        self.by, self.largest, self.time = by, bool(largest), time
        self.identity = None if identity is None else self._identity(identity)
        if time is not None:
            time_type(input, time)
        if time is not None and self.identity is None:
            raise InvalidOption("time says which update is newest; it needs identity, the columns that an update keeps")
        if not isinstance(rank, str) or not rank or rank in input.names:
            raise InvalidOption(f"the rank cannot be called {rank!r}; give it a name that no column of the input has")
        self.others = [name for name in input.names if name not in self.key.names]
        self.ties = [name for name in self.others if name != by]
        self.output = output_of(
            self.key, *((f.name, f.type) for f in map(input.field, self.others)), (rank, pa.int32())
        )
        self.tables = self._tables()

    def _identity(self, identity: Sequence[str]) -> tuple[str, ...]:
        if isinstance(identity, str) or not identity:
            raise InvalidOption(f"identity is {identity!r}; give a list of at least one column")
        for name in identity:
            field_of(self.input, name, "identity")
        columns = tuple(dict.fromkeys(name for name in identity if name not in self.key.names))
        if not columns or self.by in columns:
            why = "are all in the key" if not columns else f"hold {self.by!r}, which by goes by"
            raise InvalidOption(f"the columns of identity {why}; name what stays the same when a value changes")
        return columns

    def _tables(self) -> tuple[TableSpec, ...]:
        def kinds(names: Sequence[str]) -> tuple[tuple[str, pa.DataType], ...]:
            return tuple((name, self.input.field(name).type) for name in names)

        placed = self.key.extended((PLACE, pa.int64()))
        top = TableSpec("top", placed, kinds(self.others))
        if self.identity is None:
            return (TableSpec("heads", self.key, ((SIZE, pa.int64()),)), top)
        known = self.key.extended(*kinds(self.identity), (NULLS, pa.int64()))
        numbered = self.key.extended((NUMBER, pa.int64()))
        rest = [name for name in self.others if name not in self.identity]
        return (
            TableSpec("heads", self.key, ((SIZE, pa.int64()), (KNOWN, pa.int64()))),
            top,
            TableSpec("rows", known, ((NUMBER, pa.int64()), *kinds(rest))),
            TableSpec("numbers", numbered, kinds(self.identity)),
        )

    @property
    def options(self) -> dict[str, Any]:
        """What makes a row good, and what makes it the same row."""
        identity = None if self.identity is None else list(self.identity)
        return {"k": self.k, "by": self.by, "largest": self.largest, "identity": identity, "time": self.time}

    def run(self, rows: pa.Table, keys: Keys, tables: Mapping[str, Table], now: Now) -> Output:
        """Let the rows compete with the best of their keys."""
        if not len(keys):
            return Output(None)
        newest = None if self.time is None else newest_of(rows, self.time)
        heads = tables["heads"]
        groups = Groups.of_rows(heads.touch(keys), heads.size)
        old = self._load(heads, tables["top"], groups.rows)
        if self.identity is None:
            new = self._best(Ranked(groups.of, rows.select(self.others)), old)
        else:
            new = self._best_of_known(tables, groups, rows, old)
        return Output(self._write(heads, tables["top"], groups.rows, old, new), None, newest)

    def _load(self, heads: Table, top: Table, rows: Words) -> Ranked:
        """The best rows so far of the keys at these rows of `heads`."""
        size = heads.column(SIZE)[rows]
        group = np.repeat(np.arange(rows.size), size)
        at = self._at(heads, top, rows[group], positions(group))
        return Ranked(group, self._rows(top, at, self.others))

    def _at(self, heads: Table, table: Table, rows: Words, number: Words) -> Words:
        if not rows.size:
            return rows
        return table.touch(table.spec.key.encode([*heads.keys(rows), pa.array(number)]))

    def _rows(self, table: Table, at: Words, names: Sequence[str]) -> pa.Table:
        return pa.table({name: table.get(name, at) for name in names})

    def _best(self, *several: Ranked) -> Ranked:
        """The k best of all rows of each group, in order."""
        group = np.concatenate([each.group for each in several])
        rows = self._joined([each.rows for each in several])
        good = np.arange(group.size)
        if group.size > self.k:
            good = self._contenders(group, whole_column(rows[self.by]))
        order = good[self._order(group[good], rows.take(pa.array(good)))]
        order = order[positions(group[order]) < self.k]
        return Ranked(group[order], rows.take(pa.array(order)))

    def _contenders(self, group: Words, by: pa.Array) -> Words:
        """The rows that no k rows of their group are better than by `by` alone."""
        keys = list(refinements(by, self.largest))
        order = np.lexsort([*keys[::-1], group])
        place = positions(group[order])
        limit = order[np.arange(order.size) - np.maximum(place - (self.k - 1), 0)]
        equal = np.ones(order.size, dtype=np.bool_)
        for key in keys:
            equal &= key[order] == key[limit]
        return np.sort(order[(place < self.k) | equal])

    def _order(self, group: Words, rows: pa.Table) -> Words:
        ties = ascending(rows, self.ties)
        return sorted_rows([(pa.array(group), False), (whole_column(rows[self.by]), self.largest), *ties])

    def _joined(self, tables: Sequence[pa.Table]) -> pa.Table:
        kinds = pa.schema([(name, self.tables[1].types[name]) for name in self.others])
        return pa.concat_tables([each.cast(kinds) for each in tables]).combine_chunks()

    def _best_of_known(self, tables: Mapping[str, Table], groups: Groups, rows: pa.Table, old: Ranked) -> Ranked:
        """The k best rows of each key after updates."""
        heads, known = tables["heads"], tables["rows"]
        before = heads.column(KNOWN)[groups.rows]
        updates, at = self._update(tables, groups, rows)
        at_old = self._known(known, heads.keys(groups.rows[old.group]), old.rows)
        updated = np.zeros(known.size, dtype=np.bool_)
        updated[at] = True
        new = self._best(old.take(np.flatnonzero(~updated[at_old])), updates)
        # Whoever is not among these is behind the old last place; beyond it, the answer may be among them.
        hidden = np.flatnonzero(before > self.k)
        short = np.delete(hidden, self._reaching(old, new, hidden)) if hidden.size else hidden
        if not short.size:
            return new
        rest = new.take(np.flatnonzero(~np.isin(new.group, short)))
        every = self._best(self._all(tables, groups.rows, short))
        both = self._joined([rest.rows, every.rows])
        group = np.concatenate([rest.group, every.group])
        order = np.argsort(group, kind="stable")
        return Ranked(group[order], both.take(pa.array(order)))

    def _known(self, known: Table, key: Sequence[pa.Array], rows: pa.Table) -> Words:
        """Where rows of these keys and identities are kept; a null is an identity like any other."""
        columns = [whole_column(rows[name]) for name in self.identity or ()]
        nulls = np.zeros(rows.num_rows, dtype=np.int64)
        for place, column in enumerate(columns):
            nulls |= column.is_null().to_numpy(zero_copy_only=False).astype(np.int64) << place
        return known.touch(known.spec.key.encode([*key, *map(_filled, columns), pa.array(nulls)]))

    def _update(self, tables: Mapping[str, Table], groups: Groups, rows: pa.Table) -> tuple[Ranked, Words]:
        """Take the updates into the rows that are kept; those that count, and where they are kept."""
        heads, known, identity = tables["heads"], tables["rows"], self.identity or ()
        by_identity = Groups.of_rows(self._known(known, [rows[name] for name in self.key.names], rows), known.size)
        by_time = [] if self.time is None else [(whole_column(rows[self.time]), True)]
        best = [(whole_column(rows[self.by]), self.largest)]
        first = first_of_groups(by_identity.of, len(by_identity), [*by_time, *best, *ascending(rows, self.ties)])
        at = by_identity.rows
        if self.time is not None:
            newer = self._not_older(known, at, whole_column(rows[self.time]).take(pa.array(first)))
            at, first = at[newer], first[newer]
        taken, group = self._joined([rows.select(self.others).take(pa.array(first))]), groups.of[first]
        for name in self.others:
            if name not in identity:
                known.set(name, at, whole_column(taken[name]))
        self._number(heads, known, tables["numbers"], groups.rows, group, at, taken)
        known.mark(at)
        order = np.argsort(group, kind="stable")
        return Ranked(group[order], taken.take(pa.array(order))), at

    def _not_older(self, known: Table, at: Words, times: pa.Array) -> Words:
        """Which of the updates are not older than what is kept."""
        stored = known.get(self.time or "", at)
        old = pa.array(np.arange(at.size * 2) % max(at.size, 1))
        both = pa.concat_arrays([times.cast(stored.type), stored])
        first = first_of_groups(old.to_numpy(), at.size, [(both, True)])
        return np.flatnonzero((first < at.size) | ~known.present[at])

    def _number(
        self, heads: Table, known: Table, numbers: Table, keyed: Words, group: Words, at: Words, rows: pa.Table
    ) -> None:
        """Number the rows that are new within their key, so that all rows of a key can be listed."""
        new = np.flatnonzero(~known.present[at])
        if not new.size:
            return
        new = new[np.argsort(group[new], kind="stable")]
        number = heads.column(KNOWN)[keyed[group[new]]] + positions(group[new])
        where = self._at(heads, numbers, keyed[group[new]], number)
        for name in self.identity or ():
            numbers.set(name, where, whole_column(rows[name].take(pa.array(new))))
        numbers.mark(where)
        known.column(NUMBER)[at[new]] = number
        known.valid(NUMBER)[at[new]] = True
        heads.column(KNOWN)[keyed] += np.bincount(group[new], minlength=keyed.size)
        heads.valid(KNOWN)[keyed] = True
        heads.mark(keyed[np.unique(group[new])])

    def _reaching(self, old: Ranked, new: Ranked, wanted: Words) -> Words:
        """Which of these groups have k new rows whose last is not behind the last of the k old ones."""
        full = np.bincount(new.group, minlength=int(wanted.max()) + 1)[wanted] == self.k
        last_old = np.searchsorted(old.group, wanted, side="right") - 1
        last_new = np.searchsorted(new.group, wanted, side="right") - 1
        both = self._joined([new.rows.take(pa.array(np.maximum(last_new, 0))), old.rows.take(pa.array(last_old))])
        order = self._order(np.arange(wanted.size * 2) % wanted.size, both)
        place = np.empty(order.size, dtype=np.int64)
        place[order] = np.arange(order.size)
        return np.flatnonzero(full & (place[: wanted.size] < place[wanted.size :]))

    def _all(self, tables: Mapping[str, Table], keyed: Words, wanted: Words) -> Ranked:
        """All rows that are kept of these groups."""
        heads, known, numbers = tables["heads"], tables["rows"], tables["numbers"]
        group = np.repeat(wanted, heads.column(KNOWN)[keyed[wanted]])
        at = self._at(heads, numbers, keyed[group], positions(group))
        identity = self._rows(numbers, at, self.identity or ())
        where = self._known(known, heads.keys(keyed[group]), identity)
        columns = [identity[name] if name in identity.column_names else known.get(name, where) for name in self.others]
        return Ranked(group, pa.table(columns, names=self.others))

    def _write(self, heads: Table, top: Table, keyed: Words, old: Ranked, new: Ranked) -> pa.Table | None:
        """Keep the new best rows where they differ from the old, and return those of the keys that changed."""
        size_old, size_new = (np.bincount(each.group, minlength=keyed.size) for each in (old, new))
        place = positions(new.group)
        before = np.flatnonzero(place < size_old[new.group])
        counterpart = (np.cumsum(size_old) - size_old)[new.group[before]] + place[before]
        alike = np.zeros(new.group.size, dtype=np.bool_)
        alike[before] = True
        for name in self.others:
            mine, theirs = whole_column(new.rows[name]), whole_column(old.rows[name])
            alike[before] &= same(mine.take(pa.array(before)), theirs.take(pa.array(counterpart)))
        differs = np.flatnonzero(~alike)
        if not differs.size:
            return None
        at = self._at(heads, top, keyed[new.group[differs]], place[differs])
        for name in self.others:
            top.set(name, at, whole_column(new.rows[name]).take(pa.array(differs)))
        top.mark(at)
        grown = keyed[size_new != size_old]
        heads.column(SIZE)[grown] = size_new[size_new != size_old]
        heads.valid(SIZE)[grown] = True
        heads.mark(grown)
        changed = np.zeros(keyed.size, dtype=np.bool_)
        changed[new.group[differs]] = True
        shown = np.flatnonzero(changed[new.group])
        rank = pa.array((place[shown] + 1).astype(np.int32))
        rows = new.rows.take(pa.array(shown)).combine_chunks()
        columns = [*heads.keys(keyed[new.group[shown]]), *(whole_column(rows[name]) for name in self.others), rank]
        names = [*self.key.names, *self.others, self.output.names[-1]]
        return pa.table(dict(zip(names, columns, strict=True))).cast(self.output)


class Ranked(NamedTuple):
    """Rows of groups, in order of group and, once ranked, of merit."""

    group: Words
    rows: pa.Table

    def take(self, at: Words) -> Ranked:
        """These rows."""
        return Ranked(self.group[at], self.rows.take(pa.array(at)))


def _filled(column: pa.Array) -> pa.Array:
    """The column with zeros and empty texts for its nulls."""
    if not column.null_count:
        return column
    if is_octets(column.type):
        return column.fill_null("" if pa.types.is_string(column.type) or pa.types.is_large_string(column.type) else b"")
    valid = column.is_valid().to_numpy(zero_copy_only=False)
    return column_of_words(words_of(column) * valid, column.type)
