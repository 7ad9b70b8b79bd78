"""Aggregates of each key over sessions: rows that follow each other within a gap of event time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from meander.operators.aggregate import Named
from meander.operators.operator import Now, Output
from meander.operators.ordering import Flags, Groups, Words
from meander.operators.times import Duration, chosen, microseconds, newest_of, stamps, times_of
from meander.operators.window import END, START, Windowed
from meander.route.keys import Keys
from meander.state.spans import positions, ranges
from meander.state.spec import TableSpec
from meander.state.table import Table

NUMBER, OPEN = "session.number", "sessions.open"


class Sessions(Windowed):
    """The key's columns, the session as window_start and window_end, and the aggregates over its rows.

    As in Spark: a session ends `gap` after its last row, and a row at exactly that time still belongs to it. Sessions
    that a row connects are merged. A session is closed when its end is before the frontier, which stays `lateness`
    behind the newest event time. A row before the frontier counts only if it falls into a session that is open;
    otherwise it could reach back into one that is closed, and goes to `late`, as does a row without a time.

    `emit="final"` gives each session once, when it closes. `emit="update"` gives the sessions that changed in this
    batch: one that has grown or has swallowed others comes with its new bounds, and stands for all that were emitted
    before for the same key and overlap it.
    """

    name = "sessions"

    def __init__(
        self,
        input: pa.Schema,
        key: Sequence[str],
        *,
        time: str,
        gap: Duration,
        lateness: Duration = "0s",
        named: Named | None = None,
        by: str | None = None,
        emit: str = "final",
    ) -> None:
        super().__init__(input, key, time, lateness, named, by, emit)
        self.gap = microseconds("gap", gap, least=1)
        numbered = self.key.extended((NUMBER, pa.int64()))
        bounds = ((START, self.kind), (END, self.kind))
        self.tables = (
            TableSpec("open", self.key, ((OPEN, pa.int64()),)),
            TableSpec("sessions", numbered, bounds + self.aggregation.values, order=END),
        )

    @property
    def options(self) -> dict[str, Any]:
        """The gap and what is aggregated."""
        return {**super().options, "gap_us": self.gap}

    def run(self, rows: pa.Table, keys: Keys, tables: Mapping[str, Table], now: Now) -> Output:
        """Close the sessions that are before the frontier, and add the rows to those that are not."""
        heads, table = tables["open"], tables["sessions"]
        due = np.empty(0, dtype=np.int64) if now.frontier is None else table.due(now.frontier)
        final = self._answer(table, due) if self.emit == "final" and due.size else None
        if not due.size and not rows.num_rows:
            return Output(None)
        of_due = heads.touch(self.key.encode(table.keys(due)[:-1])) if due.size else due
        of_row = heads.touch(keys)
        groups = Groups.of_rows(np.concatenate([of_due, of_row]), heads.size)
        group = groups.of[due.size :]
        old = self._load(heads, table, groups.rows)
        live = np.ones(old.row.size, dtype=np.bool_) if now.frontier is None else old.end >= now.frontier
        times, has = times_of(rows, self.time)
        if now.frontier is not None:
            has = has & (
                (times >= now.frontier) | _inside(group, times, old.group[live], old.start[live], old.end[live])
            )
        taken = np.flatnonzero(has)
        changed = self._merge(heads, table, groups.rows, old, live, chosen(rows, taken), group[taken], times[taken])
        late = None if taken.size == rows.num_rows else rows.take(pa.array(np.flatnonzero(~has)))
        newest = newest_of(rows, self.time) if rows.num_rows else None
        if self.emit == "final":
            return Output(final, late, newest)
        return Output(self._answer(table, changed) if changed.size else None, late, newest)

    def _load(self, heads: Table, table: Table, rows: Words) -> Open:
        """The sessions in the table of the keys at these rows of `heads`."""
        count = heads.column(OPEN)[rows]
        group, number = ranges(np.zeros_like(count), count)
        at = self._at(heads, table, rows[group], number)
        return Open(group, number, at, table.column(START)[at], table.column(END)[at])

    def _at(self, heads: Table, table: Table, rows: Words, number: Words) -> Words:
        if not rows.size:
            return rows
        return table.touch(self.tables[1].key.encode([*heads.keys(rows), pa.array(number)]))

    def _merge(
        self,
        heads: Table,
        table: Table,
        keyed: Words,
        old: Open,
        live: Flags,
        rows: pa.Table,
        group: Words,
        times: Words,
    ) -> Words:
        """Merge the live sessions and the rows of the keys; the rows of the table whose sessions have new rows."""
        kept = np.flatnonzero(live)
        session, bounds = _clusters(
            np.concatenate([old.group[kept], group]),
            np.concatenate([old.start[kept], times]),
            np.concatenate([old.end[kept], times + self.gap]),
        )
        of_old, of_row = session[: kept.size], session[kept.size :]
        count = np.bincount(bounds.group, minlength=keyed.size)
        number = positions(bounds.group)
        grown = np.bincount(of_row, minlength=bounds.group.size) > 0
        written = grown.copy()
        written[of_old[old.number[kept] != number[of_old]]] = True

        moved = np.flatnonzero(written[of_old])
        parts = self.aggregation.parts_of(table, old.row[kept[moved]])
        targets = np.flatnonzero(written)
        place = np.cumsum(written) - 1
        at = self._at(heads, table, keyed[bounds.group[targets]], number[targets])
        self.aggregation.clear(table, at)
        table.mark(at)
        table.set(START, at, stamps(bounds.start[targets], self.kind))
        table.set(END, at, stamps(bounds.end[targets], self.kind))
        if moved.size:
            self.aggregation.combine(table, Groups(at, place[of_old[moved]]), parts)
        if group.size:
            self.aggregation.add(table, Groups(at, place[of_row]), rows)
        table.discard(old.row[old.number >= count[old.group]])

        differs = heads.column(OPEN)[keyed] != count
        heads.column(OPEN)[keyed] = count
        heads.valid(OPEN)[keyed] = True
        heads.mark(keyed[differs & (count > 0)])
        heads.discard(keyed[differs & (count == 0)])
        return at[grown[targets]]

    def _answer(self, table: Table, rows: Words) -> pa.Table:
        bounds = [table.get(START, rows), table.get(END, rows)]
        columns = [*table.keys(rows)[:-1], *bounds, *self.aggregation.answer(table, rows)]
        return pa.Table.from_arrays(columns, schema=self.output)


class Open(NamedTuple):
    """Sessions in the table: whose they are, which of its sessions, at which row, from when to when."""

    group: Words
    number: Words
    row: Words
    start: Words
    end: Words


class MergedSessions(NamedTuple):
    """Merged sessions, in order of group and time."""

    group: Words
    start: Words
    end: Words


def _clusters(group: Words, start: Words, end: Words) -> tuple[Words, MergedSessions]:
    """Which merged interval each interval belongs to, and those; intervals that touch are merged."""
    order = np.lexsort((start, group))
    group, start, end = group[order], start[order], end[order]
    reach = _running_end(group, end)
    apart = np.ones(order.size, dtype=np.bool_)
    apart[1:] = (group[1:] != group[:-1]) | (start[1:] > reach[:-1])
    cluster = np.empty(order.size, dtype=np.int64)
    cluster[order] = np.cumsum(apart) - 1
    first = np.flatnonzero(apart)
    last = np.append(first[1:], order.size)[: first.size] - 1
    return cluster, MergedSessions(group[first], start[first], reach[last])


def _running_end(group: Words, end: Words) -> Words:
    """The latest end so far within each group; groups must be in order."""
    by_end = np.argsort(end, kind="stable")
    rank = np.empty(end.size, dtype=np.int64)
    rank[by_end] = np.arange(end.size)
    reach = np.maximum.accumulate(group * end.size + rank) - group * end.size
    return end[by_end[reach]]


def _inside(group: Words, times: Words, of: Words, start: Words, end: Words) -> Flags:
    """Which times fall into one of the sessions of their group; sessions of a group do not overlap."""
    if not of.size:
        return np.zeros(times.size, dtype=np.bool_)
    order = np.lexsort((np.arange(of.size + times.size) >= of.size, np.append(start, times), np.append(of, group)))
    latest = np.maximum.accumulate(np.where(order < of.size, np.arange(order.size), -1))
    session = np.where(latest >= 0, order[latest], 0)
    is_time = order >= of.size
    time, session = order[is_time] - of.size, np.where(latest >= 0, session, -1)[is_time]
    inside = np.zeros(times.size, dtype=np.bool_)
    inside[time] = (session >= 0) & (of[session] == group[time]) & (times[time] <= end[session])
    return inside
