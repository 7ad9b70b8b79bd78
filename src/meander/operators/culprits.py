"""The keys that make user code raise: each alone, found by halves over state that no trial changes."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from meander.errors import MeanderError
from meander.operators.operator import BinnedOperator, Now
from meander.route.keys import Keys
from meander.state.spec import TableSpec
from meander.state.table import Table

Words = NDArray[np.int64]
Fresh = Callable[[], Mapping[str, Table]]

MAX_TRACE = 4000
"""So many characters of a traceback are kept, the last ones: what was raised stands at the end."""
PACKAGE = str(Path(__file__).parents[1])


@dataclass(frozen=True, eq=False)
class Culprit:
    """A key for which user code raises.

    Args:
        key: the key.
        trace: what was raised, from the user's own code on.
        rows: its rows in the batch, by number; empty where its timers make the code raise.
        timers: its timers that are due, where they do.
    """

    key: Keys
    trace: str
    rows: Words
    timers: tuple[pa.Table, ...] = ()

    @property
    def count(self) -> int:
        """How many rows or timers it has."""
        return len(self.rows) + sum(len(each) for each in self.timers)


class Culprits:
    """The keys for which an operator raises, in the order of their hashes, first by their timers, then by their rows.

    A key counts that makes the operator raise when it comes alone. Keys that do so only together are none: whoever
    goes through all of them and finds the operator raising still has a function that mixes keys.

    `fresh` gives the tables as they were before the batch; each is used once, so nothing of a trial remains.
    """

    def __init__(self, operator: BinnedOperator, rows: pa.Table, keys: Keys, fresh: Fresh, now: Now) -> None:
        self._operator, self._rows, self._keys, self._fresh, self._now = operator, rows, keys, fresh, now
        self._due = operator.due(fresh(), now)
        distinct = Table(None, TableSpec("keys", operator.key), 1)
        self._of_timers = [distinct.touch(each.keys) for each in self._due]
        self._of_rows = distinct.touch(keys)
        self._every = operator.key.encode(distinct.keys())
        self._fires = np.zeros(len(self._every), np.bool_)
        for numbers in self._of_timers:
            self._fires[numbers] = True

    def __iter__(self) -> Iterator[Culprit]:
        # The order of a batch's rows differs between attempts; that of hashes does not.
        order = np.argsort(self._every.spread, kind="stable")
        guilty = []
        for number, trace in _search(order[self._fires[order]], self._trial_of_timers):
            guilty.append(number)
            timers = zip(self._due, self._of_timers, strict=True)
            mine = tuple(each.rows.take(pa.array(np.flatnonzero(numbers == number))) for each, numbers in timers)
            yield Culprit(self._key(number), trace, np.empty(0, np.int64), mine)
        self._fires[guilty] = False
        has_rows = np.zeros(len(self._every), np.bool_)
        has_rows[self._of_rows] = True
        for number, trace in _search(order[has_rows[order]], self._trial):
            yield Culprit(self._key(number), trace, np.flatnonzero(self._of_rows == number))

    def innocent(self) -> BinnedOperator:
        """After all of them: the operator that forgets the timers of those that have raised, and calls the others."""
        return self._operator.only(self._every.take(np.flatnonzero(self._fires)))

    def _key(self, number: int) -> Keys:
        return self._every.take(np.array([number]))

    def _trial_of_timers(self, numbers: Words) -> str | None:
        return self._trial(numbers, with_rows=False)

    def _trial(self, numbers: Words, with_rows: bool = True) -> str | None:
        """What the operator raises for these keys alone; None where all goes well."""
        chosen = np.zeros(len(self._every), np.bool_)
        chosen[numbers] = True
        at = np.flatnonzero(chosen[self._of_rows] & with_rows)
        operator = self._operator.only(self._every.take(np.flatnonzero(chosen & self._fires)))
        try:
            operator.run(self._rows.take(pa.array(at)), self._keys.take(at), self._fresh(), self._now)
        except Exception as problem:
            return trace_of(problem)
        return None


def _search(numbers: Words, trial: Callable[[Words], str | None], is_guilty: bool = False) -> Iterator[tuple[int, str]]:
    """Those that fail alone, with what they raise; `is_guilty` says that all together have failed already."""
    trace = None
    if numbers.size <= 1 or not is_guilty:
        trace = trial(numbers) if numbers.size else None
        if trace is None:
            return
    if numbers.size == 1 and trace is not None:
        yield int(numbers[0]), trace
        return
    middle = numbers.size // 2
    count = 0
    for each in _search(numbers[:middle], trial):
        count += 1
        yield each
    yield from _search(numbers[middle:], trial, is_guilty=count == 0)


def trace_of(problem: BaseException) -> str:
    """A traceback from the first line on that is not this library's own; of a long one the end.

    >>> trace_of(ValueError("no price"))
    'ValueError: no price'
    """
    trace: TracebackType | None = problem.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(PACKAGE):
        trace = trace.tb_next
    if trace is None and not isinstance(problem, MeanderError):
        trace = problem.__traceback__
    text = "".join(traceback.format_exception(type(problem), problem, trace)).rstrip()
    return text if len(text) <= MAX_TRACE else f"... {text[-MAX_TRACE:]}"
