"""A function of the user's, called for every key with its rows of a batch and its state."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from meander.errors import InvalidOption
from meander.operators.functions import ARROW, PANDAS, PLAIN, check_function, form_of, who_of
from meander.operators.key_state import StateChanges, check_columns, state_type
from meander.operators.operator import ALL, BinnedOperator, DueTimers, Now, Output, key_of, listing
from meander.operators.ordering import Flags, Words, ascending, sorted_rows
from meander.operators.plain_rows import Given, array_of, plain_rows, table_of, values_of
from meander.operators.times import Duration, microseconds, newest_of, time_type, times_of
from meander.route.columns import words_of
from meander.route.keys import Keys
from meander.route.schema import schema
from meander.state.frames import frame_of
from meander.state.spec import TableSpec
from meander.state.table import Table, among
from meander.store.evolution import OptionRule

TIMER = "__timer"
"""The column of the state's table that says when a key wants to be called without rows."""

TIMER_TYPE = pa.timestamp("us", tz="UTC")
NEVER = np.iinfo(np.int64).min


class MapWithState(BinnedOperator):
    """What `function(key, rows, state)` gives, called once for every key that has rows in a batch.

        def visits(user, rows, state):
            if state.timed_out:
                yield {"user": user, "n": state.n}
                state.clear()
            else:
                state.update(n=(state.n or 0) + len(rows), last=rows[-1].at)

        MapWithState(input, ["user"], visits, state="n long, last timestamp", output="user string, n long",
                     time="at", timeout="30 minutes")

    `key` is the key's value, a tuple of them where the key has several columns. `rows` are the key's rows of the
    batch, in order of `time` if that is given, then of all columns, the same in every attempt: a list of named tuples
    (`row.at` or `row["at"]`), or one pandas DataFrame or pyarrow Table, as the word `rows` ("plain", "pandas",
    "arrow") or the annotation of the argument says. `state` is a `KeyState`. The function yields rows or returns a
    list of them, each a dictionary, a named tuple or a tuple in the order of `output`; or tables or DataFrames of
    rows; or None.

    A `timeout` is in event time, the time of the column `time`: a key that has state, and no row for so long, is
    called without rows and with `state.timed_out`, once the watermark is past the time of its newest row and the
    timeout. Without one the function may ask for a timer of its own with `state.timer(at)`. The watermark follows the
    newest row of all keys, `lateness` behind. While no rows come it stands, unless the query is started with
    idle_time="wall": then it goes on as the clock does. What is due is called before the rows of a batch; a timer for
    a time that has passed is due in the next version.

    `Fold` is faster still where the work of all keys can be written as a few operations on columns, for it calls its
    function once a batch, not once a key: take it for sums, counts and extremes, and for many keys with few rows each.
    """

    name = "map_with_state"
    rules: ClassVar = {
        "lateness_us": OptionRule("timers that have fired stay so"),
        "timeout_us": OptionRule(
            "a key that has no further row ends when it was to end",
            lambda then, now: then is not None and now is not None,
            "the timers that are set are of another kind",
        ),
    }

    def __init__(
        self,
        input: pa.Schema,
        key: Sequence[str],
        function: Callable[..., Any],
        state: str | pa.Schema,
        output: str | pa.Schema,
        *,
        time: str | None = None,
        timeout: Duration | None = None,
        lateness: Duration = "0s",
        rows: str | None = None,
    ) -> None:
        check_function(function, self.name, ("key", "rows", "state"))
        self.input, self.function, self.who = input, function, who_of(function, self.name)
        self.key = key_of(input, key)
        declared = schema(state) if isinstance(state, str) else state
        self.state = pa.schema([field.with_nullable(True) for field in declared])
        if not self.state.names:
            raise InvalidOption('state declares no columns; write them as in state="n long, last timestamp"')
        check_columns(self.state.names, self.key.names)
        self.output = schema(output) if isinstance(output, str) else output
        if not self.output.names:
            raise InvalidOption('output declares no columns; write them as in output="user string, n long"')
        self.form = form_of(function, rows, self.name, 1, (PLAIN, PANDAS, ARROW), PLAIN)
        self.timeout = None if timeout is None else microseconds("timeout", timeout, least=1)
        self.time = _only_time(input) if time is None and timeout is not None else time
        if self.time is not None:
            time_type(input, self.time)
        self.lateness = microseconds("lateness", lateness)
        if self.lateness and self.time is None:
            raise InvalidOption("lateness is a length of event time; name its column with time=")
        values = [(field.name, field.type) for field in self.state]
        timers = [] if self.time is None else [(TIMER, TIMER_TYPE)]
        order = TIMER if timers else None
        self.tables = (TableSpec("states", self.key, (*values, *timers), order),)
        self.shown = [name for name in input.names if name != ALL]
        first = [*self.key.names, *([] if self.time is None else [self.time])]
        self.order = [*first, *(name for name in input.names if name not in first)]
        self.only_keys: Keys | None = None

    def run(self, rows: pa.Table, keys: Keys, tables: Mapping[str, Table], now: Now) -> Output:
        """Call the function for the keys that are due, then for the keys of the rows, and keep what it changes."""
        table = tables["states"]
        every = self._due(table, now)
        is_mine = self._is_mine(table, every)
        self._forget(table, every[~is_mine])
        due = every[is_mine]
        given = self._call(table, due, self._nothing(due.size), None) if due.size else []
        newest = None
        if len(keys):
            newest = None if self.time is None else newest_of(rows, self.time)
            order = sorted_rows(list(ascending(rows, self.order)))
            rows = rows.take(pa.array(order)).combine_chunks()
            at = table.touch(keys.take(order))
            starts = np.flatnonzero(np.append(True, at[1:] != at[:-1]))
            parts = self._parts(rows.select(self.shown), starts)
            given += self._call(table, at[starts], parts, self._newest(rows, starts))
        return Output(table_of(self.who, given, self.output), None, newest)

    def due(self, tables: Mapping[str, Table], now: Now) -> list[DueTimers]:
        """The keys whose time has come, with their timers."""
        table = tables["states"]
        every = self._due(table, now)
        at = every[self._is_mine(table, every)]
        if not at.size:
            return []
        columns = table.keys(at)
        rows = pa.table([*columns, table.get(TIMER, at)], [*self.key.names, "timer"])
        return [DueTimers(self.key.encode(columns), rows)]

    def only(self, keys: Keys) -> BinnedOperator:
        """The operator that sees the timers of these keys alone."""
        narrow = copy.copy(self)
        narrow.only_keys = keys
        return narrow

    @property
    def options(self) -> dict[str, Any]:
        """The column of event time, which timers are times of, how far they wait, and how long keys may be silent."""
        return {"time": self.time, "lateness_us": self.lateness, "timeout_us": self.timeout}

    def _due(self, table: Table, now: Now) -> Words:
        if self.time is None or now.frontier is None:
            return np.empty(0, np.int64)
        return table.due(now.frontier)

    def _is_mine(self, table: Table, due: Words) -> Flags:
        """Which of the keys that are due are to be called."""
        if self.only_keys is None or not due.size:
            return np.ones(due.size, np.bool_)
        return among(self.key.encode(table.keys(due)), self.only_keys)

    def _forget(self, table: Table, at: Words) -> None:
        """Take the timers of these keys away; what else they have stays."""
        if not at.size:
            return
        has = [table.valid(name)[at] for name in self.state.names]
        stays = np.logical_or.reduce(has)
        table.set(TIMER, at, pa.nulls(at.size, TIMER_TYPE))
        table.mark(at[stays])
        table.discard(at[~stays])

    def _newest(self, rows: pa.Table, starts: Words) -> Words:
        """The newest event time of each key's rows; `NEVER` where no row has one, or nobody asks."""
        if self.time is None or self.timeout is None:
            return np.full(starts.size, NEVER)
        words, has = times_of(rows, self.time)
        return np.maximum.reduceat(np.where(has, words, NEVER), starts)

    def _parts(self, rows: pa.Table, starts: Words) -> Iterator[Any]:
        """The rows of each key, in the form that the function takes."""
        if self.form == PANDAS:
            number = np.repeat(np.arange(starts.size), np.diff(np.append(starts, rows.num_rows)))
            for _, part in frame_of(rows).groupby(number, sort=False):
                part.index = range(len(part))
                yield part
            return
        whole = plain_rows(rows) if self.form == PLAIN else None
        ends = [*starts[1:].tolist(), rows.num_rows]
        for start, end in zip(starts.tolist(), ends, strict=True):
            yield rows.slice(start, end - start) if whole is None else whole[start:end]

    def _nothing(self, count: int) -> Iterator[Any]:
        """No rows, so many times, in the form that the function takes."""
        empty = pa.schema([self.input.field(name) for name in self.shown]).empty_table()
        frame = frame_of(empty) if self.form == PANDAS else None
        for _ in range(count):
            yield [] if self.form == PLAIN else empty if frame is None else frame.copy()

    def _keys(self, table: Table, at: Words) -> Iterable[Any]:
        """The key at each row: a value, a tuple of several, an empty one where all rows have one key."""
        columns = [values_of(c) for n, c in zip(self.key.names, table.keys(at), strict=True) if n != ALL]
        if not columns:
            return [()] * at.size
        return columns[0] if len(columns) == 1 else zip(*columns, strict=True)

    def _call(self, table: Table, at: Words, parts: Iterator[Any], newest: Words | None) -> list[Any]:
        """Call the function for the keys at these rows, and keep what it changes; the rows that it gives.

        `newest` is the newest event time of the rows of each key; None where the calls are without rows.
        """
        changes = StateChanges(self._refusal)
        of_key = state_type(tuple(self.state.names))
        before = [table.get(name, at) for name in self.state.names]
        states = zip(*map(values_of, before), strict=True)
        function, timed_out = self.function, newest is None
        given = Given(self.who)
        for place, (key, rows, values) in enumerate(zip(self._keys(table, at), parts, states, strict=True)):
            given.add(function(key, rows, of_key(changes, place, values, timed_out)))
        exists = np.logical_or.reduce([each.is_valid().to_numpy(zero_copy_only=False) for each in before])
        self._keep(table, at, changes, exists, newest)
        return given.items

    def _keep(self, table: Table, at: Words, changes: StateChanges, exists: Flags, newest: Words | None) -> None:
        """Write the changes to the table; `exists` says which keys had state before."""
        changed = np.zeros(at.size, np.bool_)
        places = np.fromiter(changes.values, np.int64, len(changes.values))
        if places.size:
            has = np.zeros(places.size, np.bool_)
            for field, values in zip(self.state, zip(*changes.values.values(), strict=True), strict=True):
                column = array_of(f"{self.who} set", field.name, values, field.type)
                table.set(field.name, at[places], column)
                has |= column.is_valid().to_numpy(zero_copy_only=False)
            changed[places], exists[places] = True, has
        stays = exists
        if self.time is not None:
            timer = table.get(TIMER, at)
            before = np.where(timer.is_valid().to_numpy(zero_copy_only=False), words_of(timer), NEVER)
            later = self._timers(before, changes, exists, newest)
            moved = np.flatnonzero(later != before)
            changed[moved] = True
            table.set(TIMER, at[moved], pa.array(later[moved], mask=later[moved] == NEVER).cast(TIMER_TYPE))
            stays = exists | (later != NEVER)
        table.mark(at[changed & stays])
        table.discard(at[changed & ~stays])

    def _timers(self, before: Words, changes: StateChanges, exists: Flags, newest: Words | None) -> Words:
        """When each key is to be called without rows, `NEVER` where it is not; a timer that was due is over."""
        later = np.full(before.size, NEVER) if newest is None else before.copy()
        if self.timeout is None:
            for place, timer in changes.timers.items():
                later[place] = NEVER if timer is None else timer
        elif newest is not None:
            # Late rows do not bring the end nearer.
            later = np.maximum(later, np.where(newest == NEVER, NEVER, newest + self.timeout))
            later[~exists] = NEVER
        return later

    @property
    def _refusal(self) -> str | None:
        """Why the function may not set timers; None where it may."""
        if self.time is None:
            return f"{self.who} asks for a timer, and timers are in event time; name its column with time="
        if self.timeout is not None:
            return f"{self.who} asks for a timer, but timeout= sets those of all keys; leave out one of the two"
        return None


def _only_time(input: pa.Schema) -> str:
    """The only timestamp there is."""
    stamps = [field.name for field in input if pa.types.is_timestamp(field.type)]
    if len(stamps) != 1:
        advice = (
            "name one with time="
            if stamps
            else 'add one, such as .withColumn("arrived", F.current_timestamp()), and name it with time='
        )
        raise InvalidOption(
            f"timeout is a length of event time, and the stream has {len(stamps)} timestamp columns "
            f"({listing(stamps)}); {advice}"
        )
    return str(stamps[0])
